//! A local chain of its own for a test.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::http::answer_of;

/// A local chain that runs until it is dropped.
#[derive(Debug)]
pub struct RunningChain {
    process: Child,
    url: String,
}

impl RunningChain {
    /// Starts one on a free port.
    ///
    /// # Errors
    /// It cannot be built or does not come up.
    pub fn start(args: &[&str]) -> Result<Self> {
        let mut process = Command::new(program()?)
            .args(["--port", "0"])
            .args(args)
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the local chain")?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("its output")?).read_line(&mut line)?;
        let url = line.split_whitespace().nth(1).map(str::to_owned);
        let url =
            url.with_context(|| format!("the local chain said {line:?} instead of where it listens"))?;
        Ok(Self { process, url })
    }

    /// The id of its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Where it listens: `ws://…`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Calls a method of its JSON-RPC.
    ///
    /// # Errors
    /// It does not answer, or with an error.
    pub fn call(&self, method: &str, params: Value) -> Result<Value> {
        let url = self.url.replace("ws://", "http://");
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let mut answer = answer_of(|client| client.post(url).json(&request))?;
        if let Some(error) = answer.get("error") {
            bail!("{method}: {error}");
        }
        Ok(answer.get_mut("result").map(Value::take).unwrap_or_default())
    }
}

impl Drop for RunningChain {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program of this checkout, built if it is not there.
pub(crate) fn program() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.clone().map_err(anyhow::Error::msg)
}

fn build() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("MUSTER_DEVCHAIN_BIN") {
        return Ok(program.into());
    }
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("no checkout")?;
    // `target/debug/deps/<test>` lies three folders below the target folder.
    let test = std::env::current_exe()?;
    let target = test
        .ancestors()
        .nth(3)
        .context("the test lies outside a target folder")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--quiet", "--bin", "muster-devchain", "--manifest-path"])
        .arg(checkout.join("devchain/Cargo.toml"))
        .arg("--target-dir")
        .arg(target);
    // The variables of the cargo that runs the test would make this build begin from nothing.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_")) {
        if name != "CARGO_HOME" {
            cargo.env_remove(name);
        }
    }
    let status = cargo.status().context("cannot run cargo")?;
    ensure!(
        status.success(),
        "cargo could not build the local chain ({status})"
    );
    Ok(target.join("debug/muster-devchain"))
}
