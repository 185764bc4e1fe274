//! The state that the tasks of a runner share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use muster_gateway::miner_sessions::MinerSessions;
use muster_gateway::{AnswerLog, Gateway};
use muster_identity::Keypair;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::{Hotkey, MinerKey, Timestamp, ValidatorKey};
use muster_session_pool::Service;
use muster_store::StoreError;
use muster_subnet_view::SubnetView;

use crate::appeals::effects;
use crate::appeals::fresh_answers::FreshSessions;
use crate::audits::adoption::Adopter;
use crate::audits::subject::Subject;
use crate::evidence::inputs::AuditorFacts;
use crate::own_prompts::list_queue::ListQueue;
use crate::own_prompts::sources::PromptStock;
use crate::phases::AuditPhase;
use crate::self_test::ordered_tests::SelfTests;
use crate::settings::Settings;
use crate::store::audit_store::AuditStore;

/// The miners that get no sessions for clients, by model: spot checks accuse them.
pub type BarredMiners = parking_lot::Mutex<BTreeMap<String, BTreeSet<MinerKey>>>;

/// The state that the tasks of a runner share.
pub(crate) struct RunnerState {
    pub(crate) settings: Settings,
    pub(crate) services: Vec<Service>,
    pub(crate) subnet: Arc<SubnetView>,
    pub(crate) barred: Arc<BarredMiners>,
    pub(crate) adopter: Adopter,
    pub(crate) gateway: Gateway,
    pub(crate) log: AnswerLog,
    pub(crate) trusted: Option<MinerSessions>,
    pub(crate) store: AuditStore,
    pub(crate) stock: PromptStock,
    pub(crate) lists: ListQueue,
    /// Own prompts of users' sessions that may be asked and are not answered yet, by model.
    pub(crate) open_prompts: parking_lot::Mutex<BTreeMap<String, usize>>,
    pub(crate) self_tests: SelfTests,
    pub(crate) keypair: Keypair,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    /// Held while references run.
    pub(crate) machines: tokio::sync::Mutex<()>,
    /// Whether outcomes may have come that miners have not received: set when a bucket is closed or drawn from, and
    /// when an audit has its verdict.
    pub(crate) outcomes_due: AtomicBool,
    /// Held while an appeal is judged.
    pub(crate) hearing: tokio::sync::Mutex<()>,
    /// The sessions for fresh answers.
    pub(crate) asking: FreshSessions,
    /// The newest block that the log's keeper has seen; 0 before the first.
    pub(crate) seen_block: AtomicU64,
    /// Called when the store fails.
    pub(crate) on_store_failure: Box<dyn Fn(StoreError) + Send + Sync>,
}

impl RunnerState {
    /// The validator and its subnet; `None` before the chain has answered.
    pub(crate) fn auditor(&self) -> Option<AuditorFacts> {
        let metagraph = self.subnet.last_metagraph()?;
        Some(AuditorFacts {
            genesis: self.adopter.store.genesis_digest()?,
            netuid: metagraph.netuid.0,
            validator: ValidatorKey(self.keypair.hotkey()),
        })
    }

    /// The coldkey of every miner, as the chain states it; empty before the chain has answered.
    pub(crate) fn owners(&self) -> BTreeMap<MinerKey, Hotkey> {
        let metagraph = self.subnet.last_metagraph();
        let neurons = metagraph.iter().flat_map(|metagraph| &metagraph.neurons);
        neurons
            .map(|neuron| (MinerKey(neuron.hotkey), neuron.coldkey))
            .collect()
    }

    /// The coldkeys and models whose answers are all audited now.
    pub(crate) async fn watched(&self) -> Result<BTreeSet<Subject>, StoreError> {
        let now = self.clock.now();
        let counting = self.adopter.store.counting_audits().await?;
        let ended = self.adopter.store.ended_convictions().await?;
        let appeals = self.store.appeals(now).await?;
        Ok(effects::watched(&counting, &appeals, &ended, now))
    }

    /// The convicts that are asked fresh own prompts now; none without a machine that could score them.
    pub(crate) async fn convicts_to_ask(&self) -> Result<BTreeMap<Subject, MinerKey>, StoreError> {
        if self.trusted.is_none() {
            return Ok(BTreeMap::new());
        }
        let standing = self.adopter.store.standing_convictions().await?;
        let mut due = effects::convicts_to_ask(&standing, &self.owners(), self.clock.now());
        due.retain(|subject, _| self.settings.calibrations.contains_key(&subject.model));
        Ok(due)
    }

    /// Whether an appeal about a subject is open.
    pub(crate) async fn is_appealed(&self, subject: &Subject) -> Result<bool, StoreError> {
        let appeals = self.store.appeals(self.clock.now()).await?;
        Ok(appeals
            .iter()
            .any(|appeal| appeal.is_open() && appeal.subject() == *subject))
    }

    /// Since when the answers of a subject are judged.
    pub(crate) async fn judged_since(&self, subject: &Subject) -> Result<Timestamp, StoreError> {
        let window = self.clock.now().minus(self.settings.window());
        let appeals = self.store.appeals(window).await?;
        Ok(effects::judged_since(subject, &appeals, window))
    }

    /// A phase of an audit begins.
    pub(crate) async fn enter(&self, phase: AuditPhase) {
        self.settings.observer.enter(phase).await;
    }

    /// Reports that the store has failed, and returns whether it has: if it refuses one value, which a miner may have
    /// chosen, only that write is lost, and the part that tried it goes on.
    pub(crate) fn fail(&self, error: StoreError) -> bool {
        if error.is_refused_value() {
            tracing::error!(error = %Causes(&error), "the store refuses a value of an audit; it is not stored");
            return false;
        }
        (self.on_store_failure)(error);
        true
    }
}
