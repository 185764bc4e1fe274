//! Several validators of one subnet: they agree on weights, and a colluding one prints nothing for its miner.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use muster_chain::{ChainClient, Netuid, Uid};
use muster_identity::wallet::{WalletPath, load_hotkey};
use muster_identity::{Keypair, countersign, offer_receipt};
use muster_process::{Clock as _, SystemClock};
use muster_protocol::receipt::{FinishedReceipt, FinishedTag, StartedReceipt, StartedTag, page_of};
use muster_protocol::{AttemptId, ExecutorClass, MinerKey, ReceiptPayload, ValidatorKey};
use muster_testbed::wait_for;
use muster_tests::{RunningSubnet, muster, run};
use serde_json::Value;
use uuid::Uuid;

const DAY: Duration = Duration::from_secs(86_400);
const HALF_AN_HOUR: Duration = Duration::from_secs(1_800);

/// The address of a validator's status pages.
fn status_address(subnet: &RunningSubnet, validator: &str) -> Result<String> {
    let written = std::fs::read_to_string(subnet.folder().join("subnet.json"))?;
    let written: Value = serde_json::from_str(&written)?;
    let place = match validator {
        "validator" => "/validator_status",
        _ => "/further_validators/0/status",
    };
    let address = written.pointer(place).and_then(Value::as_str);
    Ok(address.context("subnet.json has no such address")?.to_owned())
}

/// A page of a validator's status.
fn page(subnet: &RunningSubnet, validator: &str, path: &str) -> Result<Value> {
    let address = status_address(subnet, validator)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    muster_process::tls::install_provider();
    runtime.block_on(async {
        Ok(reqwest::get(format!("http://{address}{path}"))
            .await?
            .json()
            .await?)
    })
}

/// The scored cycles of a validator by their numbers. A validator that restarts has none yet.
fn cycles(subnet: &RunningSubnet, validator: &str) -> BTreeMap<u64, Value> {
    let state = page(subnet, validator, "/v0/state").unwrap_or_default();
    let cycles = state
        .get("cycles")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let numbered = cycles
        .into_iter()
        .filter_map(|cycle| Some((cycle.get("number")?.as_u64()?, cycle)));
    numbered.collect()
}

/// A number of a miner's score in a cycle; 0 without one.
fn score_of(cycle: &Value, miner: MinerKey, field: &str) -> u64 {
    let scores = cycle.get("scores").and_then(Value::as_array);
    let is_its = |score: &&Value| score.get("miner").is_some_and(|key| *key == miner.to_string());
    let score = scores.into_iter().flatten().find(is_its);
    score.and_then(|score| score.get(field)?.as_u64()).unwrap_or(0)
}

/// Restarts a validator with a configuration by which its batches count for a long time, and hardly any is drawn by
/// chance: the test asks for each of them, so that no two validators want one executor at the same instant.
fn remember_batches(subnet: &RunningSubnet, validator: &str) -> Result<()> {
    let file = subnet.folder().join(format!("config/{validator}.toml"));
    let config = std::fs::read_to_string(&file)?;
    let graded = config.replace("\nevery_blocks = 0", "\nevery_blocks = 1000000");
    ensure!(graded != config, "{} has no every_blocks", file.display());
    std::fs::write(&file, graded)?;
    subnet.kill(validator)
}

/// Lets a validator grade the executors of all miners once. A validator that restarts is asked again.
fn grade(subnet: &RunningSubnet, validator: &str) -> Result<()> {
    let state = status_address(subnet, validator)?;
    let token = subnet.folder().join(format!("data/{validator}.token"));
    let token = token.to_str().context("a path that is no text")?;
    wait_for(&format!("a batch of {validator}"), || {
        let graded = subnet.muster(&["grade", "run", "--state", &state, "--token-file", token])?;
        anyhow::Ok((graded.code == Some(0)).then_some(()))
    })
}

/// Two parties that sign each other receipts for nothing.
struct Colluders {
    validator: Keypair,
    miner: Keypair,
    attempts: u128,
}

impl Colluders {
    fn of(subnet: &RunningSubnet) -> Result<Self> {
        let wallets = subnet.folder().join("wallets");
        let key = |name: &str| load_hotkey(&WalletPath::new(wallets.clone(), name, "default"));
        Ok(Self {
            validator: key("validator-3")?,
            miner: key("miner-2")?,
            attempts: 0,
        })
    }

    fn miner(&self) -> MinerKey {
        MinerKey(self.miner.hotkey())
    }

