//! What is known of one miner's session: how far it is, and who listens. No socket is touched here, and nothing waits but
//! an attempt for its next item.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::{SocketReader, SocketWriter};
use muster_process::backoff::{Backoff, random_jitter};
use muster_protocol::AttemptId;
use muster_protocol::wire::miner::FromMiner;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::Place;

/// Short at first, since jobs are waiting; each attempt's own deadline ends it.
pub(crate) const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(250),
    max: Duration::from_secs(5),
};

/// Messages that wait for one attempt; a whole story has fewer than ten.
const QUEUE: usize = 64;
/// So many of them may be such as may be missed.
const MISSABLE: usize = QUEUE / 2;
/// Bytes of messages that wait for all attempts of a session: the longest frame, and some.
pub(crate) const HELD: u32 = 64 << 20;

/// Both halves of a socket.
pub(crate) type Halves = (SocketReader, SocketWriter);

/// What an attempt finds next.
pub(crate) enum Item {
    /// The session stands; frames go in here.
    Up(mpsc::Sender<String>),
    /// It does not, or no longer.
    Down(Arc<str>),
    /// The miner says something about the attempt.
    Message(Box<FromMiner>, Option<OwnedSemaphorePermit>),
    /// The miner is not Muster: the attempt needs a connection of its own, which may be there already.
    Alone(Option<Box<Halves>>),
}

/// What became of a message.
pub(crate) enum Delivery {
    /// Whoever it is for will find it.
    Done,
    /// It is for nobody here, or may be missed and there is no room.
    Stray(Box<FromMiner>, OwnedSemaphorePermit),
    /// An attempt has more to read than any honest miner says.
    TooMuch(AttemptId),
}

#[derive(Debug)]
pub(crate) struct Session {
    place: Place,
    state: Mutex<State>,
    /// Bytes that may still wait.
    room: Arc<Semaphore>,
    /// The last attempt has left.
    emptied: Notify,
}

#[derive(Debug)]
struct State {
    ears: HashMap<AttemptId, Ear>,
    stage: Stage,
    /// Failures since something was last heard.
    failures: u32,
}

#[derive(Debug)]
enum Stage {
    Down,
    Dialling,
    Up {
        frames: mpsc::Sender<String>,
        /// Cancelled when nobody needs it any more.
        closing: CancellationToken,
    },
    /// The miner is not Muster.
    Apart,
}

/// Where an attempt listens.
#[derive(Default)]
struct Ear {
    items: VecDeque<Item>,
    waker: Option<Waker>,
    /// It wants a connection.
    asked: bool,
    /// It was told that the session stands.
    up: bool,
    /// It has a connection of its own, and listens there.
    alone: bool,
}

