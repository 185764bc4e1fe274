//! The greeting of a connection: the validator authenticates, and a Muster validator also answers a challenge.

use muster_facilitator_core::connections::{Trust, is_recent_proof};
use muster_process::error::Causes;
use muster_protocol::ValidatorKey;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{FromFacilitator, Response};
use muster_protocol::wire::muster::{Challenge, ChallengeNonce};
use muster_websocket::{CloseCode, Greeting, PeerSession};

use super::frames::{self, GreetingVerdict, ValidatorPeer};
use super::services::SessionServices;

/// Exchanges frames until the peer is an authenticated, served validator; `None` if it is not going to be one.
pub(super) async fn greet(
    greeting: Greeting,
    services: &SessionServices,
) -> Option<(PeerSession<ValidatorPeer>, Trust)> {
    let (mut greeting, key) = receive_until_accepted(greeting, |frame| {
        frames::judge_greeting(frame, |key| services.allowlist.admits(key))
    })
    .await?;
    let trust = if greeting.is_muster() {
        let nonce = draw_nonce()?;
        let challenge = FromFacilitator::Challenge(Challenge::new(nonce));
        greeting.send(encode(&challenge)).await.ok()?;
        (greeting, _) = receive_until_accepted(greeting, |frame| {
            frames::judge_challenge_response(frame, key, &nonce)
        })
        .await?;
        Trust::Proven
    } else if demands_proof(services, key).await {
        reject(
            greeting,
            &frames::proof_demanded(key),
            CloseCode::InvalidSignature,
        )
        .await;
        return None;
    } else {
        Trust::Claimed
    };
    greeting.send(encode(&Response::success())).await.ok()?;
    Some((greeting.accept(ValidatorPeer(key)), trust))
}

/// Whether the validator must answer a challenge, because this process or the store remembers a recent proof of its
/// key.
async fn demands_proof(services: &SessionServices, key: ValidatorKey) -> bool {
    let now = services.clock.now();
    if services.sessions.demands_proof(key, now) {
        return true;
    }
    match services.store.validator(key).await {
        Ok(record) => record
            .and_then(|record| record.proven)
            .is_some_and(|proven| is_recent_proof(proven, now)),
        Err(error) => {
            tracing::error!(error = %Causes(&error), "cannot read whether a validator has proven its key; demanding a proof");
            true
        }
    }
}

/// Receives and answers frames until `judge` accepts one; `None` if it rejects one, or the connection ends.
async fn receive_until_accepted(
    mut greeting: Greeting,
    judge: impl Fn(&str) -> GreetingVerdict,
) -> Option<(Greeting, ValidatorKey)> {
    loop {
        let verdict = match greeting.receive().await {
            Ok(Some(frame)) => judge(&frame),
            Ok(None) => return None,
            Err(error) if error.is_fatal() => return None,
            Err(_) => GreetingVerdict::TryAgain(frames::binary_frame_response()),
        };
        match verdict {
            GreetingVerdict::Accepted(key) => return Some((greeting, key)),
            GreetingVerdict::TryAgain(response) => greeting.send(encode(&response)).await.ok()?,
            GreetingVerdict::Rejected(response, code) => {
                reject(greeting, &response, code).await;
                return None;
            }
        }
    }
}

async fn reject(greeting: Greeting, response: &Response, code: CloseCode) {
    tracing::info!(reason = ?response.errors.first().map(|error| &error.msg), "rejected a validator");
    greeting.refuse(Some(encode(response)), code).await;
}

fn draw_nonce() -> Option<ChallengeNonce> {
    let mut bytes = [0; 32];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Some(ChallengeNonce::from_bytes(bytes)),
        Err(error) => {
            tracing::error!(%error, "cannot draw a challenge, so no Muster validator can authenticate");
            None
        }
    }
}
