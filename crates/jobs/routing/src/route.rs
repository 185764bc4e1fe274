//! Which miner gets a job: a repeatable choice with a reason for everyone who was passed over and the price of everyone who
//! was not.
//!
//! Nothing here is random. Each miner that may be asked has a cost in points, and the cheapest is asked first; those of
//! one cost are ordered by a hash of the job's id and their hotkey, so that work spreads over jobs and anyone can
//! reckon the order again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use muster_protocol::{Digest, ExecutorClass, Hotkey, JobId, Manifest, MinerKey};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cache_keys::CacheKey;
use crate::exclusion::Exclusion;

/// A neuron of the subnet, as far as routing needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutableNeuron {
    /// Its place in the subnet.
    pub uid: u16,
    /// Who it is.
    pub miner: MinerKey,
    /// Where it says that it listens.
    pub axon: Option<SocketAddr>,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct JobRequirements {
    /// The job; it also seeds the order among equals.
    pub job: JobId,
    /// The kind of executor.
    pub class: ExecutorClass,
    /// Its image.
    pub image: CacheKey,
    /// Its inputs, as far as they are fetched from somewhere.
    pub inputs: BTreeSet<CacheKey>,
    /// Miners that had their attempt at this job already.
    pub tried: BTreeSet<MinerKey>,
}

/// The rules that an operator sets, and the prices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingPolicy {
    /// This validator, which is nobody's miner.
    pub me: Hotkey,
    /// SlicedCount incidents from which a miner is left out.
    pub max_incidents: u32,
    /// Miners that get nothing.
    pub blacklist: BTreeSet<MinerKey>,
    /// What each drawback costs at most.
    pub prices: RouteCost,
}

impl RoutingPolicy {
    /// The default prices. What costs the user time (a failure, a pull) is dearer than what is merely uneven, but no
    /// advantage is so large that its holder gets all the work: an image at hand is worth a lead of two and a half times
    /// as many jobs, not more.
    pub const PRICES: RouteCost = RouteCost {
        record: 1_000,
        load: 400,
        image: 300,
        inputs: 200,
        fairness: 500,
    };
}

/// What this validator knows of a miner beyond the metagraph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MinerStats {
    /// Attempts of ours that are under way there, by class.
    pub open: BTreeMap<ExecutorClass, u32>,
    /// Attempts that it finished lately.
    pub done: u32,
    /// Attempts that ended lately by the miner's fault or with its connection lost.
    pub incidents: u32,
    /// Attempts that ended lately by somebody else's fault, as the miner says, or were refused without a reason that holds.
    pub excuses: u32,
    /// Attempts that it was given lately.
    pub given: u32,
    /// What it last announced; `None` before the first connection, and once that is old.
    pub manifest: Option<Manifest>,
    /// Classes for which it said a moment ago that it has nothing free.
    pub full: BTreeSet<ExecutorClass>,
    /// What earlier jobs left there.
    pub warm: BTreeSet<CacheKey>,
}

impl MinerStats {
    fn open_of(&self, class: ExecutorClass) -> u32 {
        self.open.get(&class).copied().unwrap_or(0)
    }

    /// Executors of the class; one more than are at work where nobody knows.
    fn capacity(&self, class: ExecutorClass) -> u32 {
        match &self.manifest {
            Some(manifest) => manifest.count(class),
            None => self.open_of(class).saturating_add(1),
        }
    }
}

/// What a miner's drawbacks cost, in points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteCost {
    /// Its failures and excuses, by the share of its recent attempts.
    pub record: u32,
    /// Its executors at work for us, by the share.
    pub load: u32,
    /// The image is not known to be there.
    pub image: u32,
    /// Inputs that are not known to be there, by the share.
    pub inputs: u32,
    /// What it was given lately, by executor, beside who was given most.
    pub fairness: u32,
}

impl RouteCost {
    /// All of it.
    pub fn total(&self) -> u32 {
        [self.record, self.load, self.image, self.inputs, self.fairness]
            .into_iter()
            .fold(0, u32::saturating_add)
    }
}

/// A miner that may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its place in the subnet.
    pub uid: u16,
    /// Who it is.
    pub miner: MinerKey,
    /// Where it listens.
    pub address: SocketAddr,
    /// What speaks against it.
    pub cost: RouteCost,
}

/// A miner that was passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExcludedMiner {
    /// Its place in the subnet.
    pub uid: u16,
    /// Who it is.
    pub miner: MinerKey,
    /// Why.
    pub reason: Exclusion,
}

