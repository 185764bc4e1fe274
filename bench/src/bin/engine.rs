//! The time that the sandbox and the check of an image add to the bare engine's API.
//!
//! The peer is the client library alone: create, start, wait and remove a container of the same image with the engine's
//! defaults and no network; and one look at the image.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Context;
use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptions, RemoveContainerOptions, StartContainerOptions, WaitContainerOptions,
};
use futures_util::StreamExt;
use muster_bench::{Direction, Report, Row, take_turns, timed};
use muster_containers::host_files::HostFiles;
use muster_containers::image_folders::UNSEEN;
use muster_containers::image_settings::ImageSettings;
use muster_containers::images::ensure;
use muster_containers::sandbox::{Gpus, ResourceLimits, Root, RunAs, Sandbox};
use muster_containers::{ContainerEngine, ImageArchive, ImageContent, ImageFile, LocalImage};
use muster_process::{SharedClock, SystemClock};
use tokio::runtime::Runtime;

const ROUNDS: usize = 15;
const LABEL: &str = "muster.bench";
const TAG: &str = "muster/bench-engine:latest";

fn main() -> anyhow::Result<()> {
    let runtime = Runtime::new()?;
    let (engine, docker, image) = runtime.block_on(prepare())?;
    let folder = tempfile::tempdir()?;
    let host_files = HostFiles::under(folder.path());
    host_files.write()?;
    let started = take_turns(
        ROUNDS,
        || milliseconds(&runtime, sealed(&engine, &image, &host_files)),
        || milliseconds(&runtime, bare(&docker, &image)),
    )?;
    let settings = ImageSettings {
        cache_dir: folder.path().join("images"),
        local: vec!["*".to_owned()],
        ..ImageSettings::default()
    };
    let clock: SharedClock = Arc::new(SystemClock::new());
    let id = image.id.to_string();
    let checked = take_turns(
        ROUNDS,
        || milliseconds(&runtime, check(&engine, &settings, &id, &clock)),
        || milliseconds(&runtime, look(&docker, &id)),
    )?;
    runtime.block_on(engine.remove_tag(TAG))?;
    Report {
        rows: vec![
            Row::against(
                "a sealed container from creation to removal",
                "ms",
                Direction::LowerIsBetter,
                "bollard alone, the engine's defaults",
                started,
            ),
            Row::against(
                "finding and leasing an image that is there",
                "ms",
                Direction::LowerIsBetter,
                "one look at it",
                checked,
            ),
        ],
        notes: vec!["a static program that does nothing, runc".to_owned()],
    }
    .print()
}

/// An image with nothing but Debian's static shell as `true`.
async fn prepare() -> anyhow::Result<(ContainerEngine, Docker, LocalImage)> {
    let engine = ContainerEngine::connect("").await?;
    let program = ImageFile {
        path: "/true".into(),
        mode: 0o755,
        contents: std::fs::read("/bin/busybox").context("install busybox-static")?,
    };
    let content = ImageContent {
        tag: TAG.into(),
        files: vec![program],
        entrypoint: vec!["/true".into()],
        ..ImageContent::default()
    };
    engine.load(ImageArchive::new(&content)?.bytes).await?;
    let image = engine
        .find_image(TAG)
        .await?
        .context("the image was just loaded")?;
    Ok((
        engine,
        Docker::connect_with_defaults()?.negotiate_version().await?,
        image,
    ))
}

fn milliseconds(runtime: &Runtime, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<f64> {
    let (done, spent) = timed(|| runtime.block_on(work));
    done.map(|()| spent.as_secs_f64() * 1e3)
}

fn labels() -> HashMap<String, String> {
    HashMap::from([(LABEL.to_owned(), String::new())])
}

/// As an executor does it.
async fn sealed(engine: &ContainerEngine, image: &LocalImage, host_files: &HostFiles) -> anyhow::Result<()> {
    let sandbox = Sandbox {
        image,
        command: None,
        environment: vec![],
        binds: vec![],
        host_files,
        labels: labels(),
        image_folders: &UNSEEN,
        image_files: std::path::Path::new("/"),
        allowance: ResourceLimits {
            nano_cpus: 1_000_000_000,
            memory: 256 << 20,
            shm: 64 << 20,
            tmpfs: 64 << 20,
            pids: 100,
            disk: 64 << 20,
        },
        runtime: "",
        gpus: Gpus::None,
        run_as: RunAs::Image,
        root: Root::ReadOnly,
    };
    let name = "muster-bench-sealed";
    engine.create(name, sandbox.container()?).await?;
    let mut output = engine.attach(name).await?;
    engine.start(name).await?;
    let (code, ()) = tokio::join!(engine.wait(name), async {
        while output.next().await.is_some() {}
    });
    anyhow::ensure!(code? == 0, "the program failed");
    engine.inspect_exit(name).await?;
    engine.remove(name).await?;
    Ok(())
}

/// As the client library does it.
async fn bare(docker: &Docker, image: &LocalImage) -> anyhow::Result<()> {
    let name = "muster-bench-bare";
    let options = CreateContainerOptions {
        name: Some(name.to_owned()),
        ..CreateContainerOptions::default()
    };
    let body = ContainerCreateBody {
        image: Some(image.id.to_string()),
        labels: Some(labels()),
        host_config: Some(HostConfig {
            network_mode: Some("none".to_owned()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    docker.create_container(Some(options), body).await?;
    docker
        .start_container(name, None::<StartContainerOptions>)
        .await?;
    let mut ended = Box::pin(docker.wait_container(name, None::<WaitContainerOptions>));
    ended.next().await.context("no exit code")??;
    docker
        .remove_container(name, None::<RemoveContainerOptions>)
        .await?;
    Ok(())
}

async fn check(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    id: &str,
    clock: &SharedClock,
) -> anyhow::Result<()> {
    ensure(engine, settings, id, &(Arc::new(|_| {}) as _), clock).await?;
    Ok(())
}

async fn look(docker: &Docker, id: &str) -> anyhow::Result<()> {
    docker.inspect_image(id).await?;
    Ok(())
}
