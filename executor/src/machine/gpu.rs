//! GPUs by their vendor's library (NVML). A machine without the library has no GPUs.
//!
//! The executor reads the state of a job's GPUs before and after the job. A GPU on which the job left processes,
//! memory or hardware errors goes into quarantine, because the next job would suffer from them.

mod library;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use muster_containers::gpu::{GpuClaim, GpuError};
use muster_process::SharedClock;
use muster_process::error::Causes;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{EventSet, Nvml};
use serde::Deserialize;
use tokio::task::{JoinHandle, spawn_blocking};

pub use self::library::GpuLibrary;

/// Which of the machine's GPUs jobs get.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuSettings {
    /// Their UUIDs; empty for all that the driver knows.
    pub devices: Vec<String>,
    /// How many a job gets; 0 for all of them.
    pub per_job: usize,
    /// The folder where all executors of this machine record which job has which GPU.
    pub claims_dir: PathBuf,
}

impl Default for GpuSettings {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            per_job: 0,
            claims_dir: muster_process::private_folder::usual_place("executor-gpus"),
        }
    }
}

/// Why a job cannot get the GPUs of its class.
#[derive(Debug, thiserror::Error)]
pub enum GpuUnavailable {
    /// The machine shows no GPU.
    #[error(
        "the job's class has a GPU and this machine shows none; see `nvidia-smi -L` and [gpus] of the configuration"
    )]
    Absent,
    /// Other jobs have them.
    #[error(transparent)]
    Claim(#[from] GpuError),
}

/// How often a GPU is read again on which something of a finished job is left.
const READINGS: u32 = 50;
/// The pause between two such readings.
const BETWEEN_READINGS: Duration = Duration::from_millis(200);
/// Errors collected at once; more would not change the verdict.
const MAX_ERRORS: usize = 64;
/// Memory that the driver itself may have taken meanwhile, in bytes.
const SLACK: u64 = 64 << 20;
/// Errors that programs can cause without a fault of the hardware: an illegal access, or a stream of commands that is
/// corrupt (32) or keeps the GPU from switching contexts (109), which any program can write. Each ends the program. A
/// GPU that they harmed is noticed after the job: it does not answer, or something of the job stays on it. Source:
/// NVIDIA's catalogue of Xid errors (docs.nvidia.com/deploy/xid-errors).
const PROGRAMS_XIDS: [u64; 8] = [13, 31, 32, 43, 45, 68, 69, 109];

/// A job's GPUs, watched until they are given back.
#[derive(Debug)]
pub struct ClaimedGpus {
    claim: GpuClaim,
    /// Dropped when the job is over, which ends the watch.
    over: mpsc::Sender<()>,
    watch: JoinHandle<Option<WatchReport>>,
}

/// A reason to put a GPU into quarantine after a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuFault {
    /// Processes that did not run before the job.
    Processes(Vec<u32>),
    /// Memory that was free before the job, in bytes.
    Memory(u64),
    /// An error of the hardware or the driver.
    Xid(u64),
    /// The GPU no longer answers.
    Silent(String),
}

/// The state of a GPU at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GpuReading {
    processes: BTreeSet<u32>,
    memory_used: u64,
}

/// A reading, or why the GPU gave none.
type ReadingResult = Result<GpuReading, String>;

/// Observations of a job's GPUs: a reading of each before the job, and their errors during it.
#[derive(Debug)]
struct WatchReport {
    before: Vec<ReadingResult>,
    /// The UUID and the Xid of each error.
    xids: Vec<(String, u64)>,
}

/// Claims the GPUs of the job with the folder `owner` and watches them. Blocks on small files; must be called inside a
/// runtime.
pub fn claim_watched(settings: &GpuSettings, owner: &Path) -> Result<ClaimedGpus, GpuUnavailable> {
    let claim = claim(settings, owner)?;
    let (over, until) = mpsc::channel();
    let uuids = claim.uuids().to_vec();
    let watch = spawn_blocking(move || watch(&uuids, &until));
    Ok(ClaimedGpus { claim, over, watch })
}

