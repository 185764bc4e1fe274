//! A devchain of the test's own: a real chain in a process that ends with the test.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use muster_chain::{ChainClient, ChainTimeouts};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// One TAO in rao.
pub(crate) const TAO: u64 = 1_000_000_000;
/// The client's own time-outs: longer than a test waits, because no test with these is about a chain that is late.
pub(crate) const TIMEOUTS: ChainTimeouts = ChainTimeouts {
    read: Duration::from_secs(600),
    finality: Duration::from_secs(600),
    stall: Duration::from_secs(600),
};

pub(crate) struct Devchain {
    pub(crate) url: String,
    spec: PathBuf,
    process: Child,
    _directory: TempDir,
}

impl Devchain {
    /// Starts a chain from `spec` that seals a block every 50 milliseconds.
    pub(crate) async fn start(spec: &Value) -> anyhow::Result<Self> {
        let directory = TempDir::new()?;
        let path = directory.path().join("spec.json");
        std::fs::write(&path, spec.to_string())?;
        let (process, url) = launch(&path, 0).await?;
        Ok(Self {
            url,
            spec: path,
            process,
            _directory: directory,
        })
    }

    pub(crate) async fn client(&self) -> anyhow::Result<Arc<ChainClient>> {
        Ok(ChainClient::connect_with(&self.url, TIMEOUTS).await?)
    }

    /// Kills the chain's process, as a power cut does.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.process.kill().await?)
    }

    /// Restarts the same chain on the same port.
    pub(crate) async fn start_again(&mut self) -> anyhow::Result<()> {
        let port = self.url.rsplit(':').next().context("a port")?.parse()?;
        let (process, url) = launch(&self.spec, port).await?;
        ensure!(url == self.url, "it listens at {url} and not at {}", self.url);
        self.process = process;
        Ok(())
    }
}

async fn launch(spec: &Path, port: u16) -> anyhow::Result<(Child, String)> {
    let mut process = Command::new(binary().await?)
        .args(["--port", &port.to_string(), "--block-time-ms", "50", "--spec"])
        .arg(spec)
        .env("RUST_LOG", "warn")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(process.stdout.take().context("its output")?).lines();
    let line = muster_testbed::within("devchain's address", lines.next_line()).await?;
    let line = line.context("devchain ended before it listened")?;
    let url = line
        .split_whitespace()
        .nth(1)
        .with_context(|| format!("an address in {line:?}"))?;
    Ok((process, url.to_owned()))
}

/// The devchain binary, built now if there is none.
async fn binary() -> anyhow::Result<PathBuf> {
    if let Some(binary) = std::env::var_os("MUSTER_DEVCHAIN_BIN") {
        return Ok(binary.into());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .find(|folder| folder.join("devchain/Cargo.toml").exists())
        .context("the folder of devchain")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let binary = target.join("debug/muster-devchain");
    if !binary.exists() {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--manifest-path"])
            .arg(root.join("devchain/Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .status()
            .await?;
        ensure!(built.success(), "devchain does not build");
    }
    Ok(binary)
}
