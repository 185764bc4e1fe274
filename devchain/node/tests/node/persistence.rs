//! A chain in a folder outlives its process, however that ends.

use crate::support::{Client, next, sign, weights};
use muster_devchain::spec::Spec;
use serde_json::{Value, json};
use sp_core::{Bytes, H256};
use sp_keyring::Sr25519Keyring::Alice;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// The program, killed without warning when it is dropped.
struct Process {
    child: Child,
    url: String,
    genesis: H256,
}

fn command(folder: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster-devchain"));
    command
        .args(["--port", "0", "--data"])
        .arg(folder)
        .args(more)
        .env("RUST_LOG", "warn")
        .stdout(Stdio::piped());
    command
}

impl Process {
    fn start(folder: &Path, more: &[&str]) -> Self {
        let mut child = command(folder, more).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.len(), 4, "{line:?}");
        Self {
            child,
            url: words[1].to_owned(),
            genesis: words[3].parse().unwrap(),
        }
    }

    async fn client(&self) -> Client {
        Client::connect(&self.url).await.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL: nothing is flushed, nothing reported.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The error with which it refuses to start.
fn fails(folder: &Path, more: &[&str]) -> String {
    let mut child = command(folder, more).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    if !line.is_empty() {
        let _ = child.kill();
    }
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert_eq!((line.as_str(), status.code()), ("", Some(1)));
    String::from_utf8(stderr).unwrap()
}

async fn hash_at(client: &Client, number: u32) -> Option<H256> {
    client.call("chain_getBlockHash", json!([number])).await.unwrap()
}

#[tokio::test]
async fn the_chain_goes_on_where_it_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), &["--manual-seal"]);
    let (client, genesis) = (process.client().await, process.genesis);
    let transaction = sign(genesis, Alice, 0, weights().into(), 0);
    client
        .call::<H256>("author_submitExtrinsic", json!([transaction]))
        .await
        .unwrap();
    let first = client.seal(1).await;
    let last = client.seal(20).await;
    let storage = async |client: &Client, hash: H256| {
        let keys: Vec<Bytes> = client.call("state_getKeys", json!(["0x", hash])).await.unwrap();
        client
            .call::<Value>("state_queryStorageAt", json!([keys, hash]))
            .await
            .unwrap()
    };
    let states = (storage(&client, first).await, storage(&client, last).await);
    let times = client.call::<Value>("dev_heads", json!([])).await.unwrap();
    drop(process);

    let process = Process::start(folder.path(), &["--manual-seal"]);
    let client = process.client().await;
    assert_eq!(process.genesis, genesis);
    assert_eq!(client.call::<Value>("dev_heads", json!([])).await.unwrap(), times);
    assert_eq!(
        (storage(&client, first).await, storage(&client, last).await),
        states,
        "old states too"
    );
    let block: Value = client.call("chain_getBlock", json!([first])).await.unwrap();
    assert_eq!(block["block"]["extrinsics"][1], json!(transaction));
    let account = Alice.to_account_id().to_string();
    assert_eq!(
        client
            .call::<u32>("system_accountNextIndex", json!([account]))
            .await
            .unwrap(),
        1
    );
    // The next block is the one that would have followed, as the same chain sealed at once shows.
    let next = client.seal(1).await;
    let other = tempfile::tempdir().unwrap();
    let unbroken = Process::start(other.path(), &["--manual-seal"]);
    let client = unbroken.client().await;
    client
        .call::<H256>("author_submitExtrinsic", json!([transaction]))
        .await
        .unwrap();
    assert_eq!(client.seal(22).await, next);
}

