//! The forms in which programs write images to files, and a docker-archive made of each.
//!
//! An executor takes docker-archives alone ([`crate::image_archive`]). A user's archive may be compressed
//! (`docker save IMAGE | gzip`), or an OCI layout (`docker buildx build --output type=oci`, `skopeo`): both are
//! rewritten before they are sent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use muster_protocol::Digest;
use ruzstd::decoding::StreamingDecoder;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::image_archive::{
    ArchiveError, ArchivedImage, MANIFEST, MAX_DOCUMENT, append_file_to, entry_name, list_images,
    list_images_in,
};

/// The document that an OCI layout begins with.
pub(crate) const INDEX: &str = "index.json";

/// Indexes within indexes that are followed.
const MAX_DEPTH: usize = 4;

/// A compression by which an archive may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveCompression {
    /// By `gzip`, whose file may have several members.
    Gzip,
    /// By `zstd`, whose file may have several frames.
    Zstd,
    /// By `bzip2`, which is named and not taken.
    Bzip2,
    /// By `xz`, which is named and not taken.
    Xz,
    /// By `lz4`, which is named and not taken.
    Lz4,
}

/// A docker-archive that an executor takes.
#[derive(Debug)]
pub struct PreparedArchive {
    /// The images in it.
    pub images: Vec<ArchivedImage>,
    file: ArchiveFile,
}

#[derive(Debug)]
enum ArchiveFile {
    /// The file that was named.
    Given(PathBuf),
    /// A file without a name, which ends with this value.
    Rewritten(File),
}

// === impl PreparedArchive ===

impl PreparedArchive {
    /// A path at which this process reads the archive.
    pub fn path(&self) -> PathBuf {
        match &self.file {
            ArchiveFile::Given(path) => path.clone(),
            ArchiveFile::Rewritten(file) => format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
        }
    }
}

/// Makes an archive ready to be sent: as it is if it is a docker-archive, else rewritten to a temporary file in its
/// folder, or among the temporary files where that cannot be written. Blocks.
///
/// # Errors
/// The file holds no image in a form that is known, or cannot be read or rewritten.
pub fn prepare_archive(path: &Path) -> Result<PreparedArchive, ArchiveError> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(ArchiveError::Folder);
    }
    let unpacked = match ArchiveCompression::find(&mut &file)? {
        None => None,
        Some(ArchiveCompression::Gzip) => Some(unpack(path, MultiGzDecoder::new(BufReader::new(&file)))?),
        Some(ArchiveCompression::Zstd) => Some(unpack(path, ZstdFrames::new(BufReader::new(&file)))?),
        Some(other @ (ArchiveCompression::Bzip2 | ArchiveCompression::Xz | ArchiveCompression::Lz4)) => {
            return Err(ArchiveError::Compressed(other));
        }
    };
    let plain = unpacked.as_ref().unwrap_or(&file);
    match list_images_in(plain) {
        Ok(images) => Ok(PreparedArchive {
            images,
            file: unpacked.map_or_else(|| ArchiveFile::Given(path.to_owned()), ArchiveFile::Rewritten),
        }),
        Err(ArchiveError::OciLayout) => {
            let rewritten = ArchiveFile::Rewritten(OciLayout::open(plain)?.rewrite(path)?);
            let mut prepared = PreparedArchive {
                images: Vec::new(),
                file: rewritten,
            };
            prepared.images = list_images(&prepared.path())?;
            Ok(prepared)
        }
        Err(error) => Err(error),
    }
}

/// A temporary file without a name: it ends with the process, however that ends.
fn temporary_beside(path: &Path) -> io::Result<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    tempfile::tempfile_in(folder.unwrap_or(Path::new("."))).or_else(|_| tempfile::tempfile())
}

fn unpack(path: &Path, mut packed: impl Read) -> Result<File, ArchiveError> {
    let mut plain = BufWriter::new(temporary_beside(path)?);
    io::copy(&mut packed, &mut plain).map_err(|error| match error.raw_os_error() {
        Some(_) => ArchiveError::from(error),
        None => ArchiveError::Damaged,
    })?;
    Ok(plain.into_inner().map_err(io::IntoInnerError::into_error)?)
}

// === impl ArchiveCompression ===

