//! The facilitator's state: one part for each group of calls. A handler extracts only the part that it needs.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRef;
use muster_facilitator_core::login_tokens::Issuer;
use muster_file_store::FileService;
use muster_gateway_client::GatewayClient;
use muster_identity::Keypair;
use muster_process::{SharedClock, Tasks};

use crate::access_policy::AccessPolicy;
use crate::allowlist::Allowlist;
use crate::config::Config;
use crate::job_watchers::JobWatchers;
use crate::live_output::LiveOutput;
use crate::notices::Notifier;
use crate::request_signer::RequestSigner;
use crate::rest::admission::Admission;
use crate::rest::events::EventService;
use crate::rest::files::FileCalls;
use crate::rest::health::HealthService;
use crate::rest::jobs::JobService;
use crate::rest::keys::KeyService;
use crate::rest::openai::ModelService;
use crate::rest::reports::ReportService;
use crate::socket::{self, SessionServices};
use crate::store::Store;
use crate::user_limits::{EventStreamSlots, RequestRates};
use crate::validator_selection::ValidatorSelection;
use crate::validator_sessions::ValidatorSessions;
use crate::{periodic_cleanup, replicas};

/// The parts, shared by all requests.
#[derive(Clone)]
pub(crate) struct FacilitatorState {
    pub(crate) admission: Arc<Admission>,
    pub(crate) health: Arc<HealthService>,
    pub(crate) jobs: Arc<JobService>,
    pub(crate) events: Arc<EventService>,
    pub(crate) reports: Arc<ReportService>,
    pub(crate) keys: Arc<KeyService>,
    pub(crate) files: Arc<FileCalls>,
    pub(crate) models: Arc<ModelService>,
    pub(crate) sessions: Arc<SessionServices>,
}

macro_rules! part {
    ($field:ident: $part:ty) => {
        impl FromRef<FacilitatorState> for Arc<$part> {
            fn from_ref(state: &FacilitatorState) -> Self {
                Arc::clone(&state.$field)
            }
        }
    };
}

part!(admission: Admission);
part!(health: HealthService);
part!(jobs: JobService);
part!(events: EventService);
part!(reports: ReportService);
part!(keys: KeyService);
part!(files: FileCalls);
part!(models: ModelService);
part!(sessions: SessionServices);

/// The services that the parts are built from.
pub(crate) struct Services<'a> {
    pub(crate) config: &'a Config,
    pub(crate) store: Store,
    pub(crate) files: Arc<FileService>,
    pub(crate) allowlist: Allowlist,
    /// Signs requests for accounts without a hotkey.
    pub(crate) keypair: Keypair,
    /// Forwards requests to validators' gateways.
    pub(crate) gateway_client: GatewayClient,
    /// Signs nonces and tokens.
    pub(crate) token_secret: Vec<u8>,
    /// The secret that pseudonyms of accounts are derived from.
    pub(crate) client_secret: Vec<u8>,
    pub(crate) tasks: Tasks,
    pub(crate) clock: SharedClock,
}

impl Services<'_> {
    /// Builds the state, and starts the background work that its parts need.
    pub(crate) fn build_state(self) -> FacilitatorState {
        let sessions = Arc::<ValidatorSessions>::default();
        let watchers = Arc::<JobWatchers>::default();
        let notifier = self.start_notices(&sessions, &watchers);

        let (config, limits) = (self.config, &self.config.limits);
        let admission = Arc::new(Admission {
            store: self.store.clone(),
            issuer: Issuer::new(&self.token_secret, config.auth.lifetimes()),
            policy: Arc::new(AccessPolicy::new(config)),
            rates: RequestRates::new(limits),
            clock: self.clock(),
        });
        let signer = RequestSigner::new(self.keypair.clone(), config.auth.freshness(), self.clock());
        let signer = Arc::new(signer);
        let models = ModelService {
            store: self.store.clone(),
            admission: Arc::clone(&admission),
            allowlist: self.allowlist.clone(),
            gateway_client: self.gateway_client.clone(),
            client_secret: self.client_secret.clone(),
            daily_tokens: (limits.daily_tokens > 0).then_some(limits.daily_tokens),
            clock: self.clock(),
            tasks: self.tasks.clone(),
        };
        let events = EventService {
            store: self.store.clone(),
            watchers,
            slots: EventStreamSlots::new(limits.watchers),
            clock: self.clock(),
            stop: self.tasks.token(),
        };
        let keys = KeyService {
            store: self.store.clone(),
            policy: Arc::clone(&admission.policy),
            clock: self.clock(),
            public_url: self.public_url(),
        };
        let files = FileCalls {
            files: Arc::clone(&self.files),
            public_url: self.public_url(),
        };
        let reports = ReportService {
            store: self.store.clone(),
            signer: Arc::clone(&signer),
            notifier: notifier.clone(),
            clock: self.clock(),
        };
        let health = HealthService {
            store: self.store.clone(),
            sessions: Arc::clone(&sessions),
            signer: Arc::clone(&signer),
        };
        FacilitatorState {
            admission,
            health: Arc::new(health),
            jobs: Arc::new(self.jobs(&sessions, signer, &notifier)),
            events: Arc::new(events),
            reports: Arc::new(reports),
            keys: Arc::new(keys),
            files: Arc::new(files),
            models: Arc::new(models),
            sessions: Arc::new(self.sessions(sessions, notifier)),
        }
    }

    /// Starts the tasks that exchange notices with the other facilitators and the sweep over jobs.
    fn start_notices(&self, sessions: &Arc<ValidatorSessions>, watchers: &Arc<JobWatchers>) -> Notifier {
        let shared = self.store.is_shared();
        let (notifier, queue) = Notifier::new(Arc::clone(sessions), Arc::clone(watchers), shared);
        if let Some(queue) = queue {
            replicas::start(&self.store, &notifier, queue, &self.tasks, &self.clock);
        }
        let limit = self.config.limits.unanswered_s;
        let unanswered = (limit > 0).then(|| Duration::from_secs(limit));
        periodic_cleanup::start_job_sweep(
            self.store.clone(),
            notifier.clone(),
            unanswered,
            &self.tasks,
            self.clock(),
        );
        notifier
    }

    fn jobs(
        &self,
        sessions: &Arc<ValidatorSessions>,
        signer: Arc<RequestSigner>,
        notifier: &Notifier,
    ) -> JobService {
        JobService {
            store: self.store.clone(),
            selection: ValidatorSelection {
                allowlist: self.allowlist.clone(),
                sessions: Arc::clone(sessions),
                store: self.store.clone(),
                clock: self.clock(),
            },
            signer,
            notifier: notifier.clone(),
            quota: self.config.limits.quota(),
            clock: self.clock(),
            public_url: self.public_url(),
        }
    }

    fn sessions(self, sessions: Arc<ValidatorSessions>, notifier: Notifier) -> SessionServices {
        let live_output = LiveOutput::start(
            self.store.clone(),
            self.config.live,
            notifier.clone(),
            &self.tasks,
            self.clock(),
        );
        SessionServices {
            store: self.store,
            allowlist: self.allowlist,
            sessions,
            notifier,
            live_output,
            clock: self.clock,
            tasks: self.tasks,
            unauthenticated: socket::unauthenticated_permits(),
        }
    }

    fn clock(&self) -> SharedClock {
        Arc::clone(&self.clock)
    }

    /// The beginning of links, without a slash at the end; empty for relative links.
    fn public_url(&self) -> String {
        let url = self.config.public_url.as_deref().unwrap_or_default();
        url.trim_end_matches('/').to_owned()
    }
}
