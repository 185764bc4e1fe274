//! What was found out about a machine, without any opinion.

use serde::{Deserialize, Serialize};

/// Everything. What was not asked is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The Docker engine.
    pub engine: Engine,
    /// The disk below a folder.
    pub disk: Disk,
    /// Addresses on which roles listen.
    pub ports: Vec<Port>,
    /// The clock.
    pub clock: Clock,
    /// The chain, if one is known.
    pub chain: Option<Remote>,
    /// The facilitator, if one is known.
    pub facilitator: Option<Remote>,
    /// In whose name commands speak: words, or why there is nobody.
    pub login: Login,
    /// Graphics processors.
    pub gpu: Gpu,
}

/// The Docker engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engine {
    /// Its version; absent if none answers.
    pub version: Option<String>,
    /// Why none answers.
    pub error: Option<String>,
}

/// The disk below a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The folder.
    pub folder: String,
    /// Bytes that may still be written; absent if it cannot be found out.
    pub free: Option<u64>,
    /// Why.
    pub error: Option<String>,
}

/// An address on which a role listens by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The role.
    pub role: String,
    /// `127.0.0.1:8090`.
    pub address: String,
    /// Why it cannot be listened on; absent if it can.
    pub error: Option<String>,
}

/// The clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// Whether the system keeps it in step with others; absent if it does not say.
    pub synchronised: Option<bool>,
    /// Seconds by which it is ahead of the facilitator's, give or take one; absent if that was not asked.
    pub ahead_s: Option<i64>,
}

/// Something at the other end of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// Its URL.
    pub url: String,
    /// What it says of itself; absent if it does not answer.
    pub says: Option<String>,
    /// Why it does not.
    pub error: Option<String>,
}

/// In whose name commands speak.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// A hotkey, or an API key; never the key itself.
    pub whom: Option<String>,
    /// Why there is nobody.
    pub error: Option<String>,
}

/// Graphics processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// The kernel has a device of NVIDIA's driver.
    pub device: bool,
    /// One line each, as the driver's own tool says it.
    pub found: Vec<String>,
    /// Why it says nothing.
    pub error: Option<String>,
    /// The version of NVIDIA's container toolkit, by which containers get them.
    pub toolkit: Option<String>,
}
