//! The facilitator's state: one part for each group of calls. A handler extracts only the part that it needs.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRef;
use muster_facilitator_core::access_policy::AccessPolicy;
use muster_facilitator_core::gateway_choice::GatewayPreference;
use muster_facilitator_core::login_rules::LoginRules;
use muster_facilitator_core::login_tokens::Issuer;
use muster_facilitator_core::web_session::FormKey;
use muster_file_store::FileService;
use muster_file_store::checkpoint_blocks::CheckpointService;
use muster_gateway_client::{ForwardLimits, GatewayClient};
use muster_http::addresses::AddressRules;
use muster_identity::Keypair;
use muster_job_data::Notifications;
use muster_process::{SharedClock, Tasks};
use muster_webhooks::sender::WebhookSender;

use muster_facilitator_core::event_slots::EventStreamSlots;
use muster_facilitator_store::{Store, StoredJob};

use crate::allowlist::Allowlist;
use crate::background_tasks::spawn_until_stopped;
use crate::change_notices::Notifier;
use crate::config::Config;
use crate::gateways::GatewayDirectory;
use crate::job_watchers::{JobWatchers, SessionWatchers};
use crate::live_output::LiveOutput;
use crate::request_signer::RequestSigner;
use crate::rest::account::AccountService;
use crate::rest::authentication::Admission;
use crate::rest::events::EventService;
use crate::rest::files::FileCalls;
use crate::rest::health::HealthService;
use crate::rest::jobs::JobService;
use crate::rest::keys::KeyService;
use crate::rest::model_service::ModelService;
use crate::rest::model_usage::UsageCounter;
use crate::rest::reports::ReportService;
use crate::rest::web_links::WebLinkService;
use crate::rest::webhooks::WebhookService;
use crate::socket::{self, SessionServices};
use crate::user_limits::RequestRates;
use crate::validator_selection::ValidatorSelection;
use crate::validator_sessions::ValidatorSessions;
use crate::web::WebService;
use crate::{metrics, periodic_round, replicas};

/// The parts, shared by all requests.
#[derive(Clone)]
pub(crate) struct FacilitatorState {
    pub(crate) admission: Arc<Admission>,
    pub(crate) health: Arc<HealthService>,
    pub(crate) jobs: Arc<JobService>,
    pub(crate) events: Arc<EventService>,
    pub(crate) reports: Arc<ReportService>,
    pub(crate) keys: Arc<KeyService>,
    pub(crate) account: Arc<AccountService>,
    pub(crate) files: Arc<FileCalls>,
    pub(crate) models: Arc<ModelService>,
    pub(crate) webhooks: Arc<WebhookService>,
    pub(crate) web_links: Arc<WebLinkService>,
    pub(crate) web: Arc<WebService>,
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
part!(account: AccountService);
part!(files: FileCalls);
part!(models: ModelService);
part!(webhooks: WebhookService);
part!(web_links: WebLinkService);
part!(sessions: SessionServices);

/// The services that the parts are built from.
pub(crate) struct Services<'a> {
    pub(crate) config: &'a Config,
    pub(crate) store: Store,
    pub(crate) files: Arc<FileService>,
    pub(crate) checkpoints: Arc<CheckpointService>,
    pub(crate) allowlist: Allowlist,
    /// Signs requests for accounts without a hotkey.
    pub(crate) keypair: Keypair,
    /// The addresses that validators' gateways may have.
    pub(crate) gateway_rules: AddressRules,
    /// Sends messages to users' webhooks.
    pub(crate) notifications: Notifications,
    /// Signs nonces and tokens.
    pub(crate) token_secret: Vec<u8>,
    /// The secret that pseudonyms of accounts are derived from.
    pub(crate) client_secret: Vec<u8>,
    /// The secret of the tokens in the forms of pages.
    pub(crate) form_secret: Vec<u8>,
    pub(crate) tasks: Tasks,
    pub(crate) clock: SharedClock,
}

