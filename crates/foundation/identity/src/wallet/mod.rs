//! Bittensor's wallet files, read and written as the official wallet does.
//!
//! `ROOT/NAME/coldkeypub.txt`, `ROOT/NAME/hotkeys/HOTKEY` and `HOTKEYpub.txt` beside it, all plain JSON. A role needs
//! its hotkey and nothing else.
//! Encrypted coldkeys are never opened: a program that runs all day must not hold what owns the money.

mod create;
mod error;
mod keyfile;

use std::path::{Path, PathBuf};

use muster_protocol::Hotkey;
use serde::{Deserialize, Serialize};

use crate::key::Keypair;
use keyfile::Keyfile;

pub use create::{ColdkeyStorage, CreatedWallet, create};
pub use error::WalletError;

/// Where the official wallet keeps its files, under the home directory.
const DEFAULT_ROOT: &str = "~/.bittensor/wallets";

/// Names one hotkey of one wallet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WalletPath {
    /// The folder of all wallets; a leading `~/` is the home directory.
    pub root: PathBuf,
    /// The wallet, a folder.
    pub name: String,
    /// The hotkey, a file in the wallet's `hotkeys`.
    pub hotkey: String,
}

impl Default for WalletPath {
    /// What the official wallet takes if nothing is said.
    fn default() -> Self {
        Self {
            root: PathBuf::from(DEFAULT_ROOT),
            name: "default".to_owned(),
            hotkey: "default".to_owned(),
        }
    }
}

impl WalletPath {
    /// Names a hotkey.
    pub fn new(root: impl Into<PathBuf>, name: impl Into<String>, hotkey: impl Into<String>) -> Self {
        Self {
            root: root.into(),
            name: name.into(),
            hotkey: hotkey.into(),
        }
    }

    /// The file of the hotkey.
    ///
    /// # Errors
    /// A name that is no plain file name.
    pub fn hotkey_file(&self) -> Result<PathBuf, WalletError> {
        plain(&self.hotkey)?;
        Ok(self.folder()?.join("hotkeys").join(&self.hotkey))
    }

    /// The file of the hotkey's public half. No role reads it; the official wallet's listings do.
    ///
    /// # Errors
    /// A name that is no plain file name.
    pub fn hotkeypub_file(&self) -> Result<PathBuf, WalletError> {
        let file = format!("{}pub.txt", self.hotkey);
        Ok(self.hotkey_file()?.with_file_name(file))
    }

    /// The file of the coldkey's public half.
    ///
    /// # Errors
    /// A name that is no plain file name.
    pub fn coldkeypub_file(&self) -> Result<PathBuf, WalletError> {
        Ok(self.folder()?.join("coldkeypub.txt"))
    }

    /// The file of the coldkey itself.
    ///
    /// # Errors
    /// A name that is no plain file name.
    pub fn coldkey_file(&self) -> Result<PathBuf, WalletError> {
        Ok(self.folder()?.join("coldkey"))
    }

    fn folder(&self) -> Result<PathBuf, WalletError> {
        plain(&self.name)?;
        let root = match (self.root.strip_prefix("~"), std::env::home_dir()) {
            (Ok(rest), Some(home)) => home.join(rest),
            (Ok(_), None) => return Err(WalletError::NoHome),
            (Err(_), _) => self.root.clone(),
        };
        Ok(root.join(&self.name))
    }
}

/// A name must not lead out of the folder it is put in.
fn plain(name: &str) -> Result<(), WalletError> {
    let path = Path::new(name);
    if path.file_name().is_some_and(|file| file == name) {
        Ok(())
    } else {
        Err(WalletError::Name(name.to_owned()))
    }
}

/// Reads a hotkey.
///
/// # Errors
/// The file is missing, unreadable, encrypted, or not a key file.
pub fn load_hotkey(wallet: &WalletPath) -> Result<Keypair, WalletError> {
    Keyfile::read(&wallet.hotkey_file()?)?.keypair()
}

/// Reads a coldkey that lies unencrypted, as on a development subnet.
///
/// # Errors
/// The file is missing, unreadable, encrypted, or not a key file.
pub fn load_coldkey(wallet: &WalletPath) -> Result<Keypair, WalletError> {
    Keyfile::read(&wallet.coldkey_file()?)?.keypair()
}

/// The public halves of a wallet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WalletKeys {
    /// Of the hotkey.
    pub hotkey: Hotkey,
    /// Of the coldkey; `None` if this machine does not know it, which a role can live with.
    pub coldkey: Option<Hotkey>,
}

/// Reads the public halves of a wallet.
///
/// # Errors
/// As [`load_hotkey`]; a coldkey's public file that is there but is not one.
pub fn read_public_keys(wallet: &WalletPath) -> Result<WalletKeys, WalletError> {
    let hotkey = load_hotkey(wallet)?.hotkey();
    let coldkey = match Keyfile::read(&wallet.coldkeypub_file()?) {
        Ok(file) => Some(file.public()?),
        Err(WalletError::Missing(_)) => None,
        Err(error) => return Err(error),
    };
    Ok(WalletKeys { hotkey, coldkey })
}

#[cfg(test)]
mod tests;