impl Session {
    pub(crate) fn new(place: Place) -> Self {
        Self {
            place,
            state: Mutex::new(State {
                ears: HashMap::new(),
                stage: Stage::Down,
                failures: 0,
            }),
            room: Arc::new(Semaphore::new(HELD as usize)),
            emptied: Notify::new(),
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    pub(crate) fn room(&self) -> Arc<Semaphore> {
        Arc::clone(&self.room)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing of it is halfway between two statements.
        self.state.lock()
    }

    // === for attempts ===

    pub(crate) fn attach(&self, attempt: AttemptId) {
        self.state().ears.insert(attempt, Ear::default());
    }

    /// True if the session is not needed and does not stand, or stands no longer.
    pub(crate) fn detach(&self, attempt: AttemptId, linger: Duration) -> bool {
        let mut state = self.state();
        state.ears.remove(&attempt);
        if !state.ears.is_empty() {
            return false;
        }
        match &state.stage {
            Stage::Down | Stage::Apart => true,
            Stage::Dialling => false,
            Stage::Up { closing, .. } if linger.is_zero() => {
                closing.cancel();
                state.stage = Stage::Down;
                true
            }
            Stage::Up { .. } => {
                self.emptied.notify_one();
                false
            }
        }
    }

    /// An attempt wants a connection. True if the session is to be dialled now.
    pub(crate) fn ask(&self, attempt: AttemptId) -> bool {
        let mut state = self.state();
        let State { ears, stage, .. } = &mut *state;
        let Some(ear) = ears.get_mut(&attempt) else {
            return false;
        };
        match stage {
            Stage::Down => {
                ear.asked = true;
                *stage = Stage::Dialling;
                return true;
            }
            Stage::Dialling => ear.asked = true,
            Stage::Up { frames, .. } => ear.rise(frames),
            Stage::Apart => ear.leave(None),
        }
        false
    }

    /// The next item of an attempt.
    pub(crate) fn poll_next(&self, attempt: AttemptId, cx: &mut Context<'_>) -> Poll<Item> {
        let mut state = self.state();
        let Some(ear) = state.ears.get_mut(&attempt) else {
            // Only a line that stands alone is not registered, and it does not ask here.
            return Poll::Pending;
        };
        if let Some(item) = ear.items.pop_front() {
            return Poll::Ready(item);
        }
        match &mut ear.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    // === for the task that makes and serves the connection ===

    /// How long to wait before the session is dialled.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let failure = self.state().failures.checked_sub(1)?;
        Some(BACKOFF.delay(failure, random_jitter()))
    }

    /// It could not be made: whoever asked for it is told, and asks again if it still needs it.
    pub(crate) fn failed(&self, reason: &str) {
        let mut state = self.state();
        state.fall();
        let reason: Arc<str> = reason.into();
        for ear in state.ears.values_mut().filter(|ear| ear.asked) {
            ear.asked = false;
            ear.push(Item::Down(Arc::clone(&reason)));
        }
    }

    /// It stands. Everybody is told before anything that the miner says. False if nobody is there and it is not to be kept.
    pub(crate) fn up(
        &self,
        frames: mpsc::Sender<String>,
        closing: CancellationToken,
        linger: Duration,
    ) -> bool {
        let mut state = self.state();
        if state.ears.is_empty() {
            if linger.is_zero() {
                state.stage = Stage::Down;
                return false;
            }
            self.emptied.notify_one();
        }
        for ear in state.ears.values_mut() {
            ear.rise(&frames);
        }
        state.stage = Stage::Up { frames, closing };
        true
    }

    /// It stood and is gone.
    pub(crate) fn lost(&self, reason: &str) {
        let mut state = self.state();
        state.fall();
        let reason: Arc<str> = reason.into();
        for ear in state.ears.values_mut().filter(|ear| ear.up) {
            (ear.asked, ear.up) = (false, false);
            ear.push(Item::Down(Arc::clone(&reason)));
        }
    }

    /// It is closed because the validator stops.
    pub(crate) fn stopped(&self) {
        self.state().stage = Stage::Down;
    }

    /// The miner is not Muster: the connection is the first one's that asked, and the others dial for themselves.
    pub(crate) fn apart(&self, halves: Halves) {
        let mut state = self.state();
        state.stage = Stage::Apart;
        let mut halves = Some(Box::new(halves));
        for ear in state.ears.values_mut().filter(|ear| ear.asked) {
            ear.leave(halves.take());
        }
    }

    /// The next attempt dials and sees: the miner has become Muster.
    pub(crate) fn not_apart(&self) {
        let mut state = self.state();
        if matches!(state.stage, Stage::Apart) {
            state.stage = Stage::Down;
        }
    }

    /// Gives a message to whom it is about. What is about no attempt in particular, but a complaint, is for nobody here.
    pub(crate) fn deliver(&self, message: FromMiner, held: OwnedSemaphorePermit) -> Delivery {
        let mut state = self.state();
        state.failures = 0;
        if let Some(words) = complaint(&message) {
            let named = named(words);
            let hears = |id: &AttemptId| named.is_none_or(|named| named == *id);
            let mut heard = false;
            for (_, ear) in state.ears.iter_mut().filter(|(id, ear)| hears(id) && !ear.alone) {
                if ear.items.len() < MISSABLE {
                    ear.push(Item::Message(Box::new(message.clone()), None));
                }
                heard = true;
            }
            return if heard {
                Delivery::Done
            } else {
                Delivery::Stray(Box::new(message), held)
            };
        }
        let found = message
            .attempt()
            .and_then(|id| Some((id, state.ears.get_mut(&id)?)));
        let Some((id, ear)) = found else {
            return Delivery::Stray(Box::new(message), held);
        };
        if ear.alone {
            return Delivery::Done;
        }
        match ear.items.len() {
            MISSABLE.. if may_be_missed(&message) => Delivery::Stray(Box::new(message), held),
            QUEUE.. => Delivery::TooMuch(id),
            _ => {
                ear.push(Item::Message(Box::new(message), Some(held)));
                Delivery::Done
            }
        }
    }

    /// Waits until the last attempt has left.
    pub(crate) async fn emptied(&self) {
        self.emptied.notified().await;
    }

    /// Closes the session if it has no attempt; from then on whoever needs one dials anew.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut state = self.state();
        let empty = state.ears.is_empty();
        if empty {
            state.stage = Stage::Down;
        }
        empty
    }

    /// Whether it neither stands nor is needed.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state();
        state.ears.is_empty() && matches!(state.stage, Stage::Down | Stage::Apart)
    }
}

