//! The book of the collateral account: what each coldkey has deposited, and how far the chain was read.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_chain::{AccountTransfer, BlockNumber};
use muster_protocol::{Hotkey, Rao};
use muster_validator_store::{BookedTransfers, Store, StoredBalance};

use crate::error::CollateralError;

/// The word for slashes of this source in the store.
const SLASH_SOURCE: &str = "ledger";

/// How far the chain was read, and whether a transfer of ours may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LedgerPosition {
    /// The last finalised block whose transfers are in the book.
    pub(crate) booked: BlockNumber,
    /// The last block that may hold a transfer of ours whose end is not known; 0 if there is none.
    pub(crate) transfer_until: BlockNumber,
}

/// The account of one coldkey.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccountBalance {
    /// All transfers of the coldkey to the collateral account, in rao.
    pub(crate) deposited: Rao,
    /// All transfers back to it, in rao.
    pub(crate) returned: Rao,
    /// All slashes, in rao, also those whose transfer is still to come.
    pub(crate) slashed: Rao,
}

impl AccountBalance {
    /// The rest; zero if more was returned than was deposited.
    pub(crate) fn held(self) -> Rao {
        let taken = self.returned.0.saturating_add(self.slashed.0);
        Rao(self.deposited.0.saturating_sub(taken))
    }
}

/// One transfer as it is booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LedgerEntry {
    /// A coldkey has deposited an amount.
    Deposit(Hotkey, Rao),
    /// A coldkey got an amount back.
    Return(Hotkey, Rao),
    /// Slashed money has left the collateral account.
    SlashPaid(Rao),
}

/// The book, in the validator's store. Each change is durable once its call has returned.
#[derive(Debug)]
pub(crate) struct LedgerBook(pub(crate) Arc<Store>);

impl LedgerBook {
    /// How far the book reaches; `None` if no block is booked.
    pub(crate) async fn position(&self) -> Result<Option<LedgerPosition>, CollateralError> {
        let book = self.0.collateral_book().await?;
        Ok(book.map(|book| LedgerPosition {
            booked: book.booked,
            transfer_until: book.transfer_until,
        }))
    }

    /// Books the entries of the blocks after `after` through `through`, all or none of them. Changes nothing and
    /// returns `false` if the book does not end with `after`.
    pub(crate) async fn append(
        &self,
        after: Option<BlockNumber>,
        through: BlockNumber,
        entries: &[LedgerEntry],
    ) -> Result<bool, CollateralError> {
        Ok(self.0.book_collateral(after, through, &sum_up(entries)).await?)
    }

    /// Notes the last block that may hold a transfer of ours; 0 clears it.
    pub(crate) async fn note_transfer(&self, until: BlockNumber) -> Result<(), CollateralError> {
        Ok(self.0.note_collateral_transfer(until).await?)
    }

    /// The balance of each coldkey with an entry or a slash.
    pub(crate) async fn balances(&self) -> Result<BTreeMap<Hotkey, AccountBalance>, CollateralError> {
        let booked = self.0.collateral_balances().await?;
        let balance = |StoredBalance { deposited, returned }| AccountBalance {
            deposited,
            returned,
            slashed: Rao(0),
        };
        let booked = booked
            .into_iter()
            .map(|(coldkey, booked)| (coldkey, balance(booked)));
        let mut balances: BTreeMap<_, _> = booked.collect();
        for (account, amount) in self.0.slashed_amounts(SLASH_SOURCE).await? {
            let coldkey: Hotkey = account.parse().map_err(|_| CollateralError::Stored("account"))?;
            balances.entry(coldkey).or_default().slashed = amount;
        }
        Ok(balances)
    }

    /// The slashed money that has not left the collateral account yet.
    pub(crate) async fn slashes_owed(&self) -> Result<Rao, CollateralError> {
        let slashed = self.0.slashed_amounts(SLASH_SOURCE).await?;
        let total = slashed.values().map(|rao| rao.0).fold(0, u64::saturating_add);
        let book = self.0.collateral_book().await?;
        let paid = book.map_or(0, |book| book.slashes_paid.0);
        Ok(Rao(total.saturating_sub(paid)))
    }
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

/// The entry of a transfer to or from the collateral account. A transfer of the account to itself, or from the account
/// that gets slashed money, changes nobody's collateral.
pub(crate) fn entry_of(transfer: &AccountTransfer, account: &Hotkey, sink: &Hotkey) -> Option<LedgerEntry> {
    let AccountTransfer { from, to, amount } = transfer;
    if from == to || from == sink {
        return None;
    }
    if to == account {
        return Some(LedgerEntry::Deposit(*from, *amount));
    }
    if from != account {
        return None;
    }
    Some(if to == sink {
        LedgerEntry::SlashPaid(*amount)
    } else {
        LedgerEntry::Return(*to, *amount)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    fn transfer(from: u8, to: u8) -> AccountTransfer {
        AccountTransfer {
            from: key(from),
            to: key(to),
            amount: Rao(5),
        }
    }

    #[test]
    fn each_direction_has_its_entry() {
        let entry = |from, to| entry_of(&transfer(from, to), &key(1), &key(2));
        assert_eq!(entry(3, 1), Some(LedgerEntry::Deposit(key(3), Rao(5))));
        assert_eq!(entry(1, 3), Some(LedgerEntry::Return(key(3), Rao(5))));
        assert_eq!(entry(1, 2), Some(LedgerEntry::SlashPaid(Rao(5))));
        for none in [(1, 1), (2, 1), (3, 4)] {
            assert_eq!(entry(none.0, none.1), None, "{none:?}");
        }
    }

    proptest! {
        #[test]
        fn a_balance_is_never_negative_and_never_more_than_was_deposited(
            deposited: u64, returned: u64, slashed: u64,
        ) {
            let balance = AccountBalance {
                deposited: Rao(deposited), returned: Rao(returned), slashed: Rao(slashed),
            };
            let exact = i128::from(deposited) - i128::from(returned) - i128::from(slashed);
            prop_assert_eq!(i128::from(balance.held().0), exact.max(0));
        }
    }
}
