//! Takes checkpoints while a job's program runs: looks at the folder, reads and sends what is whole, announces it.
//!
//! The program never waits for this. A checkpoint that cannot be taken is skipped with a reason, and the next one is
//! tried.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_checkpoints::resume::EXIT_SAVED;
use muster_checkpoints::{CandidateWatch, FileTree, TreeLimits};
use muster_job_metrics::ProgramFollower;
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::job::{MetricName, MetricValue};
use muster_protocol::wire::checkpoints::CheckpointNotice;
use muster_protocol::{AttemptId, Digest};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::block_client::BlockClient;
use crate::blocks::{SendError, SentBlocks, send_blocks};
use crate::clone::CloneError;
use crate::folder_scan::{FolderLook, look, look_at, open_folder};
use crate::open_files::is_open_for_writing;
use crate::source::{CheckpointSource, ReadingPlace};

/// The shortest pause between two looks at the folder.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A look may take a twentieth of the time until the next one, so that a folder of many names costs little.
const PAUSE_PER_LOOK: u32 = 20;

/// The pause between two announcements of a checkpoint that is not answered yet.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Time stamps of files move in steps of a few milliseconds. A write within this time of a look may not show.
const CLOCK_STEP_NS: i128 = 50_000_000;

/// The most reasons that one attempt reports to its user.
const MAX_REASONS: usize = 20;

/// The progress that the program has reported.
pub trait ReportedPlace: Send + Sync {
    /// A number that grows each time that it names this child of the folder as a checkpoint; 0 if it never has.
    fn times_named(&self, child: &str) -> u32;

    /// The epoch, the step, and the value of the metric by which checkpoints are compared, when it last named this
    /// child; the newest ones if it has not named it.
    fn place_of(&self, child: &str) -> (Option<u64>, Option<u64>, Option<MetricValue>);
}

/// The reports of a followed program.
#[derive(Debug)]
pub struct FollowedPlace {
    /// The follower of the program.
    pub follower: ProgramFollower,
    /// The metric by which checkpoints are compared.
    pub metric: Option<MetricName>,
}

impl ReportedPlace for FollowedPlace {
    fn times_named(&self, child: &str) -> u32 {
        self.follower.times_named(child)
    }

    fn place_of(&self, child: &str) -> (Option<u64>, Option<u64>, Option<MetricValue>) {
        self.follower.place_of(child, self.metric.as_ref())
    }
}

/// Announces a checkpoint to the miner.
pub type Announce = Arc<dyn Fn(CheckpointNotice) -> BoxFuture<'static, ()> + Send + Sync>;

/// Reports to the user why a checkpoint was not taken.
pub type Explain = Arc<dyn Fn(String) + Send + Sync>;

/// Everything that taking checkpoints needs.
pub struct KeeperSetup {
    /// The attempt whose program runs.
    pub attempt: AttemptId,
    /// The folder of checkpoints on this machine.
    pub folder: PathBuf,
    /// An empty folder for copies that belongs to this attempt alone.
    pub scratch: PathBuf,
    /// Bytes of the disk that stay free.
    pub reserve: u64,
    /// The bounds on one checkpoint.
    pub limits: TreeLimits,
    /// The file store.
    pub store: BlockClient,
    /// The program's reports.
    pub place: Arc<dyn ReportedPlace>,
    /// Notifies the miner.
    pub announce: Announce,
    /// Notifies the user.
    pub explain: Explain,
    /// The clock that the looks and the bounds go by.
    pub clock: SharedClock,
}

/// The part of the folder that is taken after the program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastLook {
    /// Every whole checkpoint: the program reports that it has saved its state.
    Everything,
    /// Only what the program named: it may have died while it wrote another.
    Named,
    /// Nothing: the job needs no checkpoint any more.
    Nothing,
}

impl LastLook {
    /// The checkpoints that are taken of a program that ended with this code.
    pub const fn after_exit(code: i64) -> Self {
        match code {
            0 => Self::Nothing,
            EXIT_SAVED => Self::Everything,
            // It may have died while it wrote one.
            _ => Self::Named,
        }
    }
}

