//! Every path through the machine, and properties that hold on every path.

mod streaming;

use muster_protocol::wire::miner::InitialJobRequest;
use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(3);
const WAITS: WaitLimits = WaitLimits {
    offer: Duration::from_secs(60),
    image: Duration::from_secs(90),
    grace: GRACE,
};
const LIMITS: StageLimits = StageLimits {
    leeway: Duration::from_secs(5),
    download: Duration::from_secs(10),
    execution: Duration::from_secs(100),
    upload: Duration::from_secs(20),
    streaming_start: Duration::from_secs(50),
};

fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(1_000_000 + secs)
}

fn terms() -> OfferTerms {
    OfferTerms {
        limits: LIMITS,
        streaming: None,
        image: None,
    }
}

fn exit(code: i64) -> ProgramExit {
    ProgramExit {
        code,
        oom_killed: false,
        not_started: None,
    }
}

fn new() -> AttemptMachine {
    AttemptMachine::new(at(0), WAITS)
}

/// An attempt that is running since second 32.
fn running() -> AttemptMachine {
    let mut attempt = new();
    for (event, secs) in [
        (Event::Offered(terms()), 1),
        (Event::ImageReady, 30),
        (Event::Requested { image_ready: true }, 31),
        (Event::VolumesReady, 32),
    ] {
        attempt.apply(event, at(secs));
    }
    assert_eq!(attempt.state(), AttemptState::Running(LIMITS));
    attempt
}

fn failure(effects: &[Effect]) -> &AttemptFailure {
    match effects {
        [Effect::Conclude(Conclusion::Failed(failure))] => failure,
        other => panic!("{other:?}"),
    }
}

/// The effects of a program that ended like this, once its artifacts are collected.
fn after_exit(mut attempt: AttemptMachine, exit: ProgramExit, secs: i64) -> Vec<Effect> {
    assert_eq!(attempt.apply(Event::Exited(exit), at(secs)), [Effect::Collect]);
    assert_eq!(attempt.state(), AttemptState::Salvaging);
    attempt.apply(Event::Collected, at(secs))
}

fn job_reason(failure: &AttemptFailure) -> (JobFailureReason, Option<i64>) {
    match failure.kind {
        FailureKind::Job { reason, exit_code } => (reason, exit_code),
        FailureKind::Horde(reason) => panic!("{reason}"),
    }
}

#[test]
fn a_job_that_works_goes_through_every_stage_once() {
    let mut attempt = new();
    let steps = [
        (Event::Offered(terms()), vec![Effect::PrepareImage]),
        (Event::ImageReady, vec![Effect::ReportReady]),
        (Event::Requested { image_ready: true }, vec![Effect::PlaceVolumes]),
        (Event::VolumesReady, vec![Effect::ReportVolumesReady, Effect::Run]),
        (
            Event::Exited(exit(0)),
            vec![Effect::ReportExecutionDone, Effect::Collect],
        ),
        (Event::Collected, vec![Effect::Conclude(Conclusion::Finished)]),
    ];
    for (event, effects) in steps {
        assert_eq!(attempt.apply(event, at(1)), effects);
    }
    assert_eq!(attempt.state(), AttemptState::Over);
}

#[test]
fn each_stage_has_a_clock_of_its_own() {
    let mut attempt = new();
    attempt.apply(Event::Offered(terms()), at(1));
    assert_eq!(attempt.deadline(), at(1 + 90));
    attempt.apply(Event::ImageReady, at(50));
    assert_eq!(attempt.deadline(), at(50 + 5 + 10));
    attempt.apply(Event::Requested { image_ready: true }, at(51));
    attempt.apply(Event::VolumesReady, at(52));
    assert_eq!(attempt.deadline(), at(52 + 100));
    attempt.apply(Event::Exited(exit(0)), at(53));
    assert_eq!(attempt.deadline(), at(53 + 5 + 20));
}

#[test]
fn an_image_that_only_the_request_names_has_the_same_clock_and_costs_the_inputs_nothing() {
    let mut attempt = new();
    attempt.apply(Event::Offered(terms()), at(0));
    attempt.apply(Event::ImageReady, at(1));
    let late = Event::Requested { image_ready: false };
    assert_eq!(attempt.apply(late.clone(), at(4)), [Effect::PrepareImage]);
    assert_eq!(attempt.deadline(), at(4 + 90));
    assert_eq!(attempt.apply(late, at(5)), [], "offered twice");
    assert_eq!(attempt.apply(Event::ImageReady, at(80)), [Effect::PlaceVolumes]);
    assert_eq!(
        attempt.deadline(),
        at(80 + 5 + 10 - 3),
        "three seconds had gone before"
    );
}

