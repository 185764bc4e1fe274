//! The decisions about recorded checkpoints: where attempts begin, and the orders that their executors get.

use std::time::Duration;

use muster_chain::Uid;
use muster_checkpoints::StopReason;
use muster_protocol::job::{Attempt, AttemptPlan, Event, JobTerms, SaveSignal};
use muster_protocol::status::{HordeFailureReason, JobStage, ParticipantType};
use muster_protocol::wire::facilitator::{FailureDetails, HordeFailureDetails};
use muster_protocol::wire::miner::ExecutorTiming;
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::{Digest, ExecutorClass, Hotkey, MinerKey};
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;

const NOW: i64 = 1_769_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_secs(NOW + second)
}

fn request() -> UserJobRequest {
    let mut request: UserJobRequest = serde_json::from_value(json!({
        "signature": {
            "signature_type": "bittensor",
            "signatory": "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY",
            "timestamp_ns": 1,
            "signature": format!("{}==", "A".repeat(86)),
            "signature_scope": "SignedFields",
        },
        "uuid": "11111111-2222-4333-8444-555555555555",
        "executor_class": "always_on.test",
        "docker_image": "image",
        "args": [],
        "env": {},
        "download_time_limit": 10,
        "execution_time_limit": 1_000,
        "upload_time_limit": 10,
        "streaming_start_time_limit": 0,
    }))
    .unwrap();
    request.muster = Some(Box::new(JobExtension {
        terms: Some(JobTerms {
            checkpoints: Some(CheckpointTerms {
                signal: SaveSignal::Usr1,
                fatal_exit_codes: vec![7],
                ..CheckpointTerms::default()
            }),
            ..JobTerms::default()
        }),
        checkpoints: Some(CheckpointGrant {
            blocks: "http://f/blocks/own".to_owned(),
            resume: None,
            attempt_urls: false,
        }),
        ..JobExtension::default()
    }));
    request
}

/// An attempt whose program began at `began` and that ended with `event` at `ended`.
fn attempt(number: u32, began: i64, ended: i64, event: Event) -> StoredAttempt {
    let second = Duration::from_secs(1);
    let plan = AttemptPlan {
        class: ExecutorClass::AlwaysOnTest,
        streaming: false,
        timing: ExecutorTiming {
            allowed_leeway: 10,
            download_time_limit: 10,
            execution_time_limit: 1_000,
            upload_time_limit: 10,
            streaming_start_time_limit: 0,
        },
        dial: second,
        reservation: second,
        startup: second,
        reconnect: second,
        image: None,
    };
    let mut machine = Attempt::new(plan, at(began));
    for event in [
        Event::Connected,
        Event::Accepted,
        Event::ExecutorReady,
        Event::VolumesReady,
    ] {
        machine = machine.apply(event, at(began)).unwrap().0;
    }
    StoredAttempt {
        id: AttemptId::from_uuid(Uuid::from_u128(number.into())),
        ordinal: number,
        miner: MinerKey(Hotkey::from_bytes([7; 32])),
        uid: Uid(1),
        address: "127.0.0.1:1".parse().unwrap(),
        machine: machine.apply(event, at(ended)).unwrap().0,
        started_at: at(began),
        has_checkpoint: false,
    }
}

fn lost(context: Option<Value>) -> Event {
    Event::HordeFailed(HordeFailureDetails {
        reported_by: ParticipantType::Executor,
        reason: HordeFailureReason::GenericError,
        message: String::new(),
        context,
    })
}

fn exited(code: i64, context: Value) -> Event {
    ended(JobFailureReason::NonzeroReturnCode, code, context)
}

fn ended(reason: JobFailureReason, code: i64, context: Value) -> Event {
    Event::Failed(Box::new(FailureDetails {
        reason,
        stage: JobStage::Execution,
        message: String::new(),
        context: Some(context),
        docker_process_exit_status: Some(code),
        docker_process_stdout: None,
        docker_process_stderr: None,
    }))
}

fn notice(attempt: &StoredAttempt, content: &str) -> CheckpointNotice {
    CheckpointNotice {
        job_uuid: attempt.id,
        number: 1,
        manifest: Digest::of(content.as_bytes()),
        name: content.to_owned(),
        bytes: 5,
        epoch: None,
        step: Some(1),
        metric: None,
    }
}

