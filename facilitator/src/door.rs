//! What every request and every session shares, and the few actions that both ends take.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_identity::Verified;
use muster_kit::store::StoreError;
use muster_kit::{SharedClock, Tasks};
use muster_protocol::wire::facilitator::JobRequest;
use muster_protocol::{JobId, UserKey, ValidatorKey};
use tokio::sync::Semaphore;

use muster_files::FileService;

use crate::config::Config;
use crate::hub::Hub;
use crate::roll::Roll;
use crate::store::Store;
use muster_porter::auth::Issuer;
use muster_porter::delivery::Presence;
use muster_porter::signature::Freshness;

/// How many connections may be between their upgrade and their authentication. Each is given seconds and 64 KiB.
const MAX_STRANGERS: usize = 128;

/// The facilitator, as its requests see it.
pub(crate) struct Door {
    pub(crate) store: Store,
    pub(crate) files: Arc<FileService>,
    pub(crate) issuer: Issuer,
    pub(crate) hub: Arc<Hub>,
    pub(crate) roll: Roll,
    /// Places for connections that have not authenticated.
    pub(crate) strangers: Arc<Semaphore>,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    pub(crate) freshness: Freshness,
    pub(crate) public_url: String,
    users: Option<BTreeSet<UserKey>>,
}

// === impl Door ===

impl Door {
    pub(crate) fn new(
        config: &Config,
        store: Store,
        files: Arc<FileService>,
        secret: &[u8],
        tasks: Tasks,
        clock: SharedClock,
    ) -> Self {
        let public_url = config.public_url.as_deref().unwrap_or_default();
        Self {
            store,
            files,
            issuer: Issuer::new(secret, config.auth.lifetimes()),
            hub: Arc::default(),
            roll: Roll::new(config.validators.iter().copied()),
            strangers: Arc::new(Semaphore::new(MAX_STRANGERS)),
            clock,
            tasks,
            freshness: config.auth.freshness(),
            public_url: public_url.trim_end_matches('/').to_owned(),
            users: config.users.clone().map(BTreeSet::from_iter),
        }
    }

    /// Whether this user may be served.
    pub(crate) fn admits(&self, user: UserKey) -> bool {
        self.users.as_ref().is_none_or(|users| users.contains(&user))
    }

    /// Whether a job may be given to this validator: it is served, and it has been heard of lately.
    ///
    /// One that is just restarting still counts; its job waits for it.
    pub(crate) async fn selects(&self, validator: ValidatorKey) -> Result<bool, StoreError> {
        if !self.roll.admits(validator) {
            return Ok(false);
        }
        let seen = self.store.last_seen(validator).await?;
        let now = self.clock.now();
        Ok(seen.is_some_and(|seen| Presence::of(seen, now) == Presence::Selectable))
    }

    /// Stores a job durably and has it delivered. A repeated request is given the job of the first.
    pub(crate) async fn take(
        &self,
        validator: ValidatorKey,
        request: &Verified<JobRequest>,
    ) -> Result<JobId, StoreError> {
        let uuid = self.store.create(validator, request, self.clock.now()).await?;
        self.hub.ring(validator);
        Ok(uuid)
    }
}
