//! Perfect Merkle trees over 1 KiB leaves, with SHA-256 and separate domains for leaves and nodes.
//!
//! The number of leaves follows from the specification and is a power of two. So the length of a path is fixed, and its
//! left and right turns are the bits of the leaf's index. A prover can choose neither.

use sha2::{Digest as _, Sha256};

/// Bytes of a leaf.
pub const LEAF: usize = 1024;

/// A SHA-256 value.
pub type Hash = [u8; 32];

/// The hash of a leaf. Every leaf of a tree has [`LEAF`] bytes.
pub fn hash_leaf(leaf: &[u8; LEAF]) -> Hash {
    Sha256::new()
        .chain_update([0])
        .chain_update(leaf)
        .finalize()
        .into()
}

/// The hash of an inner node.
pub fn hash_node(left: &Hash, right: &Hash) -> Hash {
    let mut bytes = [0; 65];
    let (tag, children) = bytes.split_at_mut(1);
    tag.fill(1);
    let (first, second) = children.split_at_mut(32);
    first.copy_from_slice(left);
    second.copy_from_slice(right);
    Sha256::digest(bytes).into()
}

/// Computes the root from a leaf's hash at `index` and the siblings on its `path`, from the bottom up.
pub fn root_from_path(leaf: Hash, index: u64, path: &[Hash]) -> Hash {
    let mut place = index;
    let mut hash = leaf;
    for sibling in path {
        hash = if place & 1 == 0 {
            hash_node(&hash, sibling)
        } else {
            hash_node(sibling, &hash)
        };
        place >>= 1;
    }
    hash
}

/// All levels of a tree, from the hashes at the bottom up to the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MerkleTree {
    levels: Vec<Vec<Hash>>,
}

impl MerkleTree {
    /// Builds a tree over `bottom`, padded with zero hashes to a power of two. To save memory, a prover builds it over
    /// the roots of subtrees and recomputes a subtree when one of its leaves is opened.
    pub fn build(mut bottom: Vec<Hash>) -> Self {
        bottom.resize(bottom.len().next_power_of_two(), [0; 32]);
        let mut levels = Vec::new();
        while bottom.len() > 1 {
            let above = bottom
                .as_chunks::<2>()
                .0
                .iter()
                .map(|[left, right]| hash_node(left, right))
                .collect();
            levels.push(std::mem::replace(&mut bottom, above));
        }
        levels.push(bottom);
        Self { levels }
    }

    /// The hash at the top.
    pub fn root(&self) -> Hash {
        self.levels
            .last()
            .and_then(|level| level.first())
            .copied()
            .unwrap_or_default()
    }

    /// The siblings of `index` from the bottom up. Levels on which an index outside the tree has no sibling are left
    /// out.
    pub fn path(&self, index: u64) -> Vec<Hash> {
        let inner = self.levels.len().saturating_sub(1);
        let siblings = self.levels.iter().take(inner).enumerate();
        siblings
            .filter_map(|(level, hashes)| hashes.get(((index >> level) ^ 1) as usize).copied())
            .collect()
    }
}

/// Computes a root over a stream of hashes with one hash of memory per level.
#[derive(Debug, Clone, Default)]
pub struct MerkleStack {
    pending: Vec<Option<Hash>>,
}

impl MerkleStack {
    /// Adds the next hash.
    pub fn push(&mut self, hash: Hash) {
        let mut carry = hash;
        for level in &mut self.pending {
            match level.take() {
                Some(left) => carry = hash_node(&left, &carry),
                None => {
                    *level = Some(carry);
                    return;
                }
            }
        }
        self.pending.push(Some(carry));
    }

    /// The root, if the number of hashes so far is a power of two.
    pub fn root(&self) -> Option<Hash> {
        let (top, below) = self.pending.split_last()?;
        if below.iter().any(Option::is_some) {
            None
        } else {
            *top
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(count: u8) -> Vec<Hash> {
        (0..count).map(|i| hash_leaf(&[i; LEAF])).collect()
    }

    #[test]
    fn paths_lead_to_the_root_and_only_from_their_place() {
        let tree = MerkleTree::build(hashes(16));
        for index in 0..16 {
            let path = tree.path(index);
            assert_eq!(path.len(), 4);
            assert_eq!(
                root_from_path(hash_leaf(&[index as u8; LEAF]), index, &path),
                tree.root()
            );
            assert_ne!(
                root_from_path(hash_leaf(&[index as u8; LEAF]), index ^ 1, &path),
                tree.root()
            );
        }
    }

    #[test]
    fn a_stack_finds_the_same_root() {
        let mut stack = MerkleStack::default();
        for (i, hash) in hashes(8).into_iter().enumerate() {
            stack.push(hash);
            assert_eq!(stack.root().is_some(), (i + 1usize).is_power_of_two());
        }
        assert_eq!(stack.root(), Some(MerkleTree::build(hashes(8)).root()));
    }

    /// A node's 64 bytes of children must not hash like a leaf that contains them, nor a leaf like a node.
    #[test]
    fn leaf_and_node_are_separate_domains() {
        let [a, b] = [[3; 32], [4; 32]];
        let mut concatenated = [0; LEAF];
        concatenated[..32].copy_from_slice(&a);
        concatenated[32..64].copy_from_slice(&b);
        assert_ne!(hash_leaf(&concatenated), hash_node(&a, &b));
        let plain: Hash = Sha256::digest([a, b].concat()).into();
        assert_ne!(plain, hash_node(&a, &b));
    }
}
