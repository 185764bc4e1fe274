//! Balances and prices in rao, and the calls that move money: transfers and registrations.

use muster_identity::Keypair;
use muster_protocol::{BlockNumber, Hotkey, Netuid, Rao};
use subxt::dynamic::Value;

use crate::call_encoding;
use crate::chain_reader::ChainClient;
use crate::error::ChainError;
use crate::scale_value::number;

/// A transfer that is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalTransfer {
    /// The block that holds the transfer.
    pub block: BlockNumber,
    /// The amount that the receiver got, by the chain's own event.
    pub amount: Rao,
    /// The fee that the sender paid in addition.
    pub fee: Rao,
}

/// A registration that is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalRegistration {
    /// The block that holds the registration.
    pub block: BlockNumber,
    /// The price that was read before the call; the chain's own may have moved by a block.
    pub price: Rao,
    /// The fee that the coldkey paid in addition.
    pub fee: Rao,
}

impl ChainClient {
    /// The amount that an account can spend.
    ///
    /// # Errors
    /// No endpoint answers, or an answer is not understood.
    pub async fn balance(&self, account: &Hotkey) -> Result<Rao, ChainError> {
        const DOING: &str = "read a balance";
        let keys = vec![Value::from_bytes(account.as_bytes())];
        let Some(info) = self.read_storage(DOING, "System", "Account", keys).await? else {
            return Ok(Rao(0));
        };
        crate::scale_value::field(&info, "data")
            .and_then(|data| crate::scale_value::field(data, "free"))
            .and_then(number)
            .map(Rao)
            .ok_or_else(|| ChainError::Answer {
                doing: DOING,
                what: "an account has no free balance".to_owned(),
            })
    }

    /// A hotkey's stake in a subnet, in that subnet's smallest unit.
    ///
    /// # Errors
    /// As for [`Self::balance`].
    pub async fn stake(&self, netuid: Netuid, hotkey: &Hotkey) -> Result<Rao, ChainError> {
        let keys = vec![Value::from_bytes(hotkey.as_bytes()), Value::u128(netuid.0.into())];
        self.amount("read a stake", "TotalHotkeyAlpha", keys).await
    }

    /// The current price of a registration in a subnet.
    ///
    /// # Errors
    /// As for [`Self::balance`]; [`ChainError::NoSubnet`].
    pub async fn registration_price(&self, netuid: Netuid) -> Result<Rao, ChainError> {
        self.require_subnet(netuid).await?;
        self.amount(
            "read the price of a registration",
            "Burn",
            vec![Value::u128(netuid.0.into())],
        )
        .await
    }

    async fn amount(
        &self,
        doing: &'static str,
        entry: &'static str,
        keys: Vec<Value>,
    ) -> Result<Rao, ChainError> {
        match self.read_storage(doing, "SubtensorModule", entry, keys).await? {
            None => Ok(Rao(0)),
            Some(value) => number(&value).map(Rao).ok_or_else(|| ChainError::Answer {
                doing,
                what: format!("{entry} is not a number"),
            }),
        }
    }

    /// Transfers an amount and keeps the sender's account alive. Returns once the chain's own event of it is final.
    ///
    /// # Errors
    /// No endpoint answers, a rejection such as too little balance, or [`ChainError::Unconfirmed`]: the transfer may or
    /// may not have happened, and the receiver's [`Self::balance`] shows it. It is never sent twice.
    pub async fn transfer(
        &self,
        from: &Keypair,
        to: &Hotkey,
        amount: Rao,
    ) -> Result<FinalTransfer, ChainError> {
        let included = self
            .submit(from, call_encoding::transfer_keep_alive(to, amount))
            .await?;
        let moved = included.event("Balances", "Transfer").and_then(|event| {
            let account = |name| {
                event
                    .iter()
                    .find(|(field, _)| field == name)
                    .map(|(_, value)| value)
            };
            let to_them = account("to").and_then(crate::scale_value::account) == Some(*to);
            account("amount").filter(|_| to_them).and_then(number).map(Rao)
        });
        match moved {
            Some(moved) => Ok(FinalTransfer {
                block: included.block,
                amount: moved,
                fee: included.fee(),
            }),
            None => Err(ChainError::Answer {
                doing: "transfer",
                what: format!(
                    "block {} has the call and not the event of a transfer",
                    included.block
                ),
            }),
        }
    }

    /// Registers a hotkey, paid by the coldkey that signs, unless that costs more than `limit`.
    ///
    /// The chain has no limit in the call itself: the price is read right before, and may rise by a block in between.
    ///
    /// # Errors
    /// [`ChainError::TooDear`], no endpoint, or a refusal such as too little balance.
    pub async fn burned_register(
        &self,
        coldkey: &Keypair,
        netuid: Netuid,
        hotkey: &Hotkey,
        limit: Rao,
    ) -> Result<FinalRegistration, ChainError> {
        let price = self.registration_price(netuid).await?;
        if price > limit {
            return Err(ChainError::TooDear { price, limit });
        }
        let included = self
            .submit(coldkey, call_encoding::burned_register(netuid, hotkey))
            .await?;
        Ok(FinalRegistration {
            block: included.block,
            price,
            fee: included.fee(),
        })
    }
}
