//! Every message between validator, miner and executor keeps its bytes on each socket that it belongs to.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use muster_protocol::wire::executor_socket::{
    ExecutorToMiner, MinerToExecutor, decode_from_executor, decode_from_miner,
};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::wire::{WireError, decode, signing};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::golden::{computehorde_frames, rewrite};

/// The messages of one direction on one socket.
struct SocketMessages {
    name: &'static str,
    /// The message types that its parser names.
    kinds: Vec<String>,
    rewrite: fn(&str, &str) -> String,
}

fn sockets() -> [SocketMessages; 4] {
    [
        SocketMessages {
            name: "ValidatorToMiner",
            kinds: kinds::<ValidatorToMiner>(),
            rewrite: rewrite::<ValidatorToMiner>,
        },
        SocketMessages {
            name: "MinerToValidator",
            kinds: kinds::<MinerToValidator>(),
            rewrite: rewrite::<MinerToValidator>,
        },
        SocketMessages {
            name: "MinerToExecutor",
            kinds: kinds::<MinerToExecutor>(),
            rewrite: rewrite::<MinerToExecutor>,
        },
        SocketMessages {
            name: "ExecutorToMiner",
            kinds: kinds::<ExecutorToMiner>(),
            rewrite: rewrite::<ExecutorToMiner>,
        },
    ]
}

