//! The gateway as a whole: opens it and answers its owner's questions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_http::server::{self, HttpSettings, Server, TlsFileError, TowerToHyperService};
use muster_openai::OpenAiError;
use muster_process::error::Coded;
use muster_process::listen::{self, BindError};
use muster_process::{SharedClock, Tasks};
use muster_protocol::wire::muster::{GatewayNotice, ServedModel};
use muster_protocol::{ErrorCode, JobId, Timestamp};
use muster_response_proof::SessionId;
use muster_session_pool::Whitelist;
use muster_store::{StoreError, Writer};
use sqlx::AnyPool;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use muster_sealed_client::SealedSession;

use crate::answer_log::AnswerLog;
use crate::answer_parts::AnswerPart;
use crate::answer_text_keys::AnswerTextKeys;
use crate::auth::Authenticator;
use crate::backend::ValidatorBackend;
use crate::own_question::OwnQuestion;
use crate::padding::PaddingLimits;
use crate::request::RequestOrigin;
use crate::scheduler::{ModelStatus, SchedulerHandle, SessionScheduler};
use crate::settings::Settings;
use crate::state::GatewayState;
use crate::store::{GatewayStore, TextConsent};
use crate::submission::{BoundQuestion, Question, submit};
use crate::token_count::TokenizerError;
use crate::token_counters::TokenCounters;
use crate::{dispatcher, routes};