#[test]
fn tick_before_the_deadline_changes_nothing() {
    let mut attempt = running();
    let before = attempt.clone();
    assert_eq!(attempt.apply(Event::Tick, at(100)), []);
    assert_eq!(attempt, before);
}

#[test]
fn a_program_that_runs_too_long_is_stopped_and_then_reported() {
    let mut attempt = running();
    let late = attempt.deadline();
    assert_eq!(attempt.apply(Event::Tick, late), [Effect::Stop]);
    assert_eq!(attempt.state(), AttemptState::Stopping(StopReason::TimedOut));
    // A program that ends with code 0 after being asked to stop has still run too long.
    assert_eq!(attempt.apply(Event::Exited(exit(0)), late), [Effect::Collect]);
    let effects = attempt.apply(Event::Collected, late);
    let failure = failure(&effects);
    assert_eq!(job_reason(failure), (JobFailureReason::Timeout, Some(0)));
    assert_eq!(
        (failure.stage, failure.code, failure.fault),
        (JobStage::Execution, Some(ErrorCode::JobTimeout), Fault::User)
    );
}

#[test]
fn a_container_that_cannot_be_killed_is_given_up() {
    let mut attempt = running();
    let late = attempt.deadline();
    attempt.apply(Event::Tick, late);
    assert_eq!(attempt.deadline(), late.plus(GRACE).plus(KILL_LIMIT));
    let effects = attempt.apply(Event::Tick, attempt.deadline());
    assert_eq!(job_reason(failure(&effects)), (JobFailureReason::Timeout, None));
}

#[test]
fn a_program_that_fails_is_its_users_failure() {
    let effects = after_exit(running(), exit(3), 40);
    let failed = failure(&effects);
    assert_eq!(job_reason(failed), (JobFailureReason::NonzeroReturnCode, Some(3)));
    assert_eq!(failed.code, Some(ErrorCode::JobExitCode));
    assert_eq!(failed.message, "the program ended with exit code 3");

    let killed = ProgramExit {
        code: 137,
        oom_killed: true,
        not_started: None,
    };
    let effects = after_exit(running(), killed, 40);
    assert!(failure(&effects).message.contains("memory"));

    let absent = ProgramExit {
        code: 127,
        oom_killed: false,
        not_started: Some("no such file".into()),
    };
    let effects = after_exit(running(), absent, 40);
    assert!(failure(&effects).message.contains("no such file"));
}

#[test]
fn first_failure_is_reported_however_collecting_ends() {
    let gathering = || {
        let mut attempt = running();
        attempt.apply(Event::Exited(exit(3)), at(40));
        attempt
    };
    let broken = AttemptFailure::horde(HordeFailureReason::GenericError, JobStage::ResultUpload, "disk");
    let late = gathering().deadline();
    assert_eq!(late, at(40 + 5 + 20));
    for (event, when) in [
        (Event::Collected, at(41)),
        (Event::Failed(broken), at(41)),
        (Event::Tick, late),
    ] {
        let effects = gathering().apply(event, when);
        assert_eq!(job_reason(failure(&effects)).1, Some(3));
    }
}

#[test]
fn a_job_that_fills_the_disk_is_stopped() {
    let mut attempt = running();
    assert_eq!(attempt.apply(Event::DiskFull(5), at(40)), [Effect::Stop]);
    let effects = after_exit(attempt, exit(143), 41);
    let failed = failure(&effects);
    assert_eq!(
        job_reason(failed),
        (JobFailureReason::NonzeroReturnCode, Some(143))
    );
    assert!(failed.message.contains("5 bytes"));
}

#[test]
fn a_program_without_progress_is_stopped_and_its_job_may_go_on() {
    let mut attempt = running();
    assert_eq!(attempt.apply(Event::Stalled(600), at(40)), [Effect::Stop]);
    assert_eq!(attempt.apply(Event::Stalled(600), at(40)), []);
    // It may have saved its state when it was stopped.
    let effects = after_exit(attempt, exit(85), 41);
    let failed = failure(&effects);
    assert_eq!(job_reason(failed), (JobFailureReason::Timeout, Some(85)));
    assert_eq!(failed.resume, Some(ResumeHint::Stalled));
    assert!(failed.message.contains("600 s"));
}

