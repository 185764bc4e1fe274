//! The state of one miner's session: whether it is open, and the queued messages of each attempt. No socket is touched
//! here, and the only wait is an attempt's wait for its next item.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use muster_process::backoff::{Backoff, random_jitter};
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{AttemptId, FeatureSet};
use muster_websocket::{SocketReader, SocketWriter};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::endpoint::MinerEndpoint;

/// Short at first, since jobs are waiting; each attempt's own deadline ends the attempts to connect.
pub(crate) const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(250),
    max: Duration::from_secs(5),
};

/// Messages that wait for one attempt; a whole attempt has fewer than ten.
const MAX_QUEUED: usize = 64;
/// Optional messages and complaints are queued only while the queue is shorter than this.
const MAX_QUEUED_OPTIONAL: usize = MAX_QUEUED / 2;
/// Bytes of messages that wait for all attempts of a session: a little more than the longest frame.
pub(crate) const MAX_QUEUED_BYTES: u32 = 64 << 20;

/// Both halves of a socket.
pub(crate) type SocketHalves = (SocketReader, SocketWriter);

/// The way to the miner through an open session.
#[derive(Clone, Debug)]
pub(crate) struct SharedFrames {
    /// Frames are sent here.
    pub(crate) frames: mpsc::Sender<String>,
    /// The features that the miner showed.
    pub(crate) features: FeatureSet,
}

/// The next thing that an attempt learns from its session.
pub(crate) enum AttemptItem {
    /// The session is open.
    Up(SharedFrames),
    /// The session could not be opened, or was lost.
    Down(Arc<str>),
    /// A message about the attempt, and its share of the queued bytes.
    Message(Box<MinerToValidator>, Option<OwnedSemaphorePermit>),
    /// The miner is not Muster: the attempt needs a connection of its own, which may be open already.
    NeedsOwn(Option<Box<SocketHalves>>),
}

/// The outcome of delivering a message.
pub(crate) enum Delivery {
    /// It is queued for its attempts, or dropped because they have connections of their own.
    Done,
    /// It is about no attempt that is registered, or it is optional and the queue is full.
    Unmatched(Box<MinerToValidator>, OwnedSemaphorePermit),
    /// The queue of this attempt holds more messages than any honest miner sends.
    TooMany(AttemptId),
}

#[derive(Debug)]
pub(crate) struct MinerSession {
    endpoint: MinerEndpoint,
    state: Mutex<SessionState>,
    /// Bytes that may still be queued.
    room: Arc<Semaphore>,
    /// Notified when the last attempt is unregistered.
    emptied: Notify,
}

#[derive(Debug)]
struct SessionState {
    attempts: HashMap<AttemptId, AttemptMessages>,
    connection: ConnectionState,
    /// Failures since the last message.
    failures: u32,
}

#[derive(Debug)]
enum ConnectionState {
    Down,
    Dialling,
    Up {
        frames: SharedFrames,
        /// Cancelled when no attempt needs the session any more.
        closing: CancellationToken,
    },
    /// The miner is not Muster: each attempt has a connection of its own.
    Separate,
}

/// The queue of one attempt.
#[derive(Default)]
struct AttemptMessages {
    items: VecDeque<AttemptItem>,
    waker: Option<Waker>,
    /// The attempt asked for a connection.
    wants_connection: bool,
    /// The attempt was notified that the session is open.
    is_up: bool,
    /// The attempt has a connection of its own and receives its messages there.
    has_own: bool,
}

// === impl MinerSession ===

impl MinerSession {
    pub(crate) fn new(endpoint: MinerEndpoint) -> Self {
        Self {
            endpoint,
            state: Mutex::new(SessionState {
                attempts: HashMap::new(),
                connection: ConnectionState::Down,
                failures: 0,
            }),
            room: Arc::new(Semaphore::new(MAX_QUEUED_BYTES as usize)),
            emptied: Notify::new(),
        }
    }

    pub(crate) fn endpoint(&self) -> MinerEndpoint {
        self.endpoint
    }

