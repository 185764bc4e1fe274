//! The secrets of a browser's sign-in: one-time links, session cookies, and the tokens of forms. Pure.

use std::fmt;

use hmac::{Hmac, Mac as _};
use muster_protocol::Digest;
use sha2::Sha256;

use crate::credentials::WebSessionId;

/// The beginning of the bytes that a form's token covers. Another layout gets another version number.
const FORM_DOMAIN: &[u8; 20] = b"muster web form v1\0\0";

/// The secret of a one-time link, of a session's cookie, or of a visit before the sign-in: 256 random bits. Text form:
/// 64 hex digits. Only [`Self::hash`] is ever stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WebSecret([u8; 32]);

/// The key of the tokens that forms carry. All replicas of a facilitator must use the same one.
#[derive(Clone)]
pub struct FormKey(Vec<u8>);

// === impl WebSecret ===

impl WebSecret {
    /// A secret from random bytes, which the caller draws.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads a secret from a link or a cookie.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// The id of the session whose cookie holds this secret.
    pub fn session_id(&self) -> WebSessionId {
        WebSessionId::from_hash(self.hash())
    }

    /// The hash that is stored. 256 random bits need no salt and no slow hash, because they cannot be guessed.
    pub fn hash(&self) -> Digest {
        Digest::of(&self.0)
    }

    /// The secret as text, for the link or the cookie.
    pub fn reveal(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Debug for WebSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebSecret(…)")
    }
}

// === impl FormKey ===

impl FormKey {
    /// A key from these bytes.
    pub fn new(secret: impl Into<Vec<u8>>) -> Self {
        Self(secret.into())
    }

    fn mac(&self, cookie: &WebSecret) -> Option<Hmac<Sha256>> {
        // HMAC accepts keys of every length. An error would lead to a token that never fits.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(FORM_DOMAIN);
        mac.update(&cookie.0);
        Some(mac)
    }

    /// The token of the forms that are sent with this cookie.
    pub fn token(&self, cookie: &WebSecret) -> String {
        self.mac(cookie)
            .map(|mac| hex::encode(mac.finalize().into_bytes()))
            .unwrap_or_default()
    }

    /// Whether a form with this token was made for the browser that has the cookie. The time does not depend on the
    /// token's bytes.
    pub fn fits(&self, cookie: &WebSecret, token: &str) -> bool {
        let mut bytes = [0; 32];
        let read = hex::decode_to_slice(token, &mut bytes).is_ok();
        read && self
            .mac(cookie)
            .is_some_and(|mac| mac.verify_slice(&bytes).is_ok())
    }
}

impl fmt::Debug for FormKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FormKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_secret_is_read_back_and_never_printed() {
        let secret = WebSecret::from_bytes([0xa5; 32]);
        assert_eq!(WebSecret::parse(&secret.reveal()), Some(secret));
        assert!(!format!("{secret:?} {:?}", FormKey::new([0xa5; 32])).contains("a5"));
        assert!(!secret.hash().hex().contains(&"a5".repeat(4)));
        for bad in ["", "a5", &"a5".repeat(33), &"zz".repeat(32)] {
            assert_eq!(WebSecret::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_forms_token_fits_its_own_cookie_under_its_own_key() {
        let (key, cookie) = (FormKey::new([1; 32]), WebSecret::from_bytes([2; 32]));
        let token = key.token(&cookie);
        assert!(key.fits(&cookie, &token));
        assert!(!key.fits(&WebSecret::from_bytes([3; 32]), &token));
        assert!(!FormKey::new([3; 32]).fits(&cookie, &token));
        assert_ne!(token, cookie.reveal());
        assert_ne!(token, cookie.hash().hex());
    }

    proptest! {
        #[test]
        fn no_text_is_a_token_by_chance(text in ".{0,80}") {
            prop_assert!(!FormKey::new([1; 32]).fits(&WebSecret::from_bytes([2; 32]), &text));
        }
    }
}
