//! GPUs by their vendor's library, which is loaded when it is there and asked for nothing when it is not.
//!
//! A job's GPUs are looked at before it and after it: what it leaves behind (processes, memory, errors of the hardware) would
//! be the next job's, so such a GPU goes into quarantine.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::mpsc;
use std::time::Duration;

use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::wire::executor::{GpuMetrics, MAX_GPUS};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, spawn_blocking};

use muster_containers::gpu::{GpuClaim, GpuError};

use crate::config::GpuSettings;

/// Why a job cannot have the GPUs of its class.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoGpu {
    /// There is none.
    #[error(
        "the job's class has a GPU and this machine shows none; see `nvidia-smi -L` and [gpus] of the configuration"
    )]
    Absent,
    /// Others have them.
    #[error(transparent)]
    Claim(#[from] GpuError),
}

/// How often a GPU is looked at that has not forgotten a job that is gone.
const LOOKS: u32 = 50;
/// And how long between.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// A GPU with more errors than these is as bad as one with these.
const MAX_ERRORS: usize = 64;
/// What the driver itself may have taken meanwhile, in bytes.
const SLACK: u64 = 64 << 20;
/// Errors that programs make, not hardware: an illegal access ends the program and harms nobody after it. By
/// NVIDIA's catalogue of Xid errors (docs.nvidia.com/deploy/xid-errors).
const PROGRAMS_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 69];

/// A job's GPUs, watched until they are given back.
#[derive(Debug)]
pub(crate) struct Claimed {
    claim: GpuClaim,
    /// Dropped when the job is over.
    over: mpsc::Sender<()>,
    watch: JoinHandle<Option<Watched>>,
}

/// What is held against a GPU after a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Processes that were not there before.
    Processes(Vec<u32>),
    /// Memory that was not taken before, in bytes.
    Memory(u64),
    /// An error of the hardware or the driver.
    Xid(u64),
    /// It no longer answers.
    Silent(String),
}

/// What is seen of a GPU in a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    processes: BTreeSet<u32>,
    memory_used: u64,
}

/// What was seen, or why nothing.
type Look = Result<Seen, String>;

/// What is known of a job's GPUs when it is over: each before it, and their errors meanwhile.
#[derive(Debug)]
struct Watched {
    before: Vec<Look>,
    xids: Vec<(String, u64)>,
}

/// Claims what a job gets and watches it. Blocks on small files; to be called inside a runtime.
pub(crate) fn claim_watched(settings: &GpuSettings) -> Result<Claimed, NoGpu> {
    let claim = claim(settings)?;
    let (over, until) = mpsc::channel();
    let uuids = claim.uuids().to_vec();
    let watch = spawn_blocking(move || watch(&uuids, &until));
    Ok(Claimed { claim, over, watch })
}

/// Claims what a job gets, for as long as the claim lives. Blocks on small files.
fn claim(settings: &GpuSettings) -> Result<GpuClaim, NoGpu> {
    let known = if settings.devices.is_empty() {
        Gpus::open().uuids()
    } else {
        settings.devices.clone()
    };
    if known.is_empty() {
        return Err(NoGpu::Absent);
    }
    let claimed = match settings.per_job {
        0 => GpuClaim::take(&settings.claims_dir, &known),
        wanted => GpuClaim::take_any(&settings.claims_dir, &known, wanted),
    };
    Ok(claimed?)
}

impl Claimed {
    /// Which.
    pub(crate) fn uuids(&self) -> &[String] {
        self.claim.uuids()
    }