impl State {
    fn fall(&mut self) {
        self.stage = Stage::Down;
        self.failures = self.failures.saturating_add(1);
    }
}

impl Ear {
    fn push(&mut self, item: Item) {
        self.items.push_back(item);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn rise(&mut self, frames: &mpsc::Sender<String>) {
        if !self.up && !self.alone {
            self.up = true;
            self.push(Item::Up(frames.clone()));
        }
    }

    fn leave(&mut self, halves: Option<Box<Halves>>) {
        self.alone = true;
        self.push(Item::Alone(halves));
    }
}

impl std::fmt::Debug for Ear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ear({} items)", self.items.len())
    }
}

/// What a message complains of, if it does: nothing but its words say whom it is about.
fn complaint(message: &FromMiner) -> Option<&str> {
    match message {
        FromMiner::GenericError(error) => Some(error.details.as_deref().unwrap_or_default()),
        FromMiner::UnauthorizedError(error) => Some(error.details.as_deref().unwrap_or_default()),
        FromMiner::V0ExecutorManifestRequest(_)
        | FromMiner::V0MainHotkeyMessage(_)
        | FromMiner::V0AcceptJobRequest(_)
        | FromMiner::V0DeclineJobRequest(_)
        | FromMiner::V0ExecutorReadyRequest(_)
        | FromMiner::V0ExecutorFailedRequest(_)
        | FromMiner::V0VolumesReadyRequest(_)
        | FromMiner::V0StreamingJobReadyRequest(_)
        | FromMiner::V0StreamingJobNotReadyRequest(_)
        | FromMiner::V0ExecutionDoneRequest(_)
        | FromMiner::V0MachineSpecsRequest(_)
        | FromMiner::V0JobFinishedRequest(_)
        | FromMiner::V0JobFailedRequest(_)
        | FromMiner::V0HordeFailedRequest(_)
        | FromMiner::MusterReceiptCountersigned(_)
        | FromMiner::MusterExecutorMetrics(_)
        | FromMiner::MusterExecutorHello(_)
        | FromMiner::MusterEnrolExecutor(_)
        | FromMiner::MusterJobLog(_)
        | FromMiner::MusterJobProgress(_)
        | FromMiner::MusterSealSession(_)
        | FromMiner::MusterSessionClosed(_)
        | FromMiner::MusterLeaseOver(_) => None,
    }
}

/// The attempt that a complaint names, if it names one; one that is not here is still named.
fn named(words: &str) -> Option<AttemptId> {
    words
        .split(|c: char| !(c.is_ascii_hexdigit() || c == '-'))
        .filter(|word| word.len() == UUID)
        .find_map(|word| word.parse().ok())
}

/// Characters of a uuid.
const UUID: usize = 36;

/// Whether a message is passed on for whoever watches, and changes nothing.
pub(crate) fn may_be_missed(message: &FromMiner) -> bool {
    matches!(
        message,
        FromMiner::MusterJobLog(_) | FromMiner::MusterJobProgress(_)
    )
}
