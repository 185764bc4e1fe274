//! The image of `images/hello`, built from this checkout and loaded into the engine once per test process.

use std::path::{Path, PathBuf};
use std::process::Command;

use muster_executor::{Engine, ImageArchive, ImageContent, ImageFile};

/// The name of the image in the engine.
pub(crate) const NAME: &str = "muster/executor-test:latest";

/// Builds the static program. Cargo itself sees to it that only the first call has anything to do.
pub(crate) fn program() -> Vec<u8> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .unwrap()
        .join("static");
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let status = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "-p",
            "muster-image-hello",
            "--target",
            &triple,
            "--target-dir",
        ])
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .unwrap();
    assert!(status.success(), "the demo program does not build");
    let path: PathBuf = [target.as_path(), Path::new(&triple), Path::new("debug/hello")]
        .iter()
        .collect();
    std::fs::read(path).unwrap()
}

/// The image's archive. `files` come on top of the program.
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

/// Has the image in the engine. Loading it again changes nothing.
pub(crate) async fn load(engine: &Engine) -> ImageArchive {
    let archive = tokio::task::spawn_blocking(|| archive(NAME, vec![]))
        .await
        .unwrap();
    engine.load(archive.bytes.clone()).await.unwrap();
    archive
}
