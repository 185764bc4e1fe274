//! An image of nothing but a shell, for jobs that tests write down as scripts.

use anyhow::{Context as _, Result};
use muster_executor::{Engine, ImageArchive, ImageContent, ImageFile};

/// The shell, and every other program, inside the image.
pub const BUSYBOX: &str = "/bin/busybox";

const IMAGE: &str = "muster/shell-test:1";

/// Loads the image into the engine at `engine` (empty: this machine's) and returns its name. A job's arguments are the shell's:
/// `["-c", "echo hello"]`.
///
/// # Errors
/// There is no engine, or no busybox on this machine.
pub async fn shell_image(engine: &str) -> Result<&'static str> {
    let engine = Engine::connect(engine).await?;
    let contents = std::fs::read(BUSYBOX).or_else(|_| std::fs::read("/usr/bin/busybox"));
    let archive = ImageArchive::new(&ImageContent {
        tag: IMAGE.to_owned(),
        files: vec![ImageFile {
            path: BUSYBOX.to_owned(),
            mode: 0o755,
            contents: contents.context("busybox-static is not installed")?,
        }],
        entrypoint: vec![BUSYBOX.to_owned(), "sh".to_owned()],
        ..ImageContent::default()
    })?;
    engine.load(archive.bytes).await?;
    Ok(IMAGE)
}
