//! A user's inputs: read from the command line, packed into the request or put into the file store.

mod folder_walk;
pub(crate) mod standard_input;

use std::collections::BTreeSet;
use std::io::{Cursor, Seek, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use muster_protocol::relative_path::check_relative_path;
use muster_protocol::volume::{InlineVolume, SingleFileVolume, VolumePart, ZipUrlVolume};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use self::folder_walk::{FolderWalk, list_folder};

/// The most that travels inline; the request as a whole is bounded by the facilitator.
pub(crate) const MAX_INLINE_BYTES: u64 = 8 * 1024 * 1024;
/// More goes through the file store, where no option states otherwise.
pub(crate) const USUAL_INLINE_BYTES: u64 = 1024 * 1024;

/// One entry of the job's inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Input {
    /// The path under `/volume`.
    pub(crate) path: String,
    pub(crate) source: InputSource,
}

/// The content at an input's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InputSource {
    /// The contents of a file of this machine; it is executable there if it is so here.
    File(PathBuf),
    /// An empty folder.
    EmptyFolder,
}

/// The source that `--input` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// A file of this machine.
    File(Input),
    /// A folder of this machine.
    Folder {
        /// The path under `/volume`.
        path: String,
        inputs: Vec<Input>,
        /// Lines for the user about entries that are left out or sent as something else.
        notices: Vec<String>,
    },
    /// Something that the executor fetches.
    Url { path: String, url: String },
}

impl Input {
    fn file(path: String, file: PathBuf) -> Self {
        let source = InputSource::File(file);
        Self { path, source }
    }

    /// Its length in bytes.
    fn size(&self) -> anyhow::Result<u64> {
        match &self.source {
            InputSource::File(file) => std::fs::metadata(file)
                .map(|found| found.len())
                .with_context(|| format!("cannot read the input {}", file.display())),
            InputSource::EmptyFolder => Ok(0),
        }
    }

    /// Whether it is a file that its owner, its group or others may run.
    pub(crate) fn is_executable(&self) -> anyhow::Result<bool> {
        match &self.source {
            InputSource::File(file) => std::fs::metadata(file)
                .map(|found| found.permissions().mode() & 0o111 != 0)
                .with_context(|| format!("cannot read the input {}", file.display())),
            InputSource::EmptyFolder => Ok(false),
        }
    }
}

impl Named {
    /// Reads `PATH=FILE|FOLDER|URL`; folders are looked into.
    pub(crate) fn read(text: &str) -> anyhow::Result<Self> {
        let Some((path, what)) = text.split_once('=') else {
            if ["t", "td", "dt"].contains(&text) {
                bail!(
                    "no program gets a terminal here: `-i -` gives it standard input, and `-d` does not wait for it"
                );
            }
            bail!(
                "an input is PATH=FILE, PATH=FOLDER or PATH=URL, for example data/a.txt=./a.txt, got {text:?}"
            );
        };
        let path = path_below("/volume", path);
        let file = PathBuf::from(what);
        // Of a file, `NAME/` would be another place to some.
        let path = match path.strip_suffix('/') {
            Some(folder) if !is_url(what) && file.is_dir() => folder,
            Some(_) | None => path,
        };
        if let Err(reason) = check_relative_path(path) {
            let instead = match path.strip_prefix('/') {
                Some(below) => format!(": {below}={what} brings it to /volume/{below}"),
                None => String::new(),
            };
            bail!("the path of an input is relative to /volume, and {path:?} {reason}{instead}");
        }
        let path = path.to_owned();
        if is_url(what) {
            let url = what.to_owned();
            return Ok(Self::Url { path, url });
        }
        let found = std::fs::metadata(&file).with_context(|| format!("cannot read the input {what}"))?;
        if found.is_dir() {
            let walked = FolderWalk::read(&file, &path)?;
            return Ok(Self::Folder {
                path,
                inputs: walked.inputs,
                notices: walked.notices,
            });
        }
        if !found.is_file() {
            bail!("the input {what} is a pipe, a socket or a device: write its contents into a file first");
        }
        Ok(Self::File(Input::file(path, file)))
    }

    /// Bytes of this machine that it consists of.
    pub(crate) fn size(&self) -> anyhow::Result<u64> {
        match self {
            Self::File(input) => input.size(),
            Self::Folder { inputs, .. } => inputs.iter().map(Input::size).sum(),
            Self::Url { .. } => Ok(0),
        }
    }

    /// Lines for the user about entries that are left out or sent as something else.
    pub(crate) fn notices(&self) -> &[String] {
        match self {
            Self::Folder { notices, .. } => notices,
            Self::File(_) | Self::Url { .. } => &[],
        }
    }
}

/// A path that the user may have begun with `./`, or with the folder's own path in the container, as a path below that
/// folder. It is empty for the folder itself.
pub(crate) fn path_below<'a>(folder: &str, path: &'a str) -> &'a str {
    let mut below = match path.strip_prefix(folder) {
        Some("") => "",
        Some(rest) => rest.strip_prefix('/').unwrap_or(path),
        None => path,
    };
    while let Some(rest) = below.strip_prefix("./") {
        below = rest;
    }
    below
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

