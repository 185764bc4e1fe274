//! Collateral in a contract of the chain's EVM: the settings, the nodes that are asked, and the reading of deposits.

mod contract;
pub(crate) mod directory;
mod json_rpc;
pub(crate) mod key_file;
mod slash;
mod transaction;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub use alloy_primitives::Address as EvmAddress;
use alloy_primitives::Address;
use alloy_primitives::U256;
use alloy_sol_types::SolCall;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use muster_chain::Netuid;
use muster_process::SharedClock;
use muster_protocol::{MinerKey, Rao};
use serde_json::{Value, json};
use url::Url;

use contract::{Collateral, rao_of_wei};
use directory::{EvmDirectory, address_of};
use json_rpc::Node;

use crate::account_share::share;
use crate::error::CollateralError;
use crate::{CollateralSource, Deposit, MinerAccount, SlashEnd, SlashOrder, SlashPlan};

/// The state of the EVM that is read: a deposit in a block that is not final may be undone.
const FINAL: &str = "finalized";

/// Calls to one node at a time.
const CALLS_AT_ONCE: usize = 8;

/// Where the contract is and how it is written.
#[derive(Clone, Debug)]
pub struct EvmSettings {
    /// The JSON-RPC addresses of nodes of one chain, the preferred one first.
    pub rpc_urls: Vec<Url>,
    /// The id of the nodes' chain: 964 for Bittensor's public chain, 945 for its test chain.
    pub chain_id: u64,
    /// The contract; `None` to read it from the validator's commitment.
    pub contract: Option<Address>,
    /// The file with the trustee's key; only slashing needs it.
    pub key_file: Option<PathBuf>,
    /// The most that a transaction may cost in fees.
    pub max_fee: Rao,
    /// The bound on one request.
    pub request: Duration,
    /// How long the command waits for a transaction's block to be final.
    pub receipt: Duration,
}

/// ComputeHorde's collateral contract, read over JSON-RPC.
#[derive(Debug)]
pub struct EvmCollateral {
    settings: EvmSettings,
    nodes: Vec<Node>,
    /// The node that answered last.
    preferred: AtomicUsize,
    directory: Arc<dyn EvmDirectory>,
    netuid: Netuid,
    clock: SharedClock,
}

impl EvmCollateral {
    /// A source that reads the contract of this subnet. Does not connect yet.
    ///
    /// # Errors
    /// The HTTP client cannot be built.
    pub fn new(
        settings: EvmSettings,
        netuid: Netuid,
        directory: Arc<dyn EvmDirectory>,
        clock: SharedClock,
    ) -> Result<Self, CollateralError> {
        let http = Node::client(settings.request).map_err(CollateralError::Client)?;
        let nodes = settings.rpc_urls.iter();
        Ok(Self {
            nodes: nodes.map(|url| Node::new(http.clone(), url.clone())).collect(),
            settings,
            preferred: AtomicUsize::new(0),
            directory,
            netuid,
            clock,
        })
    }

    /// The contract's address: the configured one, else that of the validator's commitment.
    async fn contract(&self) -> Result<Address, CollateralError> {
        if let Some(address) = self.settings.contract {
            return Ok(address);
        }
        let committed = self.directory.contract().await?;
        committed.ok_or(CollateralError::NoContractKnown)
    }

    /// Runs `ask` at one node after the other until one answers. The whole of it is repeated, so that one reading comes
    /// from one node.
    async fn ask<'a, T, F>(&'a self, ask: impl Fn(&'a Node) -> F) -> Result<T, CollateralError>
    where
        F: Future<Output = Result<T, CollateralError>> + 'a,
    {
        let first = self.preferred.load(Ordering::Relaxed);
        let order = (0..self.nodes.len()).map(|step| first.saturating_add(step));
        let mut failures = Vec::new();
        for index in order {
            let Some(index) = index.checked_rem(self.nodes.len()) else {
                break;
            };
            let Some(node) = self.nodes.get(index) else { break };
            match ask(node).await {
                Err(error) if error.is_of_one_node() => {
                    tracing::debug!(%error, "an EVM node is passed over");
                    failures.push(error);
                }
                end => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return end;
                }
            }
        }
        Err(merge_failures(failures))
    }

    /// Checks that the node serves the configured chain.
    async fn check_chain(&self, node: &Node, doing: &'static str) -> Result<(), CollateralError> {
        let id = node.call(doing, "eth_chainId", json!([])).await?;
        let found = node.quantity(doing, &id)?;
        if found == self.settings.chain_id {
            return Ok(());
        }
        Err(CollateralError::WrongChain {
            host: node.host(),
            expected: self.settings.chain_id,
            found,
        })
    }