/// Why a gateway does not open.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address cannot be bound.
    #[error("the gateway cannot be served")]
    Bind(#[from] BindError),
    /// The operating system does not report the bound address.
    #[error("the gateway's address is not known")]
    Address(#[source] std::io::Error),
    /// The database failed.
    #[error("the gateway cannot use its store")]
    Store(#[from] StoreError),
    /// The files of the certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] TlsFileError),
    /// A model's tokenizer cannot be used.
    #[error("the gateway cannot count tokens by a model's tokenizer")]
    Tokenizer(#[from] TokenizerError),
}

impl Coded for GatewayError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Bind(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::Address(_) | Self::Certificate(_) | Self::Tokenizer(_) => None,
        }
    }
}

/// The services of its process that a gateway uses.
pub struct GatewayDeps {
    /// The validator that starts and ends streaming jobs.
    pub backend: Arc<dyn ValidatorBackend>,
    /// Connections that read the validator's database, which is migrated.
    pub pool: AnyPool,
    /// Writes to the same database.
    pub writer: Writer,
    /// The connections of the process's listeners.
    pub http: HttpSettings,
    /// The process's clock.
    pub clock: SharedClock,
    /// Runs the gateway's tasks; its token stops the gateway.
    pub tasks: Tasks,
    /// Called when the store has failed; the gateway cannot go on then.
    pub on_store_failure: Box<dyn Fn(StoreError) + Send + Sync>,
}

/// An open gateway. Clones are the same one.
#[derive(Clone)]
pub struct Gateway {
    state: Arc<GatewayState>,
    address: SocketAddr,
    serving: Serving,
}

/// The tokens of the server of clients.
#[derive(Clone)]
struct Serving {
    /// Cancelled when it shall take no more requests.
    stop: CancellationToken,
    /// Cancelled once its last request is over, or has had its time.
    over: CancellationToken,
}

impl Gateway {
    /// Opens at this address and begins to keep sessions.
    ///
    /// # Errors
    /// The address cannot be bound, a model's tokenizer cannot be used, or the store fails.
    pub async fn open(bind: SocketAddr, settings: Settings, deps: GatewayDeps) -> Result<Self, GatewayError> {
        let listener = listen::bind(bind)?;
        let address = listener.local_addr().map_err(GatewayError::Address)?;
        let store = GatewayStore::new(deps.pool, deps.writer);
        let lost = store.drop_unreadable_words().await?;
        if lost > 0 {
            tracing::info!(
                answers = lost,
                "the words of answers ended with an earlier process before their draw"
            );
        }
        for job in store.close_orphans(deps.clock.now()).await? {
            deps.backend
                .end_job(job, "the gateway was started anew", false)
                .await;
        }
        // The check of the configuration has found no defects in the services.
        let whitelist = Whitelist::new(settings.services.clone()).unwrap_or_default();
        let counters = TokenCounters::open(whitelist.services())?;
        let (handle, commands) = SchedulerHandle::new();
        let scheduler = SessionScheduler::new(whitelist.services(), settings.limits());
        let state = Arc::new(GatewayState {
            whitelist,
            authenticator: Authenticator::new(deps.backend.validator(), &settings),
            backend: deps.backend,
            store,
            words: Arc::new(AnswerTextKeys::new(settings.kept_text_bytes)),
            nonces: Arc::default(),
            counters,
            padding: PaddingLimits::default(),
            scheduler: handle,
            clock: deps.clock,
            permits: Arc::new(Semaphore::new(settings.requests)),
            settings,
            tasks: deps.tasks,
            on_store_failure: deps.on_store_failure,
        });
        let dispatching = dispatcher::run(Arc::clone(&state), scheduler, commands);
        drop(state.tasks.spawn("gateway's scheduler", dispatching));
        let router = routes::router(Arc::clone(&state));
        let service = TowerToHyperService::new(router);
        let (tasks, clock) = (state.tasks.clone(), state.clock.clone());
        let serving = Serving {
            stop: state.tasks.token().child_token(),
            over: CancellationToken::new(),
        };
        let stop = serving.stop.clone();
        let mut server = Server::new("gateway connection", &deps.http, tasks, clock, stop)
            .with_tls_files(&deps.http.tls)?;
        server.limits.connections = state.settings.requests;
        let over = serving.over.clone().drop_guard();
        let requests = server::serve(server, listener, move |_| service.clone());
        let requests = async move {
            let _over = over;
            requests.await;
        };
        drop(state.tasks.spawn("gateway", requests));
        tracing::info!(%address, models = state.whitelist.services().len(), "the gateway is open");
        Ok(Self {
            state,
            address,
            serving,
        })
    }

    /// Takes no more requests, and returns once those under way are over or have had `http.drain_s`. Its sessions stay
    /// open.
    pub async fn drain(&self) {
        self.serving.stop.cancel();
        self.serving.over.cancelled().await;
    }

    /// The bound address.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The notice that announces this gateway to facilitators.
    pub fn notice(&self) -> GatewayNotice {
        let bound = || format!("http://{}", self.address);
        let models = self.state.whitelist.services().iter().map(|service| ServedModel {
            id: service.model.clone(),
            input_price: service.input_price,
            output_price: service.output_price,
        });
        GatewayNotice {
            url: Some(self.state.settings.announce.clone().unwrap_or_else(bound)),
            models: models.collect(),
        }
    }

    /// The status of every model; empty once the gateway has stopped.
    pub fn list_models(&self) -> BoxFuture<'_, Vec<ModelStatus>> {
        Box::pin(self.state.scheduler.list_models())
    }

    /// The sessions that take requests; empty once the gateway has stopped.
    pub fn list_live_sessions(&self) -> BoxFuture<'_, Vec<Arc<SealedSession>>> {
        Box::pin(self.state.scheduler.list_live_sessions())
    }

    /// Keeps a live session until this time, so that it can be asked then, if clients have used it lately. Returns
    /// whether they have: a session that own prompts alone keep would never end.
    pub async fn hold_session(&self, session: SessionId, until: Timestamp) -> bool {
        self.state.scheduler.hold_session(session, until).await
    }

    /// The time before its end at which a session may stop taking requests: it is replaced or drained.
    pub fn session_margin(&self) -> Duration {
        let limits = self.state.settings.limits();
        limits.replace.max(limits.drain)
    }

    /// Drains the session that this job runs: it serves the requests that it has and takes no more.
    pub fn drain_session(&self, job: JobId) {
        self.state.scheduler.drain_session(job);
    }

    pub(crate) const fn state(&self) -> &Arc<GatewayState> {
        &self.state
    }

    /// The log of its proven answers.
    pub fn answer_log(&self) -> AnswerLog {
        let state = &self.state;
        AnswerLog::new(
            state.store.clone(),
            Arc::clone(&state.words),
            Arc::clone(&state.nonces),
            Arc::clone(&state.backend),
        )
    }

    /// Asks a live session a question of the validator's own, once: the request takes the way of every client's.
    /// Returns the answer's id once the answer has ended and is stored.
    ///
    /// # Errors
    /// As for a client: no such model, or a session that is gone or refused. [`OpenAiError::QueueFull`] if the session
    /// got nothing of the question or its seal refused it, so that it may be asked again.
    pub async fn ask(&self, session: SessionId, own: OwnQuestion) -> Result<String, OpenAiError> {
        let question = Question {
            client: own
                .client()
                .map_err(|error| OpenAiError::Internal(error.to_string()))?,
            path: own.path(),
            client_nonce: own.client_nonce,
            bound: Some(BoundQuestion {
                session,
                nonce: own.gateway_nonce,
            }),
            consent: TextConsent::Publish,
            origin: RequestOrigin::OwnPrompt,
            body: own.body,
        };
        let mut asked = submit(&self.state, question)?;
        let mut refused = None;
        while let Some(part) = asked.parts.recv().await {
            if let AnswerPart::Refused(error) = part {
                refused = Some(error);
            }
        }
        refused.map_or_else(|| Ok(asked.id.hex()), Err)
    }

    /// Its sessions, answers and earnings.
    pub fn store(&self) -> &GatewayStore {
        &self.state.store
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gateway({})", self.address)
    }
}
