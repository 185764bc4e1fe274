//! A validator's knowledge of its miners for routing: rebuilt from the store at the start and kept up to date by
//! events. Pure, and bounded whatever miners send and however many jobs there are.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use muster_protocol::{ExecutorClass, FeatureSet, Manifest, MinerKey, Timestamp};

use crate::attempt_mark::AttemptMark;
use crate::cache_keys::CacheKey;
use crate::miner_stats::{LengthLimit, MinerStats};

/// How long each kind of knowledge counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerWindows {
    /// For marks: failures and successes.
    pub record: Duration,
    /// For attempts that were given to a miner, which decide fairness.
    pub given: Duration,
    /// For a manifest. It must expire, because a miner that is not asked because of its manifest could not correct it.
    pub manifest: Duration,
    /// For a miner's report that no executor is free.
    pub full: Duration,
    /// For an image or input that a miner has at hand.
    pub warm: Duration,
}

/// The most cached images and inputs that are remembered of one miner.
const MAX_WARM: usize = 512;

/// Each report in a row that no executor is free counts for twice as long as the one before, up to this multiple of
/// the window: a miner that works for another validator for hours is not asked every few seconds.
const MAX_FULL: u32 = 8;

/// Slices of a window that are counted apart: an event is forgotten at most a sixtieth of the window too late.
const SLICES: i64 = 60;

/// The time over which users' offers and missing fetch slots are counted.
pub const NO_SLOT_WINDOW: Duration = Duration::from_secs(7 * 24 * 3_600);

/// One of so many users' offers may end without a fetch slot for nothing.
const OFFERS_FOR_NO_SLOT: u32 = 100;

/// Missing fetch slots in a window that are free however few offers a miner got.
const MIN_NO_SLOTS: u32 = 1;

/// A validator's knowledge of its miners.
#[derive(Clone, Debug)]
pub struct MinerLedger {
    windows: LedgerWindows,
    accounts: BTreeMap<MinerKey, MinerAccount>,
}

#[derive(Clone, Debug, Default)]
struct MinerAccount {
    open: BTreeMap<ExecutorClass, u32>,
    done: SlicedCount,
    incidents: SlicedCount,
    excuses: SlicedCount,
    suspects: SlicedCount,
    /// The last failed trial, since which the miner has passed none.
    failed_trial: Option<Timestamp>,
    given: SlicedCount,
    /// Users' offers that have ended.
    offers: SlicedCount,
    /// Offers that ended without a fetch slot for nothing.
    no_slots: SlicedCount,
    manifest: Option<(Timestamp, Manifest)>,
    features: Option<(Timestamp, FeatureSet)>,
    private_images: Option<(Timestamp, Manifest)>,
    hardware: BTreeMap<ExecutorClass, String>,
    full: BTreeMap<ExecutorClass, FullReport>,
    /// The last reports that only shorter jobs are taken, with the longest of those in executor-seconds.
    length_limits: BTreeMap<ExecutorClass, (u64, FullReport)>,
    warm: BTreeMap<CacheKey, Timestamp>,
}

/// A miner's last report that no executor of a class is free, or none for a longer job.
#[derive(Clone, Copy, Debug)]
struct FullReport {
    until: Timestamp,
    /// Reports in a row, each soon after the one before had run out.
    times: u32,
}

impl FullReport {
    /// A report at `at` after the last one of its kind. Each report in a row counts for longer.
    fn after(last: Option<&Self>, at: Timestamp, window: Duration) -> Self {
        let times = match last {
            Some(last) if at.since(last.until) < window.saturating_mul(MAX_FULL) => {
                last.times.saturating_add(1)
            }
            Some(_) | None => 1,
        };
        let factor = 2_u32.saturating_pow(times.saturating_sub(1)).min(MAX_FULL);
        let until = at.plus(window.saturating_mul(factor));
        Self { until, times }
    }
}

/// The number of recent events, counted in slices of time.
#[derive(Clone, Debug, Default)]
struct SlicedCount {
    slices: VecDeque<(i64, u32)>,
}

impl SlicedCount {
    fn slice(at: Timestamp, window: Duration) -> i64 {
        let width = i64::try_from(window.as_micros()).unwrap_or(i64::MAX) / SLICES;
        at.micros().div_euclid(width.max(1))
    }

