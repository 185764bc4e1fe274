//! A role's configuration as its command reads it: from a file, or the commented defaults; and the user who may run the
//! command.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use muster_process::Coded as _;
use muster_process::config::{self, RoleConfig};
use muster_protocol::ErrorCode;
use muster_terminal::print;
use nix::unistd::{Uid, User};

use crate::cli::RoleFile;
use crate::failure::{Failure, Result};

/// Reads a configuration of `muster ROLE`, or prints the commented defaults and returns nothing.
pub(crate) fn configure<T: RoleConfig>(role: &str, file: &RoleFile) -> Result<Option<T>> {
    if file.print_config {
        print::raw(T::COMMENTED_DEFAULT);
        return Ok(None);
    }
    if let Some(path) = file.config.as_deref().filter(|path| !path.exists()) {
        let path = path.display();
        return Err(Failure::coded(
            Some(ErrorCode::ConfigInvalid),
            anyhow::anyhow!(
                "configuration {path}: there is no such file; `muster {role} --print-config > {path}` writes one with every \
                 default"
            ),
        ));
    }
    read_config(file.config.as_deref()).map(Some)
}

/// Reads a configuration; without a path, every default. It is for commands that may write to the role's state.
///
/// # Errors
/// The configuration has problems, or its `state_dir` belongs to another user.
pub(crate) fn read_config<T: RoleConfig>(path: Option<&Path>) -> Result<T> {
    let config: T = look_at_config(path)?;
    ensure_owner(config.state_dir())?;
    Ok(config)
}

/// Reads a configuration for a command that writes nothing of the role.
pub(crate) fn look_at_config<T: RoleConfig>(path: Option<&Path>) -> Result<T> {
    let read = match path {
        Some(path) => config::load(path),
        None => config::commented_default(),
    };
    read.map_err(|error| Failure::coded(error.code(), error))
}

/// Fails where a role's `state_dir` belongs to another user than this process: the role could not read the files that
/// this process makes there. An empty path is no folder.
pub(crate) fn ensure_owner(state_dir: &Path) -> Result {
    let Ok(metadata) = state_dir.metadata() else {
        return Ok(());
    };
    let (owner, runs_as) = (metadata.uid(), Uid::effective().as_raw());
    if owner == runs_as {
        return Ok(());
    }
    let name_of = |uid: u32| match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => format!("#{uid}"),
    };
    Err(Failure::usage(foreign_state(
        state_dir,
        &name_of(owner),
        &name_of(runs_as),
        std::env::args_os(),
    )))
}

fn foreign_state(
    state_dir: &Path,
    owner: &str,
    runs_as: &str,
    command: impl Iterator<Item = OsString>,
) -> String {
    let command: Vec<_> = command.map(|word| word.to_string_lossy().into_owned()).collect();
    format!(
        "{} belongs to the user {owner}: the files that this command makes there would belong to {runs_as}, and the role \
         could not use them. As root, run `runuser -u {owner} -- {}`; `systemctl` starts an installed role as its user.",
        state_dir.display(),
        command.join(" ")
    )
}

/// Fails where a role's store is missing, so that no command of its operator makes one elsewhere.
pub(crate) fn ensure_store(url: &str) -> Result {
    muster_store::check_existing(url).map_err(|error| Failure::coded(error.code(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_another_user_is_told_how_to_run() {
        let folder = tempfile::tempdir().unwrap();
        ensure_owner(folder.path()).unwrap();
        ensure_owner(Path::new("")).unwrap();
        ensure_owner(&folder.path().join("missing")).unwrap();
        let command = ["muster", "miner", "--enroll"].map(OsString::from).into_iter();
        let told = foreign_state(
            Path::new("/var/lib/muster/miner"),
            "muster-miner",
            "root",
            command,
        );
        assert!(
            told.contains("`runuser -u muster-miner -- muster miner --enroll`"),
            "{told}"
        );
    }

    #[test]
    fn a_missing_file_comes_with_the_command_that_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = RoleFile {
            config: Some(folder.path().join("miner.toml")),
            print_config: false,
        };
        let missing = configure::<muster_miner::Config>("miner", &file).unwrap_err();
        let told = format!(
            "`muster miner --print-config > {}/miner.toml`",
            folder.path().display()
        );
        assert!(missing.to_string().contains(&told), "{missing}");
    }

    #[test]
    fn the_configurations_of_the_packages_fit_their_roles() {
        fn problems<T: RoleConfig>(text: &str) -> Vec<String> {
            match config::parse::<T>(text, "packaged") {
                Ok(config) => {
                    assert!(config.state_dir().starts_with("/var/lib/muster"));
                    Vec::new()
                }
                Err(errors) => errors.problems().iter().map(|one| one.path.clone()).collect(),
            }
        }
        let none = [""; 0];
        let facilitator = include_str!("../../packaging/etc/facilitator.toml");
        assert_eq!(problems::<muster_facilitator::Config>(facilitator), none);
        let validator = include_str!("../../packaging/etc/validator.toml");
        assert_eq!(problems::<muster_validator::Config>(validator), none);
        let executor = include_str!("../../packaging/etc/executor.toml");
        assert_eq!(problems::<muster_executor::Config>(executor), none);
        // Only the operator knows the address that validators dial.
        let miner = include_str!("../../packaging/etc/miner.toml");
        assert_eq!(problems::<muster_miner::Config>(miner), ["announce"]);
    }

    #[test]
    fn a_store_that_is_missing_is_named_and_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("miner.toml");
        std::fs::write(&config, "").unwrap();
        let config: muster_miner::Config = read_config(Some(&config)).unwrap();
        let store = folder.path().join("miner.db");
        let missing = ensure_store(&config.store).unwrap_err().to_string();
        assert!(missing.contains(store.to_str().unwrap()), "{missing}");
        assert!(!store.exists());
        std::fs::write(&store, "").unwrap();
        ensure_store(&config.store).unwrap();
    }
}
