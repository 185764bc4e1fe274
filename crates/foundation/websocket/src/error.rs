//! Errors of sockets: a caller decides by the variant, an operator reads the text.

use std::time::Duration;

use tokio_tungstenite::tungstenite;

use crate::allowance::AllowanceUsedUp;

/// Why a frame could not be received or sent.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A message over the limit. The socket is closed with 1009.
    #[error("the peer sent a message of {size} bytes, {limit} are allowed")]
    Oversize {
        /// Bytes announced by the peer.
        size: usize,
        /// The bound, in bytes.
        limit: usize,
    },
    /// A peer that was not recognised yet sent more than a greeting. The socket is closed with 1009.
    #[error("the peer sent too much before its greeting was accepted")]
    BeforeGreeting,
    /// Our own message is over the limit and was not sent. The socket is still usable.
    #[error("a message of {size} bytes was not sent, {limit} are allowed")]
    TooLongToSend {
        /// Bytes of the message.
        size: usize,
        /// The bound, in bytes.
        limit: usize,
    },
    /// A binary frame; messages are text frames. The socket is still usable; the frame is dropped.
    #[error("the peer sent a binary frame of {0} bytes, messages are text frames")]
    Binary(usize),
    /// A text frame that is not UTF-8. The socket is closed with 1007.
    #[error("the peer sent a text frame that is not utf-8")]
    InvalidUtf8,
    /// The peer broke the websocket protocol. The socket is closed with 1002.
    #[error("the peer broke the websocket protocol: {0}")]
    Protocol(String),
    /// No frame within the idle limit, not even an answer to our pings.
    #[error("the peer has been silent for {0:?}")]
    Silent(Duration),
    /// The peer does not read what we send.
    #[error("the peer did not read a message within {0:?}")]
    SlowReader(Duration),
    /// The connection broke without a closing handshake, or was closed by this side before.
    #[error("the connection to the peer was lost")]
    Lost(#[source] Option<tungstenite::Error>),
}

impl SocketError {
    /// Whether frames can still be exchanged after this error.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Binary(_) | Self::TooLongToSend { .. } => false,
            Self::Oversize { .. }
            | Self::BeforeGreeting
            | Self::InvalidUtf8
            | Self::Protocol(_)
            | Self::Silent(_)
            | Self::SlowReader(_)
            | Self::Lost(_) => true,
        }
    }

    /// The variant for an error of the websocket library.
    pub(crate) fn from_library(error: tungstenite::Error) -> Self {
        use tungstenite::Error;
        use tungstenite::error::{CapacityError, ProtocolError};
        match error {
            Error::Capacity(CapacityError::MessageTooLong { size, max_size }) => Self::Oversize {
                size,
                limit: max_size,
            },
            Error::Io(fault) if fault.get_ref().is_some_and(|fault| fault.is::<AllowanceUsedUp>()) => {
                Self::BeforeGreeting
            }
            Error::Utf8(_) => Self::InvalidUtf8,
            Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Self::Lost(Some(error)),
            Error::Protocol(fault) => Self::Protocol(fault.to_string()),
            Error::ConnectionClosed
            | Error::AlreadyClosed
            | Error::Io(_)
            | Error::Tls(_)
            | Error::Capacity(CapacityError::TooManyHeaders)
            | Error::WriteBufferFull(_)
            | Error::AttackAttempt
            | Error::Url(_)
            | Error::Http(_)
            | Error::HttpFormat(_) => Self::Lost(Some(error)),
        }
    }
}

/// Why a socket to a peer could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The address cannot be dialled at all.
    #[error("cannot connect to {url:?}: {reason}")]
    Url {
        /// The address as it was given.
        url: String,
        /// The defect of the address.
        reason: &'static str,
    },
    /// No process listens there, or the name does not resolve.
    #[error("cannot connect to {url}: nobody answers there")]
    Unreachable {
        /// The address dialled.
        url: String,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The certificate there is another one, or the peer does not accept ours.
    #[error(
        "cannot connect to {url}: it is not the peer whose certificate is known, or it does not take ours"
    )]
    Tls {
        /// The address dialled.
        url: String,
        /// The error of the TLS library.
        #[source]
        source: std::io::Error,
    },
    /// The peer is an HTTP server that does not upgrade this request.
    #[error("{url} refused the websocket upgrade with http status {status}")]
    Refused {
        /// The address dialled.
        url: String,
        /// The HTTP status code.
        status: u16,
    },
    /// The peer answered with something else than a websocket upgrade.
    #[error("{url} does not speak websocket")]
    Handshake {
        /// The address dialled.
        url: String,
        /// The defect of its answer.
        #[source]
        source: tungstenite::Error,
    },
    /// The peer did not upgrade within the handshake limit.
    #[error("cannot connect to {url}: no upgrade within {after:?}")]
    Timeout {
        /// The address dialled.
        url: String,
        /// The handshake limit.
        after: Duration,
    },
}

/// Why a request was not upgraded to a websocket. The peer sees the text with status 400 or 426.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeError {
    /// A plain request.
    #[error("this address speaks websocket: send an upgrade request")]
    NotAnUpgrade,
    /// Another websocket version than 13.
    #[error("only websocket version 13 is spoken here")]
    Version,
    /// The key is missing or not 16 bytes in base64.
    #[error("the upgrade request carries no valid sec-websocket-key")]
    Key,
}
