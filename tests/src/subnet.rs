//! A whole subnet of its own for a test: `muster up` in a temporary folder.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use muster_protocol::JobStatus;
use muster_testbed::tally::count_subnet;
use muster_testbed::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::http::answer_of;
use crate::parts::BLOCK_MS;
use crate::process::{Output, muster, release_mounts, run, run_aloud, run_with_input};
use crate::{devchain, log_ends, log_secrets};

/// A subnet that runs until it is dropped.
#[derive(Debug)]
pub struct RunningSubnet {
    folder: tempfile::TempDir,
    up: Child,
    state: Value,
}

impl RunningSubnet {
    /// Starts one on free ports.
    ///
    /// # Errors
    /// It does not come up; the message has what `muster up` printed.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts one with more arguments for `muster up`.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(args: &[&str]) -> Result<Self> {
        Self::start_among(args, &[])
    }

    /// Starts one whose processes have more variables in their environment.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_among(args: &[&str], variables: &[(&str, &Path)]) -> Result<Self> {
        // A cold machine builds the local chain first, which takes minutes. `muster up` then finds it built.
        devchain::program()?;
        count_subnet("muster up")?;
        let folder = tempfile::Builder::new().prefix("muster-subnet-").tempdir()?;
        let log = std::fs::File::create(folder.path().join("up.log"))?;
        let block_ms: &[&str] = if args.contains(&"--block-ms") {
            &[]
        } else {
            &["--block-ms", BLOCK_MS]
        };
        let up = Command::new(muster()?)
            .arg("up")
            .arg("--dir")
            .arg(folder.path())
            .args(block_ms)
            // A test grades when it wants to, and no batch takes an executor that it counts on.
            .args(if args.contains(&"--grade-every") {
                &[][..]
            } else {
                &["--grade-every", "0"]
            })
            .args(args)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start muster up")?;
        let file = folder.path().join("subnet.json");
        let mut subnet = Self {
            folder,
            up,
            state: Value::Null,
        };
        subnet.state = wait_for("the subnet", || {
            if let Some(status) = subnet.up.try_wait()? {
                let said = log_ends::end_of(&subnet.folder.path().join("up.log"));
                bail!("muster up ended early ({status}):\n{said}");
            }
            let text = std::fs::read(&file).ok();
            Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
        })?;
        Ok(subnet)
    }

    /// The folder of its state.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A field of `subnet.json`, such as `facilitator` or `validator`.
    ///
    /// # Errors
    /// There is no such field.
    pub fn field(&self, name: &str) -> Result<&str> {
        self.state
            .get(name)
            .and_then(Value::as_str)
            .with_context(|| format!("subnet.json has no {name}"))
    }

    /// The name of the demo image, which `muster up` loaded into the engine.
    pub fn demo_image(&self) -> &'static str {
        "muster/hello:latest"
    }

    /// Runs `muster ARGS` as a user of this subnet.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn muster(&self, args: &[&str]) -> Result<Output> {
        run(&mut self.command(args)?)
    }

    /// Runs `muster ARGS` as a user of this subnet, with this text on its standard input.
    ///
    /// # Errors
    /// It cannot be started, or does not read the text.
    pub fn muster_with_input(&self, args: &[&str], input: &str) -> Result<Output> {
        run_with_input(&mut self.command(args)?, input)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Result<Command> {
        // A command of one word has its options right behind it.
        let words = args.iter().take_while(|word| !word.starts_with('-')).count();
        let (command, rest) = args.split_at(words.min(2));
        let mut line = Command::new(muster()?);
        line.args(command).arg("--dir").arg(self.folder.path()).args(rest);
        Ok(line)
    }

    /// A job as its user sees it.
    ///
    /// # Errors
    /// `muster job show` fails.
    pub fn job(&self, id: &str) -> Result<Value> {
        let shown = self.muster(&["job", "show", id, "--json"])?;
        serde_json::from_str(&shown.stdout).with_context(|| format!("muster job show: {shown:?}"))
    }

    /// Waits until a job has `status` somewhere in its history, and returns it.
    ///
    /// # Errors
    /// It ends without, or does not get there in time.
    pub fn wait_for_status(&self, id: &str, status: &str) -> Result<Value> {
        let reached = |job: &Value| {
            let history = job.get("status_history").and_then(Value::as_array);
            history.is_some_and(|history| {
                history
                    .iter()
                    .any(|entry| entry.get("status").and_then(Value::as_str) == Some(status))
            })
        };
        wait_for(&format!("status {status} of job {id}"), || {
            let job = self.job(id)?;
            if reached(&job) {
                return Ok(Some(job));
            }
            let now = job.get("status").cloned().unwrap_or_default();
            let is_over = serde_json::from_value::<JobStatus>(now).is_ok_and(JobStatus::is_terminal);
            ensure!(!is_over, "job {id} ended without the status {status}: {job}");
            Ok(None)
        })
    }

    /// The validator's state at `/v0/state`.
    ///
    /// # Errors
    /// It does not answer.
    pub fn validator_state(&self) -> Result<Value> {
        self.validator_page("/v0/state")
    }

    /// A page of the validator's status address.
    ///
    /// # Errors
    /// It does not answer.
    pub fn validator_page(&self, path: &str) -> Result<Value> {
        let url = format!("http://{}{path}", self.field("validator_status")?);
        get_json(&url, None)
    }

    /// The process id of a role.
    ///
    /// # Errors
    /// It does not run.
    pub fn pid(&self, role: &str) -> Result<i32> {
        let file = self.folder.path().join("run").join(format!("{role}.pid"));
        Ok(std::fs::read_to_string(file)?.trim().parse()?)
    }

    /// The process id of `muster up`.
    ///
    /// # Errors
    /// It is no process id.
    pub fn supervisor_pid(&self) -> Result<i32> {
        Ok(i32::try_from(self.up.id())?)
    }

    /// Kills a role without warning.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&self, role: &str) -> Result<()> {
        Ok(kill(Pid::from_raw(self.pid(role)?), Signal::SIGKILL)?)
    }

    /// Kills a role, and waits until its next process is up with the configuration that is there now.
    ///
    /// # Errors
    /// It does not run, or does not come up again.
    pub fn restart(&self, role: &str) -> Result<()> {
        let before = self.pid(role)?;
        let ready = self.folder.path().join("run").join(format!("{role}.ready"));
        std::fs::remove_file(&ready)?;
        self.kill(role)?;
        wait_for(&format!("the next process of {role}"), || {
            let is_new = self.pid(role).is_ok_and(|pid| pid != before);
            anyhow::Ok((is_new && ready.exists()).then_some(()))
        })
    }

    /// Kills `muster up` itself without warning.
    ///
    /// # Errors
    /// It cannot be killed.
    pub fn kill_supervisor(&mut self) -> Result<()> {
        self.up.kill()?;
        self.up.wait()?;
        Ok(())
    }

    /// The end of a role's log, for messages of failing tests.
    pub fn log(&self, role: &str) -> String {
        log_ends::end_of(&self.folder.path().join("logs").join(format!("{role}.log")))
    }

    /// The logs of `muster up` and of its processes.
    fn logs(&self) -> Vec<PathBuf> {
        let written = std::fs::read_dir(self.folder.path().join("logs"));
        let mut logs: Vec<_> = written
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        logs.sort();
        logs.push(self.folder.path().join("up.log"));
        logs
    }

    /// Stops it as an operator would, with one signal, and returns how it ended.
    ///
    /// # Errors
    /// It does not stop in time.
    pub fn stop(&mut self) -> Result<Option<i32>> {
        if let Some(status) = self.up.try_wait()? {
            return Ok(status.code());
        }
        kill(Pid::from_raw(self.supervisor_pid()?), Signal::SIGTERM)?;
        let up = &mut self.up;
        let ended = wait_for("the end of muster up", || up.try_wait())?;
        Ok(ended.code())
    }
}