#[tokio::test]
async fn nothing_that_was_said_to_be_final_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut known: Vec<(u32, H256)> = vec![];
    let mut genesis = None;
    for round in 0..12u32 {
        let process = Process::start(folder.path(), &["--manual-seal", "--states", "50"]);
        let client = process.client().await;
        assert_eq!(*genesis.get_or_insert(process.genesis), process.genesis);
        for (number, hash) in &known {
            assert_eq!(hash_at(&client, *number).await, Some(*hash), "round {round}");
        }
        // The state is the one after the head: a runtime that works on another refuses or panics.
        client.seal(2).await;
        let end = "chain_unsubscribeFinalizedHeads";
        let mut finals = client
            .subscribe("chain_subscribeFinalizedHeads", json!([]), end)
            .await
            .unwrap();
        let sealer = process.client().await;
        let sealing = tokio::spawn(async move { sealer.attempt("dev_seal", json!([100_000])).await });
        // Killed while it seals, each time after another number of blocks.
        for _ in 0..=round * 7 {
            let header = next(&mut finals).await;
            let number = u32::from_str_radix(&header["number"].as_str().unwrap()[2..], 16).unwrap();
            let header: muster_devchain_runtime::Header = serde_json::from_value(header).unwrap();
            known.push((number, header.hash()));
        }
        drop(process);
        assert!(sealing.await.unwrap().is_err(), "it was killed while it sealed");
    }
    assert!(known.len() > 100);
}

#[tokio::test]
async fn another_chain_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(Process::start(folder.path(), &["--manual-seal"]));
    let mut spec = Spec::development().unwrap();
    spec.stake_threshold = 77;
    let file = folder.path().join("other.json");
    std::fs::write(&file, serde_json::to_string(&spec).unwrap()).unwrap();
    let said = fails(
        folder.path(),
        &["--manual-seal", "--spec", file.to_str().unwrap()],
    );
    assert!(
        said.contains("genesis")
            && said.contains("specification")
            && said.contains(folder.path().to_str().unwrap()),
        "{said}"
    );
    // The right one still has it.
    drop(Process::start(folder.path(), &["--manual-seal"]));
}

#[test]
fn two_nodes_do_not_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = Process::start(folder.path(), &["--manual-seal"]);
    let said = fails(folder.path(), &["--manual-seal"]);
    assert!(said.contains("another node uses this folder"), "{said}");
    drop(first);
    drop(Process::start(folder.path(), &["--manual-seal"]));
}

#[tokio::test]
async fn a_damaged_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), &["--manual-seal"]);
    process.client().await.seal(50).await;
    drop(process);
    let file = folder.path().join("chain.redb");
    let mut bytes = std::fs::read(&file).unwrap();
    // The header is left as it is.
    bytes
        .iter_mut()
        .skip(4096)
        .step_by(100)
        .for_each(|byte| *byte ^= 1);
    std::fs::write(&file, &bytes).unwrap();
    let said = fails(folder.path(), &["--manual-seal"]);
    assert!(said.contains("damaged"), "{said}");
    std::fs::write(&file, "something else").unwrap();
    fails(folder.path(), &["--manual-seal"]);
}

#[tokio::test]
async fn blocks_by_time_stand_still_when_they_should() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), &["--block-time-ms", "20"]);
    let client = process.client().await;
    let end = "chain_unsubscribeNewHeads";
    let mut heads = client
        .subscribe("chain_subscribeNewHeads", json!([]), end)
        .await
        .unwrap();
    for _ in 0..5 {
        next(&mut heads).await;
    }
    client
        .call::<Value>("dev_stallHead", json!([true]))
        .await
        .unwrap();
    // One may have been on its way.
    let quiet = std::time::Duration::from_millis(400);
    let more = async { while heads.next().await.is_some() {} };
    let _ = tokio::time::timeout(quiet, more).await; // bounds: twenty block times, and the head stands still for most
    let head: Value = client.call("dev_heads", json!([])).await.unwrap();
    let next_head = tokio::time::timeout(quiet, heads.next()).await; // bounds: no block comes in twenty block times
    assert!(next_head.is_err(), "a block comes");
    assert_eq!(client.call::<Value>("dev_heads", json!([])).await.unwrap(), head);
    client
        .call::<Value>("dev_stallHead", json!([false]))
        .await
        .unwrap();
    next(&mut heads).await;
}