impl Services<'_> {
    /// Builds the state, and starts the background work that its parts need.
    pub(crate) fn build_state(self) -> FacilitatorState {
        let sessions = Arc::<ValidatorSessions>::default();
        let watchers = Arc::<JobWatchers>::default();
        let browsers = Arc::<SessionWatchers>::default();
        let notifier = self.start_notices(&sessions, &watchers, &browsers);
        let (counted, watched) = (Arc::clone(&sessions), Arc::clone(&watchers));
        let measuring = metrics::measure(self.store.clone(), counted, watched, self.clock());
        spawn_until_stopped(&self.tasks, "measure", measuring);

        let (config, limits) = (self.config, &self.config.limits);
        let admission = Arc::new(Admission {
            store: self.store.clone(),
            issuer: Issuer::new(&self.token_secret, config.auth.lifetimes()),
            login: LoginRules::new(config.public_url.as_deref(), config.auth.require_bound_login),
            policy: Arc::new(AccessPolicy::new(config.users.as_deref(), &config.administrators)),
            rates: RequestRates::new(limits),
            clock: self.clock(),
        });
        let signer = RequestSigner::new(self.keypair.clone(), config.auth.freshness(), self.clock());
        let signer = Arc::new(signer);
        let gateways = Arc::new(GatewayDirectory::new(
            self.store.clone(),
            self.allowlist.clone(),
            GatewayPreference::new(config.gateways.validators.clone()),
            self.gateway_rules.clone(),
            self.clock(),
        ));
        let models = self.models(&admission, &gateways);
        let events = EventService {
            store: self.store.clone(),
            watchers,
            slots: EventStreamSlots::new(limits.watchers),
            clock: self.clock(),
            stop: self.tasks.token(),
        };
        let account = AccountService {
            store: self.store.clone(),
            notifier: notifier.clone(),
            clock: self.clock(),
        };
        let files = FileCalls {
            files: Arc::clone(&self.files),
            public_url: self.public_url(),
        };
        let webhooks = WebhookService {
            store: self.store.clone(),
            notifications: self.notifications.clone(),
            clock: self.clock(),
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
        let events = Arc::new(events);
        FacilitatorState {
            web_links: Arc::new(self.web_links()),
            keys: Arc::new(self.keys(&admission, &notifier)),
            web: Arc::new(self.web(&admission, &events, &notifier, browsers)),
            admission,
            health: Arc::new(health),
            jobs: Arc::new(self.jobs(&sessions, signer, &notifier)),
            events,
            reports: Arc::new(reports),
            account: Arc::new(account),
            files: Arc::new(files),
            models: Arc::new(models),
            webhooks: Arc::new(webhooks),
            sessions: Arc::new(self.sessions(sessions, notifier, gateways)),
        }
    }

    /// Starts the tasks that exchange notices with the other facilitators and the sweep over jobs.
    fn start_notices(
        &self,
        sessions: &Arc<ValidatorSessions>,
        watchers: &Arc<JobWatchers>,
        browsers: &Arc<SessionWatchers>,
    ) -> Notifier {
        let shared = self.store.is_shared();
        let (notifier, queue) = Notifier::new(
            Arc::clone(sessions),
            Arc::clone(watchers),
            Arc::clone(browsers),
            shared,
        );
        if let Some(queue) = queue {
            replicas::start(&self.store, &notifier, queue, &self.tasks, &self.clock);
        }
        let limit = self.config.limits.unanswered_s;
        if limit > 0 {
            periodic_round::start_job_sweep(
                self.store.clone(),
                notifier.clone(),
                Duration::from_secs(limit),
                &self.tasks,
                self.clock(),
            );
        }
        let jobs = self.store.clone();
        let webhooks = WebhookSender {
            store: self.store.webhooks(),
            read_job: Box::new(move |job| {
                let jobs = jobs.clone();
                Box::pin(async move { Ok(jobs.job(job).await?.as_ref().map(StoredJob::view)) })
            }),
            notifications: self.notifications.clone(),
            clock: self.clock(),
        };
        spawn_until_stopped(&self.tasks, "send webhooks", webhooks.run());
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
            notifications: self.notifications.clone(),
            quota: self.config.limits.quota(),
            checkpoints: Arc::clone(&self.checkpoints),
            clock: self.clock(),
            public_url: self.public_url(),
        }
    }

    fn keys(&self, admission: &Admission, notifier: &Notifier) -> KeyService {
        KeyService {
            store: self.store.clone(),
            policy: Arc::clone(&admission.policy),
            notifier: notifier.clone(),
            clock: self.clock(),
            public_url: self.public_url(),
        }
    }

    fn web_links(&self) -> WebLinkService {
        WebLinkService {
            store: self.store.clone(),
            clock: self.clock(),
            public_url: self.public_url(),
        }
    }

    fn web(
        &self,
        admission: &Arc<Admission>,
        events: &Arc<EventService>,
        notifier: &Notifier,
        browsers: Arc<SessionWatchers>,
    ) -> WebService {
        WebService {
            store: self.store.clone(),
            admission: Arc::clone(admission),
            events: Arc::clone(events),
            browsers,
            notifier: notifier.clone(),
            form_key: FormKey::new(self.form_secret.clone()),
            over_tls: self.public_url().starts_with("https://"),
            session_lifetime: Duration::from_secs(self.config.auth.web_session_s),
            clock: self.clock(),
        }
    }

    fn models(&self, admission: &Arc<Admission>, gateways: &Arc<GatewayDirectory>) -> ModelService {
        let (limits, settings) = (&self.config.limits, &self.config.gateways);
        let forwarding = ForwardLimits {
            rules: self.gateway_rules.clone(),
            silence: Duration::from_secs(settings.silence_s),
        };
        ModelService {
            admission: Arc::clone(admission),
            gateways: Arc::clone(gateways),
            gateway_client: GatewayClient::new(self.keypair.clone(), forwarding, self.clock()),
            head_limit: Duration::from_secs(settings.head_s),
            silence_limit: Duration::from_secs(settings.silence_s),
            client_secret: self.client_secret.clone(),
            usage: Arc::new(UsageCounter {
                store: self.store.clone(),
                clock: self.clock(),
                tasks: self.tasks.clone(),
                daily_tokens: (limits.daily_tokens > 0).then_some(limits.daily_tokens),
            }),
        }
    }

    fn sessions(
        self,
        sessions: Arc<ValidatorSessions>,
        notifier: Notifier,
        gateways: Arc<GatewayDirectory>,
    ) -> SessionServices {
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
            gateways,
            notifier,
            live_output,
            checkpoints: self.checkpoints,
            trace_all: self.config.trace_all,
            clock: self.clock,
            tasks: self.tasks,
            unauthenticated: socket::count_unauthenticated(),
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
