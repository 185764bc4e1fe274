//! `muster subnet`: what the subnet offers now, and how long a job of the user's would wait.

use std::process::ExitCode;

use muster_process::SharedClock;
use muster_terminal::{job_text, print, subnet_text};

use crate::cli::Subnet;
use crate::facilitator_access::{self, client_failure};
use crate::failure::Result;
use crate::served_models::served_models;

/// Runs `muster subnet`.
pub(crate) async fn run(args: Subnet, clock: SharedClock) -> Result<ExitCode> {
    let access = facilitator_access::resolve(&args.access)?;
    let client = access.connect(clock.clone()).await?;
    let mut capacity = client.subnet().await.map_err(client_failure)?;
    // A facilitator of another make may have no models at all.
    let models = served_models(&client).await.unwrap_or_default();
    // A validator that the user names is the only one that matters; the one of a login is marked.
    if let Some(named) = args.access.validator {
        capacity.results.retain(|offers| offers.validator == named);
    }
    if let Some(class) = args.class {
        for offers in &mut capacity.results {
            offers.classes.retain(|offer| offer.class == class);
        }
    }
    if args.json {
        let mut told = serde_json::to_value(&capacity)?;
        if let Some(told) = told.as_object_mut() {
            told.insert("models".to_owned(), models.into());
        }
        print::line(format_args!("{}", serde_json::to_string_pretty(&told)?));
        return Ok(ExitCode::SUCCESS);
    }
    if capacity.results.is_empty() {
        print::problem(format_args!(
            "no validator has told what it offers lately; it does so within a minute, unless it is of another make"
        ));
    }
    let now = clock.now();
    for offers in &capacity.results {
        let own = access.validator == Some(offers.validator);
        let mark = if own { " (yours)" } else { "" };
        let age = job_text::age(offers.told_at, now);
        print::line(format_args!(
            "validator {}{mark}, told {age} ago",
            offers.validator
        ));
        subnet_text::print_offers(offers);
    }
    if !models.is_empty() {
        print::line(format_args!(
            "models: {} (`muster chat MODEL`)",
            models.join(", ")
        ));
    }
    Ok(ExitCode::SUCCESS)
}