    /// Writes the receipts of an attempt that ended now into the miner's pages; returns its id.
    fn write(&mut self, subnet: &RunningSubnet, took: Duration, blocks: &[u64]) -> Result<AttemptId> {
        self.attempts += 1;
        let now = SystemClock::new().now();
        let (job_uuid, began) = (
            AttemptId::from_uuid(Uuid::from_u128(self.attempts)),
            now.minus(took),
        );
        let started = ReceiptPayload::Started(StartedReceipt {
            job_uuid,
            miner_hotkey: self.miner(),
            validator_hotkey: ValidatorKey(self.validator.hotkey()),
            // Validators refuse a receipt that was signed long before the time of its page.
            timestamp: began.max(now.minus(HALF_AN_HOUR)),
            receipt_type: StartedTag,
            executor_class: ExecutorClass::AlwaysOnTest,
            is_organic: true,
            ttl: 60,
        });
        let finished = ReceiptPayload::Finished(FinishedReceipt {
            job_uuid,
            miner_hotkey: self.miner(),
            validator_hotkey: ValidatorKey(self.validator.hotkey()),
            timestamp: now,
            receipt_type: FinishedTag,
            time_started: began,
            time_took_us: u64::try_from(took.as_micros())?,
            score_str: FinishedReceipt::score_text(u64::try_from(took.as_micros())?),
            block_numbers: blocks.to_vec(),
        });
        let page = subnet
            .folder()
            .join(format!("data/receipts-2/{}.jsonl", page_of(now)));
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(page)?;
        for payload in [started, finished] {
            let receipt = countersign(&self.miner, offer_receipt(&self.validator, payload)?)?;
            let line = format!("{}\n", serde_json::to_string(&*receipt)?);
            file.write_all(line.as_bytes())?;
        }
        Ok(job_uuid)
    }
}

/// The weights of the first validator on the chain, as shares of all in millionths, by uid.
fn weights_on_chain(subnet: &RunningSubnet) -> Result<BTreeMap<u16, u64>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let url = format!("ws://{}", subnet.field("chain")?);
    let weights = runtime.block_on(async {
        let chain = ChainClient::connect(&url).await?;
        chain.weights_of(Netuid(1), Uid(0)).await
    })?;
    let all: u64 = weights.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let share = |(uid, weight): (u16, u16)| (uid, u64::from(weight) * 1_000_000 / all.max(1));
    Ok(weights.into_iter().map(share).collect())
}

/// Checks that the weights of a cycle follow from its snapshot alone, by our commands and by a program that knows the
/// documented format only.
fn check_recomputed(subnet: &RunningSubnet, cycle: &Value, miner: MinerKey) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("snapshot.json");
    let saved = file.to_str().context("a path that is no text")?;
    let number = cycle.get("number").context("no number")?.to_string();
    let miner = miner.to_string();
    let args = ["score", "explain", &miner, "--cycle", &number, "--save", saved];
    let explained = subnet.muster(&args)?;
    ensure!(explained.code == Some(0), "{explained:?}");
    let mut audit = Command::new(muster()?);
    audit.args(["audit", "score", saved, "--json"]);
    let mut stranger = Command::new("python3");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/recompute_weights.py");
    stranger.arg(script).arg(saved);
    for mut command in [audit, stranger] {
        let done = run(&mut command)?;
        ensure!(done.code == Some(0), "{done:?}");
        let done: Value = serde_json::from_str(&done.stdout)?;
        for field in ["weights", "snapshot"] {
            ensure!(done.get(field) == cycle.get(field), "{field}: {done}");
        }
    }
    Ok(())
}

