//! A new job from a form or from a specification. Both go through `POST /api/v1/job-docker/`.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{Html, IntoResponse, Redirect, Response};
use indexmap::IndexMap;
use muster_protocol::relative_path::check_relative_path;
use muster_protocol::rest::headers::IDEMPOTENCY_KEY;
use muster_protocol::rest::{CreateFile, CreateJob, FilePage, FileView, JobView, SubnetCapacity};
use muster_protocol::upload::{
    FilePut, FileUpload, OutputKind, PARTIAL_HEADER, PARTIAL_KEEP, WHOLE_OUTPUT, is_pattern,
};
use muster_protocol::volume::{SingleFileVolume, VolumePart};
use muster_protocol::{ExecutorClass, ValidatorKey};
use muster_web_pages::job_output::stored_file_of;
use muster_web_pages::new_job::{self, JobForm, NewJobPage};
use serde::Deserialize;
use uuid::Uuid;

use super::api::{ApiFailure, SessionApi, decode, json_body};
use super::form::{FormFields, SignedForm};
use super::job::job_of;
use super::session::{SignedIn, as_part};

/// Seconds for inputs and outputs where there are none.
const LEAST_TRANSFER: u64 = 30;
/// Seconds for inputs and outputs of unknown size.
const UNKNOWN_TRANSFER: u64 = 300;
/// The folder whose files come back with the result.
const ARTIFACTS: &str = "/artifacts";

/// The query of the form.
#[derive(Debug, Default, Deserialize)]
pub(super) struct FormQuery {
    /// The job that the form begins with.
    from: Option<String>,
}

/// The form, empty or as an earlier job fills it in.
pub(super) async fn form(signed_in: SignedIn, query: Result<Query<FormQuery>, QueryRejection>) -> Response {
    let Query(query) = query.unwrap_or_default();
    let form = match query.from {
        None => JobForm::empty(),
        Some(id) => match job_of(&signed_in.api, &id).await {
            Ok(view) => {
                let command = shlex::try_join(view.args.iter().map(String::as_str)).unwrap_or_default();
                let Some(form) = JobForm::of_job(&view, command) else {
                    return signed_in.failure(&no_form());
                };
                form
            }
            Err(failure) => return signed_in.failure(&failure),
        },
    };
    show(&signed_in, &form, None).await
}

async fn show(signed_in: &SignedIn, form: &JobForm, failed: Option<&ApiFailure>) -> Response {
    let (subnet, files) = tokio::join!(
        signed_in.api.get::<SubnetCapacity>("/api/v1/subnet/"),
        signed_in.api.get::<FilePage>("/api/v1/files/?page_size=20"),
    );
    let page = new_job::render(
        &signed_in.visitor(),
        &NewJobPage {
            form,
            subnet: &as_part(subnet),
            files: &as_part(files),
            request_name: &format!("web-{}", Uuid::new_v4()),
            problem: failed.map(|failure| failure.words.as_str()),
        },
    );
    let status = failed.map_or(StatusCode::OK, |failure| failure.status);
    (status, Html(page)).into_response()
}

/// Submits the job of the form.
pub(super) async fn create(form: SignedForm) -> Response {
    let SignedForm { signed_in, fields } = form;
    let filled = read_fields(&fields);
    let created = match job_in(&signed_in.api, &filled).await {
        Ok(job) => submit(&signed_in.api, fields.get("request_name"), &job).await,
        Err(failure) => Err(failure),
    };
    match created {
        Ok(view) => Redirect::to(&format!("/jobs/{}", view.uuid)).into_response(),
        Err(failure) => show(&signed_in, &filled, Some(&failure)).await,
    }
}

/// Submits the job of a specification.
pub(super) async fn create_from_spec(form: SignedForm) -> Response {
    let SignedForm { signed_in, fields } = form;
    let body = fields.get("spec").as_bytes().to_vec();
    match submit_body(&signed_in.api, fields.get("request_name"), body).await {
        Ok(view) => Redirect::to(&format!("/jobs/{}", view.uuid)).into_response(),
        Err(failure) => show(&signed_in, &JobForm::empty(), Some(&failure)).await,
    }
}

async fn submit(api: &SessionApi, name: &str, job: &CreateJob) -> Result<JobView, ApiFailure> {
    submit_body(api, name, serde_json::to_vec(job).unwrap_or_default()).await
}

