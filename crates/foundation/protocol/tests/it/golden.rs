//! Every message that the Python implementation makes is read and written back, byte for byte.
//!
//! ComputeHorde's own code made `tests/vectors/wire.json` and `python.json` (see `tests/python/make_vectors.py`).

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use muster_protocol::receipt::Receipt;
use muster_protocol::wire::facilitator::{FromFacilitator, ToFacilitator};
use muster_protocol::wire::muster::{Challenge, ChallengeNonce};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::wire::{decode, encode, signing};
use muster_protocol::{Hotkey, ValidatorKey};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::sockets;

fn vectors(text: &str) -> serde_json::Map<String, Value> {
    serde_json::from_str(text).unwrap()
}

fn wire() -> serde_json::Map<String, Value> {
    vectors(include_str!("../../../../../tests/vectors/wire.json"))
}

fn python() -> serde_json::Map<String, Value> {
    vectors(include_str!("../../../../../tests/vectors/python.json"))
}

/// Reads a frame as `M` and writes it again.
pub(crate) fn rewrite<M: DeserializeOwned + Serialize>(name: &str, frame: &str) -> String {
    let message: M = decode(frame).unwrap_or_else(|error| panic!("{name}: {error}\n{frame}"));
    encode(&message)
}

/// Through every socket that the message belongs to.
pub(crate) fn round_trip(name: &str, frame: &str) -> String {
    let value: Value = serde_json::from_str(frame).unwrap();
    match value.get("message_type").and_then(Value::as_str) {
        Some("V0AuthenticationRequest" | "V0Heartbeat" | "V0JobStatusUpdate" | "V0MachineSpecsUpdate") => {
            rewrite::<ToFacilitator>(name, frame)
        }
        Some("V2JobRequest" | "V0JobCheated") => rewrite::<FromFacilitator>(name, frame),
        Some(kind) => sockets::round_trip(kind, frame),
        None if value.get("payload").is_some() => rewrite::<Receipt>(name, frame),
        None => rewrite::<FromFacilitator>(name, frame),
    }
}

#[test]
fn frames_of_the_current_release() {
    let mut seen = 0;
    for (name, frame) in wire().iter().filter(|(name, _)| name.ends_with("__raw")) {
        let frame = frame.as_str().unwrap();
        assert_eq!(round_trip(name, frame), frame, "{name}");
        seen += 1;
    }
    assert!(seen >= 23, "only {seen} frames");
}

#[test]
fn frames_of_the_next_release() {
    let mut seen = 0;
    for (name, frame) in &python() {
        let Some(frame) = frame.as_str().filter(|frame| is_plain(name, frame)) else {
            continue;
        };
        assert_eq!(round_trip(name, frame), without_null_signature(frame), "{name}");
        seen += 1;
    }
    assert!(seen >= 60, "only {seen} frames");
}

/// Whether a vector is a frame that we write as it is, but for a null `validator_signature`.
fn is_plain(name: &str, frame: &str) -> bool {
    let is_other = name.ends_with("_blob") || name.contains("_signed") || name.ends_with("_future");
    frame.starts_with('{') && !is_other
}

/// 0.0.27 writes its new field even when it is null; we leave it out, as the current release does.
fn without_null_signature(frame: &str) -> String {
    frame.replacen("\"validator_signature\":null,", "", 1)
}

/// Every frame of ComputeHorde's that we write as it is.
pub(crate) fn computehorde_frames() -> Vec<String> {
    let (wire, python) = (wire(), python());
    let of = |vectors: &serde_json::Map<String, Value>, wanted: fn(&str, &str) -> bool| {
        let texts = vectors
            .iter()
            .filter_map(|(name, frame)| frame.as_str().filter(|frame| wanted(name, frame)));
        texts.map(without_null_signature).collect::<Vec<_>>()
    };
    let mut frames = of(&wire, |name, _| name.ends_with("__raw"));
    frames.extend(of(&python, is_plain));
    frames
}

