//! `muster job run` and `muster job show`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use indexmap::IndexMap;
use muster_kit::clock::SharedClock;
use muster_protocol::rest::{CreateJob, JobView};
use muster_protocol::{JobStatus, ValidatorKey};

use crate::cli::{Job, JobRun, JobShow};
use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::input::{self, Input};
use crate::print;
use crate::{door, report};

/// Seconds that fetching inputs and delivering outputs may take, each.
const TRANSFER_SECS: u64 = 30;
/// How much longer than its own limits a job may take before the command gives up: pulls and queues lie in between.
const PATIENCE: Duration = Duration::from_secs(600);

/// Dispatches.
pub(crate) async fn run(command: Job, clock: SharedClock) -> Result<ExitCode> {
    match command {
        Job::Run(args) => run_job(args, clock).await,
        Job::Show(args) => show(args, clock).await,
    }
}

async fn run_job(args: JobRun, clock: SharedClock) -> Result<ExitCode> {
    let inputs = args
        .inputs
        .iter()
        .map(|text| text.parse())
        .collect::<anyhow::Result<Vec<Input>>>()
        .map_err(Failure::usage)?;
    let env = args
        .env
        .iter()
        .map(|text| variable(text))
        .collect::<Result<IndexMap<_, _>>>()?;
    let target = door::open(&args.door)?;
    let job = request(target.validator, &args, env, &inputs)?;
    let mut client = Client::login(&target.facilitator, target.user, clock.clone()).await?;
    let created = client.create(&job).await?;
    if args.detach {
        print::line(format_args!("{}", created.uuid));
        return Ok(ExitCode::SUCCESS);
    }
    let begun = clock.now();
    let deadline = begun.plus(PATIENCE).plus(Duration::from_secs(args.timeout));
    let mut steps = report::Steps::new(begun);
    let ended = client.follow(created.uuid, deadline, |view| {
        if !args.json {
            steps.show(view);
        }
    });
    let view = ended.await?;
    if let Some(folder) = &args.output {
        save_artifacts(&view, folder)?;
    }
    if args.json {
        print::line(format_args!("{}", serde_json::to_string_pretty(&view)?));
    } else {
        report::result(&view);
    }
    Ok(exit_code(&view))
}

async fn show(args: JobShow, clock: SharedClock) -> Result<ExitCode> {
    let target = door::open(&args.door)?;
    let client = Client::login(&target.facilitator, target.user, clock).await?;
    let view = client.job(args.id).await?;
    if args.json {
        print::line(format_args!("{}", serde_json::to_string_pretty(&view)?));
    } else {
        report::job(&view);
    }
    Ok(ExitCode::SUCCESS)
}

/// The request that the user signs.
fn request(
    validator: ValidatorKey,
    args: &JobRun,
    env: IndexMap<String, String>,
    inputs: &[Input],
) -> Result<CreateJob> {
    Ok(CreateJob {
        target_validator_hotkey: validator,
        executor_class: args.class,
        docker_image: args.image.clone(),
        job_namespace: None,
        args: args.command.clone(),
        env,
        use_gpu: args.class.has_gpu(),
        artifacts_dir: Some(args.artifacts.clone()),
        on_trusted_miner: false,
        download_time_limit: TRANSFER_SECS,
        execution_time_limit: args.timeout,
        streaming_start_time_limit: 0,
        upload_time_limit: TRANSFER_SECS,
        streaming_details: None,
        volumes: input::pack(inputs)?.map(|volume| vec![volume]),
        uploads: None,
    })
}

fn variable(text: &str) -> Result<(String, String)> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = pair
        .ok_or_else(|| Failure::usage(format_args!("an environment variable is KEY=VALUE, got {text:?}")))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Writes what came back. Only the last part of each path is used: it is the job that chose it.
pub(crate) fn save_artifacts(view: &JobView, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (path, contents) in &view.artifacts {
        let bytes = artifact(contents)?;
        let name = Path::new(path)
            .file_name()
            .context("an artifact without a name")?;
        let file = folder.join(name);
        std::fs::write(&file, bytes).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// The bytes of an artifact.
pub(crate) fn artifact(contents: &str) -> anyhow::Result<Vec<u8>> {
    base64::engine::general_purpose::STANDARD
        .decode(contents)
        .context("the artifact is not base64")
}

/// The exit code of the job's program where there is one; else 0 for success and 1 for anything else.
fn exit_code(view: &JobView) -> ExitCode {
    if view.last_status() == JobStatus::Completed {
        return ExitCode::SUCCESS;
    }
    let failure = view
        .status_history
        .last()
        .and_then(|entry| entry.metadata.as_ref()?.job_failure_details.as_ref());
    let code = failure.and_then(|details| details.docker_process_exit_status);
    code.and_then(|code| u8::try_from(code).ok())
        .filter(|code| *code != 0)
        .map_or(ExitCode::FAILURE, ExitCode::from)
}
