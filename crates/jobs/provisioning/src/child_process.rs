//! How a child process is ended: asked first, then made to, its whole group at once.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use muster_process::SharedClock;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;

/// Sends the signal to the group that the child leads. It may have ended this moment, which is as well.
pub(crate) fn signal(child: &Child, signal: Signal) {
    let group = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .map(Pid::from_raw);
    let _ = group.map(|group| killpg(group, signal));
}

/// Asks and in the end forces, each after `patience`.
pub(crate) async fn end(
    child: &mut Child,
    patience: Duration,
    clock: &SharedClock,
) -> io::Result<ExitStatus> {
    for next in [Signal::SIGTERM, Signal::SIGKILL] {
        signal(child, next);
        tokio::select! {
            status = child.wait() => return status,
            () = clock.sleep(patience) => {}
        }
    }
    child.wait().await
}