/// Claims the GPUs of a job that another process began. Nobody knows what was on them before the job, and errors may
/// have been missed: anything that is left on them after it counts against them.
pub fn claim_again(
    settings: &GpuSettings,
    uuids: &[String],
    owner: &Path,
) -> Result<ClaimedGpus, GpuUnavailable> {
    let claim = GpuClaim::take(&settings.claims_dir, uuids, owner)?;
    let (over, until) = mpsc::channel();
    let uuids = uuids.to_vec();
    let watch = spawn_blocking(move || {
        let nothing = uuids.iter().map(|_| Ok(GpuReading::default())).collect();
        let report = watch(&uuids, &until)?;
        Some(WatchReport {
            before: nothing,
            ..report
        })
    });
    Ok(ClaimedGpus { claim, over, watch })
}

/// Claims the GPUs of a job for as long as the claim lives. Blocks on small files.
fn claim(settings: &GpuSettings, owner: &Path) -> Result<GpuClaim, GpuUnavailable> {
    let known = if settings.devices.is_empty() {
        GpuLibrary::open().uuids()
    } else {
        settings.devices.clone()
    };
    if known.is_empty() {
        return Err(GpuUnavailable::Absent);
    }
    let claimed = match settings.per_job {
        0 => GpuClaim::take(&settings.claims_dir, &known, owner),
        wanted => GpuClaim::take_any(&settings.claims_dir, &known, wanted, owner),
    };
    Ok(claimed?)
}

impl ClaimedGpus {
    /// The UUIDs of the GPUs.
    pub fn uuids(&self) -> &[String] {
        self.claim.uuids()
    }

    /// Gives the GPUs back once the job's container is gone; those with a fault go into quarantine.
    pub async fn give_back(self, clock: &SharedClock) {
        drop(self.over);
        let Ok(Some(report)) = self.watch.await else {
            return;
        };
        let mut found = Vec::new();
        for _ in 0..READINGS {
            let uuids = self.claim.uuids().to_vec();
            let number = uuids.len();
            let read = spawn_blocking(move || read_all(&uuids)).await;
            // A reading that failed does not clear the GPU.
            let after = read.unwrap_or_else(|failed| vec![Err(failed.to_string()); number]);
            found = find_faults(self.claim.uuids(), &report, &after);
            if found.is_empty() {
                return;
            }
            clock.sleep(BETWEEN_READINGS).await;
        }
        for (uuid, faults) in found {
            let reason = faults
                .iter()
                .map(GpuFault::to_string)
                .collect::<Vec<_>>()
                .join("; ");
            tracing::error!(
                gpu = uuid,
                reason,
                "a job left this GPU in a bad state: it goes into quarantine"
            );
            if let Err(error) = self.claim.quarantine(&uuid, &reason) {
                tracing::error!(gpu = uuid, error = %Causes(&error), "the quarantine could not be recorded");
            }
        }
    }
}

impl fmt::Display for GpuFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processes(ids) => write!(f, "processes {ids:?} outlive the job"),
            Self::Memory(bytes) => write!(f, "{} MiB of memory stay taken", bytes >> 20),
            Self::Xid(number) => write!(f, "Xid {number}"),
            Self::Silent(reason) => write!(f, "it no longer answers: {reason}"),
        }
    }
}

/// Finds processes and memory that a job left behind on a GPU.
fn find_leftovers(before: &GpuReading, after: &GpuReading) -> Vec<GpuFault> {
    let new: Vec<_> = after.processes.difference(&before.processes).copied().collect();
    let more = after.memory_used.saturating_sub(before.memory_used);
    let processes = (!new.is_empty()).then_some(GpuFault::Processes(new));
    let memory = (more > SLACK).then_some(GpuFault::Memory(more));
    processes.into_iter().chain(memory).collect()
}

/// Whether an error concerns the GPU rather than the program.
fn is_hardware_error(xid: u64) -> bool {
    !PROGRAMS_XIDS.contains(&xid)
}

