//! `muster job checkpoints`: the checkpoints of a job that are kept, and one of them on this machine.

use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use muster_checkpoint_transfer::{BlockClient, RestoreReader, restore};
use muster_checkpoints::TreeLimits;
use muster_client::{Client, HttpClient};
use muster_job_spec::options::CheckpointChoice;
use muster_process::SharedClock;
use muster_protocol::job::KeptCheckpoint;
use muster_protocol::rest::{JobCheckpointsView, JobView};
use muster_protocol::{ErrorCode, JobReference};
use muster_terminal::{checkpoint_text, print};

use crate::cli::user::JobCheckpoints;
use crate::facilitator_access::{self, client_failure};
use crate::failure::{Failure, Result};

pub(super) async fn checkpoints(args: JobCheckpoints, clock: SharedClock) -> Result<ExitCode> {
    let client = facilitator_access::resolve(&args.access)?
        .connect(clock.clone())
        .await?;
    let id = client.find_job(&args.id).await.map_err(client_failure)?;
    let view = client.job_checkpoints(id).await.map_err(client_failure)?;
    if let Some(choice) = args.get {
        return fetch(&args, choice, &view, client.http(), clock).await;
    }
    if args.json {
        print::line(format_args!(
            "{}",
            serde_json::to_string_pretty(&view.checkpoints)?
        ));
        return Ok(ExitCode::SUCCESS);
    }
    if view.checkpoints.is_empty() {
        let job = client.job(id).await.map_err(client_failure)?;
        print::problem(format_args!("job {id} keeps no checkpoints: {}", why_none(&job)));
        return Ok(ExitCode::SUCCESS);
    }
    checkpoint_text::print_table(&view.checkpoints);
    Ok(ExitCode::SUCCESS)
}

/// The chosen one of the checkpoints of a job.
///
/// # Errors
/// It is not kept, and the error lists those that are.
pub(super) fn choose<'a>(
    view: &'a JobCheckpointsView,
    choice: CheckpointChoice,
    job: &JobReference,
) -> Result<&'a KeptCheckpoint> {
    let kept = &view.checkpoints;
    let found = match choice {
        CheckpointChoice::Numbered(number) => kept.iter().find(|checkpoint| checkpoint.ordinal == number),
        CheckpointChoice::Newest => kept.iter().max_by_key(|checkpoint| checkpoint.ordinal),
    };
    let numbers: Vec<String> = kept
        .iter()
        .map(|checkpoint| checkpoint.ordinal.to_string())
        .collect();
    found.ok_or_else(|| match (choice, numbers.as_slice()) {
        (CheckpointChoice::Newest, _) | (CheckpointChoice::Numbered(_), []) => Failure::usage(format_args!(
            "job {job} keeps no checkpoints; `muster job checkpoints {job}` says why"
        )),
        (CheckpointChoice::Numbered(number), numbers) => Failure::usage(format_args!(
            "job {job} keeps no checkpoint {number} any more; kept are {}",
            numbers.join(", ")
        )),
    })
}

/// Prints which checkpoints an ended job has left, if it was to leave any. Nothing is printed where the facilitator
/// does not answer: the job's end is what matters here.
pub(super) async fn print_kept(client: &Client, job: &JobView) {
    if !leaves_checkpoints(job) {
        return;
    }
    let Ok(view) = client.job_checkpoints(job.uuid).await else {
        return;
    };
    let names: Vec<String> = view
        .checkpoints
        .iter()
        .map(|kept| print::plain(&kept.name))
        .collect();
    match names.as_slice() {
        [] => print::problem(format_args!("no checkpoint is kept: {}", why_none(job))),
        names => print::problem(format_args!(
            "checkpoints that are kept: {} (`muster job checkpoints {}`)",
            names.join(", "),
            job.uuid
        )),
    }
}

/// Whether a job was asked to leave checkpoints.
pub(super) fn leaves_checkpoints(job: &JobView) -> bool {
    let terms = job.muster.as_ref().and_then(|muster| muster.terms.as_ref());
    terms.is_some_and(|terms| terms.checkpoints.is_some())
}

/// Why a job keeps no checkpoints.
fn why_none(job: &JobView) -> &'static str {
    if !leaves_checkpoints(job) {
        return "it was run without `--checkpoint`; `muster job run --help` says how a program leaves them";
    }
    match job.last_status().is_terminal() {
        false => {
            "none has been left alone for ten seconds so far, or for a second after a line of $MUSTER_PROGRESS named it"
        }
        true => {
            "none was left alone for ten seconds before the program's end, or for a second after a line of \
             $MUSTER_PROGRESS named it"
        }
    }
}

async fn fetch(
    args: &JobCheckpoints,
    choice: CheckpointChoice,
    view: &JobCheckpointsView,
    http: HttpClient,
    clock: SharedClock,
) -> Result<ExitCode> {
    let found = choose(view, choice, &args.id)?;
    let place = args.save.join(&found.name);
    if place.symlink_metadata().is_ok() {
        let reason = anyhow!(
            "{} is here already: move it, or name another folder with --save",
            print::plain(&place.display().to_string())
        );
        return Err(Failure::new(ErrorCode::PlaceTaken, reason));
    }
    std::fs::create_dir_all(&args.save).with_context(|| format!("{} cannot be made", args.save.display()))?;
    let base = view
        .blocks
        .parse()
        .context("the facilitator's address of the checkpoint is not valid")?;
    let blocks = BlockClient::new(http, base, clock)?;
    let (reader, limits) = (RestoreReader::User(&found.name), TreeLimits::default());
    let written = restore(&blocks, found.manifest, reader, &args.save, limits, 0).await?;
    print::line(format_args!(
        "{} ({} bytes)",
        print::plain(&args.save.join(&written.name).display().to_string()),
        written.bytes
    ));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixtures::ended;
    use super::*;

    #[test]
    fn the_reason_for_which_there_are_none_is_told() {
        let mut job = ended("accepted", &json!({}));
        assert!(why_none(&job).contains("without `--checkpoint`"));
        let terms =
            json!({"terms": {"checkpoints": {"folder": "/checkpoint", "every": 5, "signal": "TERM"}}});
        job.muster = serde_json::from_value(terms).unwrap();
        assert!(why_none(&job).contains("so far"));
        let ended = JobView {
            muster: job.muster,
            ..ended("completed", &json!({}))
        };
        assert!(why_none(&ended).contains("before the program's end"));
    }
}
