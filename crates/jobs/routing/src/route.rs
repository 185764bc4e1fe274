//! The choice of a miner for a job: repeatable, with a reason for every excluded miner and a price for every candidate.
//!
//! Nothing here is random. Each miner that may be asked has a cost in points, and the cheapest is asked first. Miners
//! of equal cost are ordered by a hash of the job's id and their hotkey, so that work spreads over jobs and any party
//! can compute the order again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use muster_protocol::wire::route::{ExclusionCount, RouteStep};
use muster_protocol::{Digest, ExecutorClass, Hotkey, JobId, MinerKey, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cache_keys::CacheKey;
use crate::collateral::CollateralVerdict;
use crate::exclusion::Exclusion;
use crate::miner_stats::{MinerStats, RoutableNeuron};
use crate::newcomers::Newcomers;

/// The facts about a job that decide its route.
#[derive(Clone, Debug)]
pub struct JobRequirements {
    /// The id of the job; it also seeds the order among equals.
    pub job: JobId,
    /// The class of executor that the job needs.
    pub class: ExecutorClass,
    /// The cache key of the job's image.
    pub image: CacheKey,
    /// The cache keys of the job's inputs that are fetched from elsewhere.
    pub inputs: BTreeSet<CacheKey>,
    /// Miners that have already had an attempt at this job.
    pub tried: BTreeSet<MinerKey>,
    /// Coldkeys of the owners to whose miners the job's image did not come.
    pub avoided_owners: BTreeSet<Hotkey>,
    /// Whether the job's image comes from an archive or with a login, which not every miner and executor knows.
    pub private_image: bool,
    /// The executor-microseconds that are reserved for the job.
    pub reserved_us: u64,
    /// Seconds of an executor that the job may take, paid or not.
    pub lasts_s: u64,
}

/// The operator's rules and the prices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingPolicy {
    /// The hotkey of this validator, which is never chosen.
    pub me: Hotkey,
    /// Number of recent incidents from which a miner is excluded.
    pub max_incidents: u32,
    /// Miners that get no jobs.
    pub blacklist: BTreeSet<MinerKey>,
    /// Attempts of a class at a time at a miner that has not shown its executors yet. With each further one the job
    /// would be declined, or wait, although another miner might have room.
    pub most_unproven: u32,
    /// The highest cost of each drawback, in points.
    pub prices: RouteCost,
}

impl RoutingPolicy {
    /// The default prices. Drawbacks that cost the user time (a failure, a pull) are dearer than mere unevenness, but
    /// no advantage is large enough to attract all the work: an image at hand is worth a lead of two and a half times
    /// as many jobs, not more.
    pub const PRICES: RouteCost = RouteCost {
        record: 1_000,
        load: 400,
        image: 300,
        inputs: 200,
        fairness: 500,
        newcomer: 10_000,
        doubt: 20_000,
    };
}

/// Adds what miners have proven in a class to what is known of them. `proven` is `None` for every miner of a class that
/// nobody grades: then the manifest alone counts.
pub fn note_proven(
    stats_by_miner: &mut BTreeMap<MinerKey, MinerStats>,
    class: ExecutorClass,
    proven: impl Fn(MinerKey) -> Option<u32>,
) {
    for (miner, stats) in stats_by_miner {
        if let Some(executors) = proven(*miner) {
            stats.proven.insert(class, executors);
        }
    }
}

/// The cost of a miner's drawbacks, in points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteCost {
    /// Cost of failures and excuses, by their share of the recent attempts.
    pub record: u32,
    /// Cost of executors at work for us, by their share.
    pub load: u32,
    /// Cost of an image that is not known to be at the miner.
    pub image: u32,
    /// Cost of inputs that are not known to be at the miner, by their share.
    pub inputs: u32,
    /// Cost of the attempts given recently per executor, relative to the miner with the most.
    pub fairness: u32,
    /// Cost of having proven no executor of a graded class, once newcomers together have had their share of the
    /// recent attempts. It is higher than all other costs together.
    #[serde(default)]
    pub newcomer: u32,
    /// Cost of having failed more users' jobs than were finished lately. It is higher than all other costs together.
    #[serde(default)]
    pub doubt: u32,
}

impl RouteCost {
    /// The sum of all costs.
    pub fn total(&self) -> u32 {
        let costs = [
            self.record,
            self.load,
            self.image,
            self.inputs,
            self.fairness,
            self.newcomer,
            self.doubt,
        ];
        costs.into_iter().fold(0, u32::saturating_add)
    }

    /// The drawbacks that cost anything, as texts for a job's user.
    fn drawbacks(&self) -> Vec<String> {
        let costly = DRAWBACKS.iter().filter(|(cost, _)| cost(self) > 0);
        costly.map(|(_, words)| (*words).to_owned()).collect()
    }
}

