//! The jobs that several tests of whole subnets run, and the miner's page that its operator sees.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

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
    pub fn begin_counting(&self, shell: &str, seconds: u64, patience: Duration) -> Result<String> {
        let script =
            format!("i=0; while [ $i -lt {seconds} ]; do i=$((i+1)); echo tick $i; {BUSYBOX} sleep 1; done");
        let options = ["job", "run", "--detach", "--json", "--timeout", "5m"];
        let job = [shell, "--", "-c", &script];
        let started = self.muster(&[options.as_slice(), job.as_slice()].concat())?;
        ensure!(started.code == Some(0), "the job was refused: {started:?}");
        let view: Value = serde_json::from_str(&started.stdout)?;
        let id = view.get("uuid").and_then(Value::as_str);
        let id = id.context("a job has a uuid")?.to_owned();
        self.wait_for_status(&id, "volumes_ready", patience)?;
        Ok(id)
    }

    /// Waits for the end of such a job, whose last attempt printed each line once. Returns the number of its attempts.
    ///
    /// # Errors
    /// It does not end well in time, or printed something else.
    pub fn end_counting(&self, id: &str, seconds: u64, patience: Duration) -> Result<usize> {
        let ended = self.wait_for_status(id, "completed", patience)?;
        let said = ended.get("stdout").and_then(Value::as_str).unwrap_or_default();
        let said: Vec<_> = said.lines().collect();
        let ticks: Vec<_> = (1..=seconds).map(|tick| format!("tick {tick}")).collect();
        ensure!(said == ticks, "the job printed {said:?}");
        let state = self.validator_state()?;
        let mut jobs = state.get("jobs").and_then(Value::as_array).into_iter().flatten();
        let job = jobs.find(|job| job.get("job").and_then(Value::as_str) == Some(id));
        let attempts = job.and_then(|job| job.get("attempts")?.as_array());
        attempts
            .map(Vec::len)
            .with_context(|| format!("the validator does not know job {id}: {state:#}"))
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