/// The whole answer: every neuron of the subnet is in exactly one of the two lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// In the order in which they are to be asked.
    pub candidates: Vec<Candidate>,
    /// Everyone else, by uid.
    pub excluded: Vec<ExcludedMiner>,
}

/// A route as it is kept: whoever asks why a job went where it went is shown this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteDecision {
    /// The block at which the subnet was read.
    pub block: u64,
    /// The class that was asked for.
    pub class: ExecutorClass,
    /// Who was asked; none if there was nobody.
    pub chosen: Option<MinerKey>,
    /// The first of the candidates, cheapest first.
    pub candidates: Vec<Candidate>,
    /// Candidates that are not listed.
    pub more: u32,
    /// Uids that were passed over, by reason.
    pub excluded: Vec<ExclusionGroup>,
}

/// Everyone who was passed over for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExclusionGroup {
    /// Why.
    pub reason: Exclusion,
    /// Who, by their places in the subnet at that block.
    pub uids: Vec<u16>,
}

/// Candidates that a kept decision lists.
const MAX_KEPT: usize = 16;

impl Route {
    /// The exclusions as they travel to the user in a rejection's context.
    pub fn explain(&self) -> Value {
        let rows = self.excluded.iter().map(
            |excluded| json!({ "uid": excluded.uid, "miner": excluded.miner, "reason": excluded.reason.to_string() }),
        );
        rows.collect()
    }

    /// The decision as it is kept, at most a few kilobytes of it: a job is routed in a millisecond and remembered for days.
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

/// Orders the miners among `neurons` for `requirements`.
pub fn route(
    requirements: &JobRequirements,
    neurons: &[RoutableNeuron],
    stats_by_miner: &BTreeMap<MinerKey, MinerStats>,
    policy: &RoutingPolicy,
) -> Route {
    let unknown = MinerStats::default();
    let mut route = Route::default();
    let mut admitted = Vec::new();
    for neuron in neurons {
        let stats = stats_by_miner.get(&neuron.miner).unwrap_or(&unknown);
        match consider(requirements, neuron, stats, policy) {
            Ok(address) => admitted.push((neuron, address, stats)),
            Err(reason) => route.excluded.push(ExcludedMiner {
                uid: neuron.uid,
                miner: neuron.miner,
                reason,
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
            let cost = cost(requirements, stats, largest, &policy.prices);
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

/// The reasons in the order in which they are told: what the miner can mend itself comes first.
fn consider(
    requirements: &JobRequirements,
    neuron: &RoutableNeuron,
    stats: &MinerStats,
    policy: &RoutingPolicy,
) -> Result<SocketAddr, Exclusion> {
    if neuron.miner.0 == policy.me {
        return Err(Exclusion::OwnHotkey);
    }
    let address = neuron.axon.ok_or(Exclusion::NoAxon)?;
    if !can_be_dialled(address) {
        return Err(Exclusion::BadAxon);
    }
    if policy.blacklist.contains(&neuron.miner) {
        return Err(Exclusion::Blacklisted);
    }
    if requirements.tried.contains(&neuron.miner) {
        return Err(Exclusion::AlreadyTried);
    }
    if let Some(manifest) = &stats.manifest {
        let capacity = manifest.count(requirements.class);
        let open = stats.open_of(requirements.class);
        if capacity == 0 {
            return Err(Exclusion::ClassNotOffered);
        }
        if open >= capacity {
            return Err(Exclusion::Busy { open, capacity });
        }
    }
    if stats.full.contains(&requirements.class) {
        return Err(Exclusion::FullLately);
    }
    if stats.incidents >= policy.max_incidents {
        return Err(Exclusion::LostLately {
            incidents: stats.incidents,
        });
    }
    Ok(address)
}

fn can_be_dialled(address: SocketAddr) -> bool {
    let broadcast = match address.ip() {
        IpAddr::V4(ip) => ip.is_broadcast(),
        IpAddr::V6(_) => false,
    };
    address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast() && !broadcast
}

/// Attempts that count as done before the first: one failure of a newcomer is not a record of nothing but failures.
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
    }
}

/// Attempts given lately for each executor of the class, in thousandths.
fn share_given(stats: &MinerStats, class: ExecutorClass) -> u64 {
    let executors = match &stats.manifest {
        Some(manifest) => manifest.count(class).max(1),
        None => 1,
    };
    u64::from(stats.given).saturating_mul(1_000) / u64::from(executors)
}

/// `price · some / all`; nothing of nothing.
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