/// Speaks to a running [`CheckpointKeeper`]. Clones speak to the same one.
#[derive(Clone, Debug)]
pub struct KeeperHandle {
    kept: watch::Sender<u32>,
    last: watch::Sender<Option<LastLook>>,
}

/// Takes the checkpoints of one attempt.
pub struct CheckpointKeeper {
    setup: KeeperSetup,
    watch: CandidateWatch,
    /// How often each child had been named when it was taken.
    named_before: BTreeMap<String, u32>,
    /// Why a child was skipped last, so that each reason is reported once.
    explained: BTreeMap<String, String>,
    /// Checkpoints that were announced.
    number: u32,
    /// The manifest of the last one that the validator has stored.
    last_manifest: Option<Digest>,
    /// The place where files are read; copies once the program has changed a checkpoint while it was sent.
    reading_place: ReadingPlace,
    kept: watch::Receiver<u32>,
    last: watch::Receiver<Option<LastLook>>,
}

/// A keeper whose handle is there already.
#[derive(Debug)]
pub struct PendingKeeper {
    kept: watch::Receiver<u32>,
    last: watch::Receiver<Option<LastLook>>,
}

impl PendingKeeper {
    /// Begins to watch the folder; the keeper works until its `finish`.
    pub fn start(self, setup: KeeperSetup) -> CheckpointKeeper {
        CheckpointKeeper {
            setup,
            watch: CandidateWatch::default(),
            named_before: BTreeMap::new(),
            explained: BTreeMap::new(),
            number: 0,
            last_manifest: None,
            reading_place: ReadingPlace::InPlace,
            kept: self.kept,
            last: self.last,
        }
    }
}

/// The reason why a checkpoint was not taken.
#[derive(Debug, thiserror::Error)]
enum TakeError {
    /// It changes; a later look takes it.
    #[error("the checkpoint changed while it was read")]
    Changed,
    #[error(transparent)]
    Clone(CloneError),
    #[error(transparent)]
    Send(#[from] SendError),
    #[error("this machine cannot copy it")]
    Scratch(#[from] io::Error),
}

impl KeeperHandle {
    /// The validator has stored the checkpoint of this number.
    pub fn note_kept(&self, number: u32) {
        self.kept.send_modify(|kept| *kept = number.max(*kept));
    }

    /// The program has ended: the keeper takes what is left, and ends.
    pub fn end(&self, last: LastLook) {
        self.last.send_if_modified(|told| {
            let is_first = told.is_none();
            told.get_or_insert(last);
            is_first
        });
    }
}

impl fmt::Debug for CheckpointKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckpointKeeper")
            .field("attempt", &self.setup.attempt)
            .finish_non_exhaustive()
    }
}

impl CheckpointKeeper {
    /// The handle of a keeper that is made later.
    pub fn prepare() -> (KeeperHandle, PendingKeeper) {
        let (kept, kept_receiver) = watch::channel(0);
        let (last, last_receiver) = watch::channel(None);
        let pending = PendingKeeper {
            kept: kept_receiver,
            last: last_receiver,
        };
        (KeeperHandle { kept, last }, pending)
    }

    /// Notes what is in the folder under this name before the program changes it, so that it is not taken as new.
    pub async fn skip(&mut self, name: &str) {
        if let Some(mut look) = self.look().await {
            look.children.retain(|child| child.name == name);
            self.watch.skip(&look.children, self.setup.clock.now());
        }
    }

    /// Takes checkpoints until the program has ended, and then what is left.
    pub async fn run(mut self) {
        let mut pause = LOOK_EVERY;
        loop {
            let mut ended = self.last.clone();
            let last = tokio::select! {
                biased;
                last = wait_for_last(&mut ended) => last,
                next = self.look_after(pause) => {
                    pause = next;
                    continue;
                }
            };
            match last {
                LastLook::Nothing => {}
                LastLook::Everything | LastLook::Named => self.take_last(last).await,
            }
            return;
        }
    }

