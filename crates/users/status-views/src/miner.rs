//! The status of a miner.

use muster_protocol::wire::executor::GpuMetrics;
use muster_protocol::wire::machines::{MAX_MACHINE_TEXT, MachineLoad};
use muster_protocol::wire::muster::ListedImage;
use muster_protocol::{MinerKey, Receipt, ReceiptPayload, Timestamp};
use serde::{Deserialize, Serialize};

/// `GET /v0/state` at the miner's operator address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MinerStatus {
    /// The miner's hotkey.
    pub miner: MinerKey,
    /// The time of the answer by the miner's clock.
    pub time: Timestamp,
    /// The miner's release.
    pub version: String,
    /// Whether offers are declined because the miner is being emptied.
    pub draining: bool,
    /// Validators that are served or connected, the connected ones first.
    pub validators: Vec<ServedValidator>,
    /// Places for jobs of executors that the miner starts itself.
    pub started: Places,
    /// The pools of executors that the miner starts; none of a miner of an earlier release.
    #[serde(default)]
    pub pools: Vec<PoolStatus>,
    /// Places for jobs of enrolled executors that are connected.
    pub persistent: Places,
    /// The machines of persistent executors, by name.
    pub machines: Vec<MachineStatus>,
    /// Open leases, the oldest first; at most [`MAX_LISTED`].
    pub leases: Vec<LeaseView>,
    /// Open leases beyond those.
    pub more_leases: u64,
    /// The newest ends of leases since the process began, the newest first; at most [`MAX_LISTED`].
    pub ended: Vec<EndedLease>,
    /// The newest declined offers since the process began, the newest first; at most [`MAX_LISTED`].
    pub declines: Vec<DeclinedOffer>,
    /// The miner's earnings by validator in finished receipts that are in the store, the largest first.
    pub earnings: Vec<Earnings>,
    /// The newest finished receipts with both signatures, the newest first; at most [`MAX_LISTED`].
    #[serde(default)]
    pub receipts: Vec<PaidReceipt>,
    /// The images that validators list for their sessions, which executors of the class keep.
    #[serde(default)]
    pub images: Vec<WantedImage>,
    /// The grades that validators state about this miner, by validator; none of a miner of an earlier release.
    #[serde(default)]
    pub grades: Vec<ValidatorGrades>,
}

/// The most entries of each list of a status.
pub const MAX_LISTED: usize = 200;

/// The most samples of a machine's history.
pub const MAX_SAMPLES: usize = 120;

/// A validator of a miner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedValidator {
    /// The validator's hotkey.
    pub validator: String,
    /// Its open connections.
    pub sessions: u64,
    /// Whether the miner serves it.
    pub served: bool,
}

/// A pool of executors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// The name in the miner's configuration.
    pub name: String,
    /// The class of all its executors.
    pub class: String,
    /// The engine that starts them.
    pub engine: String,
    /// The executors that there is a place for now, and those that are started or run.
    pub places: Places,
    /// The executors that wait for a machine or an image, each with its attempt and the engine's reason.
    pub waiting: Vec<(String, String)>,
    /// The engine's fault, if it does not answer.
    pub fault: Option<String>,
}

/// Places for jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// The most jobs at once.
    pub all: u32,
    /// Those that are taken.
    pub busy: u32,
}

/// The machine of a persistent executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineStatus {
    /// Its newest measurement.
    pub load: MachineLoad,
    /// Its GPUs in the same measurement.
    pub gpus: Vec<GpuStatus>,
    /// Earlier measurements, the oldest first; at most [`MAX_SAMPLES`].
    pub history: Vec<MachineSample>,
}

/// A GPU of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// The model of the card.
    pub name: String,
    /// Its load in percent.
    pub percent: u32,
    /// Its temperature in degrees Celsius; 0 where the card does not report it.
    pub celsius: u32,
    /// Its power in milliwatts; 0 where the card does not report it.
    pub milliwatts: u32,
    /// Its memory, in bytes.
    pub memory_total: u64,
    /// Its memory in use, in bytes.
    pub memory_used: u64,
}

impl From<&GpuMetrics> for GpuStatus {
    fn from(gpu: &GpuMetrics) -> Self {
        Self {
            name: gpu.name.chars().take(MAX_MACHINE_TEXT).collect(),
            percent: gpu.utilisation_percent,
            celsius: gpu.temperature_c,
            milliwatts: gpu.power_mw,
            memory_total: gpu.memory_total,
            memory_used: gpu.memory_used,
        }
    }
}

