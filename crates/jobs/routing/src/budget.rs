//! How many jobs a validator takes that a facilitator signed for one of its accounts.
//!
//! A user's own signature costs a hotkey that the operator has listed. An account behind a facilitator costs whatever
//! the facilitator asks for it, so each of them, and each facilitator, has a bound.

use muster_protocol::UserKey;
use muster_protocol::wire::facilitator::UserJobRequest;

/// The bounds; 0 for no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountBudget {
    /// Jobs of one account that have not ended.
    pub account_open: u64,
    /// Jobs of one account that were taken within 24 hours.
    pub account_daily: u64,
    /// Jobs of all accounts of one facilitator that have not ended.
    pub facilitator_open: u64,
}

/// The account that a job counts towards: the same name at two facilitators is two accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetedAccount<'a> {
    /// The facilitator that signed the job.
    pub facilitator: UserKey,
    /// The account, as the facilitator names it.
    pub account: &'a str,
}

/// The jobs that an account and its facilitator have at the validator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountUse {
    /// Jobs of the account that have not ended.
    pub account_open: u64,
    /// Jobs of the account that were taken within 24 hours.
    pub account_daily: u64,
    /// Jobs of the facilitator's accounts that have not ended.
    pub facilitator_open: u64,
}

/// The bound that a further job would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetExceeded {
    /// The account has too many open jobs.
    #[error(
        "the account has {0} open jobs at this validator, as many as it takes of one account behind a facilitator; wait \
         for one to end, or cancel one"
    )]
    AccountOpen(u64),
    /// The account has had too many jobs lately.
    #[error(
        "this validator took {0} jobs of the account within 24 hours, as many as it takes of one account behind a \
         facilitator; submit the job later, or to another validator"
    )]
    AccountDaily(u64),
    /// The facilitator's accounts have too many open jobs.
    #[error(
        "the facilitator's accounts have {0} open jobs at this validator, as many as it takes of one facilitator; submit \
         the job later, or to another validator"
    )]
    FacilitatorOpen(u64),
}

impl<'a> BudgetedAccount<'a> {
    /// The account that a facilitator signed the job for; `None` for a job that its user signed.
    pub fn of(request: &'a UserJobRequest) -> Option<Self> {
        request.signed_for().map(|account| Self {
            facilitator: request.signature.signatory,
            account,
        })
    }
}

impl AccountBudget {
    /// Whether a further job fits.
    ///
    /// # Errors
    /// The first bound that it would exceed.
    pub fn check(&self, used: AccountUse) -> Result<(), BudgetExceeded> {
        let is_full = |bound: u64, used: u64| bound > 0 && used >= bound;
        if is_full(self.account_open, used.account_open) {
            return Err(BudgetExceeded::AccountOpen(used.account_open));
        }
        if is_full(self.account_daily, used.account_daily) {
            return Err(BudgetExceeded::AccountDaily(used.account_daily));
        }
        if is_full(self.facilitator_open, used.facilitator_open) {
            return Err(BudgetExceeded::FacilitatorOpen(used.facilitator_open));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::testing::{hotkey, request};

    fn used(account_open: u64, account_daily: u64, facilitator_open: u64) -> AccountUse {
        AccountUse {
            account_open,
            account_daily,
            facilitator_open,
        }
    }

    #[test]
    fn each_bound_is_reached_for_itself_and_zero_is_none() {
        let budget = AccountBudget {
            account_open: 2,
            account_daily: 5,
            facilitator_open: 9,
        };
        assert_eq!(budget.check(used(1, 4, 8)), Ok(()));
        assert_eq!(budget.check(used(2, 4, 8)), Err(BudgetExceeded::AccountOpen(2)));
        assert_eq!(budget.check(used(0, 5, 8)), Err(BudgetExceeded::AccountDaily(5)));
        assert_eq!(
            budget.check(used(0, 0, 9)),
            Err(BudgetExceeded::FacilitatorOpen(9))
        );
        assert_eq!(
            AccountBudget::default().check(used(u64::MAX, u64::MAX, u64::MAX)),
            Ok(())
        );
    }

    #[test]
    fn only_a_job_that_was_signed_for_another_counts() {
        let mut request = request();
        assert_eq!(BudgetedAccount::of(&request), None);
        request.muster = serde_json::from_value(json!({ "account": "alice" })).unwrap();
        let budgeted = BudgetedAccount::of(&request).unwrap();
        assert_eq!((budgeted.facilitator.0, budgeted.account), (hotkey(7), "alice"));
        request.muster = serde_json::from_value(json!({ "account": hotkey(7) })).unwrap();
        assert_eq!(BudgetedAccount::of(&request), None, "its own address");
    }

    proptest! {
        #[test]
        fn no_sequence_of_jobs_exceeds_a_bound(
            bounds in (0..5_u64, 0..9_u64, 0..9_u64),
            steps in prop::collection::vec((0..3_usize, any::<bool>()), 0..60),
        ) {
            let budget = AccountBudget {
                account_open: bounds.0,
                account_daily: bounds.1,
                facilitator_open: bounds.2,
            };
            let (mut open, mut daily) = ([0_u64; 3], [0_u64; 3]);
            for (account, ends) in steps {
                if ends {
                    open[account] = open[account].saturating_sub(1);
                } else if budget.check(used(open[account], daily[account], open.iter().sum())).is_ok() {
                    open[account] += 1;
                    daily[account] += 1;
                }
                prop_assert!(bounds.0 == 0 || open.iter().all(|open| *open <= bounds.0));
                prop_assert!(bounds.1 == 0 || daily.iter().all(|daily| *daily <= bounds.1));
                prop_assert!(bounds.2 == 0 || open.iter().sum::<u64>() <= bounds.2);
            }
        }
    }
}
