//! The hash of the wire files, written in docs/protocol.md: who changes a message is led to the page that describes it.

use anyhow::ensure;
use sha2::{Digest, Sha256};

use super::{Finding, Tree};

const WIRE: &str = "crates/foundation/protocol/src/wire/";
const PAGE: &str = "docs/protocol.md";
const LABEL: &str = "wire hash: ";

/// The page carries the hash of the files.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(hash) = hash(tree) else {
        return vec![Finding::fault(
            WIRE,
            None,
            "no wire files: move the rule with them (xtask/src/tidy/wire_hash.rs)",
        )];
    };
    let Some(page) = tree.get(PAGE) else {
        return vec![Finding::fault(
            PAGE,
            None,
            format!("the page is missing; it carries the line `{LABEL}{hash}`"),
        )];
    };
    match written(page) {
        None => vec![Finding::fault(
            PAGE,
            None,
            format!("the line `{LABEL}{hash}` is missing"),
        )],
        Some((_, found)) if found == hash => Vec::new(),
        Some((line, _)) => {
            let says =
                "the wire files changed: bring this page up to date, then run `cargo xtask tidy --fix`";
            vec![Finding::fault(PAGE, line, says)]
        }
    }
}

/// The page with the right hash in it, if it has a wrong one.
pub(super) fn fix(tree: &Tree) -> anyhow::Result<Option<(&'static str, String)>> {
    let (Some(hash), Some(page)) = (hash(tree), tree.get(PAGE)) else {
        return Ok(None);
    };
    let Some((line, found)) = written(page) else {
        return Ok(None);
    };
    if found == hash {
        return Ok(None);
    }
    ensure!(
        !found.is_empty(),
        "{PAGE}:{line}: put any hexadecimal text after `{LABEL}`, then --fix replaces it"
    );
    Ok(Some((
        PAGE,
        page.replace(&format!("{LABEL}{found}"), &format!("{LABEL}{hash}")),
    )))
}

/// The line number and the hash on the page.
fn written(page: &str) -> Option<(usize, &str)> {
    page.lines().zip(1..).find_map(|(line, number)| {
        let (_, rest) = line.split_once(LABEL)?;
        let end = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        Some((number, rest.get(..end)?))
    })
}

/// Over path and content of each file in order, lengths included so that nothing can move from one to the next.
fn hash(tree: &Tree) -> Option<String> {
    let mut files = tree
        .below(WIRE)
        .filter(|(name, _)| name.ends_with(".rs"))
        .peekable();
    files.peek()?;
    let mut hasher = Sha256::new();
    for part in files.flat_map(|(name, text)| [name, text]) {
        hasher.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(part);
    }
    Some(hex::encode(hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "crates/foundation/protocol/src/wire/a.rs";
    const B: &str = "crates/foundation/protocol/src/wire/b.rs";

    fn page(hash: &str) -> String {
        format!("# Protocol\n\n`wire hash: {hash}`\n")
    }

    #[test]
    fn the_right_hash_passes_and_a_change_fails() {
        let hash = hash(&Tree::of(&[(A, "one"), (B, "two")])).unwrap();
        assert_eq!(hash.len(), 64);
        let page = page(&hash);
        assert!(check(&Tree::of(&[(A, "one"), (B, "two"), (PAGE, &page)])).is_empty());
        let findings = check(&Tree::of(&[(A, "one"), (B, "three"), (PAGE, &page)]));
        assert_eq!(findings[0].line, Some(3));
        assert!(findings[0].says.contains("tidy --fix"), "{findings:?}");
    }

    #[test]
    fn names_and_borders_are_part_of_the_hash() {
        let original = hash(&Tree::of(&[(A, "one"), (B, "two")]));
        assert_ne!(original, hash(&Tree::of(&[(A, "onet"), (B, "wo")])));
        assert_ne!(original, hash(&Tree::of(&[(A, "two"), (B, "one")])));
        assert_eq!(
            original,
            hash(&Tree::of(&[
                (B, "two"),
                (A, "one"),
                ("crates/foundation/protocol/src/lib.rs", "x")
            ]))
        );
    }

    #[test]
    fn a_missing_page_line_or_folder_fails() {
        assert!(
            check(&Tree::of(&[(A, "one")]))[0]
                .says
                .contains("page is missing")
        );
        assert!(
            check(&Tree::of(&[(A, "one"), (PAGE, "# Protocol")]))[0]
                .says
                .contains("is missing")
        );
        assert!(
            check(&Tree::of(&[(PAGE, &page("00"))]))[0]
                .says
                .contains("no wire files")
        );
    }

    #[test]
    fn fix_replaces_the_hash_and_nothing_else() {
        let tree = Tree::of(&[(A, "one"), (PAGE, &page("0123abcd"))]);
        let (path, text) = fix(&tree).unwrap().unwrap();
        assert_eq!(text, page(&hash(&tree).unwrap()));
        let mended = Tree::of(&[(A, "one"), (path, &text)]);
        assert!(check(&mended).is_empty());
        assert!(fix(&mended).unwrap().is_none());
    }
}
