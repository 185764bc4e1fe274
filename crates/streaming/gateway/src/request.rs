//! Reads the requests of clients.

use bytes::Bytes;
use http::HeaderMap;
use muster_openai::{OpenAiError, without_mark};
use muster_response_proof::RequestNonce;
use muster_response_proof::headers::{AUDIT_CONSENT, CLIENT_NONCE};
use serde::Deserialize;
use serde_json::Value;

use crate::answer_parts::AnswerId;
use crate::request_client::RequestClient;
use crate::store::TextConsent;

/// The party on whose behalf a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOrigin {
    /// A client of the gateway.
    User,
    /// The validator, which asks a miner of the subnet.
    OwnPrompt,
    /// The validator, which asks its own trusted miner, whose engine it knows.
    TrustedTest,
}

/// A client's request, as it is sent to a session.
#[derive(Clone, Debug)]
pub(crate) struct RelayedRequest {
    pub(crate) path: &'static str,
    pub(crate) body: Bytes,
    pub(crate) client: RequestClient,
    pub(crate) client_nonce: Option<RequestNonce>,
    /// The gateway's nonce of an own prompt, which is asked of one session and once: a session that may have got the
    /// request may have signed the nonce. `None` of a user's request, whose nonces follow from its facts.
    pub(crate) fixed_nonce: Option<RequestNonce>,
    /// The id of the answer and of its proof.
    pub(crate) id: AnswerId,
    /// The client's consent about its words.
    pub(crate) consent: TextConsent,
    pub(crate) origin: RequestOrigin,
}

/// The parameters of a request that a gateway reads. The engine judges all others.
#[derive(Deserialize)]
struct ReadParameters {
    model: Option<Value>,
    stream: Option<Value>,
}

/// The model that the request names, and whether its answer is to be an event stream.
///
/// # Errors
/// The body is not a JSON object, or one of the two parameters has the wrong type.
pub(crate) fn read_parameters(body: &[u8]) -> Result<(String, bool), OpenAiError> {
    let read: ReadParameters = serde_json::from_slice(without_mark(body))
        .map_err(|error| OpenAiError::BadRequest(error.to_string()))?;
    let wrong = |parameter, message: &str| OpenAiError::BadParameter {
        parameter,
        message: message.to_owned(),
    };
    let model = match read.model {
        Some(Value::String(model)) if !model.is_empty() => model,
        Some(_) => return Err(wrong("model", "`model` must be the id of a model")),
        None => return Err(wrong("model", "you must provide a model parameter")),
    };
    let streams = match read.stream {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(_) => return Err(wrong("stream", "`stream` must be true or false")),
    };
    Ok((model, streams))
}

/// The nonce that the client drew, if it sent one.
///
/// # Errors
/// The header is not 64 hex digits.
pub(crate) fn read_client_nonce(headers: &HeaderMap) -> Result<Option<RequestNonce>, OpenAiError> {
    let Some(value) = headers.get(CLIENT_NONCE) else {
        return Ok(None);
    };
    let nonce = value.to_str().ok().and_then(RequestNonce::from_hex);
    nonce.map(Some).ok_or(OpenAiError::BadParameter {
        parameter: "muster-client-nonce",
        message: "the header muster-client-nonce must be 64 hex digits".to_owned(),
    })
}

/// The client's consent about the words of its request and of the answer: `private` without the header.
///
/// # Errors
/// The header has another value.
pub(crate) fn read_consent(headers: &HeaderMap) -> Result<TextConsent, OpenAiError> {
    let Some(value) = headers.get(AUDIT_CONSENT) else {
        return Ok(TextConsent::default());
    };
    let consent = value.to_str().ok().and_then(TextConsent::of_name);
    consent.ok_or(OpenAiError::BadParameter {
        parameter: "muster-audit-consent",
        message: "the header muster-audit-consent must be private, publish or decline".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_model_and_whether_it_streams() {
        assert_eq!(
            read_parameters(br#"{"model":"m","stream":true,"x":1}"#),
            Ok(("m".to_owned(), true))
        );
        assert_eq!(
            read_parameters(b"\xef\xbb\xbf{\"model\":\"m\",\"stream\":null}"),
            Ok(("m".to_owned(), false))
        );
        for (body, code) in [
            (&b"{"[..], "invalid_json"),
            (b"[]", "invalid_json"),
            (b"{}", "invalid_value"),
            (br#"{"model":7}"#, "invalid_value"),
            (br#"{"model":""}"#, "invalid_value"),
            (br#"{"model":"m","stream":"yes"}"#, "invalid_value"),
        ] {
            let error = read_parameters(body).unwrap_err();
            assert_eq!((error.code(), error.status().as_u16()), (code, 400));
        }
    }
}
