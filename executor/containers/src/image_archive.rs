//! Container images without a registry: writes docker-archive files, and reads what an archive holds.
//!
//! The id of an image is the digest of its config document, so it is known before any engine has seen the image. The
//! bytes are a function of the content alone: the same program gives the same archive and the same id everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::Path;

use muster_protocol::{Digest, ImageId};
use serde::Deserialize;
use serde_json::json;
use tar::{EntryType, Header};

use crate::archive_forms::{ArchiveCompression, INDEX};

/// Upper bound on the size of one document inside an archive, in bytes.
pub(crate) const MAX_DOCUMENT: u64 = 4 * 1024 * 1024;
pub(crate) const MANIFEST: &str = "manifest.json";

/// An archive that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A path of [`ImageContent::files`] is relative, or has components such as `..`.
    #[error("image content: {0:?} is not an absolute path of plain components")]
    Path(String),
    /// The file cannot be read.
    #[error("image archive: it cannot be read")]
    Io(#[source] io::Error),
    /// The file is no tar archive.
    #[error("image archive: it is no tar archive as `docker save IMAGE > FILE` writes it")]
    NoTar,
    /// The file ends too early, or its content is not what was written.
    #[error("image archive: it is damaged or ends too early; write it again with `docker save IMAGE > FILE`")]
    Damaged,
    /// The path leads to a folder.
    #[error(
        "image archive: it is a folder; of an OCI layout, `tar -cf image.tar -C FOLDER .` makes an archive"
    )]
    Folder,
    /// The file is compressed.
    #[error("image archive: it is compressed by {name}; unpack it first: `{name} -dc FILE > image.tar`", name = .0.program())]
    Compressed(ArchiveCompression),
    /// An image in a form that engines of every version do not take.
    #[error(
        "image archive: it is an OCI layout; `muster job run --image-archive` takes it, and `skopeo copy \
         oci-archive:FILE docker-archive:image.tar` makes a docker-archive of it"
    )]
    OciLayout,
    /// The files of a container.
    #[error(
        "image archive: it holds the files of a container, as `docker export` writes them, and no image; `docker \
         import FILE NAME` makes an image of it, and `docker save NAME > image.tar` an archive"
    )]
    Filesystem,
    /// The tar archive lacks the documents of an image.
    #[error("image archive: {0}")]
    Malformed(String),
}

/// A file in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// Absolute path in the image.
    pub path: String,
    /// Permission bits, for example `0o755` for a program.
    pub mode: u32,
    /// The bytes of the file.
    pub contents: Vec<u8>,
}

/// The content of an image: static programs and texts in one layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageContent {
    /// The name that the image gets, for example `muster/hello:latest`.
    pub tag: String,
    /// The files. The folders above them are created.
    pub files: Vec<ImageFile>,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// The default arguments, which a job's own arguments replace.
    pub command: Vec<String>,
    /// Environment variables, each as `NAME=value`.
    pub environment: Vec<String>,
    /// The user that runs the program: empty for root, else `name` or `uid:gid`.
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
    /// The image's id, computed from its config document.
    pub id: ImageId,
    /// The tags that the archive's manifest gives the image.
    pub tags: Vec<String>,
    /// The operating system and the architecture that the image is for, as engines write them: `linux/amd64`; `None`
    /// if its config does not tell.
    pub platform: Option<String>,
}

// === impl ImageArchive ===

impl ImageArchive {
    /// Builds the archive for this machine's architecture.
    ///
    /// # Errors
    /// A path in `content` is relative or has components such as `..`.
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

/// The images in an archive on disk, each with the id computed from its config document.
///
/// # Errors
/// The file cannot be read, is compressed, or lacks the documents of an image.
pub fn list_images(path: &Path) -> Result<Vec<ArchivedImage>, ArchiveError> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(ArchiveError::Folder);
    }
    if let Some(compression) = ArchiveCompression::find(&mut &file)? {
        return Err(ArchiveError::Compressed(compression));
    }
    list_images_in(&file)
}

