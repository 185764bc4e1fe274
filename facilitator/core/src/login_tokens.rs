//! Nonces and tokens of the login. Pure: the time is an argument.
//!
//! A nonce is `{32 hex}:{base-62 seconds}:{signature}`. The signature proves who issued it and when, so issuing one
//! needs no store. The store only remembers the used ones, because a nonce is valid once.

use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, crypto};
use muster_protocol::{Timestamp, UserKey};
use serde::{Deserialize, Serialize};

/// The lifetimes of nonces and tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CredentialLifetimes {
    /// From the issue of a nonce to its expiry.
    pub nonce: Duration,
    /// From the issue of a token to its expiry.
    pub token: Duration,
}

/// A nonce or a token cannot be signed. The signing library failed; no request causes this.
#[derive(Debug, thiserror::Error)]
#[error("signing a credential failed; this is the facilitator's fault")]
pub struct IssueError(#[from] jsonwebtoken::errors::Error);

/// The facilitator did not issue the nonce, or it has expired. The protocol has one answer for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the nonce was not issued here, or it has expired; ask for another one")]
pub struct NonceRejection;

/// The reason why a token is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenRejection {
    /// It is no token, or another key signed it.
    #[error("the token was not issued here; log in")]
    Invalid,
    /// It was valid, and has expired.
    #[error("the token has expired; log in again")]
    Expired,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    sub: UserKey,
    iat: i64,
    exp: i64,
}

/// Issues and checks nonces and tokens with the one secret of this facilitator.
pub struct Issuer {
    sign: EncodingKey,
    verify: DecodingKey,
    lifetimes: CredentialLifetimes,
}

// === impl Issuer ===

impl Issuer {
    /// An issuer that signs with `secret`.
    pub fn new(secret: &[u8], lifetimes: CredentialLifetimes) -> Self {
        Self {
            sign: EncodingKey::from_secret(secret),
            verify: DecodingKey::from_secret(secret),
            lifetimes,
        }
    }

    /// Issues a nonce for one login, from random bytes that the caller draws.
    ///
    /// # Errors
    /// See [`IssueError`].
    pub fn issue_nonce(&self, random: [u8; 16], now: Timestamp) -> Result<String, IssueError> {
        let body = format!("{}:{}", hex::encode(random), base62(now.secs().unsigned_abs()));
        let signature = crypto::sign(&nonce_message(&body), &self.sign, Algorithm::HS256)?;
        Ok(format!("{body}:{signature}"))
    }

    /// Checks a nonce and returns the time of its expiry. The store must remember its use until then.
    ///
    /// # Errors
    /// The nonce was not issued here, or it has expired.
    pub fn check_nonce(&self, nonce: &str, now: Timestamp) -> Result<Timestamp, NonceRejection> {
        let (body, signature) = nonce.rsplit_once(':').ok_or(NonceRejection)?;
        let ours = crypto::verify(signature, &nonce_message(body), &self.verify, Algorithm::HS256);
        if !matches!(ours, Ok(true)) {
            return Err(NonceRejection);
        }
        let made = body
            .rsplit_once(':')
            .and_then(|(_, secs)| from_base62(secs))
            .and_then(|secs| i64::try_from(secs).ok())
            .ok_or(NonceRejection)?;
        let end = Timestamp::from_secs(made).plus(self.lifetimes.nonce);
        if now < end { Ok(end) } else { Err(NonceRejection) }
    }

    /// Issues a bearer token for `user`.
    ///
    /// # Errors
    /// See [`IssueError`].
    pub fn issue_token(&self, user: UserKey, now: Timestamp) -> Result<String, IssueError> {
        let exp = now.plus(self.lifetimes.token).secs();
        let claims = Claims {
            sub: user,
            iat: now.secs(),
            exp,
        };
        Ok(jsonwebtoken::encode(
            &Header::new(Algorithm::HS256),
            &claims,
            &self.sign,
        )?)
    }

    /// Checks a token. Returns its user, and the time at which the user's hotkey signed for it.
    ///
    /// # Errors
    /// The token was not issued here, or it has expired.
    pub fn check_token(&self, token: &str, now: Timestamp) -> Result<(UserKey, Timestamp), TokenRejection> {
        let mut rules = Validation::new(Algorithm::HS256);
        // The library would use the system clock; the time is compared below instead.
        rules.validate_exp = false;
        let claims = jsonwebtoken::decode::<Claims>(token, &self.verify, &rules)
            .map_err(|_| TokenRejection::Invalid)?
            .claims;
        if now.secs() < claims.exp {
            Ok((claims.sub, Timestamp::from_secs(claims.iat)))
        } else {
            Err(TokenRejection::Expired)
        }
    }
}

