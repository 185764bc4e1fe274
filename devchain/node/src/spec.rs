//! How a chain begins, in JSON: subnets, balances, neurons. Everything is checked before anything starts, and all
//! problems are reported at once.

use muster_devchain_runtime::subtensor::{NeuronGenesis, SubnetGenesis};
use muster_devchain_runtime::types::{MAX_SUBNETS, NetUid};
use muster_devchain_runtime::{AccountId, EXISTENTIAL_DEPOSIT, RuntimeGenesisConfig};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sp_core::crypto::Ss58Codec;
use sp_keyring::Sr25519Keyring;
use std::collections::{BTreeMap, BTreeSet};

/// One TAO in rao.
const TAO: u64 = 1_000_000_000;
/// The most neurons that a subnet may have room for.
const MOST_UIDS: u16 = 16_384;
/// The most mechanisms that a subnet may have: more would not fit into a storage index.
const MOST_MECHANISMS: u8 = 15;

/// A chain's beginning as people write it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Spec {
    /// Subnets beside the root network, which always exists.
    pub subnets: Vec<Subnet>,
    /// Rao by account.
    pub balances: BTreeMap<String, u64>,
    /// Neurons in the order of their uids.
    pub neurons: Vec<Neuron>,
    /// Stake that weight calls require, in rao.
    pub stake_threshold: u64,
    /// Whether axons may announce a loopback address. The public chain does not allow it.
    pub allow_loopback: bool,
    /// The account that may change hyperparameters while the chain runs; none by default.
    pub sudo: Option<String>,
}

/// A subnet. A missing field has the default of a subnet that a developer can use at once.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Subnet {
    /// Its number, from 1.
    pub netuid: u16,
    /// Blocks between epochs.
    #[serde(default = "defaults::tempo")]
    pub tempo: u16,
    /// Whether weights must be committed before they are revealed.
    #[serde(default)]
    pub commit_reveal: bool,
    /// Epochs between commit and reveal.
    #[serde(default = "defaults::one_u64")]
    pub reveal_period: u64,
    /// Blocks between two weight calls of one neuron.
    #[serde(default)]
    pub weights_rate_limit: u64,
    /// The oldest version key that weights may carry; 0 accepts any.
    #[serde(default)]
    pub weights_version_key: u64,
    /// How many weights a validator must set.
    #[serde(default)]
    pub min_allowed_weights: u16,
    /// The largest share of one weight, of 65535.
    #[serde(default = "defaults::whole")]
    pub max_weights_limit: u16,
    /// How many neurons it may have.
    #[serde(default = "defaults::max_allowed_uids")]
    pub max_allowed_uids: u16,
    /// Blocks between two serve calls of one neuron.
    #[serde(default)]
    pub serving_rate_limit: u64,
    /// The price of a registration, in rao.
    #[serde(default = "defaults::burn")]
    pub burn: u64,
    /// Whether it takes registrations.
    #[serde(default = "defaults::yes")]
    pub registration_allowed: bool,
    /// Registrations that it takes per block.
    #[serde(default = "defaults::max_registrations_per_block")]
    pub max_registrations_per_block: u16,
    /// How many mechanisms it has.
    #[serde(default = "defaults::one_u8")]
    pub mechanisms: u8,
    /// How it pays, whom it keeps, what a registration costs.
    #[serde(default)]
    pub economy: Economy,
}

/// How a subnet pays, whom it keeps, what a registration costs.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Economy {
    /// The emission to its neurons per block, in 10⁻⁹ units of its token.
    pub emission: u64,
    /// How many neurons may hold a validator's permit.
    pub max_validators: u16,
    /// Blocks for which a new neuron is spared when a full subnet replaces its weakest.
    pub immunity_period: u16,
    /// How many neurons that are not spared stay in any case.
    pub min_non_immune_uids: u16,
    /// Blocks without weights after which a validator's stake does not count.
    pub activity_cutoff: u16,
    /// The majority that a weight needs, of 65535.
    pub kappa: u16,
    /// The share of the last bonds in the next, of 10⁶.
    pub bonds_moving_average: u64,
    /// How far bonds follow clipped weights, of 65535.
    pub bonds_penalty: u16,
    /// The price of a registration does not fall below this, in rao; `burn` where it is not given.
    pub min_burn: Option<u64>,
    /// The price does not rise above this, in rao.
    pub max_burn: u64,
    /// Blocks in which the price halves; 0 keeps it.
    pub burn_half_life: u16,
    /// The factor by which a registration raises the price, in thousandths.
    pub burn_increase: u32,
    /// A third of the registrations that it takes per interval.
    pub target_registrations_per_interval: u16,
    /// Blocks in that interval.
    pub adjustment_interval: u16,
    /// Whether it takes registrations for work.
    pub pow_registration_allowed: bool,
    /// How hard that work is.
    pub difficulty: u64,
}

