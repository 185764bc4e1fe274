//! The book of the collateral account in the validator's store.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_chain::BlockNumber;
use muster_collateral::{AccountBalance, CollateralError, LedgerBook, LedgerEntry, LedgerPosition};
use muster_protocol::{Hotkey, Rao};
use muster_store::StoreError;

use muster_validator_store::{BookedTransfers, Store, StoredBalance};

/// The word for slashes of this source in the store.
pub(crate) const LEDGER: &str = "ledger";

#[derive(Debug)]
pub(crate) struct StoredLedger(pub(crate) Arc<Store>);

impl LedgerBook for StoredLedger {
    fn position(&self) -> BoxFuture<'_, Result<Option<LedgerPosition>, CollateralError>> {
        async {
            let book = self.0.collateral_book().await.map_err(failed)?;
            Ok(book.map(|book| LedgerPosition {
                booked: book.booked,
                transfer_until: book.transfer_until,
            }))
        }
        .boxed()
    }

    fn append<'a>(
        &'a self,
        after: Option<BlockNumber>,
        through: BlockNumber,
        entries: &'a [LedgerEntry],
    ) -> BoxFuture<'a, Result<bool, CollateralError>> {
        async move {
            let transfers = sum_up(entries);
            let booked = self.0.book_collateral(after, through, &transfers).await;
            booked.map_err(failed)
        }
        .boxed()
    }

    fn note_transfer(&self, until: BlockNumber) -> BoxFuture<'_, Result<(), CollateralError>> {
        async move { self.0.note_collateral_transfer(until).await.map_err(failed) }.boxed()
    }

    fn balances(&self) -> BoxFuture<'_, Result<BTreeMap<Hotkey, AccountBalance>, CollateralError>> {
        async {
            let booked = self.0.collateral_balances().await.map_err(failed)?;
            let mut balances: BTreeMap<_, _> = booked
                .into_iter()
                .map(|(coldkey, StoredBalance { deposited, returned })| {
                    let slashed = Rao(0);
                    (
                        coldkey,
                        AccountBalance {
                            deposited,
                            returned,
                            slashed,
                        },
                    )
                })
                .collect();
            for (account, amount) in self.0.slashed_amounts(LEDGER).await.map_err(failed)? {
                let coldkey: Hotkey = account.parse().map_err(|_| CollateralError::Stored("account"))?;
                balances.entry(coldkey).or_default().slashed = amount;
            }
            Ok(balances)
        }
        .boxed()
    }

    fn slashes_owed(&self) -> BoxFuture<'_, Result<Rao, CollateralError>> {
        async {
            let slashed = self.0.slashed_amounts(LEDGER).await.map_err(failed)?;
            let total = slashed.values().map(|rao| rao.0).fold(0, u64::saturating_add);
            let book = self.0.collateral_book().await.map_err(failed)?;
            let paid = book.map_or(0, |book| book.slashes_paid.0);
            Ok(Rao(total.saturating_sub(paid)))
        }
        .boxed()
    }
}

fn failed(error: StoreError) -> CollateralError {
    CollateralError::Book(Box::new(error))
}

/// Adds entries up by coldkey.
fn sum_up(entries: &[LedgerEntry]) -> BookedTransfers {
    let mut sums = BookedTransfers::default();
    let add = |sum: &mut Rao, amount: &Rao| sum.0 = sum.0.saturating_add(amount.0);
    for entry in entries {
        match entry {
            LedgerEntry::Deposit(coldkey, amount) => {
                add(&mut sums.accounts.entry(*coldkey).or_default().deposited, amount);
            }
            LedgerEntry::Return(coldkey, amount) => {
                add(&mut sums.accounts.entry(*coldkey).or_default().returned, amount);
            }
            LedgerEntry::SlashPaid(amount) => add(&mut sums.slashes_paid, amount),
        }
    }
    sums
}
