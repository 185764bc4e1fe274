//! The image of `images/hello`, built from this checkout and loaded into the engine once per test process.

use bollard::query_parameters::RemoveImageOptions;
use muster_executor::{ContainerEngine, ImageArchive, ImageContent, ImageFile};

/// The name of the image in the engine.
pub(crate) const NAME: &str = "muster/executor-test:latest";

/// Builds the demo program. Only the first call takes time, because cargo finds the program built afterwards.
pub(crate) fn program() -> Vec<u8> {
    std::fs::read(super::build_static("muster-image-hello", "hello").unwrap()).unwrap()
}

/// The archive of the image, with `files` in addition to the program.
pub(crate) fn archive(tag: &str, files: Vec<ImageFile>) -> ImageArchive {
    let program = ImageFile {
        path: "/hello".into(),
        mode: 0o755,
        contents: program(),
    };
    let content = ImageContent {
        tag: tag.into(),
        files: [vec![program], files].concat(),
        entrypoint: vec!["/hello".into()],
        command: vec!["words".into()],
        ..ImageContent::default()
    };
    ImageArchive::new(&content).unwrap()
}

/// Removes an image from the engine that no other test uses.
pub(crate) async fn forget(name: &str) {
    let docker = bollard::Docker::connect_with_defaults().unwrap();
    docker
        .remove_image(name, None::<RemoveImageOptions>, None)
        .await
        .unwrap();
}

/// Loads the image into the engine. Loading it again changes nothing. The image of an earlier build is removed once
/// it has lost its name.
pub(crate) async fn load(engine: &ContainerEngine) -> ImageArchive {
    let archive = tokio::task::spawn_blocking(|| archive(NAME, vec![]))
        .await
        .unwrap();
    let earlier = engine.find_image(NAME).await.unwrap().map(|image| image.id);
    engine.load(archive.bytes.clone()).await.unwrap();
    if let Some(earlier) = earlier.filter(|id| *id != archive.id) {
        forget_nameless(&earlier.to_string()).await;
    }
    archive
}

/// Removes an image without names. Removing one by its id would also remove a last name that another run uses.
async fn forget_nameless(id: &str) {
    let docker = bollard::Docker::connect_with_defaults().unwrap();
    // Another process may have removed it.
    let Ok(image) = docker.inspect_image(id).await else {
        return;
    };
    if image.repo_tags.unwrap_or_default().is_empty() {
        let _ = docker.remove_image(id, None::<RemoveImageOptions>, None).await;
    }
}
