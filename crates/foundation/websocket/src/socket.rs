//! A websocket on which a text frame is a message, with pings and with bounds on silence, size and slowness.
//!
//! No task runs behind a socket: pings are sent and answered while someone waits in [`SocketReader::recv`], which every
//! role does all the time. Dropping a waiting `recv` loses nothing.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{FutureExt, SinkExt, StreamExt};
use muster_process::connections::ConnectionPermit;
use muster_protocol::FeatureSet;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode as FrameCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_tungstenite::tungstenite::{Error as LibraryError, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use tokio_util::sync::CancellationToken;

use crate::CloseCode;
use crate::allowance::{CountedIo, ReadAllowance};
use crate::error::SocketError;
use crate::io::Io;
use crate::limits::Limits;
use crate::liveness::{Liveness, LivenessAction};
use crate::peer::PeerKind;

/// Bytes of a close frame's reason, at most (RFC 6455, 5.5).
const MAX_REASON: usize = 123;

/// Frames over a byte stream. TLS lies below the plain variant, so it serves every connection.
pub(crate) type Frames = WebSocketStream<MaybeTlsStream<Box<dyn Io>>>;

/// The peer's close frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerClose {
    /// The peer's code; [`CloseCode::NoStatus`] if it gave none.
    pub code: CloseCode,
    /// Its reason, often empty.
    pub reason: String,
}

/// One open websocket.
pub struct Socket {
    reader: SocketReader,
    writer: SocketWriter,
    allowance: ReadAllowance,
    /// The place of an accepted connection, which it keeps while its peer is unknown.
    permit: Option<Arc<ConnectionPermit>>,
}

/// The receiving half.
pub struct SocketReader {
    stream: SplitStream<Frames>,
    link: Arc<SocketState>,
    liveness: Liveness,
    closed: Option<PeerClose>,
}

/// The sending half. Clones send on the same socket, one frame at a time.
#[derive(Clone)]
pub struct SocketWriter {
    link: Arc<SocketState>,
}

/// The state that both halves share.
struct SocketState {
    sink: Mutex<SplitSink<Frames, Message>>,
    limits: Limits,
    peer: SocketAddr,
    kind: PeerKind,
    /// Cancelled when either half gave the connection up, so that the other does not wait for it.
    gone: CancellationToken,
}

// === impl Socket ===

impl Socket {
    /// The server's side of a connection whose upgrade is done.
    ///
    /// It keeps `permit`, which counts against the listener's bounds, until it is split.
    pub(crate) async fn upgraded(
        io: Box<dyn Io>,
        peer: SocketAddr,
        kind: PeerKind,
        limits: &Limits,
        permit: Option<Arc<ConnectionPermit>>,
    ) -> Self {
        let allowance = ReadAllowance::default();
        let counted: Box<dyn Io> = Box::new(CountedIo {
            io,
            allowance: allowance.clone(),
        });
        let io = MaybeTlsStream::Plain(counted);
        let frames = WebSocketStream::from_raw_socket(io, Role::Server, Some(limits.websocket())).await;
        Self {
            allowance,
            permit,
            ..Self::over(frames, peer, kind, limits)
        }
    }

    /// A websocket whose handshake is done.
    pub(crate) fn over(frames: Frames, peer: SocketAddr, kind: PeerKind, limits: &Limits) -> Self {
        let (sink, stream) = frames.split();
        let link = Arc::new(SocketState {
            sink: Mutex::new(sink),
            limits: *limits,
            peer,
            kind,
            gone: CancellationToken::new(),
        });
        Self {
            reader: SocketReader {
                stream,
                link: Arc::clone(&link),
                liveness: Liveness::new(Instant::now()),
                closed: None,
            },
            writer: SocketWriter { link },
            allowance: ReadAllowance::default(),
            permit: None,
        }
    }

    /// The bytes that the peer may send until it is recognised. Only accepted connections are counted: a peer that we
    /// dial is chosen by us.
    pub(crate) fn allowance(&self) -> &ReadAllowance {
        &self.allowance
    }

    /// The next message; `None` once the peer has closed.
    ///
    /// # Errors
    /// See [`SocketReader::recv`].
    pub async fn recv(&mut self) -> Result<Option<String>, SocketError> {
        self.reader.recv().await
    }

    /// Sends one message.
    ///
    /// # Errors
    /// See [`SocketWriter::send`].
    pub async fn send(&mut self, message: String) -> Result<(), SocketError> {
        self.writer.send(message).await
    }

    /// Closes with a code and a reason and waits, within the handshake limit, for the peer to agree.
    pub async fn close(mut self, code: CloseCode, reason: &str) {
        self.writer.close(code, reason).await;
        self.reader.drain().await;
    }

