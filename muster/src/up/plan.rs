//! The plan of a local subnet: wallets, addresses, the chain's genesis, and a configuration for each role.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use muster_chain::Netuid;
use muster_identity::Keypair;
use muster_identity::wallet::{self, ColdkeyStorage, WalletPath};
use muster_local_subnet::ports::{self, PortClaims};
use muster_local_subnet::subnet_folder::{FurtherMiner, FurtherValidator, Layout, LocalSubnet};
use muster_protocol::{ErrorCode, Hotkey, ImageId, MinerKey, ValidatorKey};
use serde_json::{Map, Value, json};
use url::Url;

use super::audits_plan::{self, AuditsPlan, LONG_S, TrustedMinerTerms};
use crate::failure::{Failure, Result};
use crate::wallet::fund::WELL_KNOWN;

/// Starts an executor of the demonstration. The executor that can rename the flag, the first argument, gets the
/// Docker engine of the second argument; the rest is the executor's own command.
const MAYBE_CHEAT: &str =
    r#"if mv "$1" "$1.taken" 2>/dev/null; then DOCKER_HOST=$2; export DOCKER_HOST; fi; shift 2; exec "$@""#;

/// The subnet of a local chain.
pub(crate) const NETUID: Netuid = Netuid(1);
const HOTKEY: &str = "default";
/// The addresses of this machine itself. The facilitator of a local subnet lets gateways and webhooks have them.
pub(crate) const LOCAL: &str = "127.0.0.0/8";
/// The model that a local subnet serves.
pub(crate) const DEMO_MODEL: &str = "parrot";
/// The longest wait for a role to be ready, and the longest time of a demonstration once its programs are there. Each
/// wait ends with what it waits for, and Ctrl-C ends all of them, so this only ends waits that nobody watches, for what
/// never comes. At rest a role needs a second, and a demonstration less than a minute.
pub(super) const LIMIT: Duration = Duration::from_secs(1_800);
/// The seconds of a day.
const DAY_S: u64 = 24 * 3_600;
/// A thousand TAO, in rao: enough for a permit.
const STAKE: u64 = 1_000_000_000_000;

/// The keys of a local subnet.
pub(crate) struct Keys {
    pub(crate) validator: Keypair,
    /// The validators after the first.
    pub(crate) further_validators: Vec<Keypair>,
    pub(crate) miner: Keypair,
    /// The coldkey of the first miner. Work that an owner's validator pays to the owner's miner would not count.
    pub(crate) miner_coldkey: Hotkey,
    /// The miners after the first, each with its own coldkey.
    pub(crate) further_miners: Vec<MinerIdentity>,
    pub(crate) user: Keypair,
    /// Owns the hotkeys of the validators on the chain; nothing but the genesis uses it.
    pub(crate) owner: Keypair,
}

/// The keys of a miner.
pub(crate) struct MinerIdentity {
    pub(crate) hotkey: Keypair,
    pub(crate) coldkey: Hotkey,
}

/// The name of a miner's process, wallet and files: `miner`, `miner-2`, `miner-3` and so on.
pub(crate) fn miner_name(index: usize) -> String {
    match index {
        0 => "miner".to_owned(),
        _ => format!("miner-{}", index.saturating_add(1)),
    }
}

/// The name of a validator's process, wallet and files: `validator`, `validator-2`, `validator-3` and so on.
pub(crate) fn validator_name(index: usize) -> String {
    match index {
        0 => "validator".to_owned(),
        _ => format!("validator-{}", index.saturating_add(1)),
    }
}

/// The hotkey of the wallet with this name, which is made if there is none.
///
/// # Errors
/// The wallet cannot be read or made.
pub(crate) fn hotkey(layout: &Layout, name: &str) -> Result<Keypair> {
    let unusable = |error| Failure::new(ErrorCode::WalletUnusable, error);
    let path = WalletPath::new(layout.wallets(), name, HOTKEY);
    if path.hotkey_file().map_err(unusable)?.exists() {
        return wallet::load_hotkey(&path).map_err(unusable);
    }
    // These coldkeys own nothing of worth, and a local subnet needs them to register further keys.
    wallet::create(&path, ColdkeyStorage::Unencrypted)
        .map(|made| made.hotkey)
        .map_err(unusable)
}

