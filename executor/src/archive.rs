//! Container images without a registry: writes docker-archive files, and reads what an archive holds.
//!
//! The id of an image is the digest of its config document, so it is known before any engine has seen the image. The
//! bytes are a function of the content alone: the same program gives the same archive and the same id everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;

use muster_protocol::{Digest, ImageId};
use serde::Deserialize;
use serde_json::json;
use tar::{EntryType, Header};

/// No document inside an archive is larger than this.
const MAX_DOCUMENT: u64 = 4 * 1024 * 1024;
const MANIFEST: &str = "manifest.json";

/// An archive that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A path that cannot stand in an image.
    #[error("image content: {0:?} is not an absolute path of plain components")]
    Path(String),
    /// Reading failed, or it is no tar archive.
    #[error("image archive: cannot be read; is it an uncompressed tar as `docker save` writes it?")]
    Io(#[from] io::Error),
    /// A tar archive without the documents of an image.
    #[error("image archive: {0}")]
    Malformed(String),
}

/// A file of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// Absolute path in the image.
    pub path: String,
    /// Permission bits, for example `0o755` for a program.
    pub mode: u32,
    /// Its content.
    pub contents: Vec<u8>,
}

/// What goes into an image: static programs and texts, one layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageContent {
    /// The name it will have, for example `muster/hello:latest`.
    pub tag: String,
    /// Its files; folders above them are made.
    pub files: Vec<ImageFile>,
    /// Program and first arguments.
    pub entrypoint: Vec<String>,
    /// Arguments where a job gives none.
    pub command: Vec<String>,
    /// `NAME=value`.
    pub environment: Vec<String>,
    /// Who runs it: empty for root, else `name` or `uid:gid`.
    pub user: String,
}

/// A finished archive, ready to be loaded or saved.
#[derive(Clone, PartialEq, Eq)]
pub struct ImageArchive {
    /// The id that every engine will give the image.
    pub id: ImageId,
    /// The docker-archive tar.
    pub bytes: Vec<u8>,
}

/// An image inside an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedImage {
    /// Its id, computed from its config here.
    pub id: ImageId,
    /// Its names.
    pub tags: Vec<String>,
}

// === impl ImageArchive ===

impl ImageArchive {
    /// Writes the archive for this machine's architecture.
    ///
    /// # Errors
    /// A path in `content` that is not absolute or not plain.
    pub fn new(content: &ImageContent) -> Result<Self, ArchiveError> {
        let layer = write_layer(&content.files)?;
        let diff_id = Digest::of(&layer);
        let config = config_document(content, diff_id);
        let id = ImageId(Digest::of(config.as_bytes()));
        let config_name = format!("{}.json", id.0.hex());
        let layer_name = format!("{}/layer.tar", diff_id.hex());
        let manifest =
            json!([{"Config": config_name, "RepoTags": [content.tag], "Layers": [layer_name]}]).to_string();

        let mut tar = tar::Builder::new(Vec::new());
        append_file(&mut tar, &config_name, 0o644, config.as_bytes())?;
        append_file(&mut tar, &layer_name, 0o644, &layer)?;
        append_file(&mut tar, MANIFEST, 0o644, manifest.as_bytes())?;
        let bytes = tar.into_inner()?;
        Ok(Self { id, bytes })
    }
}

impl std::fmt::Debug for ImageArchive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageArchive")
            .field("id", &self.id)
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