/// The GPUs that must go into quarantine, with their faults.
fn find_faults(
    uuids: &[String],
    report: &WatchReport,
    after: &[ReadingResult],
) -> Vec<(String, Vec<GpuFault>)> {
    let each = |((uuid, before), after): ((&String, &ReadingResult), &ReadingResult)| {
        let of_this = |(of, xid): &&(String, u64)| of == uuid && is_hardware_error(*xid);
        let xids = report
            .xids
            .iter()
            .filter(of_this)
            .map(|(_, xid)| GpuFault::Xid(*xid));
        let left = match (before, after) {
            (Ok(before), Ok(after)) => find_leftovers(before, after),
            (Ok(_), Err(reason)) => vec![GpuFault::Silent(reason.clone())],
            // It did not answer before the job either, so the job did not cause it.
            (Err(_), Ok(_) | Err(_)) => vec![],
        };
        (uuid.clone(), xids.chain(left).collect())
    };
    let all = uuids.iter().zip(&report.before).zip(after).map(each);
    all.filter(|(_, faults): &(_, Vec<_>)| !faults.is_empty())
        .collect()
}

/// Reads the GPUs now and collects their errors until the sender of `until` is dropped. `None` without the library.
fn watch(uuids: &[String], until: &mpsc::Receiver<()>) -> Option<WatchReport> {
    let Ok(nvml) = Nvml::init() else {
        tracing::warn!("GPUs are configured but NVML is missing: what jobs leave on them is not checked");
        return None;
    };
    let before = uuids.iter().map(|uuid| read(&nvml, uuid)).collect();
    let errors = register_errors(&nvml, uuids);
    // Nothing is ever sent: the sender is dropped when the job is over.
    let _ = until.recv();
    let xids = errors.map(|set| take_errors(&set)).unwrap_or_default();
    Some(WatchReport { before, xids })
}

/// Reads the GPUs now.
fn read_all(uuids: &[String]) -> Vec<ReadingResult> {
    match Nvml::init() {
        Ok(nvml) => uuids.iter().map(|uuid| read(&nvml, uuid)).collect(),
        Err(error) => uuids.iter().map(|_| Err(error.to_string())).collect(),
    }
}

fn read(nvml: &Nvml, uuid: &str) -> ReadingResult {
    let read = || {
        let device = nvml.device_by_uuid(uuid)?;
        let processes = device.running_compute_processes()?;
        Ok(GpuReading {
            processes: processes.into_iter().map(|process| process.pid).collect(),
            memory_used: device.memory_info()?.used,
        })
    };
    read().map_err(|error: NvmlError| error.to_string())
}

/// Has errors of the GPUs collected from now on; `None` if the library cannot do so.
fn register_errors<'a>(nvml: &'a Nvml, uuids: &[String]) -> Option<EventSet<'a>> {
    let mut set = nvml.create_event_set().ok()?;
    for uuid in uuids {
        let Ok(device) = nvml.device_by_uuid(uuid.as_str()) else {
            continue;
        };
        set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok()?;
    }
    Some(set)
}

