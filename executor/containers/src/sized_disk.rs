//! A file system of a fixed size for the folders of one job: an image file in the job's folder, with ext4, on a loop
//! device. Its size bounds everything that the job can write there, files without a name included. A machine on which
//! that cannot be done has its jobs' folders watched instead ([`crate::disk`]).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, umount2};
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials};
use nix::sys::statvfs::statvfs;

/// The folder inside a job's folder on which its file system is mounted. Short: the paths of sockets lie below it.
pub const MOUNT: &str = "d";
const IMAGE: &str = "disk.img";
/// Bytes of a trial, the smallest that every version of mkfs.ext4 takes.
const TRIAL: u64 = 16 << 20;
/// Bytes for the file system's own tables, beside a thirtieth of its size.
const TABLES: u64 = 32 << 20;
/// How often a mount is tried: two processes may pick the same free loop device at once.
const TRIES: u32 = 3;

/// The method that bounds a job's use of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskMethod {
    /// A file system of a fixed size.
    Sized,
    /// The folders are measured while the job runs, and the machine's free disk is watched.
    Watched,
}

/// No file system of a fixed size can be made.
#[derive(Debug, thiserror::Error)]
pub enum SizedDiskError {
    /// The engine does not see this process's mounts.
    #[error("the engine at {0} does not share this process's mounts")]
    OtherMounts(String),
    /// A command failed.
    #[error("{command} failed: {words}")]
    Command {
        /// The name of the program.
        command: &'static str,
        /// The first line of its error output, or why it was not started.
        words: String,
    },
    /// The image file cannot be made or mounted.
    #[error("an image file for a job's disk cannot be used in {path}")]
    Disk {
        /// The job's folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl DiskMethod {
    /// The word for it in reports: `sized` or `watched`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sized => "sized",
            Self::Watched => "watched",
        }
    }
}

/// Tries out whether jobs below `work_dir`, which must exist, can have file systems of a fixed size that the engine at
/// `engine` (empty: the usual one) mounts. Blocks, for a tenth of a second.
///
/// # Errors
/// The reason for which they cannot.
pub fn try_out(work_dir: &Path, engine: &str) -> Result<(), SizedDiskError> {
    if !shares_mounts(engine) {
        let address = if engine.is_empty() {
            "the usual address"
        } else {
            engine
        };
        return Err(SizedDiskError::OtherMounts(address.to_owned()));
    }
    let failed = |source| SizedDiskError::Disk {
        path: work_dir.to_owned(),
        source,
    };
    let trial = tempfile::tempdir_in(work_dir).map_err(failed)?;
    let made = make(trial.path(), TRIAL);
    release(trial.path()).map_err(failed)?;
    made.map(|_| ())
}

/// Makes a file system with room for `bytes` in `folder` and mounts it. Returns where. Blocks.
///
/// # Errors
/// A command or the kernel refuses; nothing is mounted then.
pub fn make(folder: &Path, bytes: u64) -> Result<PathBuf, SizedDiskError> {
    let failed = |source| SizedDiskError::Disk {
        path: folder.to_owned(),
        source,
    };
    let (image, mount) = (folder.join(IMAGE), folder.join(MOUNT));
    let size = bytes.saturating_add(bytes / 30).saturating_add(TABLES);
    let file = File::create_new(&image).map_err(failed)?;
    file.set_len(size).map_err(failed)?;
    drop(file);
    fs::create_dir(&mount).map_err(failed)?;
    // No journal: the folders go with the job. No reserve for root: the whole size is the job's.
    let options = ["-q", "-F", "-m", "0", "-O", "^has_journal,^resize_inode"];
    let extended = ["-E", "lazy_itable_init=1,nodiscard"];
    run(
        "mkfs.ext4",
        Command::new("mkfs.ext4").args(options).args(extended).arg(&image),
    )?;
    let mut tries = TRIES;
    loop {
        let mut mounting = Command::new("mount");
        let options = "loop,nosuid,nodev,noatime,noinit_itable";
        mounting
            .args(["-t", "ext4", "-o", options])
            .arg(&image)
            .arg(&mount);
        tries -= 1;
        match run("mount", &mut mounting) {
            Ok(()) => break,
            Err(error) if tries == 0 => {
                // Without the mount point nobody takes the folder for a mounted one.
                let _ = fs::remove_dir(&mount);
                let _ = fs::remove_file(&image);
                return Err(error);
            }
            Err(_) => {}
        }
    }
    fs::remove_dir(mount.join("lost+found")).map_err(failed)?;
    Ok(mount)
}

