//! The lease's promises, by example and by random events.

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::testing::{job, offer, validator_pair};
use muster_protocol::wire::miner::{InitialJobRequest, StreamingDetails};
use muster_protocol::{ExecutorToken, Timestamp, ValidatorKey};

const PATIENCE: Patience = Patience {
    startup: Duration::from_secs(30),
    prepare: Duration::from_secs(100),
    payload: Duration::from_secs(600),
    margin: Duration::from_secs(60),
};

fn start() -> Timestamp {
    Timestamp::from_secs(1_767_225_600)
}

fn attempt() -> AttemptId {
    AttemptId::from_uuid(Uuid::from_u128(7))
}

fn lease(streaming: bool) -> Lease {
    lease_of(|offer| {
        let details = StreamingDetails {
            public_key: "PEM".to_owned(),
            executor_ip: None,
        };
        offer.streaming_details = streaming.then_some(details);
    })
}

fn lease_of(change: impl FnOnce(&mut InitialJobRequest)) -> Lease {
    let mut offer = offer(attempt());
    change(&mut offer);
    let token = ExecutorToken::new(attempt(), Uuid::from_u128(8));
    Lease::new(
        ValidatorKey(validator_pair().hotkey()),
        Box::new(offer),
        token,
        PATIENCE,
        start(),
    )
}

fn finished() -> Report {
    Report::Finished(Box::new(JobFinished {
        job_uuid: attempt(),
        docker_process_stdout: "hi".to_owned(),
        docker_process_stderr: String::new(),
        artifacts: None,
        upload_results: None,
    }))
}

fn streaming_ready() -> Report {
    Report::StreamingReady(Box::new(StreamingJobReady {
        job_uuid: attempt(),
        executor_token: None,
        public_key: "PEM".to_owned(),
        ip: Some("127.0.0.1".to_owned()),
        port: 6000,
        miner_signature: None,
    }))
}

fn specs() -> Report {
    Report::Specs(Box::new(MachineSpecs {
        job_uuid: attempt(),
        specs: serde_json::json!({}),
    }))
}

fn dialled() -> Event {
    Event::Dialled {
        executor_ip: Some("10.0.0.1".to_owned()),
    }
}

fn payload() -> Event {
    Event::Payload(Box::new(job(attempt())))
}

