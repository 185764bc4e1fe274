//! Runs one container from its creation to its exit.

use std::future::ready;
use std::io;
use std::pin::pin;

use bollard::container::LogOutput;
use bollard::errors::Error as ApiError;
use bollard::models::ContainerCreateBody;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use muster_containers::docker_engine::{
    ContainerEngine, ContainerStage, EngineError, InputSink, KeptOutput, OutputStream,
};
use muster_process::error::Causes;
use muster_process::{Backoff, SharedClock};
use muster_protocol::{HordeFailureReason, JobStage};
use tokio::io::AsyncWriteExt as _;
use tokio_util::sync::CancellationToken;

use crate::attempt_state::{AttemptFailure, ProgramExit};
use crate::collector::{self, OutputCollector, OutputPlace};
use crate::images::engine_failed;
use crate::output_capture::{CapturedBefore, OutputCapture};
use crate::program_input::{InputStage, ProgramInput, input_stage};
use crate::warm_containers::AttachedContainer;

/// Waits until the output of a container that has ended is written down.
async fn finish_collection(
    collector: Option<OutputCollector>,
    place: &OutputPlace,
    capture: &OutputCapture,
    clock: &SharedClock,
) {
    if let Some(collector) = collector {
        collector.finish(clock).await;
        capture.end_collection(collector::read_end(&place.logs));
    }
}

/// A container that is to be created.
#[derive(Debug)]
pub(crate) struct NewContainer {
    pub(crate) name: String,
    pub(crate) body: ContainerCreateBody,
    /// The standard input of its program; `None` for an empty one.
    pub(crate) input: Option<ProgramInput>,
}

/// Creates and starts the container and waits until it ends. Everything that it prints goes into `capture` at once.
///
/// # Errors
/// The engine's failures. A failed program is a [`ProgramExit`].
pub(crate) async fn run(
    engine: ContainerEngine,
    NewContainer { name, body, input }: NewContainer,
    capture: OutputCapture,
    place: OutputPlace,
    clock: SharedClock,
    called_off: CancellationToken,
) -> Result<ProgramExit, AttemptFailure> {
    // Its start takes as long as the creation of a container.
    let collector = place.start();
    let create = || engine.create(&name, body.clone());
    Backoff::OUTAGE
        .retry(&clock, "create a container", create)
        .await
        .map_err(|error| engine_failed(&error))?;
    let attaching = attach(&engine, &name, input);
    let (attached, collector) = tokio::join!(attaching, place.attach(collector, &name, &clock));
    capture.begin(&place, collector.is_some());
    let (output, input) = attached.map_err(|error| engine_failed(&error))?;
    if called_off.is_cancelled() {
        return Err(AttemptFailure::horde(
            HordeFailureReason::GenericError,
            JobStage::Execution,
            "called off",
        ));
    }
    match start_once(&engine, &name, &clock).await {
        Ok(presence) => {
            let ending = wait_for_end(&engine, &name, presence, output, &capture, &clock);
            let ended = match input {
                None => ending.await?,
                Some((input, sink)) => feed(ending, input.send(sink)).await?,
            };
            finish_collection(collector, &place, &capture, &clock).await;
            Ok(ended.exit)
        }
        Err(error) => {
            if let Some(collector) = collector {
                collector.abandon();
                capture.forget_collection();
            }
            judge_failed_start(&error)
        }
    }
}

/// Attaches to a container that was created and not started: to its output, and to its standard input if there is
/// anything for it.
async fn attach(
    engine: &ContainerEngine,
    name: &str,
    input: Option<ProgramInput>,
) -> Result<(OutputStream, Option<(ProgramInput, InputSink)>), EngineError> {
    match input {
        None => Ok((engine.attach(name).await?, None)),
        Some(input) => {
            let (output, sink) = engine.attach_with_input(name).await?;
            Ok((output, Some((input, sink))))
        }
    }
}

/// Waits for the end of a program while its input is sent. A program may end with a part of it unread.
///
/// # Errors
/// Those of the program's end, and an input that the program may have had a part of only.
async fn feed(
    ending: impl Future<Output = Result<EndedContainer, AttemptFailure>>,
    sending: impl Future<Output = io::Result<()>>,
) -> Result<EndedContainer, AttemptFailure> {
    let mut ending = pin!(ending);
    let ended = tokio::select! {
        ended = &mut ending => ended?,
        sent = sending => match sent {
            Ok(()) => ending.await?,
            Err(error) => return Err(input_lost(&format!("its file cannot be read: {error}"))),
        },
    };
    match ended.presence {
        EnginePresence::Unbroken => Ok(ended),
        EnginePresence::Interrupted | EnginePresence::MachineRestarted => {
            Err(input_lost("the docker engine went away while the job ran"))
        }
    }
}