/// The message types of `M`, from the error about an unknown one.
fn kinds<M: DeserializeOwned>() -> Vec<String> {
    let unknown = serde_json::from_str::<M>(r#"{"message_type":""}"#).err().unwrap();
    let text = unknown.to_string();
    let named = text.split('`').skip(1).step_by(2);
    named.filter(|kind| !kind.is_empty()).map(str::to_owned).collect()
}

fn kind_of(frame: &str) -> Option<String> {
    let value: Value = serde_json::from_str(frame).unwrap();
    Some(value.get("message_type")?.as_str()?.to_owned())
}

/// Reads and writes a frame on each socket that knows its kind.
pub(crate) fn round_trip(kind: &str, frame: &str) -> String {
    let sockets = sockets();
    let knowing = sockets
        .iter()
        .filter(|socket| socket.kinds.iter().any(|known| known == kind));
    let mut written: Vec<_> = knowing
        .map(|socket| (socket.rewrite)(socket.name, frame))
        .collect();
    written.dedup();
    match <[String; 1]>::try_from(written) {
        Ok([written]) => written,
        Err(written) => panic!("{kind} is written as {written:?}"),
    }
}

/// A frame of each message of Muster's own.
pub(crate) fn own_frames() -> Vec<String> {
    [
        executor_frames(),
        order_frames(),
        validator_frames(),
        audit_frames(),
    ]
    .concat()
}

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const JOB: &str = r#""job_uuid":"11111111-2222-4333-8444-555555555555""#;

/// Frames of executors.
fn executor_frames() -> Vec<String> {
    let secret = "07".repeat(32);
    let reattach = |age| {
        format!(r#"{{"message_type":"MusterReattach",{JOB},"epoch":1,"secret":"{secret}","job_ms":{age}}}"#)
    };
    vec![
        format!(r#"{{"message_type":"MusterJobLog",{JOB},"stream":"stderr","offset":7,"data":"aGk="}}"#),
        format!(
            r#"{{"message_type":"MusterJobProgress",{JOB},"of":"image_pull","done":1048576,"total":null}}"#
        ),
        format!(
            r#"{{"message_type":"MusterJobProgress",{JOB},"of":"image_pull","done":1,"total":2,"layers":{{"done":1,"total":3}}}}"#
        ),
        format!(
            r#"{{"message_type":"MusterJobMetrics",{JOB},"at":"2026-01-21T12:34:56Z","report":{{"metrics":{{"loss":-1.5}},"elapsed_s":30}}}}"#
        ),
        format!(
            r#"{{"message_type":"MusterCheckpoint",{JOB},"number":2,"manifest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","name":"step-40","bytes":9,"epoch":1,"step":40,"metric":0.5}}"#
        ),
        format!(r#"{{"message_type":"MusterExecutorUp",{JOB},"registry":"ghcr.io","image_s":1800}}"#),
        format!(r#"{{"message_type":"MusterLeaseOver",{JOB}}}"#),
        format!(r#"{{"message_type":"MusterSealSession",{JOB},"statement":"bXVzdGVy"}}"#),
        format!(r#"{{"message_type":"MusterSessionClosed",{JOB},"close":"bXVzdGVy"}}"#),
        r#"{"message_type":"MusterExecutorHello","class":"always_on.test","capacity":2,"version":"0.1.0"}"#
            .to_owned(),
        format!(
            r#"{{"message_type":"MusterEnrolExecutor","secret":"{}","name":"box"}}"#,
            "a5".repeat(32)
        ),
        concat!(
            r#"{"message_type":"MusterExecutorMetrics","at":"2026-01-21T12:34:56Z","cpu_permille":250,"#,
            r#""memory_total":4,"memory_used":3,"disk_total":2,"disk_used":1,"network_received":5,"network_sent":6,"#,
            r#""gpus":[{"uuid":"GPU-1","name":"H200","utilisation_percent":99,"memory_total":9,"memory_used":8,"#,
            r#""temperature_c":60,"power_mw":700000}]}"#
        )
        .to_owned(),
        reattach("null"),
        reattach("1500"),
        format!(
            r#"{{"message_type":"MusterSessionProofs","job_uuid":"11111111-2222-4333-8444-555555555555","session":"s","validator":"5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY","first":2,"proofs":[{{"digest":"{DIGEST}","is_answer":true,"at":"2026-01-21T12:34:56Z"}}]}}"#
        ),
    ]
}

/// Frames of miners for executors.
fn order_frames() -> Vec<String> {
    let secret = "07".repeat(32);
    let sealed = |attestation, refusal| {
        format!(
            r#"{{"message_type":"MusterSessionSealed",{JOB},"attestation":{attestation},"refusal":{refusal}}}"#
        )
    };
    vec![
        format!(r#"{{"message_type":"MusterCancelJob",{JOB},"reason":"nobody waits for it"}}"#),
        format!(r#"{{"message_type":"MusterCheckpointKept",{JOB},"number":2,"ordinal":7}}"#),
        format!(r#"{{"message_type":"MusterDrain",{JOB},"lead_s":60}}"#),
        format!(
            r#"{{"message_type":"V0JobRequest",{JOB},"executor_class":"always_on.test","docker_image":"a","raw_script":null,"docker_run_options_preset":"none","docker_run_cmd":[],"env":{{}},"volume":null,"output_upload":null,"artifacts_dir":null,"muster":{{"checkpoints":{{"folder":"/checkpoint","every":5,"signal":"TERM","metric":"loss","attempt":2,"halvings":1,"blocks":"http://f/blocks/x?Expires=1&Signature=2","resume":{{"manifest":"{DIGEST}","blocks":"http://f/blocks/x?Expires=1&Signature=3"}}}}}}}}"#
        ),
        r#"{"message_type":"MusterExecutorEnrolled","class":"always_on.test"}"#.to_owned(),
        concat!(
            r#"{"message_type":"MusterWhitelist","images":[{"image":"#,
            r#""sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","#,
            r#""reference":"registry.example.org/tiny:1","class":"always_on.test","model":"tiny"}]}"#
        )
        .to_owned(),
        concat!(
            r#"{"message_type":"MusterWhitelist","images":[{"image":"#,
            r#""sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","#,
            r#""class":"always_on.test","model":"tiny","share":3}]}"#
        )
        .to_owned(),
        r#"{"message_type":"MusterWhitelist","images":[]}"#.to_owned(),
        format!(r#"{{"message_type":"MusterFetchImage",{JOB}}}"#),
        format!(
            r#"{{"message_type":"MusterLeaseHeld",{JOB},"epoch":1,"secret":"{secret}","reattach_s":150}}"#
        ),
        format!(r#"{{"message_type":"MusterEndStored",{JOB}}}"#),
        sealed(r#""bXVzdGVy""#, "null"),
        sealed(
            "null",
            r#""the session would be valid for longer than its lease""#,
        ),
    ]
}

/// Frames of miners for validators only.
fn validator_frames() -> Vec<String> {
    let receipt = computehorde_frames()
        .into_iter()
        .find(|frame| kind_of(frame).is_none() && frame.contains("\"payload\""))
        .unwrap();
    vec![
        concat!(
            r#"{"message_type":"MusterMachines","machines":[{"name":"box-7","class":"always_on.test","#,
            r#""at":"2026-01-21T12:34:56Z","cpu_permille":250,"memory_total":4,"memory_used":3,"disk_total":2,"#,
            r#""disk_used":1,"gpus":1,"gpu_percent":99,"gpu_memory_total":9,"gpu_memory_used":8}]}"#
        )
        .to_owned(),
        concat!(
            r#"{"message_type":"V0ExecutorManifestRequest","manifest":{"always_on.test":2},"#,
            r#""private_images":{"always_on.test":1}}"#
        )
        .to_owned(),
        format!(
            r#"{{"message_type":"MusterReceiptCountersigned","receipt":{receipt}}}"#
        ),
        format!(
            r#"{{"message_type":"V0HordeFailedRequest","job_uuid":"11111111-2222-4333-8444-555555555555","reported_by":"miner","message":"no slot","reason":"generic_error","context":{{"image_fetch":"no_slot","slot_leases":[{receipt}]}}}}"#
        ),
    ]
}

/// Frames about spot checks.
fn audit_frames() -> Vec<String> {
    let audit = |notice: &str| format!(r#"{{"message_type":"MusterAudit","number":7,"notice":{notice}}}"#);
    let leaf = format!(
        r#"{{"session":"11111111-2222-4333-8444-555555555555","sequence":4,"proof":"{DIGEST}","output_tokens":3,"earned":5,"stratum":"{DIGEST}","model":"tiny","position":2,"path":["{DIGEST}"]}}"#
    );
    vec![
        audit(&format!(
            r#"{{"header":{{"header":"bXVzdGVy","own":1,"leaves":[{leaf}]}}}}"#
        )),
        audit(r#"{"header":{"header":"bXVzdGVy","between":["bXVz"],"own":0,"leaves":[]}}"#),
        audit(&format!(
            r#"{{"outcomes":{{"bucket":9,"block_hash":"{DIGEST}","draw":"00","shares":[{{"model":"tiny","ppm":5,"position":0,"path":[]}}],"outcomes":[{{"position":2,"outcome":{{"scored":{{"tokens":8,"off":1}}}}}},{{"position":3,"outcome":{{"unusable":"no_token_ids"}}}},{{"position":4,"outcome":"no_outcome"}}]}}}}"#
        )),
        audit(&format!(
            r#"{{"verdict":{{"bundle":"{DIGEST}","bytes":12,"verdict":"suspect","model":"tiny","quality_per_mille":500,"since":"2026-01-21T12:34:56Z"}}}}"#
        )),
        audit(&format!(
            r#"{{"bundle_part":{{"bundle":"{DIGEST}","offset":3,"data":"aGk="}}}}"#
        )),
        audit(&format!(
            r#"{{"appeal_answer":{{"bundle":"{DIGEST}","is_open":false,"words":"no"}}}}"#
        )),
        audit(r#""done""#),
        r#"{"message_type":"MusterAuditReply","taken":{"number":7}}"#.to_owned(),
        format!(r#"{{"message_type":"MusterAuditReply","fetch":{{"bundle":"{DIGEST}","offset":3}}}}"#),
        r#"{"message_type":"MusterAuditReply","appeal":{"appeal":"bXVzdGVy"}}"#.to_owned(),
    ]
}

#[test]
fn every_message_of_a_socket_keeps_its_bytes() {
    let frames: Vec<String> = computehorde_frames().into_iter().chain(own_frames()).collect();
    for socket in sockets() {
        assert!(socket.kinds.len() >= 12, "{}: {:?}", socket.name, socket.kinds);
        for kind in &socket.kinds {
            let mut samples = frames
                .iter()
                .filter(|frame| kind_of(frame).as_ref() == Some(kind))
                .peekable();
            assert!(samples.peek().is_some(), "no frame of {kind}");
            for frame in samples {
                assert_eq!(
                    &(socket.rewrite)(socket.name, frame),
                    frame,
                    "{} {kind}",
                    socket.name
                );
            }
        }
    }
}

#[test]
fn a_message_of_another_socket_is_misplaced_and_one_of_none_is_not() {
    let [to_miner, to_validator, to_executor, from_executor] = sockets();
    let from_validator = |frame: &str| signing::decode_from_validator(frame).map(|_| ());
    type Reader<'a> = &'a dyn Fn(&str) -> Result<(), WireError>;
    let readers: [(Reader<'_>, &SocketMessages, &SocketMessages); 3] = [
        (&from_validator, &to_miner, &to_executor),
        (
            &|frame| decode_from_miner(frame).map(|_| ()),
            &to_executor,
            &to_miner,
        ),
        (
            &|frame| decode_from_executor(frame).map(|_| ()),
            &from_executor,
            &to_validator,
        ),
    ];
    let frames: Vec<String> = computehorde_frames().into_iter().chain(own_frames()).collect();
    for (read, own, other) in readers {
        let mut misplaced = 0;
        for frame in &frames {
            let Some(kind) = kind_of(frame) else { continue };
            let read = read(frame);
            if own.kinds.contains(&kind) {
                assert!(read.is_ok(), "{}: {read:?}", own.name);
            } else {
                let error = read.unwrap_err();
                assert_eq!(
                    error.is_misplaced(),
                    other.kinds.contains(&kind),
                    "{}: {error}",
                    own.name
                );
                assert!(error.reason.contains(&kind), "{error}");
                misplaced += usize::from(error.is_misplaced());
            }
        }
        assert!(misplaced >= 5, "{}: {misplaced}", own.name);
        for malformed in [
            "",
            "{}",
            r#"{"message_type":"V9Nothing"}"#,
            r#"{"message_type":"MusterFetchImage"}"#,
        ] {
            assert!(!read(malformed).unwrap_err().is_misplaced(), "{malformed}");
        }
    }
}

#[test]
fn a_piece_of_output_beyond_its_bound_is_refused() {
    let long = format!(
        r#"{{"message_type":"MusterJobLog","job_uuid":"11111111-2222-4333-8444-555555555555","stream":"stdout","offset":0,"data":"{}"}}"#,
        "A".repeat(1 << 20)
    );
    assert!(decode::<ExecutorToMiner>(&long).is_err());
    assert!(decode::<MinerToValidator>(&long).is_err());
}