fn kinds(story: &[FromMiner]) -> Vec<String> {
    let kind = |message| {
        serde_json::to_value(message).unwrap()["message_type"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    story.iter().map(kind).collect()
}

fn is_final(message: &FromMiner) -> bool {
    matches!(
        message,
        FromMiner::V0JobFinishedRequest(_)
            | FromMiner::V0JobFailedRequest(_)
            | FromMiner::V0HordeFailedRequest(_)
    )
}

#[test]
fn the_whole_order_of_a_job_and_of_a_streaming_job() {
    for streaming in [false, true] {
        let mut lease = lease(streaming);
        let mut events = vec![
            dialled(),
            Event::Said(Report::Ready),
            payload(),
            Event::Said(Report::VolumesReady),
        ];
        if streaming {
            events.push(Event::Said(streaming_ready()));
        }
        events.extend([Report::ExecutionDone, specs(), finished()].map(Event::Said));
        for event in events {
            lease.apply(event, start()).unwrap();
        }
        assert_eq!(lease.state(), LeaseState::Ended(Ending::Finished));
        let mut told = vec![
            "V0AcceptJobRequest",
            "V0ExecutorReadyRequest",
            "V0VolumesReadyRequest",
        ];
        if streaming {
            told.push("V0StreamingJobReadyRequest");
        }
        told.extend([
            "V0ExecutionDoneRequest",
            "V0MachineSpecsRequest",
            "V0JobFinishedRequest",
        ]);
        assert_eq!(kinds(lease.story()), told);
    }
}

#[test]
fn the_executor_learns_its_own_address_for_a_streaming_job() {
    let mut lease = lease(true);
    let effects = lease.apply(dialled(), start()).unwrap();
    let [Effect::Order(order)] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    let ToMiner::V0InitialJobRequest(offer) = &**order else {
        panic!("{order:?}")
    };
    let details = offer.streaming_details.clone().unwrap();
    assert_eq!(details.executor_ip.as_deref(), Some("10.0.0.1"));
}

#[test]
fn inputs_sent_twice_are_refused_in_the_words_of_the_wire() {
    let volume = serde_json::from_value(serde_json::json!({
        "volume_type": "inline", "contents": "", "relative_path": null
    }));
    let volume: muster_protocol::Volume = volume.unwrap();
    let mut held = lease_of(|offer| offer.volume = Some(volume.clone()));
    held.apply(dialled(), start()).unwrap();
    held.apply(Event::Said(Report::Ready), start()).unwrap();
    let mut twice = job(attempt());
    twice.volume = Some(volume);
    let error = held.apply(Event::Payload(Box::new(twice)), start()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("Received job volume twice job_uuid: {}", attempt())
    );
    assert_eq!(held.state(), LeaseState::WaitingForPayload);
    held.apply(payload(), start()).unwrap();
    assert_eq!(held.state(), LeaseState::Running(Stage::Fetching));
}

#[test]
fn each_silence_has_its_name() {
    let name = |events: Vec<Event>| {
        let mut lease = lease(false);
        for event in events {
            lease.apply(event, start()).unwrap();
        }
        let early = lease
            .apply(Event::Tick, Timestamp::from_micros(lease.deadline().micros() - 1))
            .unwrap();
        assert_eq!(early, vec![]);
        lease.apply(Event::Tick, lease.deadline()).unwrap();
        let Some(FromMiner::V0HordeFailedRequest(failure)) = lease.story().last() else {
            panic!()
        };
        assert_eq!(failure.reported_by, ParticipantType::Miner);
        failure.reason
    };
    let mut events = vec![];
    assert_eq!(name(events.clone()), HordeFailureReason::ExecutorSpinupFailed);
    events.push(dialled());
    assert_eq!(
        name(events.clone()),
        HordeFailureReason::ExecutorReadinessTimedOut
    );
    events.push(Event::Said(Report::Ready));
    assert_eq!(name(events.clone()), HordeFailureReason::GenericError);
    events.push(payload());
    assert_eq!(name(events.clone()), HordeFailureReason::VolumesTimedOut);
    events.push(Event::Said(Report::VolumesReady));
    assert_eq!(name(events.clone()), HordeFailureReason::ExecutionTimedOut);
    events.push(Event::Said(Report::ExecutionDone));
    assert_eq!(name(events), HordeFailureReason::FinalResponseTimedOut);
}

#[test]
fn an_exit_says_something_only_before_the_executor_dials_in() {
    let mut early = lease(false);
    early
        .apply(Event::ExecutorExited("no such file".to_owned()), start())
        .unwrap();
    let Some(FromMiner::V0HordeFailedRequest(failure)) = early.story().last() else {
        panic!()
    };
    assert_eq!(failure.reason, HordeFailureReason::ExecutorSpinupFailed);
    assert!(failure.message.contains("no such file"));

    let mut late = lease(false);
    late.apply(dialled(), start()).unwrap();
    assert_eq!(
        late.apply(Event::ExecutorExited(String::new()), start()).unwrap(),
        vec![]
    );
    late.apply(Event::ExecutorGone, start()).unwrap();
    let Some(FromMiner::V0HordeFailedRequest(failure)) = late.story().last() else {
        panic!()
    };
    assert_eq!(failure.reason, HordeFailureReason::ExecutorDisconnected);
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(dialled()),
        Just(payload()),
        Just(Event::ExecutorGone),
        Just(Event::ExecutorExited("exit 1".to_owned())),
        Just(Event::Cancelled {
            reason: "enough".to_owned()
        }),
        Just(Event::MinerStops),
        Just(Event::Tick),
        prop_oneof![
            5 => Just(Report::Ready),
            5 => Just(Report::VolumesReady),
            5 => Just(Report::ExecutionDone),
            3 => Just(specs()),
            3 => Just(streaming_ready()),
            5 => Just(finished()),
            1 => Just(Report::Error("broken".to_owned())),
        ]
        .prop_map(Event::Said),
    ]
}

proptest! {
    #[test]
    fn a_lease_ends_once_and_says_so_once(
        streaming: bool,
        events in prop::collection::vec((any_event(), 0_u64..40), 0..60),
    ) {
        let mut lease = lease(streaming);
        let mut now = start();
        let mut ended = 0;
        for (event, pause) in events {
            now = now.plus(Duration::from_secs(pause));
            let before = lease.clone();
            match lease.apply(event, now) {
                Err(_) => prop_assert_eq!(&lease, &before, "a refused event changed something"),
                Ok(effects) => {
                    let ends = effects.iter().filter(|effect| matches!(effect, Effect::Ended(_))).count();
                    ended += ends;
                    if ends > 0 {
                        prop_assert!(matches!(effects[0], Effect::Ended(_)), "durable before anything else");
                        prop_assert_eq!(effects.last(), Some(&Effect::StopExecutor));
                    }
                    if matches!(before.state(), LeaseState::Ended(_)) {
                        prop_assert_eq!(effects, vec![], "something happened after the end");
                    }
                }
            }
            let is_over = matches!(lease.state(), LeaseState::Ended(_));
            prop_assert_eq!(ended, usize::from(is_over));
            let finals = lease.story().iter().filter(|message| is_final(message)).count();
            let cancelled = lease.state() == LeaseState::Ended(Ending::Cancelled);
            prop_assert_eq!(finals, usize::from(is_over && !cancelled));
            if finals == 1 {
                prop_assert!(lease.story().last().is_some_and(is_final));
            }
        }
    }
}
