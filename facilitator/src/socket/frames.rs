//! A validator's frames: what each one is, and how one that is not a message is answered. Pure.

use muster_identity::{verify_challenge, verify_facilitator_auth};
use muster_protocol::ValidatorKey;
use muster_protocol::wire::facilitator::{FromFacilitator, Response, ResponseStatus, ToFacilitator};
use muster_protocol::wire::muster::ChallengeNonce;
use muster_protocol::wire::{decode, encode};
use muster_websocket::Peer;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::store::Recorded;

/// The close code for a signature that does not hold.
pub(super) const CLOSE_SIGNATURE: u16 = 3000;

/// The close code for a validator that is not served.
pub(super) const CLOSE_NOT_FOUND: u16 = 3001;

const TAGS: [&str; 8] = [
    "V0AuthenticationRequest",
    "V0Heartbeat",
    "V0JobStatusUpdate",
    "V0MachineSpecsUpdate",
    "MusterChallengeResponse",
    "MusterJobLog",
    "MusterJobProgress",
    "MusterGateway",
];

/// A validator that has shown its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validator(pub(crate) ValidatorKey);

impl Peer for Validator {
    type In = ToFacilitator;
    type Out = FromFacilitator;
    type Malformed = Malformed;

    fn decode(frame: &str) -> Result<ToFacilitator, Malformed> {
        read(frame)
    }

    fn encode(message: &FromFacilitator) -> String {
        encode(message)
    }
}

/// A frame that is not a message, with the type of error that ComputeHorde's models would name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {reason}")]
pub(crate) struct Malformed {
    kind: &'static str,
    reason: String,
}

impl Malformed {
    /// The answer to it.
    pub(super) fn answer(&self) -> Response {
        Response::error(
            self.kind,
            self.reason.clone(),
            "send a message of ComputeHorde's protocol",
        )
    }
}

/// Reads a frame.
pub(super) fn read(frame: &str) -> Result<ToFacilitator, Malformed> {
    let malformed = |reason| Malformed {
        kind: kind_of(frame),
        reason,
    };
    if !is_object(frame) {
        return Err(malformed("a message is a json object".to_owned()));
    }
    decode::<ToFacilitator>(frame).map_err(|error| malformed(error.reason))
}

/// All of a bad frame that is kept to name what is wrong with it.
#[derive(Deserialize)]
struct Tagged<'a> {
    #[serde(borrow, default)]
    message_type: Option<&'a RawValue>,
}

/// serde would also take a list of a message's values in order.
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

/// The answer to a frame that is not text.
pub(super) fn binary() -> Response {
    Malformed {
        kind: "json_invalid",
        reason: "a message is a text frame, this one is binary".to_owned(),
    }
    .answer()
}

/// What a frame before the authentication leads to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Greeted {
    /// The frame is what it should be, and the validator of this key is served.
    Accepted(ValidatorKey),
    /// It is told why and may try again.
    NotYet(Response),
    /// It is told why and the socket is closed with this code.
    Refused(Response, u16),
}

/// Judges the first frame. `serves` says which validators are served.
///
/// The signature is static: whoever has seen it can send it again and would then be given the validator's jobs and
/// believed about them. So it is a claim only: a Muster peer is challenged next, and what a ComputeHorde peer may do
/// with a claim is bounded by [`muster_facilitator_core::delivery`].
pub(super) fn greet(frame: &str, serves: impl FnOnce(ValidatorKey) -> bool) -> Greeted {
    let auth = match read(frame) {
        Ok(ToFacilitator::V0AuthenticationRequest(auth)) => auth,
        Ok(
            ToFacilitator::V0Heartbeat(_)
            | ToFacilitator::V0JobStatusUpdate(_)
            | ToFacilitator::V0MachineSpecsUpdate(_)
            | ToFacilitator::MusterChallengeResponse(_)
            | ToFacilitator::MusterJobLog(_)
            | ToFacilitator::MusterJobProgress(_)
            | ToFacilitator::MusterGateway(_),
        ) => return not_authenticated("send V0AuthenticationRequest first"),
        Err(malformed) => return Greeted::NotYet(malformed.answer()),
    };
    match verify_facilitator_auth(&auth) {
        Err(error) => {
            let help = "sign the 32 bytes of the public key with the validator's hotkey";
            Greeted::Refused(
                Response::error("auth.signature_invalid", error.to_string(), help),
                CLOSE_SIGNATURE,
            )
        }
        Ok(key) => {
            let key = key.into_inner();
            if serves(key) {
                Greeted::Accepted(key)
            } else {
                let help =
                    "a validator needs a permit in the subnet, or a place in the facilitator's configuration";
                let msg = format!("validator {key} is not served here");
                Greeted::Refused(
                    Response::error("auth.validator_not_found", msg, help),
                    CLOSE_NOT_FOUND,
                )
            }
        }
    }
}