    fn add(&mut self, at: Timestamp, window: Duration) {
        self.add_many(1, at, window);
    }

    fn add_many(&mut self, events: u32, at: Timestamp, window: Duration) {
        let slice = Self::slice(at, window);
        let place = self.slices.partition_point(|(known, _)| *known < slice);
        match self.slices.get_mut(place) {
            Some((known, count)) if *known == slice => *count = count.saturating_add(events),
            Some(_) | None => self.slices.insert(place, (slice, events)),
        }
        while let (Some((oldest, _)), Some((newest, _))) = (self.slices.front(), self.slices.back())
            && newest.saturating_sub(*oldest) > SLICES
        {
            self.slices.pop_front();
        }
    }

    fn remove(&mut self, at: Timestamp, window: Duration) {
        let slice = Self::slice(at, window);
        if let Some((_, count)) = self.slices.iter_mut().find(|(known, _)| *known == slice) {
            *count = count.saturating_sub(1);
        }
    }

    fn count(&self, now: Timestamp, window: Duration) -> u32 {
        self.recent(now, window)
            .fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// When the oldest of the recent events is forgotten.
    fn next_fall(&self, now: Timestamp, window: Duration) -> Option<Timestamp> {
        let (oldest, _) = self.recent(now, window).find(|(_, count)| *count > 0)?;
        let width = i64::try_from(window.as_micros()).unwrap_or(i64::MAX) / SLICES;
        let end = oldest.saturating_add(SLICES).saturating_add(1);
        Some(Timestamp::from_micros(end.saturating_mul(width.max(1))))
    }

    fn recent(&self, now: Timestamp, window: Duration) -> impl Iterator<Item = &(i64, u32)> {
        let first = Self::slice(now, window).saturating_sub(SLICES);
        self.slices.iter().filter(move |(slice, _)| *slice >= first)
    }
}

impl MinerLedger {
    /// An empty ledger.
    pub fn new(windows: LedgerWindows) -> Self {
        Self {
            windows,
            accounts: BTreeMap::new(),
        }
    }

    /// Notes that an attempt was given to a miner at `at`.
    pub fn record_offer(&mut self, miner: MinerKey, at: Timestamp) {
        let window = self.windows.given;
        self.account(miner).given.add(at, window);
    }

    /// Notes that an attempt is under way at a miner.
    pub fn open_attempt(&mut self, miner: MinerKey, class: ExecutorClass) {
        let open = self.account(miner).open.entry(class).or_default();
        *open = open.saturating_add(1);
    }

    /// Notes that an attempt is over.
    pub fn close_attempt(&mut self, miner: MinerKey, class: ExecutorClass) {
        if let Some(open) = self.account(miner).open.get_mut(&class) {
            *open = open.saturating_sub(1);
        }
    }

    /// Removes an attempt that was given at `at` by mistake and is under way, as if it had not been given.
    pub fn withdraw_attempt(&mut self, miner: MinerKey, class: ExecutorClass, at: Timestamp) {
        self.close_attempt(miner, class);
        let window = self.windows.given;
        self.account(miner).given.remove(at, window);
    }

    /// Notes the mark that an attempt left at `at`.
    pub fn record_mark(&mut self, miner: MinerKey, mark: AttemptMark, at: Timestamp) {
        let window = self.windows.record;
        let account = self.account(miner);
        match mark {
            AttemptMark::Done => account.done.add(at, window),
            AttemptMark::Clean => {}
            AttemptMark::NoSlot => account.no_slots.add(at, NO_SLOT_WINDOW),
            AttemptMark::Unexcused | AttemptMark::Excuse => account.excuses.add(at, window),
            AttemptMark::Suspect => {
                account.excuses.add(at, window);
                account.suspects.add(at, window);
            }
            AttemptMark::Incident => account.incidents.add(at, window),
            AttemptMark::FailedTrial => {
                account.incidents.add(at, window);
                account.failed_trial = account.failed_trial.max(Some(at));
            }
        }
    }

    /// Notes that users' offers ended at `at`, so many of a miner.
    pub fn record_ended_offers(&mut self, miner: MinerKey, offers: u32, at: Timestamp) {
        let account = self.account(miner);
        account.offers.add_many(offers, at, NO_SLOT_WINDOW);
    }

