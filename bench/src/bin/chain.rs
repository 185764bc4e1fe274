//! The chain client: reading a subnet of 256 neurons against the official client, and how long weights take to be in
//! force.
//!
//! It starts a devchain of its own (`MUSTER_DEVCHAIN_BIN`). The peer is measured only if `MUSTER_TEST_BITTENSOR_PYTHON`
//! names a Python with bittensor 11.3.0.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, ensure};
use muster_bench::{Direction, Report, Row, Turns, take_turns, timed};
use muster_chain::timelock::{WeightsPayload, seal};
use muster_chain::weights_commit::{CommitStatus, Revealer, assess_commit};
use muster_chain::{
    ChainClient, Netuid, PendingReveal, Uid, WeightsCall, WeightsMethod, Window, WindowStatus,
};
use muster_identity::Keypair;
use serde_json::json;

const NEURONS: usize = 256;
/// More subnets than the client keeps metagraphs, so that every read is one.
const SUBNETS: u16 = 6;
const READS: u16 = 2 * SUBNETS;
const ROUNDS: usize = 7;
const BLOCK_MS: u64 = 250;
const TEMPO: u16 = 20;
/// Subnets for weights, after those that are read: plain, salted, timelocked.
const PLAIN: Netuid = Netuid(11);
const SECRET: Netuid = Netuid(12);

const PEER: &str = r#"
import asyncio, sys, time, bittensor

async def main(url, reads, subnets):
    async with bittensor.Client(url, fallback_endpoints=[], archive_endpoints=[]) as client:
        await client.subnets.metagraph(1, commitments=False)
        print("ready", flush=True)
        for line in sys.stdin:
            start = time.perf_counter()
            for n in range(reads):
                metagraph = await client.subnets.metagraph(1 + n % subnets, commitments=False)
                assert len(metagraph.hotkeys) == 256
            print(time.perf_counter() - start, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"#;

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let folder = tempfile::tempdir()?;
    let chain = Devchain::start(folder.path())?;
    let client = runtime.block_on(ChainClient::connect(&chain.url))?;
    let mut report = Report::default();
    let ours = || {
        let (read, spent) = timed(|| runtime.block_on(read_all(&client)));
        read.map(|()| f64::from(READS) / spent.as_secs_f64())
    };
    let what = format!("metagraphs of {NEURONS} neurons read");
    let higher = Direction::HigherIsBetter;
    report.rows.push(match Peer::start(&chain.url, folder.path())? {
        Some(mut peer) => {
            let turns = take_turns(ROUNDS, ours, || peer.reads_per_second())?;
            Row::against(&what, "per second", higher, "bittensor 11.3.0", turns).target(1.0)
        }
        None => Row::alone(
            &what,
            "per second",
            higher,
            take_turns(ROUNDS, ours, || Ok(0.0))?.ours,
        ),
    });
    let alice = Keypair::from_uri("//Alice")?;
    for (name, netuid, method) in [
        ("plain", PLAIN, WeightsMethod::Plain),
        ("salted", SECRET, WeightsMethod::Salted),
        ("timelocked", SECRET, WeightsMethod::Timelocked),
    ] {
        let mut turns = Turns::default();
        for _ in 0..3 {
            let (blocks, spent) = timed(|| runtime.block_on(weights(&chain.url, &alice, netuid, method)));
            turns.ours.push(spent.as_secs_f64());
            turns.peer.push(blocks?);
        }
        let lower = Direction::LowerIsBetter;
        let what = format!("{name} weights in force after the start");
        report.rows.push(Row::alone(&what, "s", lower, turns.ours));
        report.rows.push(Row::alone(&what, "blocks", lower, turns.peer));
    }
    report.notes.push(format!(
        "a devchain on this machine, {BLOCK_MS} ms per block, tempo {TEMPO}; the client connects, waits for the window, sends, and \
         reads the weights back, for salted and timelocked ones an epoch later"
    ));
    report.print()
}

async fn read_all(client: &Arc<ChainClient>) -> anyhow::Result<()> {
    for n in 0..READS {
        let graph = client.metagraph_shared(Netuid(1 + n % SUBNETS)).await?;
        ensure!(graph.neurons.len() == NEURONS, "{} neurons", graph.neurons.len());
    }
    Ok(())
}

/// From connecting to the row of weights on the chain; how many blocks that took.
async fn weights(url: &str, key: &Keypair, netuid: Netuid, method: WeightsMethod) -> anyhow::Result<f64> {
    let client = ChainClient::connect(url).await?;
    let mut blocks = client.blocks().await?;
    let start = blocks.next().await?;
    let uid = client.uid_of(netuid, &key.hotkey()).await?;
    // Another weight than the last, so that the row shows when it is in force.
    let second = u16::try_from(start.0 % 60_000 + 1)?;
    let weights = vec![(Uid(1), 65_535), (Uid(2), second)];
    let row: Vec<(u16, u16)> = weights.iter().map(|(uid, weight)| (uid.0, *weight)).collect();
    let rules = loop {
        blocks.next().await?;
        let graph = client.metagraph(netuid).await?;
        let set = graph.find(&key.hotkey()).map(|me| me.last_update);
        if Window::at(graph.tempo, graph.last_epoch, graph.block).due(graph.block, set, 0)
            == WindowStatus::Now
        {
            break client.weight_rules(netuid).await?;
        }
    };
    let pending = |by| PendingReveal {
        by,
        weights: row.clone(),
        version_key: 0,
        committed: None,
    };
    let (call, mut pending) = match (method, rules.round(), &rules.beacon) {
        (WeightsMethod::Plain, _, _) => (
            WeightsCall::Set {
                weights: weights.clone(),
                version_key: 0,
            },
            None,
        ),
        (WeightsMethod::Timelocked, Some(round), Some(beacon)) => {
            let payload = WeightsPayload {
                hotkey: key.hotkey(),
                weights: weights.clone(),
                version_key: 0,
            };
            let ciphertext = seal(
                beacon,
                round,
                &payload.encode(),
                [u8::try_from(start.0 % 256)?; 32],
            )?;
            let pending = pending(Revealer::Chain { round });
            (WeightsCall::CommitTimelocked { ciphertext, round }, Some(pending))
        }
        (WeightsMethod::Salted | WeightsMethod::Timelocked, _, _) => {
            let pending = pending(Revealer::Us { salt: [1; 8] });
            let hash = pending
                .hash(&key.hotkey(), netuid)
                .context("a salted commit has a hash")?;
            (WeightsCall::Commit { hash }, Some(pending))
        }
    };
    let committed = client.submit_weights(key, netuid, &call, None).await?;
    if let Some(pending) = &mut pending {
        pending.committed = Some(committed);
        until_revealed(&client, key, netuid, pending, &weights).await?;
    }
    ensure!(
        client.weights_of(netuid, uid).await? == row,
        "the chain has other weights"
    );
    Ok((client.head().await?.0 - start.0) as f64)
}

