//! The lease's promises, by example and by random events.

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::testing::{job, offer, validator_pair};
use muster_protocol::wire::executor::SessionSealed;
use muster_protocol::wire::miner::{ExecutorTiming, InitialJobRequest, SealTerms, StreamingDetails};
use muster_protocol::wire::muster::OfferExtension;
use muster_protocol::{Digest, ExecutorToken, Hotkey, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{Attestation, HashScheme, Price, SessionId, Text};

const TIMEOUTS: LeaseTimeouts = LeaseTimeouts {
    startup: Duration::from_secs(30),
    prepare: Duration::from_secs(100),
    image: Duration::from_secs(1_000),
    payload: Duration::from_secs(600),
    margin: Duration::from_secs(60),
    skew: Duration::from_secs(2),
    reattach: Duration::from_secs(150),
    lend: None,
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
            muster: None,
        };
        offer.streaming_details = streaming.then_some(details);
    })
}

fn lease_of(change: impl FnOnce(&mut InitialJobRequest)) -> Lease {
    lease_with(TIMEOUTS, change)
}

fn lease_with(patience: LeaseTimeouts, change: impl FnOnce(&mut InitialJobRequest)) -> Lease {
    let mut offer = offer(attempt());
    change(&mut offer);
    let token = ExecutorToken::new(attempt(), Uuid::from_u128(8));
    Lease::new(
        ValidatorKey(validator_pair().hotkey()),
        Box::new(offer),
        token,
        patience,
        start(),
    )
}

fn finished() -> ExecutorReport {
    ExecutorReport::Finished(Box::new(JobFinished {
        job_uuid: attempt(),
        docker_process_stdout: "hi".to_owned(),
        docker_process_stderr: String::new(),
        artifacts: None,
        upload_results: None,
        image: None,
        trace: None,
        completion: None,
    }))
}

fn streaming_ready() -> ExecutorReport {
    ExecutorReport::StreamingReady(Box::new(StreamingJobReady {
        job_uuid: attempt(),
        executor_token: None,
        public_key: "PEM".to_owned(),
        ip: Some("127.0.0.1".to_owned()),
        port: 6000,
        miner_signature: None,
    }))
}

fn specs() -> ExecutorReport {
    ExecutorReport::Specs(Box::new(MachineSpecs {
        job_uuid: attempt(),
        specs: serde_json::json!({}),
    }))
}

fn dialled() -> Event {
    Event::Dialled {
        executor_ip: Some("10.0.0.1".to_owned()),
        apart: true,
        secret: None,
    }
}

fn payload() -> Event {
    Event::Payload(Box::new(job(attempt())))
}