fn keep(record: &mut CheckpointRecord, attempt: &StoredAttempt, content: &str, now: i64) -> u32 {
    match record.judge(&notice(attempt, content), at(now)) {
        NoticedCheckpoint::New(facts, dropped) => {
            let ordinal = facts.ordinal;
            record.note_kept(*facts, &dropped);
            ordinal
        }
        other @ (NoticedCheckpoint::Known(_) | NoticedCheckpoint::Refused(_)) => panic!("{other:?}"),
    }
}

#[test]
fn a_job_without_terms_or_without_a_grant_has_no_record() {
    assert!(CheckpointRecord::new(&request()).is_some());
    let mut without = request();
    without.muster.as_mut().unwrap().checkpoints = None;
    assert_eq!(CheckpointRecord::new(&without), None);
    without.muster = None;
    assert_eq!(CheckpointRecord::new(&without), None);
}

#[test]
fn a_repetition_is_known_and_the_fourth_checkpoint_drops_the_first() {
    let mut record = CheckpointRecord::new(&request()).unwrap();
    let first = attempt(1, 0, 100, lost(None));
    for (number, content) in ["a", "b", "c", "d"].into_iter().enumerate() {
        assert_eq!(
            usize::try_from(keep(&mut record, &first, content, 10)),
            Ok(number + 1)
        );
    }
    assert_eq!(
        record.judge(&notice(&first, "d"), at(11)),
        NoticedCheckpoint::Known(4)
    );
    let kept: Vec<_> = record.list(0).kept.iter().map(|one| one.ordinal).collect();
    assert_eq!(kept, [2, 3, 4]);
    let odd = CheckpointNotice {
        name: "../x".to_owned(),
        ..notice(&first, "e")
    };
    assert!(matches!(
        record.judge(&odd, at(12)),
        NoticedCheckpoint::Refused(_)
    ));
}

#[test]
fn the_checkpoint_that_an_attempt_began_from_stays_until_another_attempt_has_gone_on() {
    let mut record = CheckpointRecord::new(&request()).unwrap();
    let kept = |record: &CheckpointRecord| -> Vec<u32> {
        record.list(0).kept.iter().map(|one| one.ordinal).collect()
    };
    let begin = |record: &mut CheckpointRecord, attempt: &StoredAttempt, from| {
        let beginning = AttemptBeginning { from, halvings: 0 };
        record.note_beginning(attempt.id, beginning);
    };
    let honest = attempt(1, 0, 500, lost(None));
    begin(&mut record, &honest, None);
    keep(&mut record, &honest, "a", 300);
    let liar = attempt(2, 600, 700, lost(None));
    begin(&mut record, &liar, Some(1));
    for content in ["b", "c", "d", "e", "f"] {
        keep(&mut record, &liar, content, 650);
    }
    assert_eq!(kept(&record), [1, 4, 5, 6]);
    // The next attempt goes on from the newest one and leaves one of its own: that one was a checkpoint.
    let successor = attempt(3, 800, 900, lost(None));
    begin(&mut record, &successor, Some(6));
    keep(&mut record, &successor, "g", 850);
    assert_eq!(kept(&record), [5, 6, 7]);
}

#[test]
fn a_record_remembers_no_more_than_what_is_kept_and_the_last_of_each_attempt() {
    let mut record = CheckpointRecord::new(&request()).unwrap();
    let first = attempt(1, 0, 500, lost(None));
    for number in 0..1_000 {
        keep(&mut record, &first, &format!("c{number}"), 10);
    }
    assert_eq!(record.checkpoints.len(), 3);
    let second = attempt(2, 600, 700, lost(None));
    for number in 0..10 {
        keep(&mut record, &second, &format!("d{number}"), 620);
    }
    assert_eq!(record.checkpoints.len(), 4);
    assert_eq!(
        record.left_secs(&[first, second]),
        970,
        "10 s and 20 s are used up"
    );
}

