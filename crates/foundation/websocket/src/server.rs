//! Answering a peer's upgrade request, below whichever HTTP server it arrived at.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use muster_process::connections::ConnectionPermit;
use muster_process::task::Tasks;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::error::UpgradeError;
use crate::limits::Limits;
use crate::peer::{PeerKind, show_ourselves};
use crate::socket::Socket;

/// 16 bytes in base64.
const KEY_LENGTH: usize = 24;

/// Upgrades a request to a websocket and runs `on_socket` with it as a task of its own.
///
/// The connection's place among those of its listener, if the request carries one, is kept until the socket's peer is
/// known. The answer shows that we are Muster, and our features. Anything but an upgrade request is answered with 400
/// or 426 and a reason, and `on_socket` never runs.
pub fn upgrade<B, F, Fut>(
    mut request: Request<B>,
    peer: SocketAddr,
    limits: &Limits,
    tasks: &Tasks,
    on_socket: F,
) -> Response<Full<Bytes>>
where
    F: FnOnce(Socket) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let key = match accept_key(request.headers()) {
        Ok(key) => key,
        Err(error) => return rejection(error),
    };
    let kind = PeerKind::read(request.headers());
    let permit = request.extensions_mut().remove::<Arc<ConnectionPermit>>();
    let upgrading = hyper::upgrade::on(&mut request);
    let limits = *limits;
    tasks.spawn("websocket", async move {
        match tokio::time::timeout(limits.handshake, upgrading).await {
            Ok(Ok(connection)) => {
                let io = Box::new(TokioIo::new(connection));
                on_socket(Socket::upgraded(io, peer, kind, &limits, permit).await).await;
            }
            Ok(Err(error)) => tracing::debug!(%peer, %error, "the peer left during the upgrade"),
            Err(_) => tracing::debug!(%peer, "the peer did not finish the upgrade in time"),
        }
    });

    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, key);
    show_ourselves(headers);
    response
}

/// The answer to the request's key, if the request is one for a websocket.
fn accept_key(headers: &HeaderMap) -> Result<HeaderValue, UpgradeError> {
    if !has_token(headers, &CONNECTION, "upgrade") || !has_token(headers, &UPGRADE, "websocket") {
        return Err(UpgradeError::NotAnUpgrade);
    }
    if headers
        .get(SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version.as_bytes() != b"13")
    {
        return Err(UpgradeError::Version);
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).ok_or(UpgradeError::Key)?;
    if key.as_bytes().len() != KEY_LENGTH {
        return Err(UpgradeError::Key);
    }
    HeaderValue::try_from(derive_accept_key(key.as_bytes())).map_err(|_| UpgradeError::Key)
}

/// Whether a header that holds a list of words, perhaps on several lines, has this one.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|word| word.trim().eq_ignore_ascii_case(token))
}

fn rejection(error: UpgradeError) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{error}\n")));
    let headers = response.headers_mut();
    match error {
        UpgradeError::NotAnUpgrade => {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        }
        UpgradeError::Version => {
            headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        }
        UpgradeError::Key => {}
    }
    *response.status_mut() = match error {
        UpgradeError::NotAnUpgrade | UpgradeError::Version => StatusCode::UPGRADE_REQUIRED,
        UpgradeError::Key => StatusCode::BAD_REQUEST,
    };
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn only_an_upgrade_request_is_upgraded() {
        // The example of RFC 6455, with the header as Firefox writes it.
        let good = [
            (CONNECTION, "keep-alive, Upgrade"),
            (UPGRADE, "WebSocket"),
            (SEC_WEBSOCKET_VERSION, "13"),
            (SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        assert_eq!(
            accept_key(&headers(&good)).unwrap(),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        let faults = [
            UpgradeError::NotAnUpgrade,
            UpgradeError::NotAnUpgrade,
            UpgradeError::Version,
            UpgradeError::Key,
        ];
        for (missing, fault) in faults.into_iter().enumerate() {
            let mut some = good.to_vec();
            some.remove(missing);
            assert_eq!(accept_key(&headers(&some)), Err(fault));
        }
        let mut short = good;
        short[3].1 = "short";
        assert_eq!(accept_key(&headers(&short)), Err(UpgradeError::Key));
    }
}
