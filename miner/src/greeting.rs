//! Authentication of validators: a connection proves its key before any other message of it is read.
//!
//! The errors are in the words of ComputeHorde's miner, because its validators log them for their operators.

use std::time::Duration;

use muster_identity::{AuthError, Verified, verify_validator_auth};
use muster_process::connections::ConnectionBounds;
use muster_process::error::Causes;
use muster_protocol::wire::encode;
use muster_protocol::wire::miner::{GenericError, ValidatorAuth};
use muster_protocol::wire::signing::decode_from_validator;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{Signature, Timestamp, ValidatorKey};
use muster_store::StoreError;
use muster_websocket::{Greeting, SocketError};

use crate::chain::ValidatorAdmission;
use crate::miner_state::{MAX_SESSIONS, MinerState, SessionPermit};

/// How old a greeting may be, and how far ahead of ours its clock.
const MAX_AGE: Duration = Duration::from_secs(10);
const MAX_AHEAD: Duration = Duration::from_secs(10);
/// After this no greeting accepted now can be accepted again; the bounds above are in whole seconds.
const REMEMBERED: Duration = Duration::from_secs(10 + 10 + 2);
/// How long a validator may take to greet.
pub const GREETING_TIME: Duration = Duration::from_secs(10);
/// Connections that have not greeted, at any moment. Each may cost some 200 KiB: the socket takes no more from it.
pub const UNAUTHENTICATED: ConnectionBounds = ConnectionBounds {
    total: 256,
    per_address: 32,
};
/// The number of characters of an unknown peer's text that are echoed.
const MAX_ECHO: usize = 64;

