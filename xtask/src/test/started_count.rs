//! Counts what tests start: subnets by a file to which each adds a line, containers by the engine's own events.

use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::Context;
use tempfile::TempDir;

/// The variable with the file to which each subnet adds a line, as `muster_testbed::tally` reads it.
const SUBNETS: &str = "MUSTER_TEST_SUBNETS";

/// The counts of one run. Dropping it ends the listener.
pub(super) struct Tally {
    folder: TempDir,
    containers: Arc<AtomicUsize>,
    listener: Option<Child>,
}

impl Tally {
    /// Begins to count. Containers are counted where the engine's own client is at hand.
    pub(super) fn begin(engine: Option<&str>) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("muster-tally-")
            .tempdir()
            .context("make a folder for the counts")?;
        let mut events = Command::new("docker");
        if let Some(engine) = engine {
            events.args(["--host", engine]);
        }
        events
            .args(["events", "--filter", "type=container", "--filter", "event=start"])
            .args(["--format", "{{.ID}}"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let containers = Arc::new(AtomicUsize::new(0));
        let mut listener = events.spawn().ok();
        if let Some(stream) = listener.as_mut().and_then(|child| child.stdout.take()) {
            let started = Arc::clone(&containers);
            thread::spawn(move || {
                for _ in BufReader::new(stream).lines().map_while(Result::ok) {
                    started.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Ok(Self {
            folder,
            containers,
            listener,
        })
    }

    /// The variable by which tests find the file.
    pub(super) fn variable(&self) -> (&'static str, OsString) {
        (SUBNETS, self.file().into())
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("subnets")
    }

    pub(super) fn subnets(&self) -> usize {
        fs::read_to_string(self.file()).map_or(0, |text| text.lines().count())
    }

    pub(super) fn containers(&self) -> usize {
        self.containers.load(Ordering::Relaxed)
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        if let Some(listener) = &mut self.listener {
            let _ = listener.kill();
            let _ = listener.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_subnet() {
        let tally = Tally::begin(Some("unix:///no/such/engine")).unwrap();
        assert_eq!((tally.subnets(), tally.containers()), (0, 0));
        let (variable, file) = tally.variable();
        assert_eq!(variable, SUBNETS);
        fs::write(file, "a\nb\n").unwrap();
        assert_eq!(tally.subnets(), 2);
    }
}
