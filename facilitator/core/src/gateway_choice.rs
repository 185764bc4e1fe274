//! The gateways that validators announce: what is kept of a notice, and the order in which gateways are asked. Pure.
//!
//! A permitted validator may announce anything, as often as it likes. So a notice is bounded and its address checked
//! when it comes, and how often a validator announces itself does not affect the order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_http::addresses::AddressRules;
use muster_http::{Origin, OriginError};
use muster_protocol::wire::muster::{GatewayNotice, ServedModel};
use muster_protocol::{Timestamp, ValidatorKey};

/// The most models of one gateway that are kept.
pub const MAX_MODELS: usize = 256;
/// The longest id of a model that is kept, in bytes.
pub const MAX_MODEL_ID: usize = 200;
/// The time for which a gateway that failed is asked after the others.
const REST: Duration = Duration::from_secs(30);

/// A gateway whose notice has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedGateway {
    /// Where it answers.
    pub origin: Origin,
    /// The models that it serves, each once, in the order of the notice.
    pub models: Vec<ServedModel>,
}

/// A validator whose gateway may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayCandidate {
    /// The validator that runs the gateway.
    pub validator: ValidatorKey,
    /// The validator's stake as last read from the chain, in rao; 0 if it has none or is not known there.
    pub stake: u64,
    /// Whether the gateway failed lately.
    pub is_resting: bool,
}

/// The operator's choice of validators whose gateways are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayPreference {
    listed: Vec<ValidatorKey>,
}

/// The gateways that failed lately.
#[derive(Clone, Debug, Default)]
pub struct GatewayHealth {
    failed_at: BTreeMap<ValidatorKey, Timestamp>,
}

// === impl AnnouncedGateway ===

impl AnnouncedGateway {
    /// Reads a notice; `None` if it states that there is no gateway.
    ///
    /// # Errors
    /// The address is not a bare origin, or the rules do not permit it.
    pub fn read(notice: GatewayNotice, rules: &AddressRules) -> Result<Option<Self>, OriginError> {
        let Some(url) = &notice.url else {
            return Ok(None);
        };
        let origin = Origin::parse(url, rules)?;
        let models = bound_notice(notice).models;
        Ok(Some(Self { origin, models }))
    }

    /// Whether the gateway serves the model with this id.
    pub fn serves(&self, model: &str) -> bool {
        self.models.iter().any(|served| served.id == model)
    }
}

/// The notice with at most [`MAX_MODELS`] models, each once, whose ids are 1 to [`MAX_MODEL_ID`] bytes without control
/// characters.
pub fn bound_notice(mut notice: GatewayNotice) -> GatewayNotice {
    let mut seen = BTreeSet::new();
    notice.models.retain(|model| {
        (1..=MAX_MODEL_ID).contains(&model.id.len())
            && !model.id.chars().any(char::is_control)
            && seen.insert(model.id.clone())
    });
    notice.models.truncate(MAX_MODELS);
    notice.models.shrink_to_fit();
    notice
}

// === impl GatewayPreference ===

impl GatewayPreference {
    /// The validators whose gateways are asked, the preferred ones first; all of them if the list is empty.
    pub fn new(listed: Vec<ValidatorKey>) -> Self {
        Self { listed }
    }

    /// Whether this validator's gateway may be asked.
    pub fn admits(&self, validator: ValidatorKey) -> bool {
        self.listed.is_empty() || self.listed.contains(&validator)
    }

    /// Puts the gateways into the order in which they are asked: those that did not fail lately first, then by the
    /// operator's list, or without one by stake; the key decides between equals.
    pub fn sort(&self, candidates: &mut [GatewayCandidate]) {
        candidates.sort_by_key(|candidate| {
            let place = self
                .listed
                .iter()
                .position(|listed| *listed == candidate.validator);
            let place = place.unwrap_or(self.listed.len());
            (
                candidate.is_resting,
                place,
                Reverse(candidate.stake),
                candidate.validator,
            )
        });
    }
}

// === impl GatewayHealth ===

impl GatewayHealth {
    /// Notes that a validator's gateway gave no response.
    pub fn note_failure(&mut self, validator: ValidatorKey, now: Timestamp) {
        self.failed_at.retain(|_, at| now.since(*at) < REST);
        self.failed_at.insert(validator, now);
    }

    /// Notes that a validator's gateway gave a response.
    pub fn note_response(&mut self, validator: ValidatorKey) {
        self.failed_at.remove(&validator);
    }