/// The images in an archive on disk, each with the id its own config gives it.
///
/// # Errors
/// A file that cannot be read, is compressed, or lacks the documents of an image.
pub fn images_in(path: &Path) -> Result<Vec<ArchivedImage>, ArchiveError> {
    let manifest = documents(path, |name| name == MANIFEST)?;
    let manifest = manifest
        .get(MANIFEST)
        .ok_or_else(|| ArchiveError::Malformed("has no manifest.json".into()))?;
    let entries: Vec<ManifestEntry> = serde_json::from_slice(manifest)
        .map_err(|error| ArchiveError::Malformed(format!("its manifest.json cannot be read: {error}")))?;
    let configs = documents(path, |name| entries.iter().any(|entry| entry.config == name))?;
    let image = |entry: ManifestEntry| {
        let config = configs.get(&entry.config);
        let config = config.ok_or_else(|| ArchiveError::Malformed(format!("lacks {:?}", entry.config)))?;
        Ok(ArchivedImage {
            id: ImageId(Digest::of(config)),
            tags: entry.repo_tags.unwrap_or_default(),
        })
    };
    entries.into_iter().map(image).collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ManifestEntry {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
}

fn documents(path: &Path, wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<String, Vec<u8>>, ArchiveError> {
    let mut archive = tar::Archive::new(std::fs::File::open(path)?);
    let mut found = BTreeMap::new();
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if !wanted(&name) {
            continue;
        }
        if entry.size() > MAX_DOCUMENT {
            return Err(ArchiveError::Malformed(format!(
                "{name:?} is larger than {MAX_DOCUMENT} bytes"
            )));
        }
        let mut bytes = Vec::new();
        entry.take(MAX_DOCUMENT).read_to_end(&mut bytes)?;
        found.insert(name, bytes);
    }
    Ok(found)
}

fn write_layer(files: &[ImageFile]) -> Result<Vec<u8>, ArchiveError> {
    let mut sorted: Vec<(&str, &ImageFile)> = Vec::new();
    let mut folders = BTreeSet::new();
    for file in files {
        let path = plain(&file.path)?;
        folders.extend(path.match_indices('/').filter_map(|(at, _)| path.get(..at)));
        sorted.push((path, file));
    }
    sorted.sort_by_key(|(path, _)| *path);

    let mut tar = tar::Builder::new(Vec::new());
    for folder in folders {
        let mut header = header(EntryType::Directory, 0o755, 0);
        tar.append_data(&mut header, format!("{folder}/"), io::empty())?;
    }
    for (path, file) in sorted {
        append_file(&mut tar, path, file.mode, &file.contents)?;
    }
    Ok(tar.into_inner()?)
}

/// The path without its leading slash, if every component is an ordinary name.
fn plain(path: &str) -> Result<&str, ArchiveError> {
    let refused = || ArchiveError::Path(path.to_owned());
    let relative = path.strip_prefix('/').ok_or_else(refused)?;
    let ordinary = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
    if relative.split('/').all(ordinary) {
        Ok(relative)
    } else {
        Err(refused())
    }
}

fn append_file(
    tar: &mut tar::Builder<Vec<u8>>,
    path: &str,
    mode: u32,
    contents: &[u8],
) -> Result<(), ArchiveError> {
    let mut header = header(EntryType::Regular, mode, contents.len() as u64);
    tar.append_data(&mut header, path, contents)?;
    Ok(())
}

/// Owner root, time zero: nothing in an archive depends on when, where or by whom it was written.
fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn config_document(content: &ImageContent, diff_id: Digest) -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "architecture": architecture,
        "config": {
            "User": content.user,
            "Env": content.environment,
            "Entrypoint": content.entrypoint,
            "Cmd": content.command,
            "WorkingDir": "/",
        },
        "created": "1970-01-01T00:00:00Z",
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "muster"}],
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content() -> ImageContent {
        ImageContent {
            tag: "muster/test:1".into(),
            files: vec![
                ImageFile {
                    path: "/usr/bin/b".into(),
                    mode: 0o755,
                    contents: b"program".to_vec(),
                },
                ImageFile {
                    path: "/etc/a".into(),
                    mode: 0o644,
                    contents: b"text".to_vec(),
                },
            ],
            entrypoint: vec!["/usr/bin/b".into()],
            ..ImageContent::default()
        }
    }

    #[test]
    fn the_same_content_gives_the_same_bytes_in_any_order() {
        let first = ImageArchive::new(&content()).unwrap();
        let mut reordered = content();
        reordered.files.reverse();
        assert_eq!(ImageArchive::new(&reordered).unwrap(), first);
        let mut other = content();
        other.files[0].contents.push(0);
        assert_ne!(ImageArchive::new(&other).unwrap().id, first.id);
    }

    #[test]
    fn an_archive_tells_what_is_in_it() {
        let archive = ImageArchive::new(&content()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.tar");
        std::fs::write(&path, &archive.bytes).unwrap();
        let held = ArchivedImage {
            id: archive.id,
            tags: vec!["muster/test:1".into()],
        };
        assert_eq!(images_in(&path).unwrap(), [held]);
    }

    #[test]
    fn other_files_are_not_archives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.tar");
        assert!(matches!(images_in(&path), Err(ArchiveError::Io(_))));
        for bytes in [&b""[..], b"hello", &[0x1f, 0x8b, 8, 0], &[7; 2048]] {
            std::fs::write(&path, bytes).unwrap();
            images_in(&path).unwrap_err();
        }
        let mut tar = tar::Builder::new(Vec::new());
        append_file(&mut tar, MANIFEST, 0o644, b"[{\"Config\":\"gone.json\"}]").unwrap();
        std::fs::write(&path, tar.into_inner().unwrap()).unwrap();
        assert_eq!(
            images_in(&path).unwrap_err().to_string(),
            "image archive: lacks \"gone.json\""
        );
    }

    #[test]
    fn damaged_archives_are_read_or_refused() {
        let mut second = content();
        second.tag = "x".repeat(300);
        second.files[0].path = format!("/{}", ["y"; 120].join("/"));
        let samples = [
            ImageArchive::new(&content()).unwrap().bytes,
            ImageArchive::new(&second).unwrap().bytes,
        ];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.tar");
        let mut mutator = crate::mutation::Mutator::seeded(2);
        let mut read = 0;
        for _ in 0..1_500 {
            std::fs::write(&path, mutator.next_from(&samples)).unwrap();
            read += usize::from(images_in(&path).is_ok());
        }
        assert!(
            (1..1_500).contains(&read),
            "{read}: the damage is of one kind only"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn odd_paths_are_refused() {
        for bad in ["", "relative", "/", "/a/../b", "/a//b", "/./a", "/a\0"] {
            let mut content = content();
            content.files[0].path = bad.into();
            assert!(
                matches!(ImageArchive::new(&content), Err(ArchiveError::Path(_))),
                "{bad:?}"
            );
        }
    }
}
