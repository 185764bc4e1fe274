//! The endpoints of one chain: every question goes to one that answers, whose head moves, and that serves this chain.
//!
//! Each operation begins with the last finalised block of one endpoint and stays with that endpoint, so that what belongs
//! together is read from one place; if the endpoint fails on the way, the operation begins again at the next.

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

use crate::error::ChainError;
use crate::failure::{Failure, named, silent};
use crate::link::{Link, check_address};
use crate::roster::{Health, Roster};

/// How long is waited for the chain. What is not there by then has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For an answer of one endpoint, connecting included.
    pub read: Duration,
    /// For a call to be final. On the public network that takes three or four blocks of 12 seconds.
    pub finality: Duration,
    /// For the finalised head to move before another endpoint is preferred.
    pub stall: Duration,
}

impl Default for Patience {
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
pub(crate) struct Head {
    pub(crate) at: AtBlock,
    pub(crate) link: Link,
    pub(crate) place: usize,
}

/// All endpoints of one chain.
#[derive(Debug)]
pub(crate) struct Endpoint {
    urls: Vec<String>,
    pub(crate) patience: Patience,
    clock: SharedClock,
    /// Which chain this is, once an endpoint has said so. No other is talked to after that.
    genesis: OnceLock<H256>,
    roster: Lock<Roster>,
    /// Who dials holds the lock, so that a hundred questions cause one connection.
    links: Vec<Mutex<Option<Link>>>,
}

impl Endpoint {
    pub(crate) async fn connect(
        urls: &[String],
        patience: Patience,
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
            patience,
            clock,
            genesis: OnceLock::new(),
            roster: Lock::new(Roster::new(urls.len(), patience.stall)),
            links: urls.iter().map(|_| Mutex::default()).collect(),
        };
        endpoint.head("connect to the chain").await?;
        Ok(endpoint)
    }

    /// The hash of the chain's first block.
    pub(crate) fn genesis(&self) -> H256 {
        self.genesis.get().copied().unwrap_or_default()
    }

    /// The address of an endpoint.
    pub(crate) fn url(&self, place: usize) -> &str {
        self.urls.get(place).map_or("", String::as_str)
    }

    /// Whether there is another endpoint to turn to.
    pub(crate) fn alone(&self) -> bool {
        self.urls.len() < 2
    }

    /// The last finalised block of the endpoint that is to be asked, connecting where that is needed.
    pub(crate) async fn head(&self, doing: &'static str) -> Result<Head, ChainError> {
        let order = self.roster().order(self.clock.now());
        let mut failure = None;
        let mut stalled: Option<Head> = None;
        for place in order {
            // One that was lost just now may be back: a second try dials anew, with its wait before it.
            for _ in 0..2 {
                match self.head_of(place, doing).await {
                    Ok((head, Health::Good)) => return Ok(head),
                    Ok((head, Health::Stalled)) => {
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
                        // What a chain of another kind says is worth more to an operator than a silence.
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
            if !self.alone() {
                tracing::warn!(
                    url = self.url(head.place),
                    block = head.at.block_number(),
                    "no endpoint's head moves"
                );
            }
            self.roster().settle_for(head.place);
            return Ok(head);
        }
        Err(failure
            .unwrap_or_else(|| silent(doing, &self.urls.join(", "), None))
            .at(doing))
    }

    /// Waits for a read at `head`'s endpoint, at most for the read limit, and names its failure.
    pub(crate) async fn read<T, E: Failure>(
        &self,
        head: &Head,
        doing: &'static str,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ChainError> {
        let url = self.url(head.place);
        let done = match timeout(self.patience.read, future).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => named(doing, url, error),
            Err(_) => silent(doing, url, None),
        };
        if done.is_unreachable() {
            self.lost(head.place).await;
        }
        Err(done)
    }

    /// Asks what `ask` asks, at one endpoint after the other until one answers.
    pub(crate) async fn ask<T, F: Future<Output = Result<T, ChainError>>>(
        &self,
        doing: &'static str,
        ask: impl Fn(Head) -> F,
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

    /// The endpoint did not answer: its connection is not used again.
    pub(crate) async fn lost(&self, place: usize) {
        if let Some(link) = self.links.get(place) {
            *link.lock().await = None;
        }
        self.roster().failed(place, self.clock.now(), random_jitter());
    }

    async fn head_of(&self, place: usize, doing: &'static str) -> Result<(Head, Health), ChainError> {
        let link = self.link(place).await?;
        let url = self.url(place);
        let at = match timeout(self.patience.read, link.api.at_current_block()).await {
            Ok(Ok(at)) => at,
            Ok(Err(error)) => {
                let error = named(doing, url, error);
                self.lost(place).await;
                return Err(error);
            }
            Err(_) => {
                self.lost(place).await;
                return Err(silent(doing, url, None));
            }
        };
        let now = self.clock.now();
        let health = self.roster().answered(place, at.block_number(), now);
        Ok((Head { at, link, place }, health))
    }

    /// The connection to an endpoint, made if there is none. A wait between two tries is kept, if it is short.
    async fn link(&self, place: usize) -> Result<Link, ChainError> {
        let (Some(slot), Some(url)) = (self.links.get(place), self.urls.get(place)) else {
            return Err(silent("choose an endpoint", "", None));
        };
        let mut slot = slot.lock().await;
        if let Some(link) = &*slot {
            return Ok(link.clone());
        }
        let wait = self.roster().waits(place, self.clock.now());
        if let Some(wait) = wait {
            self.clock.sleep(wait.min(self.patience.read)).await;
        }
        match Link::dial(url, self.patience.read, self.genesis.get().copied()).await {
            Ok(link) => {
                // Two that dial for the first time at once may find two chains: the first decides.
                let genesis = *self.genesis.get_or_init(|| link.api.genesis_hash());
                if genesis != link.api.genesis_hash() {
                    return Err(self.refuse(place, url, genesis, link.api.genesis_hash()));
                }
                *slot = Some(link.clone());
                Ok(link)
            }
            Err(error @ ChainError::WrongChain { .. }) => {
                tracing::error!(%error, "an endpoint is not used");
                self.roster().foreign(place, self.clock.now());
                Err(error)
            }
            Err(error) => {
                self.roster().failed(place, self.clock.now(), random_jitter());
                Err(error)
            }
        }
    }

    fn refuse(&self, place: usize, url: &str, expected: H256, found: H256) -> ChainError {
        self.roster().foreign(place, self.clock.now());
        ChainError::WrongChain {
            url: url.to_owned(),
            expected: format!("{expected:?}"),
            found: format!("{found:?}"),
        }
    }

    /// Lets a moment pass, in which a block may come.
    pub(crate) async fn pause(&self) {
        const MOMENT: Duration = Duration::from_millis(500);
        self.clock.sleep(MOMENT.min(self.patience.read)).await;
    }

    fn roster(&self) -> parking_lot::MutexGuard<'_, Roster> {
        self.roster.lock()
    }
}