/// As [`list_images`], of an open file that is not compressed.
pub(crate) fn list_images_in(file: &File) -> Result<Vec<ArchivedImage>, ArchiveError> {
    let mut form = SeenEntries::default();
    let manifest = documents(file, |name| {
        form.note(name);
        name == MANIFEST
    })?;
    let manifest = manifest.get(MANIFEST).ok_or_else(|| form.without_manifest())?;
    let entries: Vec<ManifestEntry> = serde_json::from_slice(manifest)
        .map_err(|_| ArchiveError::Malformed("its manifest.json is no list of images".to_owned()))?;
    let configs = documents(file, |name| {
        entries.iter().any(|entry| plain_name(&entry.config) == name)
    })?;
    let image = |entry: ManifestEntry| {
        let config = configs.get(plain_name(&entry.config));
        let config =
            config.ok_or_else(|| ArchiveError::Malformed(format!("lacks {:?}", shown(&entry.config))))?;
        let platform: ConfigPlatform = serde_json::from_slice(config).unwrap_or_default();
        Ok(ArchivedImage {
            id: ImageId(Digest::of(config)),
            tags: entry.repo_tags.unwrap_or_default(),
            platform: platform.into_text(),
        })
    };
    entries.into_iter().map(image).collect()
}

/// The entries of a tar archive that tell its form.
#[derive(Default)]
struct SeenEntries {
    any: bool,
    oci: bool,
    filesystem: bool,
}

impl SeenEntries {
    fn note(&mut self, name: &str) {
        self.any = true;
        self.oci |= name == INDEX || name == "oci-layout";
        let top = name.split('/').next().unwrap_or_default();
        self.filesystem |= matches!(top, ".dockerenv" | "bin" | "etc" | "lib" | "usr" | "sbin" | "var");
    }

    /// The reason for which an archive without a manifest is refused.
    fn without_manifest(&self) -> ArchiveError {
        match self {
            Self { oci: true, .. } => ArchiveError::OciLayout,
            Self { filesystem: true, .. } => ArchiveError::Filesystem,
            Self { any: true, .. } => ArchiveError::Malformed(
                "it has no manifest.json; write it with `docker save IMAGE > FILE`".to_owned(),
            ),
            Self { any: false, .. } => ArchiveError::NoTar,
        }
    }
}

/// The part of an image's config that tells where it runs.
#[derive(Default, Deserialize)]
struct ConfigPlatform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
}

impl ConfigPlatform {
    fn into_text(self) -> Option<String> {
        let is_plain = |text: &str| {
            !text.is_empty() && text.len() <= 20 && text.bytes().all(|c| c.is_ascii_alphanumeric())
        };
        (is_plain(&self.os) && is_plain(&self.architecture))
            .then(|| format!("{}/{}", self.os, self.architecture))
    }
}

/// A name from an archive as a message may show it.
fn shown(name: &str) -> String {
    name.chars().filter(char::is_ascii_graphic).take(80).collect()
}

/// The name of an entry without the `./` in front of it that `tar` writes for the content of a folder.
fn plain_name(name: &str) -> &str {
    name.strip_prefix("./").unwrap_or(name)
}

/// The name of an entry of a tar archive.
pub(crate) fn entry_name(entry: &tar::Entry<'_, impl Read>) -> String {
    plain_name(&String::from_utf8_lossy(&entry.path_bytes())).to_owned()
}

impl From<io::Error> for ArchiveError {
    /// The tar library's own words repeat bytes of the file, so they are left out.
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, InvalidData, InvalidInput, Other, UnexpectedEof};
        let kind = error.kind();
        if error.raw_os_error().is_some() || kind == BrokenPipe {
            Self::Io(error)
        } else if [UnexpectedEof, Other, InvalidData, InvalidInput].contains(&kind) {
            Self::Damaged
        } else {
            Self::Io(kind.into())
        }
    }
}

