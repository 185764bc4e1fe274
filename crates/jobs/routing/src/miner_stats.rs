//! The facts about a miner that decide its place in a route: its neuron, and this validator's knowledge of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use muster_protocol::{ExecutorClass, Feature, FeatureSet, Hotkey, Manifest, MinerKey, Timestamp};

use crate::cache_keys::CacheKey;
use crate::collateral::CollateralVerdict;
use crate::exclusion::Exclusion;

/// A neuron of the subnet, as far as routing needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutableNeuron {
    /// The neuron's number in the subnet.
    pub uid: u16,
    /// The miner's hotkey.
    pub miner: MinerKey,
    /// The coldkey of the miner's owner.
    pub owner: Hotkey,
    /// The address that the miner announces on the chain.
    pub axon: Option<SocketAddr>,
    /// The executor-microseconds that this validator may still have paid at the miner; `None` if that is not known.
    pub allowance_us: Option<u64>,
    /// Whether the miner has deposited enough.
    pub collateral: CollateralVerdict,
}

/// A miner's report that it takes only jobs of a class that are not longer than this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthLimit {
    /// The longest job, in seconds of an executor.
    pub longest_s: u64,
    /// Until when the report counts.
    pub until: Timestamp,
}

/// This validator's knowledge of a miner beyond the metagraph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MinerStats {
    /// Our attempts that are under way at the miner, by class.
    pub open: BTreeMap<ExecutorClass, u32>,
    /// Recent attempts that the miner finished.
    pub done: u32,
    /// Recent attempts that ended by the miner's fault or with its connection lost.
    pub incidents: u32,
    /// Recent attempts that ended by another party's fault, as the miner claims, or were rejected without a
    /// valid reason.
    pub excuses: u32,
    /// Those of the excuses that are failures of users' jobs, which may have provoked them.
    pub suspects: u32,
    /// Recent attempts that were given to the miner.
    pub given: u32,
    /// When the number of incidents falls next; `None` without incidents.
    pub incidents_until: Option<Timestamp>,
    /// Until when the miner gets no users' jobs because it failed its trials; `None` if it is not benched by them.
    pub failed_trial_until: Option<Timestamp>,
    /// The miner's last manifest; `None` before the first connection, and once it is old.
    pub manifest: Option<Manifest>,
    /// The miner's last manifest, however old; `None` before the first connection.
    pub last_manifest: Option<Manifest>,
    /// Classes for which the miner recently reported that no executor is free, and until when each report counts.
    pub full: BTreeMap<ExecutorClass, Timestamp>,
    /// Classes of which the miner recently reported that it takes only shorter jobs.
    pub length_limits: BTreeMap<ExecutorClass, LengthLimit>,
    /// Images and inputs that earlier jobs left at the miner.
    pub warm: BTreeSet<CacheKey>,
    /// The features that the miner lately showed; `None` if it was not connected lately.
    pub features: Option<FeatureSet>,
    /// The executors that take private images, as the miner lately reported; `None` if it does not report it.
    pub private_images: Option<Manifest>,
    /// The features that the miner last showed, however long ago.
    pub last_features: Option<FeatureSet>,
    /// The executors that take private images, as the miner last reported, however long ago.
    pub last_private_images: Option<Manifest>,
    /// The hardware of an executor of each class, as the miner last reported it.
    pub hardware: BTreeMap<ExecutorClass, String>,
    /// The executors that the miner has proven, by graded class. Executors on paper must not attract jobs.
    pub proven: BTreeMap<ExecutorClass, u32>,
}

impl MinerStats {
    pub(crate) fn open_of(&self, class: ExecutorClass) -> u32 {
        self.open.get(&class).copied().unwrap_or(0)
    }

    /// Checks that a job with a private image may be offered. A miner whose features are not known may: it shows them
    /// before it gets the offer.
    pub(crate) fn check_private_images(&self, class: ExecutorClass) -> Result<(), Exclusion> {
        match (self.features, &self.private_images) {
            (Some(features), _) if !features.has(Feature::PrivateImages) => Err(Exclusion::NoPrivateImages),
            (_, Some(executors)) if executors.count(class) == 0 => Err(Exclusion::NoPrivateExecutor),
            (_, _) => Ok(()),
        }
    }

    /// Those of `executors` executors of the class that are known to take private images.
    pub(crate) fn count_private(&self, class: ExecutorClass, executors: u32) -> u32 {
        let knows = self.last_features.unwrap_or_default().has(Feature::PrivateImages);
        match &self.last_private_images {
            Some(told) if knows => told.count(class).min(executors),
            None if knows => executors,
            Some(_) | None => 0,
        }
    }

    /// Why the miner gets no jobs for a while after its failures, and until when, if that is known; `None` if it may
    /// get jobs. `max_incidents` is the number of incidents from which it gets none.
    pub(crate) fn bench(&self, max_incidents: u32) -> Option<(Exclusion, Option<Timestamp>)> {
        if let Some(until) = self.failed_trial_until {
            return Some((Exclusion::FailedTrial, Some(until)));
        }
        let incidents = self.incidents;
        (incidents >= max_incidents).then_some((Exclusion::LostLately { incidents }, self.incidents_until))
    }

    /// Whether the miner lately failed users' jobs again and again, and more of them than it finished: it passes the
    /// validator's trials, if there are any, and not the users' jobs.
    pub(crate) fn is_doubted(&self, max_incidents: u32) -> bool {
        self.suspects >= max_incidents && self.suspects > self.done
    }

    /// Those of the announced executors that may work: as many as are proven, and one of a miner that has proven none.
    pub(crate) fn usable(&self, manifest: &Manifest, class: ExecutorClass) -> u32 {
        let announced = manifest.count(class);
        match self.proven.get(&class) {
            Some(proven) => announced.min((*proven).max(1)),
            None => announced,
        }
    }

    /// Executors of the class; without a manifest, one more than are at work.
    pub(crate) fn capacity(&self, class: ExecutorClass) -> u32 {
        match &self.manifest {
            Some(manifest) => self.usable(manifest, class),
            None => self.open_of(class).saturating_add(1),
        }
    }
}