#[test]
fn every_wait_of_an_attempt_ends() {
    let mut attempt = new();
    assert_eq!(
        attempt.apply(Event::Tick, at(60)),
        [Effect::Conclude(Conclusion::Abandoned(Abandonment::NoOffer))]
    );

    let mut attempt = new();
    attempt.apply(Event::Offered(terms()), at(1));
    let effects = attempt.apply(Event::Tick, at(91));
    assert_eq!(
        failure(&effects).kind,
        FailureKind::Horde(HordeFailureReason::ExecutorSpinupFailed)
    );

    let mut attempt = new();
    attempt.apply(Event::Offered(terms()), at(1));
    attempt.apply(Event::ImageReady, at(2));
    let effects = attempt.clone().apply(Event::Tick, at(17));
    assert_eq!(failure(&effects).fault, Fault::Validator);
    attempt.apply(Event::Requested { image_ready: true }, at(3));
    let effects = attempt.apply(Event::Tick, at(17));
    assert_eq!(job_reason(failure(&effects)).0, JobFailureReason::Timeout);
    assert_eq!(failure(&effects).stage, JobStage::VolumeDownload);

    let mut attempt = running();
    attempt.apply(Event::Exited(exit(0)), at(40));
    let effects = attempt.apply(Event::Tick, attempt.deadline());
    assert_eq!(failure(&effects).stage, JobStage::ResultUpload);
}