    /// Splits it into two halves for two tasks. The peer is known now, so the connection gives back its place among the
    /// listener's connections.
    pub fn split(self) -> (SocketReader, SocketWriter) {
        drop(self.permit);
        (self.reader, self.writer)
    }

    /// Whether the peer showed that it is Muster. Only then may messages that ComputeHorde does not know be sent to it.
    pub fn is_muster(&self) -> bool {
        self.reader.link.kind.muster
    }

    /// The features that the peer showed; none for a peer that is not Muster. Messages of a feature may be sent only to
    /// a peer that showed it.
    pub fn features(&self) -> FeatureSet {
        self.reader.link.kind.features
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.reader.link.peer
    }

    /// The peer's close frame, once `recv` has returned `None`.
    pub fn closed(&self) -> Option<&PeerClose> {
        self.reader.closed()
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("peer", &self.peer())
            .field("muster", &self.is_muster())
            .finish_non_exhaustive()
    }
}

// === impl SocketReader ===

impl SocketReader {
    /// The next message; `None` once the peer has closed. Pings a silent peer meanwhile. Cancel-safe.
    ///
    /// # Errors
    /// Each kind of bad frame by name; [`SocketError::is_fatal`] returns whether another call can succeed.
    pub async fn recv(&mut self) -> Result<Option<String>, SocketError> {
        if self.closed.is_some() {
            return Ok(None);
        }
        self.liveness.resume(Instant::now());
        let mut listening = RecvGuard(self);
        let reader = &mut listening.0;
        loop {
            let wake = match reader.liveness.action(&reader.link.limits, Instant::now()) {
                LivenessAction::Wait(until) => until,
                LivenessAction::Ping => {
                    reader.ping();
                    continue;
                }
                // Frames that arrived while no reader waited are still read before the peer counts as gone.
                LivenessAction::GiveUp => Instant::now(),
            };
            let gone = reader.link.gone.clone();
            let frame = tokio::select! {
                biased;
                frame = reader.stream.next() => frame,
                () = gone.cancelled() => return Err(SocketError::Lost(None)),
                () = tokio::time::sleep_until(wake) => {
                    if reader.liveness.action(&reader.link.limits, Instant::now()) == LivenessAction::GiveUp {
                        return Err(reader.give_up());
                    }
                    continue;
                }
            };
            reader.liveness.note_frame(Instant::now());
            if let Some(outcome) = reader.interpret(frame) {
                return outcome;
            }
        }
    }

    /// The peer's close frame, once [`Self::recv`] has returned `None`.
    pub fn closed(&self) -> Option<&PeerClose> {
        self.closed.as_ref()
    }

    /// Waits, within the handshake limit, until the peer agrees to a close; further messages are dropped.
    ///
    /// A connection that is dropped with frames unread may take our own last frames with it.
    pub async fn drain(&mut self) {
        let agreed = async { while let Some(Ok(_)) = self.stream.next().await {} };
        // A peer that does not agree in time is left alone.
        let _ = timeout(self.link.limits.handshake, agreed).await;
    }

    /// The meaning of one frame; `None` for frames that only keep a connection alive.
    fn interpret(
        &mut self,
        frame: Option<Result<Message, LibraryError>>,
    ) -> Option<Result<Option<String>, SocketError>> {
        match frame {
            None => {
                self.link.gone.cancel();
                Some(Ok(None))
            }
            Some(Ok(Message::Text(text))) => Some(Ok(Some(text.as_str().to_owned()))),
            Some(Ok(Message::Binary(bytes))) => Some(Err(SocketError::Binary(bytes.len()))),
            Some(Ok(Message::Close(frame))) => {
                self.closed = Some(frame.map_or_else(
                    || PeerClose {
                        code: CloseCode::NoStatus,
                        reason: String::new(),
                    },
                    |frame| PeerClose {
                        code: CloseCode::from(u16::from(frame.code)),
                        reason: frame.reason.as_str().to_owned(),
                    },
                ));
                // Hands our agreement to the network; the peer closes the connection.
                let _ = self.stream.next().now_or_never();
                self.link.gone.cancel();
                Some(Ok(None))
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => None,
            Some(Err(LibraryError::ConnectionClosed | LibraryError::AlreadyClosed)) => {
                self.link.gone.cancel();
                Some(Ok(None))
            }
            Some(Err(error)) => {
                let error = SocketError::from_library(error);
                self.link.close_for_fault(&error);
                self.link.gone.cancel();
                Some(Err(error))
            }
        }
    }

    /// Sends a ping without waiting for the peer to read it.
    fn ping(&mut self) {
        self.liveness.note_ping(Instant::now());
        // A sink in use is a message under way, which has its own limit and serves as well as a ping.
        if let Ok(mut sink) = self.link.sink.try_lock() {
            // If it does not fit now, the peer is not reading, and its silence ends the connection.
            let _ = sink.send(Message::Ping(bytes::Bytes::new())).now_or_never();
        }
    }

    fn give_up(&self) -> SocketError {
        self.link.gone.cancel();
        SocketError::Silent(self.link.limits.idle)
    }
}

/// Notes the time when a reader stops waiting, also when its future is dropped.
struct RecvGuard<'a>(&'a mut SocketReader);