/// The failure of a job whose program may have taken a part of its standard input for all of it.
fn input_lost(reason: &str) -> AttemptFailure {
    let message = format!("the program may not have got its whole standard input: {reason}");
    AttemptFailure::horde(HordeFailureReason::GenericError, JobStage::Execution, message)
}

/// A container that has ended.
#[derive(Debug)]
struct EndedContainer {
    exit: ProgramExit,
    /// Whether the engine was there from its start to its end.
    presence: EnginePresence,
}

/// Whether the engine was there all the time since the request to start a container. The later variants mean a longer
/// absence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EnginePresence {
    Unbroken,
    /// The engine was away, and may have killed the container when it came back.
    Interrupted,
    /// The machine was started anew, which ends every container.
    MachineRestarted,
}

/// Starts a container that may have been started already: an engine that goes away in the middle does not report
/// whether it has.
async fn start_once(
    engine: &ContainerEngine,
    name: &str,
    clock: &SharedClock,
) -> Result<EnginePresence, EngineError> {
    match engine.start(name).await {
        Err(error) if error.is_recoverable() => {}
        started => return started.map(|()| EnginePresence::Unbroken),
    }
    let start = || async {
        match engine.find_stage(name).await? {
            ContainerStage::Started => Ok(()),
            ContainerStage::Created | ContainerStage::Absent => engine.start(name).await,
        }
    };
    Backoff::OUTAGE
        .retry(clock, "start a container", start)
        .await
        .map(|()| EnginePresence::Interrupted)
}

/// Goes on with a container that another process created, and waits until it ends. Output that the other process had
/// not captured goes into `capture`. `since_start` is the engine's presence since the other process started it.
///
/// # Errors
/// The engine's failures, and a container that is gone.
pub(crate) async fn take_over(
    engine: ContainerEngine,
    name: String,
    since_start: EnginePresence,
    before: CapturedBefore,
    capture: OutputCapture,
    place: OutputPlace,
    clock: SharedClock,
) -> Result<ProgramExit, AttemptFailure> {
    if input_stage(&place.logs) == InputStage::Begun {
        return Err(input_lost("the executor's process was replaced"));
    }
    let find = || engine.find_stage(&name);
    let stage = Backoff::OUTAGE
        .retry(&clock, "find a container", find)
        .await
        .map_err(|error| engine_failed(&error))?;
    let presence = match stage {
        ContainerStage::Absent => {
            return Err(AttemptFailure::horde(
                HordeFailureReason::GenericError,
                JobStage::Execution,
                "the job's container is gone",
            ));
        }
        ContainerStage::Created => match start_once(&engine, &name, &clock).await {
            Ok(presence) => presence,
            Err(error) => return judge_failed_start(&error),
        },
        ContainerStage::Started => since_start,
    };
    // A collector that may keep nothing has nothing to follow.
    let output = if capture.is_collected() && place.limit > 0 {
        let from = (before.stdout.length, before.stderr.length);
        collector::follow(place.logs.clone(), from, SharedClock::clone(&clock))
    } else {
        rest_of_output(&engine, &name, &before, &capture, &clock).await
    };
    let ended = wait_for_end(&engine, &name, presence, output, &capture, &clock).await?;
    capture.end_collection(collector::read_end(&place.logs));
    Ok(ended.exit)
}

/// The output of a container after what was captured before. An engine that is away is waited for. If the engine has
/// dropped a part of the output, or does not give it, the gap is marked.
async fn rest_of_output<'a>(
    engine: &'a ContainerEngine,
    name: &str,
    before: &CapturedBefore,
    capture: &OutputCapture,
    clock: &SharedClock,
) -> BoxStream<'a, Result<LogOutput, ApiError>> {
    capture.note_reread();
    let measure = || measure_output(engine, name);
    let measured = Backoff::OUTAGE
        .retry(clock, "read a container's output", measure)
        .await;
    capture.break_live(measured.as_ref().unwrap_or(before));
    match measured {
        Ok(kept) if kept.continues(before) => {
            let mut skip = (before.stdout.length, before.stderr.length);
            let rest = whole_frames(engine.read_output(name, KeptOutput::Whole));
            rest.filter_map(move |piece| ready(cut_front(piece, &mut skip)))
                .boxed()
        }
        Ok(_) => {
            capture.note_gap();
            whole_frames(engine.read_output(name, KeptOutput::FromNow))
        }
        Err(error) => {
            tracing::warn!(error = %Causes(&error), container = name, "the rest of the job's output is lost");
            capture.note_gap();
            stream::empty().boxed()
        }
    }
}

