//! Reads validators' frames, judges the frames of the greeting, and builds the answers. Pure.

use muster_identity::{verify_challenge, verify_facilitator_auth};
use muster_protocol::ValidatorKey;
use muster_protocol::wire::facilitator::{FromFacilitator, Response, ResponseStatus, ToFacilitator};
use muster_protocol::wire::muster::ChallengeNonce;
use muster_protocol::wire::{decode, encode};
use muster_websocket::{CloseCode, Peer};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use muster_facilitator_store::UpdateOutcome;

const TAGS: [&str; 15] = [
    "V0AuthenticationRequest",
    "V0Heartbeat",
    "V0JobStatusUpdate",
    "V0MachineSpecsUpdate",
    "MusterChallengeResponse",
    "MusterJobLog",
    "MusterJobProgress",
    "MusterJobMetrics",
    "MusterJobCheckpoints",
    "MusterJobQueued",
    "MusterCapacity",
    "MusterMiner",
    "MusterGateway",
    "MusterJobCheck",
    "MusterRefund",
];

/// The peer of a session: an authenticated validator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValidatorPeer(pub(crate) ValidatorKey);

impl Peer for ValidatorPeer {
    type In = ToFacilitator;
    type Out = FromFacilitator;
    type Malformed = MalformedFrame;

    fn decode(frame: &str) -> Result<ToFacilitator, MalformedFrame> {
        read(frame)
    }

    fn encode(message: &FromFacilitator) -> String {
        encode(message)
    }
}

/// A frame that is not a message, with the error type that ComputeHorde's models would give.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {reason}")]
pub(crate) struct MalformedFrame {
    kind: &'static str,
    reason: String,
}

impl MalformedFrame {
    /// The response to the frame.
    pub(super) fn response(&self) -> Response {
        Response::error(
            self.kind,
            self.reason.clone(),
            "send a message of ComputeHorde's protocol",
        )
    }
}

/// Reads a frame.
pub(super) fn read(frame: &str) -> Result<ToFacilitator, MalformedFrame> {
    let malformed = |reason| MalformedFrame {
        kind: kind_of(frame),
        reason,
    };
    if !is_object(frame) {
        return Err(malformed("a message is a JSON object".to_owned()));
    }
    decode::<ToFacilitator>(frame).map_err(|error| malformed(error.reason))
}

/// The part of a malformed frame that decides its error type.
#[derive(Deserialize)]
struct Tagged<'a> {
    #[serde(borrow, default)]
    message_type: Option<&'a RawValue>,
}

/// Whether a frame is a JSON object. serde would also accept a list of a message's values in order.
fn is_object(frame: &str) -> bool {
    frame.trim_start().starts_with('{')
}

fn kind_of(frame: &str) -> &'static str {
    if serde_json::from_str::<IgnoredAny>(frame).is_err() {
        return "json_invalid";
    }
    if !is_object(frame) {
        return "union_tag_not_found";
    }
    let Ok(tagged) = serde_json::from_str::<Tagged<'_>>(frame) else {
        return "value_error";
    };
    match tagged.message_type.map(RawValue::get) {
        None => "union_tag_not_found",
        Some(raw) => match serde_json::from_str::<String>(raw) {
            Ok(tag) if TAGS.contains(&tag.as_str()) => "value_error",
            Ok(_) | Err(_) => "union_tag_invalid",
        },
    }
}

/// The response to a frame that is not text.
pub(super) fn binary_frame_response() -> Response {
    MalformedFrame {
        kind: "json_invalid",
        reason: "a message is a text frame, but this one is binary".to_owned(),
    }
    .response()
}

/// The verdict on a frame of the greeting.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum GreetingVerdict {
    /// The frame is correct, and the validator with this key is served.
    Accepted(ValidatorKey),
    /// The peer gets this response and may try again.
    TryAgain(Response),
    /// The peer gets this response, and the socket is closed with this code.
    Rejected(Response, CloseCode),
}