impl Default for Economy {
    fn default() -> Self {
        let runtime = SubnetGenesis::default();
        Self {
            emission: runtime.emission,
            max_validators: runtime.max_validators,
            immunity_period: runtime.immunity_period,
            min_non_immune_uids: runtime.min_non_immune_uids,
            activity_cutoff: runtime.activity_cutoff,
            kappa: runtime.kappa,
            bonds_moving_average: runtime.bonds_moving_average,
            bonds_penalty: runtime.bonds_penalty,
            min_burn: runtime.min_burn,
            max_burn: runtime.max_burn,
            burn_half_life: runtime.burn_half_life,
            burn_increase: runtime.burn_increase,
            target_registrations_per_interval: runtime.target_registrations_per_interval,
            adjustment_interval: runtime.adjustment_interval,
            pow_registration_allowed: runtime.pow_registration_allowed,
            difficulty: runtime.difficulty,
        }
    }
}

impl Economy {
    /// A subnet that is a default but for this.
    #[must_use]
    pub fn genesis(&self) -> SubnetGenesis {
        SubnetGenesis {
            emission: self.emission,
            max_validators: self.max_validators,
            immunity_period: self.immunity_period,
            min_non_immune_uids: self.min_non_immune_uids,
            activity_cutoff: self.activity_cutoff,
            kappa: self.kappa,
            bonds_moving_average: self.bonds_moving_average,
            bonds_penalty: self.bonds_penalty,
            min_burn: self.min_burn,
            max_burn: self.max_burn,
            burn_half_life: self.burn_half_life,
            burn_increase: self.burn_increase,
            target_registrations_per_interval: self.target_registrations_per_interval,
            adjustment_interval: self.adjustment_interval,
            pow_registration_allowed: self.pow_registration_allowed,
            difficulty: self.difficulty,
            ..SubnetGenesis::default()
        }
    }
}

/// A neuron at genesis.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Neuron {
    /// The number of its subnet.
    pub netuid: u16,
    /// The ss58 address or development URI of its hotkey.
    pub hotkey: String,
    /// The same of the coldkey that owns it.
    pub coldkey: String,
    /// Its stake on this subnet, in 10⁻⁹ units of the subnet's token.
    #[serde(default)]
    pub stake: u64,
    /// Whether it may set weights for others.
    #[serde(default)]
    pub permit: bool,
}

mod defaults {
    pub(super) fn tempo() -> u16 {
        20
    }
    pub(super) fn one_u64() -> u64 {
        1
    }
    pub(super) fn one_u8() -> u8 {
        1
    }
    pub(super) fn whole() -> u16 {
        u16::MAX
    }
    pub(super) fn max_allowed_uids() -> u16 {
        256
    }
    pub(super) fn burn() -> u64 {
        1_000_000
    }
    pub(super) fn yes() -> bool {
        true
    }
    pub(super) fn max_registrations_per_block() -> u16 {
        16
    }
}

/// Everything that is wrong with a specification.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the chain specification is wrong in {} place(s):\n  {}", .0.len(), .0.join("\n  "))]
pub struct Problems(Vec<String>);

impl Problems {
    /// One line each.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.0
    }
}

impl Default for Spec {
    /// The meaning of an empty object: the root network and nothing else.
    fn default() -> Self {
        Self {
            subnets: vec![],
            balances: BTreeMap::new(),
            neurons: vec![],
            stake_threshold: 0,
            allow_loopback: true,
            sudo: None,
        }
    }
}

impl Spec {
    /// The chain that starts without a specification: subnet 1 with direct weights, subnet 2 with commits, the
    /// well-known development accounts with a million TAO each, and on both subnets Alice as a validator with stake and
    /// permit and Bob as a miner.
    ///
    /// # Errors
    /// Never: the text is part of this file, and a test reads it.
    pub fn development() -> Result<Self, Problems> {
        let account = |key: Sr25519Keyring| key.to_account_id().to_ss58check();
        let neuron = |netuid, key: Sr25519Keyring, stake, permit| {
            let (hotkey, coldkey) = (account(key), account(key));
            Neuron {
                netuid,
                hotkey,
                coldkey,
                stake,
                permit,
            }
        };
        let neurons = [1, 2].into_iter().flat_map(|netuid| {
            let validator = neuron(netuid, Sr25519Keyring::Alice, 1_000 * TAO, true);
            [validator, neuron(netuid, Sr25519Keyring::Bob, 0, false)]
        });
        let subnets = json!([{ "netuid": 1 }, { "netuid": 2, "commit_reveal": true }]);
        Ok(Self {
            subnets: entry("subnets", subnets).map_err(|line| Problems(vec![line]))?,
            balances: Sr25519Keyring::well_known()
                .map(|key| (account(key), 1_000_000 * TAO))
                .collect(),
            neurons: neurons.collect(),
            sudo: Some(account(Sr25519Keyring::Alice)),
            ..Self::default()
        })
    }