    /// Checks that the address holds the contract of this subnet.
    async fn check_contract(
        &self,
        node: &Node,
        doing: &'static str,
        contract: Address,
    ) -> Result<(), CollateralError> {
        let code = node
            .call(doing, "eth_getCode", json!([contract.to_string(), FINAL]))
            .await?;
        if node.bytes(doing, &code)?.is_empty() {
            return Err(CollateralError::NoContract {
                address: contract.to_string(),
                host: node.host(),
            });
        }
        let found = view(node, doing, contract, Collateral::NETUIDCall {}).await?;
        if found == self.netuid.0 {
            return Ok(());
        }
        Err(CollateralError::WrongSubnet {
            address: contract.to_string(),
            expected: self.netuid,
            found,
        })
    }

    /// The address of each miner; `None` for one without.
    async fn addresses(
        &self,
        miners: &[MinerAccount],
    ) -> Result<BTreeMap<MinerKey, Option<Address>>, CollateralError> {
        let associations = self.directory.associations().await?;
        let address = |miner: &MinerAccount| address_of(miner, associations.get(&miner.uid));
        Ok(miners.iter().map(|miner| (miner.miner, address(miner))).collect())
    }

    async fn read_all(
        &self,
        miners: &[MinerAccount],
    ) -> Result<BTreeMap<MinerKey, Deposit>, CollateralError> {
        const DOING: &str = "read the miners' collateral";
        let accounts = self.addresses(miners).await?;
        let contract = self.contract().await?;
        let distinct: BTreeSet<Address> = accounts.values().flatten().copied().collect();
        let amounts = self
            .ask(|node| {
                let distinct = distinct.clone();
                async move {
                    self.check_chain(node, DOING).await?;
                    self.check_contract(node, DOING, contract).await?;
                    let calls: Vec<_> = distinct
                        .into_iter()
                        .map(|address| async move {
                            let amount = deposited(node, DOING, contract, address).await?;
                            Ok::<_, CollateralError>((address, amount))
                        })
                        .collect();
                    let amounts = stream::iter(calls).buffer_unordered(CALLS_AT_ONCE);
                    amounts.try_collect::<BTreeMap<_, _>>().await
                }
            })
            .await?;
        Ok(share(&accounts, &amounts))
    }
}

impl CollateralSource for EvmCollateral {
    fn describe(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(Node::host).collect();
        let contract = match self.settings.contract {
            Some(address) => address.to_string(),
            None => "of the validator's commitment".to_owned(),
        };
        format!("the contract {contract} at {}", hosts.join(", "))
    }

    fn read<'a>(
        &'a self,
        miners: &'a [MinerAccount],
    ) -> BoxFuture<'a, Result<BTreeMap<MinerKey, Deposit>, CollateralError>> {
        self.read_all(miners).boxed()
    }

    fn plan_slash<'a>(
        &'a self,
        order: &'a SlashOrder,
        miners: &'a [MinerAccount],
    ) -> BoxFuture<'a, Result<SlashPlan, CollateralError>> {
        self.plan(order, miners).boxed()
    }

    fn carry_out<'a>(&'a self, plan: &'a SlashPlan) -> BoxFuture<'a, Result<SlashEnd, CollateralError>> {
        self.send_and_wait(plan).boxed()
    }
}

/// The deposit of an address, all miners that show it together.
async fn deposited(
    node: &Node,
    doing: &'static str,
    contract: Address,
    miner: Address,
) -> Result<Rao, CollateralError> {
    let wei: U256 = view(node, doing, contract, Collateral::collateralsCall { miner }).await?;
    Ok(rao_of_wei(wei))
}

/// Calls a function of the contract that changes nothing.
async fn view<C: SolCall>(
    node: &Node,
    doing: &'static str,
    contract: Address,
    call: C,
) -> Result<C::Return, CollateralError> {
    let call = json!({ "to": contract.to_string(), "data": format!("0x{}", hex::encode(call.abi_encode())) });
    let answer: Value = node.call(doing, "eth_call", json!([call, FINAL])).await?;
    let bytes = node.bytes(doing, &answer)?;
    C::abi_decode_returns(&bytes)
        .map_err(|error| node.not_understood(doing, format!("{}: {error}", C::SIGNATURE)))
}

/// One error for those of all nodes: the most informative one, else a list of who did not answer.
fn merge_failures(failures: Vec<CollateralError>) -> CollateralError {
    let mut away = Vec::new();
    let mut operation = "reach an EVM node";
    for failure in failures {
        let CollateralError::NodeAway { doing, said } = failure else {
            return failure;
        };
        operation = doing;
        away.push(said);
    }
    CollateralError::NodeAway {
        doing: operation,
        said: away.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_answers_wrongly_tells_more_than_one_that_is_away() {
        let away = |host: &str| CollateralError::NodeAway {
            doing: "read",
            said: host.to_owned(),
        };
        let merged = merge_failures(vec![away("a"), away("b")]).to_string();
        assert!(merged.contains("a; b"), "{merged}");
        let wrong = CollateralError::WrongChain {
            host: "c".to_owned(),
            expected: 964,
            found: 1,
        };
        let merged = merge_failures(vec![away("a"), wrong]);
        assert!(matches!(merged, CollateralError::WrongChain { .. }), "{merged}");
    }
}
