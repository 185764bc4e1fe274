//! Dialling a peer: `ws://`, `wss://` with the machine's certificate store, or `wss://` with a certificate that is known:
//! the address then ends with `#sha256-` and the certificate's digest.

use muster_protocol::Digest;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::client_async_tls_with_config;
use url::Url;

use crate::error::ConnectError;
use crate::handshake::{failed_handshake, upgrade_request};
use crate::io::Io;
use crate::limits::Limits;
use crate::peer::PeerKind;
use crate::socket::Socket;
use crate::tls;

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

/// The mark of an address's fragment that names the certificate of its peer.
const PIN: &str = "sha256-";

/// The address of the peer at `wss://…` with exactly this certificate.
#[must_use]
pub fn pinned(address: &str, certificate: Digest) -> String {
    format!("{address}#{PIN}{}", certificate.hex())
}

/// An address with `path` behind it, before what names the peer's certificate.
#[must_use]
pub fn with_path(address: &str, path: &str) -> String {
    match address.split_once('#') {
        Some((address, pin)) => format!("{}{path}#{pin}", address.trim_end_matches('/')),
        None => format!("{}{path}", address.trim_end_matches('/')),
    }
}

async fn dial(url: &str, limits: &Limits) -> Result<Socket, ConnectError> {
    let target = Target::parse(url)?;
    if let Some(certificate) = target.certificate {
        let plain = url.split_once('#').map_or(url, |(plain, _)| plain);
        return tls::dial_pinned((&target.host, target.port), plain, certificate, limits).await;
    }
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

    let request = upgrade_request(url)?;
    let tcp: Box<dyn Io> = Box::new(tcp);
    let (frames, response) = client_async_tls_with_config(request, tcp, Some(limits.websocket()), None)
        .await
        .map_err(|source| failed_handshake(url, source))?;
    Ok(Socket::over(
        frames,
        peer,
        PeerKind::read(response.headers()),
        limits,
    ))
}

/// The parts of an address that dialling needs.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    host: String,
    port: u16,
    secure: bool,
    /// The digest of the only certificate that the peer may show.
    certificate: Option<Digest>,
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
        let certificate = match url.fragment() {
            None => None,
            Some(_) if !secure => return Err(fault("only wss addresses name a certificate")),
            Some(fragment) => {
                let digest = fragment
                    .strip_prefix(PIN)
                    .and_then(|hex| format!("sha256:{hex}").parse().ok());
                Some(
                    digest
                        .ok_or_else(|| fault("it ends with # and no sha256- with 64 hexadecimal digits"))?,
                )
            }
        };
        Ok(Self {
            // Resolvers know an IPv6 address without its brackets.
            host: host.trim_matches(['[', ']']).to_owned(),
            port: url
                .port_or_known_default()
                .filter(|port| *port != 0)
                .ok_or_else(|| fault("its port is 0"))?,
            secure,
            certificate,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_the_certificate_of_its_peer() {
        let certificate = Digest::of(b"a certificate");
        let address = pinned("wss://a:1", certificate);
        let with = with_path(&address, "/path");
        assert_eq!(with, format!("wss://a:1/path#sha256-{}", certificate.hex()));
        assert_eq!(Target::parse(&with).unwrap().certificate, Some(certificate));
        assert_eq!(with_path("ws://a:1/", "/path"), "ws://a:1/path");
        assert_eq!(Target::parse("wss://a:1/path").unwrap().certificate, None);
        for wrong in [
            "wss://a:1/#",
            "wss://a:1/#sha256-00",
            "wss://a:1/#md5-00",
            "ws://a:1/#x",
        ] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
        let plain = with.replace("wss", "ws");
        assert!(
            Target::parse(&plain).is_err(),
            "a pin without TLS would be forgotten"
        );
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