#[test]
fn the_next_attempt_begins_from_the_newest_one_with_the_time_that_is_left() {
    let mut record = CheckpointRecord::new(&request()).unwrap();
    let first = attempt(1, 0, 500, lost(None));
    record.note_beginning(first.id, AttemptBeginning::default());
    keep(&mut record, &first, "a", 300);
    let second = attempt(2, 600, 610, lost(None));
    let beginning = record.begin(second.id, std::slice::from_ref(&first));
    assert_eq!((beginning.from, beginning.halvings), (Some(1), 0));
    record.note_beginning(second.id, beginning);
    assert_eq!(
        record.left_secs(std::slice::from_ref(&first)),
        700,
        "300 of 1,000 led to it"
    );
    let order = record.order(&second);
    assert_eq!((order.attempt, order.signal), (2, SaveSignal::Usr1));
    assert_eq!(order.resume.unwrap().manifest, Digest::of(b"a"));
    assert!(record.resumes(second.id) && !record.resumes(first.id));
    assert_eq!(record.began_from(second.id).unwrap().attempt, first.id);
    assert_eq!(
        record.counts(&[first, second]),
        [false, true],
        "the second kept nothing"
    );
}

#[test]
fn an_executor_gets_urls_of_its_attempt_where_the_facilitator_knows_them() {
    let signed = |job: &str| format!("http://f/blocks/{job}?Expires=9&Signature={}", "5a".repeat(32));
    let order_of = |attempt_urls, number| {
        let mut request = request();
        if let Some(extension) = &mut request.muster {
            extension.checkpoints = Some(CheckpointGrant {
                blocks: signed("own"),
                resume: Some(ResumeOrder {
                    manifest: Digest::of(b"a"),
                    blocks: signed("other"),
                }),
                attempt_urls,
            });
        }
        let record = CheckpointRecord::new(&request).unwrap();
        record.order(&attempt(number, 0, 1, lost(None)))
    };
    // A facilitator of before: its URLs go on as they are.
    let before = order_of(false, 2);
    assert_eq!(before.blocks, signed("own"));
    assert_eq!(before.resume.unwrap().blocks, signed("other"));
    let (first, second) = (order_of(true, 1), order_of(true, 2));
    for (order, number) in [(&first, 1), (&second, 2)] {
        let urls = [&order.blocks, &order.resume.as_ref().unwrap().blocks];
        for (url, job) in urls.into_iter().zip(["own", "other"]) {
            let whole = signed(job);
            assert_eq!(Some(url.clone()), muster_checkpoints::attempt_url(&whole, number));
            assert!(
                !url.contains(&"5a".repeat(32)),
                "no executor learns the job's: {url}"
            );
        }
    }
    assert_ne!(first.blocks, second.blocks);
}

#[test]
fn an_end_means_for_the_next_attempt_what_its_report_says() {
    let fate = |event: Event| fate_of(attempt(1, 0, 10, event).machine.outcome().unwrap());
    assert_eq!(fate(exited(85, json!({}))), AttemptFate::Saved);
    assert_eq!(fate(exited(3, json!({}))), AttemptFate::Exit(3));
    assert_eq!(fate(exited(137, json!({}))), AttemptFate::Lost);
    assert_eq!(
        fate(exited(137, json!({"resume": "out_of_memory"}))),
        AttemptFate::OutOfMemory
    );
    let timed_out = |context| ended(JobFailureReason::Timeout, 85, context);
    assert_eq!(
        fate(timed_out(json!({"resume": "stalled"}))),
        AttemptFate::Stalled
    );
    assert_eq!(
        fate(timed_out(json!({}))),
        AttemptFate::UsersFault,
        "the job's time is over, although its program has saved"
    );
    assert_eq!(fate(lost(None)), AttemptFate::Lost);
    assert_eq!(
        fate(lost(Some(json!({"fault": "user", "resume": "lease_over"})))),
        AttemptFate::Lost
    );
    assert_eq!(
        fate(lost(Some(json!({"fault": "user"})))),
        AttemptFate::UsersFault
    );
    assert_eq!(
        fate(lost(Some(json!({"resume": "damaged_checkpoint"})))),
        AttemptFate::DamagedData
    );
    assert_eq!(
        fate(Event::Cancelled("enough".to_owned())),
        AttemptFate::UsersFault
    );
}

#[test]
fn a_fatal_exit_code_ends_the_job_though_it_has_checkpoints() {
    let mut record = CheckpointRecord::new(&request()).unwrap();
    let first = attempt(1, 0, 500, exited(7, json!({})));
    keep(&mut record, &first, "a", 300);
    assert_eq!(
        record.decide(&[first]),
        ResumeDecision::Stop(StopReason::FatalExit)
    );
}
