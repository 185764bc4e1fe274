//! Programs that run beside the tests, and end with them.

use std::{
    fs::File,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};

/// How often somebody else's process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A program in the background. It ends with its owner.
pub(super) struct Background {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Background {
    /// Starts a program whose output goes to a file of its name in `logs`. Where the machine has `setpriv`, the program
    /// also ends when xtask is killed.
    pub(super) fn start(name: &str, logs: &Path, command: &[String]) -> anyhow::Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let output = File::create(&log).with_context(|| format!("make {}", log.display()))?;
        let (program, arguments) = command.split_first().context("no program")?;
        let mut tied = Command::new("setpriv");
        let child = tied
            .args(["--pdeathsig=TERM", "--", program])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-c is for xtask, which ends the programs in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails with the last lines of its log if it has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = said.lines().collect();
            let last = lines.get(lines.len().saturating_sub(10)..).unwrap_or_default();
            bail!("{} ended with {status}:\n{}", self.name, last.join("\n"));
        }
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let Ok(pid) = i32::try_from(self.child.id()) else {
            return;
        };
        if self.child.try_wait().ok().flatten().is_none() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            let mut ended = || self.child.try_wait().ok().flatten().is_some();
            if !within(Duration::from_secs(10), &mut ended) {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
        // Programs that it started.
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// Asks again and again until the answer is yes, or the time is over (then `false`).
pub(super) fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let looks = limit.as_millis() / LOOK_EVERY.as_millis();
    for _ in 0..looks {
        if holds() {
            return true;
        }
        pause();
    }
    holds()
}

#[expect(
    clippy::disallowed_methods,
    reason = "between two looks at a process of somebody else's, on a thread of ours"
)]
fn pause() {
    thread::sleep(LOOK_EVERY);
}

/// A program and its arguments as one list.
pub(super) fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

/// Whether a program is on the path.
pub(super) fn on_path(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_ends_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let command = words(&["sh", "-c", "echo ready; exec tail -f /dev/null"]);
        let mut program = Background::start("program", folder.path(), &command).unwrap();
        let log = folder.path().join("program.log");
        assert!(within(crate::test_patience(), || {
            std::fs::read_to_string(&log).is_ok_and(|said| said.contains("ready"))
        }));
        program.check().unwrap();
        let pid = Pid::from_raw(i32::try_from(program.pid()).unwrap());
        drop(program);
        assert!(kill(pid, None).is_err());
    }

    #[test]
    fn a_program_that_ends_early_is_named_with_its_words() {
        let folder = tempfile::tempdir().unwrap();
        let command = words(&["sh", "-c", "echo no disk left; exit 3"]);
        let mut program = Background::start("etcd", folder.path(), &command).unwrap();
        let mut failure = None;
        within(crate::test_patience(), || {
            failure = program.check().err();
            failure.is_some()
        });
        let text = failure.unwrap().to_string();
        assert!(text.contains("etcd") && text.contains("no disk left"), "{text}");
    }
}
