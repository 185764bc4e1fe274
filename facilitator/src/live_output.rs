//! Stores the live output and progress of running jobs. Messages are queued and written in batches, so that a session
//! never waits for the store on their account.

use std::collections::BTreeSet;

use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::ValidatorKey;
use tokio::sync::{mpsc, oneshot};

use crate::background_tasks::spawn_until_stopped;
use crate::change_notices::{Notice, Notifier};
use muster_facilitator_store::LiveConfig;
use muster_facilitator_store::{LiveMessage, Store};

/// The most messages that wait to be stored. Further ones are dropped.
const MAX_QUEUED: usize = 4096;

/// The most messages that one transaction stores.
const BATCH: usize = 256;

/// The queue of messages to store. Clones share it.
#[derive(Clone)]
pub(crate) struct LiveOutput {
    queue: mpsc::Sender<QueuedOutput>,
}

enum QueuedOutput {
    /// A message about a job, from this validator.
    Message(ValidatorKey, LiveMessage),
    /// Answered when every earlier message is stored.
    Flush(oneshot::Sender<()>),
}

/// The task that stores the messages.
struct LiveOutputWriter {
    store: Store,
    bounds: LiveConfig,
    notifier: Notifier,
    clock: SharedClock,
}

// === impl LiveOutput ===

impl LiveOutput {
    /// Starts the task that stores messages, until the process stops.
    pub(crate) fn start(
        store: Store,
        bounds: LiveConfig,
        notifier: Notifier,
        tasks: &Tasks,
        clock: SharedClock,
    ) -> Self {
        let (queue, messages) = mpsc::channel(MAX_QUEUED);
        let writer = LiveOutputWriter {
            store,
            bounds,
            notifier,
            clock,
        };
        spawn_until_stopped(tasks, "live output", writer.run(messages));
        Self { queue }
    }

    /// Queues a message. A message that finds the queue full is dropped.
    pub(crate) fn record(&self, validator: ValidatorKey, message: LiveMessage) {
        let queued = QueuedOutput::Message(validator, message);
        if self.queue.try_send(queued).is_err() {
            tracing::debug!(%validator, "dropped live output: the store is too slow");
        }
    }

    /// Waits until every message queued before is stored, so that a job's last output is stored before its end.
    pub(crate) async fn flush(&self) {
        let (done, stored) = oneshot::channel();
        if self.queue.send(QueuedOutput::Flush(done)).await.is_ok() {
            // The writer ends only with the process. Nobody reads the output then.
            let _ = stored.await;
        }
    }
}

// === impl LiveOutputWriter ===

impl LiveOutputWriter {
    async fn run(self, mut queue: mpsc::Receiver<QueuedOutput>) {
        let mut batch = Vec::with_capacity(BATCH);
        while queue.recv_many(&mut batch, BATCH).await > 0 {
            let (mut messages, mut flushes) = (Vec::new(), Vec::new());
            for queued in batch.drain(..) {
                match queued {
                    QueuedOutput::Message(validator, message) => messages.push((validator, message)),
                    QueuedOutput::Flush(done) => flushes.push(done),
                }
            }
            if !messages.is_empty() {
                self.store_messages(&messages).await;
            }
            for done in flushes {
                // The session that flushed may have ended.
                let _ = done.send(());
            }
        }
    }

    async fn store_messages(&self, messages: &[(ValidatorKey, LiveMessage)]) {
        let now = self.clock.now();
        if let Err(error) = self.store.store_live(messages, &self.bounds, now).await {
            tracing::warn!(error = %Causes(&error), "cannot store live output");
        }
        let jobs: BTreeSet<_> = messages.iter().map(|(_, message)| message.job()).collect();
        for job in jobs {
            self.notifier.publish(Notice::Changed(job));
        }
    }
}
