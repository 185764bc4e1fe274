//! The client's half of a websocket's handshake: the request, and the fault of one that failed.

use tokio_tungstenite::tungstenite::Error as LibraryError;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;

use crate::error::ConnectError;
use crate::peer::show_ourselves;

/// The request for a websocket at `url`, which shows that we are Muster.
///
/// # Errors
/// The address cannot be a websocket's.
pub(crate) fn upgrade_request(url: &str) -> Result<Request, ConnectError> {
    let request = url.into_client_request();
    let mut request = request.map_err(|source| failed_handshake(url, source))?;
    show_ourselves(request.headers_mut());
    Ok(request)
}

/// The fault of a handshake with the peer at `url`.
pub(crate) fn failed_handshake(url: &str, source: LibraryError) -> ConnectError {
    let url = url.to_owned();
    if let LibraryError::Http(response) = &source {
        let status = response.status().as_u16();
        return ConnectError::Refused { url, status };
    }
    ConnectError::Handshake { url, source }
}
