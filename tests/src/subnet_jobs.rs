//! The jobs that several tests of whole subnets run, and the miner's page that its operator sees.

use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};
use muster_testbed::wait_for;
use serde_json::Value;

use crate::held_program::{held_limit_s, release, while_held};
use crate::image::BUSYBOX;
use crate::process::Output;
use crate::subnet::{RunningSubnet, get_json};

impl RunningSubnet {
    /// Runs a job with an input and an output file, which counts the words of a text.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run_words(&self) -> Result<Output> {
        let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../LICENSE-MIT");
        let input = format!("licence.txt={text}");
        let image = self.demo_image();
        self.muster(&["job", "run", "--json", image, "--input", &input, "--", "words"])
    }

    /// Starts a job that prints a line a second in an image with a shell. Returns its id once its program may run.
    ///
    /// # Errors
    /// It cannot be started, or does not get there in time.
    pub fn begin_counting(&self, shell: &str, seconds: u64) -> Result<String> {
        let script =
            format!("i=0; while [ $i -lt {seconds} ]; do i=$((i+1)); echo tick $i; {BUSYBOX} sleep 1; done");
        let options = ["job", "run", "--detach", "--json", "--timeout", "5m"];
        let job = [shell, "--", "-c", &script];
        let started = self.muster(&[options.as_slice(), job.as_slice()].concat())?;
        ensure!(started.code == Some(0), "the job was refused: {started:?}");
        let view: Value = serde_json::from_str(&started.stdout)?;
        let id = view.get("uuid").and_then(Value::as_str);
        let id = id.context("a job has a uuid")?.to_owned();
        self.wait_for_status(&id, "volumes_ready")?;
        Ok(id)
    }

    /// Waits for the end of such a job, whose last attempt printed each line once. Returns the number of its attempts.
    ///
    /// # Errors
    /// It does not end well in time, or printed something else.
    pub fn end_counting(&self, id: &str, seconds: u64) -> Result<usize> {
        let ended = self.wait_for_status(id, "completed")?;
        let said = ended.get("stdout").and_then(Value::as_str).unwrap_or_default();
        let said: Vec<_> = said.lines().collect();
        let ticks: Vec<_> = (1..=seconds).map(|tick| format!("tick {tick}")).collect();
        ensure!(said == ticks, "the job printed {said:?}");
        Ok(self.attempts_of(id)?.len())
    }

    /// Starts a job in an image with a shell, whose program prints numbered lines until [`Self::end_held`]. Returns its
    /// id once its program may run.
    ///
    /// # Errors
    /// It is refused, or ends at once.
    pub fn begin_held(&self, shell: &str, options: &[&str]) -> Result<String> {
        let (script, limit) = (while_held("echo tick $beat;"), format!("{}s", held_limit_s()));
        let common = ["job", "run", "--detach", "--json", "--timeout", &limit];
        let program = [shell, "--", "-c", &script];
        let started = self.muster(&[common.as_slice(), options, program.as_slice()].concat())?;
        ensure!(started.code == Some(0), "the job was refused: {started:?}");
        let view: Value = serde_json::from_str(&started.stdout)?;
        let id = view.get("uuid").and_then(Value::as_str);
        let id = id.context("a job has a uuid")?.to_owned();
        self.wait_for_status(&id, "volumes_ready")?;
        Ok(id)
    }

    /// Waits until lines of such a job come to its user, lets its program end, and waits for the end of the job. Its
    /// last attempt printed each line once. Returns the job as its user sees it and the ids of its attempts.
    ///
    /// # Errors
    /// It does not end well, or printed something else, or more than one of its programs ran.
    pub fn end_held(&self, id: &str) -> Result<(Value, Vec<String>)> {
        self.wait_for_lines(id)?;
        let attempts = self.attempts_of(id)?;
        let mut released = 0;
        for attempt in &attempts {
            released += release("", attempt)?;
        }
        ensure!(released == 1, "{released} programs of job {id} ran");
        let ended = self.wait_for_status(id, "completed")?;
        let said = ended.get("stdout").and_then(Value::as_str).unwrap_or_default();
        let whole = (1..)
            .zip(said.lines())
            .all(|(beat, line)| line == format!("tick {beat}"));
        ensure!(whole && !said.is_empty(), "the job printed {said:?}");
        Ok((ended, attempts))
    }

    /// Waits until a user who begins to follow now has received more and more lines of a job.
    fn wait_for_lines(&self, id: &str) -> Result<()> {
        let heard = tempfile::NamedTempFile::new()?;
        let mut follow = self.command(&["job", "logs", id, "--follow"])?;
        follow.stdin(Stdio::null()).stderr(Stdio::null());
        let _follower = Follower(follow.stdout(heard.reopen()?).spawn()?);
        let lines = || anyhow::Ok(std::fs::read_to_string(heard.path())?.lines().count());
        let first = wait_for("the first lines of the job", || {
            anyhow::Ok(Some(lines()?).filter(|lines| *lines > 0))
        })?;
        wait_for("more lines of the job", || {
            anyhow::Ok((lines()? > first).then_some(()))
        })
    }

    /// The ids of a job's attempts, oldest first.
    ///
    /// # Errors
    /// The validator does not answer.
    pub fn attempts_of(&self, id: &str) -> Result<Vec<String>> {
        let state = self.validator_state()?;
        let mut jobs = state.get("jobs").and_then(Value::as_array).into_iter().flatten();
        let job = jobs.find(|job| job.get("job").and_then(Value::as_str) == Some(id));
        let attempts = job.and_then(|job| job.get("attempts")?.as_array());
        let attempts =
            attempts.with_context(|| format!("the validator does not know job {id}: {state:#}"))?;
        let id_of = |attempt: &Value| attempt.get("attempt").and_then(Value::as_str).map(str::to_owned);
        attempts
            .iter()
            .map(|attempt| id_of(attempt).context("an attempt without an id"))
            .collect()
    }

    /// A miner at `/v0/state`, as its operator sees it.
    ///
    /// # Errors
    /// It does not answer, as while it starts.
    pub fn miner_state(&self, miner: &str) -> Result<Value> {
        let file = self.folder().join("config").join(format!("{miner}.toml"));
        let config: toml::Table = std::fs::read_to_string(file)?.parse()?;
        let operator = |key: &str| {
            let value = config.get("operator").and_then(|table| table.get(key)?.as_str());
            value.with_context(|| format!("{miner}.toml has no operator.{key}"))
        };
        let token = std::fs::read_to_string(operator("token")?)?;
        let url = format!("http://{}/v0/state", operator("bind")?);
        get_json(&url, Some(token.trim()))
    }
}

/// A command that follows a job; it ends when this value is dropped.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
