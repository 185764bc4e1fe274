//! Jobs that ended because their image cannot be started: each counts as an open job of its account for a while. Pure,
//! and bounded however many there are.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::time::Duration;

use muster_protocol::{Timestamp, UserKey};

use crate::budget::BudgetedAccount;

/// How long such a job counts after its end.
const WINDOW: Duration = Duration::from_secs(600);
/// The most jobs of one account that are remembered, which is more than an account may have open.
const MAX_JOBS: usize = 4_096;
/// The most accounts that are remembered. Beyond it, the one whose last such job is the oldest is forgotten.
const MAX_ACCOUNTS: usize = 4_096;

/// The ends of jobs of broken images, by account.
#[derive(Clone, Debug, Default)]
pub struct BrokenImageJobs {
    ended: BTreeMap<(UserKey, String), VecDeque<Timestamp>>,
}

impl BrokenImageJobs {
    /// Notes that a job of the account ended so.
    pub fn note(&mut self, account: BudgetedAccount<'_>, now: Timestamp) {
        let key = (account.facilitator, account.account.to_owned());
        if !self.ended.contains_key(&key) && self.ended.len() >= MAX_ACCOUNTS {
            let oldest = self.ended.iter().min_by_key(|(_, ended)| ended.back().copied());
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.ended.remove(&oldest);
            }
        }
        let ended = self.ended.entry(key).or_default();
        ended.push_back(now);
        while ended.len() > MAX_JOBS || ended.front().is_some_and(|at| now.since(*at) >= WINDOW) {
            ended.pop_front();
        }
    }

    /// The jobs of the account that count as open although they have ended.
    pub fn count(&self, account: BudgetedAccount<'_>, now: Timestamp) -> u64 {
        let key = (account.facilitator, account.account.to_owned());
        let ended = self.ended.get(&key).into_iter().flatten();
        ended.filter(|at| now.since(**at) < WINDOW).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hotkey;

    fn account(name: &str) -> BudgetedAccount<'_> {
        BudgetedAccount {
            facilitator: UserKey(hotkey(1)),
            account: name,
        }
    }

    #[test]
    fn a_broken_image_counts_as_open_for_its_account_alone_and_for_a_while() {
        let at = Timestamp::from_secs;
        let mut jobs = BrokenImageJobs::default();
        jobs.note(account("mallory"), at(0));
        jobs.note(account("mallory"), at(100));
        assert_eq!(jobs.count(account("mallory"), at(599)), 2);
        assert_eq!(jobs.count(account("mallory"), at(600)), 1);
        assert_eq!(jobs.count(account("mallory"), at(700)), 0);
        assert_eq!(jobs.count(account("alice"), at(100)), 0);
        let elsewhere = BudgetedAccount {
            facilitator: UserKey(hotkey(2)),
            ..account("mallory")
        };
        assert_eq!(jobs.count(elsewhere, at(100)), 0, "another facilitator's account");
    }

    #[test]
    fn accounts_and_their_jobs_are_bounded() {
        let mut jobs = BrokenImageJobs::default();
        for number in 0..10_000 {
            jobs.note(account("mallory"), Timestamp::from_secs(0));
            jobs.note(account(&number.to_string()), Timestamp::from_secs(number));
        }
        assert_eq!(jobs.ended.len(), MAX_ACCOUNTS);
        assert!(jobs.ended.values().all(|ended| ended.len() <= MAX_JOBS));
    }
}
