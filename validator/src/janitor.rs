//! The janitor of the validator's store: deletes rows that have had their time, beside all other work.

use std::sync::Arc;

use muster_process::SharedClock;
use muster_protocol::Timestamp;
use muster_store::StoreError;
use muster_store::retention::{Deletion, JanitorStore, RetentionRules, run_janitor};
use muster_store::size::TableSize;

use crate::validator_state::ValidatorState;

struct ValidatorRetention(Arc<ValidatorState>);

impl RetentionRules for ValidatorRetention {
    async fn due(&self, now: Timestamp, sizes: &[TableSize]) -> Result<Vec<Deletion>, StoreError> {
        let config = &self.0.config;
        let bounds = config.retention_bounds();
        self.0
            .store
            .due_deletions(&config.retention, bounds, now, sizes)
            .await
    }
}

/// Keeps the store small until the validator stops.
pub(crate) async fn run(state: Arc<ValidatorState>) -> Result<(), StoreError> {
    let store = JanitorStore {
        role: "validator",
        url: state.config.store.clone(),
        writer: state.store.writer(),
    };
    let pace = state.config.retention.pace.pace();
    let (stop, clock) = (state.tasks.token(), SharedClock::clone(&state.clock));
    let janitor = run_janitor(ValidatorRetention(state), store, pace, clock);
    stop.run_until_cancelled(janitor).await;
    Ok(())
}
