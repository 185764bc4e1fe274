//! A user's login at the registry of one job's image: sealed for one reader on its way, and never shown.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest name of an account at a registry, in bytes.
pub const MAX_REGISTRY_USER_BYTES: usize = 256;

/// The longest password at a registry, in bytes. Some registries take tokens of a few kilobytes.
pub const MAX_REGISTRY_PASSWORD_BYTES: usize = 16_384;

/// The longest sealed credentials, in bytes: every byte of both texts may be escaped in JSON.
const MAX_SEALED_BYTES: usize = 8 * (MAX_REGISTRY_USER_BYTES + MAX_REGISTRY_PASSWORD_BYTES);

/// A user name and a password, or a token in its place, for the registry in the name of a job's image. The debug form
/// shows neither.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistryCredentials {
    /// The name of the account at the registry: 1 to 256 bytes.
    pub username: String,
    /// The password: 1 to 16,384 bytes.
    pub password: String,
}

/// [`RegistryCredentials`] that only the holder of one hotkey can read, and only for one image. Text form: base64. The
/// debug form shows the length only.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedCredentials(Vec<u8>);

/// The text is not sealed credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sealed credentials are base64 of at most {MAX_SEALED_BYTES} bytes")]
pub struct SealedCredentialsError;

impl RegistryCredentials {
    /// Whether both texts are within their limits.
    pub fn is_usable(&self) -> bool {
        (1..=MAX_REGISTRY_USER_BYTES).contains(&self.username.len())
            && (1..=MAX_REGISTRY_PASSWORD_BYTES).contains(&self.password.len())
    }
}

impl fmt::Debug for RegistryCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RegistryCredentials(…)")
    }
}

impl SealedCredentials {
    /// Wraps what `muster-identity` has sealed.
    pub const fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The sealed bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SealedCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedCredentials({} bytes)", self.0.len())
    }
}

impl Serialize for SealedCredentials {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for SealedCredentials {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        let bytes = STANDARD.decode(text.as_bytes()).ok();
        bytes
            .filter(|bytes| bytes.len() <= MAX_SEALED_BYTES)
            .map(Self)
            .ok_or_else(|| serde::de::Error::custom(SealedCredentialsError))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_debug_form_shows_a_secret() {
        let login = RegistryCredentials {
            username: "somebody".to_owned(),
            password: "a secret".to_owned(),
        };
        assert_eq!(format!("{login:?}"), "RegistryCredentials(…)");
        let sealed = SealedCredentials::from_bytes(b"a secret".to_vec());
        assert_eq!(format!("{sealed:?}"), "SealedCredentials(8 bytes)");
    }

    #[test]
    fn sealed_credentials_are_base64_and_bounded() {
        let sealed = SealedCredentials::from_bytes(vec![7; 40]);
        let text = serde_json::to_string(&sealed).unwrap();
        assert_eq!(serde_json::from_str::<SealedCredentials>(&text).unwrap(), sealed);
        let long = serde_json::to_string(&SealedCredentials(vec![0; MAX_SEALED_BYTES + 1])).unwrap();
        for bad in ["\"?\"", "7", &long] {
            assert!(serde_json::from_str::<SealedCredentials>(bad).is_err());
        }
    }

    #[test]
    fn empty_and_overlong_credentials_are_unusable() {
        let usable = |user: usize, password: usize| {
            RegistryCredentials {
                username: "x".repeat(user),
                password: "x".repeat(password),
            }
            .is_usable()
        };
        assert!(usable(1, 1) && usable(MAX_REGISTRY_USER_BYTES, MAX_REGISTRY_PASSWORD_BYTES));
        assert!(!usable(0, 1) && !usable(1, 0));
        assert!(!usable(MAX_REGISTRY_USER_BYTES + 1, 1) && !usable(1, MAX_REGISTRY_PASSWORD_BYTES + 1));
    }
}
