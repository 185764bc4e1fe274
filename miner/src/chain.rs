//! The miner's use of the chain: it announces the miner's address once, and keeps the list of served validators fresh.
//! The miner serves validators with a permit in the metagraph, and those that the configuration lists.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_chain::{ChainClient, ChainError, ChainTimeouts, Metagraph, Netuid};
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

/// A task that follows the chain.
pub struct ChainFollower {
    /// The endpoints, the preferred one first.
    pub urls: Vec<String>,
    /// The number of the subnet.
    pub netuid: Netuid,
    /// How often the metagraph is read again.
    pub refresh: Duration,
    /// Signs the announcement.
    pub key: Keypair,
    /// The address announced.
    pub address: SocketAddr,
    /// Gets each metagraph.
    pub served: ServedValidators,
    /// The source of time for waits between tries.
    pub clock: SharedClock,
}

impl ChainFollower {
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
                ChainClient::connect_any(&self.urls, ChainTimeouts::default(), Arc::clone(&self.clock))
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

/// Whether the miner serves a validator, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValidatorAdmission {
    /// Listed, or registered with a permit.
    Served,
    /// Registered, and without a permit.
    Inactive,
    /// Neither in the metagraph nor listed.
    Unknown,
    /// Excluded by the operator.
    Blacklisted,
}

/// The list, shared: refreshed by one task, read by every session. The last good metagraph stays in force while the
/// chain is away.
#[derive(Clone, Debug, Default)]
pub struct ServedValidators {
    listed: Arc<HashSet<ValidatorKey>>,
    blacklist: Arc<HashSet<ValidatorKey>>,
    metagraph: Arc<RwLock<HashMap<ValidatorKey, bool>>>,
}

impl ServedValidators {
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

    /// Whether the miner serves `validator` now.
    pub fn admission(&self, validator: ValidatorKey) -> ValidatorAdmission {
        if self.blacklist.contains(&validator) {
            return ValidatorAdmission::Blacklisted;
        }
        if self.listed.contains(&validator) {
            return ValidatorAdmission::Served;
        }
        // The map is whole between any two statements, so a panic elsewhere cannot have spoilt it.
        let metagraph = self.metagraph.read();
        match metagraph.get(&validator) {
            Some(true) => ValidatorAdmission::Served,
            Some(false) => ValidatorAdmission::Inactive,
            None => ValidatorAdmission::Unknown,
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
        let served = ServedValidators::new([key(1)], [key(4)]);
        assert_eq!(served.admission(key(1)), ValidatorAdmission::Served);
        assert_eq!(served.admission(key(2)), ValidatorAdmission::Unknown);
        served.refresh([(key(1), false), (key(2), true), (key(3), false), (key(4), true)]);
        assert_eq!(
            [1, 2, 3, 4, 5].map(|n| served.admission(key(n))),
            [
                ValidatorAdmission::Served,
                ValidatorAdmission::Served,
                ValidatorAdmission::Inactive,
                ValidatorAdmission::Blacklisted,
                ValidatorAdmission::Unknown
            ]
        );
        served.refresh([]);
        assert_eq!(served.admission(key(2)), ValidatorAdmission::Unknown);
    }
}
