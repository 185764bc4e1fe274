//! Checkpoints of jobs on a real engine: taken while the program runs, and laid out before it starts.

#[path = "../../../crates/jobs/checkpoint-transfer/tests/support/block_store.rs"]
#[expect(dead_code, reason = "the keeper's own tests use all of it")]
pub(crate) mod block_store;

use muster_process::Tasks;
use muster_protocol::Digest;
use serde_json::{Value, json};

use self::block_store::BlockStore;
use crate::support::engine;
use crate::support::image;
use crate::support::lease::{Job, Lease};
use crate::support::miner::{FakeMiner, Wire};

/// The request for a job that leaves checkpoints in the store at `blocks`.
fn request(lease: &Lease, job: &Job, blocks: &str, resume: &Value) -> Value {
    let mut request = lease.request(job);
    request["muster"] = json!({"checkpoints": {
        "folder": "/checkpoint", "every": 3, "signal": "TERM", "metric": "loss", "attempt": 2, "halvings": 1,
        "blocks": blocks, "resume": resume,
    }});
    request
}

fn lease() -> Lease {
    let mut lease = Lease::new();
    lease.config.transfer.allow = vec!["127.0.0.1".to_owned()];
    lease
}

/// Drives a job to its end. Every checkpoint is answered, each when it is announced the second time if `late`.
async fn drive(wire: &mut Wire, late: bool) -> (Vec<Value>, Value) {
    let mut notices: Vec<Value> = Vec::new();
    loop {
        let message = wire.recv().await.expect("the executor has left");
        match message["message_type"].as_str().unwrap() {
            "MusterCheckpoint" => {
                let is_repeated = notices.contains(&message);
                if is_repeated || !late {
                    let kept = json!({
                        "message_type": "MusterCheckpointKept",
                        "job_uuid": message["job_uuid"], "number": message["number"], "ordinal": 7,
                    });
                    wire.send(&kept).await;
                }
                if !is_repeated {
                    notices.push(message);
                }
            }
            "V0JobFinishedRequest" | "V0JobFailedRequest" | "V0HordeFailedRequest" => {
                return (notices, message);
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_job_is_resumed_from_the_checkpoint_that_its_first_attempt_left_in_a_hostile_folder() {
    let engine = engine().await;
    image::load(&engine).await;
    let (tasks, store) = (Tasks::new(), BlockStore::default());
    let blocks = store.listen(&tasks).await;

    // The first attempt ends with 85, having saved: its newest checkpoint is announced before its end.
    let (first, miner) = (lease(), FakeMiner::with_features("checkpoints, metrics").await);
    let (executor, mut wire) = first.start(&miner).await;
    let job = Job::new(&["probe", "save", "6", "85"]);
    wire.send(&first.offer(&job)).await;
    wire.until("V0ExecutorReadyRequest").await;
    wire.send(&request(&first, &job, &blocks, &Value::Null)).await;
    let (notices, end) = drive(&mut wire, false).await;
    assert_eq!(end["docker_process_exit_status"], json!(85), "{end:#}");
    assert_eq!(
        end["docker_process_stdout"],
        json!("attempt 2 scale 0.5 every 3 from 0\nsaved 6\n")
    );
    let stderr = end["docker_process_stderr"].as_str().unwrap();
    assert!(
        stderr.contains("checkpoint link was not kept: link is a link"),
        "{stderr}"
    );
    assert!(stderr.contains("checkpoint sparse was not kept"), "{stderr}");
    let last = notices.last().unwrap();
    assert_eq!(
        (&last["name"], &last["step"]),
        (&json!("step-6"), &json!(6)),
        "{notices:#?}"
    );
    assert!(last["metric"].as_f64().unwrap() < 0.17, "{last}");
    executor.join().await.unwrap().unwrap();
    first.assert_clean(&engine).await;

    // The second one begins there, and its miner is slow to answer.
    let (second, miner) = (lease(), FakeMiner::with_features("checkpoints").await);
    let (executor, mut wire) = second.start(&miner).await;
    let job = Job::new(&["probe", "save", "3", "0"]);
    wire.send(&second.offer(&job)).await;
    wire.until("V0ExecutorReadyRequest").await;
    let resume = json!({"manifest": last["manifest"], "blocks": blocks});
    wire.send(&request(&second, &job, &blocks, &resume)).await;
    let (notices, end) = drive(&mut wire, true).await;
    assert_eq!(end["message_type"], json!("V0JobFinishedRequest"), "{end:#}");
    assert_eq!(
        end["docker_process_stdout"],
        json!("attempt 2 scale 0.5 every 3 from 6\nsaved 9\n")
    );
    assert!(
        notices.iter().all(|notice| notice["name"] != json!("step-6")),
        "{notices:#?}"
    );
    executor.join().await.unwrap().unwrap();
    second.assert_clean(&engine).await;
}

#[tokio::test]
async fn resume_data_that_does_not_match_its_manifest_starts_nothing_and_is_named() {
    let engine = engine().await;
    image::load(&engine).await;
    let (tasks, store) = (Tasks::new(), BlockStore::default());
    let blocks = store.listen(&tasks).await;
    let forged = bytes::Bytes::from_static(b"no manifest");
    let digest = Digest::of(&forged);
    store.blocks.lock().insert(digest, forged);
    let (lease, miner) = (lease(), FakeMiner::with_features("checkpoints").await);
    let (executor, mut wire) = lease.start(&miner).await;
    let job = Job::new(&["probe", "save", "3", "0"]);
    wire.send(&lease.offer(&job)).await;
    wire.until("V0ExecutorReadyRequest").await;
    let resume = json!({"manifest": digest, "blocks": blocks});
    wire.send(&request(&lease, &job, &blocks, &resume)).await;
    let (notices, end) = drive(&mut wire, false).await;
    assert_eq!(end["message_type"], json!("V0HordeFailedRequest"), "{end:#}");
    assert_eq!(end["context"]["resume"], json!("damaged_checkpoint"), "{end:#}");
    assert!(notices.is_empty());
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn a_store_that_may_not_be_reached_ends_no_job() {
    let engine = engine().await;
    image::load(&engine).await;
    let (lease, miner) = (lease(), FakeMiner::with_features("checkpoints").await);
    let (executor, mut wire) = lease.start(&miner).await;
    let job = Job::new(&["probe", "save", "3", "0"]);
    wire.send(&lease.offer(&job)).await;
    wire.until("V0ExecutorReadyRequest").await;
    // The rules for addresses refuse it.
    let blocks = "http://169.254.169.254/blocks/j?Expires=1&Signature=2";
    wire.send(&request(&lease, &job, blocks, &Value::Null)).await;
    let (notices, end) = drive(&mut wire, false).await;
    assert_eq!(end["message_type"], json!("V0JobFinishedRequest"), "{end:#}");
    let stderr = end["docker_process_stderr"].as_str().unwrap();
    assert!(stderr.contains("muster: checkpoints are not kept: "), "{stderr}");
    assert!(notices.is_empty());
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}
