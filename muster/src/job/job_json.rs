//! A job as the commands print it for programs: the facilitator's view, and the fields that a program asks for first.
//!
//! The short form has neither the contents of inline inputs nor the queries of URLs, which may be signatures. A row of
//! a list has a few fields of bounded length.

use muster_protocol::job::{Fault, Outcome};
use muster_protocol::rest::{JobView, QueuedJob};
use muster_protocol::{ExecutorClass, JobId, JobState, MinerKey, Timestamp};
use serde::Serialize;
use serde_json::Value;

use super::exit_code::program_exit_code;
use super::saved_outputs::Saved;
use crate::cli::user::JsonForm;

/// The most characters of a text in a row of a list.
const MAX_ROW_TEXT: usize = 120;

/// The fields that a program asks for first.
#[derive(Debug, Serialize)]
struct JobAnswer<'a> {
    state: JobState,
    /// The program's own; null where it has not ended by itself.
    exit_code: Option<u8>,
    /// The party at fault; null until the job has ended.
    fault: Option<Fault>,
    /// The word for the failure; null without one.
    reason: Option<&'static str>,
    /// The code of the failure, for `muster explain`; null where the reason has no code.
    code: Option<String>,
    /// The failure for people.
    message: Option<String>,
    /// The miner of the last attempt, as far as is known.
    miner: Option<MinerKey>,
    /// The results that this command wrote to this machine.
    saved: &'a [Saved],
}

/// A job in a list.
#[derive(Debug, Serialize)]
pub(super) struct JobRow<'a> {
    uuid: JobId,
    tag: &'a str,
    status: &'a str,
    #[serde(flatten)]
    answer: JobAnswer<'a>,
    docker_image: String,
    executor_class: ExecutorClass,
    created_at: Timestamp,
    last_update: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a QueuedJob>,
}

/// The facilitator's view of a job, with the fields that a program asks for first.
pub(super) fn whole_job(view: &JobView, form: JsonForm, saved: &[Saved]) -> serde_json::Result<Value> {
    let mut job = serde_json::to_value(view)?;
    if form == JsonForm::Short {
        for field in ["volumes", "uploads", "upload_results", "muster", "webhook"] {
            if let Some(value) = job.get_mut(field) {
                shorten(value);
            }
        }
    }
    let answer = serde_json::to_value(answer(view, saved))?;
    if let (Some(job), Value::Object(answer)) = (job.as_object_mut(), answer) {
        job.extend(answer);
    }
    Ok(job)
}

/// A row of a list.
pub(super) fn row(view: &JobView) -> JobRow<'_> {
    let mut answer = answer(view, &[]);
    answer.message = answer.message.map(|message| bounded(&message));
    JobRow {
        uuid: view.uuid,
        tag: &view.tag,
        status: &view.status,
        answer,
        docker_image: bounded(&view.docker_image),
        executor_class: view.executor_class,
        created_at: view.created_at,
        last_update: view.last_update,
        queue: view.queue.as_deref(),
    }
}

fn answer<'a>(view: &JobView, saved: &'a [Saved]) -> JobAnswer<'a> {
    let failure = view.failure();
    let (reason, message, context) = match &failure {
        Some(Outcome::Rejected(details)) => (
            Some(details.reason.as_str()),
            Some(&details.message),
            details.context.as_ref(),
        ),
        Some(Outcome::Failed(details)) => (
            Some(details.reason.as_str()),
            Some(&details.message),
            details.context.as_ref(),
        ),
        Some(Outcome::HordeFailed(details)) => (
            Some(details.reason.as_str()),
            Some(&details.message),
            details.context.as_ref(),
        ),
        Some(Outcome::Completed(_)) | None => (None, None, None),
    };
    // Its reason is none of the wire's.
    let is_cancelled = view.state() == JobState::Cancelled;
    let reason = match is_cancelled {
        true => Some(JobState::Cancelled.as_str()),
        false => reason,
    };
    let code = context.and_then(|context| context.get("code")?.as_str());
    let ended = view.last_status().is_terminal();
    JobAnswer {
        state: view.state(),
        exit_code: program_exit_code(view),
        fault: ended.then(|| failure.as_ref().map_or(Fault::Nobody, Outcome::fault)),
        reason,
        code: code.map(str::to_owned),
        message: message.cloned(),
        miner: view.miner(),
        saved,
    }
}