/// Sends a job under the name of its form, so that a form that is sent twice makes one job.
async fn submit_body(api: &SessionApi, name: &str, body: Vec<u8>) -> Result<JobView, ApiFailure> {
    let mut headers = vec![json_body()];
    if let Ok(value) = HeaderValue::try_from(name)
        && !name.is_empty()
    {
        headers.push((HeaderName::from_static(IDEMPOTENCY_KEY), value));
    }
    let response = api
        .send(
            axum::http::Method::POST,
            "/api/v1/job-docker/",
            &headers,
            body.into(),
        )
        .await;
    decode(response).await
}

fn read_fields(fields: &FormFields) -> JobForm {
    let field = |name: &str| fields.get(name).trim().to_owned();
    JobForm {
        image: field("image"),
        command: field("command"),
        target: field("target"),
        minutes: field("minutes"),
        env: field("env"),
        inputs: field("inputs"),
        outputs: field("outputs"),
        from: field("from"),
    }
}

fn no_form() -> ApiFailure {
    ApiFailure {
        status: StatusCode::CONFLICT,
        words: "The job's command, environment or paths have control characters or variables of several lines, which no \
                form can hold. Run it again with `muster job run`, or from a specification."
            .to_owned(),
    }
}

fn wrong(words: impl Into<String>) -> ApiFailure {
    ApiFailure {
        status: StatusCode::BAD_REQUEST,
        words: words.into(),
    }
}

/// The lines of a field that are not empty.
fn lines(field: &str) -> impl Iterator<Item = &str> {
    field.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// The two sides of `NAME=VALUE`.
fn pair<'a>(line: &'a str, what: &str) -> Result<(&'a str, &'a str), ApiFailure> {
    line.split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| wrong(format!("{what} has the form NAME=VALUE, got {line:?}")))
}

/// The job that a form describes. Places for its outputs are made in the store.
async fn job_in(api: &SessionApi, form: &JobForm) -> Result<CreateJob, ApiFailure> {
    let (validator, class) = target_of(&form.target)?;
    let minutes: u64 = form
        .minutes
        .parse()
        .map_err(|_| wrong("The time limit is a number of minutes."))?;
    let args =
        shlex::split(&form.command).ok_or_else(|| wrong("The command has a quote that does not end."))?;
    let mut env = IndexMap::new();
    for line in lines(&form.env) {
        let (name, value) = pair(line, "A variable")?;
        env.insert(name.to_owned(), value.to_owned());
    }
    let mut volumes = Vec::new();
    for line in lines(&form.inputs) {
        volumes.push(input_of(api, line).await?);
    }
    if !form.from.is_empty() {
        volumes.extend(inputs_taken_over(api, &form.from).await?);
    }
    let mut uploads = Vec::new();
    for path in lines(&form.outputs) {
        uploads.push(output_of(api, path).await?);
    }
    let seconds = |none: bool| if none { LEAST_TRANSFER } else { UNKNOWN_TRANSFER };
    Ok(CreateJob {
        tag: None,
        target_validator_hotkey: validator,
        executor_class: class,
        docker_image: form.image.clone(),
        job_namespace: None,
        args,
        env,
        use_gpu: class.has_gpu(),
        artifacts_dir: Some(ARTIFACTS.to_owned()),
        on_trusted_miner: false,
        download_time_limit: seconds(volumes.is_empty()),
        execution_time_limit: minutes.saturating_mul(60),
        streaming_start_time_limit: 0,
        upload_time_limit: seconds(uploads.is_empty()),
        streaming_details: None,
        volumes: (!volumes.is_empty()).then_some(volumes),
        uploads: (!uploads.is_empty()).then_some(uploads),
        muster: None,
        webhook: None,
    })
}

fn target_of(text: &str) -> Result<(ValidatorKey, ExecutorClass), ApiFailure> {
    let (validator, class) = text
        .split_once('/')
        .ok_or_else(|| wrong("Choose a class of executor, as VALIDATOR/CLASS."))?;
    let validator = validator
        .parse()
        .map_err(|_| wrong("The validator is named by its ss58 address."))?;
    let class = class.parse().map_err(|error| wrong(format!("{error}")))?;
    Ok((validator, class))
}

