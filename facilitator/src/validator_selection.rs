//! Decides whether a validator may be given a new job.

use std::sync::Arc;

use muster_facilitator_core::connections::Presence;
use muster_process::SharedClock;
use muster_protocol::ValidatorKey;
use muster_store::StoreError;

use crate::allowlist::Allowlist;
use crate::validator_sessions::ValidatorSessions;
use muster_facilitator_store::Store;

/// The facts about validators that the decision needs.
pub(crate) struct ValidatorSelection {
    pub(crate) allowlist: Allowlist,
    pub(crate) sessions: Arc<ValidatorSessions>,
    pub(crate) store: Store,
    pub(crate) clock: SharedClock,
}

impl ValidatorSelection {
    /// Whether the validator is on the allowlist and has sent a frame recently, here or at another replica.
    ///
    /// A validator that is restarting still counts; its job waits for it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) async fn is_selectable(&self, validator: ValidatorKey) -> Result<bool, StoreError> {
        if !self.allowlist.admits(validator) {
            return Ok(false);
        }
        let now = self.clock.now();
        let selectable = |seen| Presence::of(seen, now) == Presence::Selectable;
        // A validator that is connected here needs no query.
        if self
            .sessions
            .last_frame_at(validator, now)
            .is_some_and(selectable)
        {
            return Ok(true);
        }
        let record = self.store.validator(validator).await?;
        Ok(record.is_some_and(|record| selectable(record.seen)))
    }
}