/// Leaves out the contents of inline inputs, and of URLs the query, which may be a signature.
fn shorten(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("volume_type").is_some_and(|kind| kind == "inline") {
                fields.remove("contents");
            }
            fields.values_mut().for_each(shorten);
        }
        Value::Array(values) => values.iter_mut().for_each(shorten),
        Value::String(text) if text.starts_with("http://") || text.starts_with("https://") => {
            if let Some(end) = text.find(['?', '#']) {
                text.truncate(end);
            }
        }
        Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
    }
}

/// The beginning of a text that is too long for a row, with an ellipsis where the rest was.
fn bounded(text: &str) -> String {
    match text.char_indices().nth(MAX_ROW_TEXT) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(text)),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixtures::ended;
    use super::*;

    fn failed() -> JobView {
        let miner = "5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy";
        let mut view = ended(
            "failed",
            &json!({
                "job_failure_details": {"reason": "nonzero_return_code", "stage": "execution",
                    "message": "x".repeat(5_000), "docker_process_exit_status": 125,
                    "docker_process_stderr": "y".repeat(100_000), "context": {"fault": "user", "code": "E0009"}},
                "muster": {"route": [{"miner": miner, "candidates": 1}]},
            }),
        );
        view.docker_image = format!("registry.example.org/{}", "z".repeat(400));
        view.stdout = "s".repeat(100_000);
        view.volumes = serde_json::from_value(json!([
            {"volume_type": "inline", "contents": "SECRETCONTENTS"},
            {"volume_type": "single_file", "url": "https://h/a?Signature=SECRET", "relative_path": "a"},
        ]))
        .unwrap();
        view.uploads = serde_json::from_value(json!([
            {"output_upload_type": "single_file_put", "url": "https://h/b?Signature=SECRET", "relative_path": "b"},
        ]))
        .unwrap();
        view
    }

    #[test]
    fn job_says_whose_fault_it_was_and_keeps_no_secrets_unless_all_is_asked_for() {
        let view = failed();
        let short = whole_job(&view, JsonForm::Short, &[]).unwrap();
        for (field, expected) in [
            ("state", json!("failed")),
            ("exit_code", json!(125)),
            ("fault", json!("user")),
            ("reason", json!("nonzero_return_code")),
            ("code", json!("E0009")),
            ("miner", json!("5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy")),
            ("saved", json!([])),
        ] {
            assert_eq!(short[field], expected, "{field}");
        }
        assert_eq!(short["uploads"][0]["url"], "https://h/b");
        assert_eq!(short["stdout"], view.stdout);
        assert!(!short.to_string().contains("SECRET"), "{short}");
        let full = whole_job(&view, JsonForm::Full, &[]).unwrap().to_string();
        for part in ["SECRETCONTENTS", "https://h/a?Signature=SECRET"] {
            assert!(full.contains(part), "{part}");
        }
        let open = whole_job(&ended("accepted", &json!({})), JsonForm::Short, &[]).unwrap();
        assert_eq!(
            (&open["state"], &open["fault"], &open["exit_code"]),
            (&json!("preparing"), &Value::Null, &Value::Null)
        );
        let done = whole_job(&ended("completed", &json!({})), JsonForm::Short, &[]).unwrap();
        assert_eq!(
            (&done["state"], &done["fault"], &done["exit_code"]),
            (&json!("done"), &json!("nobody"), &json!(0))
        );
    }

    #[test]
    fn twenty_long_jobs_are_at_most_twenty_kilobytes() {
        let jobs = vec![failed(); 20];
        let rows: Vec<_> = jobs.iter().map(row).collect();
        let text = serde_json::to_string_pretty(&rows).unwrap();
        assert!(text.len() <= 20_000, "{} bytes", text.len());
        assert!(!text.contains("SECRET"), "{text}");
        assert!(text.contains("xxx…\"") && text.contains("zzz…\""), "{text}");
    }
}