impl Keys {
    /// Loads the wallets of an earlier run, or makes them. There are at least one validator and one miner.
    pub(crate) fn load_or_create(layout: &Layout, validators: usize, miners: usize) -> Result<Self> {
        let unusable = |error| Failure::new(ErrorCode::WalletUnusable, error);
        let path = |name: &str| WalletPath::new(layout.wallets(), name, HOTKEY);
        let key = |name: &str| hotkey(layout, name);
        let identity = |index| {
            let name = miner_name(index);
            let hotkey = key(&name)?;
            let shown = wallet::read_public_keys(&path(&name)).map_err(unusable)?;
            let coldkey = shown
                .coldkey
                .with_context(|| format!("the wallet {name} has no coldkey"))?;
            Ok::<_, Failure>(MinerIdentity { hotkey, coldkey })
        };
        let first = identity(0)?;
        let further_miners = (1..miners).map(identity).collect::<Result<Vec<_>>>()?;
        let further_validators = (1..validators)
            .map(|index| key(&validator_name(index)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            further_miners,
            further_validators,
            validator: key("validator")?,
            miner: first.hotkey,
            miner_coldkey: first.coldkey,
            user: key("user")?,
            owner: key("owner")?,
        })
    }
}

/// The addresses of all roles. An earlier run's addresses are kept while they are free, so that bookmarks hold.
pub(crate) fn subnet(
    layout: &Layout,
    keys: &Keys,
    earlier: Option<&LocalSubnet>,
    claims: &mut PortClaims,
) -> anyhow::Result<LocalSubnet> {
    let mut further_miners = Vec::new();
    for (index, (miner, port)) in keys
        .further_miners
        .iter()
        .zip(ports::FURTHER_MINERS..)
        .enumerate()
    {
        let earlier = earlier.and_then(|subnet| subnet.further_miners.get(index));
        let name = miner_name(index.saturating_add(1));
        further_miners.push(FurtherMiner {
            key: MinerKey(miner.hotkey.hotkey()),
            address: claims.claim(&name, earlier.map(|miner| miner.address), port)?,
        });
    }
    let mut further_validators = Vec::new();
    for (index, keypair) in keys.further_validators.iter().enumerate() {
        let earlier = earlier.and_then(|subnet| subnet.further_validators.get(index));
        let port = |first: u16| first.saturating_add(u16::try_from(index).unwrap_or(u16::MAX));
        let name = validator_name(index.saturating_add(1));
        further_validators.push(FurtherValidator {
            key: ValidatorKey(keypair.hotkey()),
            status: claims.claim(
                &name,
                earlier.map(|known| known.status),
                port(ports::FURTHER_VALIDATORS),
            )?,
            pages: claims.claim(
                &format!("{name}'s pages"),
                earlier.map(|known| known.pages),
                port(ports::PAGES.saturating_add(1)),
            )?,
        });
    }
    let others = std::iter::once("facilitator".to_owned())
        .chain((0..=further_miners.len()).map(miner_name))
        .chain((1..=further_validators.len()).map(validator_name));
    let mut further_metrics = BTreeMap::new();
    for (name, port) in others.zip(ports::FURTHER_METRICS..) {
        let earlier = earlier.and_then(|subnet| subnet.metrics_of(&name));
        let address = claims.claim(&format!("metrics of the {name}"), earlier, port)?;
        further_metrics.insert(name, address);
    }
    let operated = (0..=further_validators.len())
        .map(validator_name)
        .chain((0..=further_miners.len()).map(miner_name));
    let mut operators = BTreeMap::new();
    for (name, port) in operated.zip(ports::OPERATORS..) {
        let earlier = earlier.and_then(|subnet| subnet.operator_of(&name));
        let address = claims.claim(&format!("operator's pages of the {name}"), earlier, port)?;
        operators.insert(name, address);
    }
    Ok(LocalSubnet {
        operators,
        further_metrics,
        pages: Some(claims.claim("pages", earlier.and_then(|s| s.pages), ports::PAGES)?),
        further_validators,
        chain: claims.claim("chain", earlier.map(|s| s.chain), ports::CHAIN)?,
        facilitator: claims.claim("facilitator", earlier.map(|s| s.facilitator), ports::FACILITATOR)?,
        validator_status: claims.claim("validator", earlier.map(|s| s.validator_status), ports::VALIDATOR)?,
        gateway: Some(claims.claim("gateway", earlier.and_then(|s| s.gateway), ports::GATEWAY)?),
        metrics: Some(claims.claim("metrics", earlier.and_then(|s| s.metrics), ports::METRICS)?),
        miner_address: claims.claim("miner", earlier.map(|s| s.miner_address), ports::MINER)?,
        validator: ValidatorKey(keys.validator.hotkey()),
        miner: MinerKey(keys.miner.hotkey()),
        further_miners,
        wallets: layout.wallets(),
    })
}

