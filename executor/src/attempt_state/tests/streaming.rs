//! Paths of streaming jobs.

use super::*;

/// A streaming job whose program was started in second 32.
fn starting(streaming: StreamingMode) -> AttemptMachine {
    let mut attempt = new();
    let streaming = Some(streaming);
    let offered = Event::Offered(OfferTerms { streaming, ..terms() });
    for (event, secs) in [
        (offered, 1),
        (Event::ImageReady, 30),
        (Event::Requested { image_ready: true }, 31),
    ] {
        attempt.apply(event, at(secs));
    }
    let effects = attempt.apply(Event::VolumesReady, at(32));
    assert_eq!(
        effects,
        [Effect::ReportVolumesReady, Effect::Run, Effect::OpenSession]
    );
    attempt
}

#[test]
fn a_session_ends_with_its_time_and_is_a_success() {
    let mut attempt = starting(StreamingMode::Sealed);
    assert_eq!(
        attempt.apply(Event::SessionOpened, at(50)),
        [Effect::ReportSession]
    );
    assert_eq!(
        attempt.deadline(),
        at(150),
        "the time to start does not count as its own"
    );
    assert_eq!(attempt.apply(Event::Tick, at(150)), [Effect::CloseSession]);
    assert_eq!(
        attempt.apply(Event::SessionClosed, at(151)),
        [Effect::CloseSession, Effect::Stop]
    );
    // The exit code of a program that was stopped does not matter.
    assert_eq!(
        attempt.apply(Event::Exited(exit(143)), at(152)),
        [Effect::ReportExecutionDone, Effect::Collect]
    );
    let effects = attempt.apply(Event::Collected, at(153));
    assert_eq!(effects, [Effect::Conclude(Conclusion::Finished)]);
}

#[test]
fn a_session_that_is_over_early_and_a_program_that_leaves_it_are_successes_too() {
    let mut attempt = starting(StreamingMode::Sealed);
    attempt.apply(Event::SessionOpened, at(50));
    let effects = attempt.apply(Event::SessionClosed, at(60));
    assert_eq!(effects, [Effect::CloseSession, Effect::Stop]);
    for streaming in [StreamingMode::Sealed, StreamingMode::Direct] {
        let mut attempt = starting(streaming);
        attempt.apply(Event::SessionOpened, at(50));
        let effects = attempt.apply(Event::Exited(exit(0)), at(60));
        assert_eq!(
            effects,
            [Effect::CloseSession, Effect::ReportExecutionDone, Effect::Collect]
        );
        assert_eq!(attempt.apply(Event::SessionClosed, at(61)), []);
    }
}

#[test]
fn a_direct_job_that_runs_on_has_failed_and_one_that_crashes_too() {
    let mut attempt = starting(StreamingMode::Direct);
    attempt.apply(Event::SessionOpened, at(50));
    assert_eq!(
        attempt.apply(Event::Tick, at(150)),
        [Effect::CloseSession, Effect::Stop]
    );
    attempt.apply(Event::Exited(exit(137)), at(152));
    let effects = attempt.apply(Event::Collected, at(153));
    assert_eq!(job_reason(failure(&effects)).0, JobFailureReason::Timeout);
    for streaming in [StreamingMode::Sealed, StreamingMode::Direct] {
        let mut attempt = starting(streaming);
        attempt.apply(Event::SessionOpened, at(50));
        let effects = attempt.apply(Event::Exited(exit(1)), at(60));
        assert_eq!(effects, [Effect::CloseSession, Effect::Collect]);
        let effects = attempt.apply(Event::Collected, at(61));
        assert_eq!(job_reason(failure(&effects)).1, Some(1));
    }
}

#[test]
fn unanswered_health_check_and_early_exit_are_different_failures() {
    let mut attempt = starting(StreamingMode::Sealed);
    assert_eq!(
        attempt.apply(Event::Tick, at(82)),
        [Effect::CloseSession, Effect::Stop]
    );
    attempt.apply(Event::Exited(exit(143)), at(83));
    let effects = attempt.apply(Event::Collected, at(84));
    let failed = failure(&effects);
    assert_eq!(job_reason(failed).0, JobFailureReason::Timeout);
    assert_eq!(
        (failed.stage, failed.code),
        (JobStage::StreamingStartup, Some(ErrorCode::SessionUnanswered))
    );
    let mut attempt = starting(StreamingMode::Sealed);
    attempt.apply(Event::Exited(exit(2)), at(40));
    let effects = attempt.apply(Event::Collected, at(41));
    let failed = failure(&effects);
    assert_eq!(
        (job_reason(failed).1, failed.stage),
        (Some(2), JobStage::StreamingStartup)
    );
    assert!(
        failed.message.ends_with("before it answered"),
        "{}",
        failed.message
    );
}
