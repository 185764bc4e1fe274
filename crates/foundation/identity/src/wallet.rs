//! Bittensor's wallet files, read and written as the official wallet does.
//!
//! The files are `ROOT/NAME/coldkeypub.txt`, `ROOT/NAME/hotkeys/HOTKEY` and `HOTKEYpub.txt` beside it, all plain JSON.
//! A role needs its hotkey only.
//!
//! Encrypted coldkeys are never opened: a program that runs all day must not hold the key that owns the money.

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

/// The folder in which the official wallet keeps its files.
const DEFAULT_ROOT: &str = "~/.bittensor/wallets";

/// Names one hotkey of one wallet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WalletPath {
    /// The folder of all wallets; a leading `~/` is the home directory.
    pub root: PathBuf,
    /// The name of the wallet, which is a folder.
    pub name: String,
    /// The name of the hotkey, which is a file in the wallet's folder `hotkeys`.
    pub hotkey: String,
}

impl Default for WalletPath {
    /// The official wallet's defaults.
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
    /// A name is not a plain file name, or the home directory is unknown.
    pub fn hotkey_file(&self) -> Result<PathBuf, WalletError> {
        check_name(&self.hotkey)?;
        Ok(self.folder()?.join("hotkeys").join(&self.hotkey))
    }

    /// The file of the hotkey's public half. No role reads it; the official wallet's listings do.
    ///
    /// # Errors
    /// A name is not a plain file name, or the home directory is unknown.
    pub fn hotkeypub_file(&self) -> Result<PathBuf, WalletError> {
        let file = format!("{}pub.txt", self.hotkey);
        Ok(self.hotkey_file()?.with_file_name(file))
    }

    /// The file of the coldkey's public half.
    ///
    /// # Errors
    /// A name is not a plain file name, or the home directory is unknown.
    pub fn coldkeypub_file(&self) -> Result<PathBuf, WalletError> {
        Ok(self.folder()?.join("coldkeypub.txt"))
    }

    /// The file of the coldkey itself.
    ///
    /// # Errors
    /// A name is not a plain file name, or the home directory is unknown.
    pub fn coldkey_file(&self) -> Result<PathBuf, WalletError> {
        Ok(self.folder()?.join("coldkey"))
    }

    fn folder(&self) -> Result<PathBuf, WalletError> {
        check_name(&self.name)?;
        let root = match (self.root.strip_prefix("~"), std::env::home_dir()) {
            (Ok(rest), Some(home)) => home.join(rest),
            (Ok(_), None) => return Err(WalletError::NoHome),
            (Err(_), _) => self.root.clone(),
        };
        Ok(root.join(&self.name))
    }
}

/// Checks that a name does not lead out of its folder.
fn check_name(name: &str) -> Result<(), WalletError> {
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

/// Reads an unencrypted coldkey, as development subnets have.
///
/// # Errors
/// The file is missing, unreadable, encrypted, or not a key file.
pub fn load_coldkey(wallet: &WalletPath) -> Result<Keypair, WalletError> {
    Keyfile::read(&wallet.coldkey_file()?)?.keypair()
}

/// The public keys of a wallet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WalletKeys {
    /// The hotkey's public key.
    pub hotkey: Hotkey,
    /// The coldkey's public key; `None` if this machine has no file of it, which a role does not need.
    pub coldkey: Option<Hotkey>,
}

/// Reads the public keys of a wallet.
///
/// # Errors
/// As for [`load_hotkey`]; or the coldkey's public file exists and is not a key file.
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
