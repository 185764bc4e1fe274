//! The door for validators: who connects proves its key before anything it says is listened to.
//!
//! The errors are in the words of ComputeHorde's miner, because its validators log them for their operators.

use std::time::Duration;

use muster_identity::{AuthError, Verified, verify_auth};
use muster_kit::error::Causes;
use muster_kit::store::StoreError;
use muster_protocol::wire::encode;
use muster_protocol::wire::miner::{FromMiner, GenericError, ToMiner, ValidatorAuth};
use muster_protocol::wire::signing::decode_from_validator;
use muster_protocol::{Signature, ValidatorKey};
use muster_rpc::{Greeting, SocketError};

use crate::context::Context;
use crate::served::Standing;

/// How old a greeting may be, and how far ahead of ours its clock.
const MAX_AGE: Duration = Duration::from_secs(10);
const MAX_AHEAD: Duration = Duration::from_secs(10);
/// After this no greeting accepted now can be accepted again; the bounds above are in whole seconds.
const REMEMBERED: Duration = Duration::from_secs(10 + 10 + 2);
/// How long a validator may take to greet.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// How much may arrive before the greeting: offers hold their inputs, so bytes count as well as frames.
const MAX_QUEUED: usize = 16;
const MAX_QUEUED_BYTES: usize = 64 * 1024 * 1024;
/// Enough of a stranger's text to recognise it.
const MAX_ECHO: usize = 64;

/// Why a connection is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Not in the metagraph, nor listed; or no key at all.
    #[error("Unknown validator: {0}")]
    Unknown(String),
    /// In the metagraph without a permit.
    #[error("Inactive validator: {0}")]
    Inactive(ValidatorKey),
    /// Its greeting does not hold.
    #[error("Validator {0} not authenticated due to: {1}")]
    Auth(ValidatorKey, AuthError),
    /// Its greeting holds and was used before.
    #[error("Validator {0} not authenticated due to: msg already used")]
    Replayed(ValidatorKey),
    /// It did not greet in time.
    #[error("Validator {0} not authenticated due to: no ValidatorAuthForMiner within {time} s", time = GREETING_TIME.as_secs())]
    Late(ValidatorKey),
    /// It sent too much before greeting.
    #[error("Validator {0} not authenticated due to: too much was sent before ValidatorAuthForMiner")]
    Flood(ValidatorKey),
    /// Ours: nothing can be promised now.
    #[error("the miner cannot use its store; try again later")]
    Store(#[source] StoreError),
}

/// Why there is no session.
#[derive(Debug)]
pub enum NoSession {
    /// The validator is told why.
    Refused(Refusal),
    /// The validator left.
    Left,
}

/// A validator that has proved its key, with what it said before.
#[derive(Debug)]
pub struct Greeted {
    /// Who it is.
    pub validator: ValidatorKey,
    /// Frames that arrived before the greeting, in order.
    pub queued: Vec<String>,
}

/// Waits for the greeting of whoever connected at the address of `claimed`.
///
/// # Errors
/// Every way in which it does not become a session.
pub async fn greet(greeting: &mut Greeting, claimed: &str, context: &Context) -> Result<Greeted, NoSession> {
    let validator = recognise(claimed, context).map_err(NoSession::Refused)?;
    let mut queue = Queue::default();
    let heard = tokio::select! {
        heard = listen(greeting, &mut queue, validator) => heard?,
        () = context.clock.sleep(GREETING_TIME) => return Err(NoSession::Refused(Refusal::Late(validator))),
        () = context.hangup.cancelled() => return Err(NoSession::Left),
    };
    let refuse = |error| NoSession::Refused(Refusal::Auth(validator, error));
    let now = context.clock.now();
    let auth = verify_auth(heard, validator, context.me(), now, MAX_AGE, MAX_AHEAD).map_err(refuse)?;
    use_once(&auth, validator, context)
        .await
        .map_err(NoSession::Refused)?;
    Ok(Greeted {
        validator,
        queued: queue.frames,
    })
}

