//! The endpoints of one chain. Every request goes to an endpoint that answers, whose head moves, and that serves this
//! chain.
//!
//! Each operation begins with the last finalised block of one endpoint and stays with that endpoint, so that data that
//! belongs together comes from one place. If the endpoint fails on the way, the operation begins again at the next one.

use std::sync::OnceLock;
use std::time::Duration;

use muster_process::SharedClock;
use muster_process::backoff::random_jitter;
use parking_lot::Mutex as Lock;
use subxt::client::{ClientAtBlock, OnlineClientAtBlockImpl};
use subxt::config::SubstrateConfig;
use subxt::config::substrate::H256;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::dial_endpoint::{Link, check_address};
use crate::endpoint_choice::{EndpointHealth, EndpointRoster};
use crate::error::ChainError;
use crate::subxt_errors::{LibraryError, name_failure, no_answer};

/// Time limits for requests to the chain. A request that takes longer has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainTimeouts {
    /// Limit for an answer of one endpoint, connecting included.
    pub read: Duration,
    /// Limit for a call to become final. On the public network that takes three or four blocks of 12 seconds.
    pub finality: Duration,
    /// Time for which the finalised head may stand still before another endpoint is preferred.
    pub stall: Duration,
}

impl Default for ChainTimeouts {
    fn default() -> Self {
        Self {
            read: Duration::from_secs(15),
            finality: Duration::from_secs(180),
            stall: Duration::from_secs(120),
        }
    }
}

/// The chain at one block, as one endpoint serves it.
pub(crate) type AtBlock = ClientAtBlock<SubstrateConfig, OnlineClientAtBlockImpl<SubstrateConfig>>;

/// The chain at the last finalised block of one endpoint.
#[derive(Clone)]
pub(crate) struct ChainHead {
    pub(crate) at: AtBlock,
    pub(crate) link: Link,
    pub(crate) index: usize,
}

impl ChainHead {
    /// Whether the chain's storage has this entry.
    pub(crate) fn has_entry(&self, pallet: &str, entry: &str) -> bool {
        let pallet = self.at.metadata_ref().pallet_by_name(pallet);
        pallet
            .and_then(|pallet| pallet.storage())
            .is_some_and(|storage| storage.entry_by_name(entry).is_some())
    }
}

/// All endpoints of one chain.
#[derive(Debug)]
pub(crate) struct Endpoint {
    urls: Vec<String>,
    pub(crate) timeouts: ChainTimeouts,
    clock: SharedClock,
    /// The hash of the chain's first block, from the first endpoint that answered. Endpoints of other chains are
    /// refused after that.
    genesis: OnceLock<H256>,
    roster: Lock<EndpointRoster>,
    /// The task that dials holds the lock, so that a hundred requests make one connection.
    links: Vec<Mutex<Option<Link>>>,
}

impl Endpoint {
    pub(crate) async fn connect(
        urls: &[String],
        timeouts: ChainTimeouts,
        clock: SharedClock,
    ) -> Result<Self, ChainError> {
        if urls.is_empty() {
            return Err(ChainError::Address {
                url: String::new(),
                reason: "it is empty: name at least one endpoint",
            });
        }
        for url in urls {
            check_address(url)?;
        }
        let endpoint = Self {
            urls: urls.to_vec(),
            timeouts,
            clock,
            genesis: OnceLock::new(),
            roster: Lock::new(EndpointRoster::new(urls.len(), timeouts.stall)),
            links: urls.iter().map(|_| Mutex::default()).collect(),
        };
        endpoint.head("connect to the chain").await?;
        Ok(endpoint)
    }

    /// The hash of the chain's first block, from the first endpoint that answered. Endpoints of other chains are
    /// refused after that.
    pub(crate) fn genesis(&self) -> H256 {
        self.genesis.get().copied().unwrap_or_default()
    }

    /// The address of an endpoint.
    pub(crate) fn url(&self, index: usize) -> &str {
        self.urls.get(index).map_or("", String::as_str)
    }

    /// Whether there is no other endpoint.
    pub(crate) fn is_only(&self) -> bool {
        self.urls.len() < 2
    }

    /// The last finalised block of the endpoint that is to be asked. Connects if necessary.
    pub(crate) async fn head(&self, doing: &'static str) -> Result<ChainHead, ChainError> {
        let order = self.roster().order(self.clock.now());
        let mut failure = None;
        let mut stalled: Option<ChainHead> = None;
        for index in order {
            // An endpoint that was lost just now may be back: the second try dials again, after a wait.
            for _ in 0..2 {
                match self.head_of(index, doing).await {
                    Ok((head, EndpointHealth::Good)) => return Ok(head),
                    Ok((head, EndpointHealth::Stalled)) => {
                        let better = stalled
                            .as_ref()
                            .is_none_or(|known| head.at.block_number() > known.at.block_number());
                        if better {
                            stalled = Some(head);
                        }
                        break;
                    }
                    Err(error) => {
                        let dial_again = error.is_unreachable() && self.links.len() == 1;
                        // A wrong chain informs an operator better than an endpoint that does not answer.
                        if !matches!(failure, Some(ChainError::WrongChain { .. })) {
                            failure = Some(error);
                        }
                        if !dial_again {
                            break;
                        }
                    }
                }
            }
        }
        if let Some(head) = stalled {
            if !self.is_only() {
                tracing::warn!(
                    url = self.url(head.index),
                    block = head.at.block_number(),
                    "no endpoint's head moves"
                );
            }
            self.roster().settle_for(head.index);
            return Ok(head);
        }
        Err(failure
            .unwrap_or_else(|| no_answer(doing, &self.urls.join(", "), None))
            .during(doing))
    }

