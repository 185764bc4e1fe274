//! A validator's frames: what each one is, and how one that is not a message is answered. Pure.

use muster_identity::verify_facilitator_auth;
use muster_protocol::ValidatorKey;
use muster_protocol::wire::facilitator::{FromFacilitator, Response, ResponseStatus, ToFacilitator};
use muster_protocol::wire::{decode, encode};
use muster_rpc::Peer;
use serde_json::Value;

use crate::store::Recorded;

/// The close code for a signature that does not hold.
pub(super) const CLOSE_SIGNATURE: u16 = 3000;

/// The close code for a validator that is not served.
pub(super) const CLOSE_NOT_FOUND: u16 = 3001;

const TAGS: [&str; 4] = [
    "V0AuthenticationRequest",
    "V0Heartbeat",
    "V0JobStatusUpdate",
    "V0MachineSpecsUpdate",
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
    decode::<ToFacilitator>(frame).map_err(|error| Malformed {
        kind: kind_of(frame),
        reason: error.reason,
    })
}

fn kind_of(frame: &str) -> &'static str {
    match serde_json::from_str::<Value>(frame) {
        Err(_) => "json_invalid",
        Ok(value) => match value.get("message_type").map(Value::as_str) {
            None => "union_tag_not_found",
            Some(Some(tag)) if TAGS.contains(&tag) => "value_error",
            Some(_) => "union_tag_invalid",
        },
    }
}

/// What a frame before the authentication leads to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Greeted {
    /// The validator has shown its key and is served.
    Accepted(ValidatorKey),
    /// It is told why and may try again.
    NotYet(Response),
    /// It is told why and the socket is closed with this code.
    Refused(Response, u16),
}

/// Judges a frame before the authentication. `serves` says which validators are served.
///
/// The signature is static, so whoever has seen it can send it again: it shows a key, it does not open anything that
/// the validator's own jobs do not already expose.
pub(super) fn greet(frame: &str, serves: impl FnOnce(ValidatorKey) -> bool) -> Greeted {
    let auth = match read(frame) {
        Ok(ToFacilitator::V0AuthenticationRequest(auth)) => auth,
        Ok(
            ToFacilitator::V0Heartbeat(_)
            | ToFacilitator::V0JobStatusUpdate(_)
            | ToFacilitator::V0MachineSpecsUpdate(_),
        ) => {
            return Greeted::NotYet(Response::error(
                "auth.not_authenticated",
                "this connection has not been authenticated",
                "send V0AuthenticationRequest first",
            ));
        }
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
    use muster_identity::{Keypair, facilitator_auth};
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

    proptest! {
        #[test]
        fn no_frame_panics_or_passes_by_chance(frame in "(\\{\"message_type\":\"V0)?.{0,200}") {
            prop_assert!(!matches!(greet(&frame, |_| true), Greeted::Accepted(_)));
        }
    }
}
