//! The version of a release: the workspace's, and for a commit without its tag also the commit.

use std::{fmt, fs, path::Path, process::Command};

use anyhow::Context;

use crate::tool::quietly;

/// The version of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// As packages have it: `0.1.0`, or `0.1.0~20261130.112233.441054f3` for a commit before the release. The latter
    /// sorts before the former, and by time.
    text: String,
    /// The version of the workspace, which the commit is or leads to.
    pub(super) release: String,
    /// The time of the commit, seconds since 1970.
    pub(super) epoch: u64,
}

// === impl Version ===

impl Version {
    /// The version of the checkout's newest commit.
    pub(super) fn of(root: &Path) -> anyhow::Result<Self> {
        let manifest = root.join("Cargo.toml");
        let manifest: toml::Table = fs::read_to_string(&manifest)
            .with_context(|| format!("read {}", manifest.display()))?
            .parse()?;
        let release = manifest
            .get("workspace")
            .and_then(|workspace| workspace.get("package")?.get("version")?.as_str())
            .context("the workspace has no version")?;
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.current_dir(root).env("TZ", "UTC").args(arguments);
            quietly(&mut git)
        };
        let commit = git(&[
            "log",
            "-1",
            "--date=format-local:%Y%m%d.%H%M%S",
            "--format=%ct %cd %h",
        ])?;
        let tags = git(&["tag", "--points-at", "HEAD"])?;
        Self::from_git(release, &commit, &tags).context("git says nothing of the newest commit")
    }

    /// `commit` is `SECONDS DATE HASH`, and `tags` has a tag of the commit in each line.
    fn from_git(release: &str, commit: &str, tags: &str) -> Option<Self> {
        let mut words = commit.split_whitespace();
        let epoch = words.next()?.parse().ok()?;
        let (date, hash) = (words.next()?, words.next()?);
        let is_release = tags.lines().any(|tag| tag.strip_prefix('v') == Some(release));
        let text = if is_release {
            release.to_owned()
        } else {
            format!("{release}~{date}.{hash}")
        };
        Some(Self {
            text,
            release: release.to_owned(),
            epoch,
        })
    }

    /// As Python has it: `0.1.0`, or `0.1.0.dev20261130112233+441054f3`.
    pub(super) fn python(&self) -> String {
        match self
            .text
            .split_once('~')
            .and_then(|(_, commit)| commit.rsplit_once('.'))
        {
            Some((date, hash)) => format!("{}.dev{}+{hash}", self.release, date.replace('.', "")),
            None => self.release.clone(),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_without_the_tag_of_its_release_is_before_it() {
        let commit = "1796037345 20261130.111545 441054f3\n";
        let of = |tags| Version::from_git("0.1.0", commit, tags).unwrap();
        let version = |tags| of(tags).to_string();
        assert_eq!(of("v0.1.0\n").python(), "0.1.0");
        assert_eq!(of("").python(), "0.1.0.dev20261130111545+441054f3");
        assert_eq!(version("v0.1.0\n"), "0.1.0");
        assert_eq!(version("v0.0.9\n"), "0.1.0~20261130.111545.441054f3");
        assert_eq!(version(""), "0.1.0~20261130.111545.441054f3");
        assert_eq!(Version::from_git("0.1.0", "", ""), None);
    }
}
