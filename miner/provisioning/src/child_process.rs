//! Ending a child process with its whole group: first by `SIGTERM`, then by `SIGKILL`.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use muster_process::SharedClock;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;

/// Sends the signal to the group that the child leads. The child may have ended meanwhile, which is no error.
pub(crate) fn signal(child: &Child, signal: Signal) {
    let group = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .map(Pid::from_raw);
    let _ = group.map(|group| killpg(group, signal));
}

/// Sends `SIGTERM`, and `SIGKILL` after `patience`; waits for the end.
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
