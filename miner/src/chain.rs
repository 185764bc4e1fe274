//! The miner's use of the chain: it announces the miner's address once, and keeps the list of served validators fresh.
//! The miner serves validators with a permit in the metagraph, and those that the configuration lists.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_audit_check::AuditCheck;
use muster_chain::{ChainClient, ChainError, ChainTimeouts, Metagraph, Netuid, Neuron};
use muster_identity::Keypair;
use muster_process::backoff::random_jitter;
use muster_process::error::Causes;
use muster_process::{Backoff, SharedClock};
use muster_protocol::{Digest, Hotkey, Manifest, MinerKey, Timestamp, ValidatorKey};
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::lease_table::Event;
use crate::operator::OperatorBoard;
use crate::published_grades::GradeReader;
use crate::session_queues::Inbox;
use crate::validator_shares::shares::ValidatorStakes;

/// The least time between two statements of the executors on the chain.
const COMMIT_EVERY: Duration = Duration::from_secs(20 * 60);
/// How a chain that does not answer is tried again.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(60),
};

/// The facts that a miner states about itself on the chain.
#[derive(Clone, Debug)]
pub struct MinerStatement {
    /// The address of its port.
    pub address: SocketAddr,
    /// The certificate there, which may be rotated; `None` if the port speaks no TLS.
    pub certificate: Option<watch::Receiver<Digest>>,
    /// Its executors, whose number may change.
    pub manifest: watch::Receiver<Manifest>,
}

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
    /// The facts that the miner states about itself.
    pub statement: MinerStatement,
    /// Gets each metagraph.
    pub served: ServedValidators,
    /// The dispatcher, which is notified of the served validators.
    pub inbox: Inbox,
    /// The source of time for waits between tries.
    pub clock: SharedClock,
    /// Receives the newest block; `None` if this miner compares nothing.
    pub(crate) audit_check: Option<AuditCheck>,
    /// Reads what validators state about this miner, for the board of its operator; `None` if nobody looks at it.
    pub(crate) grades: Option<(GradeReader, Arc<OperatorBoard>)>,
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
        tokio::join!(
            self.announce(&client),
            self.refresh(&client),
            self.read_grades(&client)
        );
    }

    async fn read_grades(&self, client: &Arc<ChainClient>) {
        if let Some((reader, board)) = &self.grades {
            reader.follow(client, board.grades(), || self.served.all()).await;
        }
    }

    async fn announce(&self, client: &Arc<ChainClient>) {
        let MinerStatement {
            address,
            mut certificate,
            mut manifest,
        } = self.statement.clone();
        // One after the other: two calls of one key at the same time take the same number.
        loop {
            let digest = certificate.as_mut().map(|seen| *seen.borrow_and_update());
            let serve = || client.serve_axon_tls(&self.key, self.netuid, address, digest);
            self.until_done("announce the address", serve).await;
            let certificate_shown = digest.map(tracing::field::display);
            tracing::info!(%address, certificate = certificate_shown, netuid = %self.netuid, "the address is on the chain");
            let stated = manifest.borrow_and_update().clone();
            let is_stated = self.commit_manifest(client, &stated).await;
            let rotated = async {
                let is_rotated = match &mut certificate {
                    Some(seen) => seen.changed().await.is_ok(),
                    None => false,
                };
                if !is_rotated {
                    // There is none, or the miner stops.
                    std::future::pending::<()>().await;
                }
            };
            let resized = async {
                // Executors come and go; the chain takes few statements.
                self.clock.sleep(COMMIT_EVERY).await;
                if is_stated && manifest.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = rotated => {}
                () = resized => {}
            }
        }
    }

    /// States the executors on the chain; whether the chain has them. A miner serves well without it, so a failure is
    /// reported, and tried again when the next statement would be due.
    async fn commit_manifest(&self, client: &Arc<ChainClient>, manifest: &Manifest) -> bool {
        match client.commit_manifest(&self.key, self.netuid, manifest).await {
            Ok(_) => {
                tracing::info!(netuid = %self.netuid, "the executors are stated on the chain");
                true
            }
            Err(error) => {
                tracing::warn!(error = %Causes(&error), "the executors cannot be stated on the chain; it is tried again later");
                false
            }
        }
    }

    async fn refresh(&self, client: &Arc<ChainClient>) {
        loop {
            let metagraph = self
                .until_done("read the metagraph", || client.metagraph(self.netuid))
                .await;
            self.take(&metagraph);
            self.inbox.send(Event::Permitted(self.served.all())).await;
            self.clock.sleep(self.refresh).await;
        }
    }

    fn take(&self, metagraph: &Metagraph) {
        if let Some(audit_check) = &self.audit_check {
            audit_check.see_block(metagraph.block.0);
        }
        if metagraph.find(&self.key.hotkey()).is_none() {
            tracing::warn!(miner = %MinerKey(self.key.hotkey()), netuid = %self.netuid, "this miner is not registered");
        }
        self.served
            .refresh(registered_keys(&metagraph.neurons, self.key.hotkey()));
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

/// Every hotkey of a metagraph, as the miner with the hotkey `me` sees it.
fn registered_keys(
    neurons: &[Neuron],
    me: Hotkey,
) -> impl Iterator<Item = (ValidatorKey, RegisteredKey)> + '_ {
    let mine = neurons.iter().find(|neuron| neuron.hotkey == me);
    let owner = mine.map(|neuron| neuron.coldkey);
    neurons.iter().map(move |neuron| {
        let key = RegisteredKey {
            stake: neuron.permit.then_some(neuron.stake),
            is_own: neuron.hotkey == me || owner == Some(neuron.coldkey),
        };
        (ValidatorKey(neuron.hotkey), key)
    })
}

