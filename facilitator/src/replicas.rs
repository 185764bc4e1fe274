//! Work for a store that several facilitators share: sending notices to the others, receiving theirs, and recording
//! that this facilitator is alive.

use std::time::Duration;

use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_store::StoreError;
use tokio::sync::mpsc;

use crate::background_tasks::spawn_until_stopped;
use crate::change_notices::{Notice, Notifier};
use muster_facilitator_store::{REPLICA_BEAT, ReplicaMessage, Store};

/// The most notices that one message carries.
const BATCH: usize = 256;

/// The pause before the facilitator listens again after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Starts the three tasks, until the process stops. `notices` are those to send to the other facilitators.
pub(crate) fn start(
    store: &Store,
    notifier: &Notifier,
    notices: mpsc::Receiver<Notice>,
    tasks: &Tasks,
    clock: &SharedClock,
) {
    let send = send_notices(store.clone(), notices);
    spawn_until_stopped(tasks, "send notices to replicas", send);
    let receive = receive_notices(store.clone(), notifier.clone(), clock.clone());
    spawn_until_stopped(tasks, "receive notices of replicas", receive);
    let beat = record_life(store.clone(), clock.clone());
    spawn_until_stopped(tasks, "replica heartbeat", beat);
}

async fn send_notices(store: Store, mut notices: mpsc::Receiver<Notice>) {
    let mut batch = Vec::with_capacity(BATCH);
    while notices.recv_many(&mut batch, BATCH).await > 0 {
        let mut lines: Vec<_> = batch.drain(..).map(|notice: Notice| notice.to_string()).collect();
        lines.dedup();
        if let Err(error) = store.send_to_replicas(&lines).await {
            tracing::warn!(error = %Causes(&error), "cannot send notices to the other facilitators");
        }
    }
}

async fn receive_notices(store: Store, notifier: Notifier, clock: SharedClock) {
    loop {
        if let Err(error) = listen(&store, &notifier).await {
            tracing::warn!(error = %Causes(&error), "cannot receive notices of the other facilitators; trying again");
        }
        clock.sleep(RETRY_AFTER).await;
    }
}

async fn listen(store: &Store, notifier: &Notifier) -> Result<(), StoreError> {
    let Some(mut listener) = store.listen_to_replicas().await? else {
        return Ok(());
    };
    // Notices sent before the connection was made are lost, so everything may have changed.
    notifier.wake_all();
    loop {
        match listener.receive().await? {
            ReplicaMessage::Gap => notifier.wake_all(),
            ReplicaMessage::Message(message) => {
                for line in store.lines_of_others(&message) {
                    match line.parse() {
                        Ok(notice) => notifier.wake(&notice),
                        Err(error) => tracing::debug!(line, %error, "ignored a line of another facilitator"),
                    }
                }
            }
        }
    }
}

async fn record_life(store: Store, clock: SharedClock) {
    loop {
        if let Err(error) = store.record_alive(clock.now()).await {
            tracing::warn!(error = %Causes(&error), "cannot record that this facilitator is alive; others may take its validators over");
        }
        clock.sleep(REPLICA_BEAT).await;
    }
}
