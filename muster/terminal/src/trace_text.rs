//! The way of one job across the roles, with the time of each stage.

use muster_protocol::rest::JobView;
use muster_protocol::{JobTrace, ParticipantType, StageTime, Timestamp, TraceStage};
use muster_span_export::{is_root, order_stages, trace_of};

use crate::print;

/// Characters of the bar that shows where in the whole time a stage lies.
const BAR: usize = 30;
/// Characters of the longest indented name of a stage.
const NAME: usize = 24;

/// Prints a job's trace.
pub fn show(view: &JobView) {
    let trace = trace_of(view);
    print::line(format_args!("job      {}", view.uuid));
    print::line(format_args!("trace    {}", trace.traceparent.trace));
    for line in lines(&trace) {
        print::line(format_args!("{line}"));
    }
    let is_told = trace
        .stages
        .iter()
        .any(|time| time.role != ParticipantType::Facilitator);
    if !is_told {
        let why = if view.last_status().is_terminal() {
            "the job never came to a miner, or its validator tells no stages"
        } else {
            "the stages of the other roles come with the job's end"
        };
        print::line(format_args!(
            "{why}; the facilitator heard of each status at these times:"
        ));
        for entry in &view.status_history {
            print::line(format_args!("{}", crate::job_text::step(entry, view.created_at)));
        }
    }
}

/// A line for each stage, in the order of the job's way, and a line for each clock that is evidently off.
fn lines(trace: &JobTrace) -> Vec<String> {
    let ordered = order_stages(&trace.stages);
    let (Some(first), Some(last)) = (
        ordered.iter().map(|(_, time)| time.began()).min(),
        ordered.iter().map(|(_, time)| time.ended()).max(),
    ) else {
        return Vec::new();
    };
    let head = format!(
        "{:<12} {:<NAME$} {:>12} {:>12}",
        "role", "stage", "begins", "takes"
    );
    let mut lines = vec![head];
    for (depth, time) in &ordered {
        let name = format!("{:width$}{}", "", time.stage, width = depth * 2);
        let begins = time.began().since(first).as_secs_f64();
        let takes = time.ended().since(time.began()).as_secs_f64();
        lines.push(format!(
            "{:<12} {name:<NAME$} {begins:>10.3} s {takes:>10.3} s  {}",
            time.role.as_str(),
            bar(time, first, last)
        ));
    }
    lines.extend(find_skews(&ordered));
    lines
}

/// Where a stage lies in the whole time.
fn bar(time: &StageTime, first: Timestamp, last: Timestamp) -> String {
    let whole = last.since(first).as_micros().max(1);
    let column = |at: Timestamp| {
        let cells = at.since(first).as_micros().saturating_mul(BAR as u128) / whole;
        usize::try_from(cells).unwrap_or(BAR).min(BAR)
    };
    let begin = column(time.began()).min(BAR.saturating_sub(1));
    let length = column(time.ended()).saturating_sub(begin).max(1);
    format!("{}{}", " ".repeat(begin), "▬".repeat(length))
}