#[test]
fn the_signed_text_of_each_receipt() {
    for (vectors, receipt, blob) in [
        (wire(), "Receipt_started__raw", "started_blob"),
        (python(), "receipt_started", "receipt_started_blob"),
        (python(), "receipt_accepted", "receipt_accepted_blob"),
        (python(), "receipt_finished", "receipt_finished_blob"),
    ] {
        let receipt: Receipt = decode(vectors[receipt].as_str().unwrap()).unwrap();
        assert_eq!(
            receipt.payload.signed_bytes(),
            vectors[blob].as_str().unwrap().as_bytes(),
            "{blob}"
        );
        receipt.payload.check().unwrap();
    }
}

#[test]
fn the_signed_text_of_a_greeting_and_of_a_streaming_address() {
    let wire = wire();
    let greeting: ValidatorToMiner = decode(wire["ValidatorAuthForMiner__raw"].as_str().unwrap()).unwrap();
    let ValidatorToMiner::ValidatorAuthForMiner(auth) = greeting else {
        panic!("another message")
    };
    assert_eq!(
        auth.signed_bytes(),
        wire["auth_blob"].as_str().unwrap().as_bytes()
    );
    let job = "11111111-2222-4333-8444-555555555555".parse().unwrap();
    assert_eq!(
        signing::streaming_ready(job, "1.2.3.4", 6006, "PEM"),
        format!("{job}:1.2.3.4:6006:PEM").as_bytes()
    );
}

#[test]
fn the_challenge_of_a_facilitator_and_what_answers_it() {
    let nonce = ChallengeNonce::from_bytes([0xa5; 32]);
    let validator = ValidatorKey(Hotkey::from_bytes([0x11; 32]));
    let signed = [
        b"muster/facilitator-challenge/1".as_slice(),
        &[0xa5; 32],
        &[0x11; 32],
    ]
    .concat();
    assert_eq!(signing::facilitator_challenge(&nonce, validator), signed);

    let challenge = format!(
        r#"{{"message_type":"MusterChallenge","nonce":"{}"}}"#,
        "a5".repeat(32)
    );
    assert_eq!(
        encode(&FromFacilitator::Challenge(Challenge::new(nonce))),
        challenge
    );
    assert_eq!(rewrite::<FromFacilitator>("challenge", &challenge), challenge);
    let answer = format!(
        r#"{{"message_type":"MusterChallengeResponse","signature":"0x{}"}}"#,
        "07".repeat(64)
    );
    assert_eq!(rewrite::<ToFacilitator>("answer", &answer), answer);
    for bad in [challenge.replace("a5", "5"), challenge.replacen("a5", "zz", 1)] {
        assert!(decode::<FromFacilitator>(&bad).is_err(), "{bad}");
    }
}

