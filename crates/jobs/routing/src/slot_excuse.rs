//! Whether a miner that had no slot for the fetch of an image has shown the leases that hold its slots.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{AttemptId, MinerKey, ReceiptPayload, Timestamp, ValidatorKey};

use crate::busy_excuse::shown_work;
use crate::cache_keys::CacheKey;

/// Leases that excuse, at least: as many as fetch from one registry at a miner with the default bounds. A miner with
/// fewer slots than that is short of them by its own choice.
pub const EXCUSING_LEASES: u32 = 3;

/// Leases of one account that count. A miner with the default bounds gives an account no more slots, and a miner could
/// send itself any number of jobs from one account.
pub const LEASES_OF_AN_ACCOUNT: u32 = 2;

/// A lease of this validator's whose image is on its way, or waits for a slot: the validator cannot tell the two apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchingLease {
    /// The miner that fetches.
    pub miner: MinerKey,
    /// The account of the job.
    pub account: String,
    /// The image of the job.
    pub image: CacheKey,
}

/// The leases of this validator's whose images are on their way. As many as attempts are under way, at most.
#[derive(Clone, Debug, Default)]
pub struct FetchingLeases {
    leases: BTreeMap<AttemptId, FetchingLease>,
}

/// A miner's word that it had no slot for a fetch.
#[derive(Clone, Copy, Debug)]
pub struct SlotRefusal<'a> {
    /// The miner without a slot.
    pub miner: MinerKey,
    /// The validator whose attempt ended so.
    pub validator: ValidatorKey,
    /// The attempt that ended so.
    pub attempt: AttemptId,
    /// The account of its job.
    pub account: &'a str,
    /// The time of its end.
    pub at: Timestamp,
}

/// The leases that a miner has shown in its slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotEvidence {
    /// Leases that count as evidence, of all accounts.
    pub leases: u32,
    /// Those of them that are of the account of the attempt that got no slot.
    pub own_account: u32,
}

impl SlotEvidence {
    /// Whether the end leaves no mark on the miner's record: enough leases hold slots, or the account itself holds as
    /// many as it may.
    pub const fn is_excuse(self) -> bool {
        self.leases >= EXCUSING_LEASES || self.own_account >= LEASES_OF_AN_ACCOUNT
    }
}

impl FetchingLeases {
    /// Notes a lease whose image is on its way.
    pub fn insert(&mut self, attempt: AttemptId, lease: FetchingLease) {
        self.leases.insert(attempt, lease);
    }

    /// Notes that the image of a lease is there, or that the lease has ended.
    pub fn remove(&mut self, attempt: AttemptId) {
        self.leases.remove(&attempt);
    }