    pub(crate) fn room(&self) -> Arc<Semaphore> {
        Arc::clone(&self.room)
    }

    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock()
    }

    // === called by channels ===

    pub(crate) fn register(&self, attempt: AttemptId) {
        self.state().attempts.insert(attempt, AttemptMessages::default());
    }

    /// Forgets an attempt. True if the session has no attempt left and is not open, or is closed by this.
    pub(crate) fn unregister(&self, attempt: AttemptId, linger: Duration) -> bool {
        let mut state = self.state();
        state.attempts.remove(&attempt);
        if !state.attempts.is_empty() {
            return false;
        }
        match &state.connection {
            ConnectionState::Down | ConnectionState::Separate => true,
            ConnectionState::Dialling => false,
            ConnectionState::Up { closing, .. } if linger.is_zero() => {
                closing.cancel();
                state.connection = ConnectionState::Down;
                true
            }
            ConnectionState::Up { .. } => {
                self.emptied.notify_one();
                false
            }
        }
    }

    /// Notes that an attempt wants a connection. True if the caller is to dial now.
    pub(crate) fn request_dial(&self, attempt: AttemptId) -> bool {
        let mut state = self.state();
        let SessionState {
            attempts, connection, ..
        } = &mut *state;
        let Some(messages) = attempts.get_mut(&attempt) else {
            return false;
        };
        match connection {
            ConnectionState::Down => {
                messages.wants_connection = true;
                *connection = ConnectionState::Dialling;
                return true;
            }
            ConnectionState::Dialling => messages.wants_connection = true,
            ConnectionState::Up { frames, .. } => messages.set_up(frames),
            ConnectionState::Separate => messages.need_own(None),
        }
        false
    }

    /// The next item of an attempt.
    pub(crate) fn poll_next(&self, attempt: AttemptId, cx: &mut Context<'_>) -> Poll<AttemptItem> {
        let mut state = self.state();
        let Some(messages) = state.attempts.get_mut(&attempt) else {
            // A channel is registered until it is dropped.
            return Poll::Pending;
        };
        if let Some(item) = messages.items.pop_front() {
            return Poll::Ready(item);
        }
        match &mut messages.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    // === called by the task that makes and serves the connection ===

    /// How long to wait before the session is dialled.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let failure = self.state().failures.checked_sub(1)?;
        Some(BACKOFF.delay(failure, random_jitter()))
    }

    /// The session could not be opened: each attempt that asked for it is notified, and asks again if it still needs
    /// it.
    pub(crate) fn fail_dial(&self, reason: &str) {
        let mut state = self.state();
        state.set_down();
        let reason: Arc<str> = reason.into();
        for messages in state
            .attempts
            .values_mut()
            .filter(|messages| messages.wants_connection)
        {
            messages.wants_connection = false;
            messages.push(AttemptItem::Down(Arc::clone(&reason)));
        }
    }

    /// The session is open. All attempts are notified before the first message is read. False if there is no attempt
    /// and the session does not linger: it is to be closed.
    pub(crate) fn open(&self, frames: SharedFrames, closing: CancellationToken, linger: Duration) -> bool {
        let mut state = self.state();
        if state.attempts.is_empty() {
            if linger.is_zero() {
                state.connection = ConnectionState::Down;
                return false;
            }
            self.emptied.notify_one();
        }
        for messages in state.attempts.values_mut() {
            messages.set_up(&frames);
        }
        state.connection = ConnectionState::Up { frames, closing };
        true
    }

    /// The open session was lost.
    pub(crate) fn lose(&self, reason: &str) {
        let mut state = self.state();
        state.set_down();
        let reason: Arc<str> = reason.into();
        for messages in state.attempts.values_mut().filter(|messages| messages.is_up) {
            (messages.wants_connection, messages.is_up) = (false, false);
            messages.push(AttemptItem::Down(Arc::clone(&reason)));
        }
    }

    /// The session is closed because the validator stops.
    pub(crate) fn stop(&self) {
        self.state().connection = ConnectionState::Down;
    }

    /// The miner is not Muster: the first attempt that asked gets the connection, and the others dial for themselves.
    pub(crate) fn split_up(&self, halves: SocketHalves) {
        let mut state = self.state();
        state.connection = ConnectionState::Separate;
        let mut halves = Some(Box::new(halves));
        for messages in state
            .attempts
            .values_mut()
            .filter(|messages| messages.wants_connection)
        {
            messages.need_own(halves.take());
        }
    }

    /// The miner has become Muster: the next attempt dials a session for all.
    pub(crate) fn share_again(&self) {
        let mut state = self.state();
        if matches!(state.connection, ConnectionState::Separate) {
            state.connection = ConnectionState::Down;
        }
    }

    /// Queues a message for its attempt, and a complaint that names no attempt for all of them.
    pub(crate) fn deliver(&self, message: MinerToValidator, bytes: OwnedSemaphorePermit) -> Delivery {
        let mut state = self.state();
        state.failures = 0;
        let named = message.attempt();
        if is_complaint(&message) {
            let mut is_matched = false;
            for (id, messages) in &mut state.attempts {
                if messages.has_own || named.is_some_and(|named| named != *id) {
                    continue;
                }
                if messages.items.len() < MAX_QUEUED_OPTIONAL {
                    messages.push(AttemptItem::Message(Box::new(message.clone()), None));
                }
                is_matched = true;
            }
            return if is_matched {
                Delivery::Done
            } else {
                Delivery::Unmatched(Box::new(message), bytes)
            };
        }
        let found = named.and_then(|id| Some((id, state.attempts.get_mut(&id)?)));
        let Some((id, messages)) = found else {
            return Delivery::Unmatched(Box::new(message), bytes);
        };
        if messages.has_own {
            return Delivery::Done;
        }
        match messages.items.len() {
            MAX_QUEUED_OPTIONAL.. if is_optional(&message) => Delivery::Unmatched(Box::new(message), bytes),
            MAX_QUEUED.. => Delivery::TooMany(id),
            _ => {
                messages.push(AttemptItem::Message(Box::new(message), Some(bytes)));
                Delivery::Done
            }
        }
    }

    /// Waits until the last attempt is unregistered.
    pub(crate) async fn wait_until_empty(&self) {
        self.emptied.notified().await;
    }

    /// Closes the session if it has no attempt; from then on an attempt that needs one dials anew.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut state = self.state();
        let is_empty = state.attempts.is_empty();
        if is_empty {
            state.connection = ConnectionState::Down;
        }
        is_empty
    }

    /// Whether the session is neither open nor needed.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state();
        state.attempts.is_empty()
            && matches!(
                state.connection,
                ConnectionState::Down | ConnectionState::Separate
            )
    }
}