/// A part of what a route costs.
type CostPart = fn(&RouteCost) -> u32;

/// The drawbacks as texts for a job's user, each with its cost.
const DRAWBACKS: [(CostPart, &str); 7] = [
    (|cost| cost.record, "it failed or excused itself lately"),
    (|cost| cost.load, "some of its executors are at work"),
    (|cost| cost.image, "the image is not known to be there"),
    (|cost| cost.inputs, "the inputs are not known to be there"),
    (|cost| cost.fairness, "it got many jobs lately"),
    (|cost| cost.newcomer, "it has proven no executor of the class yet"),
    (|cost| cost.doubt, "it failed more jobs than it finished lately"),
];

/// A miner that may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The miner's number in the subnet.
    pub uid: u16,
    /// The miner's hotkey.
    pub miner: MinerKey,
    /// The address to dial.
    pub address: SocketAddr,
    /// The cost of the miner's drawbacks.
    pub cost: RouteCost,
}

/// A miner that is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExcludedMiner {
    /// The miner's number in the subnet.
    pub uid: u16,
    /// The miner's hotkey.
    pub miner: MinerKey,
    /// The reason of the exclusion.
    pub reason: Exclusion,
    /// When the reason ends by itself; `None` for a reason that ends with an event or never.
    pub until: Option<Timestamp>,
}

/// The result of routing: every neuron of the subnet is in exactly one of the two lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Miners that may be asked, the cheapest first.
    pub candidates: Vec<Candidate>,
    /// All other neurons, by uid.
    pub excluded: Vec<ExcludedMiner>,
}

/// A route in its stored form, which explains later why a job went to its miner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteDecision {
    /// The block at which the subnet was read.
    pub block: u64,
    /// The class of executor that was asked for.
    pub class: ExecutorClass,
    /// The miner that was asked first; `None` without a candidate.
    pub chosen: Option<MinerKey>,
    /// The first of the candidates, cheapest first.
    pub candidates: Vec<Candidate>,
    /// Number of candidates that are not listed.
    pub more: u32,
    /// Uids of the excluded miners, by reason.
    pub excluded: Vec<ExclusionGroup>,
}

/// All miners that were excluded for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExclusionGroup {
    /// The reason of the exclusion.
    pub reason: Exclusion,
    /// The miners' uids at that block.
    pub uids: Vec<u16>,
}

/// Candidates that a stored decision lists.
const MAX_KEPT: usize = 16;

impl RouteDecision {
    /// The decision as it is reported to the job's user, without an attempt. It names no miner but the one that
    /// was asked.
    pub fn tell(&self) -> RouteStep {
        let listed = u32::try_from(self.candidates.len()).unwrap_or(u32::MAX);
        let chosen = self.candidates.first().filter(|_| self.chosen.is_some());
        // The validator itself is no miner.
        let miners = self
            .excluded
            .iter()
            .filter(|group| group.reason != Exclusion::OwnHotkey);
        let count = |group: &ExclusionGroup| ExclusionCount {
            reason: group.reason.to_string(),
            miners: u32::try_from(group.uids.len()).unwrap_or(u32::MAX),
        };
        let step = RouteStep {
            miner: self.chosen,
            candidates: listed.saturating_add(self.more),
            drawbacks: chosen
                .map(|candidate| candidate.cost.drawbacks())
                .unwrap_or_default(),
            excluded: miners.map(count).collect(),
            ..RouteStep::default()
        };
        step.bounded()
    }
}

impl Route {
    /// The exclusions in the form that a rejection's context carries to the user.
    pub fn explain(&self) -> Value {
        let rows = self.excluded.iter().map(
            |excluded| json!({ "uid": excluded.uid, "miner": excluded.miner, "reason": excluded.reason.to_string() }),
        );
        rows.collect()
    }

    /// The decision in its stored form, at most a few kilobytes: a job is routed in a millisecond and remembered for
    /// days.
    pub fn decision(&self, class: ExecutorClass, block: u64) -> RouteDecision {
        let mut excluded = BTreeMap::<Exclusion, Vec<u16>>::new();
        for passed in &self.excluded {
            excluded.entry(passed.reason).or_default().push(passed.uid);
        }
        let kept: Vec<_> = self.candidates.iter().copied().take(MAX_KEPT).collect();
        let more = self.candidates.len().saturating_sub(kept.len());
        RouteDecision {
            block,
            class,
            chosen: kept.first().map(|candidate| candidate.miner),
            candidates: kept,
            more: u32::try_from(more).unwrap_or(u32::MAX),
            excluded: excluded
                .into_iter()
                .map(|(reason, uids)| ExclusionGroup { reason, uids })
                .collect(),
        }
    }
}