/// Follows a commit until its weights are in force, and reveals them where the chain does not.
async fn until_revealed(
    client: &Arc<ChainClient>,
    key: &Keypair,
    netuid: Netuid,
    pending: &PendingReveal,
    weights: &[(Uid, u16)],
) -> anyhow::Result<()> {
    let mut blocks = client.blocks().await?;
    let hash = pending.hash(&key.hotkey(), netuid);
    loop {
        blocks.next().await?;
        let shown = client.read_onchain_weights(netuid, &key.hotkey()).await?;
        match assess_commit(pending, hash, &shown) {
            CommitStatus::Wait => {}
            CommitStatus::Reveal => {
                let Revealer::Us { salt } = pending.by else {
                    continue;
                };
                let call = WeightsCall::Reveal {
                    weights: weights.to_vec(),
                    salt,
                    version_key: 0,
                };
                client.submit_weights(key, netuid, &call, None).await?;
            }
            CommitStatus::Revealed => return Ok(()),
            CommitStatus::Lost(loss) => anyhow::bail!(loss),
        }
    }
}

/// A devchain with full subnets to read and two small ones to set weights in. It ends with this.
struct Devchain {
    process: Child,
    url: String,
}

impl Devchain {
    fn start(folder: &std::path::Path) -> anyhow::Result<Self> {
        const TAO: u64 = 1_000_000_000;
        let account = |name: String| Keypair::from_uri(&name).map(|pair| pair.hotkey().to_string());
        let mut neurons = Vec::new();
        for netuid in 1..=SUBNETS {
            for n in 0..NEURONS {
                let hotkey = account(format!("//Neuron{n}"))?;
                let stake = TAO * u64::try_from(n)?;
                neurons.push(json!({"netuid": netuid, "hotkey": hotkey, "coldkey": hotkey, "stake": stake}));
            }
        }
        for netuid in [PLAIN.0, SECRET.0] {
            for (name, permit) in [("//Alice", true), ("//Bob", false), ("//Charlie", false)] {
                let stake = if permit { 1000 * TAO } else { 0 };
                let hotkey = account(name.to_owned())?;
                neurons.push(json!({"netuid": netuid, "hotkey": hotkey, "coldkey": hotkey, "stake": stake, "permit": permit}));
            }
        }
        let mut subnets: Vec<_> = (1..=SUBNETS)
            .map(|netuid| json!({"netuid": netuid, "tempo": 360}))
            .collect();
        for netuid in [PLAIN.0, SECRET.0] {
            subnets.push(json!({"netuid": netuid, "tempo": TEMPO, "commit_reveal": netuid == SECRET.0}));
        }
        let spec = folder.join("spec.json");
        std::fs::write(&spec, json!({"subnets": subnets, "neurons": neurons}).to_string())?;
        let binary = std::env::var_os("MUSTER_DEVCHAIN_BIN")
            .context("set MUSTER_DEVCHAIN_BIN to a muster-devchain")?;
        let mut process = Command::new(binary)
            .args(["--port", "0", "--block-time-ms", &BLOCK_MS.to_string(), "--spec"])
            .arg(spec)
            .stdout(Stdio::piped())
            .spawn()
            .context("start the devchain")?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("its output")?).read_line(&mut line)?;
        let url = line.split_whitespace().nth(1).context("its address")?.to_owned();
        Ok(Self { process, url })
    }
}

impl Drop for Devchain {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The official client in a process of its own, which reads when it is asked to.
struct Peer {
    process: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start(url: &str, home: &std::path::Path) -> anyhow::Result<Option<Self>> {
        let Some(python) = std::env::var_os("MUSTER_TEST_BITTENSOR_PYTHON") else {
            return Ok(None);
        };
        let mut process = Command::new(python)
            .args(["-c", PEER, url, &READS.to_string(), &SUBNETS.to_string()])
            .env("HOME", home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the official client")?;
        let ask = process.stdin.take().context("its input")?;
        let answers = BufReader::new(process.stdout.take().context("its output")?);
        let mut peer = Self {
            process,
            ask,
            answers,
        };
        peer.line().context("the official client did not start")?;
        Ok(Some(peer))
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(
            self.answers.read_line(&mut line)? > 0,
            "the official client ended"
        );
        Ok(line.trim().to_owned())
    }

    fn reads_per_second(&mut self) -> anyhow::Result<f64> {
        self.ask.write_all(b"go\n")?;
        self.ask.flush()?;
        let seconds: f64 = self.line()?.parse()?;
        Ok(f64::from(READS) / seconds)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
