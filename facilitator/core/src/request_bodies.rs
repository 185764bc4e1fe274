//! Parses and checks the bodies of users' requests, and turns a job into the frame for its validator. Pure.

use indexmap::IndexMap;
use muster_job_metrics::MetricRules;
use muster_protocol::account_api::{CreateKey, KeyRight, MAX_KEY_DAYS};
use muster_protocol::image_reference::ImageName;
use muster_protocol::job::{BoundedFields, find_over_limits};
use muster_protocol::rest::{CreateJob, Feedback, ReportCheat, SetWebhook};
use muster_protocol::upload::{FileUpload, MultiUpload, OutputUpload};
use muster_protocol::volume::{MultiVolume, Volume, VolumePart};
use muster_protocol::wire::facilitator::{JobNew, JobRequestTag, UserJobRequest, UserSignature};
use muster_protocol::wire::miner::StreamingDetails;
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::{ExecutorClass, JobId, JobName, ValidatorKey};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The longest time limit of a stage, in seconds. Four stages stay below the 30 days that a receipt can promise.
pub(crate) const MAX_STAGE_SECONDS: u64 = 7 * 24 * 3600;

/// The longest reason in an answer, in characters.
const MAX_REASON_CHARS: usize = 300;

/// The reasons of the rejection by field, in the shape of the API's answer.
pub type FieldErrors = IndexMap<&'static str, Vec<String>>;

/// The reason why a body is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyRejection {
    /// The body is not JSON, or nested too deeply.
    #[error("JSON parse error: {0}")]
    NotJson(String),
    /// The body is JSON, but no object.
    #[error("Invalid data. Expected a JSON object.")]
    NotObject,
    /// Some fields of the object are wrong.
    #[error("these fields are wrong: {}", .0.keys().copied().collect::<Vec<_>>().join(", "))]
    Fields(FieldErrors),
}

/// Parses a job.
///
/// # Errors
/// All reasons at once, by field.
pub fn parse_job(body: &[u8]) -> Result<CreateJob, BodyRejection> {
    let job = parse_fields(body, FIELDS)?;
    reject_if_any(find_out_of_bounds(&job)).map(|()| job)
}

/// The longest body of a cheat report, in bytes.
const MAX_DETAILS: usize = 64 * 1024;

/// The longest name of an API key, in characters.
const MAX_KEY_NAME: usize = 100;

/// Parses a cheat report. The second value is the body as it arrived, which the user has signed.
///
/// # Errors
/// All reasons at once, by field.
pub fn parse_cheat_report(body: &[u8]) -> Result<(ReportCheat, Value), BodyRejection> {
    parse_report(body, MAX_DETAILS, |report| {
        (report.job_uuid == report.trusted_job_uuid).then_some("It must be another job than job_uuid.")
    })
}

/// The longest body of a report of an answer, in bytes: it may carry the words of the exchange.
const MAX_ANSWER_REPORT: usize = 768 * 1024;

/// Parses a report of a streamed answer, whose two ids are that of the session's job. The second value is the body as
/// it arrived, which the user has signed.
///
/// # Errors
/// See [`parse_cheat_report`].
pub fn parse_answer_report(body: &[u8]) -> Result<(ReportCheat, Value), BodyRejection> {
    parse_report(body, MAX_ANSWER_REPORT, |report| {
        (report.job_uuid != report.trusted_job_uuid).then_some("It must be the same job as job_uuid.")
    })
}

/// Parses a report of at most `most` bytes. `wrong_trusted` gives the fault of the trusted job's id, if it has one.
fn parse_report(
    body: &[u8],
    most: usize,
    wrong_trusted: impl Fn(&ReportCheat) -> Option<&'static str>,
) -> Result<(ReportCheat, Value), BodyRejection> {
    const FIELDS: &[Field] = &[
        ("job_uuid", true, check_type::<JobId>),
        ("trusted_job_uuid", true, check_type::<JobId>),
    ];
    let report: ReportCheat = parse_fields(body, FIELDS)?;
    let value: Value =
        serde_json::from_slice(body).map_err(|error| BodyRejection::NotJson(shorten(&error)))?;
    let mut errors = FieldErrors::new();
    if let Some(reason) = wrong_trusted(&report) {
        errors.insert("trusted_job_uuid", vec![reason.to_owned()]);
    }
    if body.len() > most {
        let reason = format!("Ensure the report has no more than {most} bytes.");
        errors.insert("details", vec![reason]);
    }
    reject_if_any(errors).map(|()| (report, value))
}