/// The chain's genesis: one subnet with the validator and the miners in it.
///
/// A balance of a key that nobody holds makes every run's chain another chain, so that no role takes its blocks for
/// those of the last run.
pub(crate) fn genesis(keys: &Keys, tempo: u16) -> Value {
    let owner = keys.owner.hotkey().to_string();
    let neuron = |hotkey: &Keypair, coldkey: &str, stake: u64, permit: bool| {
        let hotkey = hotkey.hotkey().to_string();
        json!({"netuid": NETUID.0, "hotkey": hotkey, "coldkey": coldkey, "stake": stake, "permit": permit})
    };
    let mut neurons = vec![
        neuron(&keys.validator, &owner, STAKE, true),
        neuron(&keys.miner, &keys.miner_coldkey.to_string(), 0, false),
    ];
    let mut balances = serde_json::Map::new();
    let mut fund = |key: Hotkey| balances.insert(key.to_string(), json!(STAKE));
    for validator in &keys.further_validators {
        neurons.push(neuron(validator, &owner, STAKE, true));
        fund(validator.hotkey());
    }
    for miner in &keys.further_miners {
        neurons.push(neuron(&miner.hotkey, &miner.coldkey.to_string(), 0, false));
        fund(miner.hotkey.hotkey());
    }
    for key in [&keys.owner, &keys.validator, &keys.miner] {
        fund(key.hotkey());
    }
    fund(Keypair::generate().hotkey());
    if let Ok(well_known) = Keypair::from_uri(WELL_KNOWN) {
        // It pays for the coldkeys of miners that join.
        let address = well_known.hotkey().to_string();
        balances.insert(address, json!(STAKE.saturating_mul(1_000)));
    }
    json!({
        "subnets": [{"netuid": NETUID.0, "tempo": tempo}],
        "balances": balances,
        "neurons": neurons,
        "allow_loopback": true,
    })
}

/// The facts that the roles' configurations depend on.
pub(crate) struct Setup<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) subnet: &'a LocalSubnet,
    /// Executors of each miner.
    pub(crate) executors: u32,
    /// The address on which persistent executors connect.
    pub(crate) persistent: Option<SocketAddr>,
    /// The collector of spans.
    pub(crate) traces: Option<Url>,
    /// Milliseconds between blocks.
    pub(crate) block_ms: u64,
    /// This program: the miner starts executors with it.
    pub(crate) muster: PathBuf,
    pub(crate) user: &'a Keypair,
    /// The demo image, which also serves the demo model.
    pub(crate) image: ImageId,
    /// The services besides the demo model.
    pub(crate) services: Vec<Value>,
    /// The image of the grader.
    pub(crate) grader: ImageId,
    /// The blocks between two batches of grading of the first validator, on average; 0 draws none.
    pub(crate) grade_every: u64,
    /// Whether an executor cheats once the flag of [`Layout::cheat_flag`] is there.
    pub(crate) may_cheat: bool,
    /// The parts that the demonstration of spot checks adds.
    pub(crate) audits: Option<AuditsPlan>,
}

/// The entries of a whitelist that a user wrote.
pub(crate) fn services(file: &Path) -> anyhow::Result<Vec<Value>> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Whitelist {
        services: Vec<Value>,
    }
    let unreadable = || format!("cannot use the services in {}", file.display());
    let text = std::fs::read_to_string(file).with_context(unreadable)?;
    // The validator checks their meaning and reports defects.
    let read: Whitelist = toml::from_str(&text).with_context(unreadable)?;
    Ok(read.services)
}

