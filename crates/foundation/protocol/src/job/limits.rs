//! The limits of a job's fields. The facilitator that accepts a job and the validator that routes it apply the same
//! ones.

use indexmap::IndexMap;

use crate::job_files::upload::{FileUpload, OutputUpload};
use crate::rest::CreateJob;
use crate::wire::facilitator::UserJobRequest;

/// Thirty days in seconds: receipts hold no longer, so no job may take longer.
pub const MAX_JOB_SECS: u64 = 2_592_000;

/// The longest image reference, in characters. No registry accepts a longer one.
pub const MAX_IMAGE_CHARS: usize = 512;

/// The most arguments, and the most environment variables, of one job.
pub const MAX_ENTRIES: usize = 4_096;

/// The most bytes of all arguments and environment variables together: an operating system accepts no more.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// The most characters of a path in a reason.
const MAX_SHOWN_CHARS: usize = 120;

/// The fields of a job that have limits.
#[derive(Clone, Debug)]
pub struct BoundedFields<'a> {
    /// The image reference.
    pub docker_image: &'a str,
    /// The arguments of the image's entry point.
    pub args: &'a [String],
    /// Environment variables of the container.
    pub env: &'a IndexMap<String, String>,
    /// The uploads of single files and folders.
    pub uploads: Vec<FileUpload>,
    /// Limit for fetching the inputs, in seconds.
    pub download_time_limit: u64,
    /// Limit for the program, in seconds; at least 1.
    pub execution_time_limit: u64,
    /// Limit for delivering the outputs, in seconds.
    pub upload_time_limit: u64,
    /// Limit from the program's start to its first answer, in seconds.
    pub streaming_start_time_limit: u64,
}

/// A field that exceeds its limits, so that no miner could run the job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct OverLimit {
    /// The field's name on the wire.
    pub field: &'static str,
    /// The violated limit, as a text for the user.
    pub reason: String,
}

impl<'a> From<&'a CreateJob> for BoundedFields<'a> {
    fn from(job: &'a CreateJob) -> Self {
        Self {
            docker_image: &job.docker_image,
            args: &job.args,
            env: &job.env,
            uploads: job.uploads.clone().unwrap_or_default(),
            download_time_limit: job.download_time_limit,
            execution_time_limit: job.execution_time_limit,
            upload_time_limit: job.upload_time_limit,
            streaming_start_time_limit: job.streaming_start_time_limit,
        }
    }
}

impl<'a> From<&'a UserJobRequest> for BoundedFields<'a> {
    fn from(job: &'a UserJobRequest) -> Self {
        Self {
            docker_image: &job.docker_image,
            args: &job.args,
            env: &job.env,
            uploads: job
                .output_upload
                .as_ref()
                .map(OutputUpload::files)
                .unwrap_or_default(),
            download_time_limit: job.download_time_limit,
            execution_time_limit: job.execution_time_limit,
            upload_time_limit: job.upload_time_limit,
            streaming_start_time_limit: job.streaming_start_time_limit,
        }
    }
}

