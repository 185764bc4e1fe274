//! The Merkle root over the chunks of a response, by which the holder of its beginning can check that beginning.
//!
//! The tree is that of RFC 6962: a leaf is SHA-256 of the byte 0 and the chunk, a node is SHA-256 of the byte 1 and its
//! two children, and of n leaves the largest power of two below n stands in the left subtree. Chunks have [`CHUNK`]
//! bytes, the last one fewer. An empty response has no leaf.

use muster_protocol::Digest;
use sha2::{Digest as _, Sha256};

/// Bytes of a chunk.
pub const CHUNK: usize = 4096;

/// Computes the root while the bytes pass, in memory that is logarithmic in their number.
#[derive(Clone, Debug, Default)]
pub struct ChunkTree {
    /// Roots of full subtrees, largest first, with the number of leaves of each.
    peaks: Vec<(u64, Digest)>,
    chunk: Option<Sha256>,
    filled: usize,
}

impl ChunkTree {
    /// Takes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(CHUNK - self.filled));
            self.chunk.get_or_insert_with(leaf).update(head);
            self.filled += head.len();
            bytes = rest;
            if self.filled == CHUNK {
                self.end_chunk();
            }
        }
    }

    /// Returns the root over all bytes.
    pub fn finish(mut self) -> Digest {
        self.end_chunk();
        fold_peaks(self.peaks)
    }

    fn end_chunk(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            self.filled = 0;
            push_leaf(&mut self.peaks, Digest::from_bytes(chunk.finalize().into()));
        }
    }
}

/// Hashes one chunk, as a leaf of the tree.
pub fn hash_chunk(chunk: &[u8]) -> Digest {
    let mut leaf = leaf();
    leaf.update(chunk);
    Digest::from_bytes(leaf.finalize().into())
}

/// Computes the root over chunks with these hashes.
pub fn root_of(leaves: impl IntoIterator<Item = Digest>) -> Digest {
    let mut peaks = Vec::new();
    for leaf in leaves {
        push_leaf(&mut peaks, leaf);
    }
    fold_peaks(peaks)
}

/// A tree over leaves with these hashes, which gives the paths of all of them. It is built once, in time and memory
/// that are proportional to the leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafTree {
    /// The leaves, then the nodes above them, level by level. A last node without a neighbour stands on the next level,
    /// too: it is the root of a subtree that is smaller than its neighbours.
    levels: Vec<Vec<Digest>>,
}

impl LeafTree {
    /// Builds the tree over these leaves.
    pub fn new(leaves: Vec<Digest>) -> Self {
        let mut levels = Vec::new();
        let mut level = leaves;
        while level.len() > 1 {
            let above = level.chunks(2).filter_map(|pair| match pair {
                [left, right] => Some(node(left, right)),
                [alone] => Some(*alone),
                _ => None,
            });
            let above = above.collect();
            levels.push(std::mem::replace(&mut level, above));
        }
        levels.push(level);
        Self { levels }
    }

    /// The root of the tree.
    pub fn root(&self) -> Digest {
        let top = self.levels.last().and_then(|level| level.first());
        top.copied().unwrap_or_else(|| root_of([]))
    }

    /// The hashes beside the way from one leaf to the root, from the leaf upwards; `None` if there is no such leaf.
    pub fn path(&self, index: usize) -> Option<Vec<Digest>> {
        self.levels.first()?.get(index)?;
        let levels = self.levels.iter().enumerate();
        let beside = levels.filter_map(|(height, level)| level.get((index >> height) ^ 1));
        Some(beside.copied().collect())
    }
}

/// The path of one leaf, as [`LeafTree::path`] gives it. A caller that needs several builds the tree itself.
pub fn inclusion_path(leaves: &[Digest], index: usize) -> Option<Vec<Digest>> {
    LeafTree::new(leaves.to_vec()).path(index)
}

/// The root that a tree of `leaves` leaves must have if `leaf` is its `index`th and `path` stands beside it; `None` if
/// the path has another length than such a leaf's. The algorithm is that of RFC 9162, section 2.1.3.2.
pub fn root_by_path(leaf: Digest, index: u64, leaves: u64, path: &[Digest]) -> Option<Digest> {
    if index >= leaves {
        return None;
    }
    let (mut at, mut last, mut root) = (index, leaves - 1, leaf);
    for beside in path {
        if last == 0 {
            return None;
        }
        if at % 2 == 1 || at == last {
            root = node(beside, &root);
            while at.is_multiple_of(2) && at != 0 {
                at /= 2;
                last /= 2;
            }
        } else {
            root = node(&root, beside);
        }
        at /= 2;
        last /= 2;
    }
    (last == 0).then_some(root)
}

/// The beginning of a response, and the hashes of the chunks that the beginning does not hold whole.
#[derive(Clone, Copy, Debug)]
pub struct OutputPrefix<'a> {
    /// The bytes of the beginning.
    pub bytes: &'a [u8],
    /// Hashes of the chunks from the first one that is not whole in `bytes`.
    pub rest: &'a [Digest],
}