impl Setup<'_> {
    /// The configuration of each role, by its name.
    pub(crate) fn configurations(&self) -> Vec<(String, Value)> {
        let mut all = vec![
            ("facilitator".to_owned(), self.facilitator()),
            ("validator".to_owned(), self.validator(None, self.grade_every)),
            ("executor".to_owned(), self.executor()),
        ];
        all.extend(self.further_validators(None));
        for (index, (_, address)) in self.subnet.miners().into_iter().enumerate() {
            all.push((miner_name(index), self.miner(&miner_name(index), address)));
        }
        if let Some(audits) = &self.audits {
            let name = audits_plan::TRUSTED;
            let terms = TrustedMinerTerms {
                validator: self.subnet.validator,
                wallet: self.wallet(name),
                store: self.store(name),
                executor_command: self.executor_command(),
            };
            all.push((name.to_owned(), audits.trusted_miner(self.layout, terms)));
        }
        all
    }

    /// Executors of all miners together.
    pub(crate) fn all_executors(&self) -> u32 {
        let miners = u32::try_from(self.subnet.miners().len()).unwrap_or(u32::MAX);
        self.executors.saturating_mul(miners)
    }

    pub(super) fn store(&self, role: &str) -> String {
        format!("sqlite:{}", self.layout.data(&format!("{role}.db")).display())
    }

    pub(super) fn wallet(&self, name: &str) -> Value {
        json!({"root": self.layout.wallets(), "name": name, "hotkey": HOTKEY})
    }

    /// Whether the subnet shows what is planned, and nobody's faults.
    const fn is_demonstration(&self) -> bool {
        self.may_cheat || self.audits.is_some()
    }

    /// The time after which a role gives something up, in seconds: in a demonstration so long that a busy machine does
    /// not look like a fault, otherwise `usual`.
    const fn seconds_of_patience(&self, usual: u64) -> u64 {
        if self.is_demonstration() { LONG_S } else { usual }
    }

    fn facilitator(&self) -> Value {
        json!({
            "bind": self.subnet.facilitator,
            "ready_file": self.layout.ready("facilitator"),
            "store": self.store("facilitator"),
            "public_url": self.subnet.facilitator_url(),
            "chain": {"url": self.subnet.chain_url(), "netuid": NETUID.0, "refresh_s": 2},
            "files": {"store": format!("file:{}", self.layout.data("files").display())},
            // The validator's gateway and the services of the user are on this machine too.
            "gateways": {"allow": [LOCAL]},
            "webhooks": {"allow": [LOCAL]},
        })
    }

    /// The jobs are taken that `signer` signs for accounts: the facilitator's own key, known once it runs, signs for
    /// users who have an API key only. A block draws a batch of grading once in `every_blocks` on average; never if
    /// that is 0. In a demonstration of spot checks none is drawn either, and the operator's own batch counts to its
    /// end.
    pub(crate) fn validator(&self, signer: Option<String>, every_blocks: u64) -> Value {
        let every_blocks = match &self.audits {
            Some(_) => audits_plan::EVERY_BLOCKS,
            None => every_blocks,
        };
        let mut config = json!({
            "facilitator": {"url": format!("ws://{}/ws/v0/", self.subnet.facilitator)},
            "wallet": self.wallet("validator"),
            "chain": {"url": self.subnet.chain_url(), "netuid": NETUID.0},
            "store": self.store("validator"),
            "users": {"allow": [self.user.hotkey().to_string()], "facilitators": Vec::from_iter(signer.clone())},
            "bind": self.subnet.validator_status,
            "operator_token": self.layout.operator_token(),
            // A Ctrl-C waits for no answer.
            "http": {"drain_s": 0},
            // Every miner of this subnet is on this machine.
            "dial": {"allow": ["127.0.0.0/8"]},
            "ready_file": self.layout.ready("validator"),
            "gateway": self.gateway(signer),
            "pages": pages(self.subnet.pages),
            "operator": self.operator("validator"),
            // A cycle takes seconds here.
            "receipts": {"interval_s": 1},
            // Sessions and jobs outlast the half minutes between batches here, so batches prove less than there is.
            "routing": {"trial": {"image": self.image, "args": ["words"]}, "proven_only": false},
            "grading": {
                "every_blocks": every_blocks,
                "probe_every_blocks": 0,
                // A full course takes longer than the blocks between two batches here.
                "full_course_one_in": 0,
                "gather_s": self.seconds_of_patience(60),
                "images": {"always_on.test": {"image": self.grader}},
            },
        });
        if let Some(grading) = config.get_mut("grading").and_then(Value::as_object_mut)
            && self.grade_every > 0
        {
            // Batches come every half minute. None waits for the end of a job, because others would wait for the batch.
            grading.insert("at_work_s".to_owned(), json!(0));
            grading.insert("keep_days".to_owned(), json!(1));
        }
        if let (Some(config), true) = (config.as_object_mut(), self.is_demonstration()) {
            let timing = ["dial_s", "reservation_s", "startup_s", "leeway_s"];
            config.insert(
                "timing".to_owned(),
                Map::from_iter(timing.map(|key| (key.to_owned(), json!(LONG_S)))).into(),
            );
        }
        if let (Some(config), Some(audits)) = (config.as_object_mut(), &self.audits) {
            for (section, value) in audits.sections(self.layout) {
                config.insert(section.to_owned(), value);
            }
        }
        config
    }

    /// The validators after the first, by their names. They serve no models, and draw no batches by themselves.
    pub(crate) fn further_validators(&self, signer: Option<&str>) -> Vec<(String, Value)> {
        let further = self.subnet.further_validators.iter().zip(1..);
        let config = |(validator, index): (&FurtherValidator, usize)| {
            let name = validator_name(index);
            let mut config = self.validator(signer.map(str::to_owned), 0);
            if let Some(config) = config.as_object_mut() {
                config.remove("gateway");
                for (key, value) in [
                    ("wallet", self.wallet(&name)),
                    ("store", json!(self.store(&name))),
                    ("bind", json!(validator.status)),
                    (
                        "operator_token",
                        json!(self.layout.data(&format!("{name}.token"))),
                    ),
                    ("ready_file", json!(self.layout.ready(&name))),
                    ("pages", pages(Some(validator.pages))),
                    ("operator", self.operator(&name)),
                ] {
                    config.insert(key.to_owned(), value);
                }
            }
            (name, config)
        };
        further.map(config).collect()
    }

    /// The `[operator]` of a validator. Everybody who can reach this subnet may see it in numbers.
    fn operator(&self, name: &str) -> Value {
        match self.subnet.operator_of(name) {
            Some(address) => json!({"bind": address, "public": true}),
            None => json!({}),
        }
    }

    /// The demo image, which repeats what it receives, and what the user brought.
    fn gateway(&self, facilitator: Option<String>) -> Value {
        let demo = json!({
            "model": DEMO_MODEL,
            "image": self.image,
            "engine": "other",
            "listen": {"socket": "http.sock"},
            "class": "always_on.test",
            "args": ["parrot", "/muster/http.sock", "20"],
            "input_price": 100_000,
            "output_price": 400_000,
            "input_tokens_per_s": 1_000,
            "output_tokens_per_s": 20,
        });
        let first = self.audits.as_ref().map_or(demo, AuditsPlan::service);
        let services: Vec<Value> = std::iter::once(first)
            .chain(self.services.iter().cloned())
            .collect();
        // In a demonstration of spot checks every miner serves the model, and nothing else runs beside it.
        let max_sessions = match &self.audits {
            Some(_) => self.all_executors(),
            None => self.all_executors().saturating_sub(1).max(1),
        };
        let mut gateway = json!({
            "facilitators": Vec::from_iter(facilitator),
            "max_sessions": max_sessions,
            "heartbeat_s": 2,
            // With two executors one is worth more than the second in which the next session starts.
            "yield_s": 5,
            "patience_s": self.seconds_of_patience(90),
            "start_s": self.seconds_of_patience(60),
            "services": services,
        });
        if let Some(gateway) = gateway.as_object_mut() {
            if let Some(bind) = self.subnet.gateway {
                gateway.insert("bind".to_owned(), json!(bind));
            }
            if self.audits.is_some() {
                // Two questions at once start the sessions of both miners.
                gateway.insert("per_session".to_owned(), json!(1));
            }
        }
        gateway
    }

    /// The arguments of a role that exports its spans.
    pub(super) fn trace_arguments(&self) -> Vec<String> {
        let collector = self.traces.as_ref();
        collector.map_or_else(Vec::new, |collector| {
            vec!["--traces".to_owned(), collector.to_string()]
        })
    }

    /// Persistent executors connect to the first miner only.
    fn miner(&self, name: &str, address: SocketAddr) -> Value {
        let is_first = name == miner_name(0);
        let suffix = name.trim_start_matches("miner");
        let data = |kind: &str| self.layout.data(&format!("{kind}{suffix}"));
        let mut standing = json!({"roll": data("standing")});
        if let (Some(address), Some(standing)) =
            (self.persistent.filter(|_| is_first), standing.as_object_mut())
        {
            standing.insert("bind".to_owned(), json!(address));
        }
        let mut executor = Vec::new();
        if self.may_cheat {
            let engine = format!("unix://{}", self.layout.cheat_socket().display());
            executor.extend(["/bin/sh", "-c", MAYBE_CHEAT, "executor"].map(PathBuf::from));
            executor.extend([self.layout.cheat_flag(), engine.into()]);
        }
        if self.audits.is_some() && name == audits_plan::CHEAT {
            let engine = format!("DOCKER_HOST=unix://{}", self.layout.cheat_socket().display());
            executor.extend(["/usr/bin/env".into(), PathBuf::from(engine)]);
        }
        executor.extend(self.executor_command());
        let shares = match self.grade_every {
            0 => json!({}),
            // Batches of every half minute use up the usual unpaid time beyond a share within hours.
            _ => json!({"unpaid_course_s": DAY_S}),
        };
        json!({
            "bind": address,
            "announce": address,
            "ready_file": self.layout.ready(name),
            "wallet": self.wallet(name),
            "chain": {"url": self.subnet.chain_url(), "netuid": NETUID.0},
            "store": self.store(name),
            "receipts_dir": data("receipts"),
            "drain_file": data("drain"),
            "standing": standing,
            "tls": {"certificate": data("tls").join("port.pem")},
            "shares": shares,
            "operator": {
                "bind": self.subnet.operator_of(name),
                "token": self.layout.miner_token(name),
                "dial_allow": ["127.0.0.0/8"],
                // An epoch of this chain takes seconds.
                "grades_s": 2,
            },
            "executor": {
                "class": "always_on.test",
                "count": self.executors,
                "command": executor,
                "startup_s": self.seconds_of_patience(30),
            },
        })
    }

    /// The command that starts an executor on this machine.
    pub(super) fn executor_command(&self) -> Vec<PathBuf> {
        let mut command = vec![
            self.muster.clone(),
            "executor".into(),
            "--config".into(),
            self.layout.config("executor"),
        ];
        command.extend(self.trace_arguments().into_iter().map(PathBuf::from));
        command
    }

    fn executor(&self) -> Value {
        // Users' files lie with the facilitator of this machine, and jobs fetch and leave them there.
        let facilitator = self.subnet.facilitator;
        json!({
            "work_dir": self.layout.data("executor"),
            // A miner that died is back within a second; after Ctrl-C nobody waits for its jobs.
            "orphan_s": 10,
            // Everybody who can reach this subnet has an account of this machine.
            "images": {
                "cache_dir": self.layout.data("images"),
                "local": ["*"],
                "allow": ["127.0.0.0/8", "::1", "localhost"],
            },
            "transfer": {"allow": [facilitator.to_string()]},
        })
    }
}

