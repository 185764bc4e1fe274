//! New wallets. An existing file is never overwritten, and no secret is printed.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use muster_protocol::Hotkey;

use super::WalletPath;
use super::error::WalletError;
use super::keyfile::{Keyfile, KeyfileFields};
use crate::key::Keypair;

/// The storage of the secret half of a coldkey that [`create`] makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColdkeyStorage {
    /// The secret is returned once as a phrase and stored nowhere: its owner writes it down.
    PhraseOnly,
    /// The secret is written unencrypted to the file `coldkey`; for development subnets, where it owns nothing of
    /// worth.
    Unencrypted,
}

/// A new wallet.
pub struct CreatedWallet {
    /// The new hotkey.
    pub hotkey: Keypair,
    /// The public key of the wallet's coldkey, which may be older than the hotkey.
    pub coldkey: Hotkey,
    /// The secret phrase of a new coldkey, to be shown to its owner once. `None` if the wallet had a coldkey.
    pub coldkey_phrase: Option<String>,
}

/// Makes a hotkey, and a coldkey if the wallet has none. Only their owner can read the files.
///
/// # Errors
/// The hotkey exists already, or the file system refuses. A new file is left behind only if it is complete.
pub fn create(wallet: &WalletPath, storage: ColdkeyStorage) -> Result<CreatedWallet, WalletError> {
    let hotkey_file = wallet.hotkey_file()?;
    if exists(&hotkey_file)? {
        return Err(WalletError::Exists(hotkey_file));
    }
    let (coldkey, coldkey_phrase) = match Keyfile::read(&wallet.coldkeypub_file()?) {
        Ok(file) => (file.public()?, None),
        Err(WalletError::Missing(_)) => {
            let (key, phrase) = create_coldkey(wallet, storage)?;
            (key, Some(phrase))
        }
        Err(error) => return Err(error),
    };
    let (hotkey, phrase, seed) = Keypair::generate_with_seed();
    write_new(&hotkey_file, &KeyfileFields::secret(&hotkey, phrase, seed))?;
    write_new(&wallet.hotkeypub_file()?, &KeyfileFields::public(hotkey.hotkey()))?;
    Ok(CreatedWallet {
        hotkey,
        coldkey,
        coldkey_phrase,
    })
}

fn create_coldkey(wallet: &WalletPath, storage: ColdkeyStorage) -> Result<(Hotkey, String), WalletError> {
    let file = wallet.coldkey_file()?;
    // A coldkey without its public file still belongs to somebody; it must not get the public file of another key.
    if exists(&file)? {
        return Err(WalletError::Exists(file));
    }
    let (pair, phrase, seed) = Keypair::generate_with_seed();
    match storage {
        ColdkeyStorage::PhraseOnly => {}
        ColdkeyStorage::Unencrypted => write_new(&file, &KeyfileFields::secret(&pair, phrase.clone(), seed))?,
    }
    write_new(&wallet.coldkeypub_file()?, &KeyfileFields::public(pair.hotkey()))?;
    Ok((pair.hotkey(), phrase))
}

fn exists(path: &Path) -> Result<bool, WalletError> {
    path.try_exists().map_err(failed("look at", path))
}

/// Writes a whole file or none: first to a temporary name, then as a hard link to `path`, which fails if the name is
/// taken.
fn write_new(path: &Path, fields: &KeyfileFields) -> Result<(), WalletError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(failed("make the folder of", path))?;
    let text = serde_json::to_vec(fields).map_err(|error| failed("encode", path)(error.into()))?;
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| failed("draw a name for", path)(error.into()))?;
    let beside = folder.join(format!(".new-{}", hex::encode(random)));
    let linked = write_private(&beside, &text).and_then(|()| fs::hard_link(&beside, path));
    // The temporary file is no longer needed in any case; the first error is the one to report.
    let removed = fs::remove_file(&beside);
    match linked {
        Ok(()) => removed.map_err(failed("tidy up beside", path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(WalletError::Exists(path.to_owned()))
        }
        Err(error) => Err(failed("write", path)(error)),
    }
}

fn write_private(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WalletError {
    let path = PathBuf::from(path);
    move |source| WalletError::Io {
        operation,
        path,
        source,
    }
}
