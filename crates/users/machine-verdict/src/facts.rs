//! Facts about a machine, without any judgement.

use serde::{Deserialize, Serialize};

/// All facts. A fact that was not gathered is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// The Docker engine.
    pub engine: EngineFacts,
    /// The disk below a folder.
    pub disk: DiskFacts,
    /// Addresses on which roles listen.
    pub ports: Vec<PortFacts>,
    /// The state of the clock.
    pub clock: ClockFacts,
    /// The chain, if one is known.
    pub chain: Option<RemoteFacts>,
    /// The facilitator, if one is known.
    pub facilitator: Option<RemoteFacts>,
    /// The identity of the user's commands in words, or the reason for its absence.
    pub login: LoginFacts,
    /// The NVIDIA cards.
    pub gpu: GpuFacts,
}

/// The Docker engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineFacts {
    /// The engine's version; absent if none answers.
    pub version: Option<String>,
    /// The reason why none answers.
    pub error: Option<String>,
}

/// The disk below a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskFacts {
    /// The folder whose disk was checked.
    pub folder: String,
    /// Bytes that may still be written; absent if it cannot be found out.
    pub free: Option<u64>,
    /// The reason why it cannot be found out.
    pub error: Option<String>,
    /// Whether executors can give each job a file system of a fixed size there; absent if that was not tried.
    pub sized: Option<bool>,
    /// The reason why they cannot.
    pub unsized_because: Option<String>,
}

/// An address on which a role listens by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortFacts {
    /// The role that listens there by default.
    pub role: String,
    /// The address, such as `127.0.0.1:8090`.
    pub address: String,
    /// Why it cannot be listened on; absent if it can.
    pub error: Option<String>,
}

/// The state of the machine's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockFacts {
    /// Whether the system keeps it in step with others; absent if it does not say.
    pub synchronised: Option<bool>,
    /// Seconds by which it is ahead of the facilitator's, give or take one; absent if that was not asked.
    pub ahead_s: Option<i64>,
}

/// Something at the other end of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteFacts {
    /// The URL of the service.
    pub url: String,
    /// The service's own description; absent if it does not answer.
    pub says: Option<String>,
    /// Why it does not.
    pub error: Option<String>,
}

/// In whose name commands speak.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginFacts {
    /// A hotkey, or an API key; never the key itself.
    pub whom: Option<String>,
    /// Why there is nobody.
    pub error: Option<String>,
}

/// The NVIDIA cards, and the way of containers to them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// The kernel has a device of NVIDIA's driver.
    pub device: bool,
    /// One line each, as the driver's own tool says it.
    pub found: Vec<String>,
    /// Why it says nothing.
    pub error: Option<String>,
    /// The version of NVIDIA's container toolkit, by which containers get them.
    pub toolkit: Option<String>,
}