/// Copies an archive without the names of its images. The other documents that name images (`repositories`, the index
/// of an OCI layout) are left out, and a link that could restore a name is refused.
///
/// # Errors
/// The input is no image archive, or it hides its names behind links.
pub(crate) fn without_tags(archive: impl Read, copy: impl io::Write) -> Result<(), ArchiveError> {
    let mut copy = tar::Builder::new(copy);
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let leaf = |name: &str| name.rsplit('/').find(|part| !part.is_empty()).map(str::to_owned);
        let names_images = |name: &str| {
            let leaf = leaf(name);
            leaf.as_deref()
                .is_some_and(|leaf| matches!(leaf, MANIFEST | "repositories" | "index.json" | "oci-layout"))
        };
        let kind = entry.header().entry_type();
        let target = entry
            .link_name_bytes()
            .map(|target| String::from_utf8_lossy(&target).into_owned());
        if kind.is_symlink() || kind.is_hard_link() {
            if names_images(&name) || target.as_deref().is_none_or(names_images) {
                return Err(ArchiveError::Malformed(format!(
                    "{:?} is a link to or in place of its names",
                    shown(&name)
                )));
            }
            copy.append(&entry.header().clone(), io::empty())?;
        } else if !names_images(&name) {
            let mut header = entry.header().clone();
            let path = entry.path()?.into_owned();
            copy.append_data(&mut header, path, &mut entry)?;
        } else if kind.is_file() && leaf(&name).as_deref() == Some(MANIFEST) {
            // The manifest is the only document with names that is copied.
            if entry.size() > MAX_DOCUMENT {
                return Err(ArchiveError::Malformed(format!(
                    "{MANIFEST} is larger than {MAX_DOCUMENT} bytes"
                )));
            }
            let mut bytes = Vec::new();
            entry.take(MAX_DOCUMENT).read_to_end(&mut bytes)?;
            append_file_to(&mut copy, &name, &untagged(&bytes)?)?;
        }
    }
    copy.into_inner()?.flush()?;
    Ok(())
}

/// A manifest with every `RepoTags` taken out.
fn untagged(manifest: &[u8]) -> Result<Vec<u8>, ArchiveError> {
    let unreadable = |_| ArchiveError::Malformed("its manifest.json is no list of images".to_owned());
    let mut entries: Vec<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_slice(manifest).map_err(unreadable)?;
    for entry in &mut entries {
        entry.retain(|key, _| !key.eq_ignore_ascii_case("RepoTags"));
    }
    serde_json::to_vec(&entries).map_err(unreadable)
}