    /// Gives them back once the job's container is gone; what it spoilt goes into quarantine.
    pub(crate) async fn give_back(self, clock: &SharedClock) {
        drop(self.over);
        let Ok(Some(watched)) = self.watch.await else {
            return;
        };
        let mut found = Vec::new();
        for _ in 0..LOOKS {
            let uuids = self.claim.uuids().to_vec();
            let number = uuids.len();
            let looked = spawn_blocking(move || look(&uuids)).await;
            // A look that came to nothing is no clean bill of health.
            let after = looked.unwrap_or_else(|failed| vec![Err(failed.to_string()); number]);
            found = judged(self.claim.uuids(), &watched, &after);
            if found.is_empty() {
                return;
            }
            clock.sleep(BETWEEN_LOOKS).await;
        }
        for (uuid, troubles) in found {
            let reason = troubles
                .iter()
                .map(Trouble::to_string)
                .collect::<Vec<_>>()
                .join("; ");
            tracing::error!(
                gpu = uuid,
                reason,
                "a job left this GPU in a bad state: it goes into quarantine"
            );
            if let Err(error) = self.claim.quarantine(&uuid, &reason) {
                tracing::error!(gpu = uuid, error = %Causes(&error), "the quarantine could not be written down");
            }
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processes(ids) => write!(f, "processes {ids:?} outlive the job"),
            Self::Memory(bytes) => write!(f, "{} MiB of memory stay taken", bytes >> 20),
            Self::Xid(number) => write!(f, "Xid {number}"),
            Self::Silent(reason) => write!(f, "it no longer answers: {reason}"),
        }
    }
}

/// What a job left behind.
fn left_behind(before: &Seen, after: &Seen) -> Vec<Trouble> {
    let new: Vec<_> = after.processes.difference(&before.processes).copied().collect();
    let more = after.memory_used.saturating_sub(before.memory_used);
    let processes = (!new.is_empty()).then_some(Trouble::Processes(new));
    let memory = (more > SLACK).then_some(Trouble::Memory(more));
    processes.into_iter().chain(memory).collect()
}

/// Whether an error says something about the GPU rather than about the program.
fn is_hardwares(xid: u64) -> bool {
    !PROGRAMS_XIDS.contains(&xid)
}

/// What is held against which of the GPUs.
fn judged(uuids: &[String], watched: &Watched, after: &[Look]) -> Vec<(String, Vec<Trouble>)> {
    let each = |((uuid, before), after): ((&String, &Look), &Look)| {
        let of_this = |(of, xid): &&(String, u64)| of == uuid && is_hardwares(*xid);
        let xids = watched
            .xids
            .iter()
            .filter(of_this)
            .map(|(_, xid)| Trouble::Xid(*xid));
        let left = match (before, after) {
            (Ok(before), Ok(after)) => left_behind(before, after),
            (Ok(_), Err(reason)) => vec![Trouble::Silent(reason.clone())],
            // It did not answer before the job either, which is not the job's doing.
            (Err(_), Ok(_) | Err(_)) => vec![],
        };
        (uuid.clone(), xids.chain(left).collect())
    };
    let all = uuids.iter().zip(&watched.before).zip(after).map(each);
    all.filter(|(_, troubles): &(_, Vec<_>)| !troubles.is_empty())
        .collect()
}

/// Looks at the GPUs now and collects their errors until `until` ends. A machine without the library is not watched.
fn watch(uuids: &[String], until: &mpsc::Receiver<()>) -> Option<Watched> {
    let Ok(nvml) = Nvml::init() else {
        tracing::warn!(
            "GPUs are named and their library is not there: nobody looks at what jobs leave on them"
        );
        return None;
    };
    let before = uuids.iter().map(|uuid| seen(&nvml, uuid)).collect();
    let errors = listening(&nvml, uuids);
    // Nothing is ever sent: it ends with the job.
    let _ = until.recv();
    let xids = errors.map(|set| told(&set)).unwrap_or_default();
    Some(Watched { before, xids })
}

/// Looks at the GPUs now.
fn look(uuids: &[String]) -> Vec<Look> {
    match Nvml::init() {
        Ok(nvml) => uuids.iter().map(|uuid| seen(&nvml, uuid)).collect(),
        Err(error) => uuids.iter().map(|_| Err(error.to_string())).collect(),
    }
}

