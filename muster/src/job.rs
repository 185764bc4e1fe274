//! `muster job`: `run` is in [`mod@run`], `curve` in [`mod@curve`], the commands about existing jobs are here.

mod again;
mod asked_outputs;
mod checkpoints;
mod chosen_validator;
mod curve;
mod exit_code;
#[cfg(test)]
mod fixtures;
mod job_json;
pub(crate) mod local_place;
mod logs_since;
mod printed_output;
mod run;
pub(crate) mod saved_outputs;
mod spec;
mod variables;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use muster_client::{ClientError, News};
use muster_process::{SharedClock, shutdown};
use muster_protocol::rest::{JobView, events};
use muster_protocol::upload::FileUpload;
use muster_protocol::{JobState, JobStatus};
use muster_terminal::job_display::LiveDisplay;
use muster_terminal::{job_text, print, trace_text};
use serde_json::json;

use self::exit_code::{EXIT_INTERRUPTED, exit_code};
use self::local_place::Overwrite;
use self::logs_since::logs_since;
use self::printed_output::{print_rest, print_tail};
use self::saved_outputs::{SaveTo, print_saved, save_artifacts, save_outputs};
use crate::cli::Job;
use crate::cli::user::{
    JobGet, JobLogs, JobLs, JobReport, JobShow, JobTraced, JobWait, JsonForm, ListedState,
};
use crate::facilitator_access::{self, client_failure};
use crate::failure::{Failure, Result};

/// A job that is followed has no end that is known.
const VERY_LONG: Duration = Duration::from_secs(30 * 86_400);
/// The most jobs that a facilitator puts on a page.
const LARGEST_PAGE: u32 = 256;
/// Characters of an image's name in the table of jobs.
const MAX_IMAGE_COLUMN: usize = 60;

/// Runs a subcommand of `muster job`.
pub(crate) async fn run(command: Job, clock: SharedClock) -> Result<ExitCode> {
    match command {
        Job::Run(args) => run::run(*args, clock).await.map_err(Failure::beside_a_program),
        Job::Ls(args) => ls(args, clock).await,
        Job::Show(args) => show(args, clock).await,
        Job::Logs(args) if args.follow => logs(args, clock).await.map_err(Failure::beside_a_program),
        Job::Logs(args) => logs(args, clock).await,
        Job::Wait(args) => wait(args, clock).await.map_err(Failure::beside_a_program),
        Job::Curve(args) => curve::curve(args, clock).await,
        Job::Checkpoints(args) => checkpoints::checkpoints(args, clock).await,
        Job::Check(args) => check(args, clock).await,
        Job::Report(args) => report(args, clock).await,
        Job::Cancel(args) => cancel(args, clock).await,
        Job::Get(args) => get(args, clock).await,
    }
}

/// Shows what the validator found by running a job again.
async fn check(args: JobShow, clock: SharedClock) -> Result<ExitCode> {
    let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
    let id = client.find_job(&args.id).await.map_err(client_failure)?;
    let check = client.job_check(id).await.map_err(client_failure)?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&check)?,
        false => job_text::describe_check(&check),
    };
    print::line(format_args!("{text}"));
    Ok(ExitCode::SUCCESS)
}

/// Reports a job as cheated.
async fn report(args: JobReport, clock: SharedClock) -> Result<ExitCode> {
    let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
    let id = client.find_job(&args.report.id).await.map_err(client_failure)?;
    let trusted = client
        .find_job(&args.report.trusted)
        .await
        .map_err(client_failure)?;
    let told = client
        .report_cheat(&args.report.body(id, trusted))
        .await
        .map_err(client_failure)?;
    print::line(format_args!("{}", told.message));
    Ok(ExitCode::SUCCESS)
}