/// Measures the engine's copy of a container's output.
async fn measure_output(engine: &ContainerEngine, name: &str) -> Result<CapturedBefore, EngineError> {
    let so_far = whole_frames(engine.read_output(name, KeptOutput::SoFar));
    let measured = so_far.try_fold(CapturedBefore::default(), |mut kept, piece| {
        kept.add(&piece);
        ready(Ok(kept))
    });
    measured.await.map_err(|source| EngineError::Failed {
        operation: "read a container's output",
        source,
    })
}

/// The output until it ends, or breaks off within a frame: the bytes of such a frame are an error. No container of a
/// job has a terminal, whose output would have no frames.
fn whole_frames(
    output: BoxStream<'_, Result<LogOutput, ApiError>>,
) -> BoxStream<'_, Result<LogOutput, ApiError>> {
    let judge = |piece| match piece {
        Ok(LogOutput::Console { .. }) => {
            let err = io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the engine's connection was cut within a frame of the output",
            );
            Err(ApiError::IOError { err })
        }
        Ok(LogOutput::StdErr { .. } | LogOutput::StdOut { .. } | LogOutput::StdIn { .. }) | Err(_) => piece,
    };
    output.map(judge).boxed()
}

/// The piece without the bytes that are still to be skipped of its stream; `None` if nothing is left.
fn cut_front(
    piece: Result<LogOutput, ApiError>,
    skip: &mut (u64, u64),
) -> Option<Result<LogOutput, ApiError>> {
    let mut piece = match piece {
        Ok(piece) => piece,
        Err(error) => return Some(Err(error)),
    };
    let (message, left) = match &mut piece {
        LogOutput::StdErr { message } => (message, &mut skip.1),
        LogOutput::StdOut { message } | LogOutput::StdIn { message } => (message, &mut skip.0),
        LogOutput::Console { .. } => return Some(Ok(piece)),
    };
    let cut = message.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
    *left -= cut as u64;
    let rest = message.split_off(cut);
    *message = rest;
    (!message.is_empty()).then_some(Ok(piece))
}

/// Waits until a container ends, and finds out how it ended. `before` states whether the engine was away since the
/// start.
async fn wait_for_end(
    engine: &ContainerEngine,
    name: &str,
    before: EnginePresence,
    output: BoxStream<'_, Result<LogOutput, ApiError>>,
    capture: &OutputCapture,
    clock: &SharedClock,
) -> Result<EndedContainer, AttemptFailure> {
    let (outcome, ()) = tokio::join!(
        wait(engine, name, clock),
        drain_to_end(engine, name, output, capture, clock)
    );
    let lost = |error: EngineError| {
        AttemptFailure::horde(
            HordeFailureReason::GenericError,
            JobStage::Execution,
            Causes(&error).to_string(),
        )
    };
    let (code, meanwhile) = outcome.map_err(lost)?;
    let presence = before.max(meanwhile);
    if presence != EnginePresence::Unbroken {
        capture.doubt_collection();
        // A stream may end with the engine as if the container had ended.
        let rest = rest_of_output(engine, name, &capture.captured(), capture, clock).await;
        drain_to_end(engine, name, rest, capture, clock).await;
    }
    if code != 0
        && let Some(message) = why_it_was_killed(presence, engine).await
    {
        return Err(AttemptFailure::horde(
            HordeFailureReason::GenericError,
            JobStage::Execution,
            message,
        ));
    }
    let oom_killed = engine.inspect_exit(name).await.map_err(lost)?.oom_killed;
    let exit = ProgramExit {
        code,
        oom_killed,
        not_started: None,
    };
    Ok(EndedContainer { exit, presence })
}

/// The reason why not the program but the end of its container made its exit code, if that is so.
async fn why_it_was_killed(presence: EnginePresence, engine: &ContainerEngine) -> Option<&'static str> {
    match presence {
        EnginePresence::Unbroken => None,
        EnginePresence::Interrupted => (!engine.keeps_containers().await.unwrap_or_default())
            .then_some("the docker engine went away while the job ran, and the job with it"),
        EnginePresence::MachineRestarted => {
            Some("the machine was restarted while the job ran, and the job ended with it")
        }
    }
}

