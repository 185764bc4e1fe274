//! Dialling a peer: `ws://`, or `wss://` with the machine's certificate store.

use muster_protocol::{FeatureSet, MUSTER_FEATURES_HEADER, MUSTER_PROTOCOL_HEADER, MUSTER_PROTOCOL_VERSION};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::client_async_tls_with_config;
use tokio_tungstenite::tungstenite::Error as LibraryError;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderMap, HeaderValue};
use url::Url;

use crate::error::ConnectError;
use crate::io::Io;
use crate::limits::Limits;
use crate::socket::Socket;

/// Opens a websocket to `url` within the handshake limit and shows that we are Muster.
///
/// # Errors
/// The address cannot be dialled, no process listens there, or it does not upgrade to a websocket in time.
pub async fn connect(url: &str, limits: &Limits) -> Result<Socket, ConnectError> {
    timeout(limits.handshake, dial(url, limits))
        .await
        .map_err(|_| ConnectError::Timeout {
            url: url.to_owned(),
            after: limits.handshake,
        })?
}

async fn dial(url: &str, limits: &Limits) -> Result<Socket, ConnectError> {
    let target = Target::parse(url)?;
    let unreachable = |source| ConnectError::Unreachable {
        url: url.to_owned(),
        source,
    };
    let tcp = TcpStream::connect((target.host.as_str(), target.port))
        .await
        .map_err(unreachable)?;
    tcp.set_nodelay(true).map_err(unreachable)?;
    let peer = tcp.peer_addr().map_err(unreachable)?;
    if target.secure {
        muster_process::tls::install_provider();
    }

    let mut request = url
        .into_client_request()
        .map_err(|source| handshake(url, source))?;
    show_ourselves(request.headers_mut());
    let tcp: Box<dyn Io> = Box::new(tcp);
    let (frames, response) = client_async_tls_with_config(request, tcp, Some(limits.websocket()), None)
        .await
        .map_err(|source| handshake(url, source))?;
    Ok(Socket::over(
        frames,
        peer,
        PeerKind::read(response.headers()),
        limits,
    ))
}

/// The peer as the headers of its upgrade show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerKind {
    /// Whether the peer is Muster in our version.
    pub(crate) muster: bool,
    /// The features that a Muster peer showed.
    pub(crate) features: FeatureSet,
}

impl PeerKind {
    pub(crate) fn read(headers: &HeaderMap) -> Self {
        let muster = headers
            .get(MUSTER_PROTOCOL_HEADER)
            .is_some_and(|value| value.as_bytes().trim_ascii() == MUSTER_PROTOCOL_VERSION.as_bytes());
        let features = headers
            .get(MUSTER_FEATURES_HEADER)
            .filter(|_| muster)
            .map(|value| FeatureSet::parse(value.as_bytes()))
            .unwrap_or_default();
        Self { muster, features }
    }
}

/// Adds the headers by which we show that we are Muster, and our features.
pub(crate) fn show_ourselves(headers: &mut HeaderMap) {
    headers.insert(
        MUSTER_PROTOCOL_HEADER,
        HeaderValue::from_static(MUSTER_PROTOCOL_VERSION),
    );
    // The names of features are letters and hyphens, so the value is always a valid one.
    if let Ok(features) = HeaderValue::try_from(FeatureSet::ours().to_string()) {
        headers.insert(MUSTER_FEATURES_HEADER, features);
    }
}

pub(crate) fn handshake(url: &str, source: LibraryError) -> ConnectError {
    let url = url.to_owned();
    if let LibraryError::Http(response) = &source {
        let status = response.status().as_u16();
        return ConnectError::Refused { url, status };
    }
    ConnectError::Handshake { url, source }
}

/// The parts of an address that dialling needs.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    host: String,
    port: u16,
    secure: bool,
}

impl Target {
    fn parse(text: &str) -> Result<Self, ConnectError> {
        let fault = |reason| ConnectError::Url {
            url: text.to_owned(),
            reason,
        };
        let url = Url::parse(text).map_err(|_| fault("it is not an address such as ws://host:port/path"))?;
        let secure = match url.scheme() {
            "ws" => false,
            "wss" => true,
            _ => return Err(fault("its scheme is neither ws nor wss")),
        };
        let host = url.host_str().ok_or_else(|| fault("it names no host"))?;
        Ok(Self {
            // Resolvers know an IPv6 address without its brackets.
            host: host.trim_matches(['[', ']']).to_owned(),
            port: url
                .port_or_known_default()
                .filter(|port| *port != 0)
                .ok_or_else(|| fault("its port is 0"))?,
            secure,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_count_for_muster_peers_only() {
        let mut headers = HeaderMap::new();
        show_ourselves(&mut headers);
        let ours = PeerKind {
            muster: true,
            features: FeatureSet::ours(),
        };
        assert_eq!(PeerKind::read(&headers), ours);
        headers.remove(MUSTER_PROTOCOL_HEADER);
        let stranger = PeerKind {
            muster: false,
            features: FeatureSet::NONE,
        };
        assert_eq!(PeerKind::read(&headers), stranger);
        headers.clear();
        headers.insert(MUSTER_PROTOCOL_HEADER, HeaderValue::from_static("1"));
        let older = PeerKind {
            muster: true,
            features: FeatureSet::NONE,
        };
        assert_eq!(PeerKind::read(&headers), older);
    }

    #[test]
    fn an_address_names_host_port_and_safety() {
        let target = |text| Target::parse(text).unwrap();
        assert_eq!(target("ws://[::1]:80/x").host, "::1");
        assert_eq!((target("ws://a/").port, target("wss://a/").port), (80, 443));
        assert!(target("wss://a:1/").secure);
        for bad in ["", "a:1", "http://a", "ws://", "ws://a:0/", "ws://a:99999/", "/x"] {
            assert!(
                matches!(Target::parse(bad), Err(ConnectError::Url { .. })),
                "{bad}"
            );
        }
    }
}