async fn ls(args: JobLs, clock: SharedClock) -> Result<ExitCode> {
    if args.page > 1 && args.limit > LARGEST_PAGE {
        return Err(Failure::usage(format_args!(
            "with --page, --limit is at most {LARGEST_PAGE}"
        )));
    }
    let client = facilitator_access::resolve(&args.access)?
        .connect(clock.clone())
        .await?;
    let statuses = words_of(&args.states);
    let wanted = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut jobs = Vec::new();
    // The facilitator's words do not tell cancelled jobs from failed ones, so its pages are not those of such a list.
    let (first, size, skipped) = match splits_failed(&args.states) {
        true => {
            let before = usize::try_from(args.page.saturating_sub(1)).unwrap_or(usize::MAX);
            (1, LARGEST_PAGE, wanted.saturating_mul(before))
        }
        false => (args.page, args.limit.min(LARGEST_PAGE), 0),
    };
    let wanted = wanted.saturating_add(skipped);
    for page in first.. {
        let found = if statuses.is_empty() && args.name.is_none() {
            client.jobs(page, size).await
        } else {
            client
                .jobs_matching(page, size, &statuses, args.name.as_ref())
                .await
        };
        let found = match found {
            // There is no such page.
            Err(ClientError::Refused { status, .. }) if status.as_u16() == 404 && page > 1 => break,
            found => found.map_err(client_failure)?,
        };
        let is_named = |job: &JobView| args.name.as_ref().is_none_or(|name| job.tag == name.as_str());
        let is_listed = |job: &JobView| is_listed(&args.states, job.state()) && is_named(job);
        jobs.extend(found.results.into_iter().filter(is_listed));
        if found.next.is_none() || jobs.len() >= wanted {
            break;
        }
    }
    jobs.truncate(wanted);
    jobs.drain(..skipped.min(jobs.len()));
    if let Some(form) = args.json {
        let text = match form {
            JsonForm::Short => {
                let rows: Vec<_> = jobs.iter().map(job_json::row).collect();
                serde_json::to_string_pretty(&rows)?
            }
            JsonForm::Full => {
                let jobs = jobs.iter().map(|job| job_json::whole_job(job, form, &[]));
                serde_json::to_string_pretty(&jobs.collect::<serde_json::Result<Vec<_>>>()?)?
            }
        };
        print::line(format_args!("{text}"));
        return Ok(ExitCode::SUCCESS);
    }
    let now = clock.now();
    let row = |job: &JobView| {
        let place = job.queue.as_ref();
        vec![
            job.uuid.to_string(),
            job.tag.clone(),
            job.state().to_string(),
            place
                .map(|place| job_text::short_place(place, now))
                .unwrap_or_default(),
            job.docker_image.chars().take(MAX_IMAGE_COLUMN).collect(),
            job.executor_class.to_string(),
            job_text::age(job.created_at, now),
        ]
    };
    print::table(
        &["id", "name", "state", "place", "image", "class", "age"],
        jobs.iter().map(row),
    );
    Ok(ExitCode::SUCCESS)
}

/// The words by which the facilitator knows these states.
fn words_of(states: &[ListedState]) -> Vec<&'static str> {
    let known = JobStatus::ALL.iter().copied();
    let known = known.filter(|status| *status != JobStatus::Unknown);
    let with = |is: &dyn Fn(JobStatus) -> bool| -> Vec<&'static str> {
        let found = known.clone().filter(|status| is(*status));
        found.map(JobStatus::as_str).collect()
    };
    let in_state = |state: JobState| with(&|status| status.state() == state);
    let mut words = Vec::new();
    for state in states {
        words.extend(match state {
            ListedState::Waiting => in_state(JobState::Waiting),
            ListedState::Preparing => in_state(JobState::Preparing),
            ListedState::Running => in_state(JobState::Running),
            ListedState::Delivering => in_state(JobState::Delivering),
            ListedState::Done => in_state(JobState::Done),
            ListedState::Failed | ListedState::Cancelled => in_state(JobState::Failed),
            ListedState::Open => with(&|status| !status.is_terminal()),
            ListedState::Ended => with(&|status| status.is_terminal()),
        });
    }
    words.sort_unstable();
    words.dedup();
    words
}

/// Whether the list has failed jobs without cancelled ones, or the other way round.
fn splits_failed(states: &[ListedState]) -> bool {
    let has = |state| states.contains(&state);
    !has(ListedState::Ended) && has(ListedState::Failed) != has(ListedState::Cancelled)
}

/// Whether a job of this state belongs to a list by `states`.
fn is_listed(states: &[ListedState], state: JobState) -> bool {
    let ends = [JobState::Done, JobState::Failed, JobState::Cancelled];
    let belongs = |listed: &ListedState| match listed {
        ListedState::Waiting => state == JobState::Waiting,
        ListedState::Preparing => state == JobState::Preparing,
        ListedState::Running => state == JobState::Running,
        ListedState::Delivering => state == JobState::Delivering,
        ListedState::Done => state == JobState::Done,
        ListedState::Failed => state == JobState::Failed,
        ListedState::Cancelled => state == JobState::Cancelled,
        ListedState::Open => !ends.contains(&state),
        ListedState::Ended => ends.contains(&state),
    };
    states.is_empty() || states.iter().any(belongs)
}

