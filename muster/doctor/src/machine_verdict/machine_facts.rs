//! Facts about a machine, without any judgement.

use muster_protocol::ExecutorClass;
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
    /// The identity of the user's commands as text, or the reason for its absence.
    pub login: LoginFacts,
    /// The NVIDIA cards.
    pub gpu: GpuFacts,
    /// Processors and memory.
    #[serde(default)]
    pub hardware: HardwareFacts,
    /// The miner of a configuration, if one is given.
    pub miner: Option<MinerFacts>,
}

/// A miner by its configuration, held against the chain, its port and its engines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MinerFacts {
    /// The miner's hotkey; absent if its wallet cannot be used.
    pub hotkey: Option<String>,
    /// The reason for which the wallet or the chain could not be asked.
    pub error: Option<String>,
    /// The number of the subnet.
    pub netuid: u16,
    /// Whether the hotkey is registered in the subnet; absent if the chain was not asked.
    pub registered: Option<bool>,
    /// The address that the configuration announces.
    pub address: String,
    /// The address that validators read from the chain.
    pub chain_address: Option<String>,
    /// The digest of the certificate in the configured file; absent without TLS, and before the first start.
    pub certificate: Option<String>,
    /// The digest that validators read from the chain.
    pub chain_certificate: Option<String>,
    /// The reason for which nobody, or another certificate, answers at the address; absent if the miner answers there.
    pub unanswered: Option<String>,
    /// The pools that have an engine.
    pub pools: Vec<PoolFacts>,
    /// The executors that the miner starts on this machine, by pool.
    #[serde(default)]
    pub promised: Vec<PromisedExecutors>,
    /// The addresses that executors dial, if the configuration names them or the executors are elsewhere.
    #[serde(default)]
    pub dials: Vec<DialFacts>,
}

/// The executors of one pool that run on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromisedExecutors {
    /// The pool's name in the configuration; `own` for `[executor]` itself.
    pub pool: String,
    /// The class that validators are told.
    pub class: ExecutorClass,
    /// The executors at one time.
    pub count: u32,
}

/// The address at which executors of a pool find the miner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DialFacts {
    /// The names of the pools.
    pub pools: Vec<String>,
    /// The address, `ws://HOST:PORT`.
    pub address: String,
    /// Whether the executors are on other machines.
    pub is_from_elsewhere: bool,
    /// The reason for which the miner does not answer there; absent if it answers, or if nobody was asked.
    pub unanswered: Option<String>,
}

/// A pool of executors on an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFacts {
    /// The pool's name in the configuration.
    pub name: String,
    /// The engine that starts its executors.
    pub engine: String,
    /// The most executors that the configuration allows.
    pub count: u32,
    /// The executors that the engine's machines hold; absent if it does not answer.
    pub places: Option<u32>,
    /// The reason why it does not.
    pub error: Option<String>,
}

/// The Docker engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineFacts {
    /// The engine's version; absent if none answers.
    pub version: Option<String>,
    /// Whether its store knows images by their manifests alone; absent if it was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_manifest: Option<bool>,
    /// Whether it is podman.
    #[serde(default)]
    pub podman: bool,
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
    /// Whether executors of this user can give files to other users; absent where no jobs run.
    #[serde(default)]
    pub gives_files: Option<bool>,
}

/// An address on which a role is to listen.
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
    /// Whether the system keeps it in step with others; absent if it does not report that.
    pub synchronised: Option<bool>,
    /// Seconds by which it is ahead of the facilitator's, give or take one; absent if that was not asked.
    pub ahead_s: Option<i64>,
}

/// Something at the other end of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteFacts {
    /// The URL of the service.
    pub url: String,
    /// The state of the service in a few words; absent if it does not answer.
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

/// Processors and memory of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardwareFacts {
    /// The processors that this process may use.
    pub cpus: u64,
    /// Main memory in bytes.
    pub memory: u64,
}

/// The NVIDIA cards, and the way of containers to them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// The kernel has a device of NVIDIA's driver.
    pub device: bool,
    /// One line each, as the driver's own tool prints it.
    pub found: Vec<String>,
    /// Why it prints nothing.
    pub error: Option<String>,
    /// The version of NVIDIA's container toolkit, by which containers get them.
    pub toolkit: Option<String>,
}
