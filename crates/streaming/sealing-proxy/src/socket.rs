//! A job's Unix socket, opened without trusting the job.
//!
//! The socket's folder is shared with the container, which may put anything in the socket's place: for example a link
//! to the socket of the container engine, which controls the machine. So no path that the job made is resolved. The
//! folder is opened, then the one name in it, both without following links. The opened file must be a socket, that very
//! inode is connected to, and the listening process must belong to the job's container.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstat};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

/// The pause before the next try if the socket's queue is full.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// The process that must listen on a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketOwner {
    /// A process of the container with this id, by its control group.
    Container(String),
    /// Any process, if the folder is shared with trusted processes only.
    Trusted,
}

/// The place of a job's socket, and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSocket {
    folder: PathBuf,
    name: String,
    owner: SocketOwner,
}

/// Why there is no connection to a job's socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The name is a path, empty or too long.
    #[error("a socket's name is one plain component, not {0:?}")]
    Name(String),
    /// The folder or the name in it cannot be opened.
    #[error("the job's socket {path} cannot be opened", path = .path.display())]
    Open {
        /// The socket's path.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is not a socket.
    #[error("the job's socket {path} is not a socket but {found}", path = .path.display())]
    NotASocket {
        /// The socket's path.
        path: PathBuf,
        /// The kind of the file.
        found: &'static str,
    },
    /// No process listens there, or the queue stays full.
    #[error("no process listens on the job's socket")]
    Connect(#[source] io::Error),
    /// The listening process does not belong to the job's container.
    #[error("process {pid} listens on the job's socket, but is not in the job's container")]
    Stranger {
        /// The listening process; 0 if it is not known.
        pid: i32,
    },
}

impl JobSocket {
    /// The socket called `name` in `folder`.
    ///
    /// # Errors
    /// The name is a path, empty or too long.
    pub fn new(folder: &Path, name: &str, owner: SocketOwner) -> Result<Self, SocketError> {
        if name.is_empty() || matches!(name, "." | "..") || name.contains(['/', '\0']) || name.len() > 100 {
            return Err(SocketError::Name(name.chars().take(120).collect()));
        }
        Ok(Self {
            folder: folder.to_owned(),
            name: name.to_owned(),
            owner,
        })
    }

    /// Connects, within `limit`.
    ///
    /// # Errors
    /// There is no socket, no process listens on it, or one of another container does.
    pub async fn connect(&self, limit: Duration) -> Result<UnixStream, SocketError> {
        let socket = self.open()?;
        // The opened inode, whatever file has its name by now.
        let exact = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let connecting = async {
            loop {
                match UnixStream::connect(&exact).await {
                    // The queue is full, which passes.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(QUEUE_PAUSE).await,
                    connected => break connected,
                }
            }
        };
        let connected = timeout(limit, connecting)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = connected.map_err(SocketError::Connect)?;
        self.check_owner(&stream)?;
        Ok(stream)
    }

    /// Opens the socket's file without following links.
    fn open(&self) -> Result<OwnedFd, SocketError> {
        let path = self.folder.join(&self.name);
        let failed = |errno: nix::Error| SocketError::Open {
            path: path.clone(),
            source: errno.into(),
        };
        let look = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let folder = open(&self.folder, look | OFlag::O_DIRECTORY, Mode::empty()).map_err(failed)?;
        let socket = openat(folder.as_fd(), self.name.as_str(), look, Mode::empty()).map_err(failed)?;
        let kind = SFlag::from_bits_truncate(fstat(&socket).map_err(failed)?.st_mode) & SFlag::S_IFMT;
        if kind == SFlag::S_IFSOCK {
            return Ok(socket);
        }
        let found = if kind == SFlag::S_IFLNK {
            "a link"
        } else if kind == SFlag::S_IFDIR {
            "a folder"
        } else {
            "a file"
        };
        Err(SocketError::NotASocket { path, found })
    }

    fn check_owner(&self, stream: &UnixStream) -> Result<(), SocketError> {
        let id = match &self.owner {
            SocketOwner::Trusted => return Ok(()),
            SocketOwner::Container(id) => id,
        };
        let pid = stream
            .peer_cred()
            .map_err(SocketError::Connect)?
            .pid()
            .unwrap_or(0);
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        if pid > 0 && in_container(&groups, id) {
            Ok(())
        } else {
            Err(SocketError::Stranger { pid })
        }
    }
}

impl fmt::Display for JobSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.folder.join(&self.name).display())
    }
}

