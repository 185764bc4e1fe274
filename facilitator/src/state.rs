//! What every request and every session shares, and the few actions that both ends take.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_facilitator_core::account::{Account, Credential};
use muster_facilitator_core::auth::Issuer;
use muster_facilitator_core::delivery::Presence;
use muster_facilitator_core::rate::Buckets;
use muster_facilitator_core::signature::Freshness;
use muster_file_store::FileService;
use muster_gateway_client::GatewayClient;
use muster_identity::Keypair;
use muster_process::store::StoreError;
use muster_process::{SharedClock, Tasks};
use muster_protocol::{Digest, Timestamp, UserKey, ValidatorKey};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::background::Background;
use crate::config::{Config, LiveConfig};
use crate::hub::{Hub, Notice, Watchers};
use crate::roll::Roll;
use crate::store::{Actor, Quota, Store};

/// How many connections may be between their upgrade and their authentication. Each is given seconds and 64 KiB.
const MAX_STRANGERS: usize = 128;

/// The facilitator, as its requests see it.
pub(crate) struct Door {
    pub(crate) store: Store,
    pub(crate) files: Arc<FileService>,
    pub(crate) issuer: Issuer,
    /// Our own key, which signs for those who have none.
    pub(crate) keypair: Keypair,
    pub(crate) hub: Arc<Hub>,
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) roll: Roll,
    /// The way to validators' gateways.
    pub(crate) way: GatewayClient,
    /// Tokens that an account may have a day; `None` for no limit.
    pub(crate) daily_tokens: Option<u64>,
    /// What the names are made with under which gateways know our accounts.
    client_secret: Vec<u8>,
    /// Places for connections that have not authenticated.
    pub(crate) strangers: Arc<Semaphore>,
    pub(crate) paces: Paces,
    pub(crate) watching: Places,
    pub(crate) background: Background,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    pub(crate) freshness: Freshness,
    pub(crate) quota: Quota,
    pub(crate) live: LiveConfig,
    /// After this long a job ends that nobody has taken.
    pub(crate) unanswered: Option<Duration>,
    pub(crate) public_url: String,
    users: Option<BTreeSet<UserKey>>,
    administrators: BTreeSet<UserKey>,
}

/// What a [`Door`] is made of besides its configuration.
pub(crate) struct Parts {
    pub(crate) store: Store,
    pub(crate) files: Arc<FileService>,
    pub(crate) issuer: Issuer,
    pub(crate) keypair: Keypair,
    pub(crate) way: GatewayClient,
    pub(crate) client_secret: Vec<u8>,
    pub(crate) background: Background,
    pub(crate) tasks: Tasks,
    pub(crate) clock: SharedClock,
}

/// How often accounts and addresses may ask.
pub(crate) struct Paces {
    accounts: Mutex<Buckets<Account>>,
    addresses: Mutex<Buckets<IpAddr>>,
}

/// How many streams of events each account has open.
#[derive(Clone)]
pub(crate) struct Places {
    most: usize,
    taken: Arc<Mutex<HashMap<Account, usize>>>,
}

/// One open stream; its place is free when this is dropped.
pub(crate) struct Watching {
    places: Places,
    account: Account,
}

// === impl Door ===

impl Door {
    pub(crate) fn new(config: &Config, parts: Parts) -> Self {
        let public_url = config.public_url.as_deref().unwrap_or_default();
        let limits = &config.limits;
        Self {
            store: parts.store,
            files: parts.files,
            issuer: parts.issuer,
            keypair: parts.keypair,
            hub: Arc::default(),
            watchers: Arc::default(),
            roll: Roll::new(config.validators.iter().copied()),
            way: parts.way,
            daily_tokens: (limits.daily_tokens > 0).then_some(limits.daily_tokens),
            client_secret: parts.client_secret,
            strangers: Arc::new(Semaphore::new(MAX_STRANGERS)),
            paces: Paces {
                accounts: Mutex::new(Buckets::new(limits.requests_per_minute)),
                addresses: Mutex::new(Buckets::new(limits.strangers_per_minute)),
            },
            watching: Places {
                most: if limits.watchers == 0 {
                    usize::MAX
                } else {
                    limits.watchers
                },
                taken: Arc::default(),
            },
            background: parts.background,
            clock: parts.clock,
            tasks: parts.tasks,
            freshness: config.auth.freshness(),
            quota: limits.quota(),
            live: config.live,
            unanswered: (limits.unanswered_s > 0).then(|| Duration::from_secs(limits.unanswered_s)),
            public_url: public_url.trim_end_matches('/').to_owned(),
            users: config.users.clone().map(BTreeSet::from_iter),
            administrators: config.administrators.iter().copied().collect(),
        }
    }