// === impl SessionState ===

impl SessionState {
    fn set_down(&mut self) {
        self.connection = ConnectionState::Down;
        self.failures = self.failures.saturating_add(1);
    }
}

// === impl AttemptMessages ===

impl AttemptMessages {
    fn push(&mut self, item: AttemptItem) {
        self.items.push_back(item);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn set_up(&mut self, frames: &SharedFrames) {
        if !self.is_up && !self.has_own {
            self.is_up = true;
            self.push(AttemptItem::Up(frames.clone()));
        }
    }

    fn need_own(&mut self, halves: Option<Box<SocketHalves>>) {
        self.has_own = true;
        self.push(AttemptItem::NeedsOwn(halves));
    }
}

impl std::fmt::Debug for AttemptMessages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AttemptMessages({} items)", self.items.len())
    }
}

/// Whether the message is an error as text.
fn is_complaint(message: &MinerToValidator) -> bool {
    matches!(
        message,
        MinerToValidator::GenericError(_) | MinerToValidator::UnauthorizedError(_)
    )
}

/// Whether the message only informs spectators: logs and progress, whose loss changes nothing.
pub(crate) fn is_optional(message: &MinerToValidator) -> bool {
    matches!(
        message,
        MinerToValidator::MusterJobLog(_)
            | MinerToValidator::MusterJobProgress(_)
            | MinerToValidator::MusterJobMetrics(_)
            | MinerToValidator::MusterCheckpoint(_)
            | MinerToValidator::MusterMachines(_)
    )
}
