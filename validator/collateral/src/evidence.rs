//! The digests of an evidence file.

use md5::{Digest as _, Md5};
use muster_protocol::Digest;
use serde::{Deserialize, Serialize};

/// The digests of the file that shows why a miner is slashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Evidence {
    /// SHA-256 of the file, which identifies it in this validator's store.
    pub sha256: Digest,
    /// MD5 of the file, which the contract records. It identifies a file for people and protects nothing.
    #[serde(with = "md5_text")]
    pub md5: [u8; 16],
}

impl Evidence {
    /// The digests of a file's bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            sha256: Digest::of(bytes),
            md5: Md5::digest(bytes).into(),
        }
    }

    /// MD5 in hexadecimal.
    pub fn md5_hex(&self) -> String {
        hex::encode(self.md5)
    }
}

/// The 16 bytes as 32 hexadecimal digits.
mod md5_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(md5: &[u8; 16], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex::encode(md5))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 16], D::Error> {
        let text = String::deserialize(from)?;
        let mut md5 = [0; 16];
        hex::decode_to_slice(text, &mut md5).map_err(D::Error::custom)?;
        Ok(md5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digests_are_those_of_the_standard_tools() {
        // `printf abc | sha256sum` and `printf abc | md5sum`.
        let evidence = Evidence::of(b"abc");
        let shown = serde_json::to_value(evidence).unwrap();
        assert_eq!(shown["md5"], "900150983cd24fb0d6963f7d28e17f72");
        let sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(shown["sha256"].as_str().unwrap().ends_with(sha), "{shown}");
        assert_eq!(serde_json::from_value::<Evidence>(shown).unwrap(), evidence);
    }
}
