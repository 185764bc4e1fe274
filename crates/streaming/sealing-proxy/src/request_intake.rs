//! Reads a request: checks its head and collects its body within limits.
//!
//! The body is held until it is whole. The engine therefore gets one request whose length the proxy has counted, so
//! that no second request can be smuggled in it, and the digest of the input exists before the engine gets the request.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, HeaderName, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};
use http_body::Body;
use http_body_util::BodyExt;
use muster_openai::usage_report;
use muster_protocol::{Digest, Timestamp};
use muster_response_proof::headers::{CLIENT, CLIENT_NONCE, GATEWAY_NONCE, SEED};
use muster_response_proof::{Limits, RequestNonce, Text, answer_seed};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::proof_signer::RequestFacts;
use crate::rejection::RequestRejection;

/// Reads the facts of a head that are signed. Rejects heads that two readers may understand in two ways.
pub(crate) fn read_head(head: &Parts, from: Timestamp) -> Result<RequestFacts, RequestRejection> {
    if head.headers.contains_key(TRANSFER_ENCODING) && head.headers.contains_key(CONTENT_LENGTH)
        || head.headers.get_all(CONTENT_LENGTH).iter().count() > 1
    {
        return Err(RequestRejection::Smuggled);
    }
    if head.method == Method::CONNECT {
        return Err(RequestRejection::Connect);
    }
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    Ok(RequestFacts {
        method: Text::new(head.method.as_str()).map_err(|_| RequestRejection::Path)?,
        path: Text::new(path).map_err(|_| RequestRejection::Path)?,
        client: read_nonce(&head.headers, &CLIENT)?.map(|nonce| Digest::from_bytes(*nonce.as_bytes())),
        client_nonce: read_nonce(&head.headers, &CLIENT_NONCE)?,
        gateway_nonce: read_nonce(&head.headers, &GATEWAY_NONCE)?,
        from,
    })
}

/// Reads a header of 64 hex digits.
fn read_nonce(headers: &HeaderMap, name: &HeaderName) -> Result<Option<RequestNonce>, RequestRejection> {
    let refused = || {
        RequestRejection::Nonce(if name == CLIENT {
            "muster-client"
        } else {
            "with a nonce"
        })
    };
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return if headers.contains_key(name) {
            Err(refused())
        } else {
            Ok(None)
        };
    };
    let nonce = value.to_str().ok().and_then(RequestNonce::from_hex);
    nonce.map(Some).ok_or_else(refused)
}

/// Sends the engine the seed of its sampler, if the gateway drew a nonce for the request. An engine whose request names
/// another seed takes that one.
pub(crate) fn set_seed(headers: &mut HeaderMap, facts: &RequestFacts, input: &Digest) {
    let Some(gateway_nonce) = &facts.gateway_nonce else {
        return;
    };
    let seed = answer_seed(facts.client_nonce.as_ref(), input, gateway_nonce);
    if let Ok(value) = HeaderValue::from_str(&RequestNonce::from_bytes(seed).hex()) {
        headers.insert(SEED, value);
    }
}

/// The body that asks the engine for the tokens of its stream, if this is a completion's whose client did not ask. The
/// proof covers the client's own bytes. `None` also where `room` has none for a second body: the engine then gets the
/// client's own.
pub(crate) fn with_usage(head: &Parts, body: &[u8], room: &Arc<Semaphore>) -> Option<HeldBody> {
    let is_completion = head.method == Method::POST && head.uri.path().ends_with("/completions");
    let changed = is_completion.then(|| usage_report::with_usage(body)).flatten()?;
    let length = u32::try_from(changed.len()).ok()?;
    let taken = Arc::clone(room).try_acquire_many_owned(length).ok()?;
    Some(HeldBody {
        bytes: Bytes::from(changed),
        _room: Some(taken),
    })
}

/// The whole body of a request, and its share of the room for bodies until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldBody {
    pub(crate) bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

/// Collects the whole body. `room` has a permit for each byte that the bodies of all requests may take.
pub(crate) async fn collect<B>(
    body: B,
    limits: &Limits,
    room: &Arc<Semaphore>,
) -> Result<HeldBody, RequestRejection>
where
    B: Body<Data = Bytes> + Unpin,
{
    let declared = body.size_hint().lower();
    if usize::try_from(declared).map_or(true, |declared| declared > limits.request) {
        return Err(RequestRejection::TooLarge(limits.request));
    }
    timeout(limits.upload, collect_within(body, limits.request, room))
        .await
        .unwrap_or(Err(RequestRejection::Slow))
}

