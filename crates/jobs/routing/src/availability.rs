//! Whether a job starts now, waits, or is refused: read from its route.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use muster_protocol::rest::WATCHED_DISK;
use muster_protocol::{ExecutorClass, MinerKey, Timestamp};

use crate::exclusion::Exclusion;
use crate::miner_stats::{MinerStats, RoutableNeuron};
use crate::route::{Candidate, Route, RoutingPolicy, check_askable};

/// The consequence of a route for its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// This miner may be asked now. It may be one that has not shown its executors yet.
    Now(Candidate),
    /// No miner may be asked now, and at least one may be later.
    Later(LaterReasons),
    /// No miner of the subnet could run the job as things stand.
    Never,
}

/// Why no miner may be asked now. Counts only the miners that may be asked later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaterReasons {
    /// Executors that work for this validator.
    pub at_work: u32,
    /// Miners that recently reported that they have no executor free.
    pub full: u32,
    /// Miners that recently reported that they take only shorter jobs.
    pub too_long: u32,
    /// The longest job that one of these takes, in seconds of an executor; 0 if there is none.
    pub longest_s: u64,
    /// Miners that failed too many attempts recently.
    pub failing: u32,
    /// Miners whose collateral is required and not known.
    pub collateral_unknown: u32,
    /// Miners at which this validator's allowance is used up.
    pub thin: u32,
    /// The earliest time at which one of the reasons ends by itself; `None` if all end with events.
    pub until: Option<Timestamp>,
}

/// The subnet's offer of one class. Only miners that may be asked at all are counted, by their manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassCapacity {
    /// Miners that offer the class.
    pub miners: u32,
    /// Their executors of the class.
    pub executors: u32,
    /// Attempts of this validator on these executors.
    pub at_work: u32,
    /// Those of the executors that would be asked now.
    pub free: u32,
    /// Those of the executors whose miner is not asked for a while, because it failed too many attempts.
    pub benched: u32,
    /// When the first of the benched miners may be asked again, if that is known.
    pub back_at: Option<Timestamp>,
    /// Those of the executors that are known to take private images.
    pub private_images: u32,
    /// The number of executors by their hardware, as far as their miners reported it.
    pub hardware: BTreeMap<String, u32>,
}

impl ClassCapacity {
    /// The executors on which a waiting job may count: those of miners that are not benched.
    pub fn usable(&self) -> u32 {
        self.executors.saturating_sub(self.benched)
    }

    /// The hardware of the most executors; `None` if none is known.
    pub fn usual_hardware(&self) -> Option<&str> {
        let usual = self.hardware.iter().max_by_key(|(_, count)| **count)?;
        Some(usual.0)
    }

    /// The usual hardware, and whether other executors have a disk of no fixed size: a user must know that before the
    /// class is chosen.
    pub fn described_hardware(&self) -> Option<String> {
        let usual = self.usual_hardware()?;
        let is_watched = |hardware: &str| hardware.contains(WATCHED_DISK);
        let is_mixed = !is_watched(usual) && self.hardware.keys().any(|hardware| is_watched(hardware));
        Some(match is_mixed {
            true => format!("{usual}, some with a {WATCHED_DISK}"),
            false => usual.to_owned(),
        })
    }
}

/// Reads from a route whether its job starts now, later or never.
pub fn availability(route: &Route) -> Availability {
    if let Some(first) = route.candidates.first() {
        return Availability::Now(*first);
    }
    let mut reasons = LaterReasons::default();
    let mut may_be_asked_later = false;
    for excluded in &route.excluded {
        match excluded.reason {
            Exclusion::Busy { open, .. } => reasons.at_work = reasons.at_work.saturating_add(open),
            Exclusion::AllowanceTooThin { .. } => reasons.thin = reasons.thin.saturating_add(1),
            Exclusion::FullLately => reasons.full = reasons.full.saturating_add(1),
            Exclusion::TooLongLately { longest_s } => {
                reasons.too_long = reasons.too_long.saturating_add(1);
                reasons.longest_s = reasons.longest_s.max(longest_s);
            }
            Exclusion::LostLately { .. } | Exclusion::FailedTrial => {
                reasons.failing = reasons.failing.saturating_add(1);
            }
            Exclusion::CollateralUnknown { .. } => {
                reasons.collateral_unknown = reasons.collateral_unknown.saturating_add(1);
            }
            Exclusion::NoAxon
            | Exclusion::BadAxon
            | Exclusion::OwnHotkey
            | Exclusion::Blacklisted
            | Exclusion::CollateralTooLow { .. }
            | Exclusion::NoCollateralAccount { .. }
            | Exclusion::AlreadyTried
            | Exclusion::SameOwner
            | Exclusion::ClassNotOffered
            | Exclusion::NoPrivateImages
            | Exclusion::NoPrivateExecutor => {}
        }
        if excluded.reason.is_passing() {
            may_be_asked_later = true;
            reasons.until = [reasons.until, excluded.until].into_iter().flatten().min();
        }
    }
    if may_be_asked_later {
        Availability::Later(reasons)
    } else {
        Availability::Never
    }
}

