//! What the miner does with the chain: announces its address once, and keeps the list of validators fresh.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_chain::{ChainClient, ChainError, Metagraph, Netuid};
use muster_identity::Keypair;
use muster_kit::backoff::random_jitter;
use muster_kit::error::Causes;
use muster_kit::{Backoff, SharedClock};
use muster_protocol::{MinerKey, ValidatorKey};
use tokio_util::sync::CancellationToken;

use crate::served::Served;

/// How a chain that does not answer is tried again.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(60),
};

/// What is needed to follow the chain.
pub struct Follower {
    /// The endpoint.
    pub url: String,
    /// The subnet.
    pub netuid: Netuid,
    /// How often the metagraph is read again.
    pub refresh: Duration,
    /// Signs the announcement.
    pub key: Keypair,
    /// The address announced.
    pub address: SocketAddr,
    /// Gets each metagraph.
    pub served: Served,
    /// Whose time it is.
    pub clock: SharedClock,
}

impl Follower {
    /// Follows the chain until `stop` is cancelled. A chain that is away is tried again for ever: jobs under way do not
    /// need it, and the last good metagraph stays in force.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = self.follow() => {}
            () = stop.cancelled() => {}
        }
    }

    async fn follow(&self) {
        let client = self
            .until_done("connect", || ChainClient::connect(&self.url))
            .await;
        tokio::join!(self.announce(&client), self.refresh(&client));
    }

    async fn announce(&self, client: &Arc<ChainClient>) {
        let serve = || client.serve_axon(&self.key, self.netuid, self.address);
        self.until_done("announce the address", serve).await;
        tracing::info!(address = %self.address, netuid = %self.netuid, "the address is on the chain");
    }

    async fn refresh(&self, client: &Arc<ChainClient>) {
        loop {
            let metagraph = self
                .until_done("read the metagraph", || client.metagraph(self.netuid))
                .await;
            self.take(&metagraph);
            self.clock.sleep(self.refresh).await;
        }
    }

    fn take(&self, metagraph: &Metagraph) {
        if metagraph.find(&self.key.hotkey()).is_none() {
            tracing::warn!(miner = %MinerKey(self.key.hotkey()), netuid = %self.netuid, "this miner is not registered");
        }
        self.served.refresh(
            metagraph
                .neurons
                .iter()
                .map(|neuron| (ValidatorKey(neuron.hotkey), neuron.permit)),
        );
    }

    async fn until_done<T, F>(&self, doing: &'static str, mut attempt: impl FnMut() -> F) -> T
    where
        F: Future<Output = Result<T, ChainError>>,
    {
        let mut failures = 0;
        loop {
            match attempt().await {
                Ok(done) => return done,
                Err(error) => {
                    let code = error.code().map(|code| code.code()).unwrap_or_default();
                    tracing::warn!(code, error = %Causes(&error), "chain: cannot {doing}; trying again");
                    self.clock.sleep(RETRY.delay(failures, random_jitter())).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }
}
