//! Grading batches as a validator runs them. What is decided is decided in `muster-grading`; here it is done.
//!
//! A validator opens a [`RollCall`]. It waits for a block whose hash begins a batch, or for its operator's word; leases every
//! executor through the ordinary path, as streaming jobs of its own with the grader's image; opens their sealed endpoints; waits at
//! the barrier; challenges all at once; and keeps what it saw. Read `call` for a batch, `stand` for one executor in it,
//! `conversation` for the bytes and the clock, [`book`] for what stays.

pub mod book;
mod call;
pub mod conversation;
mod settings;
mod stand;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_gateway::host::Order;
use muster_gateway::sealed::Line;
use muster_grading::Course;
use muster_grading::plan::{Announced, BlockHash, Silent};
use muster_process::store::StoreError;
use muster_process::{SharedClock, Tasks};
use muster_protocol::{JobId, ValidatorKey};
use sqlx::AnyPool;
use tokio::sync::{Semaphore, mpsc, oneshot};

use book::Book;
pub use conversation::Ask;
pub use settings::{Grader, Settings};

/// Operators' words that wait.
const WAITING: usize = 4;

/// The validator.
pub trait Host: Send + Sync + 'static {
    /// Its key.
    fn me(&self) -> ValidatorKey;

    /// The next block after this one, with its hash; waits for it.
    fn block_after(&self, block: u64) -> BoxFuture<'_, (u64, BlockHash)>;

    /// What every miner of the subnet says that it has, and which of them do not say it in time.
    fn announced(&self) -> BoxFuture<'_, Roll>;

    /// The sessions that serve users of this validator now.
    fn serving(&self) -> BoxFuture<'_, Vec<Arc<Line>>>;

    /// Hands a job to the miner that its order names. Its news begin to come once this has returned.
    fn begin(&self, order: Order) -> BoxFuture<'_, Result<(), String>>;

    /// Ends a job, if it has not ended. It is not paid: what is proven is.
    fn end(&self, job: JobId, why: &'static str) -> BoxFuture<'_, ()>;

    /// Whether the refusal that ended a job stood on receipts of work that is under way.
    fn backed(&self, job: JobId) -> BoxFuture<'_, bool>;
}

/// Who answered when the miners of the subnet were asked what they have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roll {
    /// What they said.
    pub announced: Vec<Announced>,
    /// Who said nothing in time.
    pub silent: Vec<Silent>,
}

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

/// Why there is no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is nothing to challenge with.
    #[error("this validator grades no class: name a grader's image in [grading.images]")]
    NoGrader,
    /// Enough are waiting.
    #[error("batches that were asked for before this one have not begun yet")]
    Waiting,
    /// It stops.
    #[error("the validator stops")]
    Stopped,
    /// Nobody was there.
    #[error("no miner announces an executor of a class that this validator grades")]
    Nobody,
}

/// What all parts share.
pub(crate) struct Core {
    pub(crate) settings: Settings,
    /// What each class has to prove.
    pub(crate) courses: Vec<Course>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) book: Book,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    /// Openings that are fetched and judged at a time: what they take is held in memory.
    pub(crate) judging: Semaphore,
    failed: Box<dyn Fn(StoreError) + Send + Sync>,
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

/// Microseconds of a span.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
