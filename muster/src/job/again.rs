//! `muster job run --again`: the request of an earlier job, with fresh URLs in the facilitator's store.

use muster_client::files::file_of;
use muster_client::{Client, ClientError};
use muster_protocol::JobReference;
use muster_protocol::rest::{CreateJob, JobView};
use muster_protocol::upload::FileUpload;
use muster_protocol::volume::VolumePart;
use muster_protocol::wire::muster::JobExtension;

use super::asked_outputs::{AskedOutput, make_places};
use super::run::no_store;
use crate::facilitator_access::client_failure;
use crate::failure::{Failure, Result};

/// The outputs of an earlier job.
#[derive(Debug, Default, PartialEq, Eq)]
struct EarlierOutputs {
    /// Those in the facilitator's store, as `--output` names them.
    stored: Vec<String>,
    /// Those that went to places of the user's own.
    elsewhere: Vec<FileUpload>,
}

/// The request of an earlier job as a new one, and the outputs that come back.
pub(super) async fn request_again(
    client: &Client,
    reference: &JobReference,
) -> Result<(CreateJob, Vec<AskedOutput>)> {
    let id = client.find_job(reference).await.map_err(client_failure)?;
    let view = client.job(id).await.map_err(client_failure)?;
    if !view.streaming_client_cert.is_empty() {
        return Err(Failure::usage(format_args!(
            "job {id} answered requests: a session has keys of its own and is never run again"
        )));
    }
    let mut volumes = view.volumes.clone();
    for volume in &mut volumes {
        refresh_input(client, volume).await?;
    }
    let mut muster = view.muster.clone();
    let terms = muster.as_mut().and_then(|extension| extension.terms.as_mut());
    if let Some(archive) = terms.and_then(|terms| terms.image_archive.as_mut()) {
        archive.url = fresh_url(client, &archive.url, "the image").await?;
    }
    let EarlierOutputs { stored, elsewhere } = outputs_of(&view.uploads);
    let asked = stored
        .iter()
        .map(|text| AskedOutput::read(text))
        .collect::<Result<Vec<_>>>()?;
    let mut uploads = make_places(client, &asked).await?;
    uploads.extend(elsewhere);
    Ok((request_of(view, volumes, uploads, muster), asked))
}

fn request_of(
    view: JobView,
    volumes: Vec<VolumePart>,
    uploads: Vec<FileUpload>,
    muster: Option<Box<JobExtension>>,
) -> CreateJob {
    CreateJob {
        target_validator_hotkey: view.target_validator_hotkey,
        executor_class: view.executor_class,
        docker_image: view.docker_image,
        job_namespace: view.job_namespace,
        args: view.args,
        env: view.env,
        use_gpu: view.use_gpu,
        artifacts_dir: view.artifacts_dir,
        on_trusted_miner: view.on_trusted_miner,
        download_time_limit: view.download_time_limit,
        execution_time_limit: view.execution_time_limit,
        streaming_start_time_limit: view.streaming_start_time_limit,
        upload_time_limit: view.upload_time_limit,
        streaming_details: None,
        volumes: (!volumes.is_empty()).then_some(volumes),
        uploads: (!uploads.is_empty()).then_some(uploads),
        muster,
        tag: None,
        webhook: None,
    }
}

/// Tells the outputs in the facilitator's store, each once, from those elsewhere.
fn outputs_of(uploads: &[FileUpload]) -> EarlierOutputs {
    let mut outputs = EarlierOutputs::default();
    for upload in uploads {
        let (path, url) = muster_terminal::job_text::output(upload);
        if file_of(url).is_none() {
            outputs.elsewhere.push(upload.clone());
        } else if !outputs.stored.iter().any(|known| known == path) {
            outputs.stored.push(path.to_owned());
        }
    }
    outputs
}

/// Gives an input that lies in the facilitator's store a URL that is valid now.
async fn refresh_input(client: &Client, volume: &mut VolumePart) -> Result<()> {
    match volume {
        VolumePart::ZipUrl(volume) => {
            volume.contents = fresh_url(client, &volume.contents, "an input").await?;
        }
        VolumePart::SingleFile(volume) => {
            volume.url = fresh_url(client, &volume.url, &volume.relative_path).await?;
        }
        VolumePart::Inline(_) | VolumePart::HuggingfaceVolume(_) => {}
    }
    Ok(())
}

async fn fresh_url(client: &Client, url: &str, name: &str) -> Result<String> {
    let Some(id) = file_of(url) else {
        return Ok(url.to_owned());
    };
    match client.file(&id).await {
        Ok(file) => Ok(file.download_url),
        Err(ClientError::Refused { status, .. }) if status.as_u16() == 404 => {
            Err(Failure::usage(format_args!(
                "{name} of the earlier job is gone from the file store: its time was over, or it was deleted"
            )))
        }
        Err(error) => Err(no_store(error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn outputs_in_the_store_get_new_places_and_the_users_own_places_stay() {
        let put = |path: &str, url: &str| json!({"output_upload_type": "single_file_put", "relative_path": path, "url": url});
        let stored =
            |id: &str| format!("https://f/files/{id}111111-2222-4333-8444-555555555555/upload?Signature=x");
        let uploads: Vec<FileUpload> = serde_json::from_value(json!([
            put("model.bin", &stored("11")),
            put("model.bin", &stored("22")),
            put("own.bin", "https://bucket/own.bin?sig=1"),
            put("log", &stored("33")),
        ]))
        .unwrap();
        let outputs = outputs_of(&uploads);
        assert_eq!(outputs.stored, ["model.bin", "log"]);
        assert_eq!(outputs.elsewhere, uploads[2..3]);
    }
}