/// Sends `program` to the holder inside a warm container, and waits until the container ends. Everything that it prints
/// goes into `capture` at once, except for lines of the holder, which begin with `mark`.
///
/// # Errors
/// The engine's failures. A failed program is a [`ProgramExit`].
pub(crate) async fn run_in_warm(
    engine: ContainerEngine,
    warm: AttachedContainer,
    (program, mark): (String, String),
    capture: OutputCapture,
    place: OutputPlace,
    clock: SharedClock,
) -> Result<ProgramExit, AttemptFailure> {
    let AttachedContainer {
        name,
        output,
        mut input,
        mut collector,
        ..
    } = warm;
    capture.begin(&place, collector.is_some());
    place.bound_life(&mut collector).await;
    if let Err(error) = write(&mut input, &program).await {
        let message = format!("the warm container of the job is gone: {error}");
        let reason = HordeFailureReason::GenericError;
        return Err(AttemptFailure::horde(reason, JobStage::Execution, message));
    }
    let mut not_started = None;
    // Only this executor and the holder know the mark, and the holder is gone once the program runs.
    let output = output.filter(|piece| {
        let words = match piece {
            Ok(LogOutput::StdErr { message }) => message.strip_prefix(mark.as_bytes()),
            Ok(LogOutput::StdOut { .. } | LogOutput::StdIn { .. } | LogOutput::Console { .. }) | Err(_) => {
                None
            }
        };
        if let Some(words) = words {
            not_started = Some(String::from_utf8_lossy(words).trim_end().to_owned());
        }
        ready(words.is_none())
    });
    let ended = wait_for_end(
        &engine,
        &name,
        EnginePresence::Unbroken,
        output.boxed(),
        &capture,
        &clock,
    )
    .await?;
    // The engine closes the container's input with it.
    drop(input);
    finish_collection(collector, &place, &capture, &clock).await;
    if not_started.is_some() {
        capture.forget_collection();
    }
    Ok(ProgramExit {
        not_started,
        ..ended.exit
    })
}

async fn write(input: &mut InputSink, program: &str) -> std::io::Result<()> {
    input.write_all(program.as_bytes()).await?;
    input.flush().await
}

/// The exit code, and whether the engine was away meanwhile: an engine may be restarted while its container runs on.
async fn wait(
    engine: &ContainerEngine,
    name: &str,
    clock: &SharedClock,
) -> Result<(i64, EnginePresence), EngineError> {
    let first = match engine.wait(name).await {
        Ok(code) => return Ok((code, EnginePresence::Unbroken)),
        Err(error) => error,
    };
    if !first.is_recoverable() {
        return Err(first);
    }
    tracing::warn!(error = %Causes(&first), container = name, "the engine is away; waiting for it");
    let code = Backoff::OUTAGE
        .retry(clock, "wait for a container", || engine.wait(name))
        .await?;
    Ok((code, EnginePresence::Interrupted))
}

/// Judges a container that could not be started: a program that the image does not have ends with a shell's exit code,
/// everything else is a failure by the image's or this machine's fault.
fn judge_failed_start(error: &EngineError) -> Result<ProgramExit, AttemptFailure> {
    let answer = error.answer();
    match answer.and_then(|answer| Some((answer.exit_code?, answer.message))) {
        Some((code, message)) => Ok(ProgramExit {
            code,
            oom_killed: false,
            not_started: Some(message),
        }),
        None => Err(engine_failed(error)),
    }
}

/// Captures everything that a container prints. A stream that breaks with the engine is replaced by the engine's copy.
async fn drain_to_end(
    engine: &ContainerEngine,
    name: &str,
    output: BoxStream<'_, Result<LogOutput, ApiError>>,
    capture: &OutputCapture,
    clock: &SharedClock,
) {
    let mut is_whole = drain(output, capture).await;
    while !is_whole {
        let rest = rest_of_output(engine, name, &capture.captured(), capture, clock).await;
        is_whole = drain(rest, capture).await;
    }
}

