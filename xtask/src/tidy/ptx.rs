//! The PTX belongs to its kernels: who changes a kernel and forgets to compile it ships the old one.

use super::{Finding, Tree};
use crate::cuda::{DIGEST, KERNELS, PTX, digest, is_kernel};

/// The first line of the PTX carries the digest of the kernels.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let kernels: Vec<_> = tree.below(KERNELS).filter(|(name, _)| is_kernel(name)).collect();
    let path = format!("{KERNELS}{PTX}");
    let written = tree
        .get(&path)
        .and_then(|text| text.lines().next()?.strip_prefix(DIGEST));
    match written {
        Some(found) if found == digest(kernels.iter().copied()) => Vec::new(),
        Some(_) => vec![Finding::fault(
            &path,
            1,
            "made of other kernels than those beside it: run `cargo xtask ptx`",
        )],
        None if kernels.is_empty() => Vec::new(),
        None => vec![Finding::fault(
            &path,
            None,
            "the kernels were never compiled: run `cargo xtask ptx`",
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_of_other_kernels_is_found() {
        let kernel = format!("{KERNELS}a.cu");
        let ptx = format!("{KERNELS}{PTX}");
        let right = format!(
            "{DIGEST}{}\n.version 7.1\n",
            digest([("a.cu", "one")].into_iter())
        );
        let found = |text: &str| {
            // Sources that only the emulator compiles do not count.
            let other = format!("{KERNELS}emulator.cpp");
            check(&Tree::of(&[(&kernel, text), (&ptx, &right), (&other, "any")])).len()
        };
        assert_eq!((found("one"), found("two")), (0, 1));
        assert_eq!(check(&Tree::of(&[(&kernel, "one")])).len(), 1);
        assert!(check(&Tree::of(&[])).is_empty());
    }
}