fn seen(nvml: &Nvml, uuid: &str) -> Look {
    let look = || {
        let device = nvml.device_by_uuid(uuid)?;
        let processes = device.running_compute_processes()?;
        Ok(Seen {
            processes: processes.into_iter().map(|process| process.pid).collect(),
            memory_used: device.memory_info()?.used,
        })
    };
    look().map_err(|error: NvmlError| error.to_string())
}

/// Collects the hardware's errors from now on; `None` where it cannot tell.
fn listening<'a>(nvml: &'a Nvml, uuids: &[String]) -> Option<EventSet<'a>> {
    let mut set = nvml.create_event_set().ok()?;
    for uuid in uuids {
        let Ok(device) = nvml.device_by_uuid(uuid.as_str()) else {
            continue;
        };
        set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok()?;
    }
    Some(set)
}

/// The errors that came, with their GPUs.
fn told(set: &EventSet<'_>) -> Vec<(String, u64)> {
    let mut errors = Vec::new();
    while let Ok(event) = set.wait(0) {
        let xid = match event.event_data {
            Some(XidError::Value(xid)) => xid,
            Some(XidError::Unknown) => 0,
            None => continue,
        };
        errors.push((event.device.uuid().unwrap_or_default(), xid));
        if errors.len() == MAX_ERRORS {
            break;
        }
    }
    errors
}

/// The library, if this machine has it.
#[derive(Debug, Default)]
pub(crate) struct Gpus(Option<Nvml>);

impl Gpus {
    /// Loads the library. A machine without one has no GPUs.
    pub(crate) fn open() -> Self {
        Self(Nvml::init().ok())
    }

