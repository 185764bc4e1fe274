//! A validator's connections to miners.
//!
//! Each attempt has a [`MinerChannel`]: it asks for a connection, receives the miner's messages about the attempt, and
//! sends frames. Whether the connection is shared with other attempts makes no difference to its user.
//!
//! A miner that shows that it is Muster gets **one** session from a validator, which carries the messages of all
//! attempts on that miner. Any other miner gets one connection for each attempt, as ComputeHorde's validator opens
//! them. Dialling shows which kind a miner is.
//!
//! *Attempts do not block one another.* Messages for an attempt wait in its own queue. The messages of all attempts of
//! a session are bounded in bytes: beyond the bound nothing more is read from the socket. The messages of one attempt
//! are bounded in number: a miner that sends more is disconnected and repeats its messages on the next connection.
//!
//! *No message is lost between two connections.* A channel is registered from the beginning of its attempt to its end,
//! and the channels of attempts that an earlier process began are registered before anything is dialled. So a miner's
//! first messages after the greeting find their attempt. A message about no registered attempt becomes an
//! [`UnmatchedMessage`].
//!
//! [`ask_for_signature`] has a receipt signed after its attempt. [`ask_miner`] asks a miner for its executors and its
//! main hotkey on a connection of its own; a [`MinerConversation`] is such a connection for other messages about no
//! attempt.

mod attempt_channel;
mod conversation;
mod countersign;
mod endpoint;
mod questions;
mod session_state;
mod session_task;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use muster_identity::Keypair;
use muster_process::{SharedClock, Tasks};
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{AttemptId, MinerKey};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

pub use attempt_channel::{ChannelEvent, MinerChannel};
pub use conversation::MinerConversation;
pub use countersign::ask_for_signature;
pub use endpoint::MinerEndpoint;
pub use questions::{MinerAnswers, ask_miner};
use session_state::MinerSession;

/// Miners that are dialled at a time. A validator that comes back with a hundred thousand open jobs would otherwise
/// open as many connections at once.
const MAX_DIALS: usize = 256;

/// The setup that all connections of a validator share.
pub struct LinkSetup {
    /// The validator's key, which signs greetings.
    pub keypair: Keypair,
    /// The clock of greetings, pauses and lingering.
    pub clock: SharedClock,
    /// Runs the sessions, which end when it stops.
    pub tasks: Tasks,
    /// How long a session without attempts is kept open.
    pub linger: Duration,
    /// A frame that each Muster miner gets right after the greeting.
    pub first_frame: Option<String>,
}

/// All connections of a validator to miners. Clones share them.
#[derive(Clone)]
pub struct MinerLink(Arc<LinkState>);

struct LinkState {
    setup: LinkSetup,
    dials: Semaphore,
    unmatched: mpsc::UnboundedSender<UnmatchedMessage>,
    sessions: Mutex<HashMap<MinerEndpoint, Arc<MinerSession>>>,
}

/// The queue of messages about no attempt that has a channel. Each session bounds its own part of it.
pub type UnmatchedMessages = mpsc::UnboundedReceiver<UnmatchedMessage>;

/// A miner's message about no attempt that has a channel.
#[derive(Debug)]
pub struct UnmatchedMessage {
    /// The miner that sent it.
    pub miner: MinerKey,
    /// The decoded message.
    pub message: MinerToValidator,
    /// The way to answer it. Keep it until the message is handled: it holds the message's share of the session's
    /// bounds.
    pub reply: ReplyPath,
}

/// The way back to the sender of an [`UnmatchedMessage`].
pub struct ReplyPath {
    frames: mpsc::Sender<String>,
    /// The message's bytes and its place among the unmatched messages of its session.
    _permits: [OwnedSemaphorePermit; 2],
}

// === impl MinerLink ===

impl MinerLink {
    /// A link without connections, and the queue of its unmatched messages.
    pub fn new(setup: LinkSetup) -> (Self, UnmatchedMessages) {
        let (unmatched, queue) = mpsc::unbounded_channel();
        let state = LinkState {
            setup,
            dials: Semaphore::new(MAX_DIALS),
            unmatched,
            sessions: Mutex::default(),
        };
        (Self(Arc::new(state)), queue)
    }

    /// Registers a channel for an attempt on a miner. Nothing is dialled yet; messages about the attempt
    /// are queued for it from now on.
    pub fn open_channel(&self, attempt: AttemptId, endpoint: MinerEndpoint) -> MinerChannel {
        let mut sessions = self.sessions();
        let session = sessions
            .entry(endpoint)
            .or_insert_with(|| Arc::new(MinerSession::new(endpoint)));
        session.register(attempt);
        MinerChannel::new(self.clone(), Arc::clone(session), attempt)
    }

    /// The number of sessions that are open, are being dialled, or have an attempt.
    pub fn session_count(&self) -> usize {
        self.sessions().len()
    }

    pub(crate) fn setup(&self) -> &LinkSetup {
        &self.0.setup
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<MinerEndpoint, Arc<MinerSession>>> {
        self.0.sessions.lock()
    }

    /// Removes the channel of an attempt that is over.
    fn remove_channel(&self, session: &Arc<MinerSession>, attempt: AttemptId) {
        // Locked meanwhile, so that no attempt registers with a session that is being removed.
        let mut sessions = self.sessions();
        if session.unregister(attempt, self.setup().linger) {
            remove(&mut sessions, session);
        }
    }

    /// Removes a session that is neither open nor needed.
    fn remove_if_idle(&self, session: &Arc<MinerSession>) {
        let mut sessions = self.sessions();
        if session.is_idle() {
            remove(&mut sessions, session);
        }
    }
}

fn remove(sessions: &mut HashMap<MinerEndpoint, Arc<MinerSession>>, session: &Arc<MinerSession>) {
    // The endpoint may have another session by now.
    if sessions
        .get(&session.endpoint())
        .is_some_and(|there| Arc::ptr_eq(there, session))
    {
        sessions.remove(&session.endpoint());
    }
}

impl fmt::Debug for MinerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MinerLink({} sessions)", self.session_count())
    }
}

// === impl ReplyPath ===

impl ReplyPath {
    /// Answers on the session on which the message came, if that is still open.
    pub async fn send(self, frame: String) {
        // If it is not, the miner repeats its message on the next one.
        let _ = self.frames.send(frame).await;
    }
}

impl fmt::Debug for ReplyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyPath")
    }
}