/// Judges the answer of the validator of `key` to the challenge `nonce`.
pub(super) fn prove(frame: &str, key: ValidatorKey, nonce: &ChallengeNonce) -> Greeted {
    match read(frame) {
        Ok(ToFacilitator::MusterChallengeResponse(answer)) => {
            match verify_challenge(key, nonce, &answer.signature) {
                Ok(key) => Greeted::Accepted(key.into_inner()),
                Err(error) => {
                    let help = "sign the challenge of this very connection with the validator's hotkey";
                    Greeted::Refused(
                        Response::error("auth.signature_invalid", error.to_string(), help),
                        CLOSE_SIGNATURE,
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
            | ToFacilitator::MusterGateway(_),
        ) => not_authenticated("answer MusterChallenge with MusterChallengeResponse first"),
        Err(malformed) => Greeted::NotYet(malformed.answer()),
    }
}

fn not_authenticated(help: &str) -> Greeted {
    Greeted::NotYet(Response::error(
        "auth.not_authenticated",
        "this connection has not been authenticated",
        help,
    ))
}

/// The answer to a claim to be a validator that has lately shown that it can prove it.
pub(super) fn proof_demanded(key: ValidatorKey) -> Response {
    Response::error(
        "auth.signature_invalid",
        format!("validator {key} has proven itself here lately, so its greeting alone is not enough"),
        "connect as a Muster validator and answer the challenge, or wait a day since it last did",
    )
}

/// The answer to a report over a connection that does not hold the validator's jobs.
pub(super) fn not_the_holder() -> Response {
    Response::error(
        "auth.another_connection",
        "another connection of this validator holds its jobs; only that one may report on them",
        "close the other connection; one that is silent for 90 seconds is succeeded by this one",
    )
}

/// The answer to a second authentication on one connection.
pub(super) fn already_authenticated() -> Response {
    Response::error(
        "auth.already_authenticated",
        "this connection has been authenticated",
        "authenticate once a connection",
    )
}

/// The answer to a status update.
pub(super) fn answer(recorded: &Recorded) -> Response {
    match recorded {
        Recorded::Yes => Response::success(),
        Recorded::HeldElsewhere => not_the_holder(),
        Recorded::NoSuchJob => Response::error(
            "job.not_found",
            "there is no such job for this validator",
            "send updates of jobs that were sent to this validator only",
        ),
        Recorded::Refused(refused) => Response::error(
            "job.integrity_error",
            refused.to_string(),
            "an update that was answered before needs no repetition",
        ),
    }
}

/// What the answer says, for the log.
pub(super) fn is_success(response: &Response) -> bool {
    match response.status {
        ResponseStatus::Success => true,
        ResponseStatus::Error => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_identity::{Keypair, answer_challenge, facilitator_auth};
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
        let auth = facilitator_auth(&pair);
        let frame = encode(&ToFacilitator::V0AuthenticationRequest(auth.clone()));
        assert_eq!(greet(&frame, |asked| asked == key), Greeted::Accepted(key));
        match greet(&frame, |_| false) {
            Greeted::Refused(response, code) => {
                assert_eq!(
                    (types(&response).as_slice(), code),
                    (["auth.validator_not_found"].as_slice(), 3001)
                );
            }
            other @ (Greeted::Accepted(_) | Greeted::NotYet(_)) => panic!("{other:?}"),
        }
        let mut stolen = auth;
        stolen.public_key = hex::encode(Keypair::from_uri("//Other").unwrap().hotkey().as_bytes());
        let frame = encode(&ToFacilitator::V0AuthenticationRequest(stolen));
        match greet(&frame, |_| true) {
            Greeted::Refused(response, code) => {
                assert_eq!(
                    (types(&response).as_slice(), code),
                    (["auth.signature_invalid"].as_slice(), 3000)
                );
            }
            other @ (Greeted::Accepted(_) | Greeted::NotYet(_)) => panic!("{other:?}"),
        }
        match greet(r#"{"message_type":"V0Heartbeat"}"#, |_| true) {
            Greeted::NotYet(response) => assert_eq!(types(&response), ["auth.not_authenticated"]),
            other @ (Greeted::Accepted(_) | Greeted::Refused(..)) => panic!("{other:?}"),
        }
    }

    fn codes(greeted: Greeted) -> (String, u16) {
        match greeted {
            Greeted::Refused(response, code) => (types(&response).concat(), code),
            other @ (Greeted::Accepted(_) | Greeted::NotYet(_)) => panic!("{other:?}"),
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
        assert_eq!(prove(&answer(nonce), key, &nonce), Greeted::Accepted(key));
        let old = answer(ChallengeNonce::from_bytes([2; 32]));
        assert_eq!(
            codes(prove(&old, key, &nonce)),
            ("auth.signature_invalid".to_owned(), 3000)
        );
        let greeting = encode(&ToFacilitator::V0AuthenticationRequest(facilitator_auth(&pair)));
        assert!(matches!(prove(&greeting, key, &nonce), Greeted::NotYet(_)));
        assert!(matches!(greet(&answer(nonce), |_| true), Greeted::NotYet(_)));
    }

    proptest! {
        #[test]
        fn no_frame_panics_or_passes_by_chance(frame in "(\\{\"message_type\":\"V0)?.{0,200}") {
            prop_assert!(!matches!(greet(&frame, |_| true), Greeted::Accepted(_)));
        }
    }
}