    /// Waits, looks once, and takes what is whole. Returns the pause until the next look.
    async fn look_after(&mut self, pause: Duration) -> Duration {
        let clock = Arc::clone(&self.setup.clock);
        clock.sleep(pause).await;
        let began = clock.now();
        let look = self.look().await;
        let took = clock.now().since(began);
        if let Some(look) = look {
            self.take_newest(look).await;
        }
        let next = took.saturating_mul(PAUSE_PER_LOOK);
        next.clamp(LOOK_EVERY, LONGEST_PAUSE)
    }

    async fn look(&self) -> Option<FolderLook> {
        let (folder, limits) = (self.setup.folder.clone(), self.setup.limits);
        match spawn_blocking(move || look(&folder, limits)).await {
            Ok(Ok(look)) => Some(look),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the folder of checkpoints cannot be read");
                None
            }
            Err(_) => None,
        }
    }

    async fn take_newest(&mut self, look: FolderLook) {
        for (name, flaw) in &look.flawed {
            self.explain(name, &flaw.to_string());
        }
        let place = Arc::clone(&self.setup.place);
        let named_before = &self.named_before;
        let is_named = |name: &str| {
            let before = named_before.get(name).copied().unwrap_or_default();
            place.times_named(name) > before
        };
        let now = self.setup.clock.now();
        let Some(name) = self.watch.observe(&look.children, is_named, now) else {
            return;
        };
        if let Some(child) = look.children.into_iter().find(|child| child.name == name) {
            self.take(name, child.tree, true).await;
        }
    }

    /// Takes the newest of what is left, and older ones only if that one cannot be taken.
    async fn take_last(&mut self, last: LastLook) {
        let Some(mut look) = self.look().await else { return };
        look.children
            .sort_by_key(|child| std::cmp::Reverse(child.tree.changed_ns()));
        for child in look.children {
            let named = self.setup.place.times_named(&child.name);
            let is_new = named > self.named_before.get(&child.name).copied().unwrap_or_default();
            let is_whole = match last {
                LastLook::Everything => true,
                LastLook::Named => is_new,
                LastLook::Nothing => false,
            };
            if self.watch.is_taken(&child.name, &child.tree) {
                // The validator has it, or a newer one. A refused one is tried once more.
                return;
            }
            if is_whole && self.take(child.name, child.tree, false).await {
                return;
            }
        }
    }

    /// Takes a checkpoint. Returns whether the validator has it.
    async fn take(&mut self, name: String, tree: FileTree, may_be_written: bool) -> bool {
        if may_be_written {
            let (folder, looked) = (self.setup.folder.clone(), tree.clone());
            if spawn_blocking(move || is_open_for_writing(&folder, &looked))
                .await
                .unwrap_or(true)
            {
                self.watch.note_writing(&name, self.setup.clock.now());
                return false;
            }
        }
        let named = self.setup.place.times_named(&name);
        let taken = match self.send(&name, &tree, may_be_written).await {
            // A later look takes it.
            Err(TakeError::Changed) => return false,
            Ok(taken) => taken,
            Err(error) => {
                self.explain(&name, &Causes(&error).to_string());
                self.watch.note_refused(&name, &tree, self.setup.clock.now());
                return false;
            }
        };
        if self.last_manifest != Some(taken.manifest) {
            self.tell(taken).await;
        }
        self.watch.note_taken(&name, &tree, self.setup.clock.now());
        self.named_before.insert(name, named);
        true
    }

    async fn send(
        &mut self,
        name: &str,
        tree: &FileTree,
        may_be_written: bool,
    ) -> Result<CheckpointNotice, TakeError> {
        let (epoch, step, metric) = self.setup.place.place_of(name);
        let tree = Arc::new(tree.clone());
        let source = self.open_source(name, Arc::clone(&tree), may_be_written).await?;
        let store = &self.setup.store;
        let SentBlocks { manifest, sent } =
            send_blocks(Arc::clone(&source), Arc::clone(&tree), store).await?;
        // A copy goes with its source, and the removal of a large one blocks.
        let unchanged = spawn_blocking(move || source.is_unchanged(&tree)).await;
        if !unchanged.unwrap_or(false) {
            self.reading_place = ReadingPlace::Copy;
            return Err(TakeError::Changed);
        }
        let (digest, bytes) = (manifest.digest(), manifest.bytes());
        if self.last_manifest != Some(digest) {
            store
                .put(digest, manifest.to_bytes().into())
                .await
                .map_err(SendError::from)?;
            tracing::info!(checkpoint = name, bytes, sent, "a checkpoint was sent");
        }
        Ok(CheckpointNotice {
            job_uuid: self.setup.attempt,
            number: self.number.saturating_add(1),
            manifest: digest,
            name: name.to_owned(),
            bytes,
            epoch,
            step,
            metric,
        })
    }

    /// Opens or copies the files of a look, and makes sure that they are still what the look has found.
    async fn open_source(
        &self,
        name: &str,
        tree: Arc<FileTree>,
        may_be_written: bool,
    ) -> Result<Arc<CheckpointSource>, TakeError> {
        let (folder, scratch, child) = (
            self.setup.folder.clone(),
            self.setup.scratch.clone(),
            name.to_owned(),
        );
        let (limits, reserve, place) = (self.setup.limits, self.setup.reserve, self.reading_place);
        let opening = spawn_blocking(move || {
            let copy = tempfile::tempdir_in(scratch)?;
            let made = copy.path().metadata()?;
            let now = i128::from(made.ctime()) * 1_000_000_000 + i128::from(made.ctime_nsec());
            if may_be_written && (now - tree.changed_ns()).abs() < CLOCK_STEP_NS {
                return Err(TakeError::Changed);
            }
            let folder = open_folder(&folder)?;
            let source = match CheckpointSource::open(&folder, &tree, copy, reserve, place) {
                Err(CloneError::Changed) => return Err(TakeError::Changed),
                opened => opened.map_err(TakeError::Clone)?,
            };
            match look_at(&folder, &child, limits) {
                Ok(after) if after == *tree => Ok(Arc::new(source)),
                Ok(_) | Err(_) => Err(TakeError::Changed),
            }
        });
        opening
            .await
            .map_err(|_| TakeError::Send(SendError::Interrupted))?
    }

    /// Announces a checkpoint until the validator has it. The program's end may break this off; then nothing is known
    /// of the checkpoint, and the last look announces it again.
    async fn tell(&mut self, notice: CheckpointNotice) {
        let number = notice.number;
        self.number = number;
        loop {
            (self.setup.announce)(notice.clone()).await;
            tokio::select! {
                biased;
                kept = self.kept.wait_for(|kept| *kept >= number) => {
                    // With the handle nobody is left who could answer.
                    if kept.is_ok() {
                        self.last_manifest = Some(notice.manifest);
                    }
                    return;
                }
                () = self.setup.clock.sleep(TELL_EVERY) => {}
            }
        }
    }

    fn explain(&mut self, name: &str, reason: &str) {
        let is_known = self.explained.get(name).is_some_and(|told| told == reason);
        if is_known || self.explained.len() >= MAX_REASONS {
            return;
        }
        self.explained.insert(name.to_owned(), reason.to_owned());
        let shown: String = name.escape_debug().take(120).collect();
        (self.setup.explain)(format!("checkpoint {shown} was not kept: {reason}"));
    }
}

/// Waits until the program has ended. A keeper whose handle is gone takes nothing any more.
async fn wait_for_last(ended: &mut watch::Receiver<Option<LastLook>>) -> LastLook {
    let told = ended.wait_for(Option::is_some).await;
    told.ok().and_then(|last| *last).unwrap_or(LastLook::Nothing)
}