    /// Notes offers of an earlier process that ended without a fetch slot for nothing.
    pub fn restore_no_slots(&mut self, miner: MinerKey, ended: u32, at: Timestamp) {
        let account = self.account(miner);
        account.no_slots.add_many(ended, at, NO_SLOT_WINDOW);
    }

    /// Whether a miner may be without a fetch slot once more for nothing: up to a hundredth of the users' offers that
    /// ended there within [`NO_SLOT_WINDOW`], and once however few they are.
    pub fn has_free_no_slot(&self, miner: MinerKey, now: Timestamp) -> bool {
        let count = |events: fn(&MinerAccount) -> &SlicedCount| {
            let account = self.accounts.get(&miner);
            account.map_or(0, |account| events(account).count(now, NO_SLOT_WINDOW))
        };
        let offers = count(|account| &account.offers);
        let free = (offers / OFFERS_FOR_NO_SLOT).max(MIN_NO_SLOTS);
        count(|account| &account.no_slots) < free
    }

    /// Notes that a miner passed a trial. Returns whether it was benched by its failed ones.
    pub fn end_bench(&mut self, miner: MinerKey) -> bool {
        let account = self.accounts.get_mut(&miner);
        account.is_some_and(|account| account.failed_trial.take().is_some())
    }

    /// Takes back an excuse that was noted at `at`.
    pub fn forgive_excuse(&mut self, miner: MinerKey, at: Timestamp) {
        let window = self.windows.record;
        self.account(miner).excuses.remove(at, window);
    }

    /// Notes a miner's manifest.
    pub fn record_manifest(&mut self, miner: MinerKey, manifest: Manifest, at: Timestamp) {
        self.account(miner).manifest = Some((at, manifest));
    }

    /// Notes the features that a miner showed on a connection. They expire with the manifest's window, because a miner
    /// that is not asked for want of a feature could not show that it has it now.
    pub fn record_features(&mut self, miner: MinerKey, features: FeatureSet, at: Timestamp) {
        self.account(miner).features = Some((at, features));
    }

    /// Notes which of its executors take private images, as a miner reported with its manifest; `None` if it does not
    /// report it.
    pub fn record_private_images(&mut self, miner: MinerKey, executors: Option<Manifest>, at: Timestamp) {
        self.account(miner).private_images = executors.map(|executors| (at, executors));
    }

    /// Notes the hardware of an executor, as a miner reported it.
    pub fn record_hardware(&mut self, miner: MinerKey, class: ExecutorClass, hardware: String) {
        self.account(miner).hardware.insert(class, hardware);
    }

    /// Executors of the class that take private images, by the miner's last words; `None` if they are not recent, or do
    /// not state it.
    pub fn private_executors(&self, miner: MinerKey, class: ExecutorClass, now: Timestamp) -> Option<u32> {
        let (at, executors) = self.accounts.get(&miner)?.private_images.as_ref()?;
        (now.since(*at) < self.windows.manifest).then(|| executors.count(class))
    }

    /// Executors of the class by the miner's last manifest; `None` without a recent one.
    pub fn executors(&self, miner: MinerKey, class: ExecutorClass, now: Timestamp) -> Option<u32> {
        let (at, manifest) = self.accounts.get(&miner)?.manifest.as_ref()?;
        (now.since(*at) < self.windows.manifest).then(|| manifest.count(class))
    }

    /// Notes a miner's report that no executor of the class is free. Each report in a row counts for longer.
    pub fn record_full(&mut self, miner: MinerKey, class: ExecutorClass, at: Timestamp) {
        let window = self.windows.full;
        let full = &mut self.account(miner).full;
        full.insert(class, FullReport::after(full.get(&class), at, window));
    }

    /// Notes a miner's report that it takes only jobs of the class that last at most `longest_s` executor-seconds. That
    /// says nothing about shorter ones.
    pub fn record_length_limit(
        &mut self,
        miner: MinerKey,
        class: ExecutorClass,
        longest_s: u64,
        at: Timestamp,
    ) {
        let window = self.windows.full;
        let limits = &mut self.account(miner).length_limits;
        let last = limits.get(&class).map(|(_, report)| report);
        limits.insert(class, (longest_s, FullReport::after(last, at, window)));
    }

