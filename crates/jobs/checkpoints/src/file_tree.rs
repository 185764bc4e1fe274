//! A child of the checkpoint folder as it looked at one moment. Two equal looks, one before and one after its bytes
//! were read, show that nothing wrote to it in between.

use crate::plain_path::{PathFlaw, PlainPath};

/// The bounds on one checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeLimits {
    /// The most files and folders.
    pub entries: usize,
    /// The most bytes of all files together, holes included.
    pub bytes: u64,
}

impl Default for TreeLimits {
    /// 100,000 entries of one tebibyte together.
    fn default() -> Self {
        Self {
            entries: 100_000,
            bytes: 1 << 40,
        }
    }
}

/// A file or a folder of a checkpoint at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// The path, beginning with the name of the checkpoint.
    pub path: PlainPath,
    /// Whether it is a folder; everything else in a tree is an ordinary file.
    pub is_folder: bool,
    /// The permission bits, 0 to 0o777.
    pub mode: u32,
    /// The length of a file in bytes; 0 for a folder.
    pub size: u64,
    /// The number by which the file system knows the entry.
    pub inode: u64,
    /// When the content changed last, in nanoseconds since 1970 by the machine's clock.
    pub modified_ns: i128,
    /// When content or attributes changed last, in the same unit. No program can set it.
    pub changed_ns: i128,
}

/// Everything in a child of the checkpoint folder at one moment, ordered by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileTree {
    entries: Vec<TreeEntry>,
    bytes: u64,
}

/// The reason why a child of the checkpoint folder is no checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeFlaw {
    /// It holds something that is neither a file nor a folder.
    #[error("{0} is a link, a device, a socket or a pipe")]
    NotPlain(String),
    /// A name cannot be kept.
    #[error("the name of an entry cannot be kept: {0}")]
    Path(#[from] PathFlaw),
    /// A name is not UTF-8.
    #[error("the name of an entry is not UTF-8")]
    NotUtf8,
    /// It has more files and folders than a checkpoint may have.
    #[error("the checkpoint has more than {0} files and folders")]
    TooMany(usize),
    /// The folder of checkpoints has so many files and folders that this one was not looked at.
    #[error("the folder of checkpoints has more than {0} files and folders together; remove old checkpoints")]
    TooManyTogether(usize),
    /// Its files are larger together than a checkpoint may be.
    #[error("the checkpoint's files have more than {0} bytes together")]
    TooLarge(u64),
    /// It has no bytes at all.
    #[error("the checkpoint is empty")]
    Empty,
}

impl FileTree {
    /// Adds an entry.
    ///
    /// # Errors
    /// The tree exceeds its limits with it.
    pub fn add(&mut self, entry: TreeEntry, limits: TreeLimits) -> Result<(), TreeFlaw> {
        if self.entries.len() >= limits.entries {
            return Err(TreeFlaw::TooMany(limits.entries));
        }
        self.bytes = self.bytes.saturating_add(entry.size);
        if self.bytes > limits.bytes {
            return Err(TreeFlaw::TooLarge(limits.bytes));
        }
        self.entries.push(entry);
        Ok(())
    }

    /// The tree with its entries in order.
    ///
    /// # Errors
    /// It holds no byte, so there is nothing to resume from.
    pub fn complete(mut self) -> Result<Self, TreeFlaw> {
        if self.bytes == 0 {
            return Err(TreeFlaw::Empty);
        }
        self.entries.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(self)
    }

    /// The entries, ordered by path.
    pub fn entries(&self) -> &[TreeEntry] {
        &self.entries
    }

    /// The bytes of all files together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When anything in it changed last, in nanoseconds since 1970.
    pub fn changed_ns(&self) -> i128 {
        let changed = self.entries.iter().map(|entry| entry.changed_ns);
        changed.max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, size: u64) -> TreeEntry {
        TreeEntry {
            path: path.parse().unwrap(),
            is_folder: false,
            mode: 0o644,
            size,
            inode: 1,
            modified_ns: 5,
            changed_ns: 7,
        }
    }

    #[test]
    fn a_tree_is_bounded_in_names_and_in_bytes() {
        let limits = TreeLimits {
            entries: 2,
            bytes: 10,
        };
        let mut tree = FileTree::default();
        tree.add(entry("b", 4), limits).unwrap();
        tree.add(entry("a", 6), limits).unwrap();
        assert_eq!(tree.clone().add(entry("c", 0), limits), Err(TreeFlaw::TooMany(2)));
        let mut large = FileTree::default();
        assert_eq!(
            large.add(entry("sparse", u64::MAX), limits),
            Err(TreeFlaw::TooLarge(10))
        );
        let tree = tree.complete().unwrap();
        let paths: Vec<_> = tree.entries().iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!((paths, tree.bytes(), tree.changed_ns()), (vec!["a", "b"], 10, 7));
        assert_eq!(FileTree::default().complete(), Err(TreeFlaw::Empty));
    }
}
