//! The values that are kept between two Tabs.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use muster_client::Credential;
use muster_protocol::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::known_values::{KnownValue, ValueKind};
use crate::facilitator_access::FacilitatorAccess;

/// Hex digits that tell the accounts of a user apart.
const NAME_DIGITS: usize = 16;

/// The values of one kind, as the facilitator knew them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptValues {
    /// The time at which the facilitator was asked.
    pub(super) at: Timestamp,
    /// The values, the likeliest first.
    pub(super) values: Vec<KnownValue>,
}

/// The file of one kind of values, of one account at one facilitator. It is readable by this user only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cache {
    file: PathBuf,
}

// === impl Cache ===

impl Cache {
    /// The file of this account; `None` for a user without a home.
    pub(super) fn of(access: &FacilitatorAccess, kind: ValueKind) -> Option<Self> {
        let account = match &access.credential {
            Credential::Key(key) => key.clone(),
            Credential::Hotkey(pair) => pair.hotkey().to_string(),
        };
        let name = Sha256::digest(format!("{}\n{account}", access.facilitator.as_str()));
        let name: String = hex::encode(name).chars().take(NAME_DIGITS).collect();
        let file = format!("{}-{name}.json", kind.word());
        Some(Self {
            file: folder()?.join(file),
        })
    }

    /// The values that are kept; `None` without any, or with a damaged file.
    pub(super) fn read(&self) -> Option<KeptValues> {
        serde_json::from_slice(&fs::read(&self.file).ok()?).ok()
    }

    /// Keeps the values, in one step.
    ///
    /// # Errors
    ///
    /// The folder or the file cannot be written.
    pub(super) fn write(&self, at: Timestamp, values: Vec<KnownValue>) -> anyhow::Result<()> {
        let folder = self.file.parent().context("the file has no folder")?;
        let mut make = fs::DirBuilder::new();
        make.recursive(true).mode(0o700).create(folder)?;
        // A temporary file is readable by its owner only.
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        new.write_all(&serde_json::to_vec(&KeptValues { at, values })?)?;
        new.persist(&self.file)?;
        Ok(())
    }
}

/// The folder for what this user's programs may forget.
fn folder() -> Option<PathBuf> {
    let own = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty());
    let caches = match own {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".cache"),
    };
    Some(caches.join("muster").join("completion"))
}