/// The reason for refusing a connection.
#[derive(Debug, thiserror::Error)]
pub enum GreetingRejection {
    /// Not in the metagraph, nor listed; or no key at all.
    #[error("Unknown validator: {0}")]
    Unknown(String),
    /// In the metagraph without a permit.
    #[error("Inactive validator: {0}")]
    Inactive(ValidatorKey),
    /// The operator excluded it.
    #[error("Blacklisted validator: {0}; ask the miner's operator")]
    Blacklisted(ValidatorKey),
    /// It has as many sessions as it can use.
    #[error("Validator {0} has {MAX_SESSIONS} sessions with this miner; close some")]
    TooManySessions(ValidatorKey),
    /// Its greeting does not hold.
    #[error("Validator {0} not authenticated due to: {1}")]
    Auth(ValidatorKey, AuthError),
    /// Its greeting holds and was used before.
    #[error("Validator {0} not authenticated due to: msg already used")]
    Replayed(ValidatorKey),
    /// It did not greet in time.
    #[error("Validator {0} not authenticated due to: no ValidatorAuthForMiner within {time} s", time = GREETING_TIME.as_secs())]
    Late(ValidatorKey),
    /// It sent something else first.
    #[error("Validator {0} not authenticated due to: the first message was not ValidatorAuthForMiner")]
    NotGreeted(ValidatorKey),
    /// Too many other connections have not greeted yet.
    #[error("Validator {0} not authenticated due to: too many connections have not greeted; try again")]
    Crowded(ValidatorKey),
    /// Ours: nothing can be promised now.
    #[error("the miner cannot use its store; try again later")]
    Store(#[source] StoreError),
}

/// The reason for the lack of a session.
#[derive(Debug)]
pub enum NoSession {
    /// The validator receives the reason.
    Refused(GreetingRejection),
    /// The validator left.
    Left,
}

/// Waits for the greeting of a connection to the address of `claimed`: the first message. Nothing behind it is read
/// until it has been checked.
///
/// # Errors
/// Each reason for which the connection does not become a session.
pub async fn greet(
    greeting: &mut Greeting,
    claimed: &str,
    context: &MinerState,
) -> Result<SessionPermit, NoSession> {
    let refused = NoSession::Refused;
    let validator = recognise(claimed, context).map_err(refused)?;
    let Ok(_stranger) = context.strangers.admit(Some(greeting.peer().ip())) else {
        return Err(refused(GreetingRejection::Crowded(validator)));
    };
    let heard = tokio::select! {
        heard = listen(greeting, validator) => heard?,
        () = context.clock.sleep(GREETING_TIME) => return Err(refused(GreetingRejection::Late(validator))),
        () = context.hangup.cancelled() => return Err(NoSession::Left),
    };
    let now = context.clock.now();
    let auth = verify_validator_auth(heard, validator, context.me(), now, MAX_AGE, MAX_AHEAD)
        .map_err(|error| refused(GreetingRejection::Auth(validator, error)))?;
    use_once(&auth, validator, context).await.map_err(refused)?;
    note_greeted(validator, now, context).await;
    let seat = context.seats.acquire(validator);
    seat.ok_or_else(|| refused(GreetingRejection::TooManySessions(validator)))
}

fn recognise(claimed: &str, context: &MinerState) -> Result<ValidatorKey, GreetingRejection> {
    let unknown = || GreetingRejection::Unknown(claimed.chars().take(MAX_ECHO).collect());
    let validator: ValidatorKey = claimed.parse().map_err(|_| unknown())?;
    match context.served.admission(validator) {
        ValidatorAdmission::Served => Ok(validator),
        ValidatorAdmission::Inactive => Err(GreetingRejection::Inactive(validator)),
        ValidatorAdmission::Unknown => Err(unknown()),
        ValidatorAdmission::Blacklisted => Err(GreetingRejection::Blacklisted(validator)),
    }
}

async fn listen(greeting: &mut Greeting, validator: ValidatorKey) -> Result<ValidatorAuth, NoSession> {
    loop {
        let frame = match greeting.receive().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return Err(NoSession::Left),
            Err(error) if error.is_fatal() => {
                tracing::debug!(%validator, error = %Causes(&error), "no greeting came");
                return Err(NoSession::Left);
            }
            Err(error) => {
                complain(greeting, &error.to_string())
                    .await
                    .map_err(|_| NoSession::Left)?;
                continue;
            }
        };
        match decode_from_validator(&frame).map(|signed| signed.message) {
            Ok(ValidatorToMiner::ValidatorAuthForMiner(auth)) => return Ok(auth),
            Ok(_) => return Err(NoSession::Refused(GreetingRejection::NotGreeted(validator))),
            Err(error) if error.is_misplaced() => {
                return Err(NoSession::Refused(GreetingRejection::NotGreeted(validator)));
            }
            Err(error) => complain(greeting, &error.reason)
                .await
                .map_err(|_| NoSession::Left)?,
        }
    }
}

/// A greeting is valid once. The use is durable, so that a replay fails after a restart too.
async fn use_once(
    auth: &Verified<ValidatorAuth>,
    validator: ValidatorKey,
    context: &MinerState,
) -> Result<(), GreetingRejection> {
    let signature: &Signature = &auth.signature;
    let expires = context.clock.now().plus(REMEMBERED);
    match context.store.first_use(signature, expires).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(GreetingRejection::Replayed(validator)),
        Err(error) => {
            tracing::error!(error = %Causes(&error), "a greeting could not be noted");
            Err(GreetingRejection::Store(error))
        }
    }
}

/// From now on the validator is a rival of the others. Should the store fail, it is one until a restart.
async fn note_greeted(validator: ValidatorKey, now: Timestamp, context: &MinerState) {
    context.served.note_greeted(validator, now);
    if let Err(error) = context.store.note_greeted(validator, now).await {
        tracing::warn!(%validator, error = %Causes(&error), "the miner cannot store that a validator has greeted it");
    }
}

async fn complain(greeting: &mut Greeting, reason: &str) -> Result<(), SocketError> {
    greeting.send(malformed(reason)).await
}

/// The frame that reports a malformed frame.
pub fn malformed(reason: &str) -> String {
    error_frame(format!("Malformed message: {reason}"))
}

/// A generic error as a frame for a validator.
pub fn error_frame(details: String) -> String {
    encode(&MinerToValidator::GenericError(GenericError {
        details: Some(details),
        job_uuid: None,
    }))
}