fn recognise(claimed: &str, context: &Context) -> Result<ValidatorKey, Refusal> {
    let unknown = || Refusal::Unknown(claimed.chars().take(MAX_ECHO).collect());
    let validator: ValidatorKey = claimed.parse().map_err(|_| unknown())?;
    match context.served.standing(validator) {
        Standing::Served => Ok(validator),
        Standing::Inactive => Err(Refusal::Inactive(validator)),
        Standing::Unknown => Err(unknown()),
    }
}

async fn listen(
    greeting: &mut Greeting,
    queue: &mut Queue,
    validator: ValidatorKey,
) -> Result<ValidatorAuth, NoSession> {
    loop {
        let frame = match greeting.receive().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return Err(NoSession::Left),
            Err(error) if error.is_fatal() => return Err(NoSession::Left),
            Err(error) => {
                complain(greeting, &error.to_string())
                    .await
                    .map_err(|_| NoSession::Left)?;
                continue;
            }
        };
        let greets = match decode_from_validator(&frame) {
            Ok(signed) => match signed.message {
                ToMiner::ValidatorAuthForMiner(auth) => Some(auth),
                ToMiner::V0MainHotkeyMessage(_)
                | ToMiner::V0InitialJobRequest(_)
                | ToMiner::V0JobRequest(_)
                | ToMiner::V0JobAcceptedReceiptRequest(_)
                | ToMiner::V0JobFinishedReceiptRequest(_)
                | ToMiner::GenericError(_)
                | ToMiner::MusterCancelJob(_) => None,
            },
            Err(error) => {
                complain(greeting, &error.reason)
                    .await
                    .map_err(|_| NoSession::Left)?;
                continue;
            }
        };
        match greets {
            Some(auth) => return Ok(auth),
            None if queue.push(frame) => {}
            None => return Err(NoSession::Refused(Refusal::Flood(validator))),
        }
    }
}

/// A greeting opens the door once. Durable, so that a restart does not open it to a replay.
async fn use_once(
    auth: &Verified<ValidatorAuth>,
    validator: ValidatorKey,
    context: &Context,
) -> Result<(), Refusal> {
    let signature: &Signature = &auth.signature;
    let expires = context.clock.now().plus(REMEMBERED);
    match context.store.first_use(signature, expires).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Refusal::Replayed(validator)),
        Err(error) => {
            tracing::error!(error = %Causes(&error), "a greeting could not be noted");
            Err(Refusal::Store(error))
        }
    }
}

async fn complain(greeting: &mut Greeting, reason: &str) -> Result<(), SocketError> {
    greeting.send(malformed(reason)).await
}

/// What came before the greeting, bounded.
#[derive(Debug, Default)]
struct Queue {
    frames: Vec<String>,
    bytes: usize,
}

impl Queue {
    /// False if it does not fit.
    fn push(&mut self, frame: String) -> bool {
        self.bytes = self.bytes.saturating_add(frame.len());
        self.frames.push(frame);
        self.frames.len() <= MAX_QUEUED && self.bytes <= MAX_QUEUED_BYTES
    }
}

/// The frame that says what was wrong with a frame.
pub fn malformed(reason: &str) -> String {
    error_frame(format!("Malformed message: {reason}"))
}

/// A generic error as a frame for a validator.
pub fn error_frame(details: String) -> String {
    encode(&FromMiner::GenericError(GenericError {
        details: Some(details),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_the_greeting_is_bounded_both_ways() {
        let mut queue = Queue::default();
        assert!((0..MAX_QUEUED).all(|_| queue.push("x".to_owned())));
        assert!(!queue.push("x".to_owned()));
        let mut queue = Queue::default();
        assert!(!queue.push("x".repeat(MAX_QUEUED_BYTES + 1)));
    }
}
