//! What runs beside requests and sessions: keeping what jobs say, telling and hearing the other facilitators on the same
//! store, ending jobs that nobody takes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_process::error::Causes;
use muster_process::store::StoreError;
use muster_protocol::ValidatorKey;
use tokio::sync::{mpsc, oneshot};

use crate::door::Door;
use crate::hub::Notice;
use crate::store::{Heard, REPLICA_BEAT, Said};

/// Pieces that wait to be kept, at most. Nobody waits for them: further ones are dropped.
const WAITING_PIECES: usize = 4096;

/// Pieces that are kept in one transaction.
const BATCH: usize = 256;

/// Notices that wait to be told, at most. One that is dropped costs the others a few seconds: they look from time to time.
const WAITING_NOTICES: usize = 65_536;

/// How long a facilitator that cannot be told or heard waits before it tries again.
const RETRY: Duration = Duration::from_secs(1);

/// How often jobs that nobody takes are looked for.
const SWEEP: Duration = Duration::from_secs(30);

/// Something for the keeper.
pub(crate) enum Item {
    /// A job of this validator says something.
    Said(ValidatorKey, Said),
    /// Answered when everything before is kept.
    Flush(oneshot::Sender<()>),
}

/// Where the background hears of things.
#[derive(Clone)]
pub(crate) struct Background {
    said: mpsc::Sender<Item>,
    notices: mpsc::Sender<Notice>,
}

/// The other ends of [`Background`].
pub(crate) struct Inbox {
    said: mpsc::Receiver<Item>,
    notices: mpsc::Receiver<Notice>,
}

// === impl Background ===

impl Background {
    pub(crate) fn new() -> (Self, Inbox) {
        let (said, said_inbox) = mpsc::channel(WAITING_PIECES);
        let (notices, notices_inbox) = mpsc::channel(WAITING_NOTICES);
        let inbox = Inbox {
            said: said_inbox,
            notices: notices_inbox,
        };
        (Self { said, notices }, inbox)
    }

    /// Keeps what a job says, unless too much waits already.
    pub(crate) fn keep(&self, validator: ValidatorKey, said: Said) {
        if self.said.try_send(Item::Said(validator, said)).is_err() {
            tracing::debug!(%validator, "live output is dropped: the store does not keep up");
        }
    }

    /// Waits until what was given to [`Self::keep`] before is kept: a job's last words come before its end.
    pub(crate) async fn flush(&self) {
        let (done, kept) = oneshot::channel();
        if self.said.send(Item::Flush(done)).await.is_ok() {
            // The keeper ends only with the process, and then nobody waits for words.
            let _ = kept.await;
        }
    }

    /// Tells the other facilitators.
    pub(crate) fn tell(&self, notice: Notice) {
        if self.notices.try_send(notice).is_err() {
            tracing::warn!("a notice to the other facilitators is dropped: the store does not keep up");
        }
    }
}

/// Starts everything, until the door's tasks are told to stop.
pub(crate) fn start(door: &Arc<Door>, inbox: Inbox) {
    let Inbox { said, notices } = inbox;
    let stop = door.tasks.token();
    let spawn = |name: &'static str, work: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
        let stop = stop.clone();
        door.tasks.spawn(name, async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
    };
    spawn("keep live output", Box::pin(keep(Arc::clone(door), said)));
    spawn("sweep", Box::pin(sweep(Arc::clone(door))));
    if door.store.is_shared() {
        spawn("tell the others", Box::pin(tell(Arc::clone(door), notices)));
        spawn("hear the others", Box::pin(hear(Arc::clone(door))));
        spawn("beat", Box::pin(beat(Arc::clone(door))));
    }
}

async fn keep(door: Arc<Door>, mut inbox: mpsc::Receiver<Item>) {
    let mut items = Vec::with_capacity(BATCH);
    while inbox.recv_many(&mut items, BATCH).await > 0 {
        let (mut said, mut waiting) = (Vec::new(), Vec::new());
        for item in items.drain(..) {
            match item {
                Item::Said(validator, words) => said.push((validator, words)),
                Item::Flush(done) => waiting.push(done),
            }
        }
        if !said.is_empty() {
            let kept = door.store.keep_live(&said, &door.live, door.clock.now()).await;
            logged("live output was not kept", kept);
            let jobs: BTreeSet<_> = said.iter().map(|(_, said)| said.job()).collect();
            jobs.into_iter()
                .for_each(|job| door.announce(Notice::Changed(job)));
        }
        for done in waiting {
            // Who asked may be gone.
            let _ = done.send(());
        }
    }
}

async fn sweep(door: Arc<Door>) {
    loop {
        let now = door.clock.now();
        if let Some(limit) = door.unanswered {
            let before = muster_protocol::Timestamp::from_micros(
                now.micros()
                    .saturating_sub(i64::try_from(limit.as_micros()).unwrap_or(i64::MAX)),
            );
            match door.store.expire(before, now).await {
                Ok(ended) => {
                    for job in ended {
                        tracing::warn!(%job, "nobody took the job in time; it has ended");
                        door.announce(Notice::Changed(job));
                    }
                }
                Err(error) => logged("jobs that nobody takes were not looked for", Err(error)),
            }
        }
        logged(
            "old live output was not forgotten",
            door.store.forget_live(now).await,
        );
        door.clock.sleep(SWEEP).await;
    }
}

async fn beat(door: Arc<Door>) {
    loop {
        logged(
            "the other facilitators may take us for dead",
            door.store.beat(door.clock.now()).await,
        );
        door.clock.sleep(REPLICA_BEAT).await;
    }
}

async fn tell(door: Arc<Door>, mut notices: mpsc::Receiver<Notice>) {
    let mut batch = Vec::with_capacity(BATCH);
    while notices.recv_many(&mut batch, BATCH).await > 0 {
        let mut lines: Vec<_> = batch.drain(..).map(|notice: Notice| notice.to_string()).collect();
        lines.dedup();
        logged(
            "the other facilitators were not told",
            door.store.tell(&lines).await,
        );
    }
}

async fn hear(door: Arc<Door>) {
    loop {
        if let Err(error) = listen(&door).await {
            tracing::warn!(error = %Causes(&error), "the other facilitators cannot be heard; trying again");
        }
        door.clock.sleep(RETRY).await;
    }
}

async fn listen(door: &Door) -> Result<(), StoreError> {
    let Some(mut ear) = door.store.ear().await? else {
        return Ok(());
    };
    // What was told before we listened.
    door.everything_changed();
    loop {
        match ear.hear().await? {
            Heard::Gap => door.everything_changed(),
            Heard::Message(message) => {
                for line in door.store.lines_of(&message) {
                    match line.parse() {
                        Ok(notice) => door.notice(notice),
                        Err(error) => tracing::debug!(line, %error, "passed over"),
                    }
                }
            }
        }
    }
}

fn logged(what: &'static str, done: Result<(), StoreError>) {
    if let Err(error) = done {
        tracing::warn!(error = %Causes(&error), "{what}");
    }
}
