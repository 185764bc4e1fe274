//! Accounts, and the API keys that give access to them without a hotkey.

use std::fmt;
use std::str::FromStr;

use muster_protocol::{Digest, UserKey};

/// The owner of jobs, API keys and limits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Account {
    /// The account of a hotkey. It needs no set-up.
    Hotkey(UserKey),
    /// An account without a hotkey. An administrator creates its first API key.
    Named(AccountName),
}

/// The name of an account: 1 to 32 of `a-z 0-9 . _ -`, beginning with a letter or a digit. An ss58 address is longer,
/// so no name can be one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccountName(String);

/// The text is neither an address nor an account's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an account is a hotkey's address, or 1 to 32 of a-z, 0-9, '.', '_' and '-' beginning with a letter or a digit"
)]
pub struct AccountError;

/// The credential that a request was authenticated with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// A token, which a login with the hotkey returned.
    Hotkey,
    /// An API key.
    ApiKey(KeyId),
    /// The cookie of a browser that a login with the hotkey has signed in.
    Browser(WebSessionId),
}

/// The id of a browser's session: the hash of the secret in its cookie. Text form: `web_` and 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WebSessionId(Digest);

/// The id of an API key. It is not secret. Text form: `key_` and a uuid without hyphens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId(uuid::Uuid);

/// The text is no id of an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an API key's id is `key_` and 32 hex digits")]
pub struct KeyIdError;

/// An API key. Text form: `msk_` and 64 hex digits. Only [`Self::hash`] is ever stored.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKeySecret([u8; 32]);

/// The beginning of every API key. It distinguishes a key from a token, and lets scanners find leaked keys.
const SECRET_PREFIX: &str = "msk_";

// === impl Account ===

impl Account {
    /// The hotkey of the account, if it has one.
    pub fn hotkey(&self) -> Option<UserKey> {
        match self {
            Self::Hotkey(key) => Some(*key),
            Self::Named(_) => None,
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hotkey(key) => key.fmt(f),
            Self::Named(AccountName(name)) => f.write_str(name),
        }
    }
}

impl FromStr for Account {
    type Err = AccountError;

    fn from_str(text: &str) -> Result<Self, AccountError> {
        match text.parse() {
            Ok(key) => Ok(Self::Hotkey(key)),
            Err(_) => text.parse().map(Self::Named),
        }
    }
}

impl FromStr for AccountName {
    type Err = AccountError;

    fn from_str(text: &str) -> Result<Self, AccountError> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let first = text.bytes().next().is_some_and(plain);
        let rest = text.bytes().all(|byte| plain(byte) || b"._-".contains(&byte));
        if first && rest && text.len() <= 32 {
            Ok(Self(text.to_owned()))
        } else {
            Err(AccountError)
        }
    }
}

// === impl Credential, WebSessionId, KeyId ===

impl fmt::Display for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hotkey => f.write_str("hotkey"),
            Self::ApiKey(id) => id.fmt(f),
            Self::Browser(_) => f.write_str("browser"),
        }
    }
}

impl WebSessionId {
    /// The id of the session whose cookie has this hash.
    pub const fn from_hash(hash: Digest) -> Self {
        Self(hash)
    }

    /// The hash of the secret in the session's cookie.
    pub const fn hash(&self) -> &Digest {
        &self.0
    }
}

impl fmt::Display for WebSessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "web_{}", self.0.hex())
    }
}

impl KeyId {
    /// An id from a random uuid, which the caller draws.
    pub const fn from_uuid(uuid: uuid::Uuid) -> Self {
        Self(uuid)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key_{}", self.0.simple())
    }
}

impl FromStr for KeyId {
    type Err = KeyIdError;

    fn from_str(text: &str) -> Result<Self, KeyIdError> {
        let digits = text.strip_prefix("key_").ok_or(KeyIdError)?;
        if digits.len() != 32 || digits.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(KeyIdError);
        }
        uuid::Uuid::try_parse(digits).map(Self).map_err(|_| KeyIdError)
    }
}

// === impl ApiKeySecret ===

impl ApiKeySecret {
    /// A key from 32 random bytes, which the caller draws.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads a key from a bearer token; `None` for any other text, such as a login's token.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(SECRET_PREFIX)?;
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// The hash that is stored. 256 random bits need no salt and no slow hash, because they cannot be guessed.
    pub fn hash(&self) -> Digest {
        Digest::of(&[SECRET_PREFIX.as_bytes(), self.0.as_slice()].concat())
    }

    /// The key as text. Its owner sees it once.
    pub fn reveal(&self) -> String {
        format!("{SECRET_PREFIX}{}", hex::encode(self.0))
    }
}

impl fmt::Debug for ApiKeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKeySecret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::Hotkey;
    use proptest::prelude::*;

    #[test]
    fn names_and_addresses_are_never_mistaken_for_one_another() {
        let hotkey = UserKey(Hotkey::from_bytes([7; 32]));
        assert_eq!(hotkey.to_string().parse(), Ok(Account::Hotkey(hotkey)));
        assert!(hotkey.to_string().parse::<AccountName>().is_err());
        let alice: Account = "alice.b-1_".parse().unwrap();
        assert_eq!((alice.to_string().as_str(), alice.hotkey()), ("alice.b-1_", None));
        for bad in ["", "-a", "Alice", "a b", "é", &"a".repeat(33), "a/b"] {
            assert_eq!(bad.parse::<Account>(), Err(AccountError), "{bad}");
        }
    }

    #[test]
    fn a_key_is_read_back_and_never_printed() {
        let secret = ApiKeySecret::from_bytes([0xa5; 32]);
        let text = secret.reveal();
        assert_eq!(text, format!("msk_{}", "a5".repeat(32)));
        assert_eq!(ApiKeySecret::parse(&text), Some(secret.clone()));
        assert!(!format!("{secret:?}").contains("a5"));
        assert_ne!(secret.hash(), ApiKeySecret::from_bytes([0xa4; 32]).hash());
        assert!(!secret.hash().hex().contains(&"a5".repeat(32)));
    }

    #[test]
    fn the_id_of_a_key_has_one_text() {
        let id = KeyId::from_uuid(uuid::Uuid::from_u128(7));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(Credential::ApiKey(id).to_string(), id.to_string());
        for bad in ["", "key_", "key_x", "7", &id.to_string().to_uppercase()] {
            assert_eq!(bad.parse::<KeyId>(), Err(KeyIdError), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_a_key_by_chance(text in "(msk_)?.{0,80}") {
            if let Some(secret) = ApiKeySecret::parse(&text) {
                prop_assert_eq!(secret.reveal().to_lowercase(), text.to_lowercase());
            }
            prop_assert!(text.parse::<KeyId>().is_err());
        }
    }
}
