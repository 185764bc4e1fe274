//! Burns end to end: a validator's process reads the transfers of its keys on a local chain, and scores by them.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use muster_chain::{ChainClient, Netuid, Rao};
use muster_identity::Keypair;
use muster_identity::wallet::{ColdkeyStorage, WalletPath, create};
use muster_protocol::{Hotkey, ValidatorKey};
use muster_scoring::ScoringSnapshot;
use muster_testbed::wait_for;
use muster_tests::{RunningChain, muster};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const NETUID: Netuid = Netuid(1);
const TAO: u64 = 1_000_000_000;

/// A validator's process on a chain with epochs of a few seconds.
struct Rig {
    runtime: Runtime,
    chain: RunningChain,
    client: Arc<ChainClient>,
    folder: tempfile::TempDir,
    validator: Option<Child>,
    hotkey: Keypair,
}

fn key(name: &str) -> Result<Keypair> {
    Ok(Keypair::from_uri(&format!("//{name}"))?)
}

impl Rig {
    fn new() -> Result<Self> {
        muster_process::tls::install_provider();
        let folder = tempfile::tempdir()?;
        let wallet = WalletPath {
            root: folder.path().join("wallets"),
            name: "validator".to_owned(),
            hotkey: "default".to_owned(),
        };
        let hotkey = create(&wallet, ColdkeyStorage::PhraseOnly)?.hotkey;
        let neuron = |hotkey: Hotkey, coldkey: Hotkey, permit: bool| {
            json!({ "netuid": NETUID.0, "hotkey": hotkey.to_string(), "coldkey": coldkey.to_string(),
                    "stake": 1_000 * TAO, "permit": permit })
        };
        let owner = key("Owner")?.hotkey();
        let spec = json!({
            "stake_threshold": TAO,
            "subnets": [{ "netuid": NETUID.0, "tempo": 20 }],
            "balances": {
                hotkey.hotkey().to_string(): 10 * TAO,
                owner.to_string(): 10 * TAO,
                key("Friend")?.hotkey().to_string(): 10 * TAO,
            },
            "neurons": [
                neuron(hotkey.hotkey(), owner, true),
                neuron(key("Miner")?.hotkey(), key("Cold")?.hotkey(), false),
            ],
        });
        let path = folder.path().join("spec.json");
        std::fs::write(&path, spec.to_string())?;
        let path = path.to_str().context("a path in UTF-8")?;
        let chain = RunningChain::start(&["--block-time-ms", "250", "--spec", path])?;
        let runtime = Runtime::new()?;
        let client = runtime.block_on(ChainClient::connect(chain.url()))?;
        Ok(Self {
            runtime,
            chain,
            client,
            folder,
            validator: None,
            hotkey,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&mut self, scoring: &str) -> Result<()> {
        let shown = |name: &str| self.path(name).display().to_string();
        let config = format!(
            "bind = \"127.0.0.1:0\"\nready_file = \"{ready}\"\noperator_token = \"{token}\"\n\
             store = \"sqlite:{store}\"\n[wallet]\nroot = \"{wallets}\"\nname = \"validator\"\nhotkey = \"default\"\n\
             [chain]\nurl = \"{url}\"\n[facilitator]\nurl = \"ws://127.0.0.1:9/ws/v0/\"\n[scoring]\n{scoring}",
            ready = shown("ready.json"),
            token = shown("operator.token"),
            store = shown("validator.db"),
            wallets = shown("wallets"),
            url = self.chain.url(),
        );
        std::fs::write(self.path("validator.toml"), config)?;
        let log = std::fs::File::create(self.path("validator.log"))?;
        let validator = Command::new(muster()?)
            .args(["validator", "--config"])
            .arg(self.path("validator.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.validator = Some(validator);
        Ok(())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("validator.log")).unwrap_or_default()
    }

    /// Gets a page of the status address.
    fn get(&self, path: &str) -> Result<String> {
        let ready: Value = serde_json::from_slice(&std::fs::read(self.path("ready.json"))?)?;
        let address = ready
            .get("address")
            .and_then(Value::as_str)
            .context("an address")?;
        let url = format!("http://{address}{path}");
        let asking = async { anyhow::Ok(reqwest::get(url).await?.error_for_status()?.text().await?) };
        self.runtime.block_on(asking)
    }

    /// The snapshots of the cycles that were scored, newest first.
    fn snapshots(&self) -> Result<Vec<ScoringSnapshot>> {
        let state: Value = serde_json::from_str(&self.get("/v0/state")?)?;
        let cycles = state.get("cycles").and_then(Value::as_array).context("cycles")?;
        let digests = cycles.iter().filter_map(|cycle| cycle.get("snapshot")?.as_str());
        let snapshot = |digest: &str| {
            let text = self.get(&format!("/v0/scoring-snapshots/{digest}"))?;
            Ok(ScoringSnapshot::parse(&text)?)
        };
        digests.map(snapshot).collect()
    }

    /// Transfers an amount, and returns the block that holds it.
    fn transfer(&self, from: &Keypair, to: Hotkey, rao: u64) -> Result<u64> {
        let moved = self.runtime.block_on(self.client.transfer(from, &to, Rao(rao)))?;
        Ok(moved.block.0)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mut validator) = self.validator.take() {
            let _ = validator.kill();
            let _ = validator.wait();
        }
    }
}

fn is_in(snapshot: &ScoringSnapshot, block: u64) -> bool {
    (snapshot.span.first_block..=snapshot.span.last_block).contains(&block)
}

#[test]
fn burns_of_a_validators_hotkey_and_coldkey_are_in_its_snapshot() -> Result<()> {
    let mut rig = Rig::new()?;
    let treasury = key("Treasury")?.hotkey();
    // A price without an account is refused at the start.
    rig.start("burn_per_second = 3\n")?;
    wait_for("the refusal", || {
        anyhow::Ok(rig.log().contains("scoring.burn_account").then_some(()))
    })?;
    if let Some(mut refused) = rig.validator.take() {
        ensure!(!refused.wait()?.success(), "it does not run: {}", rig.log());
    }
    rig.start(&format!("burn_per_second = 3\nburn_account = \"{treasury}\"\n"))?;
    let hotkey = rig.hotkey.clone();
    let mut paid = Vec::new();
    for (from, rao) in [
        (&hotkey, 700_000),
        (&key("Owner")?, 50_000),
        (&key("Friend")?, 900_000),
    ] {
        paid.push((rig.transfer(from, treasury, rao)?, rao));
    }
    let counted = [paid[0], paid[1]];
    let me = ValidatorKey(hotkey.hotkey());
    let last = paid[2].0;
    let snapshots = wait_for("the cycles that hold the transfers", || {
        let snapshots = rig.snapshots().unwrap_or_default();
        anyhow::Ok(
            snapshots
                .iter()
                .any(|snapshot| is_in(snapshot, last))
                .then_some(snapshots),
        )
    });
    let snapshots = snapshots.with_context(|| rig.log())?;
    for snapshot in &snapshots {
        let within = counted.iter().filter(|(block, _)| is_in(snapshot, *block));
        let expected: u64 = within.map(|(_, rao)| rao).sum();
        let expected = (expected > 0).then_some((me, expected));
        assert_eq!(
            snapshot.burned,
            expected.into_iter().collect(),
            "{:?}",
            snapshot.span
        );
        assert_eq!(snapshot.rules.burn_per_second, 3);
    }
    let all: u64 = snapshots
        .iter()
        .flat_map(|snapshot| snapshot.burned.values())
        .sum();
    assert_eq!(all, 750_000, "the friend is no validator");
    Ok(())
}
