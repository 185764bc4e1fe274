//! sr25519 key pairs, made from randomness, seeds, mnemonics and secret URIs.

use std::fmt;

use muster_protocol::{Hotkey, Signature};
use sp_core::Pair as _;
use sp_core::sr25519;

use crate::signing_message::SigningMessage;

/// The text or bytes are not a secret. The error quotes nothing of the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The text is not a mnemonic.
    #[error(
        "not a secret phrase: it is 12 to 24 words of the BIP-39 English list, the last of which is a checksum"
    )]
    Phrase,
    /// The text is not a Substrate secret URI.
    #[error("not a secret URI: write `//Name` for a development key, or a phrase with a derivation path")]
    Uri,
    /// The bytes are not 32 or 64 bytes that make a key.
    #[error("not a secret key: 32 bytes of a seed or 64 of an expanded key are needed")]
    Bytes,
}

/// An sr25519 key pair. Its debug form is its address only.
#[derive(Clone)]
pub struct Keypair(sr25519::Pair);

impl Keypair {
    /// A new key from the operating system's randomness.
    pub fn generate() -> Self {
        Self(sr25519::Pair::generate().0)
    }

    /// A new key, the twelve words that restore it, and its seed.
    pub(crate) fn generate_with_seed() -> (Self, String, [u8; 32]) {
        let (pair, phrase, seed) = sr25519::Pair::generate_with_phrase(None);
        (Self(pair), phrase, seed)
    }

    /// The key of a 32-byte seed (a schnorrkel mini secret key, expanded as Ed25519 does).
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(sr25519::Pair::from_seed(&seed))
    }

    /// The key of a mnemonic without a password, as Bittensor's wallet derives it.
    ///
    /// # Errors
    /// `phrase` is not a mnemonic.
    pub fn from_phrase(phrase: &str) -> Result<Self, SecretError> {
        let made = sr25519::Pair::from_phrase(phrase, None).map_err(|_| SecretError::Phrase)?;
        Ok(Self(made.0))
    }

    /// The key of a Substrate secret URI; `//Alice` and the like are development keys that are publicly known.
    ///
    /// # Errors
    /// `uri` is not a secret URI.
    pub fn from_uri(uri: &str) -> Result<Self, SecretError> {
        sr25519::Pair::from_string(uri, None)
            .map(Self)
            .map_err(|_| SecretError::Uri)
    }

    /// The key of 64 bytes as Substrate exports them: an expanded secret key.
    pub(crate) fn from_expanded(bytes: &[u8]) -> Result<Self, SecretError> {
        match bytes.len() {
            64 => sr25519::Pair::from_seed_slice(bytes)
                .map(Self)
                .map_err(|_| SecretError::Bytes),
            _ => Err(SecretError::Bytes),
        }
    }

    /// The expanded secret key, 64 bytes, for a wallet file.
    pub(crate) fn expanded(&self) -> Vec<u8> {
        self.0.to_raw_vec()
    }

    /// The public key. Roles wrap it: `ValidatorKey(keypair.hotkey())`.
    pub fn hotkey(&self) -> Hotkey {
        Hotkey::from_bytes(self.0.public().0)
    }

    /// Signs `message` in Substrate's context. Two signatures of one message differ because each holds randomness.
    pub fn sign(&self, message: &SigningMessage) -> Signature {
        Signature::from_bytes(self.0.sign(message.as_bytes()).0)
    }

    /// The pair itself, for what is no signature: sealed texts and proven outputs.
    pub(crate) fn pair(&self) -> &sr25519::Pair {
        &self.0
    }
}

impl fmt::Debug for Keypair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keypair({})", self.hotkey())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Substrate's development phrase, which `//Alice` is derived from, and the address of its bare key.
    const DEV_PHRASE: &str = "bottom drive obey lake curtain smoke basket hold race lonely fit walk";
    const DEV_ADDRESS: &str = "5DfhGyQdFobKM8NsWvEeAKk5EQQgYe9AydgJ7rMB6E1EqRzV";
    const ALICE: &str = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";

    #[test]
    fn phrases_and_uris_give_the_published_addresses() {
        assert_eq!(
            Keypair::from_phrase(DEV_PHRASE).unwrap().hotkey().to_string(),
            DEV_ADDRESS
        );
        assert_eq!(Keypair::from_uri("//Alice").unwrap().hotkey().to_string(), ALICE);
        let spelled = format!("{DEV_PHRASE}//Alice");
        assert_eq!(Keypair::from_uri(&spelled).unwrap().hotkey().to_string(), ALICE);
    }

    #[test]
    fn malformed_secrets_are_refused() {
        assert_eq!(
            Keypair::from_phrase("one two three").unwrap_err(),
            SecretError::Phrase
        );
        assert_eq!(Keypair::from_phrase("//Alice").unwrap_err(), SecretError::Phrase);
        assert_eq!(Keypair::from_uri("not a secret").unwrap_err(), SecretError::Uri);
        assert_eq!(Keypair::from_expanded(&[1; 32]).unwrap_err(), SecretError::Bytes);
    }

    #[test]
    fn every_form_of_one_secret_is_one_key() {
        let (pair, phrase, seed) = Keypair::generate_with_seed();
        assert_eq!(phrase.split(' ').count(), 12);
        assert_eq!(Keypair::from_phrase(&phrase).unwrap().hotkey(), pair.hotkey());
        assert_eq!(Keypair::from_seed(seed).hotkey(), pair.hotkey());
        let again = Keypair::from_expanded(&pair.expanded()).unwrap();
        assert_eq!(again.hotkey(), pair.hotkey());
        let signature = again.sign(&SigningMessage::built(b"x"));
        assert!(crate::verify(&pair.hotkey(), b"x", &signature));
    }

    #[test]
    fn debug_shows_the_address_and_nothing_else() {
        let pair = Keypair::from_seed([7; 32]);
        assert_eq!(format!("{pair:?}"), format!("Keypair({})", pair.hotkey()));
    }
}