/// An input by its line: `PATH=URL` or `PATH=file:ID`.
async fn input_of(api: &SessionApi, line: &str) -> Result<VolumePart, ApiFailure> {
    let (path, source) = pair(line, "An input")?;
    let url = match source.strip_prefix("file:") {
        Some(id) => stored_url(api, id).await?,
        None if source.starts_with("http://") || source.starts_with("https://") => source.to_owned(),
        None => {
            return Err(wrong(format!(
                "An input comes from a URL or from file:ID, got {source:?}"
            )));
        }
    };
    Ok(VolumePart::SingleFile(SingleFileVolume {
        url,
        relative_path: plain_path(path)?.to_owned(),
    }))
}

/// A fresh address of one of the account's files.
async fn stored_url(api: &SessionApi, id: &str) -> Result<String, ApiFailure> {
    let id: Uuid = id
        .parse()
        .map_err(|_| wrong(format!("{id:?} is no id of a file.")))?;
    let file: FileView = api
        .get(&format!("/api/v1/files/{id}/"))
        .await
        .map_err(|failure| wrong(format!("The file {id} cannot be an input: {}", failure.words)))?;
    if file.complete {
        Ok(file.download_url)
    } else {
        Err(wrong(format!("The file {:?} is not complete.", file.name)))
    }
}

/// The inputs of an earlier job that no form shows. Archives in the store get fresh addresses.
async fn inputs_taken_over(api: &SessionApi, job: &str) -> Result<Vec<VolumePart>, ApiFailure> {
    let mut taken = Vec::new();
    for volume in job_of(api, job).await?.volumes {
        match volume {
            VolumePart::SingleFile(_) => {}
            VolumePart::ZipUrl(mut zip) => {
                if let Some(id) = stored_file_of(&zip.contents, "content") {
                    zip.contents = stored_url(api, id).await?;
                }
                taken.push(VolumePart::ZipUrl(zip));
            }
            VolumePart::Inline(_) | VolumePart::HuggingfaceVolume(_) => taken.push(volume),
        }
    }
    Ok(taken)
}

/// An output that goes to the store, also when the job fails: nobody but the user reads the store. `FOLDER/` is a
/// folder, `.` all of them, and `*.csv` all files that match.
async fn output_of(api: &SessionApi, text: &str) -> Result<FileUpload, ApiFailure> {
    let (path, kind) = match text.strip_suffix('/') {
        Some(folder) => (folder, Some(OutputKind::Folder)),
        None if is_pattern(text) => (text, Some(OutputKind::Matching)),
        None => (text, (text == WHOLE_OUTPUT).then_some(OutputKind::Folder)),
    };
    if path != WHOLE_OUTPUT {
        plain_path(path)?;
    }
    let name = match path.rsplit('/').next().unwrap_or(path) {
        WHOLE_OUTPUT => "output",
        name if is_pattern(name) => "output",
        name => name,
    };
    let place = CreateFile {
        name: if kind.is_some() {
            format!("{name}.tar")
        } else {
            name.to_owned()
        },
        size: None,
        max_size: None,
        sha256: None,
    };
    let file: FileView = api.post("/api/v1/files/", &place).await?;
    let keep = (PARTIAL_HEADER.to_owned(), PARTIAL_KEEP.to_owned());
    Ok(FileUpload::SingleFilePut(FilePut {
        url: file.upload_url,
        relative_path: path.to_owned(),
        signed_headers: Some(IndexMap::from([keep])),
        kind,
    }))
}

/// A path that stays inside its folder.
fn plain_path(path: &str) -> Result<&str, ApiFailure> {
    match check_relative_path(path) {
        Ok(()) => Ok(path),
        Err(reason) => Err(wrong(format!("The path {path:?} {reason}."))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_names_a_validator_and_a_class() {
        let key = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
        assert!(target_of(&format!("{key}/always_on.test")).is_ok());
        for bad in ["", key, "x/always_on.test", &format!("{key}/nothing")] {
            assert_eq!(
                target_of(bad).unwrap_err().status,
                StatusCode::BAD_REQUEST,
                "{bad}"
            );
        }
    }

    #[test]
    fn paths_and_pairs_are_plain() {
        assert!(plain_path("a/b.bin").is_ok());
        for bad in ["", "/a", "a/../b", "a//b", "a\\b", "."] {
            assert!(plain_path(bad).is_err(), "{bad}");
        }
        assert_eq!(pair("A=b=c", "x").unwrap(), ("A", "b=c"));
        assert!(pair("=b", "x").is_err() && pair("A", "x").is_err());
    }
}