/// Judges the first frame. `serves` returns whether a validator is served.
///
/// The signature is static: a third party that has seen it can replay it, receive the validator's jobs and report on
/// them. So it is only a claim. A Muster peer is challenged next; the rights of a ComputeHorde peer with a claim are
/// bounded by [`muster_facilitator_core::connections`].
pub(super) fn judge_greeting(frame: &str, serves: impl FnOnce(ValidatorKey) -> bool) -> GreetingVerdict {
    let auth = match read(frame) {
        Ok(ToFacilitator::V0AuthenticationRequest(auth)) => auth,
        Ok(
            ToFacilitator::V0Heartbeat(_)
            | ToFacilitator::V0JobStatusUpdate(_)
            | ToFacilitator::V0MachineSpecsUpdate(_)
            | ToFacilitator::MusterChallengeResponse(_)
            | ToFacilitator::MusterJobLog(_)
            | ToFacilitator::MusterJobProgress(_)
            | ToFacilitator::MusterJobMetrics(_)
            | ToFacilitator::MusterJobCheckpoints(_)
            | ToFacilitator::MusterJobQueued(_)
            | ToFacilitator::MusterCapacity(_)
            | ToFacilitator::MusterMiner(_)
            | ToFacilitator::MusterJobCheck(_)
            | ToFacilitator::MusterRefund(_)
            | ToFacilitator::MusterGateway(_),
        ) => return not_authenticated("send V0AuthenticationRequest first"),
        Err(malformed) => return GreetingVerdict::TryAgain(malformed.response()),
    };
    match verify_facilitator_auth(&auth) {
        Err(error) => {
            let help = "sign the 32 bytes of the public key with the validator's hotkey";
            GreetingVerdict::Rejected(
                Response::error("auth.signature_invalid", error.to_string(), help),
                CloseCode::InvalidSignature,
            )
        }
        Ok(key) => {
            let key = key.into_inner();
            if serves(key) {
                GreetingVerdict::Accepted(key)
            } else {
                let help = "a validator needs a permit in the subnet, or an entry in the facilitator's configuration";
                let msg = format!("validator {key} is not served here");
                GreetingVerdict::Rejected(
                    Response::error("auth.validator_not_found", msg, help),
                    CloseCode::UnknownValidator,
                )
            }
        }
    }
}

/// Judges the response of the validator with `key` to the challenge `nonce`.
pub(super) fn judge_challenge_response(
    frame: &str,
    key: ValidatorKey,
    nonce: &ChallengeNonce,
) -> GreetingVerdict {
    match read(frame) {
        Ok(ToFacilitator::MusterChallengeResponse(answer)) => {
            match verify_challenge(key, nonce, &answer.signature) {
                Ok(key) => GreetingVerdict::Accepted(key.into_inner()),
                Err(error) => {
                    let help = "sign the challenge of this very connection with the validator's hotkey";
                    GreetingVerdict::Rejected(
                        Response::error("auth.signature_invalid", error.to_string(), help),
                        CloseCode::InvalidSignature,
                    )
                }
            }
        }
        Ok(
            ToFacilitator::V0AuthenticationRequest(_)
            | ToFacilitator::V0Heartbeat(_)
            | ToFacilitator::V0JobStatusUpdate(_)
            | ToFacilitator::V0MachineSpecsUpdate(_)
            | ToFacilitator::MusterJobLog(_)
            | ToFacilitator::MusterJobProgress(_)
            | ToFacilitator::MusterJobMetrics(_)
            | ToFacilitator::MusterJobCheckpoints(_)
            | ToFacilitator::MusterJobQueued(_)
            | ToFacilitator::MusterCapacity(_)
            | ToFacilitator::MusterMiner(_)
            | ToFacilitator::MusterJobCheck(_)
            | ToFacilitator::MusterRefund(_)
            | ToFacilitator::MusterGateway(_),
        ) => not_authenticated("answer MusterChallenge with MusterChallengeResponse first"),
        Err(malformed) => GreetingVerdict::TryAgain(malformed.response()),
    }
}

fn not_authenticated(help: &str) -> GreetingVerdict {
    GreetingVerdict::TryAgain(Response::error(
        "auth.not_authenticated",
        "this connection has not been authenticated",
        help,
    ))
}

/// The response to a mere claim to be a validator that has recently proven its key.
pub(super) fn proof_demanded(key: ValidatorKey) -> Response {
    Response::error(
        "auth.signature_invalid",
        format!(
            "validator {key} has answered a challenge here recently, so its greeting alone is not enough"
        ),
        "connect as a Muster validator and answer the challenge, or wait for a day after the last proven connection",
    )
}

/// The response to a status update over a connection that does not hold the validator's jobs.
pub(super) fn not_the_holder() -> Response {
    Response::error(
        "auth.another_connection",
        "another connection of this validator holds its jobs; only that one may report on them",
        "close the other connection; after 90 seconds of its silence this one takes over",
    )
}

/// The response to a second authentication on one connection.
pub(super) fn already_authenticated() -> Response {
    Response::error(
        "auth.already_authenticated",
        "this connection has been authenticated",
        "authenticate once a connection",
    )
}

/// The response to a status update.
pub(super) fn update_response(outcome: &UpdateOutcome) -> Response {
    match outcome {
        UpdateOutcome::Recorded => Response::success(),
        UpdateOutcome::HeldElsewhere => not_the_holder(),
        UpdateOutcome::NoSuchJob => Response::error(
            "job.not_found",
            "there is no such job for this validator",
            "send updates of jobs that were sent to this validator only",
        ),
        UpdateOutcome::Rejected(rejection) => Response::error(
            "job.integrity_error",
            rejection.to_string(),
            "do not repeat an update that was answered",
        ),
    }
}

