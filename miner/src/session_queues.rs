//! The queues between sessions and dispatcher. Sessions wait where the dispatcher is behind; the dispatcher never waits
//! for a peer.

use std::sync::Arc;

use muster_protocol::{AttemptId, FeatureSet, ReceiptKind};
use tokio::sync::{mpsc, oneshot};

use crate::lease_table::Event;

/// Events that wait; beyond it sessions wait, and their sockets with them.
const QUEUE: usize = 1024;
/// A peer that leaves this many messages unread is disconnected. It gets the missed messages when it connects again.
const CAPACITY: usize = 4096;
/// The part of an outbox that is reserved for messages that must not be missed.
const RESERVED: usize = CAPACITY - 256;

/// An event with the handles that the lease table must not see.
#[derive(Debug)]
pub struct DispatcherInput {
    /// The event for the lease table.
    pub event: Event,
    /// The handles that came with it.
    pub attachment: Attachment,
}

/// The handles that come with an event.
#[derive(Debug)]
pub enum Attachment {
    /// An event without handles.
    None,
    /// With [`Event::Joined`]: where to send.
    Validator(Outbox),
    /// With [`Event::Dialled`]: where to send, whether ours is understood, and who waits for the answer.
    Executor {
        /// Where to send once it is admitted.
        outbox: Outbox,
        /// It showed the header of Muster.
        muster: bool,
        /// The features that it showed.
        features: FeatureSet,
        /// Admitted, or why not.
        verdict: oneshot::Sender<Result<(), String>>,
    },
}

impl From<Event> for DispatcherInput {
    fn from(event: Event) -> Self {
        Self {
            event,
            attachment: Attachment::None,
        }
    }
}

/// The sending side of the dispatcher's queue, for sessions and managers. It waits where the dispatcher is behind.
#[derive(Clone, Debug)]
pub struct Inbox(mpsc::Sender<DispatcherInput>);

impl Inbox {
    /// Hands an event over; false once the miner has stopped.
    pub async fn send(&self, input: impl Into<DispatcherInput>) -> bool {
        self.0.send(input.into()).await.is_ok()
    }
}

/// The queue between sessions and dispatcher.
pub fn inbox() -> (Inbox, mpsc::Receiver<DispatcherInput>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Inbox(sender), receiver)
}

/// One thing to send.
#[derive(Clone, Debug)]
pub enum Outgoing {
    /// A frame, ready to send.
    Frame(Arc<str>),
    /// The history of an ended lease, read from the store at its turn, because results may be large and many.
    History(AttemptId),
    /// A receipt that the store has.
    Receipt(AttemptId, ReceiptKind),
}

/// The dispatcher's end. Dropping it lets the session send what is queued and then close.
#[derive(Clone, Debug)]
pub struct Outbox(mpsc::Sender<Outgoing>);

/// The session's end.
pub type OutgoingQueue = mpsc::Receiver<Outgoing>;

/// A queue for one session.
pub fn outbox() -> (Outbox, OutgoingQueue) {
    let (sender, receiver) = mpsc::channel(CAPACITY);
    (Outbox(sender), receiver)
}

impl Outbox {
    /// Queues one thing; false if the session is gone or does not keep up, and is to be dropped.
    #[must_use]
    pub fn push(&self, outgoing: Outgoing) -> bool {
        self.0.try_send(outgoing).is_ok()
    }

    /// Queues a message that may be missed, if the peer keeps up; otherwise the message is dropped.
    pub fn push_live(&self, outgoing: Outgoing) {
        if self.0.capacity() > RESERVED {
            // A closed session needs no message.
            let _ = self.0.try_send(outgoing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_frames_never_fill_an_outbox() {
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
