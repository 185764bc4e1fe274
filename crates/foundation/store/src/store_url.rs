//! Store URLs: the url, its address, and a name of the store without its password.

use std::fmt;
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;

use crate::StoreError;

/// The driver's URL of a store in memory.
pub(super) const SQLITE_MEMORY: &str = "sqlite::memory:";

/// The address of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoreUrl {
    /// A file; without a path, memory that is gone with the process.
    Sqlite { path: Option<PathBuf> },
    /// A database on a server.
    Postgres { url: url::Url },
}

impl StoreUrl {
    /// Reads a URL of a configuration.
    pub(super) fn parse(text: &str) -> Result<Self, StoreError> {
        if let Some(rest) = text.strip_prefix("sqlite:") {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            return match path {
                "" => Err(StoreError::Url("a path is missing")),
                ":memory:" => Ok(Self::Sqlite { path: None }),
                _ if path.contains('?') => {
                    Err(StoreError::Url("sqlite takes no parameters, they are all set"))
                }
                _ => Ok(Self::Sqlite {
                    path: Some(PathBuf::from(path)),
                }),
            };
        }
        let url = url::Url::parse(text).map_err(|_| StoreError::Url("it is not a URL"))?;
        match url.scheme() {
            "postgres" | "postgresql" => Ok(Self::Postgres { url }),
            _ => Err(StoreError::Url("its scheme is unknown")),
        }
    }

    /// The URL for the driver, in which a SQLite path survives a URL parser.
    pub(super) fn connection_url(&self) -> String {
        match self {
            Self::Sqlite { path: None } => SQLITE_MEMORY.to_owned(),
            Self::Sqlite { path: Some(path) } => {
                let path = path.as_os_str().as_encoded_bytes();
                format!(
                    "sqlite:{}?mode=rwc",
                    path.iter().map(|&byte| escaped(byte)).collect::<String>()
                )
            }
            Self::Postgres { url } => url.to_string(),
        }
    }

    /// Makes a SQLite file and its folder, if they are missing, for this user only. SQLite gives the files beside it
    /// the same mode.
    ///
    /// # Errors
    /// They cannot be made, or the file is there and other users may use it.
    pub(super) fn make_private_file(&self) -> Result<(), StoreError> {
        let Self::Sqlite { path: Some(path) } = self else {
            return Ok(());
        };
        let failed = |source| StoreError::File {
            store: self.to_string(),
            source,
        };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let mut folders = DirBuilder::new();
            folders
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(failed)?;
        }
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600);
        let file = options.open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(StoreError::Exposed {
                path: path.clone(),
                mode,
            });
        }
        Ok(())
    }
}

fn escaped(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte) {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite { path: None } => f.write_str(SQLITE_MEMORY),
            Self::Sqlite { path: Some(path) } => write!(f, "sqlite:{}", path.display()),
            Self::Postgres { url } => {
                let database = url.path();
                write!(f, "postgres://{}{database}", url.host_str().unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_engines_and_nothing_else() {
        for bad in ["", "sqlite:", "sqlite:x?mode=ro", "mysql://x", "/var/lib/x.db"] {
            assert!(matches!(StoreUrl::parse(bad), Err(StoreError::Url(_))), "{bad}");
        }
        let url = StoreUrl::parse("sqlite:///var/lib/a b%.db").unwrap();
        assert_eq!(url.connection_url(), "sqlite:/var/lib/a%20b%25.db?mode=rwc");
        assert_eq!(url, StoreUrl::parse("sqlite:/var/lib/a b%.db").unwrap());
    }

    #[test]
    fn passwords_are_not_shown() {
        let url = StoreUrl::parse("postgres://me:secret@db:5432/muster?password=secret").unwrap();
        assert_eq!(url.to_string(), "postgres://db/muster");
        assert!(url.connection_url().contains("secret"));
    }

    #[test]
    fn a_store_is_its_users_alone_and_one_that_is_not_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/store.db");
        let store = StoreUrl::parse(&format!("sqlite:{}", path.display())).unwrap();
        store.make_private_file().unwrap();
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
        store.make_private_file().unwrap();
        for wider in [0o640, 0o604, 0o666] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(wider)).unwrap();
            let error = store.make_private_file().unwrap_err();
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
    }
}