/// Orders the miners among `neurons` for a job.
pub fn route(
    requirements: &JobRequirements,
    neurons: &[RoutableNeuron],
    stats_by_miner: &BTreeMap<MinerKey, MinerStats>,
    policy: &RoutingPolicy,
) -> Route {
    let unknown = MinerStats::default();
    let mut route = Route::default();
    let mut admitted = Vec::new();
    let newcomers = Newcomers::among(neurons, stats_by_miner, requirements.class);
    for neuron in neurons {
        let stats = stats_by_miner.get(&neuron.miner).unwrap_or(&unknown);
        let checked = check_exclusions(requirements, neuron, stats, policy)
            .and_then(|address| newcomers.check_owner(neuron, stats).map(|()| address));
        match checked {
            Ok(address) => admitted.push((neuron, address, stats)),
            Err(reason) => route.excluded.push(ExcludedMiner {
                uid: neuron.uid,
                miner: neuron.miner,
                reason,
                until: end_of(reason, requirements.class, stats),
            }),
        }
    }
    let shares = admitted
        .iter()
        .map(|(_, _, stats)| share_given(stats, requirements.class));
    let largest = shares.max().unwrap_or(0);
    let mut ranked: Vec<_> = admitted
        .into_iter()
        .map(|(neuron, address, stats)| {
            let cost = RouteCost {
                newcomer: newcomers.cost(stats, policy.prices.newcomer),
                doubt: match stats.is_doubted(policy.max_incidents) {
                    true => policy.prices.doubt,
                    false => 0,
                },
                ..cost(requirements, stats, largest, &policy.prices)
            };
            let candidate = Candidate {
                uid: neuron.uid,
                miner: neuron.miner,
                address,
                cost,
            };
            (cost.total(), tie_break(requirements.job, neuron.miner), candidate)
        })
        .collect();
    ranked.sort_by_key(|(total, tie, candidate)| (*total, *tie, candidate.uid));
    route.excluded.sort_by_key(|excluded| excluded.uid);
    route.candidates = ranked.into_iter().map(|(_, _, candidate)| candidate).collect();
    route
}

/// Checks the reasons for an exclusion. Reasons that the miner can mend itself are reported first.
fn check_exclusions(
    requirements: &JobRequirements,
    neuron: &RoutableNeuron,
    stats: &MinerStats,
    policy: &RoutingPolicy,
) -> Result<SocketAddr, Exclusion> {
    let address = check_askable(neuron, policy)?;
    if requirements.tried.contains(&neuron.miner) {
        return Err(Exclusion::AlreadyTried);
    }
    if requirements.avoided_owners.contains(&neuron.owner) {
        return Err(Exclusion::SameOwner);
    }
    let open = stats.open_of(requirements.class);
    let capacity = match &stats.manifest {
        Some(manifest) => stats.usable(manifest, requirements.class),
        // An old manifest still shows how much the miner can do at a time; that it lacks the class may have changed.
        None => {
            let last = stats.last_manifest.as_ref();
            last.map_or(0, |last| stats.usable(last, requirements.class))
                .max(policy.most_unproven)
        }
    };
    if capacity == 0 {
        return Err(Exclusion::ClassNotOffered);
    }
    if requirements.private_image {
        stats.check_private_images(requirements.class)?;
    }
    if open >= capacity {
        return Err(Exclusion::Busy { open, capacity });
    }
    check_allowance(requirements, neuron, open)?;
    if stats.full.contains_key(&requirements.class) {
        return Err(Exclusion::FullLately);
    }
    if let Some(limit) = stats.length_limits.get(&requirements.class)
        && requirements.lasts_s > limit.longest_s
    {
        return Err(Exclusion::TooLongLately {
            longest_s: limit.longest_s,
        });
    }
    match stats.bench(policy.max_incidents) {
        Some((reason, _)) => Err(reason),
        None => Ok(address),
    }
}

/// Checks that the job's time would be paid, after that of the attempts under way: the longest of them are taken to be
/// as long as this one.
fn check_allowance(
    requirements: &JobRequirements,
    neuron: &RoutableNeuron,
    open: u32,
) -> Result<(), Exclusion> {
    let needed = requirements
        .reserved_us
        .saturating_mul(u64::from(open).saturating_add(1));
    match neuron.allowance_us {
        Some(left) if left < needed => Err(Exclusion::AllowanceTooThin {
            left_s: left / 1_000_000,
            needed_s: needed / 1_000_000,
        }),
        Some(_) | None => Ok(()),
    }
}