/// Whether a process with these control groups belongs to the container: the id is a component of a path, or stands in
/// one as systemd wraps it.
fn in_container(groups: &str, id: &str) -> bool {
    let names_it = |component: &str| {
        component == id
            || component
                .strip_suffix(".scope")
                .and_then(|scope| scope.rsplit_once('-'))
                .is_some_and(|(_, found)| found == id)
    };
    id.len() >= 32
        && groups
            .lines()
            .filter_map(|line| line.splitn(3, ':').nth(2))
            .any(|path| path.split('/').any(names_it))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn trusted(folder: &Path, name: &str) -> JobSocket {
        JobSocket::new(folder, name, SocketOwner::Trusted).unwrap()
    }

    #[tokio::test]
    async fn a_socket_is_connected_to_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let _listening = UnixListener::bind(folder.path().join("real.sock")).unwrap();
        trusted(folder.path(), "real.sock").connect(LIMIT).await.unwrap();
        std::fs::write(folder.path().join("file"), "x").unwrap();
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        symlink(folder.path().join("real.sock"), folder.path().join("link")).unwrap();
        for (name, expected) in [("file", "a file"), ("folder", "a folder"), ("link", "a link")] {
            let refused = trusted(folder.path(), name).connect(LIMIT).await.unwrap_err();
            assert!(
                matches!(refused, SocketError::NotASocket { found, .. } if found == expected),
                "{refused}"
            );
        }
        let absent = trusted(folder.path(), "absent").connect(LIMIT).await.unwrap_err();
        assert!(matches!(absent, SocketError::Open { .. }));
    }

    #[tokio::test]
    async fn a_folder_that_became_a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().join("real");
        std::fs::create_dir(&real).unwrap();
        let _listening = UnixListener::bind(real.join("x.sock")).unwrap();
        symlink(&real, folder.path().join("link")).unwrap();
        let refused = trusted(&folder.path().join("link"), "x.sock")
            .connect(LIMIT)
            .await;
        assert!(matches!(refused.unwrap_err(), SocketError::Open { .. }));
    }

    #[tokio::test]
    async fn a_socket_of_another_process_than_the_jobs_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let _listening = UnixListener::bind(folder.path().join("x.sock")).unwrap();
        let container = SocketOwner::Container("0".repeat(64));
        let refused = JobSocket::new(folder.path(), "x.sock", container)
            .unwrap()
            .connect(LIMIT)
            .await
            .unwrap_err();
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(
            matches!(refused, SocketError::Stranger { pid } if pid == own),
            "{refused}"
        );
    }

    #[test]
    fn names_are_plain() {
        for bad in ["", ".", "..", "a/b", "/a", "a\0", &"x".repeat(101)] {
            assert!(
                JobSocket::new(Path::new("/x"), bad, SocketOwner::Trusted).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn control_groups_of_every_kind_of_engine_name_their_container() {
        let id = "a".repeat(64);
        for groups in [
            format!("12:pids:/docker/{id}\n1:name=systemd:/docker/{id}\n"),
            format!("0::/system.slice/docker-{id}.scope\n"),
            format!("0::/kubepods/burstable/pod1/cri-containerd-{id}.scope"),
            format!("3:cpu:/docker/outer/docker/{id}/inner"),
        ] {
            assert!(in_container(&groups, &id), "{groups}");
        }
        for groups in [
            String::new(),
            format!("0::/docker/{id}x\n"),
            format!("0::/x-{id}\n"),
            id.clone(),
            "0::/".to_owned(),
        ] {
            assert!(!in_container(&groups, &id), "{groups}");
        }
        assert!(!in_container("0::/a", "a"));
    }
}