/// Takes the errors collected so far, with the UUIDs of their GPUs.
fn take_errors(set: &EventSet<'_>) -> Vec<(String, u64)> {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_process::SystemClock;

    use super::*;

    #[test]
    fn claimed_gpus_are_those_that_the_operator_names() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = GpuSettings {
            devices: ["GPU-a", "GPU-b"].map(str::to_owned).to_vec(),
            per_job: 1,
            claims_dir: folder.path().to_owned(),
        };
        let one = claim(&settings, Path::new("/nonexistent")).unwrap();
        let two = claim(&settings, Path::new("/nonexistent")).unwrap();
        assert_eq!(
            (one.uuids(), two.uuids()),
            (&["GPU-a".to_owned()][..], &["GPU-b".to_owned()][..])
        );
        assert!(matches!(
            claim(&settings, Path::new("/nonexistent")),
            Err(GpuUnavailable::Claim(GpuError::TooFew { .. }))
        ));
        settings.per_job = 0;
        drop(two);
        assert!(matches!(
            claim(&settings, Path::new("/nonexistent")),
            Err(GpuUnavailable::Claim(GpuError::Busy(_)))
        ));
        drop(one);
        assert_eq!(
            claim(&settings, Path::new("/nonexistent")).unwrap().uuids().len(),
            2
        );
    }

    #[test]
    fn leftovers_of_a_job_on_a_gpu_are_found_and_others_processes_are_not() {
        let reading = |processes: &[u32], mib: u64| GpuReading {
            processes: processes.iter().copied().collect(),
            memory_used: mib << 20,
        };
        let before = reading(&[7], 500);
        assert_eq!(find_leftovers(&before, &before), []);
        assert_eq!(find_leftovers(&before, &reading(&[], 400)), []);
        assert_eq!(find_leftovers(&before, &reading(&[7], 564)), []);
        assert_eq!(
            find_leftovers(&before, &reading(&[7, 8, 9], 565)),
            [GpuFault::Processes(vec![8, 9]), GpuFault::Memory(65 << 20)]
        );
    }

    #[test]
    fn gpu_is_blamed_for_faults_since_the_job_began_only() {
        let uuids = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"].map(str::to_owned);
        let quiet = || Ok(GpuReading::default());
        let silent = || Err("fell off the bus".to_owned());
        let xid = |uuid: &str, xid| (uuid.to_owned(), xid);
        let report = WatchReport {
            before: vec![quiet(), quiet(), quiet(), silent()],
            xids: vec![xid("GPU-a", 31), xid("GPU-b", 48), xid("GPU-other", 79)],
        };
        let found = find_faults(&uuids, &report, &[quiet(), quiet(), silent(), silent()]);
        let expected = [
            ("GPU-b".to_owned(), vec![GpuFault::Xid(48)]),
            (
                "GPU-c".to_owned(),
                vec![GpuFault::Silent("fell off the bus".to_owned())],
            ),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_users_illegal_access_takes_no_gpu_from_its_miner() {
        for harmless in PROGRAMS_XIDS {
            assert!(!is_hardware_error(harmless), "{harmless}");
        }
        for serious in [48, 62, 63, 64, 74, 79, 95, 119] {
            assert!(is_hardware_error(serious), "{serious}");
        }
    }

    #[test]
    fn a_job_that_corrupts_its_own_commands_takes_no_gpu_away_and_one_that_harms_the_gpu_does() {
        let uuids = ["GPU-a", "GPU-b"].map(str::to_owned);
        let quiet = || Ok(GpuReading::default());
        let report = WatchReport {
            before: vec![quiet(), quiet()],
            // The numbers of `NVRM: Xid (PCI:0000:3b:00): 32, pid=4711, Channel ID 00000008 intr0 00008000` and
            // `NVRM: Xid (PCI:0000:5e:00): 109, pid=4711, name=attack, Ch 00000010, errorString CTX SWITCH TIMEOUT`.
            xids: vec![("GPU-a".to_owned(), 32), ("GPU-b".to_owned(), 109)],
        };
        assert_eq!(find_faults(&uuids, &report, &[quiet(), quiet()]), []);
        let after = [quiet(), Err("GPU is lost".to_owned())];
        let lost = vec![GpuFault::Silent("GPU is lost".to_owned())];
        assert_eq!(find_faults(&uuids, &report, &after), [("GPU-b".to_owned(), lost)]);
    }

    #[tokio::test]
    async fn gpus_are_free_again_once_they_are_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let settings = GpuSettings {
            devices: vec!["GPU-none-of-this-machine".to_owned()],
            per_job: 1,
            claims_dir: folder.path().to_owned(),
        };
        let claimed = claim_watched(&settings, Path::new("/nonexistent")).unwrap();
        assert!(claim(&settings, Path::new("/nonexistent")).is_err());
        claimed
            .give_back(&(Arc::new(SystemClock::new()) as SharedClock))
            .await;
        assert!(
            claim(&settings, Path::new("/nonexistent")).is_ok(),
            "nothing is held against a GPU that never answered"
        );
    }
}