/// Whether a miner that is not among `unaskable` may run the job of this route, now or later.
pub fn may_ask_others(route: Route, unaskable: &BTreeSet<MinerKey>) -> bool {
    match availability_of_others(route, unaskable) {
        Availability::Now(_) | Availability::Later(_) => true,
        Availability::Never => false,
    }
}

/// Reads from a route whether its job starts now, later or never at a miner that is not among `unaskable`.
pub fn availability_of_others(mut route: Route, unaskable: &BTreeSet<MinerKey>) -> Availability {
    route
        .candidates
        .retain(|candidate| !unaskable.contains(&candidate.miner));
    route
        .excluded
        .retain(|excluded| !unaskable.contains(&excluded.miner));
    availability(&route)
}

/// The subnet's offers by class, as far as manifests are known.
pub fn class_capacities(
    neurons: &[RoutableNeuron],
    stats_by_miner: &BTreeMap<MinerKey, MinerStats>,
    policy: &RoutingPolicy,
) -> BTreeMap<ExecutorClass, ClassCapacity> {
    let mut capacities = BTreeMap::<_, ClassCapacity>::new();
    for neuron in neurons {
        let Some(stats) = stats_by_miner.get(&neuron.miner) else {
            continue;
        };
        let (Ok(_), Some(manifest)) = (check_askable(neuron, policy), &stats.last_manifest) else {
            continue;
        };
        for (class, count) in manifest.iter().filter(|(_, count)| *count > 0) {
            let capacity = capacities.entry(class).or_default();
            capacity.miners = capacity.miners.saturating_add(1);
            capacity.executors = capacity.executors.saturating_add(count);
            let at_work = stats.open_of(class).min(count);
            capacity.at_work = capacity.at_work.saturating_add(at_work);
            let bench = stats.bench(policy.max_incidents);
            let is_benched = bench.is_some();
            if let Some((_, until)) = bench {
                capacity.benched = capacity.benched.saturating_add(count);
                capacity.back_at = [capacity.back_at, until].into_iter().flatten().min();
            }
            let is_asked = !stats.full.contains_key(&class) && !is_benched;
            let free = if is_asked {
                count.saturating_sub(at_work)
            } else {
                0
            };
            capacity.free = capacity.free.saturating_add(free);
            let private = stats.count_private(class, count);
            capacity.private_images = capacity.private_images.saturating_add(private);
            if let Some(hardware) = stats.hardware.get(&class) {
                let known = capacity.hardware.entry(hardware.clone()).or_default();
                *known = known.saturating_add(count);
            }
        }
    }
    capacities
}

/// The offered classes as a user reads them: `2 of always_on.test, 1 of always_on.gpu-24gb`.
pub fn describe_offers(capacities: &BTreeMap<ExecutorClass, ClassCapacity>) -> String {
    if capacities.is_empty() {
        return "no miner of this subnet offers an executor of any class".to_owned();
    }
    let offers = capacities
        .iter()
        .map(|(class, capacity)| format!("{} of {class}", capacity.executors));
    format!("offered are {}", offers.collect::<Vec<_>>().join(", "))
}

/// The executors that take private images as a user reads them: `private images are taken by 1 of always_on.test`.
pub fn describe_private_offers(capacities: &BTreeMap<ExecutorClass, ClassCapacity>) -> String {
    let takers = capacities
        .iter()
        .filter(|(_, capacity)| capacity.private_images > 0)
        .map(|(class, capacity)| format!("{} of {class}", capacity.private_images));
    let takers: Vec<_> = takers.collect();
    if takers.is_empty() {
        return "none of these is known to take private images; use an image that its registry gives to everybody"
            .to_owned();
    }
    format!("private images are taken by {}", takers.join(", "))
}

/// The miners that are left out for their collateral, as a user reads it; `None` if there are none.
pub fn describe_collateral(route: &Route) -> Option<String> {
    let is_short = |reason: Exclusion| match reason {
        Exclusion::CollateralTooLow { .. } | Exclusion::NoCollateralAccount { .. } => true,
        Exclusion::NoAxon
        | Exclusion::BadAxon
        | Exclusion::OwnHotkey
        | Exclusion::Blacklisted
        | Exclusion::CollateralUnknown { .. }
        | Exclusion::AlreadyTried
        | Exclusion::SameOwner
        | Exclusion::ClassNotOffered
        | Exclusion::NoPrivateImages
        | Exclusion::NoPrivateExecutor
        | Exclusion::Busy { .. }
        | Exclusion::AllowanceTooThin { .. }
        | Exclusion::FullLately
        | Exclusion::TooLongLately { .. }
        | Exclusion::LostLately { .. }
        | Exclusion::FailedTrial => false,
    };
    let short = route.excluded.iter().filter(|excluded| is_short(excluded.reason));
    match short.count() {
        0 => None,
        1 => Some("1 miner has deposited less collateral than this validator requires".to_owned()),
        count => Some(format!(
            "{count} miners have deposited less collateral than this validator requires"
        )),
    }
}