/// A hotkey, as the chain states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisteredKey {
    /// The stake in rao; `None` without a permit.
    pub stake: Option<u64>,
    /// Whether it is the miner's own, or another one of its owner.
    pub is_own: bool,
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
#[derive(Clone, Debug)]
pub struct ServedValidators {
    listed: Arc<HashSet<ValidatorKey>>,
    blacklist: Arc<HashSet<ValidatorKey>>,
    /// Every registered hotkey.
    metagraph: Arc<RwLock<HashMap<ValidatorKey, RegisteredKey>>>,
    /// The newest greeting of each validator that has greeted this miner.
    greeted: Arc<RwLock<HashMap<ValidatorKey, Timestamp>>>,
    /// The time for which a validator is a rival of the others after a greeting.
    rivalry: Duration,
}

impl ServedValidators {
    /// Those of the configuration, without those that it excludes; the metagraph comes later. A validator is a rival
    /// of the others for `rivalry` after a greeting.
    pub fn new(
        listed: impl IntoIterator<Item = ValidatorKey>,
        blacklist: impl IntoIterator<Item = ValidatorKey>,
        rivalry: Duration,
    ) -> Self {
        Self {
            listed: Arc::new(listed.into_iter().collect()),
            blacklist: Arc::new(blacklist.into_iter().collect()),
            metagraph: Arc::default(),
            greeted: Arc::default(),
            rivalry,
        }
    }

    /// Notes that a validator has greeted this miner at `now`.
    pub fn note_greeted(&self, validator: ValidatorKey, now: Timestamp) {
        self.greeted.write().insert(validator, now);
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
            Some(key) if key.stake.is_some() => ValidatorAdmission::Served,
            Some(_) => ValidatorAdmission::Inactive,
            None => ValidatorAdmission::Unknown,
        }
    }

    /// All validators that the miner serves now.
    pub fn all(&self) -> BTreeSet<ValidatorKey> {
        let metagraph = self.metagraph.read();
        let permitted = metagraph
            .iter()
            .filter(|(_, key)| key.stake.is_some())
            .map(|(key, _)| key);
        let served = permitted.chain(self.listed.iter());
        served
            .filter(|key| !self.blacklist.contains(key))
            .copied()
            .collect()
    }

    /// The stake of `validator` at `now` beside those of its rivals: the others that the miner serves, that have
    /// greeted it lately, and that are not its owner's. A listed validator without a permit counts with no stake.
    pub fn stakes_of(&self, validator: ValidatorKey, now: Timestamp) -> ValidatorStakes {
        let (metagraph, greeted) = (self.metagraph.read(), self.greeted.read());
        let stake_of = |key: &ValidatorKey| metagraph.get(key).and_then(|key| key.stake);
        let is_own = |key: &ValidatorKey| metagraph.get(key).is_some_and(|key| key.is_own);
        let has_greeted =
            |key: &ValidatorKey| greeted.get(key).is_some_and(|at| now.since(*at) < self.rivalry);
        let permitted = metagraph
            .iter()
            .filter_map(|(key, registered)| registered.stake.map(|stake| (*key, stake)));
        let listed = self.listed.iter().filter(|key| stake_of(key).is_none());
        let rivals = permitted.chain(listed.map(|key| (*key, 0))).filter(|(key, _)| {
            *key != validator && !self.blacklist.contains(key) && !is_own(key) && has_greeted(key)
        });
        let mut stakes = ValidatorStakes {
            own: stake_of(&validator).unwrap_or_default(),
            ..ValidatorStakes::default()
        };
        for (_, stake) in rivals {
            stakes.others = stakes.others.saturating_add(u128::from(stake));
            stakes.rivals = stakes.rivals.saturating_add(1);
        }
        stakes
    }

    /// Takes the hotkeys of a fresh metagraph.
    pub fn refresh(&self, hotkeys: impl IntoIterator<Item = (ValidatorKey, RegisteredKey)>) {
        let fresh = hotkeys.into_iter().collect();
        *self.metagraph.write() = fresh;
    }
}

