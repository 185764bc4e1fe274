//! A user's inputs: read from the command line, packed into the request or put into the file store.

use std::io::{Cursor, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use muster_protocol::volume::{InlineVolume, SingleFileVolume, VolumePart, ZipUrlVolume};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// The most that travels inline; the request as a whole is bounded by the facilitator.
pub(crate) const MAX_INLINE_BYTES: u64 = 8 * 1024 * 1024;
/// More goes through the file store, where no option states otherwise.
pub(crate) const USUAL_INLINE_BYTES: u64 = 1024 * 1024;
/// A folder with more in it is packed better by hand.
const MAX_ENTRIES: usize = 100_000;
const MAX_DEPTH: usize = 64;

/// One file: its path under `/volume`, and where it is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Input {
    pub(crate) path: String,
    pub(crate) file: PathBuf,
}

/// The source that `--input` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// A file of this machine.
    File(Input),
    /// A folder of this machine: its path under `/volume`, and the files in it with theirs.
    Folder(String, Vec<Input>),
    /// Something that the executor fetches.
    Url { path: String, url: String },
}

impl Named {
    /// Reads `PATH=FILE|FOLDER|URL`; folders are looked into.
    pub(crate) fn read(text: &str) -> anyhow::Result<Self> {
        let Some((path, what)) = text.split_once('=') else {
            bail!(
                "an input is PATH=FILE, PATH=FOLDER or PATH=URL, for example data/a.txt=./a.txt, got {text:?}"
            );
        };
        if !is_plain(path) {
            bail!("the path of an input is relative to /volume and has no `.` or `..`, got {path:?}");
        }
        let path = path.to_owned();
        if is_url(what) {
            let url = what.to_owned();
            return Ok(Self::Url { path, url });
        }
        let file = PathBuf::from(what);
        let found = std::fs::metadata(&file).with_context(|| format!("cannot read the input {what}"))?;
        if found.is_dir() {
            let mut files = Vec::new();
            tree(&file, &path, MAX_DEPTH, &mut files)?;
            return Ok(Self::Folder(path, files));
        }
        Ok(Self::File(Input { path, file }))
    }

    /// Bytes of this machine that it consists of.
    pub(crate) fn size(&self) -> anyhow::Result<u64> {
        let size = |input: &Input| {
            let found = std::fs::metadata(&input.file);
            found
                .map(|found| found.len())
                .with_context(|| format!("cannot read the input {}", input.file.display()))
        };
        match self {
            Self::File(input) => size(input),
            Self::Folder(_, inputs) => inputs.iter().map(size).sum(),
            Self::Url { .. } => Ok(0),
        }
    }
}

/// Whether a path stays where it is put.
pub(crate) fn is_plain(path: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    !path.is_empty() && path.split('/').all(plain) && !path.contains('\\')
}

/// Whether a text is an address of the web.
pub(crate) fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// A volume that the executor fetches.
pub(crate) fn fetched(path: String, url: String) -> VolumePart {
    VolumePart::SingleFile(SingleFileVolume {
        url,
        relative_path: path,
    })
}

/// An archive that the executor fetches and unpacks.
pub(crate) fn unpacked(path: String, url: String) -> VolumePart {
    VolumePart::ZipUrl(ZipUrlVolume {
        contents: url,
        relative_path: Some(path),
    })
}

/// Packs the inputs into the request itself; `None` where there are none.
pub(crate) fn pack(inputs: &[Input]) -> anyhow::Result<Option<VolumePart>> {
    if inputs.is_empty() {
        return Ok(None);
    }
    let mut packed = Cursor::new(Vec::new());
    zip(inputs, "", &mut packed, MAX_INLINE_BYTES).context(
        "inputs inside a request are bounded: leave --via out, and larger inputs go through the file store",
    )?;
    let contents = base64::engine::general_purpose::STANDARD.encode(packed.into_inner());
    Ok(Some(VolumePart::Inline(InlineVolume {
        contents,
        relative_path: None,
    })))
}

