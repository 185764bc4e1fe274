//! The reasons why a miner is not asked for a job.

use std::fmt;

use muster_protocol::Rao;
use serde::{Deserialize, Serialize};

/// The reason why a miner is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Exclusion {
    /// The miner has announced no address on the chain.
    NoAxon,
    /// The miner's address cannot be dialled: unspecified, multicast, or port 0.
    BadAxon,
    /// The neuron is this validator itself.
    OwnHotkey,
    /// This validator's operator gives the miner no jobs.
    Blacklisted,
    /// The miner has deposited less collateral than this validator asks for.
    CollateralTooLow {
        /// The miner's deposit.
        held: Rao,
        /// The least deposit of a miner that gets jobs.
        required: Rao,
    },
    /// The miner's hotkey is not associated with an address that could hold a deposit.
    NoCollateralAccount {
        /// The least deposit of a miner that gets jobs.
        required: Rao,
    },
    /// This validator does not know the miner's collateral now.
    CollateralUnknown {
        /// Age of the last reading in seconds; `None` if no reading shows the miner.
        age_s: Option<u64>,
    },
    /// The miner has already had an attempt at this job.
    AlreadyTried,
    /// The job's image did not come to another miner of the same owner.
    SameOwner,
    /// The miner's last manifest has no executor of the class.
    ClassNotOffered,
    /// The job's image comes from an archive or with a login, and the miner has not shown the feature `private-images`.
    NoPrivateImages,
    /// The job's image comes from an archive or with a login, and no executor of the class at the miner has shown the
    /// feature `private-images`.
    NoPrivateExecutor,
    /// All the miner's executors of the class are at work for this validator.
    Busy {
        /// Attempts under way at the miner.
        open: u32,
        /// Executors of the class in its manifest.
        capacity: u32,
    },
    /// The blocks that this validator may still name at the miner are not worth the job's time.
    AllowanceTooThin {
        /// Seconds of an executor that would be paid.
        left_s: u64,
        /// Seconds that this job and those under way may take.
        needed_s: u64,
    },
    /// The miner recently reported that no executor of the class is free.
    FullLately,
    /// The miner recently reported that it takes only shorter jobs of the class.
    TooLongLately {
        /// The longest job that it takes, in seconds of an executor.
        longest_s: u64,
    },
    /// The miner failed too many attempts recently.
    LostLately {
        /// Number of recent incidents.
        incidents: u32,
    },
    /// The miner failed this validator's trials, and has not passed one since.
    FailedTrial,
}

impl Exclusion {
    /// Whether the reason may end while a job waits. The other reasons hold for as long as the subnet, the operator's
    /// rules and the miner's manifest stay as they are.
    pub const fn is_passing(self) -> bool {
        match self {
            Self::Busy { .. }
            | Self::AllowanceTooThin { .. }
            | Self::FullLately
            | Self::TooLongLately { .. }
            | Self::LostLately { .. }
            | Self::FailedTrial
            | Self::CollateralUnknown { .. } => true,
            Self::NoAxon
            | Self::BadAxon
            | Self::OwnHotkey
            | Self::Blacklisted
            | Self::CollateralTooLow { .. }
            | Self::NoCollateralAccount { .. }
            | Self::AlreadyTried
            | Self::SameOwner
            | Self::ClassNotOffered
            | Self::NoPrivateImages
            | Self::NoPrivateExecutor => false,
        }
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAxon => f.write_str("no axon on the chain"),
            Self::BadAxon => f.write_str("its axon is not an address that may be dialled (dial.allow)"),
            Self::OwnHotkey => f.write_str("it is this validator's own hotkey"),
            Self::Blacklisted => f.write_str("this validator's operator gives it no jobs"),
            Self::CollateralTooLow { held, required } => {
                write!(
                    f,
                    "it has deposited {held} as collateral, and {required} is required"
                )
            }
            Self::NoCollateralAccount { required } => write!(
                f,
                "its hotkey is associated with no EVM address, so it has no collateral, and {required} is required"
            ),
            Self::CollateralUnknown { age_s: None } => {
                f.write_str("its collateral is required and has not been read yet")
            }
            Self::CollateralUnknown { age_s: Some(age) } => write!(
                f,
                "its collateral is required and not known: the source last answered {age} s ago"
            ),
            Self::AlreadyTried => f.write_str("it was already asked for this job"),
            Self::SameOwner => f.write_str("the job's image did not come to another miner of its owner"),
            Self::ClassNotOffered => f.write_str("its manifest has no executor of this class"),
            Self::NoPrivateImages => {
                f.write_str("it does not know private-images, which this job's image needs")
            }
            Self::NoPrivateExecutor => f.write_str(
                "no executor of this class there knows private-images, which this job's image needs",
            ),
            Self::Busy { open, capacity } => {
                write!(f, "{open} of its {capacity} executors are at work for us")
            }
            Self::AllowanceTooThin { left_s, needed_s } => write!(
                f,
                "this validator's stake pays for {left_s} s more there, and the job may take {needed_s} s"
            ),
            Self::FullLately => {
                f.write_str("it said a moment ago that it has no executor of this class free")
            }
            Self::TooLongLately { longest_s } => write!(
                f,
                "it said a moment ago that a job of this class may take {longest_s} s there"
            ),
            Self::LostLately { incidents } => write!(f, "it failed {incidents} attempts lately"),
            Self::FailedTrial => f.write_str("it failed this validator's own trials lately"),
        }
    }
}
