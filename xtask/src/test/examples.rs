//! The crates whose documentation has examples that run. rustdoc reads a whole crate to find out that it has none.

use std::fs;

use anyhow::Context;

use crate::{tool::git_files, workspace::Workspace};

/// The names after the opening of a code block that rustdoc compiles.
const COMPILED: [&str; 5] = ["", "rust", "no_run", "should_panic", "compile_fail"];

/// The packages of the root workspace with an example in their documentation, in the order of their names.
///
/// # Errors
/// A source cannot be read, or cargo does not know the workspace.
pub(super) fn packages(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for package in workspace.metadata("Cargo.toml")?.packages {
        let has_library = package.targets.iter().any(cargo_metadata::Target::is_lib);
        let folder = package
            .manifest_path
            .parent()
            .context("a manifest has a folder")?;
        let folder = folder.as_std_path().strip_prefix(workspace.root())?;
        let sources = format!("{}/src/*.rs", folder.display());
        let mut has_example = false;
        for file in git_files(workspace.root(), &[&sources])? {
            let path = workspace.root().join(&file);
            let text = fs::read_to_string(&path).with_context(|| format!("read {}", file.display()))?;
            has_example |= has_examples(&text);
        }
        if has_library && has_example {
            found.push(package.name.to_string());
        }
    }
    found.sort();
    Ok(found)
}

fn has_examples(source: &str) -> bool {
    let mut is_open = false;
    for line in source.lines().map(str::trim_start) {
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let Some(fence) = comment.and_then(|text| text.trim().strip_prefix("```")) else {
            continue;
        };
        if !is_open && fence.split(',').all(|name| COMPILED.contains(&name.trim())) {
            return true;
        }
        is_open = !is_open;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_of_rust_are_examples() {
        assert!(has_examples("/// ```\n/// let a = 1;\n/// ```\n"));
        assert!(has_examples(
            "//! ```sh\n//! ls\n//! ```\n//! ```rust,no_run\n//! f();\n//! ```\n"
        ));
        assert!(!has_examples("/// ```text\n/// a\n/// ```\n"));
        assert!(!has_examples("// ```\nlet fence = \"```\";\n"));
    }
}