    /// Reads a specification.
    ///
    /// # Errors
    /// Every line that cannot be read: the first where it is not JSON at all, each entry otherwise.
    pub fn parse(text: &str) -> Result<Self, Problems> {
        let value: Value =
            serde_json::from_str(text).map_err(|e| Problems(vec![format!("not JSON: {e}")]))?;
        let Value::Object(fields) = value else {
            return Err(Problems(vec![
                "not a JSON object: write {\"subnets\": [...], ...}".into(),
            ]));
        };
        let (mut spec, mut problems) = (Self::default(), Vec::new());
        for (name, value) in fields {
            match name.as_str() {
                "subnets" => entries(&name, value, &mut spec.subnets, &mut problems),
                "neurons" => entries(&name, value, &mut spec.neurons, &mut problems),
                "balances" => field(&name, value, &mut spec.balances, &mut problems),
                "stake_threshold" => field(&name, value, &mut spec.stake_threshold, &mut problems),
                "allow_loopback" => field(&name, value, &mut spec.allow_loopback, &mut problems),
                "sudo" => field(&name, value, &mut spec.sudo, &mut problems),
                unknown => problems.push(format!(
                    "{unknown}: unknown field; there are subnets, balances, neurons, stake_threshold, allow_loopback, sudo"
                )),
            }
        }
        if problems.is_empty() {
            Ok(spec)
        } else {
            Err(Problems(problems))
        }
    }

    /// Checks that the parts fit together and turns them into the chain's own configuration.
    ///
    /// # Errors
    /// Everything that does not fit.
    pub fn genesis(&self) -> Result<RuntimeGenesisConfig, Problems> {
        let mut problems = Vec::new();
        self.check_subnets(&mut problems);
        let balances = self.balances(&mut problems);
        let neurons = self.neurons(&mut problems);
        let sudo = self
            .sudo
            .as_ref()
            .and_then(|text| account("sudo", text, &mut problems));
        if !problems.is_empty() {
            return Err(Problems(problems));
        }
        let mut config = RuntimeGenesisConfig::default();
        config.balances.balances = balances;
        config.sudo.key = sudo;
        config.subtensor_module.subnets = self.subnets.iter().map(SubnetGenesis::from).collect();
        config.subtensor_module.neurons = neurons;
        config.subtensor_module.stake_threshold = self.stake_threshold;
        config.subtensor_module.allow_loopback = self.allow_loopback;
        Ok(config)
    }

    fn check_subnets(&self, problems: &mut Vec<String>) {
        let mut seen = BTreeSet::new();
        for (i, subnet) in self.subnets.iter().enumerate() {
            let mut say = |problem: String| problems.push(format!("subnets[{i}]: {problem}"));
            let netuid = subnet.netuid;
            if netuid == 0 {
                say("netuid 0 is the root network, which always exists; number subnets from 1".into());
            }
            if netuid >= MAX_SUBNETS {
                say(format!("netuid {netuid} is not below {MAX_SUBNETS}"));
            }
            if !seen.insert(netuid) {
                say(format!("netuid {netuid} occurs twice"));
            }
            if subnet.tempo == 0 {
                say("tempo 0 would mean that no epoch ever comes; use at least 1".into());
            }
            if subnet.max_allowed_uids == 0 || subnet.max_allowed_uids > MOST_UIDS {
                say(format!(
                    "max_allowed_uids {} is not between 1 and {MOST_UIDS}",
                    subnet.max_allowed_uids
                ));
            }
            if subnet.mechanisms == 0 || subnet.mechanisms > MOST_MECHANISMS {
                say(format!(
                    "mechanisms {} is not between 1 and {MOST_MECHANISMS}",
                    subnet.mechanisms
                ));
            }
        }
    }

