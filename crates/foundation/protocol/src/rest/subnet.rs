//! Bodies about the subnet: what its miners offer now.

use serde::{Deserialize, Serialize};

use crate::class::ExecutorClass;
use crate::keys::{MinerKey, ValidatorKey};
use crate::time::Timestamp;
use crate::wire::machines::{MinerClaims, ProvenClass};
use crate::wire::muster::JobLimits;

/// `GET /api/v1/subnet/`: what the miners of each validator offer now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SubnetCapacity {
    /// One entry for each validator that takes jobs and has told its capacity lately.
    pub results: Vec<ValidatorCapacity>,
}

/// `GET /api/v1/miners/{miner}/`: a miner's machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MinerView {
    /// The miner's hotkey.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub miner: MinerKey,
    /// One entry for each validator that takes jobs and has told of the miner within a day.
    pub results: Vec<MinerReport>,
}

/// The newest message of one validator about a miner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MinerReport {
    /// The validator that told of the miner.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub validator: ValidatorKey,
    /// The time at which the facilitator learned of it.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub told_at: Timestamp,
    /// The facts that the validator proved by its own challenges.
    pub proven: Vec<ProvenClass>,
    /// The miner's own word, which nobody has checked.
    pub claims: MinerClaims,
}

/// The offers of one validator's miners, as the validator last told them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ValidatorCapacity {
    /// The validator to name in `target_validator_hotkey`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub validator: ValidatorKey,
    /// The time at which the facilitator learned of the offers.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub told_at: Timestamp,
    /// The limits of a job.
    pub limits: JobLimits,
    /// The classes that are offered or waited for.
    pub classes: Vec<ClassOffer>,
}

/// The offer of one class of executor, and the place that the caller's next job would get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClassOffer {
    /// The class to name in `executor_class`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub class: ExecutorClass,
    /// The hardware of the most of these executors, as their miners tell it; null if none has told it. It has the words
    /// `watched disk` if an executor is known to have no disk of a fixed size.
    pub hardware: Option<String>,
    /// Miners that offer the class.
    pub miners: u32,
    /// Their executors of the class.
    pub executors: u32,
    /// Those of the executors that would be asked now. They may be at work for another validator.
    pub free: u32,
    /// Jobs of the validator that run on these executors.
    pub running: u32,
    /// Those of the executors that take images from archives or with a login, as far as is known.
    pub private_images: u32,
    /// Jobs that wait for the class.
    pub waiting: u64,
    /// Jobs that would start before the caller's next one, at most.
    pub ahead: u64,
    /// Seconds until the caller's next job is likely to start; null if that is unknown.
    pub estimate_s: Option<u64>,
    /// The reason why the jobs of the class wait, in words; empty if none waits or the reason is unknown.
    pub why: String,
}

/// The part of [`ClassOffer::hardware`] that stands for executors without disks of a fixed size.
pub const WATCHED_DISK: &str = "watched disk";

/// The meaning of [`WATCHED_DISK`], for a user who chooses a class.
pub const WATCHED_DISK_NOTE: &str = "some executors have a watched disk: they give no files away, so what an image \
keeps below its volumes, /tmp and its home may belong to another user there, and a job's disk is bounded by measuring it";

impl ClassOffer {
    /// Whether an executor of the class is known to have a disk of no fixed size.
    pub fn has_watched_disks(&self) -> bool {
        let hardware = self.hardware.as_deref();
        hardware.is_some_and(|hardware| hardware.contains(WATCHED_DISK))
    }
}
