//! Which validators are served: those of the metagraph with a permit, and those the configuration lists. And what the
//! miner does with the chain: announces its address once, and keeps that list fresh.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_chain::{ChainClient, ChainError, Metagraph, Netuid, Patience};
use muster_identity::Keypair;
use muster_process::backoff::random_jitter;
use muster_process::error::Causes;
use muster_process::{Backoff, SharedClock};
use muster_protocol::{MinerKey, ValidatorKey};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

/// How a chain that does not answer is tried again.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(60),
};

/// What is needed to follow the chain.
pub struct Follower {
    /// The endpoints, the preferred one first.
    pub urls: Vec<String>,
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
            .until_done("connect", || {
                ChainClient::connect_any(&self.urls, Patience::default(), Arc::clone(&self.clock))
            })
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

/// How the miner stands to a validator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may come in.
    Served,
    /// Registered, and without a permit.
    Inactive,
    /// Never heard of.
    Unknown,
    /// The operator wants nothing to do with it.
    Blacklisted,
}

/// The list, shared: refreshed by one task, read by every session. The last good metagraph stays in force while the
/// chain is away.
#[derive(Clone, Debug, Default)]
pub struct Served {
    listed: Arc<HashSet<ValidatorKey>>,
    blacklist: Arc<HashSet<ValidatorKey>>,
    metagraph: Arc<RwLock<HashMap<ValidatorKey, bool>>>,
}

impl Served {
    /// Those of the configuration, without those that it excludes; the metagraph comes later.
    pub fn new(
        listed: impl IntoIterator<Item = ValidatorKey>,
        blacklist: impl IntoIterator<Item = ValidatorKey>,
    ) -> Self {
        Self {
            listed: Arc::new(listed.into_iter().collect()),
            blacklist: Arc::new(blacklist.into_iter().collect()),
            metagraph: Arc::default(),
        }
    }

    /// How the miner stands to `validator` now.
    pub fn standing(&self, validator: ValidatorKey) -> Standing {
        if self.blacklist.contains(&validator) {
            return Standing::Blacklisted;
        }
        if self.listed.contains(&validator) {
            return Standing::Served;
        }
        // The map is whole between any two statements, so a panic elsewhere cannot have spoilt it.
        let metagraph = self.metagraph.read();
        match metagraph.get(&validator) {
            Some(true) => Standing::Served,
            Some(false) => Standing::Inactive,
            None => Standing::Unknown,
        }
    }

    /// Takes a fresh metagraph: hotkeys, each with whether it has a permit.
    pub fn refresh(&self, hotkeys: impl IntoIterator<Item = (ValidatorKey, bool)>) {
        let fresh = hotkeys.into_iter().collect();
        *self.metagraph.write() = fresh;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::Hotkey;

    #[test]
    fn listed_or_permitted() {
        let key = |n| ValidatorKey(Hotkey::from_bytes([n; 32]));
        let served = Served::new([key(1)], [key(4)]);
        assert_eq!(served.standing(key(1)), Standing::Served);
        assert_eq!(served.standing(key(2)), Standing::Unknown);
        served.refresh([(key(1), false), (key(2), true), (key(3), false), (key(4), true)]);
        assert_eq!(
            [1, 2, 3, 4, 5].map(|n| served.standing(key(n))),
            [
                Standing::Served,
                Standing::Served,
                Standing::Inactive,
                Standing::Blacklisted,
                Standing::Unknown
            ]
        );
        served.refresh([]);
        assert_eq!(served.standing(key(2)), Standing::Unknown);
    }
}
