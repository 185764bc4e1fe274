//! Divides the deposit of one account among the miners that show it as theirs.

use std::collections::BTreeMap;

use muster_protocol::{MinerKey, Rao};
use muster_routing::Deposit;

/// The deposit of each miner, from its account and the accounts' amounts. An account that several miners show counts
/// for each of them with an equal share, rounded down; an amount that is not listed is zero.
pub(crate) fn share<A: Ord + Copy>(
    accounts: &BTreeMap<MinerKey, Option<A>>,
    amounts: &BTreeMap<A, Rao>,
) -> BTreeMap<MinerKey, Deposit> {
    let mut owners = BTreeMap::<A, u64>::new();
    for account in accounts.values().flatten() {
        let count = owners.entry(*account).or_default();
        *count = count.saturating_add(1);
    }
    let deposit = |account: &Option<A>| match account {
        None => Deposit::NoAccount,
        Some(account) => {
            let amount = amounts.get(account).copied().unwrap_or_default();
            let among = owners.get(account).copied().unwrap_or(1);
            Deposit::Held {
                amount: Rao(amount.0.checked_div(among).unwrap_or(0)),
            }
        }
    };
    accounts
        .iter()
        .map(|(miner, account)| (*miner, deposit(account)))
        .collect()
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use proptest::prelude::*;

    use super::*;

    fn miner(seed: u8) -> MinerKey {
        MinerKey(Hotkey::from_bytes([seed; 32]))
    }

    proptest! {
        #[test]
        fn no_more_is_counted_than_is_deposited(
            shown in proptest::collection::vec(proptest::option::of(0u8..4), 0..12),
            amounts in proptest::collection::btree_map(0u8..4, 0u64..1_000, 0..4),
        ) {
            let accounts: BTreeMap<_, _> = (0u8..).zip(&shown).map(|(seed, account)| (miner(seed), *account)).collect();
            let amounts: BTreeMap<_, _> = amounts.into_iter().map(|(account, rao)| (account, Rao(rao))).collect();
            let deposits = share(&accounts, &amounts);
            prop_assert_eq!(deposits.len(), accounts.len());
            for account in 0u8..4 {
                let of_account = accounts.iter().filter(|(_, shown)| **shown == Some(account));
                let counted: u64 = of_account
                    .map(|(miner, _)| match deposits[miner] {
                        Deposit::Held { amount } => amount.0,
                        Deposit::NoAccount => panic!("it shows an account"),
                    })
                    .sum();
                prop_assert!(counted <= amounts.get(&account).map_or(0, |rao| rao.0));
            }
            for (miner, account) in &accounts {
                prop_assert_eq!(account.is_none(), deposits[miner] == Deposit::NoAccount);
            }
        }
    }
}
