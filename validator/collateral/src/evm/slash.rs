//! A slash of the contract: prepared as a signed transaction, sent until it is in a final block.

use alloy_primitives::Address;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::contract::{Collateral, slash_call};
use super::json_rpc::Node;
use super::key_file::EvmKey;
use super::transaction::{ContractCall, nonce_of};
use super::{EvmCollateral, FINAL, deposited, view};
use crate::error::CollateralError;
use crate::{MinerAccount, SlashEnd, SlashOrder, SlashPlan};

/// Pause between two looks for a transaction's block.
const PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// The part of a plan that is stored.
#[derive(Debug, Serialize, Deserialize)]
struct StoredTransaction {
    /// The account that signed it.
    sender: String,
    /// The signed bytes in hexadecimal.
    raw: String,
}

/// The state of a sent transaction, as nodes know it.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// It is in a final block, and did what it was to do.
    Succeeded,
    /// It is in a final block, and the contract reverted it.
    Reverted,
    /// It is in a block that is not final yet.
    NotFinal,
    /// It is in no block, and its place is free.
    Waiting,
    /// It is in no block, and never will be: another transaction of the same account took its place.
    Replaced,
}

impl EvmCollateral {
    /// Checks a slash at a node, and signs its transaction.
    pub(super) async fn plan(
        &self,
        order: &SlashOrder,
        miners: &[MinerAccount],
    ) -> Result<SlashPlan, CollateralError> {
        const DOING: &str = "prepare the slash";
        if order.amount.0 == 0 {
            return Err(CollateralError::ZeroAmount);
        }
        let known = miners.iter().find(|miner| miner.miner == order.miner);
        let known = known.ok_or(CollateralError::UnknownMiner(order.miner))?;
        let addresses = self.addresses(std::slice::from_ref(known)).await?;
        let address = addresses.values().flatten().next().copied();
        let address = address.ok_or(CollateralError::NoAccount(order.miner))?;
        let path = self.settings.key_file.as_ref();
        let key = EvmKey::read(path.ok_or(CollateralError::NoKey("collateral.key_file"))?).await?;
        let contract = self.contract().await?;
        let data = &slash_call(address, order.amount, &order.url, order.evidence.md5);
        let (key, sender) = (&key, key.address());
        let (held, call, host) = self
            .ask(|node| async move {
                self.check_chain(node, DOING).await?;
                self.check_contract(node, DOING, contract).await?;
                let trustee: Address = view(node, DOING, contract, Collateral::TRUSTEECall {}).await?;
                if trustee != sender {
                    return Err(CollateralError::NotTrustee {
                        ours: sender.to_string(),
                        trustee: trustee.to_string(),
                    });
                }
                let held = deposited(node, DOING, contract, address).await?;
                if held < order.amount {
                    return Err(CollateralError::TooLittle {
                        miner: order.miner,
                        held,
                        amount: order.amount,
                    });
                }
                let call = self.price(node, DOING, sender, contract, data).await?;
                Ok((held, call, node.host()))
            })
            .await?;
        let fee = call.max_fee();
        if fee > self.settings.max_fee {
            return Err(CollateralError::TooDear {
                fee,
                limit: self.settings.max_fee,
            });
        }
        let signed = call.sign(key).ok_or_else(|| CollateralError::Key {
            path: path.map(|path| path.display().to_string()).unwrap_or_default(),
            reason: "it cannot sign this transaction; make another key the trustee".to_owned(),
        })?;
        Ok(SlashPlan {
            account: address.to_string(),
            held,
            summary: format!(
                "slash {} of the {held} of {} ({address}): transaction {} of {sender} to the contract {contract} on \
                 chain {} at {host}, with at most {fee} in fees; the contract burns the amount",
                order.amount, order.miner, signed.hash, self.settings.chain_id
            ),
            payload: json!(StoredTransaction {
                sender: sender.to_string(),
                raw: hex::encode(&signed.bytes),
            })
            .to_string(),
            reference: signed.hash,
        })
    }

