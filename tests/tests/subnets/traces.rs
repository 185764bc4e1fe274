//! The trace of a job: the same stages by OTLP at a collector that nobody here wrote, and by `muster job show --trace`
//! without one.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "sections of a test fail as tests do"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use anyhow::Context as _;
use muster_testbed::{patience, wait_for};
use muster_tests::{RunningSubnet, program_from_env};
use serde_json::Value;

/// The roles, by the names of their services.
const SERVICES: [&str; 4] = [
    "muster-executor",
    "muster-facilitator",
    "muster-miner",
    "muster-validator",
];

/// The collector, until it is dropped.
struct Collector {
    process: Child,
    lines: mpsc::Receiver<String>,
    spans: Vec<Value>,
}

impl Collector {
    /// Starts it; the second value is its address.
    fn start() -> anyhow::Result<(Self, String)> {
        let python = program_from_env("MUSTER_TEST_OTLP_PYTHON")?;
        let mut process = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/python/otlp_collector.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = process.stdout.take().context("it has a standard output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let address = lines.recv_timeout(patience())?;
        let collector = Self {
            process,
            lines,
            spans: Vec::new(),
        };
        Ok((collector, address))
    }

    /// The spans of a trace, once every role has sent its own.
    fn trace(&mut self, trace: &str) -> anyhow::Result<Vec<Value>> {
        wait_for("the spans of every role", || {
            while let Ok(line) = self.lines.try_recv() {
                self.spans.push(serde_json::from_str(&line)?);
            }
            let own = self.spans.iter().filter(|span| text(span, "trace") == trace);
            let own: Vec<_> = own.cloned().collect();
            let services: BTreeSet<_> = own.iter().map(|span| text(span, "service")).collect();
            anyhow::Ok((services == BTreeSet::from(SERVICES)).then_some(own))
        })
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run_job(subnet: &RunningSubnet, words: &[&str], end: &str) -> anyhow::Result<String> {
    let mut args = vec!["job", "run", subnet.demo_image(), "--detach", "--"];
    args.extend(words);
    let started = subnet.muster(&args)?;
    let job = started.stdout.trim().to_owned();
    subnet.wait_for_status(&job, end)?;
    Ok(job)
}

/// A field of a span; empty if it is missing or no text.
fn text<'a>(span: &'a Value, field: &str) -> &'a str {
    span.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The names of the spans, sorted.
fn names(spans: &[Value]) -> Vec<&str> {
    let mut names: Vec<_> = spans.iter().map(|span| text(span, "name")).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_collector_gets_one_trace_of_a_job_from_every_role() {
    let (mut collector, address) = Collector::start().unwrap();
    let subnet = RunningSubnet::start_with(&["--traces", &address]).unwrap();
    let job = run_job(&subnet, &["probe", "exit", "0"], "completed").unwrap();
    let spans = collector.trace(&job.replace('-', "")).unwrap();
    assert_eq!(
        names(&spans),
        [
            "executor attempt",
            "executor collect",
            "executor handover",
            "executor image",
            "executor offer",
            "executor run",
            "executor volumes",
            "facilitator delivery",
            "facilitator request",
            "miner collect",
            "miner handover",
            "miner image",
            "miner lease",
            "miner run",
            "miner start",
            "miner volumes",
            "validator attempt",
            "validator collect",
            "validator dial",
            "validator job",
            "validator offer",
            "validator queue",
            "validator receipts",
            "validator run",
            "validator start",
            "validator volumes",
        ]
    );
    // One tree, whose root is the request.
    let ids: BTreeMap<_, _> = spans
        .iter()
        .map(|span| (span["id"].as_str().unwrap(), span["name"].as_str().unwrap()))
        .collect();
    assert_eq!(ids.len(), spans.len(), "ids are unique: {spans:#?}");
    for (name, parent) in [
        ("facilitator request", None),
        ("validator job", Some("facilitator request")),
        ("validator attempt", Some("validator job")),
        ("miner lease", Some("validator attempt")),
        ("executor attempt", Some("miner lease")),
        ("executor run", Some("executor attempt")),
    ] {
        let span = spans.iter().find(|span| span["name"] == name).unwrap();
        let above = span["parent"].as_str().unwrap();
        assert_eq!(ids.get(above).copied(), parent, "{name}");
        assert!(
            span["ended"].as_u64() >= span["began"].as_u64() && span["error"].is_null(),
            "{span}"
        );
        assert_eq!(span["scope"], "muster");
    }
    // A failure marks the whole of each role, and the user's own context is the trace.
    let failed = run_job(&subnet, &["probe", "exit", "3"], "failed").unwrap();
    let spans = collector.trace(&failed.replace('-', "")).unwrap();
    for name in [
        "facilitator request",
        "validator job",
        "miner lease",
        "executor attempt",
    ] {
        let span = spans.iter().find(|span| span["name"] == name).unwrap();
        assert!(
            span["error"].as_str().is_some_and(|error| !error.is_empty()),
            "{span}"
        );
    }
}

pub(crate) fn a_jobs_way_is_shown_without_a_collector(subnet: &RunningSubnet) {
    let job = run_job(subnet, &["probe", "exit", "0"], "completed").unwrap();
    let shown = subnet.muster(&["job", "show", &job, "--trace"]).unwrap();
    let text = &shown.stdout;
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(
        text.contains(&format!("trace    {}", job.replace('-', ""))),
        "{text}"
    );
    let mut rest = text.as_str();
    for part in [
        "facilitator  request",
        "facilitator    delivery",
        "validator      job",
        "validator        queue",
        "validator        attempt",
        "validator          dial",
        "validator          receipts",
        "miner              lease",
        "miner                start",
        "executor             attempt",
        "executor               run",
    ] {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
        rest = &rest[at..];
    }
    let json = subnet
        .muster(&["job", "show", &job, "--trace", "--json"])
        .unwrap();
    let trace: Value = serde_json::from_str(&json.stdout).unwrap();
    let stages = trace["stages"].as_array().unwrap();
    let run = stages
        .iter()
        .find(|stage| stage["role"] == "executor" && stage["stage"] == "run")
        .unwrap();
    assert!(run["took_us"].as_u64().is_some_and(|took| took > 0), "{run}");
    // A job that failed reports its stages too, and the failure's own context does not show them twice.
    let failed = run_job(subnet, &["probe", "exit", "3"], "failed").unwrap();
    let view = subnet.job(&failed).unwrap();
    let last = view["status_history"].as_array().unwrap().last().unwrap();
    assert!(
        last["metadata"]["job_failure_details"]["context"]["trace"].is_null(),
        "{last}"
    );
    assert!(last["metadata"]["muster"]["trace"]["stages"].is_array(), "{last}");
}
