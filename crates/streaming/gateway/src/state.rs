//! The state that the tasks of a gateway share.

use std::sync::Arc;

use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::MinerKey;
use muster_session_pool::Whitelist;
use muster_store::StoreError;
use tokio::sync::Semaphore;

use crate::answer_text_keys::AnswerTextKeys;
use crate::auth::Authenticator;
use crate::backend::ValidatorBackend;
use crate::miner_sessions::MinerSessions;
use crate::nonces::NonceMaker;
use crate::padding::PaddingLimits;
use crate::scheduler::SchedulerHandle;
use crate::settings::Settings;
use crate::store::GatewayStore;
use crate::token_counters::TokenCounters;

pub(crate) struct GatewayState {
    pub(crate) settings: Settings,
    pub(crate) whitelist: Whitelist,
    pub(crate) authenticator: Authenticator,
    pub(crate) backend: Arc<dyn ValidatorBackend>,
    pub(crate) store: GatewayStore,
    pub(crate) words: Arc<AnswerTextKeys>,
    pub(crate) nonces: Arc<NonceMaker>,
    pub(crate) counters: TokenCounters,
    pub(crate) padding: PaddingLimits,
    pub(crate) scheduler: SchedulerHandle,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    /// One permit for each request that is served or waits.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) on_store_failure: Box<dyn Fn(StoreError) + Send + Sync>,
}

impl GatewayState {
    /// Sessions with a miner of the subnet, beside the gateway's pools.
    pub(crate) fn sessions_with(&self, miner: MinerKey) -> MinerSessions {
        MinerSessions {
            backend: Arc::clone(&self.backend),
            miner,
            is_trusted: false,
            skew: self.settings.skew(),
            clock: Arc::clone(&self.clock),
            tasks: self.tasks.clone(),
        }
    }

    /// Reports that the store has failed: what cannot be made durable must not be sent to a client. If it refuses a
    /// value, which a miner may have chosen, only that write is lost.
    pub(crate) fn fail(&self, error: StoreError) {
        if error.is_refused_value() {
            tracing::error!(error = %Causes(&error), "the store refuses a value of a session or of an answer; it is not stored");
            return;
        }
        (self.on_store_failure)(error);
    }
}
