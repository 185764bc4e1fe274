//! The queues between sessions and dispatcher. Into the dispatcher sessions wait their turn; out of it nothing waits: the
//! dispatcher never waits for a peer.

use std::sync::Arc;

use muster_protocol::{AttemptId, ReceiptKind};
use tokio::sync::{mpsc, oneshot};

use crate::book::Event;

/// Events that wait; beyond it sessions wait, and their sockets with them.
const QUEUE: usize = 1024;
/// A peer that leaves this much unread is cut off. It finds what it missed when it connects again.
const CAPACITY: usize = 4096;
/// So much of an outbox is kept for what must not be missed.
const RESERVED: usize = CAPACITY - 256;

/// An event with the handles that the book must not see.
#[derive(Debug)]
pub struct Input {
    /// What happened.
    pub event: Event,
    /// What came with it.
    pub attachment: Attachment,
}

/// What comes with an event.
#[derive(Debug)]
pub enum Attachment {
    /// Nothing.
    None,
    /// With [`Event::Joined`]: where to send.
    Validator(Outbox),
    /// With [`Event::Dialled`]: where to send, whether ours is understood, and who waits for the answer.
    Executor {
        /// Where to send once it is admitted.
        outbox: Outbox,
        /// It showed the header of Muster.
        muster: bool,
        /// Admitted, or why not.
        verdict: oneshot::Sender<Result<(), String>>,
    },
}

impl From<Event> for Input {
    fn from(event: Event) -> Self {
        Self {
            event,
            attachment: Attachment::None,
        }
    }
}

/// How sessions and managers reach the dispatcher. It waits where the dispatcher is behind.
#[derive(Clone, Debug)]
pub struct Inbox(mpsc::Sender<Input>);

impl Inbox {
    /// Hands an event over; false once the miner has stopped.
    pub async fn send(&self, input: impl Into<Input>) -> bool {
        self.0.send(input.into()).await.is_ok()
    }
}

/// The queue between sessions and dispatcher.
pub fn inbox() -> (Inbox, mpsc::Receiver<Input>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Inbox(sender), receiver)
}

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

    /// Queues what may be missed, if the peer keeps up; else it is dropped.
    pub fn push_live(&self, outgoing: Outgoing) {
        if self.0.capacity() > RESERVED {
            // A session that is gone misses nothing.
            let _ = self.0.try_send(outgoing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_live_never_fills_an_outbox() {
        let (outbox, mut outgoings) = outbox();
        let frame = || Outgoing::Frame("x".into());
        for _ in 0..CAPACITY {
            outbox.push_live(frame());
        }
        let queued = std::iter::from_fn(|| outgoings.try_recv().ok()).count();
        assert_eq!(queued, CAPACITY - RESERVED);
        for _ in 0..CAPACITY {
            assert!(outbox.push(frame()));
        }
        assert!(!outbox.push(frame()));
    }
}