/// The `[pages]` of a validator that serves them at this address of this machine.
fn pages(address: Option<SocketAddr>) -> Value {
    match address {
        Some(address) => json!({"bind": address, "announce": address}),
        None => json!({}),
    }
}

/// How often the validator of a local subnet grades the executors, for people.
pub(crate) fn grading_in_words(every_blocks: u64) -> String {
    match every_blocks {
        0 => "none by itself; `muster grade run` grades the executors once".to_owned(),
        _ => format!(
            "every {every_blocks} blocks on average (--grade-every 0 for none); `muster grade ls` lists the results"
        ),
    }
}

/// Writes a configuration as TOML, with a head that states where it comes from.
pub(crate) fn write_toml(path: &Path, config: &Value) -> anyhow::Result<()> {
    let text = toml::to_string(config).context("a configuration that TOML cannot hold")?;
    let text = format!("# Written by `muster up`; the next `muster up` writes it again.\n{text}");
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use muster_process::config::{RoleConfig, parse};
    use muster_protocol::Digest;

    use super::*;

    fn taken<C: RoleConfig>(name: &str, config: &Value) {
        let text = toml::to_string(config).unwrap();
        if let Err(errors) = parse::<C>(&text, name) {
            panic!("{name}: {errors}\n{text}");
        }
    }

    #[test]
    fn every_role_takes_its_configuration_and_the_gateway_serves_the_demo_model() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::create(folder.path()).unwrap();
        let keys = Keys::load_or_create(&layout, 2, 2).unwrap();
        let mut claims = PortClaims::new().unwrap();
        let subnet = subnet(&layout, &keys, None, &mut claims).unwrap();
        let file = folder.path().join("models.toml");
        let mine = format!(
            "[[services]]\nmodel = 'mine'\nimage = '{}'\nclass = 'always_on.test'\n\
             input_tokens_per_s = 100\noutput_tokens_per_s = 10\n",
            Digest::of(b"mine")
        );
        std::fs::write(&file, mine).unwrap();
        let setup = Setup {
            layout: &layout,
            subnet: &subnet,
            executors: 2,
            persistent: None,
            traces: None,
            block_ms: 500,
            muster: PathBuf::from("/muster"),
            user: &keys.user,
            image: ImageId(Digest::of(b"image")),
            services: services(&file).unwrap(),
            grader: ImageId(Digest::of(b"grader")),
            grade_every: 60,
            may_cheat: true,
            audits: None,
        };
        taken::<muster_facilitator::Config>("facilitator", &setup.facilitator());
        assert_eq!(setup.facilitator()["gateways"]["allow"], json!([LOCAL]));
        let mut all = setup.configurations();
        let miners = all.split_off(4);
        assert_eq!(miners.len(), 2);
        let [first, second] = [1, 3].map(|place| &all[place]);
        assert_eq!(
            (first.0.as_str(), second.0.as_str()),
            ("validator", "validator-2")
        );
        taken::<muster_validator::Config>("validator-2", &second.1);
        for field in ["bind", "wallet", "store", "operator_token", "ready_file", "pages"] {
            assert_ne!(first.1[field], second.1[field], "{field} is each validator's own");
        }
        for (name, config) in &miners {
            taken::<muster_miner::Config>(name, config);
        }
        for field in [
            "bind",
            "wallet",
            "store",
            "receipts_dir",
            "drain_file",
            "ready_file",
            "standing",
            "tls",
        ] {
            assert_ne!(
                miners[0].1[field], miners[1].1[field],
                "{field} is each miner's own"
            );
        }
        taken::<muster_executor::Config>("executor", &setup.executor());
        let signer = keys.owner.hotkey();
        for facilitator in [None, Some(signer.to_string())] {
            taken::<muster_validator::Config>("validator", &setup.validator(facilitator, 0));
        }
        assert_eq!(first.1["grading"]["every_blocks"], 60);
        assert_eq!(
            second.1["grading"]["every_blocks"], 0,
            "two validators' batches would find each other's leases"
        );
        let text = toml::to_string(&setup.validator(Some(signer.to_string()), 4)).unwrap();
        let validator = parse::<muster_validator::Config>(&text, "validator").unwrap();
        assert!(
            !validator.routing.proven_only,
            "batches prove less than there is here"
        );
        let gateway = validator.gateway;
        assert_eq!(gateway.bind, subnet.gateway);
        assert!(gateway.facilitators.contains(&signer));
        let models: Vec<&str> = gateway
            .services
            .iter()
            .map(|service| service.model.as_str())
            .collect();
        assert_eq!(models, [DEMO_MODEL, "mine"]);
    }
}
