//! The book of the collateral account: what each coldkey has deposited, and how far the chain was read.

use std::collections::BTreeMap;
use std::fmt;

use futures_util::future::BoxFuture;
use muster_chain::{AccountTransfer, BlockNumber};
use muster_protocol::{Hotkey, Rao};

use crate::error::CollateralError;

/// How far the chain was read, and whether a transfer of ours may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerPosition {
    /// The last finalised block whose transfers are in the book.
    pub booked: BlockNumber,
    /// The last block that may hold a transfer of ours whose end is not known; 0 if there is none.
    pub transfer_until: BlockNumber,
}

/// The account of one coldkey.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountBalance {
    /// All transfers of the coldkey to the collateral account, in rao.
    pub deposited: Rao,
    /// All transfers back to it, in rao.
    pub returned: Rao,
    /// All slashes, in rao, also those whose transfer is still to come.
    pub slashed: Rao,
}

impl AccountBalance {
    /// The rest; zero if more was returned than was deposited.
    pub fn held(self) -> Rao {
        let taken = self.returned.0.saturating_add(self.slashed.0);
        Rao(self.deposited.0.saturating_sub(taken))
    }
}

/// One transfer as it is booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerEntry {
    /// A coldkey has deposited an amount.
    Deposit(Hotkey, Rao),
    /// A coldkey got an amount back.
    Return(Hotkey, Rao),
    /// Slashed money has left the collateral account.
    SlashPaid(Rao),
}

/// The place in which the book is kept. Each call is durable once it has returned.
pub trait LedgerBook: fmt::Debug + Send + Sync + 'static {
    /// How far the book reaches; `None` if no block is booked.
    fn position(&self) -> BoxFuture<'_, Result<Option<LedgerPosition>, CollateralError>>;

    /// Books the entries of the blocks after `after` through `through`, all or none of them. Changes nothing and
    /// returns `false` if the book does not end with `after`.
    fn append<'a>(
        &'a self,
        after: Option<BlockNumber>,
        through: BlockNumber,
        entries: &'a [LedgerEntry],
    ) -> BoxFuture<'a, Result<bool, CollateralError>>;

    /// Notes the last block that may hold a transfer of ours; 0 clears it.
    fn note_transfer(&self, until: BlockNumber) -> BoxFuture<'_, Result<(), CollateralError>>;

    /// The balance of each coldkey with an entry or a slash.
    fn balances(&self) -> BoxFuture<'_, Result<BTreeMap<Hotkey, AccountBalance>, CollateralError>>;

    /// The slashed money that has not left the collateral account yet.
    fn slashes_owed(&self) -> BoxFuture<'_, Result<Rao, CollateralError>>;
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