/// A measurement of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSample {
    /// The time by the miner's clock.
    pub at: Timestamp,
    /// Processor load in thousandths.
    pub cpu_permille: u32,
    /// Mean load of the GPUs in percent; 0 without one.
    pub gpu_percent: u32,
    /// The highest temperature of the GPUs in degrees Celsius; 0 if none reports it.
    pub gpu_celsius: u32,
}

/// An open lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// The attempt's id on the wire.
    pub attempt: String,
    /// The validator that offered it.
    pub validator: String,
    /// The class of executor.
    pub class: String,
    /// The state of the lease, as `working`.
    pub state: String,
    /// The time at which it ends unless something happens before.
    pub deadline: Timestamp,
}

/// A lease that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLease {
    /// The time of the end.
    pub at: Timestamp,
    /// The attempt's id on the wire.
    pub attempt: String,
    /// How it ended: `finished`, `failed`, `horde_failed` or `cancelled`.
    pub end: String,
    /// The reason of a failure as text.
    pub message: String,
}

/// An offer that was declined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclinedOffer {
    /// The time of the decline.
    pub at: Timestamp,
    /// The attempt's id on the wire.
    pub attempt: String,
    /// The reason on the wire.
    pub reason: String,
    /// The reason as text.
    pub message: String,
}

/// Earnings from one validator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Earnings {
    /// The validator's hotkey.
    pub validator: String,
    /// The number of finished receipts.
    pub receipts: u64,
    /// Executor-microseconds that they pay.
    pub micros: u64,
    /// The time of the newest.
    pub newest: Timestamp,
}

/// A finished receipt that both parties have signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaidReceipt {
    /// The time of the receipt.
    pub at: Timestamp,
    /// The attempt's id on the wire.
    pub attempt: String,
    /// The validator's hotkey.
    pub validator: String,
    /// Executor-microseconds that it pays.
    pub micros: u64,
}

/// An image that a validator lists for its sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedImage {
    /// The digest of the image's configuration.
    pub image: String,
    /// The reference by which an executor fetches it; `None` if the operator has to bring it.
    pub reference: Option<String>,
    /// The class of executor that keeps it.
    pub class: String,
    /// The model that the image serves.
    pub model: String,
}

// === impl PaidReceipt, WantedImage ===

impl PaidReceipt {
    /// The row of a finished receipt; `None` for another kind.
    pub fn of(receipt: &Receipt) -> Option<Self> {
        let ReceiptPayload::Finished(finished) = &receipt.payload else {
            return None;
        };
        Some(Self {
            at: finished.timestamp,
            attempt: receipt.payload.attempt().to_string(),
            validator: finished.validator_hotkey.to_string(),
            micros: finished.score_micros().unwrap_or(0),
        })
    }
}

impl From<&ListedImage> for WantedImage {
    fn from(listed: &ListedImage) -> Self {
        let short = |text: &str| text.chars().take(MAX_MACHINE_TEXT).collect();
        Self {
            image: listed.image.to_string(),
            reference: listed.reference.as_deref().map(short),
            class: listed.class.to_string(),
            model: short(&listed.model),
        }
    }
}

/// The grades that one validator states about this miner, in a statement that it has signed and serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidatorGrades {
    /// The validator's hotkey.
    pub validator: String,
    /// The cycle that the statement is for; `None` without a statement.
    pub cycle: Option<u64>,
    /// The time at which the statement was read, or looked for.
    pub read_at: Timestamp,
    /// The reason for which there are no grades; empty if there are some.
    pub reason: String,
    /// The grades by class and kind of probe.
    pub grades: Vec<PublishedGrade>,
}

/// The grade of a miner's executors of one class by one kind of probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedGrade {
    /// The class of executor.
    pub class: String,
    /// `announced` or `unannounced`.
    pub kind: String,
    /// The executors that are proven.
    pub executors: u32,
    /// The credit of what they showed, in thousandths of an executor.
    pub credit: u64,
    /// Offers of the last seven days that were within the manifest and the proven executors.
    pub offers: u32,
    /// Those of them that the miner refused without an excuse.
    pub refused: u32,
    /// The newest probes behind it, the newest first; at most [`MAX_PROBES`].
    pub probes: Vec<PublishedProbe>,
}

/// The most probes of one grade.
pub const MAX_PROBES: usize = 8;

/// One probe of the miner's executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedProbe {
    /// The time of the probe.
    pub at: Timestamp,
    /// The executors in the miner's manifest then; 0 if the validator does not state it.
    pub announced: u32,
    /// The executors that showed themselves.
    pub shown: u32,
    /// The executors that were excused because they were at work.
    pub excused: u32,
    /// The credit of what they showed, in thousandths of an executor.
    pub credit: u64,
}
