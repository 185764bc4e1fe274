//! The token that a role's operator shows to change something at the role's HTTP listener.
//!
//! The role draws it and keeps it in a file for its user alone. So whoever may read the role's files may command the
//! role, and a stranger who reaches the port may not.

use std::fmt;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use muster_protocol::Digest;

/// Random bytes of a token.
const BYTES: usize = 32;

/// A token, as its file holds it: hex digits.
#[derive(Clone, PartialEq, Eq)]
pub struct OperatorToken(String);

/// A token's file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OperatorTokenError {
    /// The file cannot be read or written.
    #[error("cannot use the operator's token in {path}")]
    File {
        /// The file that cannot be used.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// Other users may read the file.
    #[error(
        "other users can read the operator's token in {path}; run `chmod 600` on it, or delete it and restart"
    )]
    Open {
        /// The file that other users may read.
        path: PathBuf,
    },
    /// The file holds something else.
    #[error("{path} holds no operator's token; delete it and restart the role")]
    Content {
        /// The file that holds something else.
        path: PathBuf,
    },
}

impl OperatorToken {
    /// The token in `path`. A role that starts for the first time draws it.
    ///
    /// # Errors
    /// The file cannot be read or written, other users may read it, or it holds something else.
    pub fn open(path: &Path) -> Result<Self, OperatorTokenError> {
        if path.exists() {
            return Self::read(path);
        }
        let failed = |source| OperatorTokenError::File {
            path: path.to_owned(),
            source,
        };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut drawn = [0; BYTES];
        getrandom::fill(&mut drawn).map_err(|error| failed(io::Error::other(error)))?;
        let digits: String = drawn.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        file.set_permissions(Permissions::from_mode(0o600))
            .and_then(|()| writeln!(file, "{digits}"))
            .and_then(|()| file.sync_all())
            .map_err(failed)?;
        Ok(Self(digits))
    }

    /// The token that a role has drawn.
    ///
    /// # Errors
    /// As [`Self::open`], and if there is no file.
    pub fn read(path: &Path) -> Result<Self, OperatorTokenError> {
        let failed = |source| OperatorTokenError::File {
            path: path.to_owned(),
            source,
        };
        let mode = fs::metadata(path).map_err(failed)?.permissions().mode();
        let path = path.to_owned();
        if mode & 0o077 != 0 {
            return Err(OperatorTokenError::Open { path });
        }
        let text = fs::read_to_string(&path).map_err(failed)?;
        let token = text.trim();
        if token.len() != 2 * BYTES || !token.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(OperatorTokenError::Content { path });
        }
        Ok(Self(token.to_owned()))
    }

    /// The value of the header `Authorization` with this token.
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Whether the value of a header `Authorization` has this token.
    #[must_use]
    pub fn admits(&self, authorization: Option<&[u8]>) -> bool {
        // Digests are compared and not tokens, so the time that it takes reveals nothing about the token.
        let own = Digest::of(self.authorization().as_bytes());
        authorization.is_some_and(|shown| Digest::of(shown) == own)
    }
}

impl fmt::Debug for OperatorToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OperatorToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_drawn_once_and_admits_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("role/token");
        let drawn = OperatorToken::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(OperatorToken::open(&path).unwrap(), drawn);
        assert_eq!(OperatorToken::read(&path).unwrap(), drawn);
        let other = OperatorToken::open(&folder.path().join("other")).unwrap();
        assert!(drawn.admits(Some(drawn.authorization().as_bytes())));
        for shown in [
            None,
            Some(other.authorization()),
            Some(drawn.0.clone()),
            Some(String::new()),
        ] {
            assert!(!drawn.admits(shown.as_deref().map(str::as_bytes)), "{shown:?}");
        }
        assert!(!format!("{drawn:?}").contains(&drawn.0));
    }

    #[test]
    fn a_file_that_others_may_read_or_that_holds_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(matches!(
            OperatorToken::read(&path),
            Err(OperatorTokenError::File { .. })
        ));
        OperatorToken::open(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(
            OperatorToken::open(&path),
            Err(OperatorTokenError::Open { .. })
        ));
        fs::write(&path, "short").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(
            OperatorToken::open(&path),
            Err(OperatorTokenError::Content { .. })
        ));
    }
}
