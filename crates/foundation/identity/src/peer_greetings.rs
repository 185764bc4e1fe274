//! Greetings: messages by which a peer shows at the start of a connection which key it holds.

use std::time::Duration;

use muster_protocol::login::{LoginHost, NonceText};
use muster_protocol::wire::facilitator::Authentication;
use muster_protocol::wire::miner::ValidatorAuth;
use muster_protocol::wire::muster::ChallengeNonce;
use muster_protocol::wire::signing;
use muster_protocol::{ErrorCode, Hotkey, MinerKey, Signature, Timestamp, UserKey, ValidatorKey};

use crate::key::Keypair;
use crate::signing_message::SigningMessage;
use crate::verified::Verified;
use crate::verify::{Party, VerifyError, require, verify};

/// The reason why a validator's greeting was refused, in the words of ComputeHorde's miner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The greeting was written too long ago.
    #[error("msg too old")]
    TooOld,
    /// The greeting was written later than now. ComputeHorde accepts such a greeting, which can then be replayed for
    /// years.
    #[error("msg from the future")]
    Future,
    /// The greeting is meant for another miner.
    #[error("wrong miner hotkey ({0})")]
    WrongMiner(MinerKey),
    /// The greeting names another validator than the address it came in at.
    #[error("wrong validator hotkey ({0})")]
    WrongValidator(ValidatorKey),
    /// The validator that the greeting names did not sign it.
    #[error("Signature mismatches")]
    Signature,
}

impl AuthError {
    /// The error's code, which has a page in `docs/errors/`.
    pub const fn code(&self) -> ErrorCode {
        ErrorCode::SignatureRefused
    }
}

/// A validator's greeting to a miner. It is valid for seconds, so each connection needs a new one.
pub fn sign_validator_auth(validator: &Keypair, miner: MinerKey, now: Timestamp) -> ValidatorAuth {
    let validator_hotkey = ValidatorKey(validator.hotkey());
    let timestamp = now.secs();
    ValidatorAuth {
        validator_hotkey,
        miner_hotkey: miner,
        timestamp,
        signature: validator.sign(&SigningMessage::built(signing::validator_auth(
            validator_hotkey,
            miner,
            timestamp,
        ))),
    }
}

/// Checks a validator's greeting, which came in at the address of `validator` and is meant for `me`.
///
/// It may be `max_age` old, and `max_ahead` early where clocks differ. Within that span it can be replayed: the caller
/// remembers the signatures it has seen for `max_age + max_ahead`.
///
/// # Errors
/// The reason, in the wire's words.
pub fn verify_validator_auth(
    auth: ValidatorAuth,
    validator: ValidatorKey,
    me: MinerKey,
    now: Timestamp,
    max_age: Duration,
    max_ahead: Duration,
) -> Result<Verified<ValidatorAuth>, AuthError> {
    // The peer's number may be anything, so the age is computed in 128 bits.
    let age = i128::from(now.secs()) - i128::from(auth.timestamp);
    if age > i128::from(max_age.as_secs()) {
        return Err(AuthError::TooOld);
    }
    if -age > i128::from(max_ahead.as_secs()) {
        return Err(AuthError::Future);
    }
    if auth.miner_hotkey != me {
        return Err(AuthError::WrongMiner(auth.miner_hotkey));
    }
    if auth.validator_hotkey != validator {
        return Err(AuthError::WrongValidator(auth.validator_hotkey));
    }
    if !verify(&validator.0, &auth.signed_bytes(), &auth.signature) {
        return Err(AuthError::Signature);
    }
    Ok(Verified::new(auth))
}

/// A validator's greeting to its facilitator: the key signs itself.
pub fn sign_facilitator_auth(validator: &Keypair) -> Authentication {
    let key = validator.hotkey();
    Authentication {
        public_key: hex::encode(key.as_bytes()),
        signature: validator.sign(&SigningMessage::built(*key.as_bytes())),
    }
}

/// Checks a validator's greeting to a facilitator.
///
/// The greeting never changes, so any party that has seen it can repeat it: it claims a key and proves no presence.
///
/// # Errors
/// `public_key` is not a key, or did not sign.
pub fn verify_facilitator_auth(auth: &Authentication) -> Result<Verified<ValidatorKey>, VerifyError> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(&auth.public_key, &mut bytes).map_err(|_| VerifyError::PublicKey)?;
    let key = Hotkey::from_bytes(bytes);
    require(Party::Validator, key, &bytes, &auth.signature)?;
    Ok(Verified::new(ValidatorKey(key)))
}

/// A validator's answer to its facilitator's challenge, which proves that its greeting was not replayed.
pub fn answer_challenge(validator: &Keypair, nonce: &ChallengeNonce) -> Signature {
    let key = ValidatorKey(validator.hotkey());
    validator.sign(&SigningMessage::built(signing::facilitator_challenge(nonce, key)))
}

/// Checks a validator's answer to a challenge. The caller ensures that the nonce was drawn for this connection.
///
/// # Errors
/// The key did not sign this nonce.
pub fn verify_challenge(
    validator: ValidatorKey,
    nonce: &ChallengeNonce,
    signature: &Signature,
) -> Result<Verified<ValidatorKey>, VerifyError> {
    let message = signing::facilitator_challenge(nonce, validator);
    require(Party::Validator, validator.0, &message, signature)?;
    Ok(Verified::new(validator))
}

/// The text that a login signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginForm {
    /// The nonce alone, as ComputeHorde's SDK and browsers' wallets sign it. It may have been signed for another party,
    /// which has sent it on.
    Nonce,
    /// The nonce with the host of one facilitator.
    Bound,
}

/// Signs a login as its user: for the facilitator at `host` alone, or for whatever party has drawn the nonce.
///
/// `host` is the one that the client itself has dialled.
pub fn sign_login(user: &Keypair, nonce: &NonceText, host: Option<&LoginHost>) -> Signature {
    match host {
        Some(host) => user.sign(&SigningMessage::bound_login(host, nonce)),
        None => user.sign(&SigningMessage::login(nonce)),
    }
}

/// Checks a user's login at the facilitator at `host`, and returns what was signed. The caller ensures that the nonce
/// is its own, fresh and unused.
///
/// # Errors
/// The key signed neither the nonce nor the nonce with this host.
pub fn verify_login(
    user: UserKey,
    nonce: &NonceText,
    host: Option<&LoginHost>,
    signature: &Signature,
) -> Result<Verified<LoginForm>, VerifyError> {
    if let Some(host) = host
        && verify(&user.0, nonce.bound_to(host).as_bytes(), signature)
    {
        return Ok(Verified::new(LoginForm::Bound));
    }
    require(Party::User, user.0, nonce.as_str().as_bytes(), signature)?;
    Ok(Verified::new(LoginForm::Nonce))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_answered_by_its_own_key_and_for_its_own_nonce_only() {
        let (pair, other) = (Keypair::from_seed([1; 32]), Keypair::from_seed([2; 32]));
        let key = ValidatorKey(pair.hotkey());
        let nonce = ChallengeNonce::from_bytes([3; 32]);
        let answer = answer_challenge(&pair, &nonce);
        assert!(verify_challenge(key, &nonce, &answer).is_ok());
        assert!(verify_challenge(key, &ChallengeNonce::from_bytes([4; 32]), &answer).is_err());
        assert!(verify_challenge(key, &nonce, &answer_challenge(&other, &nonce)).is_err());
        assert!(verify_challenge(key, &nonce, &sign_facilitator_auth(&pair).signature).is_err());
    }
}
