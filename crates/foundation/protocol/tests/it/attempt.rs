//! The attempt machine under random histories: named invariants that hold whatever a peer sends and whenever.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use muster_protocol::job::{
    Attempt, AttemptPlan, Effect, Event, Fault, ImageClock, ImageFetchFailure, JobState, Outcome,
};
use muster_protocol::status::*;
use muster_protocol::wire::facilitator::{
    FailureDetails, HordeFailureDetails, MinerResponse, RejectionDetails, StreamingAddress,
};
use muster_protocol::wire::miner::ExecutorTiming;
use muster_protocol::{ExecutorClass, Timestamp};
use proptest::prelude::*;

fn plan(streaming: bool) -> AttemptPlan {
    AttemptPlan {
        class: ExecutorClass::AlwaysOnTest,
        streaming,
        timing: ExecutorTiming {
            allowed_leeway: 5,
            download_time_limit: 10,
            execution_time_limit: 20,
            upload_time_limit: 30,
            streaming_start_time_limit: 40,
        },
        dial: Duration::from_secs(6),
        reservation: Duration::from_secs(7),
        startup: Duration::from_secs(10),
        reconnect: Duration::from_secs(15),
        image: Some(ImageClock {
            limit: Duration::from_secs(100),
            silence: Duration::from_secs(30),
        }),
    }
}

fn rejection() -> RejectionDetails {
    RejectionDetails {
        rejected_by: ParticipantType::Miner,
        reason: JobRejectionReason::Busy,
        message: String::new(),
        context: None,
    }
}

fn failure() -> Box<FailureDetails> {
    Box::new(FailureDetails {
        reason: JobFailureReason::NonzeroReturnCode,
        stage: JobStage::Execution,
        message: String::new(),
        context: None,
        docker_process_exit_status: Some(1),
        docker_process_stdout: None,
        docker_process_stderr: None,
    })
}

fn horde_failure() -> HordeFailureDetails {
    HordeFailureDetails {
        reported_by: ParticipantType::Miner,
        reason: HordeFailureReason::ExecutorDisconnected,
        message: String::new(),
        context: None,
    }
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Connected),
        1 => Just(Event::Disconnected),
        4 => Just(Event::Accepted),
        1 => Just(Event::Declined(rejection())),
        2 => (1_u64..200).prop_map(|secs| Event::ExecutorUp { allowed: Duration::from_secs(secs) }),
        2 => Just(Event::ImageProgress),
        4 => Just(Event::ExecutorReady),
        4 => Just(Event::VolumesReady),
        2 => Just(Event::StreamingReady(StreamingAddress::default())),
        4 => Just(Event::ExecutionDone),
        3 => Just(Event::Finished(Box::default())),
        1 => Just(Event::Failed(failure())),
        1 => Just(Event::HordeFailed(horde_failure())),
        1 => Just(Event::Cancelled("never mind".to_owned())),
        2 => Just(Event::Tick),
    ]
}

fn start() -> Timestamp {
    Timestamp::from_secs(1_769_000_000)
}

proptest! {
    #[test]
    fn invariants_hold_in_every_history(streaming: bool, history in prop::collection::vec((events(), 0u64..9), 0..60)) {
        let mut now = start();
        let mut attempt = Attempt::new(plan(streaming), now);
        let mut shown = JobStatus::Received;
        let (mut terminal, mut finished, mut jobs_before_ready) = (0, 0, 0);
        for (event, wait) in history {
            now = now.plus(Duration::from_secs(wait));
            let before = attempt.clone();
            match attempt.clone().apply(event, now) {
                Err(_) => prop_assert!(before.outcome().is_none(), "an ended attempt never complains"),
                Ok((after, effects)) => {
                    if before.outcome().is_some() {
                        prop_assert_eq!(&after, &before, "nothing changes after the end");
                        prop_assert!(effects.is_empty(), "nothing happens after the end");
                    }
                    for effect in &effects {
                        match effect {
                            Effect::Report(status, _) => {
                                prop_assert!(status.may_follow(shown), "the outward status turned back: {} after {}", status, shown);
                                shown = *status;
                                terminal += usize::from(status.is_terminal());
                            }
                            Effect::SendFinishedReceipt { paid } => {
                                finished += 1;
                                let is_paid = after.outcome().is_some_and(Outcome::is_paid) && after.ready_at().is_some();
                                prop_assert_eq!(*paid, is_paid, "paid by its end, once an executor was ready");
                            }
                            Effect::SendJob if *before.state() == JobState::Offered => jobs_before_ready += 1,
                            Effect::SendJob | Effect::SendOffer | Effect::SendAcceptedReceipt | Effect::SendCancel | Effect::Reconnect => {}
                        }
                    }
                    attempt = after;
                }
            }
            prop_assert_eq!(attempt.deadline().is_none(), attempt.outcome().is_some(), "an open attempt always has a deadline");
        }
        prop_assert_eq!(terminal, usize::from(attempt.outcome().is_some()), "exactly one terminal status");
        prop_assert!(finished <= 1, "at most one finished receipt");
        prop_assert_eq!(jobs_before_ready, 0, "the job itself is sent to ready executors only");

        // Liveness: left alone, it ends at its deadlines.
        while let Some(deadline) = attempt.deadline() {
            attempt = attempt.apply(Event::Tick, deadline).unwrap().0;
        }
    }

    #[test]
    fn a_stored_attempt_is_the_same_attempt(streaming: bool, history in prop::collection::vec(events(), 0..12)) {
        let mut attempt = Attempt::new(plan(streaming), start());
        for event in history {
            if let Ok((after, _)) = attempt.clone().apply(event, start()) { attempt = after; }
        }
        let stored = serde_json::to_string(&attempt).unwrap();
        let resumed = serde_json::from_str::<Attempt>(&stored).unwrap();
        prop_assert_eq!(serde_json::to_string(&resumed).unwrap(), stored);
        // A miner's silence is counted from the next connection on, in both alike.
        let connected = |attempt: Attempt| attempt.apply(Event::Connected, start());
        prop_assert_eq!(connected(resumed), connected(attempt));
    }
}

