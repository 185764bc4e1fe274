//! The gateways that can be asked now: announced by validators, checked once, and put into the order of the operator.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_facilitator_core::connections::Presence;
use muster_facilitator_core::gateway_choice::{
    AnnouncedGateway, GatewayCandidate, GatewayHealth, GatewayPreference, bound_notice,
};
use muster_gateway_client::GatewayTarget;
use muster_http::addresses::AddressRules;
use muster_process::SharedClock;
use muster_protocol::wire::muster::GatewayNotice;
use muster_protocol::{Timestamp, ValidatorKey};
use muster_store::StoreError;
use parking_lot::Mutex;

use crate::allowlist::Allowlist;
use muster_facilitator_store::Store;

/// A checked gateway, and the time of the announcement that it was read from. `None` stands for an announcement that
/// cannot be used.
type ReadGateway = (Timestamp, Option<Arc<AnnouncedGateway>>);

/// The announced gateways.
pub(crate) struct GatewayDirectory {
    store: Store,
    allowlist: Allowlist,
    preference: GatewayPreference,
    rules: AddressRules,
    health: Mutex<GatewayHealth>,
    /// Announcements are read once, and again when a validator makes a new one, here or at another facilitator.
    read: Mutex<BTreeMap<ValidatorKey, ReadGateway>>,
    clock: SharedClock,
}

/// A gateway that can be asked now.
#[derive(Clone, Debug)]
pub(crate) struct ReachableGateway {
    pub(crate) validator: ValidatorKey,
    pub(crate) announced: Arc<AnnouncedGateway>,
}

// === impl ReachableGateway ===

impl ReachableGateway {
    pub(crate) fn target(&self) -> GatewayTarget {
        GatewayTarget {
            validator: self.validator,
            origin: self.announced.origin.clone(),
        }
    }
}

// === impl GatewayDirectory ===

impl GatewayDirectory {
    pub(crate) fn new(
        store: Store,
        allowlist: Allowlist,
        preference: GatewayPreference,
        rules: AddressRules,
        clock: SharedClock,
    ) -> Self {
        Self {
            store,
            allowlist,
            preference,
            rules,
            health: Mutex::default(),
            read: Mutex::default(),
            clock,
        }
    }

    /// Stores what a validator announces, within its bounds. An address that must not be connected to counts as no
    /// gateway.
    pub(crate) async fn announce(
        &self,
        validator: ValidatorKey,
        notice: GatewayNotice,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let told = notice.models.len();
        let notice = bound_notice(notice);
        if notice.models.len() < told {
            let kept = notice.models.len();
            tracing::warn!(%validator, told, kept, "a validator announced more models than are kept");
        }
        let usable = match AnnouncedGateway::read(notice.clone(), &self.rules) {
            Ok(Some(gateway)) => {
                let (origin, models) = (&gateway.origin, gateway.models.len());
                tracing::info!(%validator, %origin, models, "a validator announced its gateway");
                Some(&notice)
            }
            Ok(None) => {
                tracing::info!(%validator, "a validator announced that it has no gateway");
                None
            }
            Err(error) => {
                let shown: String = notice.url.iter().flat_map(|url| url.chars()).take(200).collect();
                tracing::warn!(%validator, url = ?shown, %error,
                    "a validator's gateway is not asked; `gateways.allow` permits addresses that are not public");
                None
            }
        };
        self.store.announce_gateway(validator, usable, now).await
    }

    /// The gateways that can be asked now, in the order in which they are asked: that of `wanted`, or all of them.
    pub(crate) async fn reachable(
        &self,
        wanted: Option<ValidatorKey>,
    ) -> Result<Vec<ReachableGateway>, StoreError> {
        let now = self.clock.now();
        let mut candidates = Vec::new();
        let mut announced = BTreeMap::new();
        for record in self.store.gateways().await? {
            let validator = record.validator;
            let may_ask = wanted.is_none_or(|wanted| wanted == validator)
                && self.preference.admits(validator)
                && self.allowlist.admits(validator)
                && Presence::of(record.seen, now) == Presence::Selectable;
            if !may_ask {
                continue;
            }
            if let Some(gateway) = self.read_announcement(validator, record.announced_at).await? {
                candidates.push(GatewayCandidate {
                    validator,
                    stake: self.allowlist.stake(validator),
                    is_resting: self.health.lock().is_resting(validator, now),
                });
                announced.insert(validator, gateway);
            }
        }
        self.preference.sort(&mut candidates);
        let found = candidates.into_iter().filter_map(|candidate| {
            let announced = announced.remove(&candidate.validator)?;
            let validator = candidate.validator;
            Some(ReachableGateway { validator, announced })
        });
        Ok(found.collect())
    }

    /// The newest announcement, which was made at this time or later; `None` if it cannot be used.
    async fn read_announcement(
        &self,
        validator: ValidatorKey,
        announced_at: Timestamp,
    ) -> Result<Option<Arc<AnnouncedGateway>>, StoreError> {
        if let Some((known_at, gateway)) = self.read.lock().get(&validator)
            && *known_at == announced_at
        {
            return Ok(gateway.clone());
        }
        let stored = self.store.gateway_notice(validator).await?;
        // An older version stored announcements without a check.
        let (announced_at, gateway) = match stored {
            Some((at, notice)) => (at, AnnouncedGateway::read(notice, &self.rules).ok().flatten()),
            None => (announced_at, None),
        };
        let gateway = gateway.map(Arc::new);
        self.read
            .lock()
            .insert(validator, (announced_at, gateway.clone()));
        Ok(gateway)
    }

    /// Notes whether a gateway gave a response.
    pub(crate) fn note(&self, validator: ValidatorKey, responded: bool) {
        let now = self.clock.now();
        let mut health = self.health.lock();
        if responded {
            health.note_response(validator);
        } else {
            health.note_failure(validator, now);
        }
    }
}