/// Parses feedback on a result. The second value is the body as it arrived, which the user has signed.
///
/// # Errors
/// See [`parse_cheat_report`].
pub fn parse_feedback(body: &[u8]) -> Result<(Feedback, Value), BodyRejection> {
    const FIELDS: &[Field] = &[
        ("result_correctness", true, check_type::<f64>),
        ("expected_duration", false, check_type::<Option<f64>>),
    ];
    let feedback: Feedback = parse_fields(body, FIELDS)?;
    let value: Value =
        serde_json::from_slice(body).map_err(|error| BodyRejection::NotJson(shorten(&error)))?;
    let mut errors = FieldErrors::new();
    if !(0.0..=1.0).contains(&feedback.result_correctness) {
        errors.insert(
            "result_correctness",
            vec!["Ensure this value is from 0 to 1.".to_owned()],
        );
    }
    if feedback.expected_duration.is_some_and(|seconds| seconds < 0.0) {
        errors.insert(
            "expected_duration",
            vec!["Ensure this value is greater than or equal to 0.".to_owned()],
        );
    }
    reject_if_any(errors).map(|()| (feedback, value))
}

/// Parses the request for an API key. The caller decides whether the named account is allowed.
///
/// # Errors
/// See [`parse_cheat_report`].
pub fn parse_key_request(body: &[u8]) -> Result<CreateKey, BodyRejection> {
    const FIELDS: &[Field] = &[
        ("name", true, check_type::<String>),
        ("account", false, check_type::<Option<String>>),
        ("rights", false, check_type::<Option<Vec<KeyRight>>>),
        ("days", false, check_type::<Option<u32>>),
    ];
    let key: CreateKey = parse_fields(body, FIELDS)?;
    let mut errors = FieldErrors::new();
    let length = key.name.trim().chars().count();
    if length == 0 || length > MAX_KEY_NAME || key.name.chars().any(char::is_control) {
        let reason =
            format!("It should have 1 to {MAX_KEY_NAME} characters, none of them a control character.");
        errors.insert("name", vec![reason]);
    }
    if key.rights.as_ref().is_some_and(Vec::is_empty) {
        errors.insert("rights", vec!["A key needs a right.".to_owned()]);
    }
    if key.days.is_some_and(|days| !(1..=MAX_KEY_DAYS).contains(&days)) {
        errors.insert("days", vec![format!("It should be 1 to {MAX_KEY_DAYS}.")]);
    }
    reject_if_any(errors).map(|()| key)
}

/// Parses the request for an account's webhook. The caller checks the URL.
///
/// # Errors
/// See [`parse_cheat_report`].
pub fn parse_webhook(body: &[u8]) -> Result<SetWebhook, BodyRejection> {
    const FIELDS: &[Field] = &[
        ("url", false, check_type::<Option<String>>),
        ("new_secret", false, check_type::<bool>),
    ];
    parse_fields(body, FIELDS)
}

fn reject_if_any(errors: FieldErrors) -> Result<(), BodyRejection> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(BodyRejection::Fields(errors))
    }
}

fn parse_fields<T: DeserializeOwned>(body: &[u8], known: &[Field]) -> Result<T, BodyRejection> {
    if !is_object(body) {
        return Err(diagnose(body, known, None));
    }
    serde_json::from_slice(body).map_err(|error| diagnose(body, known, Some(&error)))
}

/// Turns a job into the frame for its validator, by adding the user's signature and the job's id.
pub fn into_request(job: CreateJob, uuid: JobId, signature: UserSignature) -> (ValidatorKey, UserJobRequest) {
    let volumes = job.volumes.unwrap_or_default();
    let uploads = job.uploads.unwrap_or_default();
    let request = UserJobRequest {
        signature,
        r#type: JobNew,
        message_type: JobRequestTag,
        uuid,
        job_namespace: job.job_namespace,
        executor_class: job.executor_class,
        docker_image: job.docker_image,
        args: job.args,
        env: job.env,
        use_gpu: job.use_gpu,
        volume: (!volumes.is_empty()).then_some(Volume::MultiVolume(MultiVolume { volumes })),
        output_upload: (!uploads.is_empty()).then_some(OutputUpload::MultiUpload(MultiUpload {
            uploads,
            system_output: None,
        })),
        artifacts_dir: job.artifacts_dir,
        on_trusted_miner: job.on_trusted_miner,
        download_time_limit: job.download_time_limit,
        execution_time_limit: job.execution_time_limit,
        upload_time_limit: job.upload_time_limit,
        streaming_start_time_limit: job.streaming_start_time_limit,
        streaming_details: job.streaming_details,
        muster: job.muster,
    };
    (job.target_validator_hotkey, request)
}