    /// Whether the validator's gateway failed less than 30 seconds ago, and gave no response since.
    pub fn is_resting(&self, validator: ValidatorKey, now: Timestamp) -> bool {
        self.failed_at
            .get(&validator)
            .is_some_and(|at| now.since(*at) < REST)
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use proptest::prelude::*;

    use super::*;

    fn key(n: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([n; 32]))
    }

    fn candidate(n: u8, stake: u64, is_resting: bool) -> GatewayCandidate {
        GatewayCandidate {
            validator: key(n),
            stake,
            is_resting,
        }
    }

    fn model(id: &str) -> ServedModel {
        ServedModel {
            id: id.to_owned(),
            input_price: 1,
            output_price: 2,
        }
    }

    fn order(listed: &[u8], mut candidates: Vec<GatewayCandidate>) -> Vec<ValidatorKey> {
        let preference = GatewayPreference::new(listed.iter().copied().map(key).collect());
        candidates.retain(|candidate| preference.admits(candidate.validator));
        preference.sort(&mut candidates);
        candidates
            .into_iter()
            .map(|candidate| candidate.validator)
            .collect()
    }

    #[test]
    fn stake_decides_where_the_operator_does_not() {
        let all = || {
            vec![
                candidate(1, 5, false),
                candidate(2, 9, false),
                candidate(3, 9, false),
            ]
        };
        assert_eq!(order(&[], all()), [key(2), key(3), key(1)]);
        assert_eq!(order(&[1, 3], all()), [key(1), key(3)]);
        assert_eq!(order(&[7], all()), []);
    }

    #[test]
    fn a_gateway_that_failed_is_asked_last_until_it_has_rested() {
        let failed = vec![candidate(1, 5, false), candidate(2, 9, true)];
        assert_eq!(order(&[], failed.clone()), [key(1), key(2)]);
        assert_eq!(order(&[2, 1], failed), [key(1), key(2)]);
        let mut health = GatewayHealth::default();
        let at = Timestamp::from_secs;
        health.note_failure(key(1), at(100));
        assert!(health.is_resting(key(1), at(129)) && !health.is_resting(key(2), at(100)));
        assert!(!health.is_resting(key(1), at(130)));
        health.note_failure(key(2), at(120));
        health.note_response(key(2));
        assert!(!health.is_resting(key(2), at(121)));
        health.note_failure(key(3), at(500));
        assert_eq!(health.failed_at.len(), 1, "old failures are forgotten");
    }

    #[test]
    fn a_notice_is_a_bare_origin_and_a_bounded_list_of_models() {
        let rules = AddressRules::default();
        let notice = |url: &str, models: Vec<ServedModel>| GatewayNotice {
            url: Some(url.to_owned()),
            models,
        };
        let mut models: Vec<_> = (0..1_000).map(|n| model(&format!("m{n}"))).collect();
        models.insert(0, model(&"x".repeat(MAX_MODEL_ID + 1)));
        models.insert(0, model(""));
        models.insert(0, model("a\nb"));
        models.insert(0, model("m0"));
        let read = AnnouncedGateway::read(notice("https://gateway.example.org", models), &rules);
        let gateway = read.unwrap().unwrap();
        assert_eq!(gateway.models.len(), MAX_MODELS);
        assert!(gateway.serves("m0") && gateway.serves("m255") && !gateway.serves("m256"));
        assert_eq!(AnnouncedGateway::read(GatewayNotice::default(), &rules), Ok(None));
        assert_eq!(
            AnnouncedGateway::read(notice("http://169.254.169.254/latest/#", Vec::new()), &rules),
            Err(OriginError::NotBare)
        );
        assert_eq!(
            AnnouncedGateway::read(notice("http://169.254.169.254", Vec::new()), &rules),
            Err(OriginError::NotPublic)
        );
    }

    proptest! {
        #[test]
        fn the_order_does_not_depend_on_the_order_in_which_validators_were_heard(
            mut facts in prop::collection::btree_map(any::<u8>(), (0..4_u64, any::<bool>()), 0..8),
            listed in prop::collection::vec(any::<u8>(), 0..4),
        ) {
            for listed in &listed {
                facts.entry(*listed).or_insert((1, false));
            }
            let candidates: Vec<_> =
                facts.iter().map(|(n, (stake, resting))| candidate(*n, *stake, *resting)).collect();
            let reversed: Vec<_> = candidates.iter().rev().copied().collect();
            prop_assert_eq!(order(&listed, candidates), order(&listed, reversed));
        }
    }
}