/// The fields of a job that exceed their limits; empty for a job that can be run.
pub fn find_over_limits(asked: &BoundedFields<'_>) -> Vec<OverLimit> {
    let mut found = Vec::new();
    let mut refuse = |field, reason: String| found.push(OverLimit { field, reason });
    if let Err(reason) = check_image(asked.docker_image) {
        refuse("docker_image", reason);
    }
    if asked.execution_time_limit == 0 {
        refuse(
            "execution_time_limit",
            "It must be at least one second.".to_owned(),
        );
    }
    let seconds = [
        asked.download_time_limit,
        asked.execution_time_limit,
        asked.upload_time_limit,
        asked.streaming_start_time_limit,
    ];
    if seconds.into_iter().fold(0, u64::saturating_add) > MAX_JOB_SECS {
        let reason = format!("The time limits may add up to thirty days ({MAX_JOB_SECS} s) at most.");
        refuse("execution_time_limit", reason);
    }
    let lists: [(&'static str, usize, bool); 2] = [
        (
            "args",
            asked.args.len(),
            asked.args.iter().any(|text| has_nul(text)),
        ),
        (
            "env",
            asked.env.len(),
            asked
                .env
                .iter()
                .any(|(name, value)| has_nul(name) || has_nul(value)),
        ),
    ];
    for (field, entries, nul) in lists {
        if entries > MAX_ENTRIES {
            refuse(field, format!("It may hold {MAX_ENTRIES} entries at most."));
        }
        if nul {
            refuse(field, "It must not contain the NUL character.".to_owned());
        }
    }
    if asked.env.keys().any(|name| name.is_empty() || name.contains('=')) {
        let reason = "The name of a variable must not be empty or contain '='.";
        refuse("env", reason.to_owned());
    }
    let texts = asked
        .args
        .iter()
        .chain(asked.env.keys())
        .chain(asked.env.values());
    if texts.map(String::len).fold(0, usize::saturating_add) > MAX_TEXT_BYTES {
        let reason = format!("args and env may hold {MAX_TEXT_BYTES} bytes together at most.");
        refuse("args", reason);
    }
    let flaw = |upload: &FileUpload| Some((upload.relative_path().to_owned(), upload.check_path().err()?));
    if let Some((path, reason)) = asked.uploads.iter().find_map(flaw) {
        let shown: String = path.chars().take(MAX_SHOWN_CHARS).collect();
        refuse("uploads", format!("The path {shown:?} of an output {reason}."));
    }
    found
}

/// Refuses texts that are dangerous or can never be an image reference. The grammar of references is not checked in
/// full.
fn check_image(image: &str) -> Result<(), String> {
    if image.is_empty() {
        return Err("This field may not be blank.".to_owned());
    }
    if image.chars().count() > MAX_IMAGE_CHARS {
        return Err(format!(
            "Ensure this field has no more than {MAX_IMAGE_CHARS} characters."
        ));
    }
    if image.chars().any(|c| c.is_whitespace() || c.is_control()) || image.contains("..") {
        return Err("It must be an image reference, without spaces, control characters or '..'.".to_owned());
    }
    Ok(())
}

fn has_nul(text: &str) -> bool {
    text.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(change: impl FnOnce(&mut CreateJob)) -> Vec<&'static str> {
        let mut job: CreateJob = serde_json::from_value(serde_json::json!({
            "target_validator_hotkey": "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY",
            "executor_class": "always_on.test", "docker_image": "registry.test:5000/a/b:c@sha256:00",
            "args": ["sh"], "env": {"A": "b=c"}, "download_time_limit": 0, "execution_time_limit": 1,
            "streaming_start_time_limit": 0, "upload_time_limit": 0,
        }))
        .unwrap();
        change(&mut job);
        find_over_limits(&BoundedFields::from(&job))
            .into_iter()
            .map(|found| found.field)
            .collect()
    }

    fn env(name: &str, value: &str) -> IndexMap<String, String> {
        [(name.to_owned(), value.to_owned())].into_iter().collect()
    }

    #[test]
    fn a_plain_job_is_within_them() {
        assert!(fields(|_| {}).is_empty());
        assert!(fields(|job| job.docker_image = "x".repeat(MAX_IMAGE_CHARS)).is_empty());
        assert!(fields(|job| job.execution_time_limit = MAX_JOB_SECS).is_empty());
    }

    #[test]
    fn an_output_path_in_another_than_the_canonical_spelling_is_refused() {
        let with = |path: &str| {
            let upload = serde_json::json!({
                "output_upload_type": "single_file_put", "url": "http://h/", "relative_path": path,
            });
            fields(|job| job.uploads = Some(vec![serde_json::from_value(upload).unwrap()]))
        };
        assert!(with("a/b.bin").is_empty());
        for wrong in ["", "/a", "a/", "a//b", "./a", "a/../b", "a\\b", &"x".repeat(256)] {
            assert_eq!(with(wrong), ["uploads"], "{wrong:?}");
        }
    }

    #[test]
    fn limits_that_no_miner_could_honour_are_named_by_field() {
        for image in ["", " ", "a b", "a\u{7}", "a\0", "a/../b", "\u{85}"] {
            assert_eq!(
                fields(|job| job.docker_image = image.to_owned()),
                ["docker_image"],
                "{image:?}"
            );
        }
        assert_eq!(
            fields(|job| job.docker_image = "x".repeat(MAX_IMAGE_CHARS + 1)),
            ["docker_image"]
        );
        assert_eq!(
            fields(|job| job.execution_time_limit = 0),
            ["execution_time_limit"]
        );
        assert_eq!(
            fields(|job| job.upload_time_limit = u64::MAX),
            ["execution_time_limit"]
        );
        assert_eq!(fields(|job| job.args = vec!["a\0b".to_owned()]), ["args"]);
        assert_eq!(
            fields(|job| job.args = vec![String::new(); MAX_ENTRIES + 1]),
            ["args"]
        );
        assert_eq!(
            fields(|job| job.args = vec!["x".repeat(MAX_TEXT_BYTES + 1)]),
            ["args"]
        );
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0")] {
            assert_eq!(
                fields(|job| job.env = env(name, value)),
                ["env"],
                "{name:?} {value:?}"
            );
        }
        assert_eq!(
            fields(|job| {
                job.docker_image.clear();
                job.args = vec!["\0".to_owned()];
                job.env = env("", "");
                job.execution_time_limit = 0;
            }),
            ["docker_image", "execution_time_limit", "args", "env"]
        );
    }
}
