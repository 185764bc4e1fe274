//! A lock on the membership file that a persistent executor holds while it runs, by which an operator's command finds
//! out whether it does.

use std::fs::{File, TryLockError};
use std::io;

use muster_process::error::Causes;

use crate::config::Config;

/// Shows that this process runs, as long as the file is open; `None` if that cannot be shown.
pub(super) fn show(config: &Config) -> Option<File> {
    let path = &config.persistent.membership;
    let locked = File::open(path).and_then(|file| {
        // Only a command that looks has it for itself, for a moment.
        file.lock_shared()?;
        Ok(file)
    });
    locked
        .inspect_err(|error| {
            tracing::warn!(
                error = %Causes(error),
                path = %path.display(),
                "`muster executor drain` will not find this process"
            );
        })
        .ok()
}

/// Whether a persistent executor of this configuration runs on this machine.
///
/// # Errors
/// This machine cannot look.
pub fn is_running(config: &Config) -> io::Result<bool> {
    let file = match File::open(&config.persistent.membership) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PersistentSettings;

    #[test]
    fn an_executor_is_found_while_it_runs() {
        let folder = tempfile::tempdir().unwrap();
        let membership = folder.path().join("membership.json");
        let config = Config {
            persistent: PersistentSettings {
                membership: membership.clone(),
                ..PersistentSettings::default()
            },
            ..Config::default()
        };
        assert!(!is_running(&config).unwrap() && !membership.exists());
        std::fs::write(&membership, "").unwrap();
        assert!(!is_running(&config).unwrap());
        let (one, two) = (show(&config).unwrap(), show(&config).unwrap());
        drop(one);
        assert!(is_running(&config).unwrap());
        drop(two);
        assert!(!is_running(&config).unwrap());
    }
}
