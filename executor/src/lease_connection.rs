//! The miner as its executor sees it: where to dial, what is heard and said: over a connection of its own, or over one that leases share.

use std::time::Duration;

use muster_process::error::Causes;
use muster_protocol::ExecutorToken;
use muster_protocol::wire::miner::{FromMiner, ToMiner};
use muster_protocol::wire::{WireError, decode, encode};
use muster_websocket::session::{Receiver, Sender};
use muster_websocket::{Peer, Session, SessionError, SocketError};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long the miner may take to agree to the end.
const GOODBYE_LIMIT: Duration = Duration::from_secs(10);
/// The normal end of a websocket.
const CLOSE_NORMAL: u16 = 1_000;

/// The other side of the socket. A miner is trusted by its executor, which it started.
#[derive(Debug)]
pub(crate) struct Miner;

impl Peer for Miner {
    type In = ToMiner;
    type Out = FromMiner;
    type Malformed = WireError;

    fn decode(frame: &str) -> Result<ToMiner, WireError> {
        decode(frame)
    }

    fn encode(message: &FromMiner) -> String {
        encode(message)
    }
}

/// Where the lease of a token is taken up.
pub(crate) fn url(miner_address: &str, token: &ExecutorToken) -> String {
    format!(
        "{}/v0.1/executor_interface/{token}",
        miner_address.trim_end_matches('/')
    )
}

/// What is heard.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A message.
    Message(ToMiner),
    /// A frame that is none.
    Unreadable(WireError),
    /// Something that is best passed over, in words.
    Noise(String),
    /// The end, in words.
    Lost(String),
}

/// The two ways to the miner.
pub(crate) struct Line {
    ears: Ears,
    mouth: Sender<Miner>,
}

enum Ears {
    Own(Receiver<Miner>),
    Shared(mpsc::Receiver<ToMiner>),
}

impl Line {
    /// Of one lease alone.
    pub(crate) fn own(session: Session<Miner>) -> Self {
        let (ears, mouth) = session.split();
        Self {
            ears: Ears::Own(ears),
            mouth,
        }
    }

    /// Of a lease among others. The line is lost when the sender of `inbox` is dropped.
    pub(crate) fn shared(inbox: mpsc::Receiver<ToMiner>, mouth: Sender<Miner>) -> Self {
        Self {
            ears: Ears::Shared(inbox),
            mouth,
        }
    }

    /// The next thing heard. Cancel-safe.
    pub(crate) async fn recv(&mut self) -> Heard {
        match &mut self.ears {
            Ears::Shared(inbox) => match inbox.recv().await {
                Some(message) => Heard::Message(message),
                None => Heard::Lost("its connection ended".to_owned()),
            },
            Ears::Own(receiver) => match receiver.recv().await {
                Ok(Some(message)) => Heard::Message(message),
                Ok(None) => Heard::Lost(how_it_closed(receiver)),
                Err(SessionError::Malformed(error)) => Heard::Unreadable(error),
                Err(error) if error.is_fatal() => Heard::Lost(Causes(&error).to_string()),
                Err(error) => Heard::Noise(Causes(&error).to_string()),
            },
        }
    }

    /// Says something.
    pub(crate) async fn send(&self, message: &FromMiner) -> Result<(), SocketError> {
        self.mouth.send(message).await
    }

    /// To say something from elsewhere.
    pub(crate) fn mouth(&self) -> Sender<Miner> {
        self.mouth.clone()
    }

    /// Whether the miner showed that it is Muster.
    pub(crate) fn is_muster(&self) -> bool {
        self.mouth.is_muster()
    }

    /// Closes a connection of our own and listens until the miner agrees: one dropped with unread bytes would be reset,
    /// and what the miner has not read yet would be lost with it.
    pub(crate) async fn goodbye(self) {
        let Ears::Own(mut receiver) = self.ears else {
            return;
        };
        self.mouth.close(CLOSE_NORMAL, "").await;
        let agrees = async {
            loop {
                match receiver.recv().await {
                    Ok(None) => return,
                    Err(error) if error.is_fatal() => return,
                    Ok(Some(_)) | Err(_) => {}
                }
            }
        };
        // A miner that does not agree is left.
        let _ = timeout(GOODBYE_LIMIT, agrees).await;
    }
}

/// In words.
pub(crate) fn how_it_closed(receiver: &Receiver<Miner>) -> String {
    let closed = receiver
        .closed()
        .map(|closed| format!("it closed with {} {}", closed.code, closed.reason));
    let reason = closed.unwrap_or_else(|| "its connection ended".to_owned());
    reason.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_may_end_with_a_slash() {
        let uuid = "11111111-2222-4333-8444-555555555555";
        let token: ExecutorToken = format!("{uuid}-{uuid}").parse().unwrap();
        for address in ["ws://h:1", "ws://h:1/"] {
            assert_eq!(
                url(address, &token),
                format!("ws://h:1/v0.1/executor_interface/{uuid}-{uuid}")
            );
        }
    }
}