async fn show(args: JobTraced, clock: SharedClock) -> Result<ExitCode> {
    let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
    let id = client.find_job(&args.id).await.map_err(client_failure)?;
    let view = client.job(id).await.map_err(client_failure)?;
    if args.trace && args.json.is_some() {
        let told = muster_span_export::trace_of(&view);
        print::line(format_args!("{}", serde_json::to_string_pretty(&told)?));
    } else if args.trace {
        trace_text::show(&view);
    } else if let Some(form) = args.json {
        let job = job_json::whole_job(&view, form, &[])?;
        print::line(format_args!("{}", serde_json::to_string_pretty(&job)?));
    } else {
        job_text::job(&view);
    }
    Ok(ExitCode::SUCCESS)
}

async fn logs(args: JobLogs, clock: SharedClock) -> Result<ExitCode> {
    let client = facilitator_access::resolve(&args.access)?
        .connect(clock.clone())
        .await?;
    let id = client.find_job(&args.id).await.map_err(client_failure)?;
    let view = client.job(id).await.map_err(client_failure)?;
    if let Some(since) = args.since {
        return logs_since(&client, &view, since.begin(clock.now()), &args, &clock).await;
    }
    if let Some(lines) = args.tail {
        if !view.last_status().is_terminal() {
            return logs_since(&client, &view, view.created_at, &args, &clock).await;
        }
        print_tail(&client, &view, lines).await?;
        return Ok(if args.follow {
            ExitCode::from(exit_code(&view))
        } else {
            ExitCode::SUCCESS
        });
    }
    if !args.follow || view.last_status().is_terminal() {
        if args.json {
            let (stdout, stderr) = (&view.stdout, &view.stderr);
            print::line(format_args!("{}", json!({"stdout": stdout, "stderr": stderr})));
        } else if view.last_status().is_terminal() {
            print_rest(&client, &view, &mut LiveDisplay::new(view.created_at, false)).await?;
        } else {
            // The pieces that have come are all that there is of a job that runs.
            return logs_since(&client, &view, view.created_at, &args, &clock).await;
        }
        return Ok(if args.follow {
            ExitCode::from(exit_code(&view))
        } else {
            ExitCode::SUCCESS
        });
    }
    let mut live = LiveDisplay::new(view.created_at, args.json).following();
    let deadline = clock.now().plus(VERY_LONG);
    let tell = |news: News| {
        if args.json {
            print::line(format_args!("{}", as_json(&news)));
        } else {
            live.news(news);
        }
    };
    let view = tokio::select! {
        view = client.follow(view.uuid, deadline, tell) => view.map_err(client_failure)?,
        signal = shutdown::wait_for_signal() => {
            signal?;
            return Ok(ExitCode::from(EXIT_INTERRUPTED));
        }
    };
    let whole = match args.json {
        true => Ok(()),
        false => print_rest(&client, &view, &mut live).await,
    };
    live.finish(&view);
    whole.map(|()| ExitCode::from(exit_code(&view)))
}

/// Waits for the end of a job without a word.
async fn wait(args: JobWait, clock: SharedClock) -> Result<ExitCode> {
    let client = facilitator_access::resolve(&args.access)?
        .connect(clock.clone())
        .await?;
    let id = client.find_job(&args.id).await.map_err(client_failure)?;
    let deadline = clock.now().plus(VERY_LONG);
    let view = tokio::select! {
        view = client.follow(id, deadline, |_| {}) => view.map_err(client_failure)?,
        signal = shutdown::wait_for_signal() => {
            signal?;
            return Ok(ExitCode::from(EXIT_INTERRUPTED));
        }
    };
    if let Some(form) = args.json {
        let job = job_json::whole_job(&view, form, &[])?;
        print::line(format_args!("{}", serde_json::to_string_pretty(&job)?));
    } else if let Some(reason) = job_text::failure(&view) {
        print::problem(format_args!("job {id}: {reason}"));
    }
    Ok(ExitCode::from(exit_code(&view)))
}