    fn balances(&self, problems: &mut Vec<String>) -> Vec<(AccountId, u64)> {
        let mut seen = BTreeSet::new();
        let mut total = 0u64;
        let mut balances = Vec::new();
        for (text, amount) in &self.balances {
            let place = format!("balances.{text}");
            if *amount < EXISTENTIAL_DEPOSIT {
                problems.push(format!(
                    "{place}: {amount} rao is below the least balance, {EXISTENTIAL_DEPOSIT}"
                ));
            }
            match total.checked_add(*amount) {
                Some(sum) => total = sum,
                None => problems.push(format!("{place}: the sum of all balances is too large")),
            }
            if let Some(account) = account(&place, text, problems) {
                if !seen.insert(account.clone()) {
                    problems.push(format!("{place}: the account occurs twice"));
                }
                balances.push((account, *amount));
            }
        }
        balances
    }

    fn neurons(&self, problems: &mut Vec<String>) -> Vec<NeuronGenesis> {
        let room: BTreeMap<u16, u16> = self
            .subnets
            .iter()
            .map(|s| (s.netuid, s.max_allowed_uids))
            .collect();
        let mut taken: BTreeMap<u16, BTreeSet<AccountId>> = BTreeMap::new();
        let mut owners: BTreeMap<AccountId, AccountId> = BTreeMap::new();
        let mut neurons = Vec::new();
        for (i, neuron) in self.neurons.iter().enumerate() {
            let place = format!("neurons[{i}]");
            let netuid = neuron.netuid;
            let hotkey = account(&format!("{place}.hotkey"), &neuron.hotkey, problems);
            let coldkey = account(&format!("{place}.coldkey"), &neuron.coldkey, problems);
            let Some(room) = room.get(&netuid) else {
                problems.push(format!("{place}: there is no subnet {netuid}"));
                continue;
            };
            let (Some(hotkey), Some(coldkey)) = (hotkey, coldkey) else {
                continue;
            };
            let here = taken.entry(netuid).or_default();
            if !here.insert(hotkey.clone()) {
                problems.push(format!("{place}: the hotkey is on subnet {netuid} already"));
            } else if here.len() > usize::from(*room) {
                problems.push(format!("{place}: subnet {netuid} has room for {room} neurons"));
            }
            if owners.entry(hotkey.clone()).or_insert_with(|| coldkey.clone()) != &coldkey {
                problems.push(format!(
                    "{place}: the hotkey belongs to another coldkey elsewhere"
                ));
            }
            let (stake, permit) = (neuron.stake, neuron.permit);
            neurons.push(NeuronGenesis {
                netuid: NetUid(netuid),
                hotkey,
                coldkey,
                stake,
                permit,
            });
        }
        neurons
    }
}

impl From<&Subnet> for SubnetGenesis {
    fn from(subnet: &Subnet) -> Self {
        Self {
            netuid: NetUid(subnet.netuid),
            tempo: subnet.tempo,
            commit_reveal: subnet.commit_reveal,
            reveal_period: subnet.reveal_period,
            weights_rate_limit: subnet.weights_rate_limit,
            weights_version_key: subnet.weights_version_key,
            min_allowed_weights: subnet.min_allowed_weights,
            max_weights_limit: subnet.max_weights_limit,
            max_allowed_uids: subnet.max_allowed_uids,
            serving_rate_limit: subnet.serving_rate_limit,
            burn: subnet.burn,
            registration_allowed: subnet.registration_allowed,
            max_registrations_per_block: subnet.max_registrations_per_block,
            mechanisms: subnet.mechanisms,
            ..subnet.economy.genesis()
        }
    }
}

fn account(place: &str, text: &str, problems: &mut Vec<String>) -> Option<AccountId> {
    AccountId::from_ss58check(text)
        .map_err(|cause| problems.push(format!("{place}: {text:?} is not an ss58 address: {cause}")))
        .ok()
}

fn entry<T: DeserializeOwned>(place: &str, value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|cause| format!("{place}: {cause}"))
}

fn field<T: DeserializeOwned>(place: &str, value: Value, into: &mut T, problems: &mut Vec<String>) {
    match entry(place, value) {
        Ok(value) => *into = value,
        Err(line) => problems.push(line),
    }
}

fn entries<T: DeserializeOwned>(name: &str, value: Value, into: &mut Vec<T>, problems: &mut Vec<String>) {
    let mut values: Vec<Value> = Vec::new();
    field(name, value, &mut values, problems);
    for (i, value) in values.into_iter().enumerate() {
        match entry(&format!("{name}[{i}]"), value) {
            Ok(value) => into.push(value),
            Err(line) => problems.push(line),
        }
    }
}
