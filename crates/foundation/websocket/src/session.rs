//! Who may exchange messages: a socket begins as a [`Greeting`], and only a greeting that was accepted becomes a
//! [`Session`]. What the messages mean is the business of the [`Peer`].

use std::fmt;
use std::sync::Arc;

use crate::error::SocketError;
use crate::socket::{Closed, Socket, SocketReader, SocketWriter};

/// The other side of a session: who it is, and which messages are exchanged with it.
pub trait Peer: Send + Sync + 'static {
    /// What it sends to us.
    type In: Send;
    /// What we send to it.
    type Out: Send + Sync;
    /// Why a frame of its is not a message.
    type Malformed: std::error::Error + Send + Sync + 'static;

    /// Reads a frame.
    ///
    /// # Errors
    /// A frame that is not a message, with a reason for its operator.
    fn decode(frame: &str) -> Result<Self::In, Self::Malformed>;

    /// Writes a frame.
    fn encode(message: &Self::Out) -> String;
}

/// Why no message was exchanged.
#[derive(Debug, thiserror::Error)]
pub enum SessionError<M: std::error::Error + 'static> {
    /// The socket's fault.
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

/// How many bytes a peer may send before its greeting is accepted: many times what any greeting has.
const GREETING_BYTES: usize = 64 * 1024;

/// A socket whose peer has not been recognised. It exchanges frames, not messages, and few.
#[derive(Debug)]
pub struct Greeting {
    socket: Socket,
}

impl Greeting {
    /// Begins to greet. Of a peer that dialled us only 64 KiB are read until it is accepted.
    pub fn new(socket: Socket) -> Self {
        socket.allowance().limit(GREETING_BYTES);
        Self { socket }
    }

    /// Whether the peer showed that it is Muster.
    pub fn is_muster(&self) -> bool {
        self.socket.is_muster()
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

    /// The peer is who it says.
    pub fn accept<P: Peer>(self, peer: P) -> Session<P> {
        self.socket.allowance().lift();
        let muster = self.socket.is_muster();
        let (reader, writer) = self.socket.split();
        let peer = Arc::new(peer);
        Session {
            receiver: Receiver {
                reader,
                peer: Arc::clone(&peer),
            },
            sender: Sender { writer, peer },
            muster,
        }
    }

    /// The peer is told why not, and the socket is closed.
    pub async fn refuse(mut self, frame: Option<String>, code: u16) {
        if let Some(frame) = frame {
            // Who does not read the reason still sees the code.
            let _ = self.socket.send(frame).await;
        }
        self.socket.close(code, "").await;
    }
}

/// A socket whose peer is known: messages are exchanged.
pub struct Session<P> {
    receiver: Receiver<P>,
    sender: Sender<P>,
    muster: bool,
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

// === impl Session ===

impl<P: Peer> Session<P> {
    /// Who is on the other side.
    pub fn peer(&self) -> &P {
        &self.sender.peer
    }

    /// Whether the peer showed that it is Muster.
    pub fn is_muster(&self) -> bool {
        self.muster
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
    pub async fn close(mut self, code: u16, reason: &str) {
        self.sender.close(code, reason).await;
        self.receiver.reader.drain().await;
    }

    /// How the peer closed, once `recv` has answered `None`.
    pub fn closed(&self) -> Option<&Closed> {
        self.receiver.reader.closed()
    }

    /// Two halves for two tasks.
    pub fn split(self) -> (Receiver<P>, Sender<P>) {
        (self.receiver, self.sender)
    }
}

impl<P: Peer> Receiver<P> {
    /// Who is on the other side.
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

    /// How the peer closed, once [`Self::recv`] has answered `None`.
    pub fn closed(&self) -> Option<&Closed> {
        self.reader.closed()
    }
}

impl<P: Peer> Sender<P> {
    /// Who is on the other side.
    pub fn peer(&self) -> &P {
        &self.peer
    }

    /// Whether the peer showed that it is Muster.
    pub fn is_muster(&self) -> bool {
        self.writer.is_muster()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// See [`SocketWriter::send`].
    pub async fn send(&self, message: &P::Out) -> Result<(), SocketError> {
        self.writer.send(P::encode(message)).await
    }

    /// Sends several messages, in as few writes as they fit into.
    ///
    /// # Errors
    /// See [`SocketWriter::send_all`].
    pub async fn send_all<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a P::Out>,
    ) -> Result<(), SocketError> {
        self.writer.send_all(messages.into_iter().map(P::encode)).await
    }

    /// Tells the peer that this is the end.
    pub async fn close(&self, code: u16, reason: &str) {
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

impl<P: fmt::Debug> fmt::Debug for Session<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("peer", &self.sender.peer)
            .field("muster", &self.muster)
            .finish_non_exhaustive()
    }
}
