//! The state that every part of one validator needs: configuration, key, clock, tasks, store and the view of the
//! subnet.
//!
//! State that belongs to one part lies with that part: the miners' ledger and the running jobs with
//! [`JobDrivers`](crate::driver::JobDrivers), the order of scoring and gathering with
//! [`ScoringGate`](crate::weights::ScoringGate).

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_audit_runner::BarredMiners;
use muster_http::addresses::AddressRules;
use muster_identity::Keypair;
use muster_job_messages::outgoing::GRADING_NAMESPACE;
use muster_own_jobs::{DISGUISED_NAMESPACE, TRIAL_NAMESPACE};
use muster_process::{SharedClock, Tasks};
use muster_protocol::receipt::page_of;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{Hotkey, MinerKey, ValidatorKey};
use muster_routing::broken_images::BrokenImageJobs;
use muster_scoring::{AllowanceBook, GradedExecutors};
use muster_session_pool::Service;
use muster_store::StoreError;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::chain::SubnetView;
use crate::collateral::CollateralView;
use crate::config::Config;
use crate::store::Store;

#[derive(Debug)]
pub(crate) struct ValidatorState {
    pub(crate) config: Config,
    pub(crate) keypair: Keypair,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    pub(crate) store: Arc<Store>,
    pub(crate) subnet: Arc<SubnetView>,
    /// The miners' deposits.
    pub(crate) collateral: CollateralView,
    /// The addresses that miners may name.
    pub(crate) rules: Arc<AddressRules>,
    /// The blocks that this validator's receipts may still name. Empty before the chain has answered.
    pub(crate) allowance: Mutex<AllowanceBook>,
    /// The executors that count in the present cycle; `None` before they were looked up.
    pub(crate) proven: Mutex<Option<Arc<GradedExecutors>>>,
    /// The stakes in rao by which the present cycle is scored: those of permitted validators, the lower one of two
    /// epochs. Empty before they were looked up.
    pub(crate) stakes: Arc<Mutex<BTreeMap<ValidatorKey, u64>>>,
    /// The miners that get no sessions for clients, by model: spot checks accuse them.
    pub(crate) barred: Arc<BarredMiners>,
    /// The jobs of broken images that count as open. After a start of this process there are none.
    pub(crate) broken_images: Mutex<BrokenImageJobs>,
    /// The first error after which the validator cannot go on.
    pub(crate) fatal: Mutex<Option<Error>>,
    /// Cancelled once this process leads no longer: then nothing is waited for.
    pub(crate) superseded: CancellationToken,
}

impl ValidatorState {
    /// The validator's own public key.
    pub(crate) fn key(&self) -> ValidatorKey {
        ValidatorKey(self.keypair.hotkey())
    }

    /// The receipt page on which a receipt is shown that is complete now; `None` if this validator serves no pages.
    pub(crate) fn own_page(&self) -> Option<i64> {
        self.config.pages.bind.map(|_| page_of(self.clock.now()))
    }

    /// Whether the executors that count in the present cycle were looked up.
    pub(crate) fn knows_proven(&self) -> bool {
        self.proven.lock().is_some()
    }

    /// The executors that are proven as far as this validator knows; nothing is graded before they were looked up.
    pub(crate) fn proven(&self) -> Arc<GradedExecutors> {
        self.proven.lock().clone().unwrap_or_default()
    }

    /// Notes the executors that count in the present cycle.
    pub(crate) fn set_proven(&self, proven: GradedExecutors) {
        *self.proven.lock() = Some(Arc::new(proven));
    }

    /// Whether the validator ordered the job itself: a session of its gateway or its grading.
    pub(crate) fn is_own(&self, request: &UserJobRequest) -> bool {
        request.signature.signatory.0 == self.keypair.hotkey()
    }

    /// The coldkey of a miner, as the chain states it; its hotkey if the chain has not answered yet.
    pub(crate) fn owner_of(&self, miner: MinerKey) -> Hotkey {
        let metagraph = self.subnet.last_metagraph();
        let found = metagraph.as_ref().and_then(|metagraph| metagraph.find(&miner.0));
        found.map_or(miner.0, |neuron| neuron.coldkey)
    }

    /// Whether the job is a session by which the validator checks a miner. It is paid to nobody.
    pub(crate) fn is_own_check(&self, request: &UserJobRequest) -> bool {
        self.is_own(request) && request.job_namespace.as_deref() == Some(GRADING_NAMESPACE)
    }

    /// Whether the job is a check that its miner must not distinguish from a user's job: it is routed and paid as one.
    pub(crate) fn is_disguised(&self, request: &UserJobRequest) -> bool {
        self.is_own(request) && request.job_namespace.as_deref() == Some(DISGUISED_NAMESPACE)
    }

    /// Whether the job is a trial: the known image at a miner under suspicion. It is paid to nobody.
    pub(crate) fn is_trial(&self, request: &UserJobRequest) -> bool {
        self.is_own(request) && request.job_namespace.as_deref() == Some(TRIAL_NAMESPACE)
    }

    /// Whether the job is the validator's own, and its miner may know it.
    pub(crate) fn is_openly_own(&self, request: &UserJobRequest) -> bool {
        self.is_own(request) && !self.is_disguised(request)
    }

    /// The service of the whitelist that a job of the gateway's runs; `None` for every other job.
    pub(crate) fn gateway_service(&self, request: &UserJobRequest) -> Option<&Service> {
        let terms = request.streaming_details.as_ref()?.muster.as_ref()?;
        if !self.is_own(request) || request.on_trusted_miner || self.is_own_check(request) {
            return None;
        }
        let services = self.config.gateway.services.iter();
        let mut listed = services.filter(|service| service.image == terms.image);
        listed.find(|service| service.model == terms.model)
    }

    /// Stops the validator because of an error that waiting cannot mend. A message whose facts cannot be stored must
    /// not be sent.
    pub(crate) fn fail(&self, error: impl Into<Error>) {
        let error = error.into();
        if matches!(
            error,
            Error::Store(StoreError::Superseded | StoreError::LeaseLost)
        ) {
            return self.lead_no_longer(error);
        }
        self.note_fatal(error);
        self.tasks.shutdown();
    }

    /// Stops the validator because another process leads, or may lead by now. Peers are told the reason.
    pub(crate) fn lead_no_longer(&self, error: impl Into<Error>) {
        self.note_fatal(error.into());
        self.tasks
            .shutdown_because("this process leads the validator no longer");
        self.superseded.cancel();
    }

    fn note_fatal(&self, error: Error) {
        self.fatal.lock().get_or_insert(error);
    }

    /// Takes the error that stopped the validator, if one did.
    pub(crate) fn take_fatal_error(&self) -> Option<Error> {
        self.fatal.lock().take()
    }

    /// Runs a part of the validator whose only errors are the store's; such an error stops the validator.
    pub(crate) fn spawn<F>(self: &Arc<Self>, name: &'static str, part: F)
    where
        F: Future<Output = Result<(), StoreError>> + Send + 'static,
    {
        let state = Arc::clone(self);
        // `Tasks::wait` waits for this task too, so its handle is not needed.
        drop(self.tasks.spawn(name, async move {
            if let Err(error) = part.await {
                state.fail(error);
            }
        }));
    }
}
