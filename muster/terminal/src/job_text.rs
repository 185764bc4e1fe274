//! Jobs as text for people.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_protocol::job::{Fault, Outcome};
use muster_protocol::receipt::MINIMUM_CHARGE_US;
use muster_protocol::rest::{JobView, ProgressEvent, QueueEvent, QueuedJob, StatusEntry, WebhookDelivery};
use muster_protocol::upload::FileUpload;
use muster_protocol::wire::checks::{CheckOrigin, JobCheck};
use muster_protocol::{JobState, Receipt, ReceiptPayload, Timestamp};

use crate::completion_text::print_completion;
use crate::failure_hint::failure_hint;
use crate::print;

/// The end of a job: what it printed, or what failed and whose fault it was.
fn result(view: &JobView) {
    if !view.stdout.is_empty() {
        print::raw(&view.stdout);
    }
    if !view.stderr.is_empty() {
        print::problem(format_args!("{}", view.stderr.trim_end()));
    }
    for path in view.artifacts.keys() {
        print::line(format_args!("  artifact {path}"));
    }
    // A place that may be a file or a folder has an upload for either.
    let outputs: BTreeSet<_> = view.uploads.iter().map(|upload| output(upload).0).collect();
    for path in outputs {
        print::line(format_args!("  output   {path}"));
    }
    if let Some(reason) = failure(view) {
        print::problem(format_args!("job {}: {reason}", view.uuid));
    }
}

/// The file under `/output` that an upload delivers, and where to.
pub fn output(upload: &FileUpload) -> (&str, &str) {
    match upload {
        FileUpload::SingleFilePost(post) => (&post.relative_path, &post.url),
        FileUpload::SingleFilePut(put) => (&put.relative_path, &put.url),
    }
}

/// The validator's finding by running a job again, with each output that was compared.
pub fn describe_check(check: &JobCheck) -> String {
    let why = match check.origin {
        CheckOrigin::Drawn => "drawn",
        CheckOrigin::Reported => "reported",
        CheckOrigin::Unknown => "run again",
    };
    let mut text = format!("{} ({why})", check.state);
    if !check.reason.is_empty() {
        text = format!("{text}: {}", check.reason);
    }
    for output in &check.outputs {
        let word = if output.job == output.trusted {
            "same   "
        } else {
            "differs"
        };
        text = format!("{text}\n  {word} {}", output.name);
    }
    text
}

/// A job from beginning to end.
pub fn job(view: &JobView) {
    print::line(format_args!("job      {}", view.uuid));
    if !view.tag.is_empty() {
        print::line(format_args!("name     {}", print::plain(&view.tag)));
    }
    print::line(format_args!("state    {}", view.state()));
    print::line(format_args!("image    {}", view.docker_image));
    if let Some(image) = &view.image {
        let manifest = image.manifest.map(|digest| format!(", manifest {digest}"));
        print::line(format_args!(
            "  was    {}{}",
            image.id,
            manifest.unwrap_or_default()
        ));
    }
    print::line(format_args!("class    {}", view.executor_class));
    print::line(format_args!("router   {}", view.target_validator_hotkey));
    if let Some(miner) = view.miner() {
        print::line(format_args!("miner    {miner}"));
    }
    if let Some(took) = took(view) {
        print::line(format_args!("took     {took}"));
    }
    if let Some(cost) = cost(view) {
        print::line(format_args!("cost     {cost}"));
    }
    if let Some(queued) = &view.queue {
        queue(queued);
    }
    for entry in &view.status_history {
        let is_end = view.state() == JobState::Cancelled && entry.status.is_terminal();
        let text = match is_end {
            true => cancellation(entry, view.created_at),
            false => step(entry, view.created_at),
        };
        print::line(format_args!("{text}"));
    }
    for receipt in receipts(view) {
        print::line(format_args!("  receipt  {}", describe(&receipt)));
    }
    if let Some(delivery) = &view.webhook {
        print::line(format_args!("webhook  {}", webhook(delivery)));
    }
    if let Some(report) = &view.completion {
        print_completion(report);
    }
    result(view);
}