    /// Notes that a miner has accepted an attempt of `lasts_s` executor-seconds, so its earlier reports of having no
    /// executor for such a job are out of date.
    pub fn record_accepted(&mut self, miner: MinerKey, class: ExecutorClass, lasts_s: u64) {
        let account = self.account(miner);
        account.full.remove(&class);
        account
            .length_limits
            .retain(|limited, (longest_s, _)| *limited != class || lasts_s <= *longest_s);
    }

    /// Notes that an executor of the class which worked for us is free, so the miner's earlier reports of having none
    /// are out of date.
    pub fn record_freed(&mut self, miner: MinerKey, class: ExecutorClass) {
        let account = self.account(miner);
        account.full.remove(&class);
        account.length_limits.remove(&class);
    }

    /// Notes images and inputs that a miner must have at hand, because an attempt got so far there.
    pub fn record_cached(
        &mut self,
        miner: MinerKey,
        keys: impl IntoIterator<Item = CacheKey>,
        at: Timestamp,
    ) {
        let warm = &mut self.account(miner).warm;
        warm.extend(keys.into_iter().map(|key| (key, at)));
        while warm.len() > MAX_WARM {
            let oldest = warm.iter().min_by_key(|(_, at)| **at).map(|(key, _)| *key);
            match oldest {
                Some(oldest) => warm.remove(&oldest),
                None => break,
            };
        }
    }

    /// Whether a miner other than `except` had this image or input lately.
    pub fn is_elsewhere(&self, key: CacheKey, except: MinerKey, now: Timestamp) -> bool {
        self.accounts.iter().any(|(miner, account)| {
            let at = account.warm.get(&key).filter(|_| *miner != except);
            at.is_some_and(|at| now.since(*at) < self.windows.warm)
        })
    }

    /// The current statistics of each of these miners. Of the cached images and inputs only those in `about` are
    /// listed.
    pub fn stats(
        &self,
        miners: impl IntoIterator<Item = MinerKey>,
        about: &BTreeSet<CacheKey>,
        now: Timestamp,
    ) -> BTreeMap<MinerKey, MinerStats> {
        miners
            .into_iter()
            .filter_map(|miner| Some((miner, self.stats_of(self.accounts.get(&miner)?, about, now))))
            .collect()
    }

    fn stats_of(&self, account: &MinerAccount, about: &BTreeSet<CacheKey>, now: Timestamp) -> MinerStats {
        let windows = &self.windows;
        let manifest = account.manifest.as_ref();
        let is_warm = |key: &&CacheKey| {
            let at = account.warm.get(key);
            at.is_some_and(|at| now.since(*at) < windows.warm)
        };
        let full = account.full.iter();
        MinerStats {
            open: account.open.clone(),
            done: account.done.count(now, windows.record),
            incidents: account.incidents.count(now, windows.record),
            incidents_until: account.incidents.next_fall(now, windows.record),
            failed_trial_until: account
                .failed_trial
                .map(|at| at.plus(windows.record))
                .filter(|until| now < *until),
            excuses: account.excuses.count(now, windows.record),
            suspects: account.suspects.count(now, windows.record),
            given: account.given.count(now, windows.given),
            manifest: manifest
                .filter(|(at, _)| now.since(*at) < windows.manifest)
                .map(|(_, manifest)| manifest.clone()),
            last_manifest: manifest.map(|(_, manifest)| manifest.clone()),
            full: full
                .filter(|(_, report)| now < report.until)
                .map(|(class, report)| (*class, report.until))
                .collect(),
            length_limits: account
                .length_limits
                .iter()
                .filter(|(_, (_, report))| now < report.until)
                .map(|(class, (longest_s, report))| {
                    let (longest_s, until) = (*longest_s, report.until);
                    (*class, LengthLimit { longest_s, until })
                })
                .collect(),
            warm: about.iter().filter(is_warm).copied().collect(),
            features: account
                .features
                .filter(|(at, _)| now.since(*at) < windows.manifest)
                .map(|(_, features)| features),
            private_images: account
                .private_images
                .as_ref()
                .filter(|(at, _)| now.since(*at) < windows.manifest)
                .map(|(_, executors)| executors.clone()),
            last_features: account.features.map(|(_, features)| features),
            last_private_images: account
                .private_images
                .as_ref()
                .map(|(_, executors)| executors.clone()),
            hardware: account.hardware.clone(),
            proven: BTreeMap::new(),
        }
    }

