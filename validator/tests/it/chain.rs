//! Weights on a real chain, set by a validator that is killed again and again: a cycle's weights come into force, and
//! where they are set without a commit they are submitted once.

#[cfg(test)]
#[path = "../../../crates/foundation/chain/tests/it/support.rs"]
#[expect(dead_code, reason = "tests of the client also stop and start their chain")]
mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use muster_chain::{ChainClient, Netuid, Uid};
use muster_identity::{Keypair, sign_receipt};
use muster_process::{Clock as _, SharedClock, SystemClock, Tasks};
use muster_protocol::job::{Attempt, AttemptPlan, Outcome};
use muster_protocol::receipt::{FinishedReceipt, FinishedTag, OfferedReceipt, StartedReceipt, StartedTag};
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::wire::miner::ExecutorTiming;
use muster_protocol::{
    AttemptId, ExecutorClass, JobId, MinerKey, ReceiptPayload, Signature, Timestamp, ValidatorKey,
};
use muster_routing::RouteDecision;
use muster_validator::chain::Subnet;
use muster_validator::store::{IssuedReceipt, NewAttempt, Store, StoredAttempt};
use muster_validator::{Config, run_on};
use serde_json::{Value, json};
use support::{Devchain, TAO};
use tokio::runtime::Builder;
use uuid::Uuid;

/// Restarts of the validator after which the test fails.
const LIVES: u64 = 80;

fn key(name: &str) -> Keypair {
    Keypair::from_uri(&format!("//{name}")).unwrap()
}

/// Alice is the validator, and Bob a miner that has worked.
fn spec(netuid: Netuid, commit_reveal: bool) -> Value {
    let neuron = |name: &str, stake: u64, permit: bool| {
        json!({"netuid": netuid.0, "hotkey": key(name).hotkey(), "coldkey": key(&format!("{name}//cold")).hotkey(),
               "stake": stake, "permit": permit})
    };
    json!({
        "stake_threshold": TAO,
        "subnets": [{"netuid": netuid.0, "tempo": 60, "commit_reveal": commit_reveal}],
        "balances": {key("Alice").hotkey().to_string(): 100 * TAO},
        "neurons": [neuron("Alice", 1000 * TAO, true), neuron("Bob", 10 * TAO, false)],
    })
}

/// Notes in the store that Bob was paid for the `ordinal`th job.
async fn pay(url: &str, client: &Arc<ChainClient>, netuid: Netuid, ordinal: u64) -> anyhow::Result<()> {
    let (store, now) = (Store::open(url).await?, SystemClock::new().now());
    let head = client.metagraph(netuid).await?.block;
    store.note_chain(&client.genesis(), head, now).await?;
    let job = JobId::from_uuid(Uuid::from_u128(ordinal.into()));
    let frame = json!({
        "signature": {
            "signature_type": "bittensor", "signatory": key("User").hotkey(), "timestamp_ns": now.micros() * 1_000,
            "signature": Signature::from_bytes([1; 64]).to_base64(), "signature_scope": "SignedFields",
        },
        "uuid": job, "executor_class": "always_on.test", "docker_image": "x", "args": [], "env": {}, "use_gpu": false,
        "download_time_limit": 1, "execution_time_limit": 1, "upload_time_limit": 1, "streaming_start_time_limit": 1,
    });
    let request: UserJobRequest = serde_json::from_value(frame.clone())?;
    store.admit(&request, &frame.to_string(), now, None).await?;
    store.begin_attempt(job, &beginning(job, now)).await?;
    let outcome = Outcome::Completed(Box::default());
    store.close_job(job, &outcome, &outcome.metadata(), now).await?;
    let payload = ReceiptPayload::Finished(FinishedReceipt {
        job_uuid: AttemptId::first_of(job),
        miner_hotkey: MinerKey(key("Bob").hotkey()),
        validator_hotkey: ValidatorKey(key("Alice").hotkey()),
        timestamp: now,
        receipt_type: FinishedTag,
        time_started: now,
        time_took_us: 1,
        score_str: "3.000000".to_owned(),
        block_numbers: vec![],
    });
    let validator_signature = sign_receipt(&key("Alice"), &payload);
    let receipt = IssuedReceipt {
        offered: OfferedReceipt {
            payload,
            validator_signature,
        },
        miner_signature: None,
    };
    store.keep_receipt(&receipt, Some(head)).await?;
    store.close().await;
    Ok(())
}

fn beginning(job: JobId, now: Timestamp) -> NewAttempt {
    let payload = ReceiptPayload::Started(StartedReceipt {
        job_uuid: AttemptId::first_of(job),
        miner_hotkey: MinerKey(key("Bob").hotkey()),
        validator_hotkey: ValidatorKey(key("Alice").hotkey()),
        timestamp: now,
        receipt_type: StartedTag,
        executor_class: ExecutorClass::AlwaysOnTest,
        is_organic: true,
        ttl: 1,
    });
    let validator_signature = sign_receipt(&key("Alice"), &payload);
    NewAttempt {
        attempt: attempt(job, now),
        receipt: IssuedReceipt {
            offered: OfferedReceipt {
                payload,
                validator_signature,
            },
            miner_signature: None,
        },
        decision: decision(),
        block: None,
    }
}

