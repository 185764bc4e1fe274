//! The manifest of a checkpoint: its files and folders, and the digest of every block of every file. Its own digest
//! names the checkpoint.
//!
//! The bytes are canonical: [`DOMAIN`] (29 bytes); the number of entries (4); and for each entry, in ascending order of
//! paths: the kind (1 byte: 0 folder, 1 file), the length of the path (2), the path, the permission bits (4), and for a
//! file its size (8) and the SHA-256 of each block of [`BLOCK_BYTES`] (32 each; the last block is shorter). Integers
//! are little-endian. A reader takes no other bytes for the same checkpoint.

use muster_protocol::Digest;

use crate::plain_path::{PathFlaw, PlainPath};

/// The beginning of every manifest. Another layout gets another number.
pub const DOMAIN: &[u8; 29] = b"muster/checkpoint-manifest/1\n";

/// The bytes of a block of a file, but for its last one.
pub const BLOCK_BYTES: u64 = 8 << 20;

/// The longest manifest, in bytes: it is stored as one block.
pub const MAX_MANIFEST_BYTES: usize = 8 << 20;

/// A file or a folder of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The path, beginning with the name of the checkpoint.
    pub path: PlainPath,
    /// The permission bits, 0 to 0o777.
    pub mode: u32,
    /// The content of a file; `None` for a folder.
    pub file: Option<FileBlocks>,
}

/// The content of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileBlocks {
    /// The length in bytes.
    pub size: u64,
    /// The SHA-256 of each block, in order.
    pub blocks: Vec<Digest>,
}

/// A checkpoint by its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointManifest {
    entries: Vec<ManifestEntry>,
}

/// The reason why something is no manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The bytes end too early, go on after the last entry, or do not begin as a manifest does.
    #[error("the manifest is not written as manifests are")]
    Layout,
    /// The manifest is longer than a block.
    #[error("the manifest is longer than {MAX_MANIFEST_BYTES} bytes")]
    TooLong,
    /// A path leaves the folder, or is none.
    #[error("the manifest names a path that is not allowed: {0}")]
    Path(#[from] PathFlaw),
    /// Entries are not in order, or one is named twice.
    #[error("the manifest names {0} twice, or out of order")]
    Order(String),
    /// The folder of an entry is missing, or is a file.
    #[error("the manifest does not name the folder of {0}")]
    Orphan(String),
    /// There is more than one child of the checkpoint folder, or none.
    #[error("a checkpoint is one file or one folder")]
    Tops,
    /// The number of blocks does not follow from the size.
    #[error("the blocks of {0} do not fit its size")]
    Blocks(String),
    /// The permission bits are more than 0o777.
    #[error("the permissions of {0} are no permissions")]
    Mode(String),
}

impl FileBlocks {
    /// The bytes of the block at `index`; `None` after the last one.
    pub fn block_length(&self, index: usize) -> Option<u64> {
        let start = BLOCK_BYTES.checked_mul(u64::try_from(index).ok()?)?;
        let left = self.size.checked_sub(start).filter(|left| *left > 0)?;
        Some(left.min(BLOCK_BYTES))
    }
}