#[cfg(test)]
mod tests {
    use muster_chain::Uid;
    use muster_protocol::BlockNumber;

    use super::*;

    const RIVALRY: Duration = Duration::from_secs(7 * 24 * 3_600);

    fn key(n: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([n; 32]))
    }

    /// A hotkey of another owner.
    fn registered(n: u8, stake: Option<u64>) -> (ValidatorKey, RegisteredKey) {
        (key(n), RegisteredKey { stake, is_own: false })
    }

    #[test]
    fn listed_or_permitted() {
        let served = ServedValidators::new([key(1)], [key(4)], RIVALRY);
        assert_eq!(served.admission(key(1)), ValidatorAdmission::Served);
        assert_eq!(served.admission(key(2)), ValidatorAdmission::Unknown);
        served.refresh([
            registered(1, None),
            registered(2, Some(5)),
            registered(3, None),
            registered(4, Some(7)),
        ]);
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
        assert_eq!(served.all(), BTreeSet::from([key(1), key(2)]));
        served.refresh([]);
        assert_eq!(served.all(), BTreeSet::from([key(1)]));
        assert_eq!(served.admission(key(2)), ValidatorAdmission::Unknown);
    }

    fn stakes(own: u64, others: u128, rivals: u32) -> ValidatorStakes {
        ValidatorStakes { own, others, rivals }
    }

    #[test]
    fn rivals_are_the_others_that_are_served_and_have_greeted() {
        let now = Timestamp::from_secs(1_800_000_000);
        let served = ServedValidators::new([key(1), key(4)], [key(4)], RIVALRY);
        let hotkeys = [
            registered(2, Some(5)),
            registered(3, None),
            registered(4, Some(7)),
            registered(5, Some(2)),
        ];
        served.refresh(hotkeys);
        assert_eq!(
            served.stakes_of(key(2), now),
            stakes(5, 0, 0),
            "a validator that never comes takes nothing from the others"
        );
        for n in 1..=5 {
            served.note_greeted(key(n), now);
        }
        assert_eq!(served.stakes_of(key(2), now), stakes(5, 2, 2));
        assert_eq!(served.stakes_of(key(1), now), stakes(0, 7, 2));
        assert_eq!(served.stakes_of(key(5), now), stakes(2, 5, 2));
        let later = now.plus(RIVALRY);
        served.note_greeted(key(5), later);
        assert_eq!(
            served.stakes_of(key(2), later),
            stakes(5, 2, 1),
            "a greeting is forgotten"
        );
        served.refresh([registered(1, Some(9))]);
        assert_eq!(served.stakes_of(key(1), now), stakes(9, 0, 0));
    }

    #[test]
    fn the_keys_of_the_miners_owner_are_nobodys_rivals() {
        let now = Timestamp::from_secs(1_800_000_000);
        let served = ServedValidators::new([], [], RIVALRY);
        let neuron = |n: u8, owner: u8, stake| Neuron {
            uid: Uid(u16::from(n)),
            hotkey: key(n).0,
            coldkey: Hotkey::from_bytes([owner; 32]),
            axon: None,
            stake,
            permit: true,
            active: true,
            registered: BlockNumber(0),
            last_update: BlockNumber(0),
            incentive: 0,
        };
        let neurons = [
            neuron(1, 101, 8),
            neuron(2, 101, 4),
            neuron(3, 103, 2),
            neuron(4, 104, 1),
        ];
        served.refresh(registered_keys(&neurons, key(1).0));
        for n in 1..=4 {
            served.note_greeted(key(n), now);
        }
        assert_eq!(served.stakes_of(key(3), now), stakes(2, 1, 1));
        assert_eq!(
            served.stakes_of(key(2), now),
            stakes(4, 3, 2),
            "the owner's own validator has rivals"
        );
    }
}
