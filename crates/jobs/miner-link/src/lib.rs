//! A validator's lines to miners. An attempt holds a [`Line`]: it asks for a connection, hears what its miner says about it,
//! and says what it has to say. Whether it has the connection to itself is not its business.
//!
//! A miner that shows that it is Muster gets **one** session from a validator, and all attempts on it are heard and spoken there;
//! any other gets one for each attempt, as ComputeHorde's validator opens them. Which it is shows when it is dialled.
//!
//! *Nobody waits for another.* What is said to an attempt waits in a place of its own. What all attempts of a session have not
//! taken yet is bounded in bytes, and beyond it the miner waits in its socket; what one of them has not taken is bounded in
//! messages, and a miner that says more is cut off and tells its story again.
//!
//! *Nothing is lost between two connections.* A line stays registered from the beginning of its attempt to its end; a line of an
//! attempt that a process before this one began is registered before anything is dialled. So what a miner says as soon as it is
//! greeted finds its listener. Only what is about no attempt that has a line becomes a [`Stray`].

mod line;
mod session;
mod talk;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_identity::Keypair;
use muster_process::{SharedClock, Tasks};
use muster_protocol::wire::miner::FromMiner;
use muster_protocol::{AttemptId, MinerKey};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

pub use line::{Heard, Line};
use session::Session;

/// Miners that are dialled at a time. A validator that comes back with a hundred thousand open jobs would otherwise open as
/// many connections at once.
const DIALS: usize = 256;

/// What all lines of a validator share.
pub struct Setup {
    /// Greets.
    pub keypair: Keypair,
    /// Whose time it is.
    pub clock: SharedClock,
    /// Runs sessions; they end when it stops.
    pub tasks: Tasks,
    /// How long a session is kept that no attempt needs.
    pub linger: Duration,
    /// What every Muster miner hears right after the greeting, before anything about an attempt.
    pub first: Option<String>,
}

/// All lines of a validator. Clones are the same.
#[derive(Clone)]
pub struct Lines(Arc<Inner>);

struct Inner {
    setup: Setup,
    dials: Semaphore,
    strays: mpsc::UnboundedSender<Stray>,
    sessions: Mutex<HashMap<Place, Arc<Session>>>,
}

/// Who is dialled, and where. A miner that moves is dialled anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) miner: MinerKey,
    pub(crate) address: SocketAddr,
}

/// What miners say that is about no attempt that has a line. A session has few on their way at a time, so it does no harm that
/// the queue has no end.
pub type Strays = mpsc::UnboundedReceiver<Stray>;

/// One such message.
#[derive(Debug)]
pub struct Stray {
    /// Who said it.
    pub miner: MinerKey,
    /// What it said.
    pub message: FromMiner,
    /// Where it is answered, if it is. To be kept until the message has been looked at.
    pub reply: Reply,
}

/// The way back of a stray. While there is one, it counts among those of its session.
pub struct Reply {
    frames: mpsc::Sender<String>,
    /// Its bytes among those of its session, and its place among its strays.
    _held: [OwnedSemaphorePermit; 2],
}

impl Lines {
    /// No lines yet, and where strays come in.
    pub fn new(setup: Setup) -> (Self, Strays) {
        let (strays, heard) = mpsc::unbounded_channel();
        let inner = Inner {
            setup,
            dials: Semaphore::new(DIALS),
            strays,
            sessions: Mutex::default(),
        };
        (Self(Arc::new(inner)), heard)
    }

    /// A line for an attempt on the miner at `address`. Nothing is dialled yet; what the miner says about the attempt is kept for it
    /// from here on.
    pub fn line(&self, attempt: AttemptId, miner: MinerKey, address: SocketAddr) -> Line {
        let place = Place { miner, address };
        let mut sessions = self.sessions();
        let session = sessions
            .entry(place)
            .or_insert_with(|| Arc::new(Session::new(place)));
        session.attach(attempt);
        Line::new(self.clone(), Arc::clone(session), attempt)
    }

    /// Sessions that stand, are being made, or have an attempt.
    pub fn sessions_held(&self) -> usize {
        self.sessions().len()
    }

    pub(crate) fn setup(&self) -> &Setup {
        &self.0.setup
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Place, Arc<Session>>> {
        // Nothing of it is halfway between two statements.
        self.0.sessions.lock()
    }

    /// An attempt is over.
    fn detach(&self, session: &Arc<Session>, attempt: AttemptId) {
        // Held while looking, so that nobody attaches to a session that is being forgotten.
        let mut sessions = self.sessions();
        if session.detach(attempt, self.setup().linger) {
            forget(&mut sessions, session);
        }
    }

    /// Forgets a session that neither stands nor is needed.
    fn tidy(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions();
        if session.is_idle() {
            forget(&mut sessions, session);
        }
    }
}

fn forget(sessions: &mut HashMap<Place, Arc<Session>>, session: &Arc<Session>) {
    // Its place may have another by now.
    if sessions
        .get(&session.place())
        .is_some_and(|there| Arc::ptr_eq(there, session))
    {
        sessions.remove(&session.place());
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lines({} sessions)", self.sessions_held())
    }
}

impl Reply {
    /// Answers on the session it came on, if that still stands.
    pub async fn send(self, frame: String) {
        // If not, the miner says it again on the next one.
        let _ = self.frames.send(frame).await;
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}