impl CheckpointManifest {
    /// The manifest of these entries, in any order.
    ///
    /// # Errors
    /// They are not the entries of one checkpoint, or their manifest would be too long.
    pub fn new(mut entries: Vec<ManifestEntry>) -> Result<Self, ManifestError> {
        entries.sort_by(|one, other| one.path.cmp(&other.path));
        let manifest = Self { entries };
        manifest.check()?;
        if manifest.length() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLong);
        }
        Ok(manifest)
    }

    /// Reads the canonical bytes.
    ///
    /// # Errors
    /// See [`ManifestError`]. Bytes that a writer would have written otherwise are refused.
    pub fn read(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLong);
        }
        let mut rest = Reader(bytes);
        if rest.take(DOMAIN.len())? != DOMAIN {
            return Err(ManifestError::Layout);
        }
        let count = u32::from_le_bytes(rest.array()?);
        // A false count must not reserve memory; the shortest entry has 8 bytes.
        let mut entries = Vec::new();
        for _ in 0..count {
            entries.push(rest.entry()?);
        }
        if !rest.0.is_empty() {
            return Err(ManifestError::Layout);
        }
        let manifest = Self { entries };
        manifest.check()?;
        Ok(manifest)
    }

    /// The canonical bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length());
        bytes.extend_from_slice(DOMAIN);
        // A longer list would be over the longest manifest.
        bytes.extend_from_slice(
            &u32::try_from(self.entries.len())
                .unwrap_or(u32::MAX)
                .to_le_bytes(),
        );
        for entry in &self.entries {
            let path = entry.path.as_str().as_bytes();
            bytes.push(u8::from(entry.file.is_some()));
            bytes.extend_from_slice(&u16::try_from(path.len()).unwrap_or(u16::MAX).to_le_bytes());
            bytes.extend_from_slice(path);
            bytes.extend_from_slice(&entry.mode.to_le_bytes());
            if let Some(file) = &entry.file {
                bytes.extend_from_slice(&file.size.to_le_bytes());
                for block in &file.blocks {
                    bytes.extend_from_slice(block.as_bytes());
                }
            }
        }
        bytes
    }

    /// The digest by which the checkpoint is known.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.to_bytes())
    }

    /// The files and folders, ordered by path.
    pub fn entries(&self) -> &[ManifestEntry] {
        &self.entries
    }

    /// The name of the checkpoint in its folder.
    pub fn name(&self) -> &str {
        self.entries.first().map_or("", |first| first.path.top())
    }

    /// The bytes of all files together.
    pub fn bytes(&self) -> u64 {
        let sizes = self.entries.iter().filter_map(|entry| entry.file.as_ref());
        sizes.fold(0, |sum, file| sum.saturating_add(file.size))
    }

    /// Every block of every file, with its length in bytes. A block that stands in several places comes several times.
    pub fn blocks(&self) -> impl Iterator<Item = (Digest, u64)> {
        let files = self.entries.iter().filter_map(|entry| entry.file.as_ref());
        files.flat_map(|file| {
            let blocks = file.blocks.iter().enumerate();
            blocks.filter_map(|(index, block)| Some((*block, file.block_length(index)?)))
        })
    }

    fn length(&self) -> usize {
        let entries = self.entries.iter().map(|entry| {
            let blocks = entry.file.as_ref().map_or(0, |file| 8 + 32 * file.blocks.len());
            7 + entry.path.as_str().len() + blocks
        });
        DOMAIN.len() + 4 + entries.sum::<usize>()
    }

    fn check(&self) -> Result<(), ManifestError> {
        let mut folders = std::collections::BTreeSet::new();
        let mut before: Option<&PlainPath> = None;
        for entry in &self.entries {
            let path = entry.path.as_str();
            match (before, entry.path.parent()) {
                (None, None) => {}
                (_, None) | (None, Some(_)) => return Err(ManifestError::Tops),
                (Some(last), Some(parent)) => {
                    if *last >= entry.path {
                        return Err(ManifestError::Order(path.to_owned()));
                    }
                    if !folders.contains(parent) {
                        return Err(ManifestError::Orphan(path.to_owned()));
                    }
                }
            }
            before = Some(&entry.path);
            if entry.mode > 0o777 {
                return Err(ManifestError::Mode(path.to_owned()));
            }
            match &entry.file {
                None => {
                    folders.insert(path);
                }
                Some(file) if file.size.div_ceil(BLOCK_BYTES) == file.blocks.len() as u64 => {}
                Some(_) => return Err(ManifestError::Blocks(path.to_owned())),
            }
        }
        match before {
            Some(_) => Ok(()),
            None => Err(ManifestError::Tops),
        }
    }
}