    /// The transaction with its place, its gas and its price. A call that would be reverted fails here with its reason.
    async fn price(
        &self,
        node: &Node,
        doing: &'static str,
        sender: Address,
        contract: Address,
        data: &[u8],
    ) -> Result<ContractCall, CollateralError> {
        let call = json!({
            "from": sender.to_string(),
            "to": contract.to_string(),
            "data": format!("0x{}", hex::encode(data)),
        });
        node.call(doing, "eth_call", json!([call, "latest"])).await?;
        let number = async |method: &str, params: Value| -> Result<u64, CollateralError> {
            let answer = node.call(doing, method, params).await?;
            node.quantity(doing, &answer)
        };
        let gas = number("eth_estimateGas", json!([call])).await?;
        let gas_price = number("eth_gasPrice", json!([])).await?;
        Ok(ContractCall {
            nonce: number("eth_getTransactionCount", json!([sender.to_string(), "pending"])).await?,
            // The price and the state may move before the transaction is in a block.
            gas_price: raise_by_a_quarter(gas_price),
            gas: raise_by_a_quarter(gas),
            to: contract,
            data: data.to_vec(),
            chain_id: self.settings.chain_id,
        })
    }

    /// Sends a plan's transaction, as often as needed, until its end is final.
    pub(super) async fn send_and_wait(&self, plan: &SlashPlan) -> Result<SlashEnd, CollateralError> {
        const DOING: &str = "carry out the slash";
        let (sender, nonce, raw) =
            read_stored(&plan.payload).ok_or(CollateralError::Stored("transaction"))?;
        let raw = &raw;
        let deadline = self.clock.now().plus(self.settings.receipt);
        let mut refused = None;
        loop {
            let fate = self
                .ask(|node| async move {
                    self.check_chain(node, DOING).await?;
                    look_for(node, DOING, &plan.reference, sender, nonce).await
                })
                .await?;
            match fate {
                Fate::Succeeded => {
                    let reference = plan.reference.clone();
                    return Ok(SlashEnd::Done { reference });
                }
                Fate::Reverted => {
                    return Ok(failed(format!(
                        "the contract reverted the transaction {}",
                        plan.reference
                    )));
                }
                Fate::Replaced => {
                    return Ok(failed(format!(
                        "another transaction of {sender} took the place of {}",
                        plan.reference
                    )));
                }
                Fate::NotFinal => {}
                Fate::Waiting => refused = self.send(DOING, raw).await.err(),
            }
            if self.clock.now() >= deadline {
                // A node that refuses the transaction states why it comes into no block.
                return Err(refused.unwrap_or_else(|| CollateralError::Pending {
                    hash: plan.reference.clone(),
                }));
            }
            self.clock.sleep(PAUSE).await;
        }
    }

    /// Hands the transaction to a node. A node that has it already refuses it, which does no harm.
    async fn send(&self, doing: &'static str, raw: &str) -> Result<(), CollateralError> {
        let raw = &json!([format!("0x{raw}")]);
        let sent =
            self.ask(|node| async move { node.call(doing, "eth_sendRawTransaction", raw.clone()).await });
        sent.await.map(drop)
    }
}

/// Looks for a transaction at a node. The account's count of final transactions decides: one of another hash took
/// the place if the count has passed the nonce and the transaction is in no block.
async fn look_for(
    node: &Node,
    doing: &'static str,
    hash: &str,
    sender: Address,
    nonce: u64,
) -> Result<Fate, CollateralError> {
    let count = node
        .call(
            doing,
            "eth_getTransactionCount",
            json!([sender.to_string(), FINAL]),
        )
        .await?;
    let passed = node.quantity(doing, &count)? > nonce;
    // Read after the count: a transaction that the count includes is found.
    let receipt = node
        .call(doing, "eth_getTransactionReceipt", json!([hash]))
        .await?;
    match (receipt.get("status"), passed) {
        (Some(status), true) => Ok(match node.quantity(doing, status)? {
            0 => Fate::Reverted,
            _ => Fate::Succeeded,
        }),
        (Some(_), false) => Ok(Fate::NotFinal),
        (None, true) => Ok(Fate::Replaced),
        (None, false) => Ok(Fate::Waiting),
    }
}

/// The sender, the nonce and the bytes of a stored transaction.
fn read_stored(payload: &str) -> Option<(Address, u64, String)> {
    let stored: StoredTransaction = serde_json::from_str(payload).ok()?;
    let nonce = nonce_of(&hex::decode(&stored.raw).ok()?)?;
    Some((stored.sender.parse().ok()?, nonce, stored.raw))
}

fn failed(reason: String) -> SlashEnd {
    SlashEnd::Failed { reason }
}

fn raise_by_a_quarter(number: u64) -> u64 {
    number.saturating_add(number.div_ceil(4))
}