fn decision() -> RouteDecision {
    RouteDecision {
        block: 1,
        class: ExecutorClass::AlwaysOnTest,
        chosen: None,
        candidates: vec![],
        more: 0,
        excluded: vec![],
    }
}

fn attempt(job: JobId, now: Timestamp) -> StoredAttempt {
    let second = std::time::Duration::from_secs(1);
    let timing = ExecutorTiming {
        allowed_leeway: 1,
        download_time_limit: 1,
        execution_time_limit: 1,
        upload_time_limit: 1,
        streaming_start_time_limit: 1,
    };
    let plan = AttemptPlan {
        class: ExecutorClass::AlwaysOnTest,
        streaming: false,
        timing,
        dial: second,
        reservation: second,
        startup: second,
        reconnect: second,
        image: None,
    };
    StoredAttempt {
        id: AttemptId::first_of(job),
        ordinal: 1,
        miner: MinerKey(key("Bob").hotkey()),
        uid: Uid(1),
        address: "127.0.0.1:1".parse().unwrap(),
        machine: Attempt::new(plan, now),
        started_at: now,
        has_checkpoint: false,
    }
}

fn config(folder: &Path) -> Config {
    let mut config = Config {
        bind: ([127, 0, 0, 1], 0).into(),
        store: format!("sqlite:{}", folder.join("validator.db").display()),
        ..Config::default()
    };
    config.facilitator.url = "ws://127.0.0.1:1/ws/v0/".to_owned();
    config.receipts.gather = false;
    config.operator_token = folder.join("operator-token");
    config
}

/// Kills the validator every few blocks until Bob's weight is in force; returns the blocks in which the chain took a
/// call.
async fn killed_until_in_force(netuid: Netuid, commit_reveal: bool) -> anyhow::Result<BTreeSet<u64>> {
    let chain = Devchain::start(&spec(netuid, commit_reveal)).await?;
    let client = chain.client().await?;
    let folder = tempfile::tempdir()?;
    let config = config(folder.path());
    let (alice, mut blocks) = (key("Alice"), client.blocks().await?);
    let before = client
        .metagraph(netuid)
        .await?
        .find(&alice.hotkey())
        .unwrap()
        .last_update
        .0;
    let mut taken = BTreeSet::new();
    for life in 0..LIVES {
        // Bob works on: work older than twenty cycles earns nothing, and a busy machine may need more for its weights.
        pay(&config.store, &client, netuid, life + 1).await?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let clock: SharedClock = Arc::new(SystemClock::new());
        let subnet = Subnet::new(vec![chain.url.clone()], netuid, alice.clone());
        let run = run_on(
            config.clone(),
            alice.clone(),
            Arc::new(subnet),
            Tasks::new(),
            clock,
        );
        let entered = runtime.enter();
        drop(Tasks::new().spawn("validator", run));
        drop(entered);
        // Seeded: the validator runs for ten to thirty blocks, a different number each time, and for one more in each
        // life: on a busy machine it may not come to its weights within thirty.
        let until = blocks.next().await?.0 + 10 + (life * 7) % 21 + life;
        let mut done = false;
        while !done && blocks.next().await?.0 < until {
            // Before the metagraph, so that the block of weights in force is seen.
            done = client.weights_of(netuid, Uid(0)).await? == [(1, 65_535)];
            let graph = client.metagraph(netuid).await?;
            let update = graph.find(&alice.hotkey()).unwrap().last_update.0;
            taken.extend(Some(update).filter(|update| *update != before));
        }
        // Dropping a runtime waits for its threads, which is not allowed inside another runtime.
        std::thread::spawn(move || drop(runtime)).join().unwrap();
        if done {
            return Ok(taken);
        }
    }
    panic!("{LIVES} lives, and no weights: {taken:?}")
}

#[tokio::test]
async fn plain_weights_of_a_validator_that_is_killed_all_the_time_are_set_once() -> anyhow::Result<()> {
    let taken = killed_until_in_force(Netuid(1), false).await?;
    assert_eq!(taken.len(), 1, "{taken:?}");
    Ok(())
}

#[tokio::test]
async fn timelocked_weights_of_a_validator_that_is_killed_all_the_time_come_to_be_in_force()
-> anyhow::Result<()> {
    // On a busy machine a commit may be lost before its round is published; its work is then committed again.
    let taken = killed_until_in_force(Netuid(1), true).await?;
    assert!(!taken.is_empty());
    Ok(())
}