/// Where the time of an ended job went: `10.2 s: waiting 0.1 s, preparing 9.0 s, running 1.1 s`.
fn took(view: &JobView) -> Option<String> {
    let last = view.status_history.last()?;
    if !last.status.is_terminal() {
        return None;
    }
    let mut states: Vec<(JobState, Duration)> = Vec::new();
    for (entry, next) in view.status_history.iter().zip(view.status_history.iter().skip(1)) {
        let (state, lasted) = (entry.status.state(), next.created_at.since(entry.created_at));
        match states.last_mut() {
            Some((known, time)) if *known == state => *time += lasted,
            Some(_) | None => states.push((state, lasted)),
        }
    }
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    let parts: Vec<_> = states
        .iter()
        .map(|(state, time)| format!("{state} {}", seconds(*time)))
        .collect();
    let whole = seconds(last.created_at.since(view.created_at));
    Some(format!("{whole}: {}", parts.join(", ")))
}

/// The executor's time that the receipt with both signatures charges: `12.000 s of an executor`.
fn cost(view: &JobView) -> Option<String> {
    let paid = receipts(view).iter().find_map(|receipt| match &receipt.payload {
        ReceiptPayload::Finished(finished) => finished.score_micros(),
        ReceiptPayload::Started(_) | ReceiptPayload::Accepted(_) => None,
    })?;
    let reason = if paid == MINIMUM_CHARGE_US {
        ", the least that an attempt costs"
    } else {
        ""
    };
    let seconds = Duration::from_micros(paid).as_secs_f64();
    Some(format!("{seconds:.3} s of an executor{reason}"))
}

/// Where the message about a job's end stands: `due to https://host/, 2 attempts, the last failed: … , next at …`.
fn webhook(delivery: &WebhookDelivery) -> String {
    let WebhookDelivery {
        url, state, attempts, ..
    } = delivery;
    let attempts = match attempts {
        0 => String::new(),
        1 => ", 1 attempt".to_owned(),
        more => format!(", {more} attempts"),
    };
    let error = delivery.error.as_ref();
    let error = error
        .map(|error| format!(", the last failed: {error}"))
        .unwrap_or_default();
    let next = delivery
        .next_at
        .map(|next| format!(", next at {next}"))
        .unwrap_or_default();
    format!("{state} to {url}{attempts}{error}{next}")
}

/// A step of a job in a line, with the time since `begun`: `     0.250 s  preparing   (executor ready)`.
pub fn step(entry: &StatusEntry, begun: Timestamp) -> String {
    let seconds = entry.created_at.since(begun).as_secs_f64();
    let (state, step) = (entry.status.state(), entry.status.step());
    format!("  {seconds:>8.3} s  {state:<10}  ({step})")
}

/// The line about the end of a job that its user cancelled, whose status is that of a failure.
fn cancellation(entry: &StatusEntry, begun: Timestamp) -> String {
    let seconds = entry.created_at.since(begun).as_secs_f64();
    format!("  {seconds:>8.3} s  {:<10}  (stopped)", JobState::Cancelled)
}