    /// Whether this account may be served. An account without a hotkey exists because an administrator made it.
    pub(crate) fn admits(&self, account: &Account) -> bool {
        match account {
            Account::Named(_) => true,
            Account::Hotkey(user) => {
                let listed = self.users.as_ref().is_none_or(|users| users.contains(user));
                listed || self.administrators.contains(user)
            }
        }
    }

    /// Whether this is an administrator, who has shown their own hotkey.
    pub(crate) fn administers(&self, actor: &Actor) -> bool {
        match (&actor.account, &actor.credential) {
            (Account::Hotkey(user), Credential::Hotkey) => self.administrators.contains(user),
            (Account::Hotkey(_) | Account::Named(_), Credential::Hotkey | Credential::ApiKey(_)) => false,
        }
    }

    /// Whether a job may be given to this validator: it is served, and it has been heard of lately.
    ///
    /// One that is just restarting still counts; its job waits for it.
    pub(crate) async fn selects(&self, validator: ValidatorKey) -> Result<bool, StoreError> {
        if !self.roll.admits(validator) {
            return Ok(false);
        }
        let now = self.clock.now();
        let selectable = |seen| Presence::of(seen, now) == Presence::Selectable;
        // Whoever is connected here need not be looked up.
        if self.hub.heard_at(validator, now).is_some_and(selectable) {
            return Ok(true);
        }
        let known = self.store.known(validator).await?;
        Ok(known.is_some_and(|known| selectable(known.seen)))
    }

    /// The name under which gateways know an account. It says nothing to who has not our secret.
    pub(crate) fn pseudonym(&self, account: &Account) -> Digest {
        let mut named = self.client_secret.clone();
        named.extend_from_slice(account.to_string().as_bytes());
        Digest::of(&named)
    }

    /// Unix nanoseconds.
    pub(crate) fn now_ns(&self) -> i64 {
        self.clock.now().micros().saturating_mul(1000)
    }

    /// Something has changed in the store, by us: who waits for it is woken, here and elsewhere.
    pub(crate) fn announce(&self, notice: Notice) {
        self.notice(notice);
        if self.store.is_shared() {
            self.background.tell(notice);
        }
    }

    /// Something has changed in the store: who waits for it here is woken.
    pub(crate) fn notice(&self, notice: Notice) {
        match notice {
            Notice::Deliver(validator, job) => self.hub.deliver(validator, job),
            Notice::Cancel(validator, job) => self.hub.cancel(validator, job),
            Notice::Look(validator) => self.hub.ring(validator),
            Notice::Changed(job) => self.watchers.changed(job),
        }
    }

    /// Anything may have changed.
    pub(crate) fn everything_changed(&self) {
        self.hub.ring_all();
        self.watchers.all_changed();
    }
}

// === impl Paces, Places, Watching ===

impl Paces {
    /// Takes in one request of an account, or says how long it has to wait.
    pub(crate) fn caller(&self, account: &Account, now: Timestamp) -> Result<(), Duration> {
        let mut accounts = self.accounts.lock();
        accounts.take(account.clone(), now)
    }

    /// Takes in one request from an address, or says how long it has to wait.
    pub(crate) fn stranger(&self, address: IpAddr, now: Timestamp) -> Result<(), Duration> {
        let mut addresses = self.addresses.lock();
        addresses.take(address, now)
    }
}

impl Places {
    /// A place for one more stream, if the account has one left.
    pub(crate) fn enter(&self, account: &Account) -> Option<Watching> {
        let mut taken = self.taken.lock();
        let count = taken.entry(account.clone()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Watching {
            places: self.clone(),
            account: account.clone(),
        })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if let Some(count) = taken.get_mut(&self.account) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                taken.remove(&self.account);
            }
        }
    }
}
