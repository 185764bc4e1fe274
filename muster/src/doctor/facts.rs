//! What was found out about a machine, without any opinion.

use serde::{Deserialize, Serialize};

/// Everything. What was not asked is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// The Docker engine.
    pub(crate) engine: Engine,
    /// The disk below a folder.
    pub(crate) disk: Disk,
    /// Addresses on which roles listen.
    pub(crate) ports: Vec<Port>,
    /// The clock.
    pub(crate) clock: Clock,
    /// The chain, if one is known.
    pub(crate) chain: Option<Remote>,
    /// The facilitator, if one is known.
    pub(crate) facilitator: Option<Remote>,
    /// In whose name commands speak: words, or why there is nobody.
    pub(crate) login: Login,
    /// Graphics processors.
    pub(crate) gpu: Gpu,
}

/// The Docker engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Engine {
    /// Its version; absent if none answers.
    pub(crate) version: Option<String>,
    /// Why none answers.
    pub(crate) error: Option<String>,
}

/// The disk below a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    /// The folder.
    pub(crate) folder: String,
    /// Bytes that may still be written; absent if it cannot be found out.
    pub(crate) free: Option<u64>,
    /// Why.
    pub(crate) error: Option<String>,
}

/// An address on which a role listens by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Port {
    /// The role.
    pub(crate) role: String,
    /// `127.0.0.1:8090`.
    pub(crate) address: String,
    /// Why it cannot be listened on; absent if it can.
    pub(crate) error: Option<String>,
}

/// The clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Clock {
    /// Whether the system keeps it in step with others; absent if it does not say.
    pub(crate) synchronised: Option<bool>,
    /// Seconds by which it is ahead of the facilitator's, give or take one; absent if that was not asked.
    pub(crate) ahead_s: Option<i64>,
}

/// Something at the other end of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remote {
    /// Its URL.
    pub(crate) url: String,
    /// What it says of itself; absent if it does not answer.
    pub(crate) says: Option<String>,
    /// Why it does not.
    pub(crate) error: Option<String>,
}

/// In whose name commands speak.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Login {
    /// A hotkey, or an API key; never the key itself.
    pub(crate) whom: Option<String>,
    /// Why there is nobody.
    pub(crate) error: Option<String>,
}

/// Graphics processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gpu {
    /// The kernel has a device of NVIDIA's driver.
    pub(crate) device: bool,
    /// One line each, as the driver's own tool says it.
    pub(crate) found: Vec<String>,
    /// Why it says nothing.
    pub(crate) error: Option<String>,
    /// The version of NVIDIA's container toolkit, by which containers get them.
    pub(crate) toolkit: Option<String>,
}
