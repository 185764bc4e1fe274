//! Connections to a port inside a job's network namespace, for images that listen on their loopback only.
//!
//! A thread that enters a namespace stays in it, so each connection is made by a thread of its own, which then ends.
//! Entering needs `CAP_SYS_ADMIN`. The namespace has a loopback and no other interface, so the thread reaches nothing
//! else.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream as BlockingStream};
use std::sync::Arc;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// A network namespace, held open: it remains the same one after its processes have gone and their ids were reused.
#[derive(Clone, Debug)]
pub struct NetworkNamespace(Arc<File>);

impl NetworkNamespace {
    /// Opens the namespace of a process. The caller ensures that the id still belongs to the process it means.
    ///
    /// # Errors
    /// There is no such process, or this program may not read its namespace.
    pub fn of_process(pid: i32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/ns/net")).map(|file| Self(Arc::new(file)))
    }

    /// Connects to a port of the namespace's loopback, within `limit`.
    ///
    /// # Errors
    /// No process listens there, or the namespace may not be entered.
    pub async fn connect(&self, port: u16, limit: Duration) -> io::Result<TcpStream> {
        let (done, made) = oneshot::channel();
        let namespace = Arc::clone(&self.0);
        std::thread::Builder::new()
            .name("job-network".to_owned())
            .spawn(move || {
                let connected = setns(&*namespace, CloneFlags::CLONE_NEWNET)
                    .map_err(io::Error::from)
                    .and_then(|()| dial(port, limit));
                // The caller may have gone.
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

    /// As root, the test enters the namespace in which it is; otherwise the system refuses. The executor's tests, which
    /// have containers, enter another namespace.
    #[tokio::test]
    async fn a_port_of_a_namespace_is_reached_and_this_thread_stays_where_it_was() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = NetworkNamespace::of_process(i32::try_from(std::process::id()).unwrap()).unwrap();
        let before = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let connected = own.connect(port, Duration::from_secs(5)).await;
        if nix::unistd::geteuid().is_root() {
            assert_eq!(connected.unwrap().peer_addr().unwrap().port(), port);
        } else {
            assert_eq!(connected.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), before);
        assert!(NetworkNamespace::of_process(-1).is_err());
    }
}
