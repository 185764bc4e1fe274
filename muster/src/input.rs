//! A user's files as an inline volume: a zip archive inside the request itself.

use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use muster_protocol::volume::{InlineVolume, VolumePart};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// The most that travels inline; the request as a whole is bounded by the facilitator.
const MAX_INLINE_BYTES: u64 = 8 * 1024 * 1024;

/// One file: its path under `/volume`, and where it is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Input {
    pub(crate) path: String,
    pub(crate) file: PathBuf,
}

impl std::str::FromStr for Input {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let Some((path, file)) = text.split_once('=') else {
            bail!("an input is PATH=FILE, for example data/a.txt=./a.txt, got {text:?}");
        };
        let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        if path.is_empty() || !path.split('/').all(plain) || path.contains('\\') {
            bail!("the path of an input is relative to /volume and has no `.` or `..`, got {path:?}");
        }
        Ok(Self {
            path: path.to_owned(),
            file: file.into(),
        })
    }
}

/// Packs the inputs; `None` where there are none.
pub(crate) fn pack(inputs: &[Input]) -> anyhow::Result<Option<VolumePart>> {
    if inputs.is_empty() {
        return Ok(None);
    }
    let mut total = 0;
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for input in inputs {
        let bytes = std::fs::read(&input.file)
            .with_context(|| format!("cannot read the input {}", input.file.display()))?;
        total += bytes.len() as u64;
        if total > MAX_INLINE_BYTES {
            bail!(
                "the inputs are larger than {} MiB, the most that travels inside a request",
                MAX_INLINE_BYTES >> 20
            );
        }
        writer.start_file(&input.path, SimpleFileOptions::default())?;
        writer.write_all(&bytes)?;
    }
    let archive = writer.finish()?.into_inner();
    let contents = base64::engine::general_purpose::STANDARD.encode(archive);
    Ok(Some(VolumePart::Inline(InlineVolume {
        contents,
        relative_path: None,
    })))
}

/// Every regular file of a folder (links are followed to files, folders are not entered), by name.
pub(crate) fn folder(folder: &Path, under: &str) -> anyhow::Result<Vec<Input>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut inputs = Vec::new();
    for entry in entries {
        let entry = entry?;
        if std::fs::metadata(entry.path()).is_ok_and(|meta| meta.is_file()) {
            let name = entry.file_name().to_string_lossy().into_owned();
            inputs.push(Input {
                path: format!("{under}/{name}"),
                file: entry.path(),
            });
        }
    }
    inputs.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_names_a_path_that_stays_inside() {
        let input: Input = "data/a.txt=/tmp/a=b.txt".parse().unwrap();
        assert_eq!(
            input,
            Input {
                path: "data/a.txt".into(),
                file: "/tmp/a=b.txt".into()
            }
        );
        for bad in [
            "",
            "a.txt",
            "=x",
            "/etc/passwd=x",
            "../x=x",
            "a//b=x",
            "a/./b=x",
            "a\\b=x",
        ] {
            assert!(bad.parse::<Input>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_folder_is_packed_by_name() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b", "a"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let inputs = folder(dir.path(), "texts").unwrap();
        assert_eq!(
            inputs.iter().map(|i| i.path.as_str()).collect::<Vec<_>>(),
            ["texts/a", "texts/b"]
        );
        let Some(VolumePart::Inline(volume)) = pack(&inputs).unwrap() else {
            panic!("no volume")
        };
        let archive = base64::engine::general_purpose::STANDARD
            .decode(volume.contents)
            .unwrap();
        assert_eq!(zip::ZipArchive::new(Cursor::new(archive)).unwrap().len(), 2);
        assert_eq!(pack(&[]).unwrap(), None);
    }
}
