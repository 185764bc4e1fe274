//! Other settings for a role, and jobs with data, which several hostile cases need.

use anyhow::{Context as _, Result};
use muster_process::{Clock as _, SystemClock};
use muster_protocol::rest::CreateJob;
use muster_testbed::wait_for;
use muster_tests::{Parts, Role, User};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Changes the settings of a role and starts it again.
pub(crate) fn reconfigure(
    parts: &mut Parts,
    role: Role,
    change: impl FnOnce(&mut toml::Table),
) -> Result<()> {
    let file = parts.config_file(role);
    let mut settings: toml::Table = toml::from_str(&std::fs::read_to_string(&file)?)?;
    change(&mut settings);
    std::fs::write(&file, toml::to_string(&settings)?)?;
    parts.kill(role)?;
    parts.begin(role)
}

/// Sets a key of a table of settings, which is made if it is missing.
pub(crate) fn set(settings: &mut toml::Table, table: &str, key: &str, value: impl Into<toml::Value>) {
    let table = settings.entry(table).or_insert_with(|| toml::Table::new().into());
    if let Some(table) = table.as_table_mut() {
        table.insert(key.to_owned(), value.into());
    }
}

/// A job that writes a file, with more fields.
pub(crate) fn file_job(parts: &Parts, image: &str, more: Value) -> Result<CreateJob> {
    let mut job = json!({
        "target_validator_hotkey": parts.keys().validator.hotkey().to_string(),
        "executor_class": "always_on.test",
        "docker_image": image,
        "args": ["-c", "echo secret > /output/file"],
        "download_time_limit": 10,
        "execution_time_limit": 10,
        "streaming_start_time_limit": 0,
        "upload_time_limit": 10,
    });
    if let (Some(job), Value::Object(more)) = (job.as_object_mut(), more) {
        job.extend(more);
    }
    Ok(serde_json::from_value(job)?)
}

/// Runs a job to its end; everything that its user is shown of it.
pub(crate) fn run_job(parts: &Parts, runtime: &Runtime, user: &User, job: &CreateJob) -> Result<String> {
    let id = wait_for("the validator", || {
        anyhow::Ok(runtime.block_on(user.submit(job, SystemClock::new().now())).ok())
    })?;
    let ended = wait_for("the end of the job", || {
        let view = runtime.block_on(user.job(id))?;
        let history = view.get("status_history").and_then(Value::as_array);
        let is_end = |entry: &Value| {
            let status = entry.get("status").and_then(Value::as_str);
            status.is_some_and(|status| ["completed", "failed", "horde_failed", "rejected"].contains(&status))
        };
        let ended = history.is_some_and(|history| history.iter().any(is_end));
        anyhow::Ok(ended.then(|| view.to_string()))
    });
    ended.with_context(|| parts.logs())
}
