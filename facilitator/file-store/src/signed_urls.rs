//! Signed URLs: each permits its holder to read or to write one file until it expires. Pure.
//!
//! The signature covers bytes of a fixed layout instead of the URL's text, so a proxy may rewrite addresses:
//! [`DOMAIN`], the access (1 byte: 1 read, 2 write), the file (16 bytes), the expiry (8 bytes, big endian, Unix
//! seconds).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hmac::{Hmac, Mac as _};
use muster_protocol::Timestamp;
use serde::Deserialize;
use sha2::Sha256;
use uuid::Uuid;

/// The beginning of the signed bytes. Another layout gets another version number.
pub const DOMAIN: &[u8; 20] = b"muster file url v1\0\0";

/// The id of a file: a uuid in its canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(Uuid);

/// The text is no file id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a file id is a canonical uuid such as 11111111-2222-4333-8444-555555555555")]
pub struct FileIdError;

/// The use that a URL permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// Downloading the content.
    Read,
    /// Uploading the content, and reading the offset of an upload.
    Write,
}

/// The permission that a URL carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrlGrant {
    /// The permitted use.
    pub access: FileAccess,
    /// The file that it is for.
    pub file: FileId,
    /// The expiry, in whole seconds.
    pub until: Timestamp,
}

/// The parameters of a signed URL.
#[derive(Debug, Deserialize)]
pub(crate) struct SignedQuery {
    #[serde(rename = "Expires")]
    pub(crate) expires: String,
    #[serde(rename = "Signature")]
    pub(crate) signature: String,
}

/// The reason why a URL permits nothing. The answer may state which, because the signature reveals nothing about the
/// file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlRejection {
    /// The facilitator did not sign the URL for this file and this use.
    #[error("the URL's signature is not valid for this file and this use")]
    Signature,
    /// The signature is valid, but the URL has expired.
    #[error("the URL has expired; ask the facilitator for a fresh one at /api/v1/files/ID/")]
    Expired,
}

/// The secret that signs URLs.
#[derive(Clone)]
pub struct UrlKey(Vec<u8>);

// === impl FileId ===

impl FileId {
    /// An id from a random uuid, which the caller draws.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for FileId {
    type Err = FileIdError;

    fn from_str(text: &str) -> Result<Self, FileIdError> {
        let uuid = Uuid::parse_str(text).map_err(|_| FileIdError)?;
        let canonical = uuid.hyphenated().to_string() == text;
        canonical.then_some(Self(uuid)).ok_or(FileIdError)
    }
}

// === impl FileAccess, UrlGrant ===

impl FileAccess {
    const fn byte(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
        }
    }

    /// The last segment of the URL's path.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Read => "content",
            Self::Write => "upload",
        }
    }
}

impl UrlGrant {
    /// A permission from `now` that expires after `span`.
    pub fn expiring_after(access: FileAccess, file: FileId, now: Timestamp, span: Duration) -> Self {
        let until = Timestamp::from_secs(now.plus(span).secs());
        Self { access, file, until }
    }

    /// The bytes that are signed.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        let mut bytes = DOMAIN.to_vec();
        bytes.push(self.access.byte());
        bytes.extend_from_slice(self.file.0.as_bytes());
        bytes.extend_from_slice(&self.until.secs().to_be_bytes());
        bytes
    }
}

// === impl UrlKey ===

impl fmt::Debug for UrlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UrlKey(…)")
    }
}

impl UrlKey {
    /// A key from these bytes. All replicas of a facilitator must use the same ones.
    pub fn new(secret: impl Into<Vec<u8>>) -> Self {
        Self(secret.into())
    }

    fn mac(&self, bytes: &[u8]) -> Option<Hmac<Sha256>> {
        // HMAC accepts keys of every length. An error would lead to a signature that never verifies.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(bytes);
        Some(mac)
    }

    /// The signature of these bytes, in hex. They begin with the domain of their layout.
    pub fn sign_bytes(&self, bytes: &[u8]) -> String {
        let mac = self.mac(bytes);
        mac.map(|mac| hex::encode(mac.finalize().into_bytes()))
            .unwrap_or_default()
    }

    /// Whether a text is the signature of these bytes. The comparison takes constant time.
    pub fn verify_bytes(&self, bytes: &[u8], signature: &str) -> bool {
        let given = hex::decode(signature).ok();
        let checked = given
            .zip(self.mac(bytes))
            .map(|(given, mac)| mac.verify_slice(&given));
        checked.is_some_and(|checked| checked.is_ok())
    }

    /// The URL below `base`, which has no slash at its end.
    pub fn url(&self, base: &str, grant: &UrlGrant) -> String {
        let signature = self.sign_bytes(&grant.canonical_bytes());
        let (file, path, until) = (grant.file, grant.access.path(), grant.until.secs());
        // These are the parameters of S3's older signatures. Caches by URL, such as an executor's, leave them out of
        // the key.
        format!("{base}/files/{file}/{path}?Expires={until}&Signature={signature}")
    }