/// An archive that the executor fetches and unpacks into the folder `path`; into `/volume` itself without one.
pub(crate) fn unpacked(path: Option<String>, url: String) -> VolumePart {
    VolumePart::ZipUrl(ZipUrlVolume {
        contents: url,
        relative_path: path,
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

/// Packs inputs under their paths below `under`, with their executable bits. The same files make the same archive.
pub(crate) fn zip(inputs: &[Input], under: &str, to: impl Write + Seek, limit: u64) -> anyhow::Result<()> {
    let mut total = 0;
    let mut writer = ZipWriter::new(to);
    let mut names = BTreeSet::new();
    for input in inputs {
        let name = input.path.strip_prefix(under).unwrap_or(&input.path);
        let name = name.trim_start_matches('/');
        if !names.insert(name) {
            bail!(
                "two inputs have the path /volume/{}: give one of them another path",
                input.path
            );
        }
        match &input.source {
            // The folder that the archive is unpacked into is made anyway.
            InputSource::EmptyFolder if name.is_empty() => {}
            InputSource::EmptyFolder => writer.add_directory(name, SimpleFileOptions::default())?,
            InputSource::File(path) => {
                let cannot = || format!("cannot read the input {}", path.display());
                let mut file = std::fs::File::open(path).with_context(cannot)?;
                let found = file.metadata().with_context(cannot)?;
                total += found.len();
                if total > limit {
                    bail!("the inputs have more than {} MiB", limit >> 20);
                }
                let runs = found.permissions().mode() & 0o111 != 0;
                let options = SimpleFileOptions::default()
                    .unix_permissions(if runs { 0o755 } else { 0o644 })
                    .large_file(found.len() >= u64::from(u32::MAX));
                writer.start_file(name, options)?;
                std::io::copy(&mut file, &mut writer).with_context(cannot)?;
            }
        }
    }
    writer.finish()?;
    Ok(())
}

/// Every regular file of a folder (links are followed to files, folders are not entered), by name.
pub(crate) fn folder(folder: &Path, under: &str) -> anyhow::Result<Vec<Input>> {
    let mut inputs = Vec::new();
    for (name, path) in list_folder(folder)? {
        if let Some(name) = name.to_str()
            && std::fs::metadata(&path).is_ok_and(|found| found.is_file())
        {
            inputs.push(Input::file(format!("{under}/{name}"), path));
        }
    }
    Ok(inputs)
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
        assert_eq!(named.size().unwrap(), 1);
        assert_eq!(named, Named::File(Input::file("data/a.txt".to_owned(), file)));
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
            "a=/dev/null",
        ] {
            assert!(Named::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_input_may_be_named_as_a_shell_or_the_container_would() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.txt");
        std::fs::write(&file, "x").unwrap();
        let read = |path: &str, what: &Path| match Named::read(&format!("{path}={}", what.display())) {
            Ok(Named::File(Input { path, .. }) | Named::Folder { path, .. } | Named::Url { path, .. }) => {
                path
            }
            Err(error) => error.to_string(),
        };
        for path in ["./data/a.txt", "/volume/data/a.txt", "/volume/./data/a.txt"] {
            assert_eq!(read(path, &file), "data/a.txt", "{path}");
        }
        for path in ["data/", "./data/", "/volume/data/"] {
            assert_eq!(read(path, dir.path()), "data", "{path}");
        }
        for (path, what) in [
            ("data/", file.as_path()),
            ("/volume", dir.path()),
            ("./", dir.path()),
        ] {
            assert!(read(path, what).contains("relative to /volume"), "{path}");
        }
    }

    #[test]
    fn two_inputs_of_one_path_are_refused_by_that_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        std::fs::write(&file, "x").unwrap();
        let input = Input::file("data/a".to_owned(), file);
        let refused = pack(&[input.clone(), input]).unwrap_err();
        assert!(
            format!("{refused:#}").contains("two inputs have the path /volume/data/a"),
            "{refused:#}"
        );
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

        let Named::Folder { path, inputs, .. } = Named::read(&format!("t={}", dir.path().display())).unwrap()
        else {
            panic!("no folder")
        };
        let packed = || {
            let mut to = Cursor::new(Vec::new());
            super::zip(&inputs, &path, &mut to, 100).unwrap();
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
        assert!(super::zip(&inputs, &path, Cursor::new(Vec::new()), 2).is_err());
    }
    #[test]
    fn an_archive_has_executable_bits_and_empty_folders() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (name, mode) in [("run.sh", 0o700), ("data", 0o664)] {
            std::fs::write(at(name), name).unwrap();
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        std::fs::create_dir(at("empty")).unwrap();
        let named = Named::read(&format!("t={}", dir.path().display())).unwrap();
        let Named::Folder { inputs, .. } = named else {
            panic!("no folder")
        };
        let mut to = Cursor::new(Vec::new());
        super::zip(&inputs, "", &mut to, 100).unwrap();
        let mut archive = zip::ZipArchive::new(to).unwrap();
        let mut mode = |name: &str| archive.by_name(name).unwrap().unix_mode().unwrap();
        assert_eq!(mode("t/run.sh") & 0o7777, 0o755);
        assert_eq!(mode("t/data") & 0o7777, 0o644);
        assert_eq!(mode("t/empty/") & 0o170_000, 0o040_000);
    }
}