/// The clocks that are evidently off: a role cannot begin before the role that asked it has begun, nor after that one
/// has ended.
fn find_skews(ordered: &[(usize, StageTime)]) -> Vec<String> {
    let roots = |role| {
        ordered
            .iter()
            .map(|(_, time)| time)
            .filter(move |time: &&StageTime| match role {
                ParticipantType::Validator => time.role == role && time.stage == TraceStage::Attempt,
                ParticipantType::Miner | ParticipantType::Executor => time.role == role && is_root(time),
                ParticipantType::Facilitator | ParticipantType::Sdk | ParticipantType::Unknown => false,
            })
    };
    let mut found = Vec::new();
    for (above, below) in [
        (ParticipantType::Validator, ParticipantType::Miner),
        (ParticipantType::Miner, ParticipantType::Executor),
    ] {
        for asked in roots(below) {
            let Some(asking) = roots(above).find(|time| time.attempt == asked.attempt) else {
                continue;
            };
            let behind = asking.began().since(asked.began());
            let ahead = asked.began().since(asking.ended());
            let (off, direction) = if behind > ahead {
                (behind, "behind")
            } else {
                (ahead, "ahead of")
            };
            if !off.is_zero() {
                let milliseconds = off.as_micros().div_ceil(1_000);
                found.push(format!(
                    "the clock of the {below} is at least {milliseconds} ms {direction} that of the {above}"
                ));
            }
        }
    }
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use muster_protocol::{AttemptId, JobId, context_for_validator};

    use super::*;

    fn time(role: ParticipantType, stage: TraceStage, began_ms: i64, ended_ms: i64) -> StageTime {
        let at = |ms: i64| Timestamp::from_micros(1_769_000_000_000_000 + ms * 1_000);
        StageTime::new(role, stage, at(began_ms), at(ended_ms))
    }

    fn attempt() -> Option<AttemptId> {
        "11111111-2222-4333-8444-555555555555".parse().ok()
    }

    fn of_attempt(role: ParticipantType, stage: TraceStage, began_ms: i64, ended_ms: i64) -> StageTime {
        StageTime {
            attempt: attempt(),
            ..time(role, stage, began_ms, ended_ms)
        }
    }

    fn trace(miner_ms: i64) -> JobTrace {
        use ParticipantType::{Executor, Facilitator, Miner, Validator};
        let job: JobId = "11111111-2222-4333-8444-555555555555".parse().unwrap();
        let mut trace = JobTrace::new(context_for_validator(None, job));
        trace.stages = vec![
            of_attempt(Executor, TraceStage::Attempt, 400, 2_800),
            of_attempt(Executor, TraceStage::Run, 1_000, 2_500),
            of_attempt(Miner, TraceStage::Lease, miner_ms, 2_900),
            of_attempt(Miner, TraceStage::Start, miner_ms, 400),
            of_attempt(Validator, TraceStage::Run, 1_000, 2_600),
            of_attempt(Validator, TraceStage::Attempt, 200, 2_900),
            of_attempt(Validator, TraceStage::Queue, 100, 200),
            time(Validator, TraceStage::Job, 100, 3_000),
            time(Facilitator, TraceStage::Request, 0, 3_000),
            time(Facilitator, TraceStage::Delivery, 0, 120),
        ];
        trace
    }

    #[test]
    fn a_trace_is_printed_in_the_order_of_the_way() {
        let seen = lines(&trace(300)).join("\n");
        insta::assert_snapshot!(seen, @r"
        role         stage                          begins        takes
        facilitator  request                       0.000 s      3.000 s  ▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬
        facilitator    delivery                    0.000 s      0.120 s  ▬
        validator      job                         0.100 s      2.900 s   ▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬
        validator        queue                     0.100 s      0.100 s   ▬
        validator        attempt                   0.200 s      2.700 s    ▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬
        validator          run                     1.000 s      1.600 s            ▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬
        miner              lease                   0.300 s      2.600 s     ▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬
        miner                start                 0.300 s      0.100 s     ▬
        executor             attempt               0.400 s      2.400 s      ▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬
        executor               run                 1.000 s      1.500 s            ▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬
        ");
    }

    #[test]
    fn a_clock_that_is_evidently_off_is_named() {
        let seen = lines(&trace(150));
        assert_eq!(
            seen.last().unwrap(),
            "the clock of the miner is at least 50 ms behind that of the validator"
        );
        let seen = lines(&trace(2_950));
        assert!(
            seen.iter().any(|line| line
                == "the clock of the miner is at least 50 ms ahead of that of the validator"),
            "{seen:?}"
        );
        assert!(lines(&JobTrace::new(trace(0).traceparent)).is_empty());
    }

    #[test]
    fn times_of_any_size_are_printed() {
        let mut odd = trace(300);
        odd.stages.push(StageTime {
            began_us: i64::MIN,
            took_us: u64::MAX,
            ..time(ParticipantType::Miner, TraceStage::Unknown, 0, 0)
        });
        let seen = lines(&odd);
        assert!(seen.len() >= 10);
    }
}
