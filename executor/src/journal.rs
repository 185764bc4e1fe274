//! The record of a running job in its folder, by which another process takes the job over when this one ends.
//!
//! It holds the job with its environment and the addresses of its inputs and outputs, in files that only this user may
//! read, and it goes with the folder. It is not flushed to the disk: a machine that stops takes the container with it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use muster_protocol::wire::executor::LeaseHeld;
use muster_protocol::wire::executor_socket::ExecutorToMiner;
use muster_protocol::wire::miner::{InitialJobRequest, JobImage, JobRequest};
use muster_protocol::{Digest, ExecutorToken, Timestamp};
use serde::{Deserialize, Serialize};

/// Written once, before the container is created.
const JOB_FILE: &str = "job.json";
/// Written anew with every report.
const STATE_FILE: &str = "state.json";

/// The miner that a job came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum JobOrigin {
    /// The miner started this executor, and listens at `ws://host:port`.
    Started {
        /// The miner's address.
        miner_address: String,
    },
    /// This executor is enrolled at the miner with this certificate.
    Enrolled {
        /// The digest of the miner's certificate.
        miner: Digest,
    },
}

/// A job as another process needs it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JournaledJob {
    pub(crate) origin: JobOrigin,
    /// The token of the lease, which names the container.
    pub(crate) token: ExecutorToken,
    /// The offer without the login and the archive of its image, which is there.
    pub(crate) offer: InitialJobRequest,
    pub(crate) job: JobRequest,
    pub(crate) image: JobImage,
    /// The name of the container.
    pub(crate) container: String,
    /// The UUIDs of the job's GPUs.
    pub(crate) gpus: Vec<String>,
    /// When the executor got the job.
    pub(crate) job_since: Timestamp,
    /// When the program was started.
    pub(crate) started: Timestamp,
    /// The kernel's id of the machine's run in which that was; `None` in journals of earlier releases.
    #[serde(default)]
    pub(crate) boot: Option<String>,
}

impl JournaledJob {
    /// Whether the machine was started anew since.
    pub(crate) fn is_of_an_earlier_boot(&self) -> bool {
        self.boot.is_some() && self.boot != boot_id()
    }
}

/// The kernel's id of this run of the machine; `None` if the kernel does not give it. Reads a file that never blocks.
pub(crate) fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// The changing part of the journal, as it is read.
#[derive(Debug, Deserialize)]
pub(crate) struct JournaledState {
    pub(crate) held: LeaseHeld,
    /// Every report, in order.
    pub(crate) reports: Vec<ExecutorToMiner>,
    /// The last of the reports is the end of the attempt: the container is of no use any more.
    pub(crate) over: bool,
}

/// The changing part of the journal, as it is written.
#[derive(Debug, Serialize)]
pub(crate) struct StateToNote<'a> {
    pub(crate) held: &'a LeaseHeld,
    pub(crate) reports: &'a [ExecutorToMiner],
    pub(crate) over: bool,
}

/// The journal of one job, in its folder.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
}

impl Journal {
    /// Begins the journal in the folder of a job. It counts once the changing part is noted. Blocks.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn begin(folder: &Path, job: &JournaledJob) -> io::Result<Self> {
        write(&folder.join(JOB_FILE), job)?;
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// Reads the journal of a job; `None` if its executor had not begun one. Blocks.
    ///
    /// # Errors
    /// The files cannot be read, or a program of another version wrote them.
    pub(crate) fn read(folder: &Path) -> io::Result<Option<(Self, JournaledJob, JournaledState)>> {
        let (Some(job), Some(state)) = (read(&folder.join(JOB_FILE))?, read(&folder.join(STATE_FILE))?)
        else {
            return Ok(None);
        };
        let journal = Self {
            folder: folder.to_owned(),
        };
        Ok(Some((journal, job, state)))
    }

    /// Replaces the changing part, as a whole. Blocks for as long as the page cache takes.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn note(&self, state: &StateToNote<'_>) -> io::Result<()> {
        write(&self.folder.join(STATE_FILE), state)
    }
}

fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&fresh)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    fs::rename(&fresh, path)
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
