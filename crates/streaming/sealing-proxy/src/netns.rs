//! A port inside a job's network namespace, for images that listen on their loopback only.
//!
//! Entering a namespace changes the thread that enters it for good, so one is made for each connection and thrown away. It
//! needs `CAP_SYS_ADMIN`. There is no way from the namespace to anywhere: it has a loopback and nothing else.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream as BlockingStream};
use std::sync::Arc;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// A network namespace, held open: it stays this one even when its processes have gone and their ids belong to others.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<File>);

impl Namespace {
    /// That of a process. The caller knows that the process is still the one it means.
    ///
    /// # Errors
    /// There is no such process, or it may not be looked into.
    pub fn of_process(pid: i32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/ns/net")).map(|file| Self(Arc::new(file)))
    }

    /// Connects to a port of its loopback, within `limit`.
    ///
    /// # Errors
    /// Nobody listens there, or the namespace may not be entered.
    pub async fn connect(&self, port: u16, limit: Duration) -> io::Result<TcpStream> {
        let (done, made) = oneshot::channel();
        let namespace = Arc::clone(&self.0);
        std::thread::Builder::new()
            .name("job-network".to_owned())
            .spawn(move || {
                let connected = setns(&*namespace, CloneFlags::CLONE_NEWNET)
                    .map_err(io::Error::from)
                    .and_then(|()| dial(port, limit));
                // Whoever asked may have gone.
                let _ = done.send(connected);
            })?;
        let stream = made
            .await
            .map_err(|_| io::Error::other("the thread ended early"))??;
        TcpStream::from_std(stream)
    }
}

fn dial(port: u16, limit: Duration) -> io::Result<BlockingStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = BlockingStream::connect_timeout(&address, limit)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where tests run as root this enters the very namespace it is in; elsewhere the system refuses. Another namespace is
    /// entered by the executor's tests, which have containers.
    #[tokio::test]
    async fn a_port_of_a_namespace_is_reached_and_this_thread_stays_where_it_was() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = Namespace::of_process(i32::try_from(std::process::id()).unwrap()).unwrap();
        let before = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let connected = own.connect(port, Duration::from_secs(5)).await;
        if nix::unistd::geteuid().is_root() {
            assert_eq!(connected.unwrap().peer_addr().unwrap().port(), port);
        } else {
            assert_eq!(connected.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), before);
        assert!(Namespace::of_process(-1).is_err());
    }
}