#[test]
fn validators_agree_and_one_that_colludes_with_a_miner_prints_nothing() {
    let args = [
        "--validators",
        "3",
        "--miners",
        "2",
        "--executors",
        "1",
        "--tempo",
        "10",
        // The colluders write receipts of eighteen seconds for blocks of half a second.
        "--block-ms",
        "500",
    ];
    let subnet = RunningSubnet::start_with(&args).unwrap();
    let mut colluders = Colluders::of(&subnet).unwrap();
    let honest: MinerKey = subnet.field("miner").unwrap().parse().unwrap();
    for validator in ["validator", "validator-2"] {
        remember_batches(&subnet, validator).unwrap();
    }
    for validator in ["validator", "validator-2"] {
        grade(&subnet, validator).unwrap();
    }

    // Both state what they saw, each reads the other's statement, and they come to the same points. Miners with the
    // same hardware have the same points.
    let cheat = colluders.miner();
    let equal = |cycle: &Value| {
        [honest, cheat]
            .iter()
            .all(|miner| score_of(cycle, *miner, "credit") == 1_000)
    };
    let agreed = wait_for("a cycle that two validators scored alike", || {
        let second = cycles(&subnet, "validator-2");
        let both = cycles(&subnet, "validator")
            .into_iter()
            .filter_map(|(number, cycle)| {
                let other = second.get(&number)?;
                (equal(&cycle) && equal(other)).then(|| (cycle, other.clone()))
            });
        // The third validator never probes anything. Before two epochs are known nobody's receipts are checked.
        let is_settled = |validator: &str, cycle: &Value| {
            let digest = cycle["snapshot"].as_str().unwrap_or_default();
            let snapshot = page(&subnet, validator, &format!("/v0/scoring-snapshots/{digest}"));
            let snapshot = snapshot.unwrap_or_default();
            let statements = snapshot["capacity"]["statements"].as_array().map_or(0, Vec::len);
            statements == 2 && snapshot["allowance"].is_object()
        };
        let mut both =
            both.filter(|(one, two)| is_settled("validator", one) && is_settled("validator-2", two));
        anyhow::Ok(both.next())
    });
    let (first, second) = agreed.unwrap();
    for miner in [honest, cheat] {
        let points = [&first, &second].map(|cycle| score_of(cycle, miner, "points"));
        assert_eq!(points, [500_000_000_000; 2], "{first}\n{second}");
    }
    check_recomputed(&subnet, &first, honest).unwrap();
    let before = weights_on_chain(&subnet).unwrap();

    // Receipts over thirty days without a block, and with blocks that each of them names.
    let month = DAY * 30 - Duration::from_secs(1);
    let blocks: Vec<u64> = (1..20).collect();
    let mut minted = Vec::new();
    for _ in 0..20 {
        minted.push((colluders.write(&subnet, month, &[]).unwrap(), "over_allowance"));
        minted.push((colluders.write(&subnet, month, &blocks).unwrap(), "named_twice"));
    }
    for validator in ["validator", "validator-2"] {
        let dropped = wait_for("a cycle that drops what was minted", || {
            let told: BTreeMap<String, String> = cycles(&subnet, validator)
                .into_values()
                .flat_map(|cycle| cycle["dropped"].as_array().cloned().unwrap_or_default())
                .filter_map(|dropped| {
                    Some((dropped[0].as_str()?.to_owned(), dropped[1].as_str()?.to_owned()))
                })
                .collect();
            let all = minted
                .iter()
                .all(|(attempt, _)| told.contains_key(&attempt.to_string()));
            anyhow::Ok(all.then_some(told))
        });
        let dropped = dropped.unwrap();
        for (attempt, why) in &minted {
            assert_eq!(dropped[&attempt.to_string()], *why, "{validator}");
        }
        for cycle in cycles(&subnet, validator).values() {
            assert_eq!(score_of(cycle, cheat, "micros"), 0, "{validator}: {cycle}");
        }
    }
    let after = weights_on_chain(&subnet).unwrap();
    let miner_2 = 4;
    let shares = [&before, &after].map(|weights| weights.get(&miner_2).copied().unwrap_or(0));
    assert!(
        shares[1] < shares[0].max(500_000) + 20_000,
        "nothing was printed: {before:?} {after:?}"
    );

    // Work that never was, for blocks of the validator's own: it earns the premium of a worked second, and no more.
    let head = page(&subnet, "validator", "/v0/state").unwrap()["block"]
        .as_u64()
        .unwrap();
    let blocks: Vec<u64> = (head.saturating_sub(35)..head).collect();
    colluders
        .write(&subnet, Duration::from_secs(18), &blocks)
        .unwrap();
    let paid = wait_for("a cycle that counts what was washed", || {
        let all = cycles(&subnet, "validator").into_values();
        let mut counted = all.filter(|cycle| score_of(cycle, cheat, "micros") > 0);
        anyhow::Ok(counted.find(equal))
    });
    let cycle = paid.unwrap();
    // 1 + x / (1 - f x) of the honest miner's, with x = 0.2 and half of the capacity: 550 to 450.
    let points = [honest, cheat].map(|miner| score_of(&cycle, miner, "points"));
    assert!(points[1] > points[0] && points[1] <= 550_000_000_000, "{cycle}");
}
