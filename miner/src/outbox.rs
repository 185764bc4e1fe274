//! What a session is to send, queued by the dispatcher, which never waits for a peer.

use std::sync::Arc;

use muster_protocol::{AttemptId, ReceiptKind};
use tokio::sync::mpsc;

/// A peer that leaves this much unread is cut off. It finds what it missed when it connects again.
const CAPACITY: usize = 4096;

/// One thing to send.
#[derive(Clone, Debug)]
pub enum Outgoing {
    /// A frame.
    Frame(Arc<str>),
    /// The story of an ended lease, read from the store at its turn: results may be large, and many.
    Story(AttemptId),
    /// A receipt that the store has.
    Receipt(AttemptId, ReceiptKind),
}

/// The dispatcher's end. Dropping it lets the session send what is queued and then close.
#[derive(Clone, Debug)]
pub struct Outbox(mpsc::Sender<Outgoing>);

/// The session's end.
pub type Outgoings = mpsc::Receiver<Outgoing>;

/// A queue for one session.
pub fn outbox() -> (Outbox, Outgoings) {
    let (sender, receiver) = mpsc::channel(CAPACITY);
    (Outbox(sender), receiver)
}

impl Outbox {
    /// Queues one thing; false if the session is gone or does not keep up, and is to be dropped.
    #[must_use]
    pub fn push(&self, outgoing: Outgoing) -> bool {
        self.0.try_send(outgoing).is_ok()
    }
}
