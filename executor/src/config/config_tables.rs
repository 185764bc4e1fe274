//! The tables of an executor's configuration.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use muster_protocol::ExecutorClass;
use serde::Deserialize;

/// The most that [`ArtifactLimits::max_total_mib`] may be: a result travels in one frame.
pub const MAX_ARTIFACTS_MIB: u64 = 16;

/// How streaming jobs are reached, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamingSettings {
    /// The address of this machine on which sessions listen.
    pub address: IpAddr,
    /// The first of the ports for sessions, which take one each; 0 for any free port.
    pub first_port: u16,
    /// The last of the ports for sessions.
    pub last_port: u16,
    /// A sealed session is over after this many seconds without a request; 0 for no limit.
    pub idle_s: u64,
    /// How many requests one session serves at once.
    pub max_requests: usize,
}

/// Settings of a persistent executor, which stays connected to the miner that enrolled it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PersistentSettings {
    /// The file that enrolling writes: this executor's key, and the fingerprint of its miner.
    pub membership: PathBuf,
    /// The class that the miner enrolled it with.
    pub class: ExecutorClass,
    /// How many jobs it runs at once, 1 to 64.
    pub capacity: u32,
    /// Containers that wait for jobs.
    pub warm: WarmSettings,
}

/// Containers that a persistent executor starts before a job needs them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WarmSettings {
    /// How many containers wait at most; 0 for none.
    pub containers: usize,
    /// The program that holds them; empty for the `muster-hold` that came with this program.
    pub holder: PathBuf,
    /// A container is removed after waiting this many seconds.
    pub keep_s: u64,
}

/// How large inputs may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VolumeLimits {
    /// All files together, unpacked, in MiB.
    pub max_mib: u64,
    /// Files and folders.
    pub max_entries: usize,
}

/// How much output travels inside a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ArtifactLimits {
    /// All files together, in MiB before encoding, names included; at most [`MAX_ARTIFACTS_MIB`]. Each must also be
    /// smaller than 1 000 000 bytes.
    pub max_total_mib: u64,
}

impl Default for StreamingSettings {
    fn default() -> Self {
        Self {
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            first_port: 0,
            last_port: 0,
            idle_s: 3_600,
            max_requests: 1_024,
        }
    }
}

impl Default for PersistentSettings {
    fn default() -> Self {
        Self {
            membership: PathBuf::from("executor-membership.json"),
            class: ExecutorClass::AlwaysOnTest,
            capacity: 1,
            warm: WarmSettings::default(),
        }
    }
}

impl Default for WarmSettings {
    fn default() -> Self {
        Self {
            containers: 1,
            holder: PathBuf::new(),
            keep_s: 600,
        }
    }
}

impl Default for VolumeLimits {
    fn default() -> Self {
        Self {
            max_mib: 2_048,
            max_entries: 100_000,
        }
    }
}

impl Default for ArtifactLimits {
    fn default() -> Self {
        Self { max_total_mib: 8 }
    }
}