    /// Checks that a URL with these parameters permits the access at `now`.
    ///
    /// # Errors
    /// The signature is wrong, or the URL has expired.
    pub fn check(
        &self,
        access: FileAccess,
        file: FileId,
        expires: &str,
        signature: &str,
        now: Timestamp,
    ) -> Result<(), UrlRejection> {
        let digits = (1..=12).contains(&expires.len()) && expires.bytes().all(|c| c.is_ascii_digit());
        let secs: i64 = digits
            .then(|| expires.parse().ok())
            .flatten()
            .ok_or(UrlRejection::Signature)?;
        let grant = UrlGrant {
            access,
            file,
            until: Timestamp::from_secs(secs),
        };
        if !self.verify_bytes(&grant.canonical_bytes(), signature) {
            return Err(UrlRejection::Signature);
        }
        if now < grant.until {
            Ok(())
        } else {
            Err(UrlRejection::Expired)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grant(access: FileAccess) -> UrlGrant {
        UrlGrant {
            access,
            file: "11111111-2222-4333-8444-555555555555".parse().unwrap(),
            until: Timestamp::from_secs(1_769_000_000),
        }
    }

    fn parts(url: &str) -> (String, String) {
        let url = url::Url::parse(url).unwrap();
        let value = |name: &str| {
            url.query_pairs()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.into_owned())
                .unwrap()
        };
        (value("Expires"), value("Signature"))
    }

    #[test]
    fn the_signed_bytes_and_the_url_are_these() {
        let read = grant(FileAccess::Read);
        assert_eq!(
            hex::encode(read.canonical_bytes()),
            "6d75737465722066696c652075726c20763100000111111111222243338444555555555555000000006970cc40"
        );
        let key = UrlKey::new(*b"0123456789abcdef0123456789abcdef");
        // Checked with Python: hmac.new(key, bytes, "sha256").hexdigest().
        assert_eq!(
            key.url("https://facilitator.example", &read),
            "https://facilitator.example/files/11111111-2222-4333-8444-555555555555/content?Expires=1769000000\
             &Signature=86dc465182fd69f3bd1414d103f751aadab9d2767b3c5c69f3a2f7d1c1b78db2"
        );
        assert_eq!(
            key.url("https://facilitator.example", &grant(FileAccess::Write)),
            "https://facilitator.example/files/11111111-2222-4333-8444-555555555555/upload?Expires=1769000000\
             &Signature=683db8d6f0a03fd21ab0c219e4566938f97ef3cf3a86da5bc03f74efabc2305a"
        );
    }

    #[test]
    fn a_url_is_good_for_its_file_its_use_and_its_time_only() {
        let key = UrlKey::new(*b"secret");
        let read = grant(FileAccess::Read);
        let (expires, signature) = parts(&key.url("http://x", &read));
        let before = Timestamp::from_secs(1_768_999_999);
        let check = |access, file, expires: &str, signature: &str, now| {
            key.check(access, file, expires, signature, now)
        };
        assert_eq!(
            check(FileAccess::Read, read.file, &expires, &signature, before),
            Ok(())
        );
        let wrong = Err(UrlRejection::Signature);
        assert_eq!(
            check(FileAccess::Write, read.file, &expires, &signature, before),
            wrong
        );
        let other = "11111111-2222-4333-8444-555555555556".parse().unwrap();
        assert_eq!(
            check(FileAccess::Read, other, &expires, &signature, before),
            wrong
        );
        assert_eq!(
            check(FileAccess::Read, read.file, "1769000001", &signature, before),
            wrong
        );
        for damaged in ["", "00", &signature[..62], "zz", &"0".repeat(64)] {
            assert_eq!(
                check(FileAccess::Read, read.file, &expires, damaged, before),
                wrong
            );
        }
        for odd in ["", "-1", "+1769000000", "1769000000 ", "99999999999999999999"] {
            assert_eq!(
                check(FileAccess::Read, read.file, odd, &signature, before),
                wrong,
                "{odd}"
            );
        }
        assert_eq!(
            check(FileAccess::Read, read.file, &expires, &signature, read.until),
            Err(UrlRejection::Expired)
        );
        let stranger = UrlKey::new(*b"another");
        assert_eq!(
            stranger.check(FileAccess::Read, read.file, &expires, &signature, before),
            wrong
        );
    }

    proptest! {
        #[test]
        fn no_text_is_a_signature_by_chance(expires in ".{0,20}", signature in "[0-9a-f]{0,80}") {
            let key = UrlKey::new(*b"secret");
            let file = grant(FileAccess::Read).file;
            prop_assert!(key.check(FileAccess::Read, file, &expires, &signature, Timestamp::from_secs(0)).is_err());
        }
    }
}
