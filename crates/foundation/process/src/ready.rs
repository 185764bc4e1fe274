//! How a role reports to its supervisor that it is up and at which address: one log line, and a file that
//! appears whole.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A ready file that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("ready file {path}: {operation}; check that its folder exists and belongs to the role's user", path = path.display())]
pub struct ReadyError {
    path: PathBuf,
    operation: &'static str,
    source: io::Error,
}

/// The content of a ready file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Ready {
    address: SocketAddr,
}

/// Logs `ready` with the address and writes the ready file, if the configuration names one.
///
/// # Errors
/// The file cannot be written.
pub fn announce(address: SocketAddr, file: Option<&Path>) -> Result<(), ReadyError> {
    if let Some(path) = file {
        write(path, address)?;
    }
    tracing::info!(%address, "ready");
    Ok(())
}

/// Writes `{"address":"127.0.0.1:1234"}` into `path` in one step: a reader finds all of it or nothing.
///
/// # Errors
/// The folder does not exist or is not writable.
pub fn write(path: &Path, address: SocketAddr) -> Result<(), ReadyError> {
    let failed = |operation| {
        move |source| ReadyError {
            path: path.to_owned(),
            operation,
            source,
        }
    };
    let text = serde_json::to_vec(&Ready { address }).map_err(|e| failed("cannot be encoded")(e.into()))?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed("cannot be created"))?;
    file.write_all(&text).map_err(failed("cannot be written"))?;
    file.persist(path)
        .map_err(|error| failed("cannot be put in place")(error.error))?;
    Ok(())
}

/// Reads a ready file; `None` if it is not there yet.
///
/// # Errors
/// It is there but cannot be read, or is not a ready file.
pub fn read(path: &Path) -> Result<Option<SocketAddr>, ReadyError> {
    let failed = |operation| {
        move |source| ReadyError {
            path: path.to_owned(),
            operation,
            source,
        }
    };
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("cannot be read")(error)),
    };
    let ready: Ready = serde_json::from_slice(&text).map_err(|e| failed("is not a ready file")(e.into()))?;
    Ok(Some(ready.address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_address_is_read_back_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready.json");
        assert_eq!(read(&path).unwrap(), None);
        for port in [1, 2] {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            announce(address, Some(&path)).unwrap();
            assert_eq!(read(&path).unwrap(), Some(address));
        }
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            r#"{"address":"127.0.0.1:2"}"#
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_folder_and_a_foreign_file_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        assert!(write(&folder.path().join("no/ready.json"), address).is_err());
        let path = folder.path().join("ready.json");
        std::fs::write(&path, "{").unwrap();
        assert!(read(&path).is_err());
    }
}
