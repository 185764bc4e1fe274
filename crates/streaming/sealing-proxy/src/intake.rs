//! A request comes in: its head is checked, its body collected within bounds.
//!
//! The body is held until it is whole. An engine therefore gets one request whose length we have counted ourselves, so that
//! no disagreement about where it ends can smuggle a second one; and the input's digest exists before the engine is asked.

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, HeaderName, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, Method};
use http_body::Body;
use http_body_util::BodyExt;
use muster_protocol::{Digest, Timestamp};
use muster_response_proof::{Nonce, Text};
use tokio::time::timeout;

use crate::headers::{CLIENT, CLIENT_NONCE, GATEWAY_NONCE};
use crate::limits::Limits;
use crate::refusal::Refusal;
use crate::sealer::Asking;

/// Reads what is signed of a head, and refuses heads that two readers may understand in two ways.
pub(crate) fn read(head: &Parts, from: Timestamp) -> Result<Asking, Refusal> {
    if head.headers.contains_key(TRANSFER_ENCODING) && head.headers.contains_key(CONTENT_LENGTH)
        || head.headers.get_all(CONTENT_LENGTH).iter().count() > 1
    {
        return Err(Refusal::Smuggled);
    }
    if head.method == Method::CONNECT {
        return Err(Refusal::Connect);
    }
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    Ok(Asking {
        method: Text::new(head.method.as_str()).map_err(|_| Refusal::Path)?,
        path: Text::new(path).map_err(|_| Refusal::Path)?,
        client: hex(&head.headers, &CLIENT)?.map(|nonce| Digest::from_bytes(*nonce.as_bytes())),
        client_nonce: hex(&head.headers, &CLIENT_NONCE)?,
        gateway_nonce: hex(&head.headers, &GATEWAY_NONCE)?,
        from,
    })
}

fn hex(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Nonce>, Refusal> {
    let refused = || {
        Refusal::Nonce(if name == CLIENT {
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
    let nonce = value.to_str().ok().and_then(Nonce::from_hex);
    nonce.map(Some).ok_or_else(refused)
}

/// The whole body.
pub(crate) async fn collect<B>(body: B, limits: &Limits) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let declared = body.size_hint().lower();
    if usize::try_from(declared).map_or(true, |declared| declared > limits.request) {
        return Err(Refusal::TooLarge(limits.request));
    }
    timeout(limits.upload, whole(body, limits.request))
        .await
        .unwrap_or(Err(Refusal::Slow))
}

async fn whole<B>(mut body: B, most: usize) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Refusal::Broken)?.into_data() else {
            // Trailers of a request are nobody's business.
            continue;
        };
        if first.len() + more.len() + data.len() > most {
            return Err(Refusal::TooLarge(most));
        }
        if more.is_empty() && first.is_empty() {
            // Most bodies come in one piece, which is not copied.
            first = data;
        } else {
            if more.is_empty() {
                more.extend_from_slice(&std::mem::take(&mut first));
            }
            more.extend_from_slice(&data);
        }
    }
    Ok(if more.is_empty() { first } else { more.freeze() })
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::Full;

    use super::*;

    fn head(build: impl FnOnce(http::request::Builder) -> http::request::Builder) -> Result<Asking, Refusal> {
        let request = build(Request::builder().uri("/v1/x?y=1")).body(()).unwrap();
        read(&request.into_parts().0, Timestamp::from_secs(1))
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
        assert_eq!(both.unwrap_err(), Refusal::Smuggled);
        let twice = head(|builder| {
            builder
                .header("content-length", "3")
                .header("content-length", "3")
        });
        assert_eq!(twice.unwrap_err(), Refusal::Smuggled);
        let connect = head(|builder| builder.method("CONNECT"));
        assert_eq!(connect.unwrap_err(), Refusal::Connect);
        let long = head(|builder| builder.uri(format!("/{}", "x".repeat(5_000))));
        assert_eq!(long.unwrap_err(), Refusal::Path);
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
            assert!(matches!(refused.unwrap_err(), Refusal::Nonce(_)), "{bad}");
        }
        let twice = head(|builder| {
            builder
                .header(CLIENT_NONCE, &digits)
                .header(CLIENT_NONCE, &digits)
        });
        assert!(matches!(twice.unwrap_err(), Refusal::Nonce(_)));
    }

    #[tokio::test]
    async fn a_body_is_bounded() {
        let limits = Limits {
            request: 4,
            ..Limits::default()
        };
        assert_eq!(
            collect(Full::new(Bytes::from("1234")), &limits).await.unwrap(),
            "1234"
        );
        let long = collect(Full::new(Bytes::from("12345")), &limits).await;
        assert_eq!(long.unwrap_err(), Refusal::TooLarge(4));
    }
}