/// News as a line of JSON, in the words of the facilitator's own events.
fn as_json(news: &News) -> serde_json::Value {
    let (event, data) = match news {
        News::Status(entry) => (events::STATUS, json!(entry)),
        News::Log(log) => (events::LOG, json!(log)),
        News::Progress(progress) => (events::PROGRESS, json!(progress)),
        News::Queued(place) => (events::QUEUED, json!(place)),
        News::Metrics(state) => (events::METRICS, json!(state)),
    };
    let mut line = json!({"event": event});
    if let (Some(line), Some(data)) = (line.as_object_mut(), data.as_object()) {
        line.extend(data.clone());
    }
    line
}

async fn cancel(args: JobShow, clock: SharedClock) -> Result<ExitCode> {
    let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
    let id = client.find_job(&args.id).await.map_err(client_failure)?;
    let asked = client.cancel(id).await;
    let is_conflict =
        |error: &ClientError| matches!(error, ClientError::Refused { status, .. } if status.as_u16() == 409);
    let view = match asked {
        // The facilitator refuses to cancel a job that ended by itself, and not one that was cancelled before.
        Err(refused) if is_conflict(&refused) => {
            let view = client.job(id).await.map_err(client_failure)?;
            if !view.last_status().is_terminal() {
                return Err(client_failure(refused));
            }
            view
        }
        asked => asked.map_err(client_failure)?,
    };
    let state = view.state();
    if args.json {
        let job = job_json::whole_job(&view, JsonForm::Short, &[])?;
        print::line(format_args!("{}", serde_json::to_string_pretty(&job)?));
    } else if view.last_status().is_terminal() {
        print::line(format_args!("job {id} has ended already: {state}"));
    } else {
        print::line(format_args!("asked for job {id} to be stopped"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn get(args: JobGet, clock: SharedClock) -> Result<ExitCode> {
    let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
    let id = client.find_job(&args.id).await.map_err(client_failure)?;
    let view = client.job(id).await.map_err(client_failure)?;
    if !view.last_status().is_terminal() {
        let state = view.state();
        return Err(anyhow::anyhow!(
            "job {id} has not ended yet; it is {state}, and `muster job logs {id} --follow` waits for it"
        )
        .into());
    }
    let live = LiveDisplay::new(view.created_at, args.json);
    let to = SaveTo {
        folder: &args.save,
        overwrite: Overwrite::by(args.force),
    };
    check_names(&args.outputs, &view)?;
    let is_wanted = |upload: &FileUpload| {
        args.outputs.is_empty() || args.outputs.iter().any(|name| name == upload.relative_path())
    };
    let mut fetched = save_outputs(&client, &view, is_wanted, to, &live).await;
    if args.outputs.is_empty() {
        fetched.add(save_artifacts(&view, to));
    }
    let saved = &fetched.saved;
    if args.json {
        print::line(format_args!("{}", serde_json::to_string_pretty(saved)?));
    } else {
        print_saved(&live, saved);
        if fetched.is_empty() {
            live.print_line("the job left nothing that could be fetched");
            if checkpoints::leaves_checkpoints(&view) {
                live.print_line(&format!(
                    "`muster job checkpoints {id}` lists and fetches its checkpoints"
                ));
            }
        }
    }
    fetched.check(&view)?;
    Ok(ExitCode::SUCCESS)
}

/// Checks that a job has the outputs of these names.
fn check_names(names: &[String], view: &JobView) -> Result<()> {
    let known: BTreeSet<&str> = view.uploads.iter().map(FileUpload::relative_path).collect();
    let Some(unknown) = names.iter().find(|name| !known.contains(name.as_str())) else {
        return Ok(());
    };
    let listed = Vec::from_iter(known).join(", ");
    Err(Failure::usage(match listed.as_str() {
        "" => format!("job {} has no outputs", view.uuid),
        listed => format!("job {} has no output {unknown:?}; there are: {listed}", view.uuid),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_asked_for_in_the_facilitators_words() {
        assert_eq!(words_of(&[]), Vec::<&str>::new());
        assert_eq!(words_of(&[ListedState::Waiting]), ["received", "sent"]);
        let failed = ["failed", "horde_failed", "rejected"];
        assert_eq!(words_of(&[ListedState::Failed]), failed);
        assert_eq!(
            words_of(&[ListedState::Ended, ListedState::Failed]),
            ["completed", "failed", "horde_failed", "rejected"]
        );
        let all = words_of(&[ListedState::Open, ListedState::Ended]);
        assert_eq!(all.len(), JobStatus::ALL.len() - 1, "{all:?}");
    }
}
