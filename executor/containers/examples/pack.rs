//! Packs static programs and texts into an image that any Docker engine loads, without a registry or an engine:
//!
//! ```sh
//! cargo run -p muster-containers --example pack -- TAG OUT.tar /path/in/image=FILE [/other=FILE ...] [-- ARGUMENT ...]
//! ```
//!
//! The first file is the program. The others (a loader, for example) are executable if they are executable on disk.
//! The arguments after `--` are the program's default arguments, which a job's own arguments replace. Prints the
//! image's id, which depends on the content alone.
#![expect(clippy::print_stdout, reason = "the id is what was asked for")]

use anyhow::{Context as _, bail};
use muster_containers::{ImageArchive, ImageContent, ImageFile};

fn main() -> anyhow::Result<()> {
    println!("{}", pack(std::env::args().skip(1))?);
    Ok(())
}

/// Writes the archive that the arguments describe and returns the image's id.
///
/// # Errors
/// The arguments describe no image, or a file cannot be read or written.
pub(crate) fn pack(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<String> {
    let (Some(tag), Some(out)) = (arguments.next(), arguments.next()) else {
        bail!("usage: pack TAG OUT.tar /path/in/image=FILE [...] [-- ARGUMENT ...]");
    };
    let mut files = Vec::new();
    for argument in arguments.by_ref() {
        if argument == "--" {
            break;
        }
        let (path, file) = argument
            .split_once('=')
            .with_context(|| format!("{argument:?} is not /path/in/image=FILE"))?;
        files.push(ImageFile {
            path: path.to_owned(),
            mode: if files.is_empty() || executable(file)? {
                0o755
            } else {
                0o644
            },
            contents: std::fs::read(file).with_context(|| format!("read {file}"))?,
        });
    }
    let program = files.first().context("an image has a program")?.path.clone();
    let archive = ImageArchive::new(&ImageContent {
        tag,
        files,
        entrypoint: vec![program],
        command: arguments.collect(),
        ..ImageContent::default()
    })?;
    std::fs::write(&out, &archive.bytes).with_context(|| format!("write {out}"))?;
    Ok(archive.id.to_string())
}

fn executable(file: &str) -> anyhow::Result<bool> {
    use std::os::unix::fs::PermissionsExt as _;
    let metadata = std::fs::metadata(file).with_context(|| format!("look at {file}"))?;
    Ok(metadata.permissions().mode() & 0o111 != 0)
}