impl fmt::Display for LaterReasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match self.at_work {
            0 => {}
            1 => parts.push("1 executor is at work".to_owned()),
            count => parts.push(format!("all {count} executors are at work")),
        }
        match self.full {
            0 => {}
            1 => parts.push("1 miner says that it has no executor free".to_owned()),
            count => parts.push(format!("{count} miners say that they have no executor free")),
        }
        match self.too_long {
            0 => {}
            1 => parts.push(format!(
                "1 miner takes only jobs of at most {} s now",
                self.longest_s
            )),
            count => parts.push(format!(
                "{count} miners take only jobs of at most {} s now",
                self.longest_s
            )),
        }
        match self.failing {
            0 => {}
            1 => parts.push("1 miner failed too often lately".to_owned()),
            count => parts.push(format!("{count} miners failed too often lately")),
        }
        match self.collateral_unknown {
            0 => {}
            1 => parts.push("the collateral of 1 miner is not known now".to_owned()),
            count => parts.push(format!("the collateral of {count} miners is not known now")),
        }
        match self.thin {
            0 => {}
            1 => parts.push("this validator's allowance at 1 miner is used up".to_owned()),
            count => parts.push(format!("this validator's allowance at {count} miners is used up")),
        }
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use muster_protocol::{Feature, Manifest, Rao};

    use super::*;
    use crate::collateral::CollateralVerdict;
    use crate::route::{ExcludedMiner, RouteCost};
    use crate::testing::hotkey;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
    const NEVER: [Exclusion; 11] = [
        Exclusion::NoAxon,
        Exclusion::BadAxon,
        Exclusion::OwnHotkey,
        Exclusion::Blacklisted,
        Exclusion::CollateralTooLow {
            held: Rao(1),
            required: Rao(2),
        },
        Exclusion::NoCollateralAccount { required: Rao(2) },
        Exclusion::AlreadyTried,
        Exclusion::SameOwner,
        Exclusion::ClassNotOffered,
        Exclusion::NoPrivateImages,
        Exclusion::NoPrivateExecutor,
    ];

    fn without(excluded: &[(Exclusion, Option<i64>)]) -> Route {
        let row = |(at, (reason, until)): (usize, &(Exclusion, Option<i64>))| ExcludedMiner {
            uid: u16::try_from(at).unwrap(),
            miner: MinerKey(hotkey(1)),
            reason: *reason,
            until: until.map(Timestamp::from_secs),
        };
        Route {
            candidates: Vec::new(),
            excluded: excluded.iter().enumerate().map(row).collect(),
        }
    }

    #[test]
    fn a_job_is_refused_only_if_every_miner_is_out_for_good() {
        assert_eq!(availability(&without(&[])), Availability::Never);
        let never: Vec<_> = NEVER.iter().map(|reason| (*reason, None)).collect();
        assert_eq!(availability(&without(&never)), Availability::Never);
        let passing = [
            (Exclusion::Busy { open: 2, capacity: 2 }, None),
            (Exclusion::FullLately, Some(50)),
            (Exclusion::LostLately { incidents: 3 }, Some(40)),
            (Exclusion::CollateralUnknown { age_s: None }, None),
            (
                Exclusion::AllowanceTooThin {
                    left_s: 1,
                    needed_s: 2,
                },
                None,
            ),
        ];
        for reason in passing {
            let mut mixed = never.clone();
            mixed.push(reason);
            let found = availability(&without(&mixed));
            assert!(matches!(found, Availability::Later(_)), "{reason:?}: {found:?}");
        }
        let Availability::Later(reasons) = availability(&without(&passing)) else {
            panic!("it waits")
        };
        assert_eq!(reasons.until, Some(Timestamp::from_secs(40)));
        assert_eq!(
            reasons.to_string(),
            "all 2 executors are at work, 1 miner says that it has no executor free, 1 miner failed too often lately, \
             the collateral of 1 miner is not known now, this validator's allowance at 1 miner is used up"
        );
    }

    #[test]
    fn a_miner_that_may_be_asked_is_asked() {
        let candidate = Candidate {
            uid: 1,
            miner: MinerKey(hotkey(1)),
            address: SocketAddr::from(([10, 0, 0, 1], 1)),
            cost: RouteCost::default(),
        };
        let mut route = without(&[(Exclusion::FullLately, None)]);
        route.candidates.push(candidate);
        assert_eq!(availability(&route), Availability::Now(candidate));
    }

    #[test]
    fn users_are_told_of_miners_that_have_deposited_too_little() {
        let none = without(&[(Exclusion::CollateralUnknown { age_s: None }, None)]);
        assert_eq!(describe_collateral(&none), None);
        let never: Vec<_> = NEVER.iter().map(|reason| (*reason, None)).collect();
        let told = describe_collateral(&without(&never)).unwrap();
        assert!(
            told.starts_with("2 miners have deposited less collateral"),
            "{told}"
        );
    }

    #[test]
    fn offers_are_counted_by_class_and_only_of_miners_that_may_be_asked() {
        let neuron = |seed: u8, axon: bool| RoutableNeuron {
            uid: u16::from(seed),
            miner: MinerKey(hotkey(seed)),
            owner: hotkey(100),
            axon: axon.then(|| SocketAddr::from(([10, 0, 0, 1], 1))),
            allowance_us: None,
            collateral: CollateralVerdict::Enough,
        };
        let stats = |open| MinerStats {
            last_manifest: Some(Manifest::new([(CLASS, 2)])),
            open: [(CLASS, open)].into(),
            ..MinerStats::default()
        };
        let policy = RoutingPolicy {
            me: hotkey(0),
            max_incidents: 3,
            blacklist: [MinerKey(hotkey(4))].into(),
            most_unproven: 1,
            prices: RoutingPolicy::PRICES,
        };
        let neurons = [
            neuron(1, true),
            neuron(2, true),
            neuron(3, false),
            neuron(4, true),
            neuron(5, true),
        ];
        let mut known: BTreeMap<_, _> = (1..=4)
            .map(|seed| (MinerKey(hotkey(seed)), stats(u32::from(seed))))
            .collect();
        let capacities = class_capacities(&neurons, &known, &policy);
        let expected = ClassCapacity {
            miners: 2,
            executors: 4,
            at_work: 3,
            free: 1,
            ..ClassCapacity::default()
        };
        assert_eq!(capacities, [(CLASS, expected.clone())].into());
        assert_eq!(describe_offers(&capacities), "offered are 4 of always_on.test");
        assert!(describe_offers(&BTreeMap::new()).contains("no miner"));
        assert!(describe_private_offers(&capacities).starts_with("none of these"));

        // A miner that is full, or fails, is not asked; one that knows private images may report how many executors do.
        let one = known.get_mut(&MinerKey(hotkey(1))).unwrap();
        one.full.insert(CLASS, Timestamp::from_secs(9));
        one.last_features = Some([Feature::PrivateImages].into_iter().collect());
        one.last_private_images = Some(Manifest::new([(CLASS, 1)]));
        one.hardware.insert(CLASS, "8 cores, 16 GiB".to_owned());
        let capacities = class_capacities(&neurons, &known, &policy);
        let expected = ClassCapacity {
            free: 0,
            private_images: 1,
            hardware: [("8 cores, 16 GiB".to_owned(), 2)].into(),
            ..expected
        };
        assert_eq!(expected.usual_hardware(), Some("8 cores, 16 GiB"));
        let with = |hardware: &[(&str, u32)]| {
            let hardware = hardware.iter().map(|(text, count)| ((*text).to_owned(), *count));
            let capacity = ClassCapacity {
                hardware: hardware.collect(),
                ..ClassCapacity::default()
            };
            capacity.described_hardware()
        };
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[("8 cores", 2)]).as_deref(), Some("8 cores"));
        assert_eq!(
            with(&[("8 cores", 2), ("4 cores, watched disk", 1)]).as_deref(),
            Some("8 cores, some with a watched disk")
        );
        assert_eq!(
            with(&[("8 cores", 1), ("4 cores, watched disk", 2)]).as_deref(),
            Some("4 cores, watched disk")
        );
        assert_eq!(capacities, [(CLASS, expected)].into());
        assert_eq!(
            describe_private_offers(&capacities),
            "private images are taken by 1 of always_on.test"
        );

        // No waiting job counts on the executors of a benched miner.
        let two = known.get_mut(&MinerKey(hotkey(2))).unwrap();
        (two.incidents, two.incidents_until) = (3, Some(Timestamp::from_secs(600)));
        let capacity = class_capacities(&neurons, &known, &policy)
            .remove(&CLASS)
            .unwrap();
        assert_eq!(
            (capacity.executors, capacity.benched, capacity.usable()),
            (4, 2, 2)
        );
        assert_eq!(capacity.back_at, Some(Timestamp::from_secs(600)));
    }
}
