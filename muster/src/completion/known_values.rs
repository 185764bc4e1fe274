//! The values that a facilitator knows of an account: jobs, files, classes and models.

use clap::ValueEnum;
use muster_client::Client;
use serde::{Deserialize, Serialize};

use crate::facilitator_access::client_failure;
use crate::failure::Result;
use crate::served_models::served_models;

/// The newest jobs and files that are offered.
const OFFERED: u32 = 100;

/// A kind of values that a facilitator knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ValueKind {
    /// Names and ids of jobs, and `@last`.
    Jobs,
    /// Ids of files in the store.
    Files,
    /// Classes of executors.
    Classes,
    /// Models that are served.
    Models,
}

/// A value and its words for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownValue {
    /// The value that stands in the command line.
    pub(super) value: String,
    /// Words that shells show beside it.
    pub(super) about: String,
}

// === impl ValueKind ===

impl ValueKind {
    /// The kind of the values that a help text calls by this name.
    pub(super) fn of_value_name(name: &str) -> Option<Self> {
        match name {
            "JOB" | "JOB[:N]" => Some(Self::Jobs),
            "FILE-ID" => Some(Self::Files),
            "CLASS" => Some(Self::Classes),
            "MODEL" => Some(Self::Models),
            _ => None,
        }
    }

    /// The word for the kind, in an option and in a file's name.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Files => "files",
            Self::Classes => "classes",
            Self::Models => "models",
        }
    }
}

// === impl KnownValue ===

impl KnownValue {
    fn new(value: impl Into<String>, about: impl Into<String>) -> Self {
        Self {
            value: value.into(),
            about: about.into(),
        }
    }
}

/// Asks the facilitator.
///
/// # Errors
///
/// The facilitator does not answer, or refuses.
pub(super) async fn ask(client: &Client, kind: ValueKind) -> Result<Vec<KnownValue>> {
    match kind {
        ValueKind::Jobs => jobs(client).await,
        ValueKind::Files => {
            let page = client.files(1, OFFERED).await.map_err(client_failure)?;
            let files = page.results.into_iter();
            Ok(files.map(|file| KnownValue::new(file.id, file.name)).collect())
        }
        ValueKind::Classes => classes(client).await,
        ValueKind::Models => {
            let models = served_models(client).await?.into_iter();
            Ok(models.map(|id| KnownValue::new(id, "")).collect())
        }
    }
}

async fn jobs(client: &Client) -> Result<Vec<KnownValue>> {
    let page = client.jobs(1, OFFERED).await.map_err(client_failure)?;
    let newest = page
        .results
        .first()
        .map(|_| KnownValue::new("@last", "the newest job"));
    let mut values = Vec::from_iter(newest);
    // The newest job of a name is the one that the name means.
    for job in &page.results {
        if !job.tag.is_empty() && !values.iter().any(|known| known.value == job.tag) {
            values.push(KnownValue::new(job.tag.as_str(), job.docker_image.as_str()));
        }
    }
    values.extend(page.results.iter().map(|job| {
        KnownValue::new(
            job.uuid.to_string(),
            format!("{} {}", job.docker_image, job.status),
        )
    }));
    Ok(values)
}

async fn classes(client: &Client) -> Result<Vec<KnownValue>> {
    let capacity = client.subnet().await.map_err(client_failure)?;
    let mut values: Vec<KnownValue> = Vec::new();
    for offer in capacity.results.iter().flat_map(|validator| &validator.classes) {
        let class = offer.class.to_string();
        if !values.iter().any(|known| known.value == class) {
            values.push(KnownValue::new(class, offer.hardware.clone().unwrap_or_default()));
        }
    }
    Ok(values)
}
