//! A job's Unix socket, opened without trusting the job.
//!
//! The folder that holds it is shared with the container, which may put anything in the socket's place: a link to the engine's
//! own socket, say, and with it the machine. So no path of the job's making is ever resolved: the folder is opened, then the
//! one name in it, both without following links; what was opened must be a socket; that very inode is connected to; and
//! whoever listens there must be a process of the job's container.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstat};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

/// Between two tries where the socket's queue is full.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// Whose socket it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listener {
    /// A process of the container with this id, by its control group.
    Container(String),
    /// Anybody's, where the folder is shared with nobody who is not trusted.
    Trusted,
}

/// Where a job's socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSocket {
    folder: PathBuf,
    name: String,
    listener: Listener,
}

/// Why a socket is not connected to.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A name that is a path.
    #[error("a socket's name is one plain component, not {0:?}")]
    Name(String),
    /// The folder or the name in it cannot be opened.
    #[error("the job's socket {path} cannot be opened", path = .path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something else lies there.
    #[error("the job has put something else in its socket's place: {path} is {found}", path = .path.display())]
    NotASocket {
        /// Which.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// Nobody listens there.
    #[error("nobody listens on the job's socket")]
    Connect(#[source] io::Error),
    /// Somebody listens there who is not of the job.
    #[error(
        "the job's socket is another's: process {pid} listens there, which is not in the job's container"
    )]
    Stranger {
        /// Who.
        pid: i32,
    },
}

impl JobSocket {
    /// The socket called `name` in `folder`.
    ///
    /// # Errors
    /// A name that is more than one.
    pub fn new(folder: &Path, name: &str, listener: Listener) -> Result<Self, SocketError> {
        if name.is_empty() || matches!(name, "." | "..") || name.contains(['/', '\0']) || name.len() > 100 {
            return Err(SocketError::Name(name.chars().take(120).collect()));
        }
        Ok(Self {
            folder: folder.to_owned(),
            name: name.to_owned(),
            listener,
        })
    }

    /// Connects, within `limit`.
    ///
    /// # Errors
    /// Nobody there, or somebody or something that must not be there.
    pub async fn connect(&self, limit: Duration) -> Result<UnixStream, SocketError> {
        let socket = self.open()?;
        // The inode that was opened, whatever its name leads to by now.
        let exact = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let connecting = async {
            loop {
                match UnixStream::connect(&exact).await {
                    // A full queue is no refusal.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(QUEUE_PAUSE).await,
                    connected => break connected,
                }
            }
        };
        let connected = timeout(limit, connecting)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = connected.map_err(SocketError::Connect)?;
        self.is_the_jobs(&stream)?;
        Ok(stream)
    }

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

    fn is_the_jobs(&self, stream: &UnixStream) -> Result<(), SocketError> {
        let id = match &self.listener {
            Listener::Trusted => return Ok(()),
            Listener::Container(id) => id,
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

/// Whether a process with these control groups is of the container: the id stands in a path as a component of its own, or as
/// systemd wraps it.
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
        JobSocket::new(folder, name, Listener::Trusted).unwrap()
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
        let container = Listener::Container("0".repeat(64));
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
                JobSocket::new(Path::new("/x"), bad, Listener::Trusted).is_err(),
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