    /// Weighs `receipts`, whose signatures have been checked, as evidence about the miner's slots.
    ///
    /// A lease of this validator's counts if the validator knows it as one that fetches at this miner, up to
    /// [`LEASES_OF_AN_ACCOUNT`] of an account; one whose image another miner had lately does not, since the line of
    /// this miner or its own will makes the fetch slow (`is_elsewhere`). A lease of another validator counts if its
    /// receipt is evidence (`counts`) and its attempt is under way. Leases for grading are no evidence.
    pub fn weigh<'a>(
        &self,
        refusal: &SlotRefusal<'_>,
        receipts: impl IntoIterator<Item = &'a ReceiptPayload>,
        counts: impl Fn(ValidatorKey) -> bool,
        is_elsewhere: impl Fn(CacheKey) -> bool,
    ) -> SlotEvidence {
        let mut seen = BTreeSet::new();
        let mut accounts = BTreeMap::<&str, u32>::new();
        let mut evidence = SlotEvidence::default();
        for (receipt, _) in shown_work(refusal.miner, refusal.at, receipts) {
            let attempt = receipt.job_uuid;
            if attempt == refusal.attempt || !receipt.is_organic || !seen.insert(attempt) {
                continue;
            }
            if receipt.validator_hotkey != refusal.validator {
                let other = u32::from(counts(receipt.validator_hotkey));
                evidence.leases = evidence.leases.saturating_add(other);
                continue;
            }
            let own = self.leases.get(&attempt);
            let Some(lease) = own.filter(|lease| lease.miner == refusal.miner && !is_elsewhere(lease.image))
            else {
                continue;
            };
            let of_account = accounts.entry(lease.account.as_str()).or_default();
            if *of_account < LEASES_OF_AN_ACCOUNT {
                *of_account = of_account.saturating_add(1);
                evidence.leases = evidence.leases.saturating_add(1);
            }
        }
        evidence.own_account = accounts.get(refusal.account).copied().unwrap_or(0);
        evidence
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::ExecutorClass;
    use muster_protocol::receipt::{StartedReceipt, StartedTag};
    use uuid::Uuid;

    use super::*;
    use crate::testing::hotkey;

    fn now() -> Timestamp {
        Timestamp::from_secs(1_000)
    }

    fn attempt(n: u128) -> AttemptId {
        AttemptId::from_uuid(Uuid::from_u128(n))
    }

    fn miner(seed: u8) -> MinerKey {
        MinerKey(hotkey(seed))
    }

    /// The started receipt of an attempt of validator `by` at miner 1.
    fn started(n: u128, by: u8) -> StartedReceipt {
        StartedReceipt {
            job_uuid: attempt(n),
            miner_hotkey: miner(1),
            validator_hotkey: ValidatorKey(hotkey(by)),
            timestamp: Timestamp::from_secs(990),
            receipt_type: StartedTag,
            executor_class: ExecutorClass::AlwaysOnTest,
            is_organic: true,
            ttl: 60,
        }
    }

    fn fetching(leases: &[(u128, u8, &str, &str)]) -> FetchingLeases {
        let mut known = FetchingLeases::default();
        for (n, at, account, image) in leases {
            let lease = FetchingLease {
                miner: miner(*at),
                account: (*account).to_owned(),
                image: CacheKey::image(image),
            };
            known.insert(attempt(*n), lease);
        }
        known
    }

    /// The evidence in receipts for attempt 99 of `account`; validators 2 (the asking one) and 3 count, and the image
    /// `common` was elsewhere.
    fn weigh(known: &FetchingLeases, account: &str, shown: &[StartedReceipt]) -> SlotEvidence {
        let refusal = SlotRefusal {
            miner: miner(1),
            validator: ValidatorKey(hotkey(2)),
            attempt: attempt(99),
            account,
            at: now(),
        };
        let receipts: Vec<_> = shown.iter().cloned().map(ReceiptPayload::Started).collect();
        let counts = |validator| [2, 3].map(|seed| ValidatorKey(hotkey(seed))).contains(&validator);
        known.weigh(&refusal, &receipts, counts, |image| {
            image == CacheKey::image("common")
        })
    }

    #[test]
    fn leases_in_the_slots_excuse_once_there_are_enough_of_them() {
        let known = fetching(&[(1, 1, "a", "x"), (2, 1, "b", "y")]);
        let shown = [started(1, 2), started(2, 2), started(3, 3)];
        let evidence = weigh(&known, "z", &shown);
        assert_eq!((evidence.leases, evidence.is_excuse()), (3, true));
        let fewer = weigh(&known, "z", &shown[..2]);
        assert_eq!((fewer.leases, fewer.is_excuse()), (2, false));
        let same = [started(1, 2), started(1, 2), started(2, 2), started(2, 2)];
        assert_eq!(weigh(&known, "z", &same).leases, 2, "the same twice");
        assert!(!weigh(&known, "z", &[]).is_excuse());
    }

    #[test]
    fn an_account_that_holds_its_slots_excuses_the_miner_for_itself_alone() {
        let known = fetching(&[(1, 1, "a", "x"), (2, 1, "a", "y")]);
        let shown = [started(1, 2), started(2, 2)];
        assert!(weigh(&known, "a", &shown).is_excuse());
        assert!(!weigh(&known, "z", &shown).is_excuse());
    }

    #[test]
    fn a_miner_that_fetches_slowly_on_purpose_is_not_excused_by_its_own_slow_fetches() {
        let leases = [
            (1, 1, "a", "common"),
            (2, 1, "b", "common"),
            (3, 1, "c", "common"),
        ];
        let shown = [1, 2, 3].map(|n| started(n, 2));
        assert_eq!(weigh(&fetching(&leases), "z", &shown), SlotEvidence::default());
    }

    #[test]
    fn sham_leases_are_no_evidence() {
        let shown = [1, 2, 3, 4].map(|n| started(n, 2));
        assert_eq!(
            weigh(&fetching(&[]), "z", &shown).leases,
            0,
            "none of them fetches"
        );
        let one_account = [1, 2, 3, 4].map(|n| (n, 1, "its own", "x"));
        let evidence = weigh(&fetching(&one_account), "z", &shown);
        assert_eq!(
            (evidence.leases, evidence.is_excuse()),
            (2, false),
            "two of an account count"
        );
        let elsewhere = [1, 2, 3, 4].map(|n| (n, 5, ["a", "b", "c", "d"][n as usize % 4], "x"));
        assert_eq!(
            weigh(&fetching(&elsewhere), "z", &shown).leases,
            0,
            "another miner fetches"
        );
        type Spoil = fn(&mut StartedReceipt);
        let spoilt: [(&str, Spoil); 5] = [
            ("of a validator that does not count", |r| {
                r.validator_hotkey = ValidatorKey(hotkey(7))
            }),
            ("another miner's", |r| r.miner_hotkey = miner(5)),
            ("over", |r| r.timestamp = Timestamp::from_secs(900)),
            ("of the future", |r| r.timestamp = Timestamp::from_secs(1_001)),
            ("a lease for grading", |r| r.is_organic = false),
        ];
        for (what, spoil) in spoilt {
            let mut receipts = [1, 2, 3].map(|n| started(n, 3));
            assert_eq!(weigh(&fetching(&[]), "z", &receipts).leases, 3);
            receipts.iter_mut().for_each(spoil);
            assert_eq!(weigh(&fetching(&[]), "z", &receipts).leases, 0, "{what}");
        }
        let own = [started(99, 2), started(99, 2), started(99, 2)];
        let known = fetching(&[(99, 1, "a", "x")]);
        assert_eq!(weigh(&known, "a", &own).leases, 0, "the very attempt");
    }

    #[test]
    fn a_lease_whose_image_came_holds_no_slot() {
        let mut known = fetching(&[(1, 1, "a", "x"), (2, 1, "b", "y"), (3, 1, "c", "z")]);
        let shown = [1, 2, 3].map(|n| started(n, 2));
        assert!(weigh(&known, "z", &shown).is_excuse());
        known.remove(attempt(2));
        assert!(!weigh(&known, "z", &shown).is_excuse());
    }
}