/// Drives an attempt through `events`, one second apart.
fn drive(streaming: bool, events: Vec<Event>) -> (Attempt, Vec<Effect>) {
    let mut now = start();
    let mut all = Vec::new();
    let mut attempt = Attempt::new(plan(streaming), now);
    for event in events {
        now = now.plus(Duration::from_secs(1));
        let (after, effects) = attempt.apply(event, now).unwrap();
        attempt = after;
        all.extend(effects);
    }
    (attempt, all)
}

#[test]
fn the_straight_way() {
    let response = MinerResponse {
        docker_process_stdout: "hi\n".into(),
        ..MinerResponse::default()
    };
    let (attempt, effects) = drive(
        false,
        vec![
            Event::Connected,
            Event::Accepted,
            Event::ExecutorReady,
            Event::VolumesReady,
            Event::ExecutionDone,
            Event::Finished(Box::new(response.clone())),
        ],
    );
    assert_eq!(attempt.outcome(), Some(&Outcome::Completed(Box::new(response))));
    let statuses: Vec<_> = effects
        .iter()
        .filter_map(|effect| {
            if let Effect::Report(status, _) = effect {
                Some(*status)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(
        statuses,
        [
            JobStatus::Accepted,
            JobStatus::ExecutorReady,
            JobStatus::VolumesReady,
            JobStatus::ExecutionDone,
            JobStatus::Completed
        ]
    );
}

#[test]
fn unused_time_carries_over_to_the_next_stage() {
    let (attempt, _) = drive(
        false,
        vec![
            Event::Connected,
            Event::Accepted,
            Event::ExecutorReady,
            Event::VolumesReady,
        ],
    );
    // Ready at +3 s, then leeway 5 + download 10 + execution 20, although the download took a second only.
    assert_eq!(
        attempt.deadline(),
        Some(start().plus(Duration::from_secs(3 + 5 + 10 + 20)))
    );
}

#[test]
fn each_stage_has_its_own_time_out() {
    let way = [
        Event::Connected,
        Event::Accepted,
        Event::ExecutorReady,
        Event::VolumesReady,
        Event::ExecutionDone,
    ];
    let reasons = [
        HordeFailureReason::MinerConnectionFailed,
        HordeFailureReason::InitialResponseTimedOut,
        HordeFailureReason::ExecutorReadinessTimedOut,
        HordeFailureReason::VolumesTimedOut,
        HordeFailureReason::ExecutionTimedOut,
        HordeFailureReason::FinalResponseTimedOut,
    ];
    for (stage, reason) in reasons.into_iter().enumerate() {
        let (attempt, _) = drive(false, way[..stage].to_vec());
        let deadline = attempt.deadline().unwrap();
        let just_before = Timestamp::from_micros(deadline.micros() - 1);
        assert!(
            attempt
                .clone()
                .apply(Event::Tick, just_before)
                .unwrap()
                .0
                .outcome()
                .is_none()
        );
        let (ended, effects) = attempt.apply(Event::Tick, deadline).unwrap();
        let Some(Outcome::HordeFailed(details)) = ended.outcome() else {
            panic!("{reason}: {ended:?}")
        };
        assert_eq!(details.reason, reason);
        assert!(effects.contains(&Effect::SendCancel), "the miner is told");
    }
}

#[test]
fn a_lost_connection_may_come_back_once_more() {
    let way = vec![
        Event::Connected,
        Event::Accepted,
        Event::ExecutorReady,
        Event::VolumesReady,
        Event::Disconnected,
    ];
    let (lost, effects) = drive(false, way);
    assert!(effects.contains(&Effect::Reconnect));
    let gone_at = start().plus(Duration::from_secs(5 + 15));
    assert_eq!(lost.deadline(), Some(gone_at));
    let (back, _) = lost
        .clone()
        .apply(Event::Connected, start().plus(Duration::from_secs(9)))
        .unwrap();
    assert!(back.apply(Event::Tick, gone_at).unwrap().0.outcome().is_none());
    let (gone, _) = lost.apply(Event::Tick, gone_at).unwrap();
    let Some(Outcome::HordeFailed(details)) = gone.outcome() else {
        panic!("{gone:?}")
    };
    assert_eq!(details.reason, HordeFailureReason::MinerConnectionFailed);
}

#[test]
fn events_ahead_of_their_stage_are_the_peers_defect() {
    let (offered, _) = drive(false, vec![Event::Connected]);
    for event in [
        Event::ExecutorReady,
        Event::VolumesReady,
        Event::ExecutionDone,
        Event::Finished(Box::default()),
    ] {
        let error = offered.clone().apply(event, start()).unwrap_err();
        assert_eq!(error.state, "offered");
    }
    let (running, _) = drive(
        false,
        vec![
            Event::Connected,
            Event::Accepted,
            Event::ExecutorReady,
            Event::VolumesReady,
        ],
    );
    assert!(
        running
            .apply(Event::StreamingReady(StreamingAddress::default()), start())
            .is_err()
    );
}

/// An attempt whose miner has reported, at `start`, that it fetches the image and allows 60 seconds for it.
fn fetching() -> Attempt {
    let up = Event::ExecutorUp {
        allowed: Duration::from_secs(60),
    };
    let (attempt, _) = drive(false, vec![Event::Connected, Event::Accepted, up]);
    assert_eq!(*attempt.state(), JobState::Fetching);
    attempt
}

fn after(secs: u64) -> Timestamp {
    start().plus(Duration::from_secs(secs))
}

#[test]
fn an_image_that_does_not_come_in_time_is_nobodys_fault() {
    let mut attempt = fetching();
    assert!(!attempt.holds_executor());
    for secs in [25, 50] {
        attempt = attempt.apply(Event::ImageProgress, after(secs)).unwrap().0;
    }
    // The shorter of both limits, and the startup time in which the miner's own report may come.
    assert_eq!(attempt.deadline(), Some(after(73)));
    let (attempt, _) = attempt.apply(Event::Tick, after(73)).unwrap();
    let outcome = attempt.outcome().unwrap();
    assert_eq!(outcome.image_fetch_failure(), Some(ImageFetchFailure::TimedOut));
    assert_eq!((outcome.fault(), outcome.is_excuse()), (Fault::Nobody, false));
}

#[test]
fn a_miner_that_falls_silent_over_an_image_is_at_fault() {
    let attempt = fetching().apply(Event::ImageProgress, after(10)).unwrap().0;
    assert_eq!(attempt.deadline(), Some(after(40)));
    let outcome = attempt
        .apply(Event::Tick, after(40))
        .unwrap()
        .0
        .outcome()
        .cloned()
        .unwrap();
    assert_eq!(
        (outcome.image_fetch_failure(), outcome.fault()),
        (None, Fault::Miner)
    );
}

#[test]
fn silence_is_not_counted_while_nothing_can_be_heard_and_not_stored() {
    let attempt = fetching().apply(Event::Disconnected, after(5)).unwrap().0;
    assert_eq!(attempt.deadline(), Some(after(20)), "the connection's own limit");
    let attempt = attempt.apply(Event::Connected, after(18)).unwrap().0;
    assert_eq!(attempt.deadline(), Some(after(48)));
    let stored = serde_json::to_string(&attempt).unwrap();
    let resumed: Attempt = serde_json::from_str(&stored).unwrap();
    assert_eq!(resumed.deadline(), Some(after(73)));
    let resumed = resumed.apply(Event::Connected, after(30)).unwrap().0;
    assert_eq!(
        resumed.deadline(),
        Some(after(60)),
        "silence counts again from the connection on"
    );
}

#[test]
fn an_image_that_arrives_goes_on_like_any_other_and_a_late_word_of_it_changes_nothing() {
    let (attempt, effects) = fetching().apply(Event::ExecutorReady, after(50)).unwrap();
    assert!(effects.contains(&Effect::SendJob));
    assert!(attempt.holds_executor());
    let again = attempt.clone().apply(Event::ImageProgress, after(51)).unwrap().0;
    assert_eq!(again, attempt);
    let up = Event::ExecutorUp {
        allowed: Duration::from_secs(60),
    };
    assert_eq!(attempt.clone().apply(up, after(51)).unwrap(), (attempt, vec![]));
}
