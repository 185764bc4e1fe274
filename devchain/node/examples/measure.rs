//! Measures the local chain: `blocks N` prints the memory of the process while N blocks are sealed, `reads NEURONS
//! ROUNDS` the metagraphs that clients read per second, in turns with calls that do nothing.

use anyhow::Context as _;
use codec::Encode as _;
use jsonrpsee::core::client::ClientT as _;
use jsonrpsee::core::rpc_params;
use jsonrpsee_ws_client::{WsClient, WsClientBuilder};
use muster_devchain::clock::Clock;
use muster_devchain::node::{Node, Options};
use muster_devchain::server::{Limits, serve};
use muster_devchain::spec::{Neuron, Spec};
use muster_devchain_runtime::types::NetUid;
use muster_devchain_runtime::{AccountId, SLOT_DURATION_MS};
use muster_devchain_store::Store;
use serde_json::Value;
use sp_core::Bytes;
use sp_core::crypto::Ss58Codec as _;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections that read at once.
const CLIENTS: usize = 8;
/// How long each turn takes.
const TURN: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["blocks", n] => blocks(n.parse()?),
        ["reads", neurons, rounds] => reads(neurons.parse()?, rounds.parse()?).await,
        _ => anyhow::bail!("usage: measure blocks N | measure reads NEURONS ROUNDS"),
    }
}

fn say(line: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

fn node(spec: &Spec) -> anyhow::Result<Node> {
    let options = Options::new(Clock::steps(SLOT_DURATION_MS));
    Ok(Node::open(&spec.genesis()?, Store::temporary()?, options)?)
}

/// Resident memory of this process in KiB.
fn resident() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(number.context("no VmRSS")?.parse()?)
}

fn blocks(n: u32) -> anyhow::Result<()> {
    let node = node(&Spec::development()?)?;
    let step = (n / 10).max(1);
    let mut sealed = 0;
    while sealed < n {
        let began = Instant::now();
        sealed = node.seal_many(step)?.header.number;
        let each = began.elapsed() / step;
        say(format_args!(
            "{sealed} blocks: {} MiB, {each:?} a block",
            resident()? / 1024
        ))?;
    }
    Ok(())
}

async fn reads(neurons: u32, rounds: u32) -> anyhow::Result<()> {
    let mut spec = Spec::development()?;
    spec.neurons.retain(|neuron| neuron.netuid != 1);
    for subnet in &mut spec.subnets {
        subnet.max_allowed_uids = subnet.max_allowed_uids.max(u16::try_from(neurons)?);
    }
    for i in 0..neurons {
        let account = AccountId::from(sp_io::hashing::blake2_256(&i.to_le_bytes())).to_ss58check();
        let json = serde_json::json!({
            "netuid": 1, "hotkey": account, "coldkey": account, "stake": 1_000_000_000_000u64, "permit": i < 64
        });
        spec.neurons.push(serde_json::from_value::<Neuron>(json)?);
    }
    let node = node(&spec)?;
    let running = serve(&node, 0, Limits::default()).await?;
    node.seal_many(2)?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let builder = WsClientBuilder::default().max_response_size(64 * 1024 * 1024);
        clients.push(Arc::new(
            builder.build(format!("ws://{}", running.address)).await?,
        ));
    }
    let argument = Bytes(NetUid(1).encode());
    for round in 1..=rounds {
        let (reads, bytes) = turn(&clients, "state_call", {
            let argument = argument.clone();
            move || rpc_params!["SubnetInfoRuntimeApi_get_metagraph", argument.clone()]
        })
        .await?;
        let (calls, _) = turn(&clients, "system_health", || rpc_params![]).await?;
        say(format_args!(
            "round {round}: {reads:.0} metagraphs/s of {neurons} neurons ({bytes} bytes each), {calls:.0} system_health/s, ratio 1 : {:.1}; {} MiB",
            calls / reads,
            resident()? / 1024
        ))?;
    }
    Ok(())
}

/// Calls per second of all clients together, and the length of an answer.
async fn turn(
    clients: &[Arc<WsClient>],
    method: &'static str,
    params: impl Fn() -> jsonrpsee::core::params::ArrayParams + Clone + Send + 'static,
) -> anyhow::Result<(f64, usize)> {
    let began = Instant::now();
    let mut working = tokio::task::JoinSet::new();
    for client in clients {
        let (client, params) = (Arc::clone(client), params.clone());
        working.spawn(async move {
            let (mut calls, mut length) = (0u32, 0);
            while began.elapsed() < TURN {
                let answer: Value = client.request(method, params()).await?;
                length = answer.as_str().map_or(0, str::len);
                calls += 1;
            }
            anyhow::Ok((calls, length))
        });
    }
    let (mut all, mut length) = (0u32, 0);
    while let Some(done) = working.join_next().await {
        let (calls, each) = done??;
        all += calls;
        length = each;
    }
    Ok((f64::from(all) / began.elapsed().as_secs_f64(), length))
}
