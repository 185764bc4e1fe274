//! Logs to standard error, and metrics on an endpoint if the configuration names one.

pub mod catalogue;
mod format;
mod process_figures;
mod prometheus;

use std::io::IsTerminal;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{DefaultFields, JsonFields};

pub use prometheus::{MetricsError, serve_metrics};

/// The variable with the log filter: `info`, `muster_miner=debug,warn`, as `tracing-subscriber` reads it.
pub const FILTER_VARIABLE: &str = "MUSTER_LOG";

/// The log filter without [`FILTER_VARIABLE`]. Statements of the store are logged as warnings only.
const DEFAULT_FILTER: &str = "info,sqlx=warn";

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people: the role's name, the time, the message.
    #[default]
    Text,
    /// For machines: one JSON object a line, with the field `role`.
    Json,
}

/// Logs that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error(
        "the log filter in MUSTER_LOG cannot be read; write for example `info` or `muster_miner=debug,warn`"
    )]
    Filter(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Logs were set up before.
    #[error("logs are set up already; a process does it once, in main")]
    Twice(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Sets up the logs of this process, under the name of its role.
///
/// # Errors
/// A filter that cannot be read; a second call.
pub fn init(role: &'static str, format: LogFormat) -> Result<(), TelemetryError> {
    let asked = std::env::var(FILTER_VARIABLE).unwrap_or_default();
    let filter = filter(&asked)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // By default a failed write is printed, which panics: a closed standard error must not stop a role.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    let done = match format {
        LogFormat::Text => builder
            .fmt_fields(DefaultFields::new())
            .event_format(format::Text::new(role))
            .try_init(),
        LogFormat::Json => builder
            .fmt_fields(JsonFields::new())
            .event_format(format::Json::new(role))
            .try_init(),
    };
    done.map_err(TelemetryError::Twice)
}

fn filter(asked: &str) -> Result<EnvFilter, TelemetryError> {
    let text = if asked.trim().is_empty() {
        DEFAULT_FILTER
    } else {
        asked
    };
    EnvFilter::try_new(text).map_err(|error| TelemetryError::Filter(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        assert_eq!(
            filter("").unwrap().to_string(),
            filter(DEFAULT_FILTER).unwrap().to_string()
        );
        assert!(filter("muster_miner=debug,warn").is_ok());
        assert!(matches!(
            filter("muster_miner=shout"),
            Err(TelemetryError::Filter(_))
        ));
    }
}