    /// What each does now.
    pub(crate) fn metrics(&self) -> Vec<GpuMetrics> {
        let each = |device: &Device<'_>| {
            let memory = device.memory_info().ok();
            GpuMetrics {
                uuid: device.uuid().unwrap_or_default(),
                name: device.name().unwrap_or_default(),
                utilisation_percent: device.utilization_rates().map_or(0, |rates| rates.gpu),
                memory_total: memory.as_ref().map_or(0, |memory| memory.total),
                memory_used: memory.as_ref().map_or(0, |memory| memory.used),
                temperature_c: device.temperature(TemperatureSensor::Gpu).unwrap_or_default(),
                power_mw: device.power_usage().unwrap_or_default(),
            }
        };
        self.devices().iter().map(each).collect()
    }

    /// What they are, in ComputeHorde's field names; `None` without the library.
    ///
    /// # Errors
    /// The library is there and does not answer.
    pub(crate) fn specs(&self) -> Option<Result<Value, NvmlError>> {
        self.0.as_ref().map(|nvml| {
            let driver = nvml.sys_driver_version()?;
            let cuda = nvml.sys_cuda_driver_version()?;
            let cuda = format!("{}.{}", cuda / 1_000, cuda % 1_000 / 10);
            let each = |device: &Device<'_>| {
                Ok(json!({
                    "name": device.name()?,
                    "driver": driver,
                    // MiB, as nvidia-smi prints it.
                    "capacity": (device.memory_info()?.total >> 20).to_string(),
                    "cuda": cuda,
                    "power_limit": device.power_management_limit().map(|limit| format!("{:.2}", f64::from(limit) / 1_000.0)).ok(),
                    "graphics_speed": device.max_clock_info(Clock::Graphics).map(|mhz| mhz.to_string()).ok(),
                    "memory_speed": device.max_clock_info(Clock::Memory).map(|mhz| mhz.to_string()).ok(),
                    "uuid": device.uuid()?,
                    "serial": device.serial().ok(),
                }))
            };
            let details: Result<Vec<_>, NvmlError> = self.devices().iter().map(each).collect();
            details.map(|details| json!({"count": details.len(), "details": details}))
        })
    }

    /// The ids by which they are asked for.
    pub(crate) fn uuids(&self) -> Vec<String> {
        let uuid = |device: &Device<'_>| device.uuid().ok();
        self.devices().iter().filter_map(uuid).collect()
    }

    fn devices(&self) -> Vec<Device<'_>> {
        let Some(nvml) = &self.0 else { return vec![] };
        let count = nvml.device_count().unwrap_or_default();
        (0..count)
            .take(MAX_GPUS)
            .filter_map(|index| nvml.device_by_index(index).ok())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_process::SystemClock;

    use super::*;

    #[test]
    fn what_the_operator_names_is_claimed_all_or_so_many() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = GpuSettings {
            devices: ["GPU-a", "GPU-b"].map(str::to_owned).to_vec(),
            per_job: 1,
            claims_dir: folder.path().to_owned(),
        };
        let one = claim(&settings).unwrap();
        let two = claim(&settings).unwrap();
        assert_eq!(
            (one.uuids(), two.uuids()),
            (&["GPU-a".to_owned()][..], &["GPU-b".to_owned()][..])
        );
        assert!(matches!(
            claim(&settings),
            Err(NoGpu::Claim(GpuError::TooFew { .. }))
        ));
        settings.per_job = 0;
        drop(two);
        assert!(matches!(claim(&settings), Err(NoGpu::Claim(GpuError::Busy(_)))));
        drop(one);
        assert_eq!(claim(&settings).unwrap().uuids().len(), 2);
    }

    #[test]
    fn what_a_job_leaves_is_seen_and_what_others_do_is_not() {
        let seen = |processes: &[u32], mib: u64| Seen {
            processes: processes.iter().copied().collect(),
            memory_used: mib << 20,
        };
        let before = seen(&[7], 500);
        assert_eq!(left_behind(&before, &before), []);
        assert_eq!(left_behind(&before, &seen(&[], 400)), []);
        assert_eq!(left_behind(&before, &seen(&[7], 564)), []);
        assert_eq!(
            left_behind(&before, &seen(&[7, 8, 9], 565)),
            [Trouble::Processes(vec![8, 9]), Trouble::Memory(65 << 20)]
        );
    }

    #[test]
    fn only_what_a_job_did_is_held_against_a_gpu() {
        let uuids = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"].map(str::to_owned);
        let quiet = || Ok(Seen::default());
        let silent = || Err("fell off the bus".to_owned());
        let xid = |uuid: &str, xid| (uuid.to_owned(), xid);
        let watched = Watched {
            before: vec![quiet(), quiet(), quiet(), silent()],
            xids: vec![xid("GPU-a", 31), xid("GPU-b", 48), xid("GPU-other", 79)],
        };
        let found = judged(&uuids, &watched, &[quiet(), quiet(), silent(), silent()]);
        let expected = [
            ("GPU-b".to_owned(), vec![Trouble::Xid(48)]),
            (
                "GPU-c".to_owned(),
                vec![Trouble::Silent("fell off the bus".to_owned())],
            ),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_users_illegal_access_takes_no_gpu_from_its_miner() {
        for harmless in PROGRAMS_XIDS {
            assert!(!is_hardwares(harmless), "{harmless}");
        }
        for serious in [48, 62, 63, 64, 74, 79, 95, 119] {
            assert!(is_hardwares(serious), "{serious}");
        }
    }

    #[tokio::test]
    async fn gpus_are_free_again_once_they_are_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let settings = GpuSettings {
            devices: vec!["GPU-none-of-this-machine".to_owned()],
            per_job: 1,
            claims_dir: folder.path().to_owned(),
        };
        let claimed = claim_watched(&settings).unwrap();
        assert!(claim(&settings).is_err());
        claimed
            .give_back(&(Arc::new(SystemClock::new()) as SharedClock))
            .await;
        assert!(
            claim(&settings).is_ok(),
            "nothing is held against a GPU that never answered"
        );
    }
}
