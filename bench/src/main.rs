//! `muster-bench NAME`: takes a bench's output on standard input and publishes the report in its last line.
//!
//! `cargo xtask bench` calls it; a bench program alone only prints.

use std::io::{BufRead, Write};
use std::path::Path;

use anyhow::Context;
use muster_bench::{Record, Report, publish};

fn main() -> anyhow::Result<()> {
    let bench = std::env::args()
        .nth(1)
        .context("usage: muster-bench NAME < OUTPUT")?;
    let mut last = String::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.context("read the bench's output")?;
        if !last.is_empty() {
            writeln!(std::io::stderr(), "{last}")?;
        }
        last = line;
    }
    let report: Report = serde_json::from_str(&last)
        .with_context(|| format!("{bench} did not end with its report; its last line was {last:?}"))?;
    #[expect(
        clippy::disallowed_methods,
        reason = "a result is dated by the day it was made on"
    )]
    let today = chrono::Utc::now();
    let record = Record {
        bench,
        date: today.format("%Y-%m-%d").to_string(),
        machine: machine(),
        report,
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    publish(&root, &record)
}

/// Processor and cores, as Linux names them.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let model = model.unwrap_or_else(|| "unknown processor".to_owned());
    format!("{cores} cores of {model}")
}