    /// Waits for a read at `head`'s endpoint, at most for the read limit, and names its failure.
    pub(crate) async fn read<T, E: LibraryError>(
        &self,
        head: &ChainHead,
        doing: &'static str,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ChainError> {
        let url = self.url(head.index);
        let done = match timeout(self.timeouts.read, future).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => name_failure(doing, url, error),
            Err(_) => no_answer(doing, url, None),
        };
        if done.is_unreachable() {
            self.report_lost(head.index).await;
        }
        Err(done)
    }

    /// Runs `ask` at one endpoint after the other until one answers.
    pub(crate) async fn ask<T, F: Future<Output = Result<T, ChainError>>>(
        &self,
        doing: &'static str,
        ask: impl Fn(ChainHead) -> F,
    ) -> Result<T, ChainError> {
        for _ in 1..self.urls.len() {
            match ask(self.head(doing).await?).await {
                Err(error) if error.is_unreachable() => {
                    tracing::warn!(error = %muster_process::error::Causes(&error), "asking another endpoint");
                }
                done => return done,
            }
        }
        ask(self.head(doing).await?).await
    }

    /// Notes that the endpoint did not answer: its connection is not used again.
    pub(crate) async fn report_lost(&self, index: usize) {
        if let Some(link) = self.links.get(index) {
            *link.lock().await = None;
        }
        self.roster()
            .record_failure(index, self.clock.now(), random_jitter());
    }

    async fn head_of(
        &self,
        index: usize,
        doing: &'static str,
    ) -> Result<(ChainHead, EndpointHealth), ChainError> {
        let link = self.link(index).await?;
        let url = self.url(index);
        let at = match timeout(self.timeouts.read, link.api.at_current_block()).await {
            Ok(Ok(at)) => at,
            Ok(Err(error)) => {
                let error = name_failure(doing, url, error);
                self.report_lost(index).await;
                return Err(error);
            }
            Err(_) => {
                self.report_lost(index).await;
                return Err(no_answer(doing, url, None));
            }
        };
        let now = self.clock.now();
        let health = self.roster().record_answer(index, at.block_number(), now);
        Ok((ChainHead { at, link, index }, health))
    }

    /// The connection to an endpoint, made if there is none. The wait between two tries is kept if it is short.
    async fn link(&self, index: usize) -> Result<Link, ChainError> {
        let (Some(slot), Some(url)) = (self.links.get(index), self.urls.get(index)) else {
            return Err(no_answer("choose an endpoint", "", None));
        };
        let mut slot = slot.lock().await;
        if let Some(link) = &*slot {
            return Ok(link.clone());
        }
        let wait = self.roster().wait_before_dial(index, self.clock.now());
        if let Some(wait) = wait {
            self.clock.sleep(wait.min(self.timeouts.read)).await;
        }
        match Link::dial(url, self.timeouts.read, self.genesis.get().copied()).await {
            Ok(link) => {
                // Two first dials at the same time may find two chains: the first one decides.
                let genesis = *self.genesis.get_or_init(|| link.api.genesis_hash());
                if genesis != link.api.genesis_hash() {
                    return Err(self.refuse(index, url, genesis, link.api.genesis_hash()));
                }
                *slot = Some(link.clone());
                Ok(link)
            }
            Err(error @ ChainError::WrongChain { .. }) => {
                tracing::error!(%error, "an endpoint is not used");
                self.roster().record_foreign_chain(index, self.clock.now());
                Err(error)
            }
            Err(error) => {
                self.roster()
                    .record_failure(index, self.clock.now(), random_jitter());
                Err(error)
            }
        }
    }

    fn refuse(&self, index: usize, url: &str, expected: H256, found: H256) -> ChainError {
        self.roster().record_foreign_chain(index, self.clock.now());
        ChainError::WrongChain {
            url: url.to_owned(),
            expected: format!("{expected:?}"),
            found: format!("{found:?}"),
        }
    }

    /// Waits a moment in which a block may come.
    pub(crate) async fn pause(&self) {
        const MOMENT: Duration = Duration::from_millis(500);
        self.clock.sleep(MOMENT.min(self.timeouts.read)).await;
    }

    fn roster(&self) -> parking_lot::MutexGuard<'_, EndpointRoster> {
        self.roster.lock()
    }
}