/// Frames of validators to a facilitator.
pub(crate) fn facilitator_frames() -> Vec<String> {
    let job = r#""uuid":"11111111-2222-4333-8444-555555555555""#;
    vec![
        format!(r#"{{"message_type":"MusterJobLog",{job},"stream":"stdout","offset":7,"data":"aGk="}}"#),
        format!(r#"{{"message_type":"MusterJobProgress",{job},"of":"download","done":1,"total":2}}"#),
        format!(
            r#"{{"message_type":"MusterJobProgress",{job},"of":"image_pull","done":1,"total":null,"layers":{{"done":0,"total":7}}}}"#
        ),
        format!(
            r#"{{"message_type":"MusterJobMetrics",{job},"at":"2026-01-21T12:34:56Z","report":{{"done_permille":250,"epoch":1,"epochs":4,"step":10,"steps":40,"metrics":{{"loss":0.5}},"elapsed_s":30,"eta_s":90}}}}"#
        ),
        concat!(
            r#"{"message_type":"MusterJobCheckpoints","uuid":"11111111-2222-4333-8444-555555555555","kept":["#,
            r#"{"ordinal":3,"attempt":"11111111-2222-4333-8444-555555555556","#,
            r#""manifest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","name":"step-40","#,
            r#""bytes":9,"epoch":1,"step":40,"metric":0.5,"at":"2026-01-21T12:34:56Z"}]}"#
        )
        .to_owned(),
        format!(r#"{{"message_type":"MusterJobCheckpoints",{job},"kept":[],"ended_attempts":2}}"#),
        format!(
            r#"{{"message_type":"MusterJobQueued",{job},"class":"always_on.test","ahead":2,"waiting":12,"estimate_s":240,"why":"all 2 executors are at work"}}"#
        ),
        format!(
            r#"{{"message_type":"MusterJobQueued",{job},"class":"always_on.test","ahead":0,"waiting":1,"estimate_s":null,"why":""}}"#
        ),
        concat!(
            r#"{"message_type":"MusterCapacity","classes":[{"class":"always_on.test","hardware":"8 cores, 16 GiB","#,
            r#""miners":1,"executors":2,"free":0,"running":2,"private_images":1,"waiting":5,"#,
            r#""next":[{"ahead":3,"estimate_s":240},{"ahead":5,"estimate_s":null}],"why":"all 2 executors are at work"}],"#,
            r#""limits":{"job_s":2592000,"image_s":604800,"image_default_s":1800,"queue_s":2592000,"queue_default_s":3600}}"#
        )
        .to_owned(),
        concat!(
            r#"{"message_type":"MusterCapacity","classes":[],"limits":{"job_s":1,"image_s":2,"image_default_s":3,"#,
            r#""queue_s":4,"queue_default_s":5}}"#
        )
        .to_owned(),
        concat!(
            r#"{"message_type":"V0JobStatusUpdate","uuid":"11111111-2222-4333-8444-555555555555","status":"failed","#,
            r#""metadata":{"miner_response":null,"job_rejection_details":null,"job_failure_details":null,"#,
            r#""horde_failure_details":null,"streaming_details":null,"muster":{"image":{"name":"alpine","#,
            r#""id":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","manifest":null},"#,
            r#""partial":{"stdout":"o","stderr":"e","artifacts":{"/a":"QQ=="},"upload_results":{"b":"{}"}}}}}"#
        )
        .to_owned(),
        r#"{"message_type":"MusterGateway","url":null,"models":[]}"#.to_owned(),
        concat!(
            r#"{"message_type":"MusterMiner","miner":"5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY","#,
            r#""proven":[{"class":"always_on.test","challenged":2,"proven":1,"block":7}],"#,
            r#""claims":{"offers":[{"class":"always_on.test","executors":2}],"#,
            r#""specs":[{"class":"always_on.test","told_at":"2026-01-21T12:34:56Z","cpu":"EPYC","cores":8,"#,
            r#""memory":1,"disk":2,"os":"Debian","gpus":["2 x A6000"]}],"machines":[]}}"#
        )
        .to_owned(),
        concat!(
            r#"{"message_type":"MusterGateway","url":"http://10.0.0.1:8092","models":["#,
            r#"{"id":"tiny","input_price":1,"output_price":2}]}"#
        )
        .to_owned(),
        concat!(
            r#"{"message_type":"MusterJobCheck","uuid":"11111111-2222-4333-8444-555555555555","origin":"drawn","#,
            r#""state":"differs","reason":"1 of 1 outputs differs","outputs":[{"name":"/artifacts/a","job":null,"#,
            r#""trusted":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}],"#,
            r#""at":"2026-01-21T12:34:56Z"}"#
        )
        .to_owned(),
        concat!(
            r#"{"message_type":"MusterRefund","response":"chatcmpl-1","#,
            r#""client":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","model":"tiny","#,
            r#""answered_at":"2026-01-21T12:34:56Z","input_tokens":1,"output_tokens":2,"bundle":null}"#
        )
        .to_owned(),
    ]
}

#[test]
fn messages_of_validators_and_facilitators_beyond_computehorde_have_golden_bytes() {
    let job = r#""uuid":"11111111-2222-4333-8444-555555555555""#;
    for frame in facilitator_frames() {
        assert_eq!(rewrite::<ToFacilitator>("ours", &frame), frame);
        let longer = frame.replacen('{', r#"{"x":1,"#, 1);
        assert!(decode::<ToFacilitator>(&longer).is_err());
    }
    let cancel = format!(r#"{{"message_type":"MusterCancelJob",{job},"reason":"not needed"}}"#);
    assert_eq!(rewrite::<FromFacilitator>("ours", &cancel), cancel);
}

#[test]
fn the_signed_digest_of_a_users_job_keeps_the_order_of_its_keys() {
    let wire = wire();
    let FromFacilitator::Job(job) = decode(wire["V2JobRequest__raw"].as_str().unwrap()).unwrap() else {
        panic!("another message")
    };
    assert_eq!(
        encode(&job.signed_fields()),
        wire["V2_signed_payload_inner"].as_str().unwrap()
    );
    assert_eq!(
        hex::encode(job.signed_digest()),
        wire["V2_hash_hex"].as_str().unwrap()
    );
}

#[test]
fn a_validators_signature_covers_the_object_as_received() {
    let python = python();
    for name in ["V0InitialJobRequest_signed", "V0JobRequest_signed"] {
        let frame = python[name].as_str().unwrap();
        let signed = signing::decode_from_validator(frame).unwrap();
        let (signature, _) = signed.signature.clone().unwrap();
        assert_eq!(
            signing::with_validator_signature(&signed.message, |_| signature),
            frame,
            "{name}"
        );
    }
    for name in ["V0JobRequest_signed", "V0JobRequest_future"] {
        let signed = signing::decode_from_validator(python[name].as_str().unwrap()).unwrap();
        let blob = python[&format!("{}_blob", name)].as_str().unwrap();
        assert_eq!(
            String::from_utf8(signed.signature.unwrap().1).unwrap(),
            blob,
            "{name}"
        );
    }
    for (name, blob) in python
        .iter()
        .filter(|(name, _)| name.starts_with("V0InitialJobRequest_volume") && name.ends_with("_blob"))
    {
        let frame = python[name.trim_end_matches("_blob")].as_str().unwrap();
        let message: ValidatorToMiner = decode(frame).unwrap();
        let mut covered = Vec::new();
        let signature = muster_protocol::Signature::from_bytes([0; 64]);
        signing::with_validator_signature(&message, |bytes| {
            covered = bytes.to_vec();
            signature
        });
        assert_eq!(
            String::from_utf8(covered).unwrap(),
            blob.as_str().unwrap(),
            "{name}"
        );
    }
}

#[test]
fn unknown_fields_pass_between_validator_and_miner_only() {
    let notice =
        r#"{"message_type":"V0AcceptJobRequest","job_uuid":"11111111-2222-4333-8444-555555555555","new":1}"#;
    assert!(decode::<MinerToValidator>(notice).is_ok());
    let heartbeat = r#"{"message_type":"V0Heartbeat","new":1}"#;
    assert!(decode::<ToFacilitator>(heartbeat).is_err());
    let update = r#"{"message_type":"V0JobStatusUpdate","uuid":"11111111-2222-4333-8444-555555555555","status":"paused","metadata":{"new":{"a":1}}}"#;
    let update: ToFacilitator = decode(update).unwrap();
    assert!(
        encode(&update).contains(r#""new":{"a":1}"#),
        "{}",
        encode(&update)
    );
    assert!(encode(&update).contains(r#""status":"unknown""#));
}

#[test]
fn malformed_messages_are_refused_with_a_reason() {
    for (frame, reason) in [
        ("", "EOF"),
        ("{", "EOF"),
        ("null", "invalid type"),
        ("{}", "message_type"),
        (r#"{"message_type":"V9Nothing"}"#, "unknown variant"),
        (r#"{"message_type":"V0AcceptJobRequest"}"#, "job_uuid"),
        (
            r#"{"message_type":"V0AcceptJobRequest","job_uuid":7}"#,
            "invalid type",
        ),
        (
            r#"{"message_type":"V0AcceptJobRequest","job_uuid":"x"}"#,
            "canonical uuid",
        ),
        (
            r#"{"message_type":"V0ExecutorManifestRequest","manifest":{"always_on.h100":1}}"#,
            "unknown executor class",
        ),
        (
            r#"{"message_type":"V0ExecutorManifestRequest","manifest":{"always_on.test":-1}}"#,
            "invalid value",
        ),
    ] {
        let error = decode::<MinerToValidator>(frame).unwrap_err().to_string();
        assert!(error.contains(reason), "{frame}: {error}");
    }
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let deep = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
        assert!(decode::<MinerToValidator>(&deep).is_err());
        assert!(decode::<ToFacilitator>(&deep).is_err());
        assert!(decode::<FromFacilitator>(&deep).is_err());
        assert!(signing::decode_from_validator(&deep).is_err());
    }
}

#[test]
fn a_frame_of_countless_values_is_refused_before_they_are_made() {
    let job = |more: &str| {
        format!(r#"{{"message_type":"V0JobRequest","validator_signature":"0x00","more":{more}}}"#)
    };
    for many in [
        format!("[{}0]", "0,".repeat(200_000)),
        format!("[{}[]]", "[],".repeat(200_000)),
    ] {
        for frame in [
            job(&many),
            many.clone(),
            format!(r#"{{"message_type":"GenericError","more":{many}}}"#),
        ] {
            let error = signing::decode_from_validator(&frame).unwrap_err().to_string();
            assert!(error.contains("more than 100000 values"), "{error}");
        }
    }
    // A text is one value, whatever marks it contains.
    let text =
        r#"{"message_type":"GenericError","details":"TEXT"}"#.replace("TEXT", &r#"[\",:{"#.repeat(200_000));
    assert!(signing::decode_from_validator(&text).is_ok());
}

#[test]
fn only_job_requests_carry_a_validator_signature() {
    let other = r#"{"message_type":"V0MainHotkeyMessage","main_hotkey":null,"validator_signature":7}"#;
    assert_eq!(signing::decode_from_validator(other).unwrap().signature, None);
    let python = python();
    let frame = python["V0JobRequest_signed"].as_str().unwrap();
    let signature = decode::<serde_json::Value>(frame).unwrap()["validator_signature"].to_string();
    let null = frame.replace(&signature, "null");
    assert_eq!(signing::decode_from_validator(&null).unwrap().signature, None);
    for bad in ["7", "\"0x12\""] {
        let error = signing::decode_from_validator(&frame.replace(&signature, bad)).unwrap_err();
        assert!(error.to_string().contains("validator_signature"), "{error}");
    }
}

#[test]
fn a_job_with_terms_is_written_as_these_bytes() {
    let plain = wire()["V2JobRequest__raw"].as_str().unwrap().to_owned();
    let FromFacilitator::Job(without) = decode(&plain).unwrap() else {
        panic!("another message")
    };
    assert_eq!(without.terms(), muster_protocol::job::JobTerms::default());
    assert_eq!(without.account(), without.signature.signatory.to_string());
    let extension = r#""muster":{"account":"acme","terms":{"image_time_limit":60,"priority":7,"queue_time_limit":0},"signature":"0x"#;
    let frame = format!(
        "{},{extension}{}\"}}}}",
        plain.strip_suffix('}').unwrap(),
        "07".repeat(64)
    );
    assert_eq!(rewrite::<FromFacilitator>("terms", &frame), frame);
    let FromFacilitator::Job(with) = decode(&frame).unwrap() else {
        panic!("another message")
    };
    assert_eq!(with.signed_digest(), without.signed_digest());
    assert_eq!((with.terms().priority.get(), with.terms().image_secs()), (7, 60));
    assert_eq!(with.account(), "acme");
    let later = frame.replace(r#""account":"acme""#, r#""max_price":1"#);
    assert!(decode::<FromFacilitator>(&later).is_err());
}