impl ArchiveCompression {
    /// The compression of a file by its first bytes; `None` for a plain one. The file is at its beginning afterwards.
    pub(crate) fn find(file: &mut &File) -> io::Result<Option<Self>> {
        let mut head = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.take(6).read_to_end(&mut head)?;
        file.seek(SeekFrom::Start(0))?;
        let signs: [(&[u8], Self); 5] = [
            (&[0x1f, 0x8b], Self::Gzip),
            (&[0x28, 0xb5, 0x2f, 0xfd], Self::Zstd),
            (b"BZh", Self::Bzip2),
            (&[0xfd, b'7', b'z', b'X', b'Z', 0], Self::Xz),
            (&[0x04, 0x22, 0x4d, 0x18], Self::Lz4),
        ];
        let found = signs.into_iter().find(|(sign, _)| head.starts_with(sign));
        Ok(found.map(|(_, compression)| compression))
    }

    /// The name of the program.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Bzip2 => "bzip2",
            Self::Xz => "xz",
            Self::Lz4 => "lz4",
        }
    }
}

/// The content of all frames of a file that `zstd` wrote.
struct ZstdFrames<R: Read> {
    frame: Option<Box<StreamingDecoder<io::BufReader<R>, ruzstd::decoding::FrameDecoder>>>,
    rest: Option<io::BufReader<R>>,
}

impl<R: Read> ZstdFrames<R> {
    fn new(packed: R) -> Self {
        Self {
            frame: None,
            rest: Some(BufReader::new(packed)),
        }
    }
}

impl<R: Read> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        use io::BufRead as _;
        loop {
            if let Some(frame) = &mut self.frame {
                let read = frame.read(buffer)?;
                if read > 0 || buffer.is_empty() {
                    return Ok(read);
                }
                self.rest = self.frame.take().map(|frame| frame.into_inner());
            }
            let Some(mut rest) = self.rest.take() else {
                return Ok(0);
            };
            if rest.fill_buf()?.is_empty() {
                return Ok(0);
            }
            let frame = StreamingDecoder::new(rest).map_err(|_| io::ErrorKind::InvalidData)?;
            self.frame = Some(Box::new(frame));
        }
    }
}

/// A file of a tar archive.
#[derive(Clone, Copy, Debug)]
struct Extent {
    begin: u64,
    length: u64,
}

/// An OCI layout within a tar archive.
struct OciLayout<'a> {
    file: &'a File,
    entries: BTreeMap<String, Extent>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: Digest,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Deserialize, PartialEq, Eq)]
struct Platform {
    os: String,
    architecture: String,
}

#[derive(Deserialize)]
struct OciIndex {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct OciManifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

// === impl OciLayout ===

impl<'a> OciLayout<'a> {
    fn open(mut file: &'a File) -> Result<Self, ArchiveError> {
        file.seek(SeekFrom::Start(0))?;
        let mut entries = BTreeMap::new();
        let mut archive = tar::Archive::new(file);
        for entry in archive.entries_with_seek()? {
            let entry = entry?;
            let extent = Extent {
                begin: entry.raw_file_position(),
                length: entry.size(),
            };
            if entry.header().entry_type().is_file() {
                entries.insert(entry_name(&entry), extent);
            }
        }
        Ok(Self { file, entries })
    }

    fn reader(&self, extent: Extent) -> io::Result<impl Read + '_> {
        let mut file = self.file;
        file.seek(SeekFrom::Start(extent.begin))?;
        Ok(file.take(extent.length))
    }

    fn blob(&self, digest: Digest) -> Result<Extent, ArchiveError> {
        let name = format!("blobs/sha256/{}", digest.hex());
        let extent = self.entries.get(&name).copied();
        extent.ok_or_else(|| ArchiveError::Malformed(format!("it lacks a part of its image, {name}")))
    }

