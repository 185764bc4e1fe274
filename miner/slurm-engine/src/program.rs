//! Calls of Slurm's programs: each with a limit, in a process group of its own, and in an environment that changes no
//! answer.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use muster_process::SharedClock;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::failure::{CallFailure, words_of};
use crate::settings::SlurmSettings;

/// The variables that a program inherits. Others stay away: `SQUEUE_PARTITION` and its like would hide executors.
const INHERITED: &[&str] = &[
    "HOME",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "PATH",
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "SLURM_JWT",
    "TMPDIR",
    "TZ",
    "USER",
];
/// The most that is read of an answer: a line for each of 100,000 jobs.
const LONGEST_ANSWER: u64 = 32 << 20;
/// The most that is read of the text of a failure.
const LONGEST_WORDS: u64 = 64 << 10;

/// The way in which Slurm's programs are called.
#[derive(Clone, Debug)]
pub(crate) struct SlurmPrograms {
    folder: PathBuf,
    conf: PathBuf,
    limit: Duration,
    clock: SharedClock,
}

/// Kills the group of a program that has not ended.
struct ProgramGroup(Option<Pid>);

impl SlurmPrograms {
    /// Calls the programs of these settings.
    pub(crate) fn new(settings: &SlurmSettings, clock: SharedClock) -> Self {
        Self {
            folder: settings.bin.clone(),
            conf: settings.conf.clone(),
            limit: Duration::from_secs(settings.call_s),
            clock,
        }
    }

    /// Asks a program that needs neither variables nor an input.
    pub(crate) async fn ask(
        &self,
        program: &'static str,
        arguments: &[&str],
    ) -> Result<Vec<u8>, CallFailure> {
        self.call(program, arguments, &[], "").await
    }

    /// Runs a program to its end; its answer if it succeeds.
    pub(crate) async fn call(
        &self,
        program: &'static str,
        arguments: &[&str],
        variables: &[(&str, String)],
        input: &str,
    ) -> Result<Vec<u8>, CallFailure> {
        let path = self.folder.join(program);
        let mut command = Command::new(&path);
        command.args(arguments).env_clear().env("LC_ALL", "C");
        for name in INHERITED {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        if !self.conf.as_os_str().is_empty() {
            command.env("SLURM_CONF", &self.conf);
        }
        let child = command
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let child = child.map_err(|source| CallFailure::Start {
            program: path.display().to_string(),
            source,
        })?;
        self.wait(program, child, input).await
    }

    async fn wait(
        &self,
        program: &'static str,
        mut child: Child,
        input: &str,
    ) -> Result<Vec<u8>, CallFailure> {
        let mut group = ProgramGroup::of(&child);
        let (mut answer, mut words) = (Vec::new(), Vec::new());
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let work = async {
            let write = async move {
                if let Some(mut stdin) = stdin {
                    // A program that has refused its arguments reads nothing.
                    let _ = stdin.write_all(input.as_bytes()).await;
                }
            };
            tokio::join!(
                write,
                read(stdout, LONGEST_ANSWER, &mut answer),
                read(stderr, LONGEST_WORDS, &mut words)
            );
            child.wait().await
        };
        let status = tokio::select! {
            status = work => Some(status),
            () = self.clock.sleep(self.limit) => None,
        };
        let Some(status) = status else {
            return Err(CallFailure::TooLong {
                program,
                limit: self.limit,
                words: words_of(program, &words),
            });
        };
        let odd = |fault: String| CallFailure::Odd { program, fault };
        let status = status.map_err(|error| odd(error.to_string()))?;
        group.forget();
        if u64::try_from(answer.len()).unwrap_or(u64::MAX) >= LONGEST_ANSWER {
            return Err(odd(format!("it is longer than {} MiB", LONGEST_ANSWER >> 20)));
        }
        if status.success() {
            return Ok(answer);
        }
        Err(CallFailure::Ended {
            program,
            exited: status.code().is_some(),
            words: words_of(program, &words),
        })
    }
}

// === impl ProgramGroup ===

impl ProgramGroup {
    fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(id.map(Pid::from_raw))
    }

