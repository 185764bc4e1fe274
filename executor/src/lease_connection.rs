//! The connection of one lease to its miner: a connection of its own, or a part of one that several leases share.

use std::time::Duration;

use muster_process::error::Causes;
use muster_protocol::ExecutorToken;
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor, decode_from_miner};
use muster_protocol::wire::{WireError, encode};
use muster_websocket::session::{Receiver, Sender};
use muster_websocket::{CloseCode, Peer, PeerSession, SessionError, SocketError};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long the miner may take to agree to a close.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// The miner as a websocket peer. An executor trusts the miner that started it.
#[derive(Debug)]
pub(crate) struct Miner;

impl Peer for Miner {
    type In = MinerToExecutor;
    type Out = ExecutorToMiner;
    type Malformed = WireError;

    fn decode(frame: &str) -> Result<MinerToExecutor, WireError> {
        decode_from_miner(frame)
    }

    fn encode(message: &ExecutorToMiner) -> String {
        encode(message)
    }
}

/// The address at which the lease of a token is taken up.
pub(crate) fn lease_url(miner_address: &str, token: &ExecutorToken) -> String {
    muster_websocket::with_path(miner_address, &format!("/v0.1/executor_interface/{token}"))
}

/// A message from the miner, or an error of the connection.
#[derive(Debug)]
pub(crate) enum Received {
    Message(MinerToExecutor),
    /// A frame that is no message.
    Malformed(WireError),
    /// An error that does not end the connection; its description.
    Ignorable(String),
    /// The connection ended; the description gives the reason.
    Lost(String),
}

/// Messages of one lease, in both directions.
pub(crate) struct LeaseConnection {
    receiver: LeaseReceiver,
    sender: Sender<Miner>,
}

enum LeaseReceiver {
    /// A connection of the lease's own.
    Own(Receiver<Miner>),
    /// The messages of this lease out of a connection that leases share.
    Shared(mpsc::Receiver<MinerToExecutor>),
}

impl LeaseConnection {
    /// A lease with a connection of its own.
    pub(crate) fn own(session: PeerSession<Miner>) -> Self {
        let (receiver, sender) = session.split();
        Self {
            receiver: LeaseReceiver::Own(receiver),
            sender,
        }
    }

    /// A lease among others on one connection. It is lost when the sender of `inbox` is dropped.
    pub(crate) fn shared(inbox: mpsc::Receiver<MinerToExecutor>, sender: Sender<Miner>) -> Self {
        Self {
            receiver: LeaseReceiver::Shared(inbox),
            sender,
        }
    }

    /// The next message or error. Cancel-safe.
    pub(crate) async fn recv(&mut self) -> Received {
        match &mut self.receiver {
            LeaseReceiver::Shared(inbox) => match inbox.recv().await {
                Some(message) => Received::Message(message),
                None => Received::Lost("its connection ended".to_owned()),
            },
            LeaseReceiver::Own(receiver) => match receiver.recv().await {
                Ok(Some(message)) => Received::Message(message),
                Ok(None) => Received::Lost(describe_close(receiver)),
                // Nothing of the job is lost with it.
                Err(SessionError::Malformed(error)) if error.is_misplaced() => {
                    Received::Ignorable("a message that is not for an executor".to_owned())
                }
                Err(SessionError::Malformed(error)) => Received::Malformed(error),
                Err(error) if error.is_fatal() => Received::Lost(Causes(&error).to_string()),
                Err(error) => Received::Ignorable(Causes(&error).to_string()),
            },
        }
    }

    pub(crate) async fn send(&self, message: &ExecutorToMiner) -> Result<(), SocketError> {
        self.sender.send(message).await
    }

    /// A sender that outlives this connection's owner.
    pub(crate) fn sender(&self) -> Sender<Miner> {
        self.sender.clone()
    }

    /// Whether the miner showed that it is Muster.
    pub(crate) fn is_muster(&self) -> bool {
        self.sender.is_muster()
    }

    /// Closes a connection of the lease's own, and reads until the miner agrees: a connection dropped with unread
    /// bytes would be reset, and messages that the miner has not read yet would be lost with it.
    pub(crate) async fn close(self) {
        let LeaseReceiver::Own(mut receiver) = self.receiver else {
            return;
        };
        self.sender.close(CloseCode::Normal, "").await;
        let agrees = async {
            loop {
                match receiver.recv().await {
                    Ok(None) => return,
                    Err(error) if error.is_fatal() => return,
                    Ok(Some(_)) | Err(_) => {}
                }
            }
        };
        // After the limit the connection is dropped all the same.
        let _ = timeout(CLOSE_LIMIT, agrees).await;
    }
}

/// How the miner closed its connection, for logs and errors.
pub(crate) fn describe_close(receiver: &Receiver<Miner>) -> String {
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
                lease_url(address, &token),
                format!("ws://h:1/v0.1/executor_interface/{uuid}-{uuid}")
            );
        }
    }
}
