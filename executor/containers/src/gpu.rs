//! Exclusive claims on GPUs, shared by all executors of a machine.
//!
//! Each UUID has a file in a folder that the machine's executors share, and the lock on that file is the claim on the
//! GPU. The kernel releases the lock when the process ends; the file names the job's folder, so that the GPU stays with
//! a job that another process may take over. A GPU that a job left in a bad state has a second file
//! with the reason: it cannot be claimed until an operator has looked at it and removed that file.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// The longest path of an owner, in bytes.
const MAX_OWNER: u64 = 4_096;

/// A claim on GPUs, released on drop.
#[derive(Debug)]
pub struct GpuClaim {
    folder: PathBuf,
    uuids: Vec<String>,
    locks: Vec<File>,
}

/// A failed claim.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// Another job holds one of the GPUs.
    #[error("the GPU {0} is in use by another job of this machine")]
    Busy(String),
    /// Fewer GPUs are free than are wanted.
    #[error("{wanted} GPUs are wanted, and only {free} of this machine's are free{}", quarantine_note(*quarantined))]
    TooFew {
        /// Number of GPUs that the job needs.
        wanted: usize,
        /// Number of GPUs that were free.
        free: usize,
        /// Number of GPUs in quarantine.
        quarantined: usize,
    },
    /// A job left the GPU in a bad state.
    #[error("the GPU {uuid} is in quarantine: {reason}. Look at it, reset it if need be, and remove {path}")]
    Quarantined {
        /// The GPU's UUID.
        uuid: String,
        /// The reason that the quarantining executor recorded.
        reason: String,
        /// The quarantine file, which an operator removes.
        path: PathBuf,
    },
    /// The text is no UUID of a GPU.
    #[error("{0:?} is not the UUID of a GPU; `nvidia-smi -L` lists them")]
    Uuid(String),
    /// The folder of claims cannot be used.
    #[error("the claims on GPUs cannot be recorded in {path}; the folder must be writable by the executor")]
    Folder {
        /// Path of the folder or the file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl GpuClaim {
    /// Claims all of the GPUs or none, for the job with the folder `owner`.
    ///
    /// # Errors
    /// A GPU is in use or in quarantine, or a text is not a UUID.
    pub fn take(folder: &Path, uuids: &[String], owner: &Path) -> Result<Self, GpuError> {
        let mut claim = Self::none(folder);
        for uuid in sort_unique(uuids) {
            let Some(lock) = try_lock(folder, &uuid, owner)? else {
                return Err(GpuError::Busy(uuid));
            };
            if let Some(reason) = read_quarantine(folder, &uuid)? {
                let path = quarantine_file(folder, &uuid);
                return Err(GpuError::Quarantined { uuid, reason, path });
            }
            claim.add(uuid, lock);
        }
        Ok(claim)
    }

    /// Claims any `wanted` of the GPUs that are free, for the job with the folder `owner`.
    ///
    /// # Errors
    /// Fewer are free, or a text is not a UUID.
    pub fn take_any(folder: &Path, uuids: &[String], wanted: usize, owner: &Path) -> Result<Self, GpuError> {
        let mut claim = Self::none(folder);
        let mut out = 0;
        for uuid in sort_unique(uuids) {
            if claim.uuids.len() == wanted {
                break;
            }
            let Some(lock) = try_lock(folder, &uuid, owner)? else {
                continue;
            };
            if read_quarantine(folder, &uuid)?.is_some() {
                out += 1;
            } else {
                claim.add(uuid, lock);
            }
        }
        let free = claim.uuids.len();
        if free < wanted {
            return Err(GpuError::TooFew {
                wanted,
                free,
                quarantined: out,
            });
        }
        Ok(claim)
    }

    /// Puts a claimed GPU into quarantine: it cannot be claimed until the file with `reason` is removed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn quarantine(&self, uuid: &str, reason: &str) -> Result<(), GpuError> {
        if !self.uuids.iter().any(|claimed| claimed == uuid) {
            return Err(GpuError::Uuid(uuid.chars().take(100).collect()));
        }
        let path = quarantine_file(&self.folder, uuid);
        std::fs::write(&path, reason).map_err(|source| GpuError::Folder { path, source })
    }

    fn none(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            uuids: Vec::new(),
            locks: Vec::new(),
        }
    }

    fn add(&mut self, uuid: String, lock: File) {
        self.uuids.push(uuid);
        self.locks.push(lock);
    }

    /// The UUIDs of the claimed GPUs, for [`crate::sandbox::Gpus::Selected`].
    pub fn uuids(&self) -> &[String] {
        &self.uuids
    }
}

fn quarantine_note(quarantined: usize) -> String {
    match quarantined {
        0 => String::new(),
        some => format!("; {some} are in quarantine"),
    }
}

fn quarantine_file(folder: &Path, uuid: &str) -> PathBuf {
    folder.join(format!("{uuid}.quarantine"))
}