/// Packs a folder's files under their paths below `under`. The same files make the same archive.
pub(crate) fn zip(inputs: &[Input], under: &str, to: impl Write + Seek, limit: u64) -> anyhow::Result<()> {
    let mut total = 0;
    let mut writer = ZipWriter::new(to);
    for input in inputs {
        let cannot = || format!("cannot read the input {}", input.file.display());
        let mut file = std::fs::File::open(&input.file).with_context(cannot)?;
        let len = file.metadata().with_context(cannot)?.len();
        total += len;
        if total > limit {
            bail!("the inputs have more than {} MiB", limit >> 20);
        }
        let name = input.path.strip_prefix(under).unwrap_or(&input.path);
        let options = SimpleFileOptions::default().large_file(len >= u64::from(u32::MAX));
        writer.start_file(name.trim_start_matches('/'), options)?;
        std::io::copy(&mut file, &mut writer).with_context(cannot)?;
    }
    writer.finish()?;
    Ok(())
}

/// Every regular file of a folder (links are followed to files, folders are not entered), by name.
pub(crate) fn folder(folder: &Path, under: &str) -> anyhow::Result<Vec<Input>> {
    let mut inputs = Vec::new();
    for (name, path) in entries(folder)? {
        if std::fs::metadata(&path).is_ok_and(|found| found.is_file()) {
            inputs.push(Input {
                path: format!("{under}/{name}"),
                file: path,
            });
        }
    }
    Ok(inputs)
}

/// Every regular file below a folder, by name; links to folders are not entered, so that there is an end.
fn tree(folder: &Path, under: &str, depth: usize, into: &mut Vec<Input>) -> anyhow::Result<()> {
    if depth == 0 {
        bail!("{} lies more than {MAX_DEPTH} folders deep", folder.display());
    }
    for (name, path) in entries(folder)? {
        let under = format!("{under}/{name}");
        let own =
            std::fs::symlink_metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if own.is_dir() {
            tree(&path, &under, depth - 1, into)?;
        } else if std::fs::metadata(&path).is_ok_and(|found| found.is_file()) {
            into.push(Input {
                path: under,
                file: path,
            });
        }
        if into.len() > MAX_ENTRIES {
            bail!("a folder of more than {MAX_ENTRIES} files: pack it into an archive");
        }
    }
    Ok(())
}

/// The entries of a folder, by name.
fn entries(folder: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let cannot = || format!("cannot list {}", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_names_a_path_that_stays_inside() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a=b.txt");
        std::fs::write(&file, "x").unwrap();
        let named = Named::read(&format!("data/a.txt={}", file.display())).unwrap();
        let path = "data/a.txt".to_owned();
        assert_eq!(named.size().unwrap(), 1);
        assert_eq!(named, Named::File(Input { path, file }));
        let url = Named::read("a.bin=https://host/a.bin?x=1").unwrap();
        assert_eq!(
            url,
            Named::Url {
                path: "a.bin".to_owned(),
                url: "https://host/a.bin?x=1".to_owned()
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
            "a=/nonexistent/x",
        ] {
            assert!(Named::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_folder_is_packed_by_name_and_always_the_same_way() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b", "a"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/c"), "c").unwrap();
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

        let Named::Folder(under, inputs) = Named::read(&format!("t={}", dir.path().display())).unwrap()
        else {
            panic!("no folder")
        };
        let packed = || {
            let mut to = Cursor::new(Vec::new());
            super::zip(&inputs, &under, &mut to, 100).unwrap();
            to.into_inner()
        };
        let archive = zip::ZipArchive::new(Cursor::new(packed())).unwrap();
        let mut names: Vec<String> = archive
            .file_names()
            .map(|name| name.unwrap().into_owned())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["a", "b", "sub/c"]);
        assert_eq!(packed(), packed());
        assert!(super::zip(&inputs, &under, Cursor::new(Vec::new()), 2).is_err());
    }
}