    /// Forgets miners outside the subnet that have no attempt under way. `keep` returns whether a miner is in
    /// the subnet.
    pub fn forget(&mut self, keep: impl Fn(&MinerKey) -> bool) {
        self.accounts
            .retain(|miner, account| keep(miner) || account.open.values().any(|open| *open > 0));
    }

    fn account(&mut self, miner: MinerKey) -> &mut MinerAccount {
        self.accounts.entry(miner).or_default()
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use proptest::prelude::*;

    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
    const NOW: fn(i64) -> Timestamp = Timestamp::from_secs;

    fn miner(seed: u8) -> MinerKey {
        MinerKey(Hotkey::from_bytes([seed; 32]))
    }

    fn ledger() -> MinerLedger {
        MinerLedger::new(LedgerWindows {
            record: Duration::from_secs(600),
            given: Duration::from_secs(3_600),
            manifest: Duration::from_secs(300),
            full: Duration::from_secs(5),
            warm: Duration::from_secs(86_400),
        })
    }

    fn stats_at(ledger: &MinerLedger, about: &[CacheKey], now: i64) -> MinerStats {
        let about = about.iter().copied().collect();
        ledger
            .stats([miner(1)], &about, NOW(now))
            .remove(&miner(1))
            .unwrap_or_default()
    }

    #[test]
    fn a_miners_manifest_of_private_images_is_asked_again_when_it_is_old() {
        let mut ledger = ledger();
        let known = |ledger: &MinerLedger, now| {
            let stats = stats_at(ledger, &[], now);
            (stats.features, stats.private_images, stats.last_features)
        };
        assert_eq!(known(&ledger, 0), (None, None, None));
        let executors = Manifest::new([(CLASS, 1)]);
        ledger.record_features(miner(1), FeatureSet::NONE, NOW(0));
        ledger.record_private_images(miner(1), Some(executors.clone()), NOW(0));
        let none = Some(FeatureSet::NONE);
        assert_eq!(known(&ledger, 299), (none, Some(executors), none));
        assert_eq!(ledger.private_executors(miner(1), CLASS, NOW(299)), Some(1));
        assert_eq!(known(&ledger, 300), (None, None, none));
        assert_eq!(ledger.private_executors(miner(1), CLASS, NOW(300)), None);
        ledger.record_private_images(miner(1), None, NOW(300));
        assert_eq!(known(&ledger, 300).1, None, "it does not tell any more");
    }

    #[test]
    fn everything_is_remembered_for_as_long_as_it_counts() {
        let mut ledger = ledger();
        let image = CacheKey::image("a");
        ledger.open_attempt(miner(1), CLASS);
        ledger.record_offer(miner(1), NOW(1_000));
        ledger.record_mark(miner(1), AttemptMark::Incident, NOW(1_000));
        ledger.record_mark(miner(1), AttemptMark::Excuse, NOW(1_000));
        ledger.record_mark(miner(1), AttemptMark::Unexcused, NOW(1_000));
        ledger.record_mark(miner(1), AttemptMark::Done, NOW(1_000));
        ledger.record_mark(miner(1), AttemptMark::Clean, NOW(1_000));
        ledger.record_manifest(miner(1), Manifest::new([(CLASS, 7)]), NOW(1_000));
        ledger.record_full(miner(1), CLASS, NOW(1_000));
        ledger.record_cached(miner(1), [image], NOW(1_000));
        let now = stats_at(&ledger, &[image, CacheKey::image("b")], 1_001);
        assert_eq!((now.incidents, now.excuses, now.done, now.given), (1, 2, 1, 1));
        assert_eq!((now.open[&CLASS], now.full.len(), now.warm.len()), (1, 1, 1));
        assert_eq!(ledger.executors(miner(1), CLASS, NOW(1_001)), Some(7));
        ledger.forgive_excuse(miner(1), NOW(1_000));
        assert_eq!(stats_at(&ledger, &[image], 1_001).excuses, 1);
        let later = stats_at(&ledger, &[image], 1_700);
        assert_eq!(
            (later.incidents, later.excuses, later.done, later.given),
            (0, 0, 0, 1)
        );
        assert_eq!((later.full.len(), later.manifest, later.warm.len()), (0, None, 1));
        assert_eq!(ledger.executors(miner(1), CLASS, NOW(1_700)), None);
        ledger.close_attempt(miner(1), CLASS);
        ledger.close_attempt(miner(1), CLASS);
        let end = stats_at(&ledger, &[image], 100_000);
        assert_eq!((end.open[&CLASS], end.given, end.warm.len()), (0, 0, 0));
        ledger.forget(|_| false);
        assert!(ledger.stats([miner(1)], &BTreeSet::new(), NOW(1)).is_empty());
    }

    #[test]
    fn a_limit_of_length_holds_until_a_longer_job_is_accepted() {
        let mut ledger = ledger();
        let longest = |ledger: &MinerLedger, now| {
            let limits = stats_at(ledger, &[], now).length_limits;
            limits.get(&CLASS).map(|limit| limit.longest_s)
        };
        ledger.record_length_limit(miner(1), CLASS, 3_600, NOW(1_000));
        ledger.record_accepted(miner(1), CLASS, 3_600);
        assert_eq!(
            longest(&ledger, 1_004),
            Some(3_600),
            "a short job says nothing of a long one"
        );
        assert_eq!(longest(&ledger, 1_005), None, "it is asked again");
        ledger.record_length_limit(miner(1), CLASS, 3_600, NOW(1_006));
        assert_eq!(
            longest(&ledger, 1_015),
            Some(3_600),
            "the second in a row counts for twice as long"
        );
        ledger.record_accepted(miner(1), CLASS, 3_601);
        assert_eq!(longest(&ledger, 1_007), None);
    }

    #[test]
    fn a_miner_that_stays_full_is_asked_less_often_until_it_accepts() {
        let mut ledger = ledger();
        let until = |ledger: &MinerLedger, now| stats_at(ledger, &[], now).full.get(&CLASS).copied();
        let mut now = 1_000;
        for seconds in [5, 10, 20, 40, 40] {
            ledger.record_full(miner(1), CLASS, NOW(now));
            assert_eq!(until(&ledger, now), Some(NOW(now + seconds)));
            now += seconds;
            assert_eq!(until(&ledger, now), None);
        }
        ledger.record_accepted(miner(1), CLASS, 60);
        ledger.record_full(miner(1), CLASS, NOW(now));
        assert_eq!(until(&ledger, now), Some(NOW(now + 5)));
    }

    #[test]
    fn the_time_at_which_incidents_are_forgotten_is_known() {
        let mut ledger = ledger();
        assert_eq!(stats_at(&ledger, &[], 1_000).incidents_until, None);
        ledger.record_mark(miner(1), AttemptMark::Incident, NOW(1_000));
        let until = stats_at(&ledger, &[], 1_000).incidents_until.unwrap();
        let before = until.secs() - 1;
        assert_eq!(stats_at(&ledger, &[], before).incidents, 1);
        assert_eq!(stats_at(&ledger, &[], until.secs()).incidents, 0);
    }

    #[test]
    fn a_failed_trial_benches_until_one_is_passed_or_the_window_is_over() {
        let mut ledger = ledger();
        assert!(!ledger.end_bench(miner(1)), "nothing is known of it");
        ledger.record_mark(miner(1), AttemptMark::FailedTrial, NOW(1_000));
        ledger.record_mark(miner(1), AttemptMark::FailedTrial, NOW(900));
        let until = |ledger: &MinerLedger, now| stats_at(ledger, &[], now).failed_trial_until;
        assert_eq!(until(&ledger, 1_599), Some(NOW(1_600)));
        assert_eq!(until(&ledger, 1_600), None);
        assert!(ledger.end_bench(miner(1)) && !ledger.end_bench(miner(1)));
        assert_eq!(until(&ledger, 1_001), None);
        assert_eq!(stats_at(&ledger, &[], 1_001).incidents, 2, "they are failures");
        ledger.record_mark(miner(1), AttemptMark::Suspect, NOW(1_001));
        let stats = stats_at(&ledger, &[], 1_001);
        assert_eq!(
            (stats.suspects, stats.excuses),
            (1, 1),
            "a suspect costs an excuse"
        );
    }

    #[test]
    fn a_withdrawn_attempt_does_not_count_as_given() {
        let mut ledger = ledger();
        for at in [1_000, 1_001] {
            ledger.open_attempt(miner(1), CLASS);
            ledger.record_offer(miner(1), NOW(at));
        }
        ledger.withdraw_attempt(miner(1), CLASS, NOW(1_001));
        let now = stats_at(&ledger, &[], 1_002);
        assert_eq!((now.open[&CLASS], now.given), (1, 1));
        ledger.withdraw_attempt(miner(1), CLASS, NOW(5));
        assert_eq!(stats_at(&ledger, &[], 1_002).given, 1, "nothing was given then");
    }

    #[test]
    fn a_hundredth_of_a_miners_offers_may_end_without_a_slot_and_one_of_few() {
        let mut ledger = ledger();
        let week = i64::try_from(NO_SLOT_WINDOW.as_secs()).unwrap();
        let free = |ledger: &MinerLedger, now| ledger.has_free_no_slot(miner(1), NOW(now));
        assert!(free(&ledger, 0), "a miner with no offers has one free");
        ledger.record_mark(miner(1), AttemptMark::NoSlot, NOW(0));
        assert!(!free(&ledger, 0));
        ledger.record_ended_offers(miner(1), 199, NOW(1));
        assert!(!free(&ledger, 1));
        ledger.record_ended_offers(miner(1), 1, NOW(2));
        assert!(free(&ledger, 2), "two of 200");
        ledger.record_mark(miner(1), AttemptMark::NoSlot, NOW(3));
        assert!(!free(&ledger, 3));
        assert!(ledger.has_free_no_slot(miner(2), NOW(3)), "each miner by itself");
        // No other mark uses up what is free, and these leave no mark on the record.
        ledger.record_mark(miner(1), AttemptMark::Unexcused, NOW(3));
        ledger.record_ended_offers(miner(1), 100, NOW(4));
        assert!(free(&ledger, 4));
        let stats = stats_at(&ledger, &[], 4);
        assert_eq!((stats.excuses, stats.incidents), (1, 0));
        assert!(free(&ledger, week + week / 50), "both are forgotten after a week");
        assert_eq!(
            ledger.accounts[&miner(1)]
                .no_slots
                .count(NOW(week + week / 50), NO_SLOT_WINDOW),
            0
        );
    }

    #[test]
    fn a_miner_without_slots_at_every_offer_is_free_for_no_more_than_a_hundredth() {
        let mut ledger = ledger();
        let mut free = 0;
        for n in 0..5_000 {
            // An offer every minute; each of them ends without a slot.
            let now = NOW(n * 60);
            if ledger.has_free_no_slot(miner(1), now) {
                ledger.record_mark(miner(1), AttemptMark::NoSlot, now);
                free += 1;
            }
            ledger.record_ended_offers(miner(1), 1, now);
        }
        assert_eq!(free, 49, "of 5,000, which took less than a week");
        let slices = ledger.accounts[&miner(1)].offers.slices.len();
        assert!(slices <= 61, "{slices}");
    }

    #[test]
    fn a_miner_cannot_make_the_ledger_grow() {
        let mut ledger = ledger();
        for n in 0..2_000 {
            ledger.record_cached(miner(1), [CacheKey::image(&n.to_string())], NOW(n));
            ledger.record_mark(miner(1), AttemptMark::Incident, NOW(n));
        }
        let account = &ledger.accounts[&miner(1)];
        assert_eq!(account.warm.len(), MAX_WARM);
        assert!(
            account.warm.contains_key(&CacheKey::image("1999")),
            "the newest stay"
        );
        assert!(account.incidents.slices.len() <= 61);
    }

    proptest! {
        #[test]
        fn a_count_is_right_to_a_slice(mut times in proptest::collection::vec(0i64..2_000, 0..60), now in 0i64..2_000) {
            let window = Duration::from_secs(600);
            let mut recent = SlicedCount::default();
            times.sort_unstable();
            times.retain(|at| *at <= now);
            for at in &times { recent.add(NOW(*at), window); }
            let within = |span: i64| u32::try_from(times.iter().filter(|at| now - **at < span).count()).unwrap();
            let count = recent.count(NOW(now), window);
            prop_assert!(count >= within(600) && count <= within(620), "{} of {} to {}", count, within(600), within(620));
        }
    }
}
