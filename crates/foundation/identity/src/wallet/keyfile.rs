//! One key file: JSON that holds the same key in several forms.

use std::io;
use std::path::{Path, PathBuf};

use muster_protocol::Hotkey;
use serde::{Deserialize, Serialize};

use super::error::WalletError;
use crate::key::Keypair;

/// The `cryptoType` of sr25519.
const SR25519: u64 = 1;
/// First bytes of encrypted key files: the official wallet's, and two older formats.
const ENCRYPTED: [&[u8]; 3] = [b"$NACL", b"$ANSIBLE_VAULT", b"gAAAAA"];
/// The most bytes that are read. A key file has a few hundred.
const MAX_BYTES: u64 = 64 * 1024;

/// The fields of a key file. All are optional because older wallets wrote fewer.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeyfileFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    account_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    public_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    private_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret_phrase: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret_seed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ss58_address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    crypto_type: Option<u64>,
}

impl KeyfileFields {
    /// The fields of a public key.
    pub(super) fn public(key: Hotkey) -> Self {
        let hex = format!("0x{}", hex::encode(key.as_bytes()));
        Self {
            account_id: Some(hex.clone()),
            public_key: Some(hex),
            ss58_address: Some(key.to_string()),
            crypto_type: Some(SR25519),
            ..Self::default()
        }
    }

    /// The fields of a secret key, with the phrase that restores it.
    pub(super) fn secret(pair: &Keypair, phrase: String, seed: [u8; 32]) -> Self {
        Self {
            private_key: Some(format!("0x{}", hex::encode(pair.expanded()))),
            secret_phrase: Some(phrase),
            secret_seed: Some(format!("0x{}", hex::encode(seed))),
            ..Self::public(pair.hotkey())
        }
    }
}

/// A parsed key file, with its path for errors.
pub(super) struct Keyfile {
    path: PathBuf,
    fields: KeyfileFields,
}

impl Keyfile {
    /// Reads and parses `path`.
    pub(super) fn read(path: &Path) -> Result<Self, WalletError> {
        let bytes = read_bounded(path)?;
        if ENCRYPTED.iter().any(|head| bytes.starts_with(head)) {
            return Err(WalletError::Encrypted(path.to_owned()));
        }
        // serde's message may quote a value, which may be a secret: the error names only its position.
        let fields: KeyfileFields =
            serde_json::from_slice(&bytes).map_err(|error| WalletError::Malformed {
                path: path.to_owned(),
                reason: format!(
                    "no JSON object of texts (line {}, column {})",
                    error.line(),
                    error.column()
                ),
            })?;
        let file = Self {
            path: path.to_owned(),
            fields,
        };
        match file.fields.crypto_type {
            None | Some(SR25519) => Ok(file),
            Some(kind) => Err(WalletError::KeyType {
                path: file.path,
                kind,
            }),
        }
    }

    /// The secret key, checked against the address in the same file.
    pub(super) fn keypair(&self) -> Result<Keypair, WalletError> {
        let secret = |source| WalletError::Secret {
            path: self.path.clone(),
            source,
        };
        let fields = &self.fields;
        let pair = if let Some(seed) = &fields.secret_seed {
            Keypair::from_seed(self.bytes("secretSeed", seed)?)
        } else if let Some(phrase) = &fields.secret_phrase {
            Keypair::from_phrase(phrase).map_err(secret)?
        } else if let Some(expanded) = &fields.private_key {
            Keypair::from_expanded(&self.bytes::<64>("privateKey", expanded)?).map_err(secret)?
        } else {
            return Err(self.malformed("it has neither secretSeed, secretPhrase nor privateKey"));
        };
        match self.claimed()? {
            Some(claimed) if claimed != pair.hotkey() => Err(WalletError::Mismatch {
                path: self.path.clone(),
                claimed: claimed.to_string(),
            }),
            Some(_) | None => Ok(pair),
        }
    }

    /// The public key in the file.
    pub(super) fn public(&self) -> Result<Hotkey, WalletError> {
        self.claimed()?
            .ok_or_else(|| self.malformed("it has neither ss58Address, publicKey nor accountId"))
    }

    fn claimed(&self) -> Result<Option<Hotkey>, WalletError> {
        if let Some(address) = &self.fields.ss58_address {
            let key = address
                .parse()
                .map_err(|error| self.malformed(&format!("ss58Address: {error}")))?;
            return Ok(Some(key));
        }
        let hex = self
            .fields
            .public_key
            .as_ref()
            .or(self.fields.account_id.as_ref());
        hex.map(|text| self.bytes("publicKey", text).map(Hotkey::from_bytes))
            .transpose()
    }

    fn bytes<const N: usize>(&self, field: &str, text: &str) -> Result<[u8; N], WalletError> {
        let mut bytes = [0; N];
        hex::decode_to_slice(text.strip_prefix("0x").unwrap_or(text), &mut bytes)
            .map_err(|_| self.malformed(&format!("{field} is not {} hex digits", N * 2)))?;
        Ok(bytes)
    }

    fn malformed(&self, reason: &str) -> WalletError {
        WalletError::Malformed {
            path: self.path.clone(),
            reason: reason.to_owned(),
        }
    }
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, WalletError> {
    use io::Read as _;
    let io = |source| WalletError::Io {
        operation: "read",
        path: path.to_owned(),
        source,
    };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(WalletError::Missing(path.to_owned()));
        }
        Err(error) => return Err(io(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}
