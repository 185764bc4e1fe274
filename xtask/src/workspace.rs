//! Where things are: the checkout, the target folders, and cargo itself.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Context;
use cargo_metadata::{Metadata, MetadataCommand};

/// Where end-to-end tests find the binary that this run has built.
const MUSTER_BINARY: &str = "MUSTER_TEST_BINARY";

/// A checkout and where its build artefacts go.
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// Asks cargo about the workspace around the current folder.
    pub(crate) fn load() -> anyhow::Result<Self> {
        let metadata = MetadataCommand::new()
            .no_deps()
            .exec()
            .context("ask cargo where the workspace is")?;
        Ok(Self {
            root: metadata.workspace_root.into(),
            target: metadata.target_directory.into(),
        })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where build artefacts go.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// The crates of the workspace whose manifest is `manifest`, relative to the root; dependencies by name only.
    pub(crate) fn metadata(&self, manifest: &str) -> anyhow::Result<Metadata> {
        MetadataCommand::new()
            .manifest_path(self.root.join(manifest))
            .no_deps()
            .exec()
            .with_context(|| format!("read {manifest} through cargo metadata"))
    }

    /// The variable by which end-to-end tests find the `muster` of this run.
    pub(crate) fn shared_variables(&self) -> [(&'static str, PathBuf); 1] {
        [(MUSTER_BINARY, self.target.join("debug/muster"))]
    }

    /// Cargo at the root, with nothing on stdin and without the variables that `cargo run` set for xtask:
    /// build scripts watch some of them (ring's does), and would run again in each of our steps.
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.root).stdin(Stdio::null());
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(is_of_cargo_run) {
                cargo.env_remove(name);
            }
        }
        cargo
    }

    /// Cargo inside devchain's workspace, which has the target folder of the root: most of its third-party crates are
    /// those of the root, and cargo compiles them once.
    pub(crate) fn devchain_cargo(&self) -> Command {
        let mut cargo = self.cargo();
        cargo
            .current_dir(self.root.join("devchain"))
            .env("CARGO_TARGET_DIR", &self.target);
        cargo
    }

    /// Cargo inside the workspace of the language model engine, whose own `.cargo/config.toml` makes its builds static.
    pub(crate) fn llm_cargo(&self) -> Command {
        let mut cargo = self.cargo();
        cargo
            .current_dir(self.root.join("images/llm"))
            .env("CARGO_TARGET_DIR", self.target.join("llm"));
        cargo
    }

    /// Cargo inside the workspace of the CUDA prover, which links with the libcuda below `libraries` and starts with
    /// it.
    pub(crate) fn cuda_cargo(&self, libraries: &Path) -> Command {
        let mut cargo = self.cargo();
        cargo
            .current_dir(self.root.join("images/grader-cuda"))
            .env("CARGO_TARGET_DIR", self.target.join("cuda"))
            .env("CUDA_LIBRARY_PATH", libraries)
            .env("LD_LIBRARY_PATH", libraries.join("lib64"));
        cargo
    }
}

fn is_of_cargo_run(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_")
        || matches!(
            variable,
            "CARGO_MANIFEST_DIR" | "CARGO_MANIFEST_PATH" | "CARGO_PRIMARY_PACKAGE" | "OUT_DIR"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cargo_run_set_is_taken_away() {
        assert!(is_of_cargo_run("CARGO_PKG_NAME"));
        assert!(is_of_cargo_run("CARGO_MANIFEST_DIR"));
        assert!(!is_of_cargo_run("CARGO_TARGET_DIR"));
        assert!(!is_of_cargo_run("CARGO_HOME"));
    }
}
