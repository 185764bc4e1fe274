//! Images that tests make of what lies on this machine: one of nothing but a shell, for jobs that tests write down as
//! scripts, one of an engine that nobody here wrote, and one of what people train with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use muster_executor::{ContainerEngine, ImageArchive, ImageContent, ImageFile};
use muster_protocol::ImageId;
use serde::Deserialize;

use crate::process::run;

/// The table of an executor's configuration that allows what the tests need: images that they loaded themselves, and
/// registries of this machine.
pub const IMAGES_OF_TESTS: &str = "[images]\nlocal = [\"*\"]\nallow = [\"127.0.0.0/8\"]\n";

/// The shell, and every other program, inside the image.
pub const BUSYBOX: &str = "/bin/busybox";

const IMAGE: &str = "muster/shell-test:1";
const ANOTHER_IMAGE: &str = "muster/shell-test:2";

/// Loads the image into the engine at `engine` (empty: this machine's) and returns its name. A job's arguments are the
/// shell's: `["-c", "echo hello"]`.
///
/// # Errors
/// There is no engine, or no busybox on this machine.
pub async fn shell_image(engine: &str) -> Result<&'static str> {
    load_shell(engine, IMAGE, Vec::new()).await?;
    Ok(IMAGE)
}

/// As [`shell_image`], but an image with another id.
///
/// # Errors
/// There is no engine, or no busybox on this machine.
pub async fn another_shell_image(engine: &str) -> Result<&'static str> {
    let mark = ImageFile {
        path: "/another".to_owned(),
        mode: 0o644,
        contents: b"another image".to_vec(),
    };
    load_shell(engine, ANOTHER_IMAGE, vec![mark]).await?;
    Ok(ANOTHER_IMAGE)
}

async fn load_shell(engine: &str, tag: &str, mut files: Vec<ImageFile>) -> Result<()> {
    let engine = ContainerEngine::connect(engine).await?;
    let contents = std::fs::read(BUSYBOX).or_else(|_| std::fs::read("/usr/bin/busybox"));
    files.push(ImageFile {
        path: BUSYBOX.to_owned(),
        mode: 0o755,
        contents: contents.context("busybox-static is not installed")?,
    });
    let archive = ImageArchive::new(&ImageContent {
        tag: tag.to_owned(),
        files,
        entrypoint: vec![BUSYBOX.to_owned(), "sh".to_owned()],
        ..ImageContent::default()
    })?;
    engine.load(archive.bytes).await?;
    Ok(())
}

/// Puts llama.cpp's server, as this Python has it, and a small model into an image, loads that into this machine's
/// engine, and returns its id. The image's one argument is the socket that the server is to listen on.
///
/// # Errors
/// There is no engine, or the Python lacks `xllamacpp`, `gguf` or `safetensors`.
pub async fn llama_image(interpreter: &Path) -> Result<ImageId> {
    let usual = LlamaImage {
        kind: "f16",
        tag: "muster/llama-cpp-test:1",
    };
    llama_image_of(interpreter, &usual).await
}

/// An image of llama.cpp's server.
pub struct LlamaImage<'a> {
    /// The kind of the weights: f32, f16, bf16, q8_0 or q4_0.
    pub kind: &'a str,
    /// The name of the image.
    pub tag: &'a str,
}

/// As [`llama_image`], with weights of this kind.
///
/// # Errors
/// As those of [`llama_image`].
pub async fn llama_image_of(interpreter: &Path, image: &LlamaImage<'_>) -> Result<ImageId> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("no checkout")?;
    let folder = tempfile::tempdir()?;
    let weights = folder.path().join("model.gguf");
    let llm = root.join("images/llm");
    let mut convert = Command::new(interpreter);
    convert
        .arg(llm.join("tests/python/to_gguf.py"))
        .arg(llm.join("model"));
    let converted = run(convert.arg(&weights).arg(image.kind))?;
    ensure!(converted.code == Some(0), "{converted:?}");
    let mut list = Command::new(interpreter);
    list.arg(root.join("tests/python/llama_cpp_image.py"))
        .arg(&weights);
    load(&mut list, image.tag).await
}

/// Loads the image that this script lists.
async fn load(list: &mut Command, tag: &str) -> Result<ImageId> {
    let listed = run(list)?;
    ensure!(listed.code == Some(0), "{listed:?}");
    let recipe: Recipe = serde_json::from_str(&listed.stdout)?;
    let archive = ImageArchive::new(&recipe.content(tag)?)?;
    ContainerEngine::connect("").await?.load(archive.bytes).await?;
    Ok(archive.id)
}

/// The name of the image that [`training_image`] loads.
pub const TRAINING_IMAGE: &str = "muster/train-test:1";

/// Puts PyTorch with Hugging Face's Trainer and Lightning, as this Python has them, and the scripts of `images/train`
/// into an image, loads that into this machine's engine as [`TRAINING_IMAGE`], and returns its id. A job's arguments
/// are a script's path below `/train` and the script's own arguments.
///
/// # Errors
/// There is no engine, or the Python lacks a package.
pub async fn training_image(interpreter: &Path) -> Result<ImageId> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("no checkout")?;
    let environment = interpreter
        .parent()
        .and_then(Path::parent)
        .context("an interpreter outside of an environment")?;
    let mut list = Command::new("python3");
    list.arg(root.join("images/train/training_image.py"))
        .arg(environment)
        .arg(root);
    load(&mut list, TRAINING_IMAGE).await
}

/// The name of the image that [`python_image`] loads.
pub const PYTHON_IMAGE: &str = "muster/python-test:1";

/// Puts this machine's Python and a shell into an image, loads that into this machine's engine as [`PYTHON_IMAGE`], and
/// returns its id. A job's arguments are a program and its own arguments.
///
/// # Errors
/// There is no engine, or no busybox on this machine.
pub async fn python_image() -> Result<ImageId> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("no checkout")?;
    let mut list = Command::new("/usr/bin/python3");
    list.arg(root.join("tests/python/python_image.py"));
    load(&mut list, PYTHON_IMAGE).await
}

/// The output of `tests/python/llama_cpp_image.py`, of `tests/python/python_image.py` and of
/// `images/train/training_image.py`.
#[derive(Deserialize)]
struct Recipe {
    /// Where each file goes, and where it is.
    files: BTreeMap<String, PathBuf>,
    /// Those that are run.
    programs: Vec<String>,
    environment: Vec<String>,
    entrypoint: Vec<String>,
}

impl Recipe {
    fn content(self, tag: &str) -> Result<ImageContent> {
        let file = |(path, from): (String, PathBuf)| {
            let mode = if self.programs.contains(&path) {
                0o755
            } else {
                0o644
            };
            let contents = std::fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
            Ok(ImageFile { path, mode, contents })
        };
        Ok(ImageContent {
            tag: tag.to_owned(),
            files: self.files.into_iter().map(file).collect::<Result<_>>()?,
            entrypoint: self.entrypoint,
            environment: self.environment,
            ..ImageContent::default()
        })
    }
}