/// Unmounts the file system in `folder`, if there is one. A process that still uses it keeps it alive, unseen.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn release(folder: &Path) -> io::Result<()> {
    while find(folder).is_some() {
        umount2(
            &folder.join(MOUNT),
            MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW,
        )?;
    }
    Ok(())
}

/// The mount point of the file system in a job's folder, if one is mounted there.
pub fn find(folder: &Path) -> Option<PathBuf> {
    let mount = folder.join(MOUNT);
    let [outer, inner] = [folder, &mount].map(fs::symlink_metadata);
    let (outer, inner) = (outer.ok()?, inner.ok()?);
    (inner.is_dir() && inner.dev() != outer.dev()).then_some(mount)
}

/// The bytes that are in use on the file system mounted at `mount`, files without a name included.
pub(crate) fn measure(mount: &Path) -> io::Result<u64> {
    let found = statvfs(mount)?;
    let used = found.blocks().saturating_sub(found.blocks_free());
    Ok(used.saturating_mul(found.fragment_size()))
}

/// The bytes that may still be written on the disk of `folder`.
pub(crate) fn free(folder: &Path) -> io::Result<u64> {
    let found = statvfs(folder)?;
    Ok(found.blocks_available().saturating_mul(found.fragment_size()))
}

/// The process that listens on the engine's socket, and its user; `None` for an engine at a port.
pub(crate) fn engine_process(engine: &str) -> Option<UnixCredentials> {
    let named = match engine {
        "" => std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned()),
        given => given.to_owned(),
    };
    let socket = UnixStream::connect(named.strip_prefix("unix://")?).ok()?;
    getsockopt(&socket, PeerCredentials).ok()
}

/// Whether the process behind the engine's socket has the mounts of this process.
pub fn shares_mounts(engine: &str) -> bool {
    let peer = engine_process(engine);
    let mounts = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let theirs = peer.and_then(|peer| mounts(&peer.pid().to_string()));
    theirs.is_some() && theirs == mounts("self")
}

fn run(name: &'static str, command: &mut Command) -> Result<(), SizedDiskError> {
    let failed = |words: String| SizedDiskError::Command { command: name, words };
    // Services often have no folder of administrators' programs in their path.
    let path = std::env::var("PATH").unwrap_or_default();
    let ran = command
        // The token of a lease is nobody else's.
        .env_clear()
        .env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin"))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if ran.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&ran.stderr);
    Err(failed(
        words.lines().next().unwrap_or("without a word").to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn files_without_a_name_fill_a_sized_disk_too() {
        let folder = tempfile::tempdir().unwrap();
        let mount = make(folder.path(), 64 << 20).expect("this test needs root, mkfs.ext4 and loop devices");
        assert_eq!(find(folder.path()), Some(mount.clone()));
        let before = measure(&mount).unwrap();
        let path = mount.join("hidden");
        let mut file = File::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let block = vec![7; 1 << 20];
        let written = (0..256).take_while(|_| file.write_all(&block).is_ok()).count() as u64;
        assert!((60..128).contains(&written), "{written} MiB of 64 were written");
        assert!(measure(&mount).unwrap() - before >= written << 20);
        assert_eq!(fs::read_dir(&mount).unwrap().count(), 0);
        // The folder goes, though the file is still open.
        crate::folder_removal::remove_folder(folder.path()).unwrap();
        assert!(!folder.path().exists());
    }

    #[test]
    fn an_engine_elsewhere_does_not_share_mounts() {
        assert!(!shares_mounts("tcp://127.0.0.1:1"));
        assert!(!shares_mounts("unix:///nonexistent/docker.sock"));
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(
            shares_mounts(&format!("unix://{}", socket.display())),
            "this very process"
        );
        let error = try_out(folder.path(), "tcp://127.0.0.1:1").unwrap_err();
        assert!(matches!(error, SizedDiskError::OtherMounts(_)), "{error}");
        assert_eq!(find(folder.path()), None);
    }
}