    fn document(&self, extent: Extent) -> Result<Vec<u8>, ArchiveError> {
        if extent.length > MAX_DOCUMENT {
            return Err(ArchiveError::Malformed(format!(
                "a document in it is larger than {MAX_DOCUMENT} bytes"
            )));
        }
        let mut bytes = Vec::new();
        self.reader(extent)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn parse<T: DeserializeOwned>(&self, extent: Extent, name: &str) -> Result<T, ArchiveError> {
        let bytes = self.document(extent)?;
        serde_json::from_slice(&bytes)
            .map_err(|_| ArchiveError::Malformed(format!("its {name} cannot be read")))
    }

    /// The image manifests that an index leads to, without the attestations that builders put beside them.
    fn manifests(&self, index: OciIndex, depth: usize) -> Result<Vec<Descriptor>, ArchiveError> {
        let mut found = Vec::<Descriptor>::new();
        for one in index.manifests {
            if one.annotations.contains_key("vnd.docker.reference.type") {
                continue;
            }
            let is_index = one.media_type.contains("image.index") || one.media_type.contains("manifest.list");
            if is_index && depth < MAX_DEPTH {
                let inner = self.parse(self.blob(one.digest)?, "index of platforms")?;
                found.extend(self.manifests(inner, depth.saturating_add(1))?);
            } else if !found.iter().any(|known| known.digest == one.digest) {
                found.push(one);
            }
        }
        // An index may name manifests whose content was not saved with it.
        found.retain(|one| self.blob(one.digest).is_ok());
        Ok(found)
    }

    /// The one image of the layout as a docker-archive. Layers that `zstd` packed are unpacked, because older engines
    /// do not know it; those that `gzip` packed stay as they are.
    fn rewrite(&self, path: &Path) -> Result<File, ArchiveError> {
        let index = self.entries.get(INDEX).copied().ok_or(ArchiveError::OciLayout)?;
        let manifests = self.manifests(self.parse(index, INDEX)?, 0)?;
        let [manifest] = manifests.as_slice() else {
            return Err(several(&manifests));
        };
        let manifest: OciManifest = self.parse(self.blob(manifest.digest)?, "manifest")?;
        let kind = manifest.config.media_type.as_str();
        if !kind.is_empty() && !kind.contains("image.config") && !kind.contains("container.image") {
            return Err(ArchiveError::Malformed(
                "it holds an artifact and no image: nothing in it can be run".to_owned(),
            ));
        }
        let mut tar = tar::Builder::new(BufWriter::new(temporary_beside(path)?));
        let config = self.document(self.blob(manifest.config.digest)?)?;
        let config_name = format!("{}.json", manifest.config.digest.hex());
        append_file_to(&mut tar, &config_name, &config)?;
        let mut layers = Vec::new();
        for (number, layer) in manifest.layers.iter().enumerate() {
            let name = format!("{number:03}-{}/layer.tar", layer.digest.hex());
            self.append_layer(&mut tar, &name, layer, path)?;
            layers.push(name);
        }
        let document = json!([{"Config": config_name, "RepoTags": null, "Layers": layers}]).to_string();
        append_file_to(&mut tar, MANIFEST, document.as_bytes())?;
        let mut written = tar.into_inner()?;
        written.flush()?;
        Ok(written.into_inner().map_err(io::IntoInnerError::into_error)?)
    }

    fn append_layer(
        &self,
        tar: &mut tar::Builder<impl io::Write>,
        name: &str,
        layer: &Descriptor,
        path: &Path,
    ) -> Result<(), ArchiveError> {
        let extent = self.blob(layer.digest)?;
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        if layer.media_type.ends_with("zstd") {
            let mut plain = unpack(path, ZstdFrames::new(self.reader(extent)?))?;
            header.set_size(plain.seek(SeekFrom::End(0))?);
            plain.seek(SeekFrom::Start(0))?;
            tar.append_data(&mut header, name, plain)?;
        } else {
            header.set_size(extent.length);
            tar.append_data(&mut header, name, self.reader(extent)?)?;
        }
        Ok(())
    }
}

/// The refusal of a layout that has no image, or more than one.
fn several(manifests: &[Descriptor]) -> ArchiveError {
    let shown = |text: &str| {
        text.chars()
            .filter(char::is_ascii_alphanumeric)
            .take(20)
            .collect::<String>()
    };
    let platforms: Vec<_> = manifests
        .iter()
        .filter_map(|one| one.platform.as_ref())
        .map(|platform| format!("{}/{}", shown(&platform.os), shown(&platform.architecture)))
        .take(10)
        .collect();
    ArchiveError::Malformed(match (manifests.len(), platforms.is_empty()) {
        (0, _) => "its index names no image that lies in it".to_owned(),
        (count, true) => format!("it holds {count} images; save one image alone"),
        (count, false) => format!(
            "it holds {count} images, for {}; save the one for the executors' platform alone, as with `docker buildx \
             build --platform linux/amd64`",
            platforms.join(" and ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;
    use crate::image_archive::{ImageArchive, ImageContent, ImageFile};

    fn image() -> ImageArchive {
        let file = ImageFile {
            path: "/usr/bin/program".into(),
            mode: 0o755,
            contents: b"program".repeat(1_000),
        };
        ImageArchive::new(&ImageContent {
            tag: "muster/test:1".into(),
            files: vec![file],
            ..ImageContent::default()
        })
        .unwrap()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn documents(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(archive);
        let read = |entry: io::Result<tar::Entry<'_, _>>| {
            let mut entry: tar::Entry<'_, &[u8]> = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (entry_name(&entry), bytes)
        };
        archive.entries().unwrap().map(read).collect()
    }

    /// A tar archive of these files, below `prefix`.
    fn tar_of(prefix: &str, files: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            append_file_to(&mut tar, &format!("{prefix}{name}"), bytes).unwrap();
        }
        tar.into_inner().unwrap()
    }

    /// The image as an OCI layout whose layer was packed so, with another manifest beside it for each of `others`.
    fn oci(
        image: &ImageArchive,
        pack: impl Fn(&[u8]) -> Vec<u8>,
        kind: &str,
        others: &[serde_json::Value],
    ) -> Vec<(String, Vec<u8>)> {
        let parts = documents(&image.bytes);
        let config = &parts[&format!("{}.json", image.id.0.hex())];
        let layer = parts
            .iter()
            .find(|(name, _)| name.ends_with("layer.tar"))
            .unwrap()
            .1;
        let (layer, mut files) = (pack(layer), Vec::new());
        let mut blob = |bytes: &[u8]| {
            let digest = Digest::of(bytes);
            files.push((format!("blobs/sha256/{}", digest.hex()), bytes.to_vec()));
            json!({"digest": digest, "size": bytes.len()})
        };
        let typed = |mut descriptor: serde_json::Value, kind: &str| {
            descriptor["mediaType"] = json!(kind);
            descriptor
        };
        let config = typed(blob(config), "application/vnd.oci.image.config.v1+json");
        let layers = [typed(blob(&layer), kind)];
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
        let manifest = typed(
            blob(manifest.as_bytes()),
            "application/vnd.oci.image.manifest.v1+json",
        );
        let manifests: Vec<_> = std::iter::once(manifest).chain(others.iter().cloned()).collect();
        let inner = json!({"manifests": manifests}).to_string();
        let inner = typed(blob(inner.as_bytes()), "application/vnd.oci.image.index.v1+json");
        files.push((
            INDEX.to_owned(),
            json!({"manifests": [inner]}).to_string().into_bytes(),
        ));
        files.push((
            "oci-layout".to_owned(),
            b"{\"imageLayoutVersion\":\"1.0.0\"}".to_vec(),
        ));
        files
    }

    fn prepared(bytes: &[u8]) -> Result<PreparedArchive, ArchiveError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.tar");
        std::fs::write(&path, bytes).unwrap();
        let prepared = prepare_archive(&path);
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing is left beside it"
        );
        prepared
    }

    #[test]
    fn archives_of_every_form_hold_the_same_image() {
        let image = image();
        let plain = |bytes: &[u8]| bytes.to_vec();
        let layer = "application/vnd.oci.image.layer.v1.tar";
        let (packed, zipped) = (format!("{layer}+zstd"), format!("{layer}+gzip"));
        let attestation = json!({
            "digest": Digest::of(b"x"), "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "annotations": {"vnd.docker.reference.type": "attestation-manifest"},
        });
        let layout = tar_of("", &oci(&image, plain, layer, &[]));
        for (form, bytes) in [
            ("docker save", image.bytes.clone()),
            ("gzip", gzip(&image.bytes)),
            (
                "two members of gzip",
                [gzip(&image.bytes[..1_000]), gzip(&image.bytes[1_000..])].concat(),
            ),
            ("zstd", zstd(&image.bytes)),
            (
                "two frames of zstd",
                [zstd(&image.bytes[..1_000]), zstd(&image.bytes[1_000..])].concat(),
            ),
            ("layout", layout.clone()),
            (
                "layout of a folder",
                tar_of("./", &oci(&image, plain, layer, &[])),
            ),
            (
                "layout with packed layers",
                tar_of("", &oci(&image, zstd, &packed, &[attestation])),
            ),
            ("packed layout", gzip(&layout)),
        ] {
            let prepared = prepared(&bytes).unwrap_or_else(|error| panic!("{form}: {error}"));
            assert_eq!(prepared.images.len(), 1, "{form}");
            assert_eq!(prepared.images[0].id, image.id, "{form}");
            let sent = std::fs::read(prepared.path()).unwrap_or(bytes);
            let of = |archive: &[u8]| {
                let parts = documents(archive).into_iter();
                parts
                    .filter(|(name, _)| name.ends_with("layer.tar"))
                    .map(|(_, bytes)| bytes)
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                of(&sent),
                of(&image.bytes),
                "{form}: an engine finds the layers as the config promises them"
            );
        }
        let zipped = prepared(&tar_of("", &oci(&image, gzip, &zipped, &[]))).unwrap();
        assert_eq!(zipped.images[0].id, image.id, "engines unpack gzip themselves");
    }

    #[test]
    fn files_of_other_kinds_are_named_without_their_bytes() {
        let image = image();
        let layer = "application/vnd.oci.image.layer.v1.tar";
        let other = {
            let mut other = oci(&image, <[u8]>::to_vec, layer, &[]);
            let manifest = other
                .iter()
                .find(|(_, bytes)| bytes.starts_with(b"{\"schemaVersion\""))
                .unwrap()
                .1
                .clone();
            let mut second = manifest.clone();
            second.push(b' ');
            other.push((
                format!("blobs/sha256/{}", Digest::of(&second).hex()),
                second.clone(),
            ));
            let one = |bytes: &[u8], architecture: &str| {
                json!({
                    "digest": Digest::of(bytes), "mediaType": "application/vnd.oci.image.manifest.v1+json",
                    "platform": {"os": "linux", "architecture": architecture},
                })
            };
            other.retain(|(name, _)| name != INDEX);
            let index = json!({"manifests": [one(&manifest, "amd64"), one(&second, "arm64")]});
            other.push((INDEX.to_owned(), index.to_string().into_bytes()));
            other
        };
        let mut lacking = oci(&image, <[u8]>::to_vec, layer, &[]);
        lacking.retain(|(name, bytes)| !name.starts_with("blobs") || bytes.starts_with(b"{"));
        let export: Vec<_> = ["etc/passwd", "usr/bin/env", ".dockerenv"]
            .map(|name| (name.to_owned(), b"\x01\x02".to_vec()))
            .into();
        let cut = gzip(&image.bytes);
        for (bytes, words) in [
            (tar_of("", &export), "docker export"),
            (gzip(&tar_of("", &export)), "docker export"),
            (tar_of("", &other), "linux/amd64 and linux/arm64"),
            (tar_of("", &lacking), "lacks a part"),
            (b"BZh91AY&SY".to_vec(), "bzip2"),
            (vec![0xfd, b'7', b'z', b'X', b'Z', 0, 0, 4], "xz"),
            (vec![0x04, 0x22, 0x4d, 0x18, 1, 2, 3], "lz4"),
            (cut[..cut.len() / 2].to_vec(), "damaged"),
            (zstd(&image.bytes)[..500].to_vec(), "damaged"),
            (vec![0x1f, 0x8b, 8, 0], "damaged"),
            (vec![0x28, 0xb5, 0x2f, 0xfd, 0xff], "damaged"),
            (vec![], "docker save"),
            (b"\x7fELF\x02\x01\x01".repeat(1_000), "docker save"),
            (vec![0; 4_096], "docker save"),
            (
                tar_of("", &[(MANIFEST.to_owned(), b"\x01\xff[".to_vec())]),
                "manifest.json",
            ),
            (
                tar_of(
                    "",
                    &[(
                        MANIFEST.to_owned(),
                        b"[{\"Config\":\"\\u0007\x7f\xc3\xa9\"}]".to_vec(),
                    )],
                ),
                "lacks",
            ),
            (image.bytes[..image.bytes.len() / 2].to_vec(), "docker save"),
        ] {
            let error = prepared(&bytes).unwrap_err();
            let text = muster_process::error::Causes(&error).to_string();
            assert!(text.contains(words), "{words}: {text}");
            assert!(text.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{text:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let error = prepare_archive(folder.path()).unwrap_err().to_string();
        assert!(error.contains("folder") && error.contains("tar -"), "{error}");
    }
}