/// The reason for the quarantine of a GPU, if it is in quarantine.
fn read_quarantine(folder: &Path, uuid: &str) -> Result<Option<String>, GpuError> {
    let path = quarantine_file(folder, uuid);
    match std::fs::read_to_string(&path) {
        Ok(reason) => Ok(Some(reason.trim().chars().take(1_000).collect())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(GpuError::Folder { path, source }),
    }
}

/// Sorts the UUIDs, so that two processes that want the same GPUs do not each claim half of them.
fn sort_unique(uuids: &[String]) -> Vec<String> {
    let mut sorted = uuids.to_vec();
    sorted.sort();
    sorted.dedup();
    sorted
}

/// The lock on one GPU; `None` if another process holds it, or if the last owner's folder is still there: its container
/// may run on.
fn try_lock(folder: &Path, uuid: &str, owner: &Path) -> Result<Option<File>, GpuError> {
    if !is_uuid(uuid) {
        return Err(GpuError::Uuid(uuid.chars().take(100).collect()));
    }
    let failed = |source| GpuError::Folder {
        path: folder.to_owned(),
        source,
    };
    muster_process::private_folder::create(folder).map_err(failed)?;
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(folder.join(format!("{uuid}.gpu")))
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    let last = read_owner(&file).map_err(failed)?;
    if last.as_deref().is_some_and(|last| last != owner && last.exists()) {
        return Ok(None);
    }
    write_owner(&file, owner).map_err(failed)?;
    Ok(Some(file))
}

/// The folder of the job that claimed a GPU last; `None` if it gave the GPU back.
fn read_owner(mut file: &File) -> io::Result<Option<PathBuf>> {
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(MAX_OWNER).read_to_end(&mut text)?;
    Ok((!text.is_empty()).then(|| PathBuf::from(OsString::from_vec(text))))
}

fn write_owner(mut file: &File, owner: &Path) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(owner.as_os_str().as_bytes())
}

impl Drop for GpuClaim {
    fn drop(&mut self) {
        for lock in &self.locks {
            // With the name of a folder that is gone the GPU is as free as without it.
            let _ = lock.set_len(0);
        }
    }
}

/// Whether a text is `GPU-` or, for a slice of a GPU, `MIG-`, then letters, digits and dashes.
pub fn is_uuid(text: &str) -> bool {
    let rest = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
    rest.is_some_and(|rest| {
        (1..=64).contains(&rest.len())
            && rest
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_belongs_to_one_job_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let take = |uuids: &[&str]| {
            let uuids: Vec<_> = uuids.iter().map(|&uuid| uuid.to_owned()).collect();
            GpuClaim::take(folder.path(), &uuids, Path::new("/nonexistent"))
        };
        let one = take(&["GPU-a", "GPU-a"]).unwrap();
        assert_eq!(one.uuids(), ["GPU-a"]);
        assert!(matches!(take(&["GPU-b", "GPU-a"]), Err(GpuError::Busy(uuid)) if uuid == "GPU-a"));
        let other = take(&["GPU-b"]).unwrap();
        let all = ["GPU-a", "GPU-b", "GPU-c"].map(str::to_owned);
        let any = |wanted| GpuClaim::take_any(folder.path(), &all, wanted, Path::new("/nonexistent"));
        assert!(matches!(
            any(2),
            Err(GpuError::TooFew {
                wanted: 2,
                free: 1,
                quarantined: 0
            })
        ));
        assert_eq!(any(1).unwrap().uuids(), ["GPU-c"]);
        drop((one, other));
        assert_eq!(any(2).unwrap().uuids(), ["GPU-a", "GPU-b"]);
        take(&["GPU-b", "GPU-a"]).unwrap();
        for bad in [
            "",
            "0",
            "all",
            "GPU-",
            "GPU-../x",
            "GPU-a/b",
            &format!("GPU-{}", "a".repeat(65)),
        ] {
            assert!(matches!(take(&[bad]), Err(GpuError::Uuid(_))), "{bad}");
        }
    }

    #[test]
    fn a_gpu_in_quarantine_is_nobodys_until_its_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let both = ["GPU-a", "GPU-b"].map(str::to_owned);
        let owner = Path::new("/nonexistent");
        let claim = GpuClaim::take(folder.path(), &both, owner).unwrap();
        claim.quarantine("GPU-a", "Xid 79\n").unwrap();
        assert!(claim.quarantine("GPU-c", "not ours").is_err());
        drop(claim);
        let refused = GpuClaim::take(folder.path(), &both, owner).unwrap_err();
        let GpuError::Quarantined { uuid, reason, path } = &refused else {
            panic!("{refused:?}")
        };
        assert_eq!((uuid.as_str(), reason.as_str()), ("GPU-a", "Xid 79"));
        assert!(
            refused
                .to_string()
                .ends_with(&format!("remove {}", path.display())),
            "{refused}"
        );
        let any = |wanted| GpuClaim::take_any(folder.path(), &both, wanted, owner);
        assert_eq!(any(1).unwrap().uuids(), ["GPU-b"]);
        let refused = any(2).unwrap_err().to_string();
        assert!(
            refused.ends_with("only 1 of this machine's are free; 1 are in quarantine"),
            "{refused}"
        );
        std::fs::remove_file(path).unwrap();
        assert_eq!(any(2).unwrap().uuids(), both);
    }

    #[test]
    fn a_gpu_stays_with_a_job_whose_process_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let job = tempfile::tempdir().unwrap();
        let gpu = ["GPU-a".to_owned()];
        let claim = GpuClaim::take(folder.path(), &gpu, job.path()).unwrap();
        // A killed process releases its locks and changes no file.
        claim.locks[0].unlock().unwrap();
        let other = || GpuClaim::take(folder.path(), &gpu, Path::new("/another"));
        assert!(matches!(other(), Err(GpuError::Busy(_))));
        let adopted = GpuClaim::take(folder.path(), &gpu, job.path()).unwrap();
        std::mem::forget(claim);
        drop(adopted);
        other().unwrap();
        let dead = GpuClaim::take(folder.path(), &gpu, job.path()).unwrap();
        dead.locks[0].unlock().unwrap();
        drop(job);
        other().unwrap();
        std::mem::forget(dead);
    }
}