/// Whether the bytes can be a JSON object. serde would also accept a list of the values in order.
pub fn is_object(body: &[u8]) -> bool {
    body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

fn find_out_of_bounds(job: &CreateJob) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let mut refuse = |field, reason: String| errors.entry(field).or_default().push(reason);
    for (field, seconds) in [
        ("download_time_limit", job.download_time_limit),
        ("execution_time_limit", job.execution_time_limit),
        ("streaming_start_time_limit", job.streaming_start_time_limit),
        ("upload_time_limit", job.upload_time_limit),
    ] {
        if seconds > MAX_STAGE_SECONDS {
            refuse(
                field,
                format!("Ensure this value is less than or equal to {MAX_STAGE_SECONDS}."),
            );
        }
    }
    // Every validator rejects a job over these limits, so the user learns it here.
    let beyond = find_over_limits(&BoundedFields::from(job));
    // Every executor refuses such a name, so no job is made of it.
    if let Err(error) = job.docker_image.parse::<ImageName>()
        && beyond.iter().all(|found| found.field != "docker_image")
    {
        refuse("docker_image", format!("{error}."));
    }
    for found in beyond {
        refuse(found.field, found.reason);
    }
    if let Some(extension) = &job.muster {
        if extension.account.is_some() {
            refuse(
                "muster",
                "account: the facilitator sets it; leave it out.".to_owned(),
            );
        }
        if extension.traceparent.is_some() {
            refuse(
                "muster",
                "traceparent: send it as the header of that name.".to_owned(),
            );
        }
        if extension.checkpoints.is_some() {
            refuse(
                "muster",
                "checkpoints: the facilitator grants them; ask for them in the terms.".to_owned(),
            );
        }
        if extension.output.is_some() {
            refuse("muster", "output: the facilitator grants it.".to_owned());
        }
        for found in extension.find_over_limits(&job.docker_image) {
            refuse("muster", found.to_string());
        }
        let rules = extension.terms.as_ref().map_or(&[][..], |terms| &terms.metrics);
        if let Err(error) = MetricRules::compile(rules) {
            refuse("muster", format!("metrics: {error}"));
        }
    }
    let folder = job.artifacts_dir.as_deref().unwrap_or_default();
    if !folder.is_empty() && !folder.starts_with('/') {
        refuse(
            "artifacts_dir",
            "It should be an absolute path (starting with '/').".to_owned(),
        );
    }
    if let Some(tag) = job.tag.as_ref().filter(|tag| !tag.is_empty())
        && let Err(error) = tag.parse::<JobName>()
    {
        refuse("tag", format!("{error}."));
    }
    let details = job.streaming_details.as_ref();
    if details.is_some_and(|details| details.muster.is_some()) {
        // The terms decide how a session is attested and paid. Only the validator's whitelist may set them.
        refuse(
            "streaming_details",
            "The terms of a sealed session are the validator's to set.".to_owned(),
        );
    }
    errors
}

/// A field: its name, whether it is required, and the function that checks its type.
type Field = (&'static str, bool, fn(&Value) -> Result<(), serde_json::Error>);

const FIELDS: &[Field] = &[
    ("target_validator_hotkey", true, check_type::<ValidatorKey>),
    ("executor_class", true, check_type::<ExecutorClass>),
    ("docker_image", true, check_type::<String>),
    ("job_namespace", false, check_type::<Option<String>>),
    ("args", false, check_type::<Vec<String>>),
    ("env", false, check_type::<IndexMap<String, String>>),
    ("use_gpu", false, check_type::<bool>),
    ("artifacts_dir", false, check_type::<Option<String>>),
    ("on_trusted_miner", false, check_type::<bool>),
    ("download_time_limit", true, check_type::<u64>),
    ("execution_time_limit", true, check_type::<u64>),
    ("streaming_start_time_limit", true, check_type::<u64>),
    ("upload_time_limit", true, check_type::<u64>),
    ("streaming_details", false, check_type::<Option<StreamingDetails>>),
    ("volumes", false, check_type::<Option<Vec<VolumePart>>>),
    ("uploads", false, check_type::<Option<Vec<FileUpload>>>),
    ("muster", false, check_type::<Option<JobExtension>>),
    ("webhook", false, check_type::<Option<String>>),
    ("tag", false, check_type::<Option<String>>),
];

fn check_type<T: DeserializeOwned>(value: &Value) -> Result<(), serde_json::Error> {
    T::deserialize(value).map(drop)
}

/// Finds every wrong field. serde stops at the first error and does not name the field.
fn diagnose(body: &[u8], known: &[Field], error: Option<&serde_json::Error>) -> BodyRejection {
    let object = match serde_json::from_slice::<Value>(body) {
        Ok(Value::Object(object)) => object,
        Ok(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            return BodyRejection::NotObject;
        }
        Err(error) => return BodyRejection::NotJson(shorten(&error)),
    };
    let mut errors = FieldErrors::new();
    for (field, required, read) in known {
        let reason = match object.get(*field) {
            None if *required => "This field is required.".to_owned(),
            None => continue,
            Some(value) => match read(value) {
                Ok(()) => continue,
                Err(_) if value.is_null() => "This field may not be null.".to_owned(),
                Err(error) => shorten(&error),
            },
        };
        errors.insert(field, vec![reason]);
    }
    if let Some(error) = error.filter(|_| errors.is_empty()) {
        // For example, a field that occurs twice.
        errors.insert("non_field_errors", vec![shorten(error)]);
    }
    BodyRejection::Fields(errors)
}

fn shorten(error: &serde_json::Error) -> String {
    error.to_string().chars().take(MAX_REASON_CHARS).collect()
}

#[cfg(test)]
mod tests;