impl OutputPrefix<'_> {
    /// The root that the whole response must have if this is its beginning. The bytes of a chunk that is held in part
    /// are not covered: at most [`CHUNK`] - 1.
    pub fn root(&self) -> Digest {
        let whole = self.bytes.chunks_exact(CHUNK).map(hash_chunk);
        root_of(whole.chain(self.rest.iter().copied()))
    }
}

fn leaf() -> Sha256 {
    let mut hash = Sha256::new();
    hash.update([0]);
    hash
}

fn node(left: &Digest, right: &Digest) -> Digest {
    let mut hash = Sha256::new();
    hash.update([1]);
    hash.update(left.as_bytes());
    hash.update(right.as_bytes());
    Digest::from_bytes(hash.finalize().into())
}

fn push_leaf(peaks: &mut Vec<(u64, Digest)>, leaf: Digest) {
    let mut carried = (1, leaf);
    while let Some((_, left)) = peaks.pop_if(|(leaves, _)| *leaves == carried.0) {
        carried = (carried.0 * 2, node(&left, &carried.1));
    }
    peaks.push(carried);
}

fn fold_peaks(peaks: Vec<(u64, Digest)>) -> Digest {
    let mut from_the_right = peaks.into_iter().rev().map(|(_, root)| root);
    let Some(last) = from_the_right.next() else {
        return Digest::of(b"");
    };
    from_the_right.fold(last, |right, left| node(&left, &right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition of RFC 6962, section 2.1.
    fn reference(leaves: &[Digest]) -> Digest {
        match leaves {
            [] => Digest::of(b""),
            [one] => *one,
            many => {
                let split = many.len().next_power_of_two() / 2;
                let (left, right) = many.split_at(split);
                node(&reference(left), &reference(right))
            }
        }
    }

    /// The definition of RFC 6962, section 2.1.1.
    fn reference_path(leaves: &[Digest], index: usize) -> Option<Vec<Digest>> {
        if index >= leaves.len() {
            return None;
        }
        if leaves.len() == 1 {
            return Some(Vec::new());
        }
        let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
        let (mut path, beside) = if index < left.len() {
            (reference_path(left, index)?, right)
        } else {
            (reference_path(right, index - left.len())?, left)
        };
        path.push(reference(beside));
        Some(path)
    }

    proptest! {
        #[test]
        fn however_it_arrives_the_root_is_the_reference(
            length in 0_usize..40_000,
            cuts in proptest::collection::vec(1_usize..9_000, 0..20),
        ) {
            let bytes: Vec<u8> = (0..length).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect();
            let leaves: Vec<Digest> = bytes.chunks(CHUNK).map(hash_chunk).collect();
            let mut tree = ChunkTree::default();
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                tree.update(head);
                rest = tail;
            }
            tree.update(rest);
            prop_assert_eq!(tree.finish(), reference(&leaves));
        }

        #[test]
        fn a_tree_has_the_root_and_the_paths_of_the_definition(count in 0_u64..70) {
            let leaves: Vec<Digest> = (0..count).map(|number| hash_chunk(&number.to_be_bytes())).collect();
            let tree = LeafTree::new(leaves.clone());
            prop_assert_eq!(tree.root(), reference(&leaves));
            for index in 0..=leaves.len() {
                prop_assert_eq!(tree.path(index), reference_path(&leaves, index));
            }
        }

        #[test]
        fn every_leaf_has_a_path_and_no_other_leaf_has_it(count in 1_u64..70, at in 0_u64..70, other in 0_u64..70) {
            let leaves: Vec<Digest> = (0..count).map(|number| hash_chunk(&number.to_be_bytes())).collect();
            let (at, other) = (at % count, other % count);
            let leaf = leaves[usize::try_from(at).unwrap()];
            let path = inclusion_path(&leaves, usize::try_from(at).unwrap()).unwrap();
            let root = reference(&leaves);
            prop_assert_eq!(root_by_path(leaf, at, count, &path), Some(root));
            prop_assert_ne!(root_by_path(hash_chunk(b"other"), at, count, &path), Some(root));
            if other != at {
                prop_assert_ne!(root_by_path(leaf, other, count, &path), Some(root));
            }
            prop_assert_eq!(root_by_path(leaf, count, count, &path), None);
            let longer = [path.as_slice(), &[leaf]].concat();
            prop_assert_ne!(root_by_path(leaf, at, count, &longer), Some(root));
        }

        #[test]
        fn a_beginning_is_checked_and_another_is_not(length in CHUNK..40_000, held in 0_usize..40_000) {
            let bytes = vec![5_u8; length];
            let held = held.min(length);
            let mut leaves: Vec<Digest> = bytes.chunks(CHUNK).map(hash_chunk).collect();
            let root = root_of(leaves.iter().copied());
            let rest = leaves.split_off(held / CHUNK);
            let mut beginning = bytes.get(..held).unwrap().to_vec();
            let root_of_it = OutputPrefix { bytes: &beginning, rest: &rest }.root();
            prop_assert_eq!(root_of_it, root);
            if held >= CHUNK {
                *beginning.get_mut(CHUNK - 1).unwrap() ^= 1;
                let altered = OutputPrefix { bytes: &beginning, rest: &rest }.root();
                prop_assert_ne!(altered, root);
            }
        }
    }
}
