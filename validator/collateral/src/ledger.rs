//! Collateral as transfers on the chain itself: miners' coldkeys pay into an account of the validator, which keeps the
//! book of it from finalised blocks only.

mod book;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_chain::{BlockNumber, ChainError, next_transfer_piece};
use muster_identity::Keypair;
use muster_identity::wallet::{WalletPath, load_hotkey};
use muster_process::error::Causes;
use muster_protocol::{Hotkey, MinerKey};
use muster_validator_store::Store;
use tokio::sync::Mutex;

use book::{LedgerBook, LedgerPosition, entry_of};

use crate::account_share::share;
use crate::chain_link::ChainLink;
use crate::error::CollateralError;
use crate::{CollateralSource, Deposit, MinerAccount, SlashEnd, SlashOrder, SlashPlan};

/// Blocks after which a transfer whose end is not known can come into no block any more: a signature is valid for 32,
/// and the rest is for the blocks between the look at the head and the signature.
const TRANSFER_BLOCKS: u64 = 96;

/// Stands for no transfer under way.
const NONE: BlockNumber = BlockNumber(0);

/// The accounts of the operator, and the key that slashing needs.
#[derive(Clone, Debug)]
pub struct LedgerSettings {
    /// The account into which miners pay.
    pub account: Hotkey,
    /// The account that gets slashed money.
    pub slashed_to: Hotkey,
    /// The wallet whose hotkey is `account`; only slashing needs it.
    pub wallet: Option<WalletPath>,
    /// The first block whose transfers count; `None` for the head at the first start.
    pub from_block: Option<BlockNumber>,
}

/// The collateral account on the chain, and its book.
#[derive(Debug)]
pub struct LedgerCollateral {
    settings: LedgerSettings,
    link: Arc<ChainLink>,
    book: LedgerBook,
    /// One caller at a time reads the chain on.
    turn: Mutex<()>,
}

impl LedgerCollateral {
    /// A source that reads the transfers of the account and keeps their book in the store. Does not connect yet.
    pub fn new(settings: LedgerSettings, link: Arc<ChainLink>, store: Arc<Store>) -> Self {
        Self {
            settings,
            link,
            book: LedgerBook(store),
            turn: Mutex::default(),
        }
    }

    /// Books all finalised blocks that are not booked yet.
    async fn read_on(&self) -> Result<LedgerPosition, CollateralError> {
        let _turn = self.turn.lock().await;
        let client = self.link.client().await?;
        let head = client.head().await?;
        let mut position = self.book.position().await?;
        let first = self.settings.from_block.unwrap_or(head);
        let mut after = match position {
            Some(known) => known.booked,
            None => BlockNumber(first.0.saturating_sub(1)),
        };
        let (account, sink) = (&self.settings.account, &self.settings.slashed_to);
        while let Some(through) = next_transfer_piece(after, head) {
            let transfers = client.transfers_after(after, through, account).await?;
            let booked = transfers
                .iter()
                .filter_map(|(_, transfer)| entry_of(transfer, account, sink));
            let entries: Vec<_> = booked.collect();
            let known = position.map(|position| position.booked);
            if !self.book.append(known, through, &entries).await? {
                return Err(CollateralError::Stored("position"));
            }
            for entry in &entries {
                tracing::info!(?entry, %through, "the collateral account moved");
            }
            after = through;
            position = Some(LedgerPosition {
                booked: through,
                transfer_until: position.map_or(NONE, |position| position.transfer_until),
            });
        }
        Ok(position.unwrap_or(LedgerPosition {
            booked: after,
            transfer_until: NONE,
        }))
    }

    async fn read_all(
        &self,
        miners: &[MinerAccount],
    ) -> Result<BTreeMap<MinerKey, Deposit>, CollateralError> {
        self.read_on().await?;
        let balances = self.book.balances().await?;
        let amounts = balances.into_iter().map(|(key, balance)| (key, balance.held()));
        let accounts = miners.iter().map(|miner| (miner.miner, Some(miner.owner)));
        Ok(share(&accounts.collect(), &amounts.collect()))
    }

    fn keypair(&self) -> Result<Keypair, CollateralError> {
        let wallet = self.settings.wallet.as_ref();
        let wallet = wallet.ok_or(CollateralError::NoKey("collateral.ledger.wallet"))?;
        let keypair = load_hotkey(wallet).map_err(|error| CollateralError::Key {
            path: "collateral.ledger.wallet".to_owned(),
            reason: Causes(&error).to_string(),
        })?;
        if keypair.hotkey() == self.settings.account {
            return Ok(keypair);
        }
        Err(CollateralError::WrongWallet {
            account: self.settings.account.to_string(),
            found: keypair.hotkey().to_string(),
        })
    }

    async fn plan(&self, order: &SlashOrder, miners: &[MinerAccount]) -> Result<SlashPlan, CollateralError> {
        if order.amount.0 == 0 {
            return Err(CollateralError::ZeroAmount);
        }
        let known = miners.iter().find(|miner| miner.miner == order.miner);
        let owner = known.ok_or(CollateralError::UnknownMiner(order.miner))?.owner;
        self.keypair()?;
        self.read_on().await?;
        let balances = self.book.balances().await?;
        let held = balances.get(&owner).copied().unwrap_or_default().held();
        if held < order.amount {
            return Err(CollateralError::TooLittle {
                miner: order.miner,
                held,
                amount: order.amount,
            });
        }
        Ok(SlashPlan {
            account: owner.to_string(),
            held,
            summary: format!(
                "slash {} of the {held} of {} (coldkey {owner}): the book takes the amount, and a transfer from {} to {} \
                 pays it out",
                order.amount, order.miner, self.settings.account, self.settings.slashed_to
            ),
            payload: String::new(),
            reference: String::new(),
        })
    }

    /// Pays out all slashed money that has not left the account. The amount is what the book owes, so a repetition pays
    /// nothing that was paid.
    async fn pay_out(&self) -> Result<SlashEnd, CollateralError> {
        let position = self.read_on().await?;
        let owed = self.book.slashes_owed().await?;
        if owed.0 == 0 {
            self.book.note_transfer(NONE).await?;
            return Ok(done(position.booked));
        }
        if position.booked < position.transfer_until {
            return Err(CollateralError::TransferMayCome {
                until: position.transfer_until.0,
            });
        }
        let keypair = self.keypair()?;
        let client = self.link.client().await?;
        let until = position.booked.0.saturating_add(TRANSFER_BLOCKS);
        self.book.note_transfer(BlockNumber(until)).await?;
        match client.transfer(&keypair, &self.settings.slashed_to, owed).await {
            Ok(transfer) => {
                tracing::warn!(amount = %transfer.amount, block = %transfer.block, "slashed collateral was paid out");
                self.read_on().await?;
                self.book.note_transfer(NONE).await?;
                Ok(done(transfer.block))
            }
            Err(error) => {
                // A refused call is in no block, and never will be.
                if let ChainError::Refused { .. } = error {
                    self.book.note_transfer(NONE).await?;
                }
                Err(error.into())
            }
        }
    }
}

fn done(block: BlockNumber) -> SlashEnd {
    SlashEnd::Done {
        reference: format!("block {block}"),
    }
}

impl CollateralSource for LedgerCollateral {
    fn describe(&self) -> String {
        format!("transfers to {}", self.settings.account)
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

    fn carry_out<'a>(&'a self, _plan: &'a SlashPlan) -> BoxFuture<'a, Result<SlashEnd, CollateralError>> {
        self.pay_out().boxed()
    }
}
