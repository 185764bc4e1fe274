//! The operator's EVM key in a file.

use std::fmt;
use std::path::Path;

use alloy_primitives::{Address, keccak256};
use k256::ecdsa::{RecoveryId, Signature, SigningKey};
use serde::Deserialize;

use crate::error::CollateralError;

/// A key file is shorter.
const MAX_FILE: u64 = 65_536;

/// The key that signs transactions of the EVM. It is read for one command and never shown.
pub struct EvmKey(SigningKey);

impl fmt::Debug for EvmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EvmKey({})", self.address())
    }
}

/// The file that ComputeHorde's scripts write.
#[derive(Deserialize)]
struct KeyFile {
    private_key: String,
}

impl EvmKey {
    /// Reads a key: 64 hexadecimal digits, or JSON with them under `private_key`, as ComputeHorde's scripts write it.
    ///
    /// # Errors
    /// The file cannot be read, or holds no such key.
    pub async fn read(path: &Path) -> Result<Self, CollateralError> {
        let fault = |reason: &str| CollateralError::Key {
            path: path.display().to_string(),
            reason: reason.to_owned(),
        };
        let length = tokio::fs::metadata(path)
            .await
            .map_err(|error| fault(&error.to_string()))?
            .len();
        if length > MAX_FILE {
            return Err(fault("it is too long for a key"));
        }
        let text = tokio::fs::read_to_string(path)
            .await
            .map_err(|error| fault(&error.to_string()))?;
        Self::parse(&text).ok_or_else(|| {
            fault("it holds neither 64 hexadecimal digits nor JSON with them under `private_key`")
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = match serde_json::from_str::<KeyFile>(text) {
            Ok(file) => file.private_key,
            Err(_) => text.to_owned(),
        };
        let digits = digits.trim();
        let bytes = hex::decode(digits.strip_prefix("0x").unwrap_or(digits)).ok()?;
        SigningKey::from_slice(&bytes).ok().map(Self)
    }

    /// The address of the key's account.
    pub fn address(&self) -> Address {
        let point = self.0.verifying_key().to_encoded_point(false);
        // The first byte states that the point is not compressed.
        let hash = keccak256(point.as_bytes().get(1..).unwrap_or_default());
        Address::from_slice(hash.get(12..).unwrap_or_default())
    }

    /// Signs a hash; `None` for one of the hashes, out of 2¹²⁷, that the curve cannot sign.
    pub(super) fn sign(&self, hash: &[u8; 32]) -> Option<(Signature, RecoveryId)> {
        self.0.sign_prehash_recoverable(hash).ok()
    }
}

#[cfg(test)]
pub(in crate::evm) mod tests {
    use super::*;

    /// The key of the example in EIP-155.
    pub(in crate::evm) fn example() -> EvmKey {
        EvmKey::parse(&"46".repeat(32)).unwrap()
    }

    #[test]
    fn a_key_is_read_in_both_forms_and_never_shown() {
        let plain = format!("0x{}\n", "46".repeat(32));
        let json = format!(r#"{{"address": "0x0", "private_key": "{}"}}"#, "46".repeat(32));
        for text in [plain, json] {
            let key = EvmKey::parse(&text).unwrap();
            // The sender of the example in EIP-155.
            assert_eq!(
                key.address().to_string(),
                "0x9d8A62f656a8d1615C1294fd71e9CFb3E4855A4F"
            );
            assert!(!format!("{key:?}").contains("4646"));
        }
        for bad in ["", "46", &"00".repeat(32), "{}", &"zz".repeat(32)] {
            assert!(EvmKey::parse(bad).is_none(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_bad_file_is_named_without_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "5ecret").unwrap();
        let said = EvmKey::read(&path).await.unwrap_err().to_string();
        assert!(said.contains("key") && !said.contains("5ecret"), "{said}");
        assert!(EvmKey::read(&folder.path().join("none")).await.is_err());
    }
}