async fn collect_within<B>(
    mut body: B,
    max: usize,
    room: &Arc<Semaphore>,
) -> Result<HeldBody, RequestRejection>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut held: Option<OwnedSemaphorePermit> = None;
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| RequestRejection::Broken)?.into_data() else {
            // Trailers of a request are dropped.
            continue;
        };
        if first.len() + more.len() + data.len() > max {
            return Err(RequestRejection::TooLarge(max));
        }
        let length = u32::try_from(data.len()).map_err(|_| RequestRejection::TooLarge(max))?;
        let Ok(taken) = Arc::clone(room).try_acquire_many_owned(length) else {
            return Err(RequestRejection::Busy);
        };
        match &mut held {
            Some(held) => held.merge(taken),
            None => held = Some(taken),
        }
        if more.is_empty() && first.is_empty() {
            // Most bodies arrive in one piece, which is not copied.
            first = data;
        } else {
            if more.is_empty() {
                more.extend_from_slice(&std::mem::take(&mut first));
            }
            more.extend_from_slice(&data);
        }
    }
    Ok(HeldBody {
        bytes: if more.is_empty() { first } else { more.freeze() },
        _room: held,
    })
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::Full;

    use super::*;

    fn head(
        build: impl FnOnce(http::request::Builder) -> http::request::Builder,
    ) -> Result<RequestFacts, RequestRejection> {
        let request = build(Request::builder().uri("/v1/x?y=1")).body(()).unwrap();
        read_head(&request.into_parts().0, Timestamp::from_secs(1))
    }

    #[test]
    fn a_head_that_two_readers_may_read_in_two_ways_is_refused() {
        let asked = head(|builder| builder.method("POST").header("content-length", "3")).unwrap();
        assert_eq!(
            (asked.method.as_str(), asked.path.as_str()),
            ("POST", "/v1/x?y=1")
        );
        let both = head(|builder| {
            builder
                .header("content-length", "3")
                .header("transfer-encoding", "chunked")
        });
        assert_eq!(both.unwrap_err(), RequestRejection::Smuggled);
        let twice = head(|builder| {
            builder
                .header("content-length", "3")
                .header("content-length", "3")
        });
        assert_eq!(twice.unwrap_err(), RequestRejection::Smuggled);
        let connect = head(|builder| builder.method("CONNECT"));
        assert_eq!(connect.unwrap_err(), RequestRejection::Connect);
        let long = head(|builder| builder.uri(format!("/{}", "x".repeat(5_000))));
        assert_eq!(long.unwrap_err(), RequestRejection::Path);
    }

    #[test]
    fn nonces_are_read_or_refused() {
        let digits = "0a".repeat(32);
        let asked = head(|builder| builder.header(CLIENT_NONCE, &digits).header(CLIENT, &digits)).unwrap();
        assert_eq!(asked.client_nonce.unwrap().hex(), digits);
        assert_eq!(asked.client.unwrap().hex(), digits);
        assert_eq!(asked.gateway_nonce, None);
        for bad in ["", "0a", &"0g".repeat(32)] {
            let refused = head(|builder| builder.header(GATEWAY_NONCE, bad));
            assert!(
                matches!(refused.unwrap_err(), RequestRejection::Nonce(_)),
                "{bad}"
            );
        }
        let twice = head(|builder| {
            builder
                .header(CLIENT_NONCE, &digits)
                .header(CLIENT_NONCE, &digits)
        });
        assert!(matches!(twice.unwrap_err(), RequestRejection::Nonce(_)));
    }

    #[tokio::test]
    async fn a_body_is_bounded() {
        let limits = Limits {
            request: 4,
            ..Limits::default()
        };
        let room = Arc::new(Semaphore::new(9));
        let body = |text: &'static str| Full::new(Bytes::from(text));
        let first = collect(body("1234"), &limits, &room).await.unwrap();
        assert_eq!(first.bytes, "1234");
        let long = collect(body("12345"), &limits, &room).await;
        assert_eq!(long.unwrap_err(), RequestRejection::TooLarge(4));
        let second = collect(body("5678"), &limits, &room).await.unwrap();
        let beyond = collect(body("90"), &limits, &room).await;
        assert_eq!(beyond.unwrap_err(), RequestRejection::Busy, "all bodies together");
        drop(first);
        collect(body("90"), &limits, &room).await.unwrap();
        drop(second);
        assert_eq!(room.available_permits(), 9);
    }

    #[test]
    fn body_that_asks_for_usage_takes_room_of_its_own_until_it_is_sent() {
        let request = Request::post("/v1/chat/completions").body(()).unwrap();
        let head = request.into_parts().0;
        let room = Arc::new(Semaphore::new(100));
        let own = br#"{"stream":true,"messages":[]}"#;
        let changed = with_usage(&head, own, &room).unwrap();
        assert!(changed.bytes.len() > own.len());
        assert_eq!(room.available_permits(), 100 - changed.bytes.len());
        assert!(
            with_usage(&head, own, &room).is_none(),
            "{} bytes have no room",
            changed.bytes.len()
        );
        drop(changed);
        assert_eq!(room.available_permits(), 100);
    }
}