/// Whether the response reports success, for the log.
pub(super) fn is_success(response: &Response) -> bool {
    match response.status {
        ResponseStatus::Success => true,
        ResponseStatus::Error => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_identity::{Keypair, answer_challenge, sign_facilitator_auth};
    use muster_protocol::wire::muster::ChallengeResponse;
    use proptest::prelude::*;

    fn types(response: &Response) -> Vec<&str> {
        response
            .errors
            .iter()
            .map(|error| error.r#type.as_str())
            .collect()
    }

    #[test]
    fn the_kind_of_a_bad_frame_is_named_as_pydantic_names_it() {
        for (frame, kind) in [
            ("", "json_invalid"),
            ("{", "json_invalid"),
            ("[]", "union_tag_not_found"),
            ("[0,0]", "union_tag_not_found"),
            (r#"["V0Heartbeat"]"#, "union_tag_not_found"),
            (r#"{"message_type":"V0\u0048eartbeat","x":1}"#, "value_error"),
            ("{}", "union_tag_not_found"),
            (r#"{"message_type":3}"#, "union_tag_invalid"),
            (r#"{"message_type":"V9"}"#, "union_tag_invalid"),
            (r#"{"message_type":"V0Heartbeat","x":1}"#, "value_error"),
            (
                r#"{"message_type":"V0JobStatusUpdate","uuid":"x","status":"sent"}"#,
                "value_error",
            ),
        ] {
            assert_eq!(read(frame).unwrap_err().kind, kind, "{frame}");
        }
        assert!(read(r#"{"message_type":"V0Heartbeat"}"#).is_ok());
    }

    #[test]
    fn only_a_served_validator_with_its_own_signature_is_accepted() {
        let pair = Keypair::from_uri("//Validator").unwrap();
        let key = ValidatorKey(pair.hotkey());
        let auth = sign_facilitator_auth(&pair);
        let frame = encode(&ToFacilitator::V0AuthenticationRequest(auth.clone()));
        assert_eq!(
            judge_greeting(&frame, |asked| asked == key),
            GreetingVerdict::Accepted(key)
        );
        match judge_greeting(&frame, |_| false) {
            GreetingVerdict::Rejected(response, code) => {
                assert_eq!(
                    (types(&response).as_slice(), code),
                    (
                        ["auth.validator_not_found"].as_slice(),
                        CloseCode::UnknownValidator
                    )
                );
            }
            other @ (GreetingVerdict::Accepted(_) | GreetingVerdict::TryAgain(_)) => panic!("{other:?}"),
        }
        let mut stolen = auth;
        stolen.public_key = hex::encode(Keypair::from_uri("//Other").unwrap().hotkey().as_bytes());
        let frame = encode(&ToFacilitator::V0AuthenticationRequest(stolen));
        match judge_greeting(&frame, |_| true) {
            GreetingVerdict::Rejected(response, code) => {
                assert_eq!(
                    (types(&response).as_slice(), code),
                    (["auth.signature_invalid"].as_slice(), CloseCode::InvalidSignature)
                );
            }
            other @ (GreetingVerdict::Accepted(_) | GreetingVerdict::TryAgain(_)) => panic!("{other:?}"),
        }
        match judge_greeting(r#"{"message_type":"V0Heartbeat"}"#, |_| true) {
            GreetingVerdict::TryAgain(response) => assert_eq!(types(&response), ["auth.not_authenticated"]),
            other @ (GreetingVerdict::Accepted(_) | GreetingVerdict::Rejected(..)) => panic!("{other:?}"),
        }
    }

    fn codes(greeted: GreetingVerdict) -> (String, CloseCode) {
        match greeted {
            GreetingVerdict::Rejected(response, code) => (types(&response).concat(), code),
            other @ (GreetingVerdict::Accepted(_) | GreetingVerdict::TryAgain(_)) => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_the_answer_to_this_very_challenge_is_proof() {
        let pair = Keypair::from_uri("//Validator").unwrap();
        let key = ValidatorKey(pair.hotkey());
        let nonce = ChallengeNonce::from_bytes([1; 32]);
        let answer = |nonce| {
            let signature = answer_challenge(&pair, &nonce);
            encode(&ToFacilitator::MusterChallengeResponse(ChallengeResponse {
                signature,
            }))
        };
        assert_eq!(
            judge_challenge_response(&answer(nonce), key, &nonce),
            GreetingVerdict::Accepted(key)
        );
        let old = answer(ChallengeNonce::from_bytes([2; 32]));
        assert_eq!(
            codes(judge_challenge_response(&old, key, &nonce)),
            ("auth.signature_invalid".to_owned(), CloseCode::InvalidSignature)
        );
        let greeting = encode(&ToFacilitator::V0AuthenticationRequest(sign_facilitator_auth(
            &pair,
        )));
        assert!(matches!(
            judge_challenge_response(&greeting, key, &nonce),
            GreetingVerdict::TryAgain(_)
        ));
        assert!(matches!(
            judge_greeting(&answer(nonce), |_| true),
            GreetingVerdict::TryAgain(_)
        ));
    }

    proptest! {
        #[test]
        fn no_frame_panics_or_passes_by_chance(frame in "(\\{\"message_type\":\"V0)?.{0,200}") {
            prop_assert!(!matches!(judge_greeting(&frame, |_| true), GreetingVerdict::Accepted(_)));
        }
    }
}