/// Captures a stream. Returns whether it ended by itself.
async fn drain(mut output: BoxStream<'_, Result<LogOutput, ApiError>>, capture: &OutputCapture) -> bool {
    while let Some(piece) = output.next().await {
        match piece {
            Ok(piece) => capture.push(&piece),
            Err(error) => {
                tracing::warn!(%error, "the stream of the job's output broke");
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_process::{SystemClock, Tasks};

    use super::*;
    use crate::fixtures;

    const PRINTED_BEFORE: &str = "the first line\n";
    const PRINTED_SINCE: &str = "the second line\n";

    /// Bytes of the first frame of the output that come with an answer which is cut within the frame.
    const CUT_AT: usize = 8 + PRINTED_BEFORE.len() + 3;

    /// Answers as an engine with one ended container. `cuts` lists, for each request for the container's output, how
    /// many bytes of the answer come before the connection is cut; beyond the list they all come.
    fn answer_after_cuts(cuts: &'static [usize]) -> impl FnMut(&str) -> Option<Vec<u8>> {
        let mut cuts = cuts.iter();
        move |request| {
            if request.contains("/logs") {
                let printed = format!("{PRINTED_BEFORE}{PRINTED_SINCE}");
                let length = u32::try_from(printed.len()).unwrap();
                let mut answer =
                    [&[1, 0, 0, 0], length.to_be_bytes().as_slice(), printed.as_bytes()].concat();
                match cuts.next() {
                    Some(0) => return None,
                    Some(cut) => answer.truncate(*cut),
                    None => {}
                }
                Some(answer)
            } else if request.contains("/wait") {
                Some(br#"{"StatusCode":0}"#.to_vec())
            } else {
                Some(br#"{"State":{"Status":"exited","ExitCode":0,"OOMKilled":false}}"#.to_vec())
            }
        }
    }

    /// Takes over a container whose engine answers with these cuts. Returns the output that was captured.
    async fn output_after(cuts: &'static [usize]) -> crate::output_capture::PrintedOutput {
        let tasks = Tasks::new();
        let engine = fixtures::engine(&tasks, answer_after_cuts(cuts)).await;
        let capture = OutputCapture::default();
        capture.push(&LogOutput::StdOut {
            message: PRINTED_BEFORE.into(),
        });
        let exit = take_over(
            engine,
            "job".to_owned(),
            EnginePresence::Unbroken,
            capture.captured(),
            capture.clone(),
            OutputPlace {
                program: None,
                engine: String::new(),
                logs: std::path::PathBuf::new(),
                limit: 0,
                longest: None,
            },
            Arc::new(SystemClock::default()),
        );
        let exit = muster_testbed::within("the end of the container", exit).await;
        assert_eq!(exit.unwrap().code, 0);
        capture.printed()
    }

    #[tokio::test]
    async fn a_program_that_may_have_a_part_of_its_input_alone_is_not_taken_over() {
        for (mark, is_taken) in [("", false), ("sent", true)] {
            let logs = tempfile::tempdir().unwrap();
            std::fs::write(logs.path().join("stdin"), mark).unwrap();
            let tasks = Tasks::new();
            let taken = take_over(
                fixtures::engine(&tasks, answer_after_cuts(&[])).await,
                "job".to_owned(),
                EnginePresence::Unbroken,
                CapturedBefore::default(),
                OutputCapture::default(),
                OutputPlace {
                    program: None,
                    engine: String::new(),
                    logs: logs.path().to_owned(),
                    limit: 0,
                    longest: None,
                },
                Arc::new(SystemClock::default()),
            );
            match muster_testbed::within("the end of the container", taken).await {
                Ok(exit) => assert!(is_taken && exit.code == 0),
                Err(failure) => assert!(
                    !is_taken && failure.message.contains("whole standard input"),
                    "{failure:?}"
                ),
            }
        }
    }

    #[tokio::test]
    async fn an_engine_that_goes_away_while_its_copy_is_measured_costs_no_output() {
        let printed = output_after(&[0]).await;
        assert_eq!(printed.stdout, format!("{PRINTED_BEFORE}{PRINTED_SINCE}"));
        assert_eq!(printed.stderr, "", "no gap is marked");
    }

    #[tokio::test]
    async fn a_frame_that_was_cut_is_not_counted_and_the_rest_is_read_again() {
        // While the copy is measured, and while the rest is read.
        for cuts in [&[CUT_AT] as &[usize], &[usize::MAX, CUT_AT]] {
            let printed = output_after(cuts).await;
            assert_eq!(
                printed.stdout,
                format!("{PRINTED_BEFORE}{PRINTED_SINCE}"),
                "{cuts:?}"
            );
            assert_eq!(printed.stderr, "", "no gap is marked: {cuts:?}");
        }
    }
}
