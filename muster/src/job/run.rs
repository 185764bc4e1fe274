//! `muster job run`: inputs on their way, the job until its end, outputs back.

use std::io::{IsTerminal as _, Read as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use indexmap::IndexMap;
use muster_client::{Client, ClientError};
use muster_executor::archive_forms::prepare_archive;
use muster_identity::seal_credentials;
use muster_job_spec::options::CheckpointChoice;
use muster_process::error::Causes;
use muster_process::{SharedClock, shutdown};
use muster_protocol::image_reference::ImageName;
use muster_protocol::job::{
    ArchiveSource, Fault, MAX_REGISTRY_PASSWORD_BYTES, RegistryCredentials, ResumeSource, SealedCredentials,
};
use muster_protocol::rest::{CreateJob, JobView};
use muster_protocol::upload::{FileUpload, forget_kinds, needs_folders};
use muster_protocol::volume::VolumePart;
use muster_protocol::wire::executor::LogStream;
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::{ErrorCode, ExecutorClass, Feature, JobId, JobName, Timestamp, ValidatorKey};
use muster_terminal::job_display::LiveDisplay;
use muster_terminal::{job_text, print};
use tempfile::NamedTempFile;
use tokio::task::spawn_blocking;

use super::again::request_again;
use super::asked_outputs::{AskedOutput, check_places, make_places};
use super::checkpoints;
use super::chosen_validator::validator_for;
use super::exit_code::{EXIT_INTERRUPTED, exit_code};
use super::job_json::whole_job;
use super::local_place::Overwrite;
use super::printed_output::print_rest;
use super::saved_outputs::{SaveTo, print_saved, save_artifacts, save_outputs};
use super::spec;
use super::variables::read_variables;
use crate::cli::user::{JobRun, Via};
use crate::facilitator_access::{self, FacilitatorAccess, client_failure};
use crate::failure::{Failure, Result};
use crate::job_inputs::standard_input::{Spooled, holds_something, spool};
use crate::job_inputs::{self, Input, InputSource, Named};
use crate::webhook;

/// The time limit of inputs and outputs where there are none.
const LEAST_TRANSFER: Duration = Duration::from_secs(30);
/// The time limit of inputs and outputs of unknown size.
const UNKNOWN_TRANSFER: Duration = Duration::from_secs(300);
/// Bytes that an executor fetches in a second, at the least.
const SLOWEST: u64 = 4 * 1024 * 1024;
/// A folder that is packed into an archive may have this many bytes in it.
const MAX_PACKED: u64 = 1 << 40;

/// How a job that was waited for went.
enum Waited {
    Ended(Box<JobView>),
    /// The user does not wait any longer.
    Left,
}

/// The parts of a job as the command line has them, before anything is sent.
struct JobParts {
    inputs: Vec<Named>,
    /// The file with what standard input held, while it is an input.
    _spooled: Option<NamedTempFile>,
    /// The path of the input that the program reads from its standard input.
    stdin: Option<String>,
    outputs: Vec<AskedOutput>,
    env: IndexMap<String, String>,
    login: Option<RegistryCredentials>,
}

/// A job that was submitted.
struct Submitted {
    created: JobView,
    /// The request, by which the job can be submitted anew.
    job: CreateJob,
    /// The outputs that come back.
    outputs: Vec<AskedOutput>,
}

pub(super) async fn run(args: JobRun, clock: SharedClock) -> Result<ExitCode> {
    let args = spec::expand(args)?;
    let parts = read_parts(&args)?;
    let target = facilitator_access::resolve(&args.access)?;
    let client = target.connect(clock.clone()).await?;
    let mut live = LiveDisplay::new(clock.now(), args.json.is_some() || args.detach);
    if args.quiet {
        live = live.without_steps();
    }
    let mut submitted = tokio::select! {
        submitted = submit(&target, &client, &live, &args, parts) => submitted?,
        signal = shutdown::wait_for_signal() => {
            signal?;
            print::problem(format_args!("stopped before the job was submitted; nothing runs"));
            return Ok(ExitCode::from(EXIT_INTERRUPTED));
        }
    };
    let created = &submitted.created;
    if reads_nothing(&args) && holds_something(std::io::stdin().as_fd()) {
        print::problem(format_args!(
            "standard input does not go to the program: `-i -` gives it that"
        ));
    }
    if let Some(name) = &args.name
        && created.tag != name.as_str()
    {
        print::problem(format_args!(
            "the facilitator is older and keeps no names of jobs: use the id {} instead of {name}",
            created.uuid
        ));
    }
    if args.detach {
        if let Some(folder) = &args.save {
            print::problem(format_args!(
                "--save counts while this command waits: `muster job get {} --save {}` fetches the results later",
                created.uuid,
                folder.display()
            ));
        }
        if let Some(form) = args.json {
            let job = whole_job(created, form, &[])?;
            print::line(format_args!("{}", serde_json::to_string_pretty(&job)?));
        } else {
            print::line(format_args!("{}", created.uuid));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (view, cancelled) = match wait_with_retries(&client, &args, &mut submitted, &mut live, &clock).await?
    {
        (Waited::Ended(view), cancelled) => (view, cancelled),
        (Waited::Left, _) => return Ok(ExitCode::from(EXIT_INTERRUPTED)),
    };
    live.clear();
    if !args.quiet && args.json.is_none() {
        checkpoints::print_kept(&client, &view).await;
    }
    match conclude(&client, &args, &submitted.outputs, &view, &mut live).await? {
        Some(whole) if !cancelled => whole.map(|()| ExitCode::from(exit_code(&view))),
        Some(_) | None => Ok(ExitCode::from(EXIT_INTERRUPTED)),
    }
}

/// Whether nothing of this command's standard input is read, and the user wants to hear of it.
fn reads_nothing(args: &JobRun) -> bool {
    let wants_it = args.inputs.iter().any(|input| reads_input(input));
    !wants_it && !args.quiet && !args.registry_password_stdin && args.spec.is_none() && args.again.is_none()
}

/// Whether an input is this command's standard input.
fn reads_input(input: &str) -> bool {
    input == "-" || input.ends_with("=-")
}

/// Reads the parts of the job from the command line, from files and from standard input.
fn read_parts(args: &JobRun) -> Result<JobParts> {
    if args.registry_password_stdin && args.inputs.iter().any(|input| reads_input(input)) {
        return Err(Failure::usage(
            "standard input is either the registry's password or an input",
        ));
    }
    let own = std::io::stdin();
    let is_terminal = own.is_terminal();
    let Spooled { inputs, file, stdin } = spool(&args.inputs, own, is_terminal).map_err(Failure::usage)?;
    let inputs = inputs
        .iter()
        .map(|text| Named::read(text))
        .collect::<anyhow::Result<Vec<_>>>()
        .map_err(Failure::usage)?;
    check_stdin(&inputs, stdin.as_deref())?;
    let outputs = args
        .outputs
        .iter()
        .map(|text| AskedOutput::read(text))
        .collect::<Result<Vec<_>>>()?;
    for notice in outputs.iter().filter_map(AskedOutput::notice) {
        print::problem(format_args!("{notice}"));
    }
    let env = read_variables(args)?;
    if let Some(name) = &args.image {
        // Before anything is sent: no executor takes another name.
        name.parse::<ImageName>().map_err(Failure::usage)?;
    }
    if !args.detach {
        check_places(&outputs, save_to(args))?;
    }
    Ok(JobParts {
        inputs,
        _spooled: file,
        stdin,
        outputs,
        env,
        login: read_login(args)?,
    })
}

/// Checks that the input for the program's standard input is one file.
fn check_stdin(inputs: &[Named], stdin: Option<&str>) -> Result<()> {
    let is_folder = |input: &Named| match input {
        Named::Folder { path, .. } => Some(path.as_str()) == stdin,
        Named::File(_) | Named::Url { .. } => false,
    };
    if inputs.iter().any(is_folder) {
        return Err(Failure::usage(
            "the program's standard input is what `-i -=FILE` names: a file or a URL, and no folder",
        ));
    }
    Ok(())
}

/// Brings the inputs on their way, makes places for the outputs, and submits the job.
async fn submit(
    target: &FacilitatorAccess,
    client: &Client,
    live: &LiveDisplay,
    args: &JobRun,
    parts: JobParts,
) -> Result<Submitted> {
    let tag = args.name.as_ref().map(JobName::to_string);
    let (job, outputs) = match &args.again {
        Some(earlier) => {
            let (mut job, outputs) = request_again(client, earlier).await?;
            let resume_from = find_checkpoint(client, args).await?;
            job.muster = go_on_from(job.muster, resume_from, args);
            (job, outputs)
        }
        None => {
            let router = validator_for(target, client, args).await?;
            first_request(client, live, args, router, parts).await?
        }
    };
    let job = CreateJob { tag, ..job };
    Ok(Submitted {
        created: create(client, job.clone()).await?,
        job,
        outputs,
    })
}

/// The extension of an earlier job's request, with the checkpoint to begin from where one is named.
fn go_on_from(
    earlier: Option<Box<JobExtension>>,
    resume_from: Option<ResumeSource>,
    args: &JobRun,
) -> Option<Box<JobExtension>> {
    if resume_from.is_none() {
        return earlier;
    }
    let mut extension = earlier.unwrap_or_default();
    let terms = extension.terms.get_or_insert_default();
    match &mut terms.checkpoints {
        Some(checkpoints) => checkpoints.resume_from = resume_from,
        none => *none = args.terms.checkpoints.terms(resume_from),
    }
    Some(extension)
}

/// The request of a job that the command line describes, and the outputs that come back.
async fn first_request(
    client: &Client,
    live: &LiveDisplay,
    args: &JobRun,
    router: ValidatorKey,
    parts: JobParts,
) -> Result<(CreateJob, Vec<AskedOutput>)> {
    let JobParts {
        inputs,
        _spooled,
        stdin,
        outputs,
        env,
        login,
    } = parts;
    if args.webhook.is_some() {
        webhook::ensure_secret(client).await?;
    }
    let start = args.terms.start.start(stdin.clone());
    let is_known = async || {
        let known = client.features().await.map_err(client_failure)?;
        Ok::<_, Failure>(known.has(Feature::ProgramStart))
    };
    if start.is_some() && !is_known().await? {
        return Err(Failure::usage(
            "this facilitator does not know --workdir, --entrypoint and standard input for programs; leave them out, or \
             choose another facilitator",
        ));
    }
    let class = choose_class(client, args, router).await?;
    let resume_from = find_checkpoint(client, args).await?;
    let (image, archive) = find_image(client, live, args).await?;
    let volumes = deliver(client, live, &inputs, args.via).await?;
    let uploads = make_places(client, &outputs).await?;
    let login = seal_login(login.as_ref(), router, &image)?;
    let job = CreateJob {
        muster: extension(args, archive, resume_from, stdin, login),
        docker_image: image,
        webhook: args.webhook.clone(),
        ..request((router, class), args, env, &inputs, volumes, uploads)?
    };
    Ok((job, outputs))
}

/// Waits for a job's end; one that others failed is submitted anew as often as asked for.
async fn wait_with_retries(
    client: &Client,
    args: &JobRun,
    submitted: &mut Submitted,
    live: &mut LiveDisplay,
    clock: &SharedClock,
) -> Result<(Waited, bool)> {
    let mut retries = args.retries;
    loop {
        live.print_line(&format!("job {}", submitted.created.uuid));
        let (view, cancelled) = match wait(client, &submitted.created, live, clock).await? {
            (Waited::Ended(view), cancelled) => (view, cancelled),
            left @ (Waited::Left, _) => return Ok(left),
        };
        let printed = live.part(LogStream::Stdout).end() + live.part(LogStream::Stderr).end();
        if retries == 0 || cancelled || !may_run_anew(&view, printed) {
            return Ok((Waited::Ended(view), cancelled));
        }
        retries -= 1;
        let reason = job_text::failure(&view).unwrap_or_default();
        live.print_line(&format!("job {}: {reason}; it is submitted anew", view.uuid));
        submitted.created = create(client, submitted.job.clone()).await?;
    }
}

/// Prints the end of a job and fetches its results. The inner value says whether its output was printed whole; it is
/// [`None`] if Ctrl-C ended this.
async fn conclude(
    client: &Client,
    args: &JobRun,
    outputs: &[AskedOutput],
    view: &JobView,
    live: &mut LiveDisplay,
) -> Result<Option<Result<()>>> {
    let concluding = async {
        let whole = match args.json {
            Some(_) => Ok(()),
            None => print_rest(client, view, live).await,
        };
        live.finish(view);
        let fetched = fetch_results(client, args, outputs, view, live).await;
        fetched.map(|()| Some(whole))
    };
    tokio::select! {
        concluded = concluding => concluded,
        signal = shutdown::wait_for_signal() => {
            signal?;
            print::problem(format_args!(
                "stopped before all results were here; `muster job get {} --save {}` goes on",
                view.uuid,
                save_to(args).folder.display()
            ));
            Ok(None)
        }
    }
}

/// Whether a job that has ended may be submitted anew: its user was not at fault, and nothing of it was shown.
fn may_run_anew(view: &JobView, printed: u64) -> bool {
    let is_others_fault = view.failure().is_some_and(|outcome| match outcome.fault() {
        Fault::Nobody | Fault::User => false,
        Fault::Executor | Fault::Miner | Fault::Validator | Fault::Facilitator | Fault::Network => true,
    });
    is_others_fault && printed == 0
}

/// Fetches the outputs and the artifacts of a job that has ended, and prints where they lie. The facilitator's answer
/// adds no output: only those that this command asked for are written to this machine.
async fn fetch_results(
    client: &Client,
    args: &JobRun,
    asked: &[AskedOutput],
    view: &JobView,
    live: &LiveDisplay,
) -> Result<()> {
    let to = save_to(args);
    let is_asked = |upload: &FileUpload| asked.iter().any(|output| output.comes_back_as(upload));
    let mut fetched = save_outputs(client, view, is_asked, to, live).await;
    if args.save.is_some() {
        fetched.add(save_artifacts(view, to));
    }
    print_saved(live, &fetched.saved);
    if let Some(form) = args.json {
        let job = whole_job(view, form, &fetched.saved)?;
        print::line(format_args!("{}", serde_json::to_string_pretty(&job)?));
    }
    fetched.check(view)
}

/// Where the results of the job go.
fn save_to(args: &JobRun) -> SaveTo<'_> {
    SaveTo {
        folder: args.save.as_deref().unwrap_or(Path::new(".")),
        overwrite: Overwrite::by(args.force),
    }
}

/// Waits for a job's end. The first Ctrl-C cancels it, the second leaves it.
async fn wait(
    client: &Client,
    created: &JobView,
    live: &mut LiveDisplay,
    clock: &SharedClock,
) -> Result<(Waited, bool)> {
    let id = created.uuid;
    let limits = [
        created.download_time_limit,
        created.execution_time_limit,
        created.upload_time_limit,
    ];
    let deadline = patience(clock.now(), Duration::from_secs(limits.into_iter().sum()));
    let mut followed = std::pin::pin!(client.follow(id, deadline, |news| live.news(news)));
    let mut cancelled = false;
    loop {
        tokio::select! {
            view = &mut followed => return Ok((Waited::Ended(Box::new(view.map_err(client_failure)?)), cancelled)),
            signal = shutdown::wait_for_signal() => { signal?; }
        }
        if cancelled {
            print::problem(format_args!(
                "left job {id}; it may still be stopping, `muster job show {id}` says"
            ));
            return Ok((Waited::Left, true));
        }
        print::problem(format_args!(
            "cancelling job {id} and waiting for its end; Ctrl-C again leaves at once"
        ));
        cancelled = true;
        let asked = tokio::select! {
            view = &mut followed => return Ok((Waited::Ended(Box::new(view.map_err(client_failure)?)), true)),
            asked = client.cancel(id) => asked,
        };
        if let Err(error) = asked {
            cannot_cancel(id, &error);
            return Ok((Waited::Left, true));
        }
    }
}

fn cannot_cancel(id: JobId, error: &ClientError) {
    print::problem(format_args!(
        "job {id} cannot be cancelled ({error}); it runs on, and `muster job logs {id} --follow` shows it"
    ));
}

/// Submits the job. A validator of another make, or an older one, takes outputs in ComputeHorde's form only.
async fn create(client: &Client, mut job: CreateJob) -> Result<JobView> {
    let refused = match client.create(&job).await {
        Ok(created) => return Ok(created),
        Err(error) => error,
    };
    let is_bad_request = matches!(&refused, ClientError::Refused { status, .. } if status.as_u16() == 400);
    let Some(uploads) = job.uploads.as_mut().filter(|uploads| {
        is_bad_request && !needs_folders(uploads) && uploads.iter().any(|upload| upload.kind().is_some())
    }) else {
        return Err(client_failure(refused));
    };
    forget_kinds(uploads);
    let created = client.create(&job).await.map_err(|_| client_failure(refused))?;
    print::problem(format_args!(
        "the validator is older and delivers outputs that are regular files only: no folders, and no links"
    ));
    Ok(created)
}

/// Brings the inputs of this machine on their way.
async fn deliver(client: &Client, live: &LiveDisplay, inputs: &[Named], via: Via) -> Result<Vec<VolumePart>> {
    let sizes = inputs
        .iter()
        .map(Named::size)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let inline = match via {
        Via::Auto => sizes.iter().sum::<u64>() <= job_inputs::USUAL_INLINE_BYTES,
        Via::Inline => true,
        Via::Store => false,
    };
    for notice in inputs.iter().flat_map(Named::notices) {
        print::problem(format_args!("{notice}"));
    }
    let mut packed = Vec::new();
    let mut volumes = Vec::new();
    for named in inputs {
        match named {
            Named::Url { path, url } => volumes.push(job_inputs::fetched(path.clone(), url.clone())),
            Named::File(file) if inline => packed.push(file.clone()),
            Named::Folder { inputs, .. } if inline => packed.extend(inputs.iter().cloned()),
            // A file alone would come without its executable bit.
            Named::File(file) if file.is_executable()? => {
                let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
                let one = std::slice::from_ref(file);
                volumes.push(send_archive(client, live, one, &file.path, folder).await?);
            }
            Named::File(Input { path, source }) => {
                let InputSource::File(file) = source else {
                    continue;
                };
                let name = name_of(path);
                let sent = client.send_file(file, &name, live.transfer(path));
                let sent = sent.await.map_err(no_store)?;
                volumes.push(job_inputs::fetched(path.clone(), sent.file.download_url));
            }
            Named::Folder { path, inputs, .. } => {
                volumes.push(send_archive(client, live, inputs, path, path).await?);
            }
        }
    }
    volumes.extend(job_inputs::pack(&packed)?);
    Ok(volumes)
}

/// Puts an archive of inputs into the file store. It is unpacked below the path `under`; `path` names it for people.
async fn send_archive(
    client: &Client,
    live: &LiveDisplay,
    inputs: &[Input],
    path: &str,
    under: &str,
) -> Result<VolumePart> {
    let archive = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    job_inputs::zip(inputs, under, archive.as_file(), MAX_PACKED)?;
    let name = format!("{}.zip", name_of(path));
    let sent = client
        .send_file(archive.path(), &name, live.transfer(path))
        .await
        .map_err(no_store)?;
    let under = (!under.is_empty()).then(|| under.to_owned());
    Ok(job_inputs::unpacked(under, sent.file.download_url))
}

/// The last part of a path: what a file is called in the store.
pub(super) fn name_of(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// A facilitator of another make has no file store: report that instead of "not found".
pub(super) fn no_store(error: ClientError) -> Failure {
    if matches!(&error, ClientError::Refused { status, .. } if status.as_u16() == 404) {
        return Failure::new(
            ErrorCode::FileRefused,
            anyhow::anyhow!(
                "this facilitator has no file store: pass inputs with --via inline or by URL, and outputs with --output PATH=URL"
            ),
        );
    }
    client_failure(error)
}

/// The checkpoint that the job begins from.
async fn find_checkpoint(client: &Client, args: &JobRun) -> Result<Option<ResumeSource>> {
    let Some(named) = &args.terms.checkpoints.resume_from else {
        return Ok(None);
    };
    let job = client.find_job(&named.job).await.map_err(client_failure)?;
    let ordinal = match named.choice {
        // The facilitator says whether it is kept.
        CheckpointChoice::Numbered(number) => number,
        CheckpointChoice::Newest => {
            let view = client.job_checkpoints(job).await.map_err(client_failure)?;
            checkpoints::choose(&view, named.choice, &named.job)?.ordinal
        }
    };
    Ok(Some(ResumeSource { job, ordinal }))
}

/// The class of executor that the user named, or the smallest one that has the machine that the user asked for.
async fn choose_class(client: &Client, args: &JobRun, router: ValidatorKey) -> Result<ExecutorClass> {
    if !args.machine.is_given() {
        return Ok(args.class);
    }
    let capacity = client.subnet().await.map_err(client_failure)?;
    let mut validators = capacity.results.into_iter();
    let offered = validators.find(|offers| offers.validator == router);
    let classes = offered.map(|offers| offers.classes).unwrap_or_default();
    args.machine.choose(&classes).map_err(|listed| {
        let reason = match listed.as_str() {
            "" => anyhow::anyhow!("validator {router} has told lately of no executors at all"),
            listed => anyhow::anyhow!(
                "no class of executor at validator {router} has the machine that is asked for; it offers{listed}"
            ),
        };
        Failure::new(ErrorCode::NoSuchMachine, reason)
    })
}

/// The job's image by name, or by id after its archive has gone to the store.
async fn find_image(
    client: &Client,
    live: &LiveDisplay,
    args: &JobRun,
) -> Result<(String, Option<ArchiveSource>)> {
    let Some(path) = &args.image_archive else {
        return Ok((args.image.clone().unwrap_or_default(), None));
    };
    let unusable = |reason: String| Failure::usage(format_args!("{}: {reason}", path.display()));
    if !path.exists() {
        return Err(unusable(
            "there is no such file; `docker save IMAGE > FILE` writes an image into one".to_owned(),
        ));
    }
    let given = path.clone();
    let prepared = spawn_blocking(move || prepare_archive(&given)).await?;
    let prepared = prepared.map_err(|error| unusable(Causes(&error).to_string()))?;
    let [image] = prepared.images.as_slice() else {
        let count = prepared.images.len();
        return Err(unusable(format!("it holds {count} images; save one image alone")));
    };
    // Before the upload, which may take long.
    let known = client.features().await.map_err(client_failure)?;
    if !known.has(Feature::PrivateImages) {
        return Err(Failure::usage(format_args!(
            "this facilitator does not know images in archives; push the image to a registry, or choose another \
             facilitator"
        )));
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let sent = client
        .send_file(&prepared.path(), &name, live.transfer(&name))
        .await
        .map_err(no_store)?;
    let digest = sent.file.sha256.as_deref();
    let digest = digest.and_then(|hex| format!("sha256:{hex}").parse().ok());
    let (Some(sha256), Some(length)) = (digest, sent.file.size) else {
        return Err(unusable("the store does not tell its digest and size".to_owned()));
    };
    let source = ArchiveSource {
        url: sent.file.download_url,
        sha256,
        length,
    };
    Ok((image.id.to_string(), Some(source)))
}

/// The job's key `muster`, if the job asks for anything beyond ComputeHorde's fields.
fn extension(
    args: &JobRun,
    archive: Option<ArchiveSource>,
    resume_from: Option<ResumeSource>,
    stdin: Option<String>,
    registry: Option<SealedCredentials>,
) -> Option<Box<JobExtension>> {
    let terms = args.terms.terms(archive, resume_from, stdin);
    if terms.is_none() && registry.is_none() {
        return None;
    }
    Some(Box::new(JobExtension {
        terms,
        registry,
        ..JobExtension::default()
    }))
}

/// The user's login at the image's registry, with the password from standard input.
fn read_login(args: &JobRun) -> Result<Option<RegistryCredentials>> {
    let Some(username) = args.registry_user.clone() else {
        return Ok(None);
    };
    let limit = u64::try_from(MAX_REGISTRY_PASSWORD_BYTES).unwrap_or(u64::MAX);
    let mut password = String::new();
    std::io::stdin()
        .take(limit.saturating_add(2))
        .read_to_string(&mut password)
        .context("cannot read the registry's password from standard input")?;
    let password = password.trim_end_matches(['\r', '\n']).to_owned();
    Ok(Some(RegistryCredentials { username, password }))
}

/// Seals a login for the validator that routes the job, so that no other party on the way can read it.
fn seal_login(
    login: Option<&RegistryCredentials>,
    router: ValidatorKey,
    image: &str,
) -> Result<Option<SealedCredentials>> {
    login
        .map(|login| seal_credentials(router.0, image, login))
        .transpose()
        .map_err(Failure::usage)
}

/// The request that the user signs, without its image.
fn request(
    (router, class): (ValidatorKey, ExecutorClass),
    args: &JobRun,
    env: IndexMap<String, String>,
    inputs: &[Named],
    volumes: Vec<VolumePart>,
    uploads: Vec<FileUpload>,
) -> Result<CreateJob> {
    let bytes = inputs.iter().map(Named::size).sum::<anyhow::Result<u64>>()?;
    let unknown = inputs.iter().any(|named| matches!(named, Named::Url { .. }));
    let download = args.download_timeout.unwrap_or(if unknown {
        UNKNOWN_TRANSFER
    } else {
        LEAST_TRANSFER + Duration::from_secs(bytes / SLOWEST)
    });
    let upload = args.upload_timeout.unwrap_or(if uploads.is_empty() {
        LEAST_TRANSFER
    } else {
        UNKNOWN_TRANSFER
    });
    Ok(CreateJob {
        target_validator_hotkey: router,
        executor_class: class,
        docker_image: String::new(),
        job_namespace: None,
        args: args.command.clone(),
        env,
        use_gpu: class.has_gpu(),
        artifacts_dir: Some(args.artifacts.clone()),
        on_trusted_miner: args.on_trusted_miner,
        download_time_limit: download.as_secs(),
        execution_time_limit: args.timeout.as_secs(),
        streaming_start_time_limit: 0,
        upload_time_limit: upload.as_secs(),
        streaming_details: None,
        volumes: (!volumes.is_empty()).then_some(volumes),
        uploads: (!uploads.is_empty()).then_some(uploads),
        muster: None,
        webhook: None,
        tag: None,
    })
}

/// When a job that was submitted now is given up on.
fn patience(now: Timestamp, limits: Duration) -> Timestamp {
    /// Pulls and queues lie between a job's own limits.
    const MORE: Duration = Duration::from_secs(600);
    now.plus(MORE).plus(limits)
}

#[cfg(test)]
mod tests {
    use clap::Args as _;
    use serde_json::json;

    use super::super::fixtures::ended;
    use super::*;

    #[test]
    fn job_is_submitted_anew_only_if_its_user_is_not_at_fault_and_nothing_was_printed() {
        let by = |reporter: &str| json!({"horde_failure_details": {"reported_by": reporter, "reason": "generic_error", "message": ""}});
        let own = json!({"job_failure_details": {"reason": "timeout", "stage": "execution", "message": ""}});
        for (status, metadata, printed, expected) in [
            ("horde_failed", by("miner"), 0, true),
            ("horde_failed", by("miner"), 1, false),
            ("horde_failed", by("sdk"), 0, false),
            ("failed", own, 0, false),
            ("completed", json!({}), 0, false),
        ] {
            let view = ended(status, &metadata);
            assert_eq!(may_run_anew(&view, printed), expected, "{status} {metadata}");
        }
    }

    #[test]
    fn the_help_names_the_bound_on_artifacts_as_it_is() {
        let command = JobRun::augment_args(clap::Command::new("run"));
        let mut options = command.get_arguments();
        let option = options.find(|option| option.get_id() == "artifacts").unwrap();
        let help = option.get_long_help().unwrap().to_string();
        let all = muster_executor::Config::default().artifacts.max_total_mib;
        assert!(
            help.contains(&format!("{all} MiB together (`artifacts.max_total_mib`")),
            "{help}"
        );
    }

    /// The three bounds on an image archive fit together, and the option's help names them as they are.
    #[test]
    fn an_image_of_ten_gibibytes_passes_by_default_and_the_help_names_each_bound() {
        let files = muster_facilitator::Config::default().files;
        let images = muster_executor::Config::default().images;
        assert!(files.max_file_mib >= 10 * 1_024);
        assert!(files.max_file_mib <= files.quota_mib && files.max_file_mib <= images.max_mib);
        let command = JobRun::augment_args(clap::Command::new("run"));
        let option = command
            .get_arguments()
            .find(|option| option.get_id() == "image_archive");
        let help = option
            .unwrap()
            .get_long_help()
            .unwrap()
            .to_string()
            .replace(',', "");
        for (key, mib) in [
            ("files.max_file_mib", files.max_file_mib),
            ("files.quota_mib", files.quota_mib),
            ("images.max_mib", images.max_mib),
        ] {
            assert!(help.contains(&format!("`{key}` ({mib})")), "{key}: {help}");
        }
    }
}