#[test]
fn an_offer_without_clocks_has_the_older_single_one() {
    let offer = |extra: &str| -> InitialJobRequest {
        let text = format!(
            r#"{{"job_uuid":"11111111-2222-4333-8444-555555555555","executor_class":"always_on.test",
            "job_started_receipt_payload":{{"job_uuid":"11111111-2222-4333-8444-555555555555",
              "miner_hotkey":"5CA3onFpA75kRSgNkF6twsDeumSA5NhLhxQWSdraSEL8vScn",
              "validator_hotkey":"5CA3onFpA75kRSgNkF6twsDeumSA5NhLhxQWSdraSEL8vScn",
              "timestamp":"2026-01-21T12:34:56Z","receipt_type":"JobStartedReceipt",
              "executor_class":"always_on.test","is_organic":true,"ttl":7}},
            "job_started_receipt_signature":"0x{}"{extra}}}"#,
            "00".repeat(64)
        );
        serde_json::from_str(&text).unwrap()
    };
    let whole = |timing: StageLimits| timing.leeway + timing.download + timing.execution + timing.upload;
    assert_eq!(whole(StageLimits::of(&offer(""))), Duration::from_secs(305));
    assert_eq!(
        whole(StageLimits::of(&offer(r#","timeout_seconds":10"#))),
        Duration::from_secs(15)
    );
    let endless = format!(r#","timeout_seconds":{}"#, u64::MAX);
    let mut attempt = new();
    attempt.apply(
        Event::Offered(OfferTerms {
            limits: StageLimits::of(&offer(&endless)),
            streaming: None,
            image: None,
        }),
        at(0),
    );
    attempt.apply(Event::ImageReady, at(0));
    attempt.apply(Event::Requested { image_ready: true }, at(0));
    attempt.apply(Event::VolumesReady, at(0));
    assert!(
        attempt.deadline() > at(1 << 32),
        "a time-out beyond all times saturates"
    );
}

#[test]
fn an_image_that_is_missing_waits_for_its_miner_and_has_a_clock_of_its_own() {
    let limit = Duration::from_secs(1_000);
    let granted = |machine: &mut AttemptMachine| {
        let terms = OfferTerms {
            image: Some(limit),
            ..terms()
        };
        machine.apply(Event::Offered(terms), at(0));
        assert_eq!(machine.apply(Event::ImageMissing, at(1)), [Effect::ReportUp]);
        assert_eq!(machine.deadline(), at(1).plus(limit.min(WAITS.image)));
    };
    let mut attempt = new();
    granted(&mut attempt);
    assert_eq!(attempt.apply(Event::FetchGranted, at(2)), [Effect::FetchImage]);
    assert_eq!(attempt.apply(Event::FetchGranted, at(2)), []);
    assert_eq!(attempt.apply(Event::ImageReady, at(3)), [Effect::ReportReady]);
    // The miner may have to wait for a free executor; the time of the inputs begins with the job.
    assert_eq!(attempt.deadline(), at(3).plus(WAITS.image));
    attempt.apply(Event::Requested { image_ready: true }, at(5));
    assert_eq!(
        attempt.deadline(),
        at(5).plus(LIMITS.leeway).plus(LIMITS.download)
    );

    let mut slow = new();
    granted(&mut slow);
    let deadline = slow.deadline();
    let effects = slow.apply(Event::Tick, deadline);
    let [Effect::Conclude(Conclusion::Failed(failure))] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (failure.fault, failure.image_fetch),
        (Fault::Nobody, Some(ImageFetchFailure::TimedOut))
    );
}

#[test]
fn an_image_is_fetched_at_once_for_a_miner_that_grants_nothing() {
    let mut attempt = new();
    attempt.apply(Event::Offered(terms()), at(0));
    assert_eq!(attempt.apply(Event::ImageMissing, at(1)), [Effect::FetchImage]);
    assert_eq!(attempt.deadline(), at(1).plus(WAITS.image));
    assert_eq!(attempt.apply(Event::ImageReady, at(3)), [Effect::ReportReady]);
    assert_eq!(
        attempt.deadline(),
        at(3).plus(LIMITS.leeway).plus(LIMITS.download)
    );
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        prop_oneof![
            Just(None),
            Just(Some(StreamingMode::Direct)),
            Just(Some(StreamingMode::Sealed))
        ]
        .prop_flat_map(
            |streaming| prop_oneof![Just(None), Just(Some(Duration::from_secs(60)))].prop_map(move |image| {
                Event::Offered(OfferTerms {
                    limits: LIMITS,
                    streaming,
                    image,
                })
            })
        ),
        Just(Event::ImageMissing),
        Just(Event::FetchGranted),
        Just(Event::SessionOpened),
        Just(Event::SessionClosed),
        Just(Event::ImageReady),
        any::<bool>().prop_map(|image_ready| Event::Requested { image_ready }),
        Just(Event::VolumesReady),
        (-1_i64..256).prop_map(|code| Event::Exited(exit(code))),
        Just(Event::DiskFull(1)),
        Just(Event::Stalled(1)),
        Just(Event::Collected),
        Just(Event::Tick),
        Just(Event::Failed(AttemptFailure::horde(
            HordeFailureReason::GenericError,
            JobStage::Execution,
            "x"
        ))),
        Just(Event::Abandoned(Abandonment::MinerLost("x".into()))),
    ]
}

proptest! {
    #[test]
    fn attempt_concludes_once_and_reports_in_order_under_any_events(
        events in proptest::collection::vec((any_event(), 0_i64..40), 0..60),
    ) {
        let (mut attempt, mut now, mut done) = (new(), 0, Vec::new());
        for (event, later) in events {
            now += later;
            let was_over = attempt.state() == AttemptState::Over;
            let effects = attempt.apply(event, at(now));
            prop_assert!(!was_over || effects.is_empty());
            done.extend(effects);
        }
        // Without further events every attempt ends by its deadlines.
        for _ in 0..10 {
            let deadline = attempt.deadline();
            done.extend(attempt.apply(Event::Tick, deadline));
        }
        prop_assert_eq!(attempt.state(), AttemptState::Over);
        let ends = done.iter().filter(|effect| matches!(effect, Effect::Conclude(_))).count();
        prop_assert_eq!(ends, 1);
        let finished = done.last() == Some(&Effect::Conclude(Conclusion::Finished));
        let order = [Effect::PrepareImage, Effect::ReportReady, Effect::PlaceVolumes, Effect::ReportVolumesReady, Effect::Run, Effect::ReportExecutionDone, Effect::Collect];
        let mut stages: Vec<_> = done.into_iter().filter(|effect| order.contains(effect)).collect();
        // An image that only the request names is prepared after the request, before the inputs.
        if stages.get(2) == Some(&Effect::PrepareImage) {
            stages.remove(2);
        }
        // A failed program is not reported as done.
        let failed: Vec<_> = order.iter().filter(|effect| **effect != Effect::ReportExecutionDone).cloned().collect();
        prop_assert!(order.starts_with(&stages) || failed == stages);
        prop_assert!(!finished || stages.len() == order.len());
    }
}
