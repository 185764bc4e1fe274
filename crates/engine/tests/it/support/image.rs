//! Images of ours: small ones that nobody else has, and the probe.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use muster_engine::{Engine, ImageArchive, ImageContent, ImageFile};
use uuid::Uuid;

use super::PATIENCE;

/// An image that no other test and no other run has, of about this many bytes that cannot be compressed.
pub(crate) fn unique(bytes: usize) -> anyhow::Result<(String, ImageArchive)> {
    let tag = format!("muster/engine-test:{}", Uuid::new_v4());
    let mut contents = Vec::with_capacity(bytes + 16);
    while contents.len() < bytes.max(16) {
        contents.extend_from_slice(Uuid::new_v4().as_bytes());
    }
    let file = ImageFile {
        path: "/filler".into(),
        mode: 0o644,
        contents,
    };
    let content = ImageContent {
        tag: tag.clone(),
        files: vec![file],
        entrypoint: vec!["/filler".into()],
        ..ImageContent::default()
    };
    Ok((tag, ImageArchive::new(&content)?))
}

/// The static probe, built from this checkout. Cargo itself sees to it that only the first call has anything to do.
pub(crate) fn probe_program() -> anyhow::Result<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .context("no target folder")?
        .join("static");
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let status = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "-p",
            "muster-image-probe",
            "--target",
            &triple,
            "--target-dir",
        ])
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()?;
    ensure!(status.success(), "the probe does not build");
    Ok(target.join(triple).join("debug/probe"))
}

/// The image of the probe, loaded.
pub(crate) async fn load_probe(engine: &Engine) -> anyhow::Result<ImageArchive> {
    let archive = tokio::task::spawn_blocking(|| -> anyhow::Result<ImageArchive> {
        let program = ImageFile {
            path: "/probe".into(),
            mode: 0o755,
            contents: std::fs::read(probe_program()?)?,
        };
        let content = ImageContent {
            tag: "muster/engine-test-probe:latest".into(),
            files: vec![program],
            entrypoint: vec!["/probe".into()],
            ..ImageContent::default()
        };
        Ok(ImageArchive::new(&content)?)
    })
    .await??;
    engine.load(archive.bytes.clone()).await?;
    Ok(archive)
}

/// Debian with Python and a package installed by pip, run by root. Made once and kept in ~/.cache/muster; `None`, with the
/// reason on stderr, where it cannot be made.
pub(crate) async fn python(engine: &Engine) -> anyhow::Result<Option<muster_engine::LocalImage>> {
    let name = "muster/engine-test-python:1";
    if engine.image(name).await?.is_none() {
        let Some(archive) = tokio::task::spawn_blocking(python_root).await?? else {
            return Ok(None);
        };
        let docker = bollard::Docker::connect_with_defaults()?.with_timeout(PATIENCE);
        let options = bollard::query_parameters::CreateImageOptions {
            from_src: Some("-".into()),
            repo: Some("muster/engine-test-python".into()),
            tag: Some("1".into()),
            ..Default::default()
        };
        let body = bollard::body_full(tokio::fs::read(archive).await?.into());
        let mut answers = Box::pin(docker.create_image(Some(options), Some(body), None));
        while let Some(answer) = futures_util::StreamExt::next(&mut answers).await {
            answer?;
        }
    }
    Ok(engine.image(name).await?)
}

/// The image's files as a tar archive.
fn python_root() -> anyhow::Result<Option<PathBuf>> {
    if !nix::unistd::geteuid().is_root() || !super::have("debootstrap") {
        eprintln!("skipped: a Debian root needs root and debootstrap");
        return Ok(None);
    }
    let home = std::env::var("HOME").context("no HOME")?;
    let cache = Path::new(&home).join(".cache/muster");
    std::fs::create_dir_all(&cache)?;
    let archive = cache.join("debian-python-1.tar");
    // Tests of other runs may want it at the same time.
    let lock = std::fs::File::create(cache.join("debian-python.lock"))?;
    lock.lock()?;
    if archive.exists() {
        return Ok(Some(archive));
    }
    let work = tempfile::tempdir_in(&cache)?;
    let root = work.path().join("root");
    let run = |program: &str, arguments: &[&str]| -> anyhow::Result<()> {
        let output = Command::new(program).args(arguments).output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program}: {}", text.trim());
        Ok(())
    };
    let (root, made, venv) = (
        root.display().to_string(),
        work.path().join("made.tar"),
        work.path().join("venv").display().to_string(),
    );
    run(
        "debootstrap",
        &[
            "--variant=minbase",
            "--include=python3,libgomp1",
            "bookworm",
            &root,
        ],
    )?;
    run("python3", &["-m", "venv", &venv])?;
    let packages = format!("{root}/usr/local/lib/python3.11/dist-packages");
    run(
        &format!("{venv}/bin/pip"),
        &[
            "install",
            "--quiet",
            "--only-binary=:all:",
            "--target",
            &packages,
            "six",
        ],
    )?;
    run("tar", &["-C", &root, "-cf", &made.display().to_string(), "."])?;
    std::fs::rename(&made, &archive)?;
    Ok(Some(archive))
}