pub(crate) fn append_file_to(
    tar: &mut tar::Builder<impl io::Write>,
    path: &str,
    contents: &[u8],
) -> Result<(), ArchiveError> {
    let mut header = header(EntryType::Regular, 0o644, contents.len() as u64);
    tar.append_data(&mut header, path, contents)?;
    Ok(())
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ManifestEntry {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
}

fn documents(
    mut file: &File,
    mut wanted: impl FnMut(&str) -> bool,
) -> Result<BTreeMap<String, Vec<u8>>, ArchiveError> {
    file.seek(SeekFrom::Start(0))?;
    let mut archive = tar::Archive::new(file);
    let mut found = BTreeMap::new();
    let mut is_first = true;
    for entry in archive.entries_with_seek()? {
        let entry = entry.map_err(|error| match (ArchiveError::from(error), is_first) {
            (ArchiveError::Damaged, true) => ArchiveError::NoTar,
            (error, _) => error,
        })?;
        is_first = false;
        let name = entry_name(&entry);
        if !wanted(&name) {
            continue;
        }
        if entry.size() > MAX_DOCUMENT {
            let name = shown(&name);
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

/// Owner root, time zero: an archive does not depend on the time, the machine or the user that wrote it.
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
    fn archive_lists_its_images() {
        let archive = ImageArchive::new(&content()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.tar");
        std::fs::write(&path, &archive.bytes).unwrap();
        let held = ArchivedImage {
            id: archive.id,
            tags: vec!["muster/test:1".into()],
            platform: Some("linux/amd64".into()),
        };
        assert_eq!(list_images(&path).unwrap(), [held]);
    }

    #[test]
    fn archive_without_tags_keeps_everything_else() {
        let archive = ImageArchive::new(&content()).unwrap();
        let mut tar = tar::Builder::new(Vec::new());
        let mut whole = tar::Archive::new(&archive.bytes[..]);
        for entry in whole.entries().unwrap() {
            let mut entry = entry.unwrap();
            let (mut header, path) = (entry.header().clone(), entry.path().unwrap().into_owned());
            tar.append_data(&mut header, path, &mut entry).unwrap();
        }
        // All other documents that name an image; a second manifest would override the first.
        for (path, text) in [
            ("repositories", "{\"helper\": {\"latest\": \"0\"}}"),
            (
                "./manifest.json",
                "[{\"Config\": \"c\", \"repotags\": [\"helper:1\"]}]",
            ),
            ("index.json", "{\"manifests\": []}"),
        ] {
            append_file(&mut tar, path, 0o644, text.as_bytes()).unwrap();
        }
        let mut copy = Vec::new();
        without_tags(&tar.into_inner().unwrap()[..], &mut copy).unwrap();
        let text = String::from_utf8_lossy(&copy);
        for name in [
            "muster/test:1",
            "helper",
            "RepoTags",
            "repotags",
            "repositories",
            "index.json",
        ] {
            assert!(!text.contains(name), "{name}");
        }
        assert!(text.contains("program") && text.contains(&archive.id.0.hex()));
    }

    #[test]
    fn a_link_that_could_name_an_image_is_refused() {
        for (path, target) in [
            ("x", "manifest.json"),
            ("./manifest.json", "x"),
            ("x", "../repositories/"),
        ] {
            let mut tar = tar::Builder::new(Vec::new());
            let mut header = header(EntryType::Symlink, 0o777, 0);
            tar.append_link(&mut header, path, target).unwrap();
            let error = without_tags(&tar.into_inner().unwrap()[..], Vec::new()).unwrap_err();
            assert!(error.to_string().contains("link"), "{error}");
        }
    }

    #[test]
    fn file_of_another_kind_is_no_archive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.tar");
        assert!(matches!(list_images(&path), Err(ArchiveError::Io(_))));
        for (bytes, words) in [
            (&b""[..], "no tar archive"),
            (b"hello", "no tar archive"),
            (
                &[0x1f, 0x8b, 8, 0],
                "compressed by gzip; unpack it first: `gzip -dc FILE > image.tar`",
            ),
            (&[7; 2048], "no tar archive"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = list_images(&path).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let mut tar = tar::Builder::new(Vec::new());
        append_file(&mut tar, MANIFEST, 0o644, b"[{\"Config\":\"gone.json\"}]").unwrap();
        std::fs::write(&path, tar.into_inner().unwrap()).unwrap();
        assert_eq!(
            list_images(&path).unwrap_err().to_string(),
            "image archive: lacks \"gone.json\""
        );
    }

    /// Damages the bytes one to four times: a flipped byte, a cut, a truncation or a repetition.
    fn damaged(mut bytes: Vec<u8>, injuries: &[(u8, u16, u8)]) -> Vec<u8> {
        for &(kind, place, value) in injuries {
            let at = usize::from(place) * bytes.len() / (usize::from(u16::MAX) + 1);
            let end = (at + usize::from(value)).min(bytes.len());
            match kind % 4 {
                0 if !bytes.is_empty() => bytes[at] = value,
                1 => drop(bytes.drain(at..end)),
                2 => bytes.truncate(at),
                _ => {
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
            }
        }
        bytes
    }

    proptest::proptest! {
        #[test]
        fn damaged_archives_are_read_or_refused(
            injuries in proptest::collection::vec(proptest::prelude::any::<(u8, u16, u8)>(), 1..5),
            long in proptest::prelude::any::<bool>(),
        ) {
            let mut content = content();
            if long {
                content.tag = "x".repeat(300);
                content.files[0].path = format!("/{}", ["y"; 120].join("/"));
            }
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("image.tar");
            std::fs::write(&path, damaged(ImageArchive::new(&content).unwrap().bytes, &injuries)).unwrap();
            if let Ok(images) = list_images(&path) {
                proptest::prop_assert!(images.len() <= 1);
            }
            proptest::prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn archive_refuses_paths_that_are_not_plain() {
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
