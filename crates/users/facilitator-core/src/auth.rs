//! Nonces and tokens of the login: pure rules over an injected time.
//!
//! A nonce is `{32 hex}:{base-62 seconds}:{signature}`. It carries its own proof that we made it and when, so asking for
//! one costs the store nothing; that it is used once only is the store's to say.

use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, crypto};
use muster_protocol::{Timestamp, UserKey};
use serde::{Deserialize, Serialize};

/// How long what we issue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CredentialLifetimes {
    /// Of a nonce.
    pub nonce: Duration,
    /// Of a token.
    pub token: Duration,
}

/// Why a nonce or a token could not be made: a defect of the signing library, never the user's doing.
#[derive(Debug, thiserror::Error)]
#[error("signing a credential failed; this is the facilitator's fault")]
pub struct IssueError(#[from] jsonwebtoken::errors::Error);

/// A nonce that we did not make, or that is too old. The wire has one answer for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the nonce is not one of ours, or it has expired; ask for another one")]
pub struct NonceRejection;

/// Why a token does not name a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenRejection {
    /// Not signed by us, or not a token at all.
    #[error("the token is not one of ours; log in")]
    Invalid,
    /// Ours, and over.
    #[error("the token has expired; log in again")]
    Expired,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    sub: UserKey,
    iat: i64,
    exp: i64,
}

/// Makes and checks credentials with the one secret of this facilitator.
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

    /// A nonce for one login, out of randomness that the caller drew.
    ///
    /// # Errors
    /// See [`IssueError`].
    pub fn issue_nonce(&self, random: [u8; 16], now: Timestamp) -> Result<String, IssueError> {
        let body = format!("{}:{}", hex::encode(random), base62(now.secs().unsigned_abs()));
        let signature = crypto::sign(&nonce_message(&body), &self.sign, Algorithm::HS256)?;
        Ok(format!("{body}:{signature}"))
    }

    /// When a nonce of ours ends, which is how long its use must be remembered.
    ///
    /// # Errors
    /// The nonce is not ours or is over.
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

    /// A bearer token of `user`.
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

    /// Whose token this is.
    ///
    /// # Errors
    /// The token is not ours or is over.
    pub fn check_token(&self, token: &str, now: Timestamp) -> Result<UserKey, TokenRejection> {
        let mut rules = Validation::new(Algorithm::HS256);
        // The library would ask the machine's clock; the time is compared below instead.
        rules.validate_exp = false;
        let claims = jsonwebtoken::decode::<Claims>(token, &self.verify, &rules)
            .map_err(|_| TokenRejection::Invalid)?
            .claims;
        if now.secs() < claims.exp {
            Ok(claims.sub)
        } else {
            Err(TokenRejection::Expired)
        }
    }
}

/// The colon-led tag cannot begin a JWT's signed text, so neither credential can pass for the other.
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
        assert_eq!(issuer.check_token(&token, at(3599)), Ok(user()));
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
