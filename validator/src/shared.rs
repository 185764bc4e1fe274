//! What the parts of one validator share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_identity::Keypair;
use muster_kit::store::StoreError;
use muster_kit::{SharedClock, Tasks};
use muster_protocol::{Manifest, MinerKey, Timestamp, ValidatorKey};
use serde::Serialize;
use tokio::sync::watch;

use crate::Error;
use crate::chain::Outlook;
use crate::config::Config;
use crate::routing::Standing;
use crate::store::Store;

/// How long a manifest is believed: a miner that is not asked because of it could never correct it.
const MANIFEST_AGE: Duration = Duration::from_secs(300);

/// How the link to the facilitator, or to the chain, stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LinkState {
    /// It is being dialled for the first time.
    #[default]
    Connecting,
    /// It answers, and has accepted this validator.
    Connected,
    /// It was lost, or would not have us.
    Lost {
        /// Why.
        reason: String,
    },
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) keypair: Keypair,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    pub(crate) store: Store,
    pub(crate) outlook: Outlook,
    pub(crate) link: watch::Sender<LinkState>,
    /// What each miner last announced, and when; learned anew after a restart.
    pub(crate) manifests: Mutex<BTreeMap<MinerKey, (Timestamp, Manifest)>>,
    /// Held from looking at the miners to writing the attempt down, so that two jobs do not take one executor.
    pub(crate) routing: tokio::sync::Mutex<()>,
    /// The first error that nothing can go on with.
    pub(crate) fatal: Mutex<Option<Error>>,
}

impl Shared {
    pub(crate) fn me(&self) -> ValidatorKey {
        ValidatorKey(self.keypair.hotkey())
    }

    /// Stops the validator over what no waiting mends. What cannot be made durable must not be said.
    pub(crate) fn fail(&self, error: impl Into<Error>) {
        let mut fatal = self.fatal.lock().unwrap_or_else(PoisonError::into_inner);
        if fatal.is_none() {
            *fatal = Some(error.into());
        }
        self.tasks.shutdown();
    }

    /// Runs a part of the validator whose only errors are the store's.
    pub(crate) fn spawn<F>(self: &Arc<Self>, name: &'static str, part: F)
    where
        F: Future<Output = Result<(), StoreError>> + Send + 'static,
    {
        let shared = Arc::clone(self);
        // Whoever waits for the tasks waits for this one too.
        drop(self.tasks.spawn(name, async move {
            if let Err(error) = part.await {
                shared.fail(error);
            }
        }));
    }

    /// What is known of each miner now.
    pub(crate) async fn standings(&self) -> Result<BTreeMap<MinerKey, Standing>, StoreError> {
        let now = self.clock.now();
        let since = now
            .micros()
            .saturating_sub(micros(self.config.routing.incident_s));
        let incidents = self.store.incidents(Timestamp::from_micros(since)).await?;
        let excuses = self.store.excuses(Timestamp::from_micros(since)).await?;
        let open = self.store.open_attempts().await?;
        let mut standings = BTreeMap::<MinerKey, Standing>::new();
        for (miner, count) in incidents {
            standings.entry(miner).or_default().incidents = count;
        }
        for (miner, count) in excuses {
            standings.entry(miner).or_default().excuses = count;
        }
        for (miner, classes) in open {
            standings.entry(miner).or_default().open = classes;
        }
        let manifests = self.manifests.lock().unwrap_or_else(PoisonError::into_inner);
        for (miner, (at, manifest)) in manifests.iter() {
            if now.since(*at) < MANIFEST_AGE {
                standings.entry(*miner).or_default().manifest = Some(manifest.clone());
            }
        }
        Ok(standings)
    }

    /// Notes what a miner announces.
    pub(crate) fn learn_manifest(&self, miner: MinerKey, manifest: Manifest) {
        let now = self.clock.now();
        self.manifests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(miner, (now, manifest));
    }
}

fn micros(secs: u64) -> i64 {
    i64::try_from(secs).unwrap_or(i64::MAX).saturating_mul(1_000_000)
}
