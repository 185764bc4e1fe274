//! The login that `muster login` keeps between commands.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::PathBuf;

use anyhow::Context as _;
use muster_client::FacilitatorUrl;
use muster_identity::wallet::WalletPath;
use muster_protocol::ValidatorKey;
use serde::{Deserialize, Serialize};

/// The saved login: `login.toml` in this user's configuration folder, readable by this user only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedLogin {
    pub(crate) facilitator: FacilitatorUrl,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) validator: Option<ValidatorKey>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) api_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    /// The wallet that signs; its key stays in its own file.
    pub(crate) wallet: Option<WalletPath>,
}

// === impl SavedLogin ===

impl SavedLogin {
    pub(crate) fn file() -> anyhow::Result<PathBuf> {
        let own = std::env::var_os("XDG_CONFIG_HOME").filter(|path| !path.is_empty());
        let folder = match own {
            Some(folder) => PathBuf::from(folder),
            None => {
                PathBuf::from(std::env::var_os("HOME").context("neither XDG_CONFIG_HOME nor HOME is set")?)
                    .join(".config")
            }
        };
        Ok(folder.join("muster").join("login.toml"))
    }

    /// The saved login; `None` if there is none.
    pub(crate) fn read() -> anyhow::Result<Option<Self>> {
        // A user without a home has no saved login.
        let Ok(file) = Self::file() else { return Ok(None) };
        match fs::read_to_string(&file) {
            Ok(text) => {
                let known = toml::from_str(&text).with_context(|| {
                    format!(
                        "{} is damaged; `muster login --forget` removes it",
                        file.display()
                    )
                })?;
                Ok(Some(known))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    /// Saves the login in one step.
    pub(crate) fn write(&self) -> anyhow::Result<PathBuf> {
        let file = Self::file()?;
        let folder = file.parent().context("no folder")?;
        let mut make = fs::DirBuilder::new();
        make.recursive(true).mode(0o700);
        make.create(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        new.as_file().set_permissions(fs::Permissions::from_mode(0o600))?;
        new.write_all(toml::to_string(self)?.as_bytes())?;
        new.persist(&file)
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    pub(crate) fn forget() -> anyhow::Result<bool> {
        let file = Self::file()?;
        match fs::remove_file(&file) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot remove {}", file.display())),
        }
    }
}
