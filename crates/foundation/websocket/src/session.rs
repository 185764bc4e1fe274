//! Typed messages with a peer that was recognised: a socket begins as a [`Greeting`], and only an accepted greeting
//! becomes a [`PeerSession`]. The [`Peer`] knows the meaning of the messages.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use muster_protocol::FeatureSet;

use crate::CloseCode;
use crate::error::SocketError;
use crate::socket::{PeerClose, Socket, SocketReader, SocketWriter};

/// The other side of a session: its identity, and the types of the messages.
pub trait Peer: Send + Sync + 'static {
    /// Messages from the peer.
    type In: Send;
    /// Messages to the peer.
    type Out: Send + Sync;
    /// The error for a frame of the peer that is not a message.
    type Malformed: std::error::Error + Send + Sync + 'static;

    /// Decodes a frame of the peer.
    ///
    /// # Errors
    /// The frame is not a message; the reason is for the peer's operator.
    fn decode(frame: &str) -> Result<Self::In, Self::Malformed>;

    /// Encodes a message to the peer.
    fn encode(message: &Self::Out) -> String;
}

/// Why a message could not be received.
#[derive(Debug, thiserror::Error)]
pub enum SessionError<M: std::error::Error + 'static> {
    /// The socket failed.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A frame that is not a message. The session is still usable.
    #[error("the peer's frame is not a message")]
    Malformed(#[source] M),
}

impl<M: std::error::Error> SessionError<M> {
    /// Whether messages can still be exchanged.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Socket(error) => error.is_fatal(),
            Self::Malformed(_) => false,
        }
    }
}

/// Bytes that a peer may send before its greeting is accepted: many times the size of any greeting.
const GREETING_BYTES: usize = 64 * 1024;

/// A socket whose peer is not recognised yet. It exchanges a few frames, and no messages.
#[derive(Debug)]
pub struct Greeting {
    socket: Socket,
}

impl Greeting {
    /// Begins the handshake. From a peer that dialled us only 64 KiB are read until it is accepted.
    pub fn new(socket: Socket) -> Self {
        socket.allowance().limit(GREETING_BYTES);
        Self { socket }
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.socket.peer()
    }

    /// Whether the peer showed that it is Muster.
    pub fn is_muster(&self) -> bool {
        self.socket.is_muster()
    }

    /// The features that the peer showed; none for a peer that is not Muster.
    pub fn features(&self) -> FeatureSet {
        self.socket.features()
    }

    /// The next frame of the handshake; `None` if the peer left.
    ///
    /// # Errors
    /// See [`SocketReader::recv`].
    pub async fn receive(&mut self) -> Result<Option<String>, SocketError> {
        self.socket.recv().await
    }

    /// Sends a frame of the handshake.
    ///
    /// # Errors
    /// See [`SocketWriter::send`].
    pub async fn send(&mut self, frame: String) -> Result<(), SocketError> {
        self.socket.send(frame).await
    }

    /// Makes it a session: the peer has shown its identity.
    pub fn accept<P: Peer>(self, peer: P) -> PeerSession<P> {
        self.socket.allowance().lift();
        let (reader, writer) = self.socket.split();
        let peer = Arc::new(peer);
        PeerSession {
            receiver: Receiver {
                reader,
                peer: Arc::clone(&peer),
            },
            sender: Sender { writer, peer },
        }
    }

    /// Sends a last frame, such as the reason, and closes the socket.
    pub async fn refuse(mut self, frame: Option<String>, code: CloseCode) {
        if let Some(frame) = frame {
            // A peer that does not read the reason still sees the code.
            let _ = self.socket.send(frame).await;
        }
        self.socket.close(code, "").await;
    }
}

/// A socket whose peer is known, and which exchanges messages.
pub struct PeerSession<P> {
    receiver: Receiver<P>,
    sender: Sender<P>,
}

/// The receiving half of a session.
pub struct Receiver<P> {
    reader: SocketReader,
    peer: Arc<P>,
}

