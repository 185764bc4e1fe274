//! One daemon of a cluster, in the foreground.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

/// A running daemon. It is killed when the value is dropped, and when the thread that started it ends.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
}

impl Daemon {
    /// Starts a program with its arguments. Its output goes to a file in the folder of logs.
    pub(crate) fn start(folder: &Path, name: &str, command: &[&str]) -> io::Result<Self> {
        let log = File::create(folder.join("log").join(format!("{name}.output")))?;
        // A test that is killed drops nothing, so the kernel has to end its daemons.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .args(command)
            .env("SLURM_CONF", folder.join("slurm.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone()?))
            .stderr(Stdio::from(log))
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("cannot start setpriv: {error}")))?;
        Ok(Self { child })
    }

    /// Sends a signal to the daemon.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.ok_or_else(|| io::Error::other("the daemon has ended"))?;
        Ok(kill(Pid::from_raw(id), signal)?)
    }

    /// Kills the daemon and waits for its end.
    pub(crate) async fn kill(mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// Kills the daemon without waiting.
    pub(crate) fn start_kill(&mut self) {
        let _ = self.child.start_kill();
    }

    /// Whether the daemon has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}
