//! Grading batches as a validator runs them. What is decided is decided in `muster-grading`; here it is done.
//!
//! A validator opens a [`RollCall`]. It waits for a block whose hash begins a batch, or for its operator's word; leases every
//! executor through the ordinary path, as streaming jobs of its own with the grader's image; opens their sealed endpoints; waits at
//! the barrier; challenges all at once; and keeps what it saw. Read `call` for a batch, `stand` for one executor in it,
//! `conversation` for the bytes and the clock, [`book`] for what stays.

mod backend;
pub mod book;
mod call;
pub mod conversation;
mod settings;
mod stand;
mod state;
pub mod transport;

use std::sync::Arc;

use muster_grading::plan::BlockHash;
use muster_process::store::StoreError;
use muster_process::{SharedClock, Tasks};
use sqlx::AnyPool;
use tokio::sync::{Semaphore, mpsc, oneshot};

pub use backend::{Host, Roll};
use book::Book;
pub use settings::{Grader, Settings};
use state::Core;
pub use state::Refused;
pub use transport::Ask;

/// Operators' words that wait.
const WAITING: usize = 4;

/// What a roll call is made of besides its settings.
pub struct Parts {
    /// The validator.
    pub host: Arc<dyn Host>,
    /// The validator's database, migrated.
    pub pool: AnyPool,
    /// When it is.
    pub clock: SharedClock,
    /// Where its tasks run, and whose token stops it.
    pub tasks: Tasks,
    /// Who is told that the store has failed: nothing can go on then.
    pub failed: Box<dyn Fn(StoreError) + Send + Sync>,
}

/// Runs batches. Clones are the same one.
#[derive(Clone)]
pub struct RollCall {
    core: Arc<Core>,
    asking: mpsc::Sender<Asking>,
}

impl std::fmt::Debug for RollCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RollCall")
            .field("settings", &self.core.settings)
            .finish_non_exhaustive()
    }
}

/// An operator's word, and who hears which batch came of it.
type Asking = oneshot::Sender<Result<String, Refused>>;

impl RollCall {
    /// Voids what an earlier process left in the middle, and begins to wait for blocks.
    ///
    /// # Errors
    /// The store cannot be used.
    pub async fn open(settings: Settings, parts: Parts) -> Result<Self, StoreError> {
        let book = Book::new(parts.pool);
        let voided = book.void_open(parts.clock.now()).await?;
        if voided > 0 {
            tracing::warn!(
                voided,
                "a batch that an earlier process began is void: it was never half scored"
            );
        }
        let courses = settings.courses().unwrap_or_else(|why| {
            // The configuration's check let it pass: it was changed since.
            tracing::error!(why, "the file of floors is gone or changed: no class is graded until it is right and this is started anew");
            Vec::new()
        });
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let core = Arc::new(Core {
            settings,
            courses,
            host: parts.host,
            book,
            clock: parts.clock,
            tasks: parts.tasks,
            judging: Semaphore::new(cores.saturating_mul(2)),
            failed: parts.failed,
        });
        let (asking, asked) = mpsc::channel(WAITING);
        let running = Arc::clone(&core);
        drop(
            core.tasks
                .spawn("roll call", async move { run(&running, asked).await }),
        );
        Ok(Self { core, asking })
    }

    /// Runs a batch with the next block, whatever its hash; its id, once everybody in it is judged.
    ///
    /// # Errors
    /// There is none.
    pub async fn run_now(&self) -> Result<String, Refused> {
        if self.core.settings.images.is_empty() {
            return Err(Refused::NoGrader);
        }
        let (tell, told) = oneshot::channel();
        self.asking.try_send(tell).map_err(|_| Refused::Waiting)?;
        told.await.unwrap_or(Err(Refused::Stopped))
    }

    /// What is kept of batches.
    pub fn book(&self) -> &Book {
        &self.core.book
    }
}

async fn run(core: &Arc<Core>, mut asked: mpsc::Receiver<Asking>) {
    let stop = core.tasks.token();
    let by_blocks = core.settings.every_blocks > 0 && !core.settings.images.is_empty();
    let mut last = 0;
    loop {
        let asking = tokio::select! {
            () = stop.cancelled() => return,
            asking = asked.recv() => match asking {
                Some(asking) => Some(asking),
                None => return,
            },
            (block, hash) = core.host.block_after(last), if by_blocks => {
                last = block;
                if !muster_grading::plan::due(&hash, core.host.me(), core.settings.every_blocks) {
                    continue;
                }
                once(core, block, hash, None).await;
                continue;
            }
        };
        let (block, hash) = tokio::select! {
            () = stop.cancelled() => return,
            next = core.host.block_after(last) => next,
        };
        last = block;
        once(core, block, hash, asking).await;
    }
}

/// One batch. A store that fails ends the process; anything else ends the batch.
async fn once(core: &Arc<Core>, block: u64, hash: BlockHash, asking: Option<Asking>) {
    let outcome = match call::run(core, block, hash).await {
        Ok(outcome) => outcome,
        Err(error) => {
            (core.failed)(error);
            Err(Refused::Stopped)
        }
    };
    if let Some(asking) = asking {
        // Whoever asked may have gone.
        let _ = asking.send(outcome);
    }
}