/// The sending half of a session. Clones send to the same peer.
pub struct Sender<P> {
    writer: SocketWriter,
    peer: Arc<P>,
}

// === impl PeerSession ===

impl<P: Peer> PeerSession<P> {
    /// The peer, as its greeting was accepted.
    pub fn peer(&self) -> &P {
        &self.sender.peer
    }

    /// Whether the peer showed that it is Muster.
    pub fn is_muster(&self) -> bool {
        self.sender.is_muster()
    }

    /// The features that the peer showed; none for a peer that is not Muster.
    pub fn features(&self) -> FeatureSet {
        self.sender.features()
    }

    /// The next message; `None` once the peer has closed. Cancel-safe.
    ///
    /// # Errors
    /// See [`Receiver::recv`].
    pub async fn recv(&mut self) -> Result<Option<P::In>, SessionError<P::Malformed>> {
        self.receiver.recv().await
    }

    /// Sends a message.
    ///
    /// # Errors
    /// See [`SocketWriter::send`].
    pub async fn send(&self, message: &P::Out) -> Result<(), SocketError> {
        self.sender.send(message).await
    }

    /// Closes with a code and a reason and waits, within the handshake limit, for the peer to agree.
    pub async fn close(mut self, code: CloseCode, reason: &str) {
        self.sender.close(code, reason).await;
        self.receiver.reader.drain().await;
    }

    /// The peer's close frame, once `recv` has returned `None`.
    pub fn closed(&self) -> Option<&PeerClose> {
        self.receiver.reader.closed()
    }

    /// Splits it into two halves for two tasks.
    pub fn split(self) -> (Receiver<P>, Sender<P>) {
        (self.receiver, self.sender)
    }
}

impl<P: Peer> Receiver<P> {
    /// The peer, as its greeting was accepted.
    pub fn peer(&self) -> &P {
        &self.peer
    }

    /// The next message; `None` once the peer has closed. Cancel-safe.
    ///
    /// # Errors
    /// The socket's, or a frame that is not a message; the latter leaves the session usable.
    pub async fn recv(&mut self) -> Result<Option<P::In>, SessionError<P::Malformed>> {
        match self.reader.recv().await? {
            None => Ok(None),
            Some(frame) => P::decode(&frame).map(Some).map_err(SessionError::Malformed),
        }
    }

    /// The peer's close frame, once [`Self::recv`] has returned `None`.
    pub fn closed(&self) -> Option<&PeerClose> {
        self.reader.closed()
    }
}

impl<P: Peer> Sender<P> {
    /// The peer, as its greeting was accepted.
    pub fn peer(&self) -> &P {
        &self.peer
    }

    /// Whether the peer showed that it is Muster.
    pub fn is_muster(&self) -> bool {
        self.writer.is_muster()
    }

    /// The features that the peer showed; none for a peer that is not Muster.
    pub fn features(&self) -> FeatureSet {
        self.writer.features()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// See [`SocketWriter::send`].
    pub async fn send(&self, message: &P::Out) -> Result<(), SocketError> {
        self.writer.send(P::encode(message)).await
    }

    /// Sends several messages in as few writes as possible.
    ///
    /// # Errors
    /// See [`SocketWriter::send_all`].
    pub async fn send_all<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a P::Out>,
    ) -> Result<(), SocketError> {
        self.writer.send_all(messages.into_iter().map(P::encode)).await
    }

    /// Sends a close frame.
    pub async fn close(&self, code: CloseCode, reason: &str) {
        self.writer.close(code, reason).await;
    }
}

impl<P> Clone for Sender<P> {
    fn clone(&self) -> Self {
        Self {
            writer: self.writer.clone(),
            peer: Arc::clone(&self.peer),
        }
    }
}

impl<P: fmt::Debug> fmt::Debug for PeerSession<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerSession")
            .field("peer", &self.sender.peer)
            .field("muster", &self.sender.writer.is_muster())
            .finish_non_exhaustive()
    }
}