/// Checks the reasons that hold for every job: a neuron that passes is a miner that may be asked for something.
pub(crate) fn check_askable(
    neuron: &RoutableNeuron,
    policy: &RoutingPolicy,
) -> Result<SocketAddr, Exclusion> {
    if neuron.miner.0 == policy.me {
        return Err(Exclusion::OwnHotkey);
    }
    let address = neuron.axon.ok_or(Exclusion::NoAxon)?;
    if !is_dialable(address) {
        return Err(Exclusion::BadAxon);
    }
    if policy.blacklist.contains(&neuron.miner) {
        return Err(Exclusion::Blacklisted);
    }
    check_collateral(neuron.collateral)?;
    Ok(address)
}

fn check_collateral(verdict: CollateralVerdict) -> Result<(), Exclusion> {
    match verdict {
        CollateralVerdict::NotRequired | CollateralVerdict::Enough => Ok(()),
        CollateralVerdict::TooLittle { held, required } => {
            Err(Exclusion::CollateralTooLow { held, required })
        }
        CollateralVerdict::NoAccount { required } => Err(Exclusion::NoCollateralAccount { required }),
        CollateralVerdict::Unknown { age_s } => Err(Exclusion::CollateralUnknown { age_s }),
    }
}

/// When a reason ends by itself.
fn end_of(reason: Exclusion, class: ExecutorClass, stats: &MinerStats) -> Option<Timestamp> {
    match reason {
        Exclusion::FullLately => stats.full.get(&class).copied(),
        Exclusion::TooLongLately { .. } => stats.length_limits.get(&class).map(|limit| limit.until),
        Exclusion::LostLately { .. } => stats.incidents_until,
        Exclusion::FailedTrial => stats.failed_trial_until,
        Exclusion::NoAxon
        | Exclusion::BadAxon
        | Exclusion::OwnHotkey
        | Exclusion::Blacklisted
        | Exclusion::CollateralTooLow { .. }
        | Exclusion::NoCollateralAccount { .. }
        | Exclusion::CollateralUnknown { .. }
        | Exclusion::AlreadyTried
        | Exclusion::SameOwner
        | Exclusion::ClassNotOffered
        | Exclusion::NoPrivateImages
        | Exclusion::NoPrivateExecutor
        | Exclusion::AllowanceTooThin { .. }
        | Exclusion::Busy { .. } => None,
    }
}

fn is_dialable(address: SocketAddr) -> bool {
    let broadcast = match address.ip() {
        IpAddr::V4(ip) => ip.is_broadcast(),
        IpAddr::V6(_) => false,
    };
    address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast() && !broadcast
}

/// Attempts that count as done before the first, so that one failure of a newcomer does not make up its whole record.
const BENEFIT_OF_DOUBT: u32 = 4;

fn cost(requirements: &JobRequirements, stats: &MinerStats, largest: u64, prices: &RouteCost) -> RouteCost {
    let bad = stats.incidents.saturating_mul(2).saturating_add(stats.excuses);
    let all = bad.saturating_add(stats.done).saturating_add(BENEFIT_OF_DOUBT);
    let cold = requirements.inputs.difference(&stats.warm).count();
    let capacity = stats.capacity(requirements.class);
    RouteCost {
        record: part(prices.record, u64::from(bad), u64::from(all)),
        load: part(
            prices.load,
            u64::from(stats.open_of(requirements.class)),
            u64::from(capacity),
        ),
        image: if stats.warm.contains(&requirements.image) {
            0
        } else {
            prices.image
        },
        inputs: part(prices.inputs, count(cold), count(requirements.inputs.len())),
        fairness: part(prices.fairness, share_given(stats, requirements.class), largest),
        newcomer: 0,
        doubt: 0,
    }
}

/// Recent attempts per executor of the class, in thousandths.
fn share_given(stats: &MinerStats, class: ExecutorClass) -> u64 {
    let executors = match &stats.manifest {
        Some(manifest) => stats.usable(manifest, class).max(1),
        None => 1,
    };
    u64::from(stats.given).saturating_mul(1_000) / u64::from(executors)
}

/// `price · some / all`; 0 if `all` is 0.
fn part(price: u32, some: u64, all: u64) -> u32 {
    let points = u128::from(price)
        .saturating_mul(u128::from(some))
        .checked_div(u128::from(all));
    u32::try_from(points.unwrap_or(0)).unwrap_or(u32::MAX)
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn tie_break(job: JobId, miner: MinerKey) -> Digest {
    let mut seed = job.as_uuid().as_bytes().to_vec();
    seed.extend_from_slice(miner.0.as_bytes());
    Digest::of(&seed)
}
