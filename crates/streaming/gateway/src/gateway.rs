//! The gateway as a whole: what its parts share, how it opens.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_process::listen::{self, BindError};
use muster_process::store::StoreError;
use muster_process::{SharedClock, Tasks};
use muster_protocol::wire::muster::{GatewayNotice, ServedModel};
use muster_protocol::{Digest, JobId};
use muster_session_pool::Whitelist;
use sqlx::AnyPool;
use tokio::sync::Semaphore;

use crate::auth::Porter;
use crate::desk::{Desk, Dispatcher, View};
use crate::host::Host;
use crate::line::Line;
use crate::settings::Settings;
use crate::store::{Book, SessionRow};
use crate::{http_door, server};

/// Why a gateway does not open.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// Its address.
    #[error("the gateway cannot be served")]
    Bind(#[from] BindError),
    /// Its address, once it is bound.
    #[error("the gateway's address is not known")]
    Address(#[source] std::io::Error),
    /// Its store.
    #[error("the gateway cannot use its store")]
    Store(#[from] StoreError),
}

/// What a gateway is made of besides its settings.
pub struct Parts {
    /// The validator.
    pub host: Arc<dyn Host>,
    /// The validator's database, migrated.
    pub pool: AnyPool,
    /// When it is.
    pub clock: SharedClock,
    /// Where its tasks run, and whose token stops it.
    pub tasks: Tasks,
    /// Who is told that the store has failed: nothing can go on then.
    pub failed: Box<dyn Fn(StoreError) + Send + Sync>,
}

/// An open gateway. Clones are the same one.
#[derive(Clone)]
pub struct Gateway {
    core: Arc<Core>,
    address: SocketAddr,
}

/// What everything in it shares.
pub(crate) struct Core {
    pub(crate) settings: Settings,
    pub(crate) whitelist: Whitelist,
    pub(crate) porter: Porter,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) book: Book,
    pub(crate) desk: Desk,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    pub(crate) permits: Arc<Semaphore>,
    failed: Box<dyn Fn(StoreError) + Send + Sync>,
}

impl Gateway {
    /// Opens at this address and begins to keep sessions.
    ///
    /// # Errors
    /// The address or the store cannot be used.
    pub async fn open(bind: SocketAddr, settings: Settings, parts: Parts) -> Result<Self, GatewayError> {
        let listener = listen::bind(bind).await?;
        let address = listener.local_addr().map_err(GatewayError::Address)?;
        let book = Book::new(parts.pool);
        for job in book.orphans(parts.clock.now()).await? {
            parts.host.end(job, "the gateway was started anew", false).await;
        }
        let named = settings.keys.iter().map(|(name, digest)| (*digest, name.clone()));
        let keys: BTreeMap<Digest, String> = named.collect();
        let (desk, words) = Desk::new();
        let core = Arc::new(Core {
            // What the configuration's check let pass has no defects.
            whitelist: Whitelist::new(settings.services.clone()).unwrap_or_default(),
            porter: Porter {
                me: parts.host.me(),
                facilitators: settings.facilitators.clone(),
                keys,
                skew: settings.skew(),
            },
            host: parts.host,
            book,
            desk,
            clock: parts.clock,
            permits: Arc::new(Semaphore::new(settings.requests)),
            settings,
            tasks: parts.tasks,
            failed: parts.failed,
        });
        let dispatcher = Dispatcher::new(Arc::clone(&core), words);
        drop(core.tasks.spawn("gateway's desk", dispatcher.run()));
        let router = http_door::router(Arc::clone(&core));
        let most = core.settings.requests;
        let serving = server::serve(listener, router, core.tasks.clone(), core.clock.clone(), most);
        drop(core.tasks.spawn("gateway", serving));
        tracing::info!(%address, models = core.whitelist.services().len(), "the gateway is open");
        Ok(Self { core, address })
    }

    /// Where it answers.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What facilitators are told of it.
    pub fn notice(&self) -> GatewayNotice {
        let here = || format!("http://{}", self.address);
        let models = self.core.whitelist.services().iter().map(|service| ServedModel {
            id: service.model.clone(),
            input_price: service.input_price,
            output_price: service.output_price,
        });
        GatewayNotice {
            url: Some(self.core.settings.announce.clone().unwrap_or_else(here)),
            models: models.collect(),
        }
    }

    /// How each model stands.
    pub fn look(&self) -> BoxFuture<'_, Vec<View>> {
        Box::pin(self.core.desk.look())
    }

    /// The sessions that serve now.
    pub fn lines(&self) -> BoxFuture<'_, Vec<Arc<Line>>> {
        Box::pin(self.core.desk.lines())
    }

    /// What it keeps.
    pub fn book(&self) -> &Book {
        &self.core.book
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gateway({})", self.address)
    }
}

impl Core {
    /// A session is about to serve.
    pub(crate) async fn opened(&self, line: &Line) -> Result<(), StoreError> {
        let row = SessionRow {
            session: line.session,
            job: line.job,
            miner: line.miner,
            model: line.service.model.clone(),
            address: line.address().to_owned(),
            attestation: line.attestation.clone(),
            opened_at: self.clock.now(),
            closed_at: None,
            closed_because: None,
            close: None,
            fault: None,
        };
        self.book.open(&row).await
    }

    /// Ends a session once no answer of it is under way, or its time is over: its last word is asked for and kept, then its job
    /// ends.
    pub(crate) async fn close(&self, job: JobId, line: Option<Arc<Line>>, why: &'static str) {
        let mut last_word = false;
        if let Some(line) = line {
            // One that was taken for dead may be alive, and its close would cut what still flows.
            tokio::select! {
                () = line.quiet() => {}
                () = self.clock.sleep_until(line.until) => {}
                () = self.tasks.token().cancelled_owned() => {}
            }
            let (close, fault) = line.close().await;
            last_word = close.is_some();
            if let Some(fault) = &fault {
                tracing::warn!(session = %line.session, miner = %line.miner, fault, "a session did not end as it should");
            }
            let now = self.clock.now();
            let kept = self
                .book
                .close(line.session, why, close.as_deref(), fault.as_deref(), now)
                .await;
            if let Err(error) = kept {
                self.fail(error);
            }
        }
        self.host.end(job, why, last_word).await;
    }

    /// What cannot be made durable must not be said.
    pub(crate) fn fail(&self, error: StoreError) {
        (self.failed)(error);
    }
}