fn kinds(history: &[MinerToValidator]) -> Vec<String> {
    let kind = |message| {
        serde_json::to_value(message).unwrap()["message_type"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    history.iter().map(kind).collect()
}

fn is_final(message: &MinerToValidator) -> bool {
    matches!(
        message,
        MinerToValidator::V0JobFinishedRequest(_)
            | MinerToValidator::V0JobFailedRequest(_)
            | MinerToValidator::V0HordeFailedRequest(_)
    )
}

#[test]
fn the_whole_order_of_a_job_and_of_a_streaming_job() {
    for streaming in [false, true] {
        let mut lease = lease(streaming);
        let mut events = vec![
            dialled(),
            Event::Said(ExecutorReport::Ready),
            payload(),
            Event::Said(ExecutorReport::VolumesReady),
        ];
        if streaming {
            events.push(Event::Said(streaming_ready()));
        }
        events.extend([ExecutorReport::ExecutionDone, specs(), finished()].map(Event::Said));
        for event in events {
            lease.apply(event, start()).unwrap();
        }
        assert_eq!(lease.state(), LeaseState::Ended(LeaseEnding::Finished));
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
        assert_eq!(kinds(lease.history()), told);
    }
}

#[test]
fn the_executor_learns_its_own_address_for_a_streaming_job() {
    let mut lease = lease(true);
    let effects = lease.apply(dialled(), start()).unwrap();
    let [Effect::Order(order)] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    let MinerToExecutor::V0InitialJobRequest(offer) = &**order else {
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
    held.apply(Event::Said(ExecutorReport::Ready), start()).unwrap();
    let mut twice = job(attempt());
    twice.volume = Some(volume);
    let error = held.apply(Event::Payload(Box::new(twice)), start()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("Received job volume twice job_uuid: {}", attempt())
    );
    assert_eq!(held.state(), LeaseState::WaitingForPayload);
    held.apply(payload(), start()).unwrap();
    assert_eq!(held.state(), LeaseState::Running(LeaseStage::Fetching));
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
        let Some(MinerToValidator::V0HordeFailedRequest(failure)) = lease.history().last() else {
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
    events.push(Event::Said(ExecutorReport::Ready));
    assert_eq!(name(events.clone()), HordeFailureReason::GenericError);
    events.push(payload());
    assert_eq!(name(events.clone()), HordeFailureReason::VolumesTimedOut);
    events.push(Event::Said(ExecutorReport::VolumesReady));
    assert_eq!(name(events.clone()), HordeFailureReason::ExecutionTimedOut);
    events.push(Event::Said(ExecutorReport::ExecutionDone));
    assert_eq!(name(events), HordeFailureReason::FinalResponseTimedOut);
}

/// An executor that is lent for 100 s at most, to a job that may take days.
fn lent_lease(is_resumable: bool) -> Lease {
    let patience = LeaseTimeouts {
        lend: Some(Duration::from_secs(100)),
        ..TIMEOUTS
    };
    let mut lease = lease_with(patience, |offer| {
        offer.executor_timing = Some(ExecutorTiming {
            allowed_leeway: 0,
            download_time_limit: 10,
            execution_time_limit: 864_000,
            upload_time_limit: 20,
            streaming_start_time_limit: 0,
        });
        offer.muster = Some(Box::new(OfferExtension {
            resumable: is_resumable,
            ..OfferExtension::default()
        }));
    });
    for event in [dialled(), Event::Said(ExecutorReport::Ready), payload()] {
        lease.apply(event, start()).unwrap();
    }
    lease
        .apply(Event::Said(ExecutorReport::VolumesReady), start())
        .unwrap();
    lease
}

#[test]
fn a_program_that_can_go_on_elsewhere_is_asked_to_leave_when_the_lent_time_is_almost_over() {
    let mut lease = lent_lease(true);
    assert!(lease.longest() < Duration::from_secs(10_000), "not ten days");
    assert_eq!(lease.deadline(), start().plus(Duration::from_secs(50)));
    let asked = lease.apply(Event::Tick, lease.deadline()).unwrap();
    let [Effect::Order(order)] = asked.as_slice() else {
        panic!("{asked:?}")
    };
    assert!(
        matches!(&**order, MinerToExecutor::MusterDrain(drain) if drain.lead_s == 50),
        "{order:?}"
    );
    // It is asked once. A program that does not leave ends with its lease, and nobody is blamed for its length.
    let end = lease.deadline();
    assert_eq!(
        end,
        start()
            .plus(Duration::from_secs(10 + 100 + 20))
            .plus(TIMEOUTS.margin)
    );
    let effects = lease.apply(Event::Tick, end).unwrap();
    assert_eq!(effects.last(), Some(&Effect::StopExecutor));
    let Some(MinerToValidator::V0HordeFailedRequest(failure)) = lease.history().last() else {
        panic!()
    };
    let context = failure.context.as_ref().unwrap();
    assert_eq!(
        (&context["fault"], &context["resume"]),
        (&"user".into(), &"lease_over".into())
    );
    assert_eq!(lent_lease(false).deadline().since(start()).as_secs() / 864_000, 1);
}

#[test]
fn an_exit_says_something_only_before_the_executor_dials_in() {
    let mut early = lease(false);
    early
        .apply(Event::ExecutorExited("no such file".to_owned()), start())
        .unwrap();
    let Some(MinerToValidator::V0HordeFailedRequest(failure)) = early.history().last() else {
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
    let Some(MinerToValidator::V0HordeFailedRequest(failure)) = late.history().last() else {
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
            5 => Just(ExecutorReport::Ready),
            5 => Just(ExecutorReport::VolumesReady),
            5 => Just(ExecutorReport::ExecutionDone),
            3 => Just(specs()),
            3 => Just(streaming_ready()),
            5 => Just(finished()),
            1 => Just(ExecutorReport::Error("broken".to_owned())),
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
            let finals = lease.history().iter().filter(|message| is_final(message)).count();
            let cancelled = lease.state() == LeaseState::Ended(LeaseEnding::Cancelled);
            prop_assert_eq!(finals, usize::from(is_over && !cancelled));
            if finals == 1 {
                prop_assert!(lease.history().last().is_some_and(is_final));
            }
        }
    }
}

/// A job that is at its second attempt.
fn job_id() -> JobId {
    JobId::from_uuid(Uuid::from_u128(77))
}

/// A lease of a sealed session whose program runs, its client's certificate, and what its executor would truly report.
fn to_be_sealed() -> (Lease, SealingRequest) {
    let client = muster_process::certificate::make_self_signed(&["client".to_owned()]).unwrap();
    let (pem, fingerprint) = (client.pem, client.identity.fingerprint());
    let image = ImageId(Digest::of(b"image"));
    let mut lease = lease_of(|offer| {
        offer.streaming_details = Some(StreamingDetails {
            public_key: pem,
            executor_ip: None,
            muster: Some(SealTerms {
                job: Some(job_id()),
                model: "tiny".to_owned(),
                image,
                weights: None,
                scheme: "text".to_owned(),
                health: "/health".to_owned(),
                socket: Some("engine.sock".to_owned()),
                port: None,
                input_price: 1,
                output_price: 2,
                grader: None,
            }),
        });
    });
    for event in [
        dialled(),
        Event::Said(ExecutorReport::Ready),
        payload(),
        Event::Said(ExecutorReport::VolumesReady),
    ] {
        lease.apply(event, start()).unwrap();
    }
    let text = |text: &str| Text::new(text).unwrap();
    let stated = Attestation {
        session: SessionId(Uuid::from_u128(1)),
        session_key: Hotkey::from_bytes([1; 32]),
        job: job_id(),
        attempt: attempt(),
        miner: MinerKey(Hotkey::from_bytes([2; 32])),
        audience: ValidatorKey(validator_pair().hotkey()),
        server_certificate: Digest::of(b"server"),
        client_certificate: fingerprint,
        executor: text("box"),
        address: text("10.0.0.1:6000"),
        image,
        model: None,
        scheme: HashScheme::Text,
        price: Price { input: 1, output: 2 },
        not_before: start(),
        not_after: start().plus(Duration::from_secs(5)),
    };
    let signed = "signed".to_owned();
    (lease, SealingRequest { stated, signed })
}

fn sealed(lease: &mut Lease, sealing: SealingRequest) -> SessionSealed {
    let effects = lease
        .apply(Event::Said(ExecutorReport::Seal(Box::new(sealing))), start())
        .unwrap();
    let [Effect::Order(order)] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    let MinerToExecutor::MusterSessionSealed(answer) = &**order else {
        panic!("{order:?}")
    };
    answer.clone()
}

#[test]
fn a_signature_leaves_the_miner_only_over_what_is_true_of_the_lease() {
    let (mut lease, sealing) = to_be_sealed();
    assert_eq!(sealed(&mut lease, sealing).attestation.as_deref(), Some("signed"));
    type Change = fn(&mut Attestation);
    let table: [(Change, &str); 11] = [
        (
            |stated| stated.attempt = AttemptId::from_uuid(Uuid::from_u128(9)),
            "another attempt",
        ),
        (
            |stated| stated.job = JobId::from_uuid(*attempt().as_uuid()),
            "another attempt",
        ),
        (
            |stated| stated.audience = ValidatorKey(Hotkey::from_bytes([9; 32])),
            "another validator",
        ),
        (
            |stated| stated.client_certificate = Digest::of(b"x"),
            "another client",
        ),
        (|stated| stated.image = ImageId(Digest::of(b"x")), "the image"),
        (|stated| stated.model = Some(Digest::of(b"x")), "the model"),
        (|stated| stated.scheme = HashScheme::RawHttp, "the hash scheme"),
        (|stated| stated.price.output = 3, "the price"),
        (
            |stated| stated.not_before = start().plus(Duration::from_millis(2_500)),
            "2500 ms ahead of",
        ),
        (
            |stated| stated.not_before = Timestamp::from_micros(start().micros() - 9_000_000),
            "9000 ms behind",
        ),
        (
            |stated| stated.not_after = start().plus(Duration::from_secs(86_400)),
            "longer than its lease",
        ),
    ];
    for (change, expected) in table {
        let (mut lease, mut sealing) = to_be_sealed();
        change(&mut sealing.stated);
        let answer = sealed(&mut lease, sealing);
        assert_eq!(answer.attestation, None, "{expected}");
        let refusal = answer.refusal.unwrap();
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[test]
fn a_session_is_attested_while_it_starts_and_its_last_word_is_told_once() {
    let closed = || {
        Event::Said(ExecutorReport::Closed(SessionClosed {
            job_uuid: attempt(),
            close: "bXVzdGVy".to_owned(),
        }))
    };
    let (mut lease, sealing) = to_be_sealed();
    assert!(lease.apply(closed(), start()).is_err(), "nothing serves yet");
    sealed(&mut lease, sealing.clone());
    lease.apply(Event::Said(streaming_ready()), start()).unwrap();
    let late = Event::Said(ExecutorReport::Seal(Box::new(sealing)));
    assert_eq!(
        lease.apply(late, start()),
        Ok(vec![]),
        "repeated by an executor that came back"
    );
    lease.apply(closed(), start()).unwrap();
    assert_eq!(lease.apply(closed(), start()), Ok(vec![]));
    assert_eq!(kinds(lease.history()).last().unwrap(), "MusterSessionClosed");
    // A validator that gave no terms receives none of ours.
    let mut plain = self::lease(true);
    for event in [
        dialled(),
        Event::Said(ExecutorReport::Ready),
        payload(),
        Event::Said(ExecutorReport::VolumesReady),
        Event::Said(streaming_ready()),
    ] {
        plain.apply(event, start()).unwrap();
    }
    assert_eq!(plain.apply(closed(), start()), Ok(vec![]));
}
