//! The state that all batches and their executors share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_gateway::Gateway;
use muster_grading::GradeSpec;
use muster_http::addresses::AddressRules;
use muster_own_jobs::OwnJobs;
use muster_process::{SharedClock, Tasks};
use muster_protocol::ValidatorKey;
use muster_sealed_client::SealedSession;
use muster_store::StoreError;
use muster_subnet_view::SubnetView;
use parking_lot::Mutex;

use crate::PollMiners;
use crate::announcements::Announcements;
use crate::judging_permits::JudgingPermits;
use crate::settings::Settings;
use crate::store::GradingStore;

/// The reason why there is no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchRejection {
    /// No grader image is configured.
    #[error("this validator grades no class: name a grader's image in [grading.images]")]
    NoGrader,
    /// Too many requests are waiting.
    #[error("too many requested batches have not begun yet: try again later")]
    QueueFull,
    /// The validator is stopping.
    #[error("the validator is stopping")]
    Stopping,
    /// An earlier process of this validator began the batch of this block.
    #[error("the batch of this block began before the validator was restarted, and is void: ask again")]
    Begun,
    /// No executors were announced.
    #[error("no miner announces an executor of a class that this validator grades")]
    NoExecutors,
}

/// The state of the runner.
pub(crate) struct RunnerState {
    pub(crate) settings: Settings,
    /// The grade specification of each graded class.
    pub(crate) grade_specs: Vec<GradeSpec>,
    pub(crate) validator: ValidatorKey,
    pub(crate) own_jobs: OwnJobs,
    pub(crate) gateway: Option<Gateway>,
    pub(crate) subnet: Arc<SubnetView>,
    pub(crate) rules: Arc<AddressRules>,
    /// The stakes in rao by which receipts are valued at present; empty before they are known.
    pub(crate) stakes: Arc<Mutex<BTreeMap<ValidatorKey, u64>>>,
    pub(crate) poll_miners: PollMiners,
    /// The executors of the subnet by the last miner poll, which probes go by; `None` before the first one.
    pub(crate) polled: Mutex<Option<Announcements>>,
    pub(crate) store: GradingStore,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    /// Bounds the openings that are fetched and judged at the same time, because each is held in memory.
    pub(crate) judging_permits: JudgingPermits,
    pub(crate) on_store_failure: Box<dyn Fn(StoreError) + Send + Sync>,
}

impl RunnerState {
    /// Asks every miner for its executors, and notes the answers for the next probe.
    pub(crate) async fn poll_miners(&self) -> Announcements {
        let announcements = (self.poll_miners)().await;
        let mut polled = self.polled.lock();
        *polled = Some(polled.take().unwrap_or_default().renewed(&announcements));
        announcements
    }

    /// The sessions that serve users of this validator at present.
    pub(crate) async fn serving_sessions(&self) -> Vec<Arc<SealedSession>> {
        match &self.gateway {
            Some(gateway) => gateway.list_live_sessions().await,
            None => Vec::new(),
        }
    }
}

/// The span in microseconds.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