    /// Leaves the group alone: its number may soon be another's.
    fn forget(&mut self) {
        self.0 = None;
    }
}

impl Drop for ProgramGroup {
    fn drop(&mut self) {
        // The program may be a script that has started another.
        let _ = self.0.map(|group| killpg(group, Signal::SIGKILL));
    }
}

/// Reads to the end, or to a bound. A failure ends the reading; the program's status shows it.
async fn read(from: Option<impl AsyncRead + Unpin>, bound: u64, into: &mut Vec<u8>) {
    if let Some(from) = from {
        let _ = from.take(bound).read_to_end(into).await;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use muster_process::{SystemClock, TestClock};
    use muster_testbed::until;
    use tempfile::TempDir;

    use super::*;

    /// A folder with one program, a shell's script.
    fn programs(script: &str, clock: SharedClock) -> (TempDir, SlurmPrograms) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("squeue");
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let settings = SlurmSettings {
            bin: folder.path().to_owned(),
            ..SlurmSettings::default()
        };
        (folder, SlurmPrograms::new(&settings, clock))
    }

    #[tokio::test]
    async fn a_program_gets_its_arguments_and_no_variable_that_changes_answers() {
        let (_folder, programs) = programs("echo \"$*\"; cat; env", Arc::new(SystemClock::new()));
        let variables = [("EXECUTOR_TOKEN", "t".to_owned())];
        let answer = programs
            .call("squeue", &["a", "b"], &variables, "input\n")
            .await
            .unwrap();
        let text = String::from_utf8(answer).unwrap();
        assert!(text.starts_with("a b\ninput\n"), "{text}");
        let allowed = |line: &str| {
            let name = line.split('=').next().unwrap();
            INHERITED.contains(&name)
                || ["LC_ALL", "EXECUTOR_TOKEN", "PWD", "_", "SHLVL", "OLDPWD"].contains(&name)
        };
        assert!(text.lines().skip(2).all(allowed), "{text}");
    }

    #[tokio::test]
    async fn a_failure_has_the_words_of_the_program() {
        let script = "echo 'squeue: error: no such thing.' >&2; exit 3";
        let (_folder, programs) = programs(script, Arc::new(SystemClock::new()));
        let failure = programs.ask("squeue", &[]).await.unwrap_err();
        let CallFailure::Ended {
            exited: true, words, ..
        } = failure
        else {
            panic!("{failure:?}")
        };
        assert_eq!(words, "no such thing");
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_killed_with_all_that_it_started() {
        let clock = TestClock::default();
        let (folder, programs) = programs(
            "sleep 1000 & echo $! > \"$0.child\"; echo waiting >&2; wait",
            Arc::new(clock.clone()),
        );
        let noted = folder.path().join("squeue.child");
        let time = async {
            clock.wait_for_sleepers(1).await;
            let text = || std::fs::read_to_string(&noted).unwrap_or_default();
            let started = async || (!text().trim().is_empty()).then_some(());
            until("the program has started", started).await;
            clock.advance(Duration::from_secs(30));
            std::future::pending::<()>().await;
        };
        let failure = tokio::select! {
            answer = programs.ask("squeue", &[]) => answer.unwrap_err(),
            () = time => panic!("time does not end"),
        };
        assert!(matches!(failure, CallFailure::TooLong { limit, .. } if limit == Duration::from_secs(30)));
        let child = std::fs::read_to_string(&noted).unwrap();
        let stat = format!("/proc/{}/stat", child.trim());
        let gone = || std::fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z "));
        until("the program's child is gone", async || gone().then_some(())).await;
    }

    #[tokio::test]
    async fn an_endless_answer_is_cut() {
        let (_folder, programs) = programs("exec cat /dev/zero", Arc::new(SystemClock::new()));
        let failure = programs.ask("squeue", &[]).await.unwrap_err();
        assert!(matches!(failure, CallFailure::Odd { .. }), "{failure:?}");
    }
}