/// The bytes of a manifest that are still to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], ManifestError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(ManifestError::Layout)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ManifestError> {
        self.take(N)?.try_into().map_err(|_| ManifestError::Layout)
    }

    fn entry(&mut self) -> Result<ManifestEntry, ManifestError> {
        let [kind] = self.array()?;
        let length = u16::from_le_bytes(self.array()?);
        let text = std::str::from_utf8(self.take(length.into())?).map_err(|_| ManifestError::Layout)?;
        let path = text.parse()?;
        let mode = u32::from_le_bytes(self.array()?);
        let file = match kind {
            0 => None,
            1 => Some(self.file()?),
            _ => return Err(ManifestError::Layout),
        };
        Ok(ManifestEntry { path, mode, file })
    }

    fn file(&mut self) -> Result<FileBlocks, ManifestError> {
        let size = u64::from_le_bytes(self.array()?);
        let count = usize::try_from(size.div_ceil(BLOCK_BYTES)).map_err(|_| ManifestError::Layout)?;
        let length = count.checked_mul(32).ok_or(ManifestError::Layout)?;
        let (blocks, _) = self.take(length)?.as_chunks::<32>();
        Ok(FileBlocks {
            size,
            blocks: blocks.iter().map(|block| Digest::from_bytes(*block)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn folder(path: &str) -> ManifestEntry {
        ManifestEntry {
            path: path.parse().unwrap(),
            mode: 0o755,
            file: None,
        }
    }

    fn file(path: &str, size: u64) -> ManifestEntry {
        let blocks = (0..size.div_ceil(BLOCK_BYTES)).map(|index| Digest::of(&index.to_le_bytes()));
        ManifestEntry {
            path: path.parse().unwrap(),
            mode: 0o644,
            file: Some(FileBlocks {
                size,
                blocks: blocks.collect(),
            }),
        }
    }

    #[test]
    fn the_canonical_bytes_are_these() {
        let small = ManifestEntry {
            file: Some(FileBlocks {
                size: 3,
                blocks: vec![Digest::of(b"abc")],
            }),
            ..file("c1/w", 3)
        };
        let manifest = CheckpointManifest::new(vec![small, folder("c1")]).unwrap();
        let bytes = hex::encode(manifest.to_bytes());
        // Written anew with Python's struct and hashlib.
        assert_eq!(
            bytes,
            concat!(
                "6d75737465722f636865636b706f696e742d6d616e69666573742f310a",
                "02000000",
                "0002006331ed010000",
                "01040063312f77a4010000",
                "0300000000000000",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
            )
        );
        assert_eq!(CheckpointManifest::read(&manifest.to_bytes()).unwrap(), manifest);
        assert_eq!((manifest.name(), manifest.bytes()), ("c1", 3));
        assert_eq!(manifest.blocks().collect::<Vec<_>>(), [(Digest::of(b"abc"), 3)]);
    }

    #[test]
    fn a_manifest_of_anything_else_than_one_checkpoint_is_refused() {
        let reason = |entries| CheckpointManifest::new(entries).unwrap_err();
        assert_eq!(reason(vec![]), ManifestError::Tops);
        assert_eq!(reason(vec![file("a", 1), file("b", 1)]), ManifestError::Tops);
        assert_eq!(
            reason(vec![folder("a"), file("a/b/c", 1)]),
            ManifestError::Orphan("a/b/c".to_owned())
        );
        assert_eq!(
            reason(vec![file("a", 1), file("a/b", 1)]),
            ManifestError::Orphan("a/b".to_owned()),
            "a file holds nothing"
        );
        assert_eq!(
            reason(vec![folder("a"), file("a/b", 1), file("a/b", 1)]),
            ManifestError::Order("a/b".to_owned())
        );
        let mut short = file("a", BLOCK_BYTES + 1);
        short.file.as_mut().unwrap().blocks.pop();
        assert_eq!(reason(vec![short]), ManifestError::Blocks("a".to_owned()));
        let odd = ManifestEntry {
            mode: 0o4755,
            ..folder("a")
        };
        assert_eq!(reason(vec![odd]), ManifestError::Mode("a".to_owned()));
        let many = (0..300_u64).map(|number| file(&format!("c/{number}"), 1_000 * BLOCK_BYTES));
        assert_eq!(
            reason(std::iter::once(folder("c")).chain(many).collect()),
            ManifestError::TooLong
        );
    }

    #[test]
    fn the_last_block_is_as_long_as_what_is_left() {
        let blocks = file("a", 2 * BLOCK_BYTES + 5).file.unwrap();
        let lengths: Vec<_> = (0..4).map(|index| blocks.block_length(index)).collect();
        assert_eq!(lengths, [Some(BLOCK_BYTES), Some(BLOCK_BYTES), Some(5), None]);
        assert_eq!(file("a", 0).file.unwrap().block_length(0), None);
    }

    fn any_manifest() -> impl Strategy<Value = CheckpointManifest> {
        let files = prop::collection::btree_map("[a-d]{1,3}", 0..3 * BLOCK_BYTES, 0..6);
        (files, 0_u32..=0o777).prop_map(|(files, mode)| {
            let files = files.iter().map(|(name, size)| ManifestEntry {
                mode,
                ..file(&format!("top/{name}"), *size)
            });
            CheckpointManifest::new(std::iter::once(folder("top")).chain(files).collect()).unwrap()
        })
    }

    proptest! {
        #[test]
        fn a_manifest_is_read_back_and_has_one_encoding(
            manifest in any_manifest(), at in any::<prop::sample::Index>(), flip in 1_u8..,
        ) {
            let mut bytes = manifest.to_bytes();
            prop_assert_eq!(&CheckpointManifest::read(&bytes).unwrap(), &manifest);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            if let Ok(other) = CheckpointManifest::read(&bytes) {
                prop_assert_ne!(&other, &manifest);
                prop_assert_eq!(other.to_bytes(), bytes);
            }
        }

        #[test]
        fn no_bytes_do_harm(tail in prop::collection::vec(any::<u8>(), 0..300), whole in any::<bool>()) {
            let bytes = if whole { [&DOMAIN[..], &tail].concat() } else { tail };
            if let Ok(manifest) = CheckpointManifest::read(&bytes) {
                prop_assert_eq!(manifest.to_bytes(), bytes);
            }
        }
    }
}
