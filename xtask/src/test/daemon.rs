//! Background processes that end with their owner.

use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::child_process::{name_of, on_path, within};

/// A background process that is stopped when its owner is dropped.
pub(super) struct Daemon {
    child: Child,
    stop: Signal,
    /// How long it may take to stop before it is killed.
    grace: Duration,
}

impl Daemon {
    /// Starts it in a process group of its own: the user's ctrl-c is for us, we stop it in order.
    /// Where the machine has `setpriv`, it also ends with us if we are killed.
    pub(super) fn start(command: &mut Command, stop: Signal, grace: Duration) -> anyhow::Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {}", name_of(command)))?;
        Ok(Self { child, stop, grace })
    }

    /// Its process id.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// The status, if it ended by itself.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.ended().is_some() {
            return;
        }
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), self.stop);
        }
        let grace = self.grace;
        if !within(grace, || self.ended().is_some()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// `setpriv`, which gives the child another user and ties its life to ours without any unsafe code here.
/// Falls back to the bare program where it is absent and no other user is asked for.
pub(super) fn tied(program: &Path, user: Option<&str>, death: &str) -> Command {
    if user.is_none() && !on_path("setpriv") {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.arg(format!("--pdeathsig={death}"));
    if let Some(user) = user {
        command
            .args([format!("--reuid={user}"), format!("--regid={user}")])
            .arg("--init-groups");
    }
    command.arg("--").arg(program);
    command
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use nix::sys::signal::killpg;

    use super::*;

    /// Starts a script, waits for its first word, and drops it.
    fn start_and_drop(script: &str) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        let mut daemon = Daemon::start(&mut command, Signal::SIGTERM, Duration::from_millis(300)).unwrap();
        daemon
            .child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0; 5])
            .unwrap();
        assert!(daemon.ended().is_none());
        let pid = Pid::from_raw(i32::try_from(daemon.child.id()).unwrap());
        drop(daemon);
        assert!(kill(pid, None).is_err(), "{script} lives on");
        // The child of the deaf process; the obedient process left nothing.
        let _ = killpg(pid, Signal::SIGKILL);
    }

    #[test]
    fn a_daemon_ends_with_its_owner() {
        start_and_drop("echo ready; exec tail -f /dev/null");
    }

    #[test]
    fn a_daemon_that_does_not_listen_is_killed() {
        start_and_drop("trap '' TERM; echo ready; while :; do tail -f /dev/null; done");
    }
}