impl Drop for RunningSubnet {
    fn drop(&mut self) {
        log_ends::show_if_panicking(&self.logs());
        // A wait that is too long would panic, and a second panic ends the process without a word.
        if std::thread::panicking() || self.stop().is_err() {
            // The roles notice that their supervisor is gone and stop by themselves.
            let _ = self.up.kill();
            let _ = self.up.wait();
        }
        release_mounts(self.folder.path());
        // A test that fails already has its own reason.
        if !std::thread::panicking() {
            let found =
                log_secrets::find_in_logs(self.folder.path()).unwrap_or_else(|error| vec![error.to_string()]);
            assert!(
                found.is_empty(),
                "the logs of this subnet show secrets: {found:?}"
            );
        }
    }
}

/// The JSON of a page, asked for with this bearer token.
pub(crate) fn get_json(url: &str, token: Option<&str>) -> Result<Value> {
    answer_of(|client| match token {
        Some(token) => client.get(url).bearer_auth(token),
        None => client.get(url),
    })
}

/// A program that `cargo xtask test` installed and named in a variable.
///
/// # Errors
/// The variable is not set: a test that could not run did not pass.
pub fn program_from_env(variable: &str) -> Result<PathBuf> {
    let program = std::env::var_os(variable).map(PathBuf::from);
    program.with_context(|| format!("this test needs {variable}, which `cargo xtask test` sets"))
}

/// The Python interpreters with the versions of ComputeHorde's SDK that users have: 0.0.18 and 0.0.19.
///
/// # Errors
/// See [`program_from_env`].
pub fn sdk_interpreters() -> Result<[PathBuf; 2]> {
    Ok([
        program_from_env("MUSTER_TEST_SDK_PYTHON")?,
        program_from_env("MUSTER_TEST_SDK19_PYTHON")?,
    ])
}

/// Runs one of our Python scripts with somebody else's packages, in a home folder of its own. Its standard error is
/// repeated as it comes.
///
/// # Errors
/// It cannot be started.
pub fn python(interpreter: &Path, script: &str, args: &[&str]) -> Result<Output> {
    let home = tempfile::tempdir()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(script);
    run_aloud(
        Command::new(interpreter)
            .arg(script)
            .args(args)
            .env("HOME", home.path()),
    )
}