impl Drop for RecvGuard<'_> {
    fn drop(&mut self) {
        self.0.liveness.pause(Instant::now());
    }
}

// === impl SocketWriter ===

impl SocketWriter {
    /// Sends one message and waits until it is handed to the network.
    ///
    /// # Errors
    /// A message over the limit, a peer that does not read within the write limit, a lost connection.
    pub async fn send(&self, message: String) -> Result<(), SocketError> {
        self.send_all([message]).await
    }

    /// Sends several messages in as few writes as possible, and waits until they are handed to the network. The write
    /// limit is for all of them together.
    ///
    /// # Errors
    /// As [`Self::send`]; a message over the limit and those behind it are not sent.
    pub async fn send_all(&self, messages: impl IntoIterator<Item = String>) -> Result<(), SocketError> {
        let limit = self.link.limits.max_frame;
        let mut too_long = None;
        let fits = |message: &String| {
            if message.len() > limit {
                too_long = Some(message.len());
            }
            message.len() <= limit
        };
        let frames: Vec<_> = messages.into_iter().take_while(fits).map(Message::text).collect();
        self.link.send_all(frames).await?;
        match too_long {
            Some(size) => Err(SocketError::TooLongToSend { size, limit }),
            None => Ok(()),
        }
    }

    /// Sends a close frame. The reader returns `None` once the peer agrees.
    pub async fn close(&self, code: CloseCode, reason: &str) {
        let frame = CloseFrame {
            code: FrameCode::from(u16::from(code)),
            reason: shorten_reason(reason).into(),
        };
        // The peer may be gone.
        let _ = self.link.send_all(vec![Message::Close(Some(frame))]).await;
    }

    /// Whether the peer showed that it is Muster.
    pub fn is_muster(&self) -> bool {
        self.link.kind.muster
    }

    /// The features that the peer showed; none for a peer that is not Muster.
    pub fn features(&self) -> FeatureSet {
        self.link.kind.features
    }
}

// === impl SocketState ===

impl SocketState {
    async fn send_all(&self, messages: Vec<Message>) -> Result<(), SocketError> {
        if self.gone.is_cancelled() {
            return Err(SocketError::Lost(None));
        }
        let write = async {
            let mut sink = self.sink.lock().await;
            for message in messages {
                sink.feed(message).await?;
            }
            sink.flush().await
        };
        let sent = tokio::select! {
            biased;
            sent = timeout(self.limits.write, write) => sent,
            () = self.gone.cancelled() => return Err(SocketError::Lost(None)),
        };
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                self.gone.cancel();
                Err(SocketError::from_library(error))
            }
            // Half a frame may be sent, and nothing can follow it.
            Err(_) => {
                self.gone.cancel();
                Err(SocketError::SlowReader(self.limits.write))
            }
        }
    }

    /// Closes with the code that names the peer's fault.
    fn close_for_fault(&self, error: &SocketError) {
        let code = match error {
            SocketError::Oversize { .. } | SocketError::BeforeGreeting => CloseCode::TooBig,
            SocketError::InvalidUtf8 => CloseCode::InvalidData,
            SocketError::Protocol(_) => CloseCode::Protocol,
            SocketError::Binary(_)
            | SocketError::TooLongToSend { .. }
            | SocketError::Silent(_)
            | SocketError::SlowReader(_)
            | SocketError::Lost(_) => return,
        };
        let frame = CloseFrame {
            code: FrameCode::from(u16::from(code)),
            reason: shorten_reason(&error.to_string()).into(),
        };
        if let Ok(mut sink) = self.sink.try_lock() {
            // The reason is not worth waiting for a peer that breaks the rules.
            let _ = sink.send(Message::Close(Some(frame))).now_or_never();
        }
    }
}

/// The beginning of a reason that fits into a close frame, cut between characters.
fn shorten_reason(reason: &str) -> String {
    reason
        .char_indices()
        .take_while(|(at, c)| at + c.len_utf8() <= MAX_REASON)
        .map(|(_, c)| c)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_between_characters() {
        assert_eq!(shorten_reason("bye"), "bye");
        assert_eq!(shorten_reason(&"é".repeat(100)).len(), 122);
        assert_eq!(shorten_reason(&"a".repeat(200)).len(), 123);
    }
}