/// The signed bytes of a nonce. A JWT's signed text cannot begin with a colon, so neither credential can pass for the
/// other.
fn nonce_message(body: &str) -> Vec<u8> {
    format!(":nonce:{body}").into_bytes()
}

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

fn base62(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        let digit = usize::try_from(number % 62).unwrap_or_default();
        digits.push(BASE62.get(digit).copied().unwrap_or(b'0'));
        number /= 62;
        if number == 0 {
            break;
        }
    }
    digits.iter().rev().map(|&digit| char::from(digit)).collect()
}

fn from_base62(text: &str) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.bytes().try_fold(0_u64, |number, byte| {
        let digit = BASE62.iter().position(|&known| known == byte)?;
        number.checked_mul(62)?.checked_add(u64::try_from(digit).ok()?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::Hotkey;
    use proptest::prelude::*;

    const LIFETIMES: CredentialLifetimes = CredentialLifetimes {
        nonce: Duration::from_secs(300),
        token: Duration::from_secs(3600),
    };

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(1_769_000_000 + secs)
    }

    fn user() -> UserKey {
        UserKey(Hotkey::from_bytes([7; 32]))
    }

    #[test]
    fn a_nonce_has_three_parts_and_lives_its_time() {
        let issuer = Issuer::new(b"secret", LIFETIMES);
        let nonce = issuer.issue_nonce([1; 16], at(0)).unwrap();
        assert_eq!(nonce.split(':').count(), 3);
        assert_eq!(nonce.split(':').next().unwrap().len(), 32);
        assert_eq!(issuer.check_nonce(&nonce, at(299)), Ok(at(300)));
        assert_eq!(issuer.check_nonce(&nonce, at(300)), Err(NonceRejection));
    }

    #[test]
    fn a_nonce_of_anybody_else_is_refused() {
        let issuer = Issuer::new(b"secret", LIFETIMES);
        let other = Issuer::new(b"other", LIFETIMES);
        let foreign = other.issue_nonce([1; 16], at(0)).unwrap();
        let own = issuer.issue_nonce([1; 16], at(0)).unwrap();
        let moved = own.replacen('0', "1", 1);
        for bad in ["", ":", "::", "a:b:c", "é:é:é", foreign.as_str(), moved.as_str()] {
            assert_eq!(issuer.check_nonce(bad, at(1)), Err(NonceRejection), "{bad}");
        }
    }

    #[test]
    fn a_token_names_its_user_until_it_ends() {
        let issuer = Issuer::new(b"secret", LIFETIMES);
        let token = issuer.issue_token(user(), at(0)).unwrap();
        assert_eq!(issuer.check_token(&token, at(3599)), Ok((user(), at(0))));
        assert_eq!(issuer.check_token(&token, at(3600)), Err(TokenRejection::Expired));
        let foreign = Issuer::new(b"other", LIFETIMES);
        assert_eq!(foreign.check_token(&token, at(0)), Err(TokenRejection::Invalid));
    }

    #[test]
    fn neither_credential_passes_for_the_other_and_none_is_no_algorithm() {
        let issuer = Issuer::new(b"secret", LIFETIMES);
        let nonce = issuer.issue_nonce([1; 16], at(0)).unwrap();
        let token = issuer.issue_token(user(), at(0)).unwrap();
        // {"typ":"JWT","alg":"none"}
        let unsigned = format!(
            "eyJ0eXAiOiJKV1QiLCJhbGciOiJub25lIn0.{}.",
            token.split('.').nth(1).unwrap()
        );
        for bad in [nonce.as_str(), unsigned.as_str(), "", "a.b.c", "Bearer"] {
            assert_eq!(
                issuer.check_token(bad, at(0)),
                Err(TokenRejection::Invalid),
                "{bad}"
            );
        }
        assert_eq!(issuer.check_nonce(&token, at(0)), Err(NonceRejection));
    }

    proptest! {
        #[test]
        fn base62_round_trips(number: u64) {
            prop_assert_eq!(from_base62(&base62(number)), Some(number));
        }

        #[test]
        fn no_text_is_a_nonce_or_a_token_by_chance(text in ".{0,120}") {
            let issuer = Issuer::new(b"secret", LIFETIMES);
            prop_assert!(issuer.check_nonce(&text, at(0)).is_err());
            prop_assert!(issuer.check_token(&text, at(0)).is_err());
        }
    }
}