/// A line about an image that is being fetched: `           fetching the image: 1.5 of 3.0 MiB, 1 of 2 layers`.
pub fn image_progress(progress: &ProgressEvent) -> String {
    let mib = |bytes: u64| {
        let tenths = bytes.saturating_mul(10) >> 20;
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    let bytes = match progress.total {
        Some(total) => format!("{} of {} MiB", mib(progress.done), mib(total)),
        None => format!("{} MiB", mib(progress.done)),
    };
    let layers = progress
        .layers
        .map(|layers| format!(", {} of {} layers", layers.done, layers.total))
        .unwrap_or_default();
    format!("{:>12}fetching the image: {bytes}{layers}", "")
}

/// The receipts with both signatures that came with the job's end.
pub fn receipts(view: &JobView) -> Vec<Receipt> {
    let extension = |entry: &StatusEntry| entry.metadata.as_ref()?.muster.clone();
    view.status_history
        .last()
        .and_then(extension)
        .map(|extension| extension.receipts)
        .unwrap_or_default()
}

/// A receipt in a line.
pub fn describe(receipt: &Receipt) -> String {
    let payload = &receipt.payload;
    format!(
        "{:<19} attempt {} of {} signed by both",
        payload.kind(),
        payload.attempt(),
        payload.timestamp()
    )
}

/// Why it did not succeed: what happened, where, whose fault it was, and the code to look up.
pub fn failure(view: &JobView) -> Option<String> {
    let outcome = view.failure()?;
    let failure = describe_failure(&outcome)?;
    Some(match failure_hint(&outcome, view) {
        Some(hint) => format!("{failure}; {hint}"),
        None => failure,
    })
}

fn describe_failure(outcome: &Outcome) -> Option<String> {
    let (words, reason, context) = match outcome {
        Outcome::Completed(_) => return None,
        Outcome::Rejected(details) => {
            let words = format!(
                "rejected by the {}: {} ({})",
                details.rejected_by, details.message, details.reason
            );
            (words, details.reason.as_str(), &details.context)
        }
        // Its reason is none of the wire's.
        Outcome::Failed(details) if outcome.is_cancellation() => {
            return Some(format!("{}; at fault: {}", details.message, outcome.fault()));
        }
        Outcome::Failed(details) => {
            let exit = details.docker_process_exit_status;
            let exit = exit.map(|code| format!(", exit code {code}")).unwrap_or_default();
            let words = format!(
                "failed in stage {}: {} ({}{exit})",
                details.stage, details.message, details.reason
            );
            (words, details.reason.as_str(), &details.context)
        }
        Outcome::HordeFailed(details) => {
            // ComputeHorde has one status for what is not the program's own failure, whosever fault it is.
            let by_subnet = match outcome.fault() {
                Fault::User => "",
                Fault::Nobody
                | Fault::Executor
                | Fault::Miner
                | Fault::Validator
                | Fault::Facilitator
                | Fault::Network => " by the subnet",
            };
            let words = format!(
                "failed{by_subnet}, says the {}: {} ({})",
                details.reported_by, details.message, details.reason
            );
            (words, details.reason.as_str(), &details.context)
        }
    };
    let code = context.as_ref().and_then(|context| context.get("code")?.as_str());
    let page = code.unwrap_or(reason);
    Some(format!(
        "{words}; at fault: {}; `muster explain {page}`",
        outcome.fault()
    ))
}

/// The place of a waiting job: `  waiting: 3rd of 12 for always_on.gpu-24gb, about 4 min: all 2 executors are at work`.
pub fn place(place: &QueueEvent) -> String {
    let estimate = place
        .estimate_s
        .map(|seconds| format!(", {}", wait(seconds)))
        .unwrap_or_default();
    let why = if place.why.is_empty() {
        String::new()
    } else {
        format!(": {}", place.why)
    };
    let (class, waiting) = (place.class, place.waiting);
    let position = ordinal(place.ahead.saturating_add(1));
    format!("  waiting: {position} of {waiting} for {class}{estimate}{why}")
}

/// The place of a waiting job as the table of jobs has it: `3rd of 12, about 4 min`.
pub fn short_place(queued: &QueuedJob, now: Timestamp) -> String {
    let position = ordinal(queued.position);
    let start = queued
        .estimated_start
        .map(|start| format!(", {}", wait(start.since(now).as_secs())))
        .unwrap_or_default();
    format!("{position} of {}{start}", queued.waiting)
}

/// A waiting time as text: `less than a minute`, `about 4 min`, `about 3 h`.
pub fn wait(seconds: u64) -> String {
    match seconds {
        0..60 => "less than a minute".to_owned(),
        60..7_200 => format!("about {} min", seconds.div_ceil(60)),
        _ => format!("about {} h", seconds.div_ceil(3_600)),
    }
}

/// The time since something, as tables have it: `45s`, `12m`, `3h`, `2d`.
pub fn age(since: Timestamp, now: Timestamp) -> String {
    match now.since(since).as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3_600 => format!("{}m", seconds / 60),
        seconds @ 3_600..86_400 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// The lines about the place of a job that waits.
fn queue(queued: &QueuedJob) {
    let (position, waiting, class) = (ordinal(queued.position), queued.waiting, queued.class);
    let told = queued.told_at;
    print::line(format_args!(
        "queue    {position} of {waiting} for {class}, told at {told}"
    ));
    if !queued.why.is_empty() {
        print::line(format_args!("  why    {}", queued.why));
    }
    if let Some(start) = queued.estimated_start {
        print::line(format_args!("  start  estimated at {start}"));
    }
}

/// An ordinal number in English: `1st`, `12th`, `23rd`.
fn ordinal(number: u64) -> String {
    let ending = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        (_, _) => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use muster_protocol::wire::facilitator::HordeFailureDetails;
    use muster_protocol::{ExecutorClass, HordeFailureReason, ParticipantType};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failure_by_its_users_fault_is_not_called_the_subnets() {
        let text = |fault: &str| {
            let outcome = Outcome::HordeFailed(HordeFailureDetails {
                reported_by: ParticipantType::Executor,
                reason: HordeFailureReason::GenericError,
                message: "no such image".to_owned(),
                context: Some(json!({ "fault": fault })),
            });
            describe_failure(&outcome).unwrap()
        };
        assert_eq!(
            text("user"),
            "failed, says the executor: no such image (generic_error); at fault: user; `muster explain generic_error`"
        );
        assert_eq!(
            text("executor"),
            "failed by the subnet, says the executor: no such image (generic_error); at fault: executor; \
             `muster explain generic_error`"
        );
    }

    #[test]
    fn a_cancelled_job_has_no_reason_to_look_up() {
        let outcome: Outcome = Outcome::Failed(
            serde_json::from_value(json!({
                "reason": "unknown", "stage": "unknown", "message": "the job was cancelled by its user",
                "context": {"cancelled": true},
            }))
            .unwrap(),
        );
        assert_eq!(
            describe_failure(&outcome).unwrap(),
            "the job was cancelled by its user; at fault: user"
        );
    }

    #[test]
    fn ended_job_tells_where_its_time_went() {
        let at = |millis: i64| Timestamp::from_micros(millis * 1_000);
        let entry =
            |status: &str, millis| json!({"status": status, "metadata": {}, "created_at": at(millis)});
        let mut view: JobView = serde_json::from_value(json!({
            "uuid": "11111111-2222-4333-8444-555555555555", "executor_class": "always_on.test", "created_at": at(0),
            "last_update": at(0), "status": "", "docker_image": "alpine", "args": [], "env": {}, "use_gpu": false,
            "target_validator_hotkey": "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY", "download_time_limit": 1,
            "execution_time_limit": 1, "streaming_start_time_limit": 1, "upload_time_limit": 1,
            "status_history": [entry("sent", 0), entry("received", 50), entry("accepted", 100),
                entry("executor_ready", 9_000), entry("volumes_ready", 9_100), entry("completed", 10_200)],
        }))
        .unwrap();
        assert_eq!(
            took(&view).unwrap(),
            "10.2 s: waiting 0.1 s, preparing 9.0 s, running 1.1 s"
        );
        view.status_history.pop();
        assert_eq!(took(&view), None);
    }

    #[test]
    fn a_waiting_job_tells_its_place_its_time_and_why() {
        let mut waits = QueueEvent {
            class: ExecutorClass::AlwaysOnGpu24Gb,
            ahead: 2,
            waiting: 12,
            estimate_s: Some(200),
            why: "all 2 executors are at work".to_owned(),
        };
        assert_eq!(
            place(&waits),
            "  waiting: 3rd of 12 for always_on.gpu-24gb, about 4 min: all 2 executors are at work"
        );
        let told = Timestamp::from_secs(1_000);
        let view = QueuedJob::new(&waits, told);
        assert_eq!(short_place(&view, told), "3rd of 12, about 4 min");
        let later = Timestamp::from_secs(9_000);
        assert_eq!(short_place(&view, later), "3rd of 12, less than a minute");
        waits.estimate_s = None;
        waits.why = String::new();
        assert_eq!(short_place(&QueuedJob::new(&waits, told), told), "3rd of 12");
        assert_eq!(place(&waits), "  waiting: 3rd of 12 for always_on.gpu-24gb");
        assert_eq!(
            [1, 2, 11, 12, 13, 21, 111].map(ordinal),
            ["1st", "2nd", "11th", "12th", "13th", "21st", "111th"]
        );
    }

    #[test]
    fn times_are_told_in_one_unit() {
        let at = Timestamp::from_secs;
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3_599, "59m"),
            (7_200, "2h"),
            (200_000, "2d"),
        ] {
            assert_eq!(age(at(1_000), at(1_000 + seconds)), text);
        }
        assert_eq!(age(at(9), at(1)), "0s", "a clock that was set back");
        for (seconds, text) in [
            (59, "less than a minute"),
            (61, "about 2 min"),
            (7_201, "about 3 h"),
        ] {
            assert_eq!(wait(seconds), text);
        }
    }
}
