//! The folder of a configuration file, from which the relative paths in the file count.

use std::path::{Path, PathBuf};

use super::Problem;

/// The folder of a configuration file.
#[derive(Debug)]
pub struct ConfigFolder {
    folder: PathBuf,
    problems: Vec<Problem>,
}

// === impl ConfigFolder ===

impl ConfigFolder {
    /// The folder of the file at `file`; none for a file that is named without a folder, because its paths count from
    /// the working folder in any case.
    pub(super) fn of(file: &Path) -> Option<Self> {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty())?;
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let problems = Vec::new();
        Some(Self { folder, problems })
    }

    /// The folder of a role's state, which the file at `of` names.
    pub(super) fn state(state_dir: &Path, of: Option<Self>) -> Self {
        let folder = of.map_or_else(PathBuf::new, |of| of.folder).join(state_dir);
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        let problems = Vec::new();
        Self { folder, problems }
    }

    /// The problems of the paths that were given to it.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// Lets a path count from the folder. An empty path, which stands for a default, stays, and so does one below `~`.
    pub fn place(&self, path: &mut PathBuf) {
        if let Some(placed) = self.placed(path) {
            *path = placed;
        }
    }

    /// As [`Self::place`], for what a role has kept at the path. It is a problem if that lies in the working folder
    /// alone, where relative paths counted from in older versions: the role would begin anew without it.
    pub fn place_state(&mut self, key: &str, path: &mut PathBuf) {
        let Some(placed) = self.placed(path) else { return };
        if path.exists() && !placed.exists() {
            let text = format!(
                "a relative path counts from state_dir or the folder of this file, where {} is missing, and {} is in \
                 the working folder: move it, or write its whole path here",
                placed.display(),
                path.display()
            );
            self.problems.push(Problem::at(key, text));
        }
        *path = placed;
    }

    /// As [`Self::place_state`], for the path in a URL of this scheme, such as `sqlite:PATH`. Other URLs stay.
    pub fn place_state_url(&mut self, key: &str, scheme: &str, url: &mut String) {
        let rest = url.strip_prefix(scheme).and_then(|rest| rest.strip_prefix(':'));
        let Some(path) = rest.map(|path| path.strip_prefix("//").unwrap_or(path)) else {
            return;
        };
        if path == ":memory:" {
            return;
        }
        let mut path = PathBuf::from(path);
        self.place_state(key, &mut path);
        if let Some(path) = path.to_str() {
            *url = format!("{scheme}:{path}");
        }
    }

    fn placed(&self, path: &Path) -> Option<PathBuf> {
        let is_relative = path.is_relative() && !path.as_os_str().is_empty() && !path.starts_with("~");
        is_relative.then(|| self.folder.join(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_counts_from_the_files_folder_unless_it_is_whole() {
        let folder = ConfigFolder::of(Path::new("/etc/muster/miner.toml")).unwrap();
        for (written, placed) in [
            ("miner/drain", "/etc/muster/miner/drain"),
            ("/var/lib/drain", "/var/lib/drain"),
            ("~/wallets", "~/wallets"),
            ("", ""),
        ] {
            let mut path = PathBuf::from(written);
            folder.place(&mut path);
            assert_eq!(path, Path::new(placed));
        }
        assert!(ConfigFolder::of(Path::new("miner.toml")).is_none());
        assert!(
            ConfigFolder::of(Path::new("conf/miner.toml"))
                .unwrap()
                .folder
                .is_absolute()
        );
    }

    #[test]
    fn a_path_counts_from_the_folder_of_the_state_where_the_file_names_one() {
        let of = || ConfigFolder::of(Path::new("/etc/muster/miner.toml"));
        for (named, of, folder) in [
            ("/var/lib/muster/miner", of(), "/var/lib/muster/miner"),
            ("/var/lib/muster/miner", None, "/var/lib/muster/miner"),
            ("state", of(), "/etc/muster/state"),
        ] {
            assert_eq!(
                ConfigFolder::state(Path::new(named), of).folder,
                Path::new(folder)
            );
        }
        assert!(ConfigFolder::state(Path::new("state"), None).folder.is_absolute());
    }

    #[test]
    fn only_the_url_of_a_file_is_placed() {
        let mut folder = ConfigFolder::of(Path::new("/etc/muster/miner.toml")).unwrap();
        for (written, placed) in [
            ("sqlite:miner.db", "sqlite:/etc/muster/miner.db"),
            ("sqlite://miner.db", "sqlite:/etc/muster/miner.db"),
            ("sqlite:/var/miner.db", "sqlite:/var/miner.db"),
            ("sqlite::memory:", "sqlite::memory:"),
            ("postgres://u@host/muster", "postgres://u@host/muster"),
        ] {
            let mut url = written.to_owned();
            folder.place_state_url("store", "sqlite", &mut url);
            assert_eq!(url, placed);
        }
        assert_eq!(folder.into_problems(), []);
    }

    #[test]
    fn state_that_an_older_version_left_in_the_working_folder_is_not_forgotten() {
        // A test runs in the folder of its crate.
        let file = tempfile::tempdir().unwrap();
        let mut folder = ConfigFolder::of(&file.path().join("role.toml")).unwrap();
        folder.place_state("store", &mut PathBuf::from("Cargo.toml"));
        folder.place_state("roll", &mut PathBuf::from("no-such-file"));
        std::fs::write(file.path().join("src"), "").unwrap();
        folder.place_state("tls", &mut PathBuf::from("src"));
        let problems = folder.into_problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0]
                .to_string()
                .starts_with("`store`: a relative path counts"),
            "{problems:?}"
        );
    }
}
