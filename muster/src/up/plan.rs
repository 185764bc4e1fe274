//! The plan of a local subnet: wallets, addresses, the chain's genesis, and a configuration for each role.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use muster_chain::Netuid;
use muster_identity::Keypair;
use muster_identity::wallet::{self, ColdkeyStorage, WalletPath};
use muster_protocol::{ErrorCode, ImageId, MinerKey, ValidatorKey};
use serde_json::{Value, json};

use super::state::{Layout, Subnet};
use crate::failure::{Failure, Result};

/// Starts an executor of the demonstration. The executor that can rename the flag, the first argument, gets the
/// Docker engine of the second argument; the rest is the executor's own command.
const MAYBE_CHEAT: &str =
    r#"if mv "$1" "$1.taken" 2>/dev/null; then DOCKER_HOST=$2; export DOCKER_HOST; fi; shift 2; exec "$@""#;

/// The subnet of a local chain.
pub(crate) const NETUID: Netuid = Netuid(1);
const HOTKEY: &str = "default";
/// The model that a local subnet serves.
pub(crate) const DEMO_MODEL: &str = "parrot";
/// A thousand TAO, in rao: enough for a permit.
const STAKE: u64 = 1_000_000_000_000;

/// The keys of a local subnet.
pub(crate) struct Keys {
    pub(crate) validator: Keypair,
    pub(crate) miner: Keypair,
    pub(crate) user: Keypair,
    /// Owns both hotkeys on the chain; nothing but the genesis uses it.
    pub(crate) owner: Keypair,
}

impl Keys {
    /// Loads the wallets of an earlier run, or makes them.
    pub(crate) fn load_or_create(layout: &Layout) -> Result<Self> {
        let unusable = |error| Failure::new(ErrorCode::WalletUnusable, error);
        let key = |name: &str| {
            let path = WalletPath::new(layout.wallets(), name, HOTKEY);
            if path.hotkey_file().map_err(unusable)?.exists() {
                return wallet::load_hotkey(&path).map_err(unusable);
            }
            // These coldkeys own nothing of worth, and a local subnet needs them to register further keys.
            wallet::create(&path, ColdkeyStorage::Unencrypted)
                .map(|made| made.hotkey)
                .map_err(unusable)
        };
        Ok(Self {
            validator: key("validator")?,
            miner: key("miner")?,
            user: key("user")?,
            owner: key("owner")?,
        })
    }
}

/// The addresses of all roles. An earlier run's addresses are kept while they are free, so that bookmarks hold.
pub(crate) fn subnet(layout: &Layout, keys: &Keys, earlier: Option<&Subnet>) -> anyhow::Result<Subnet> {
    // Every listener is held until all are chosen, so that none is chosen twice.
    let mut held = Vec::new();
    let mut address = |earlier: Option<SocketAddr>| -> anyhow::Result<SocketAddr> {
        let listener = match earlier.and_then(|address| TcpListener::bind(address).ok()) {
            Some(listener) => listener,
            None => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?,
        };
        let address = listener.local_addr()?;
        held.push(listener);
        Ok(address)
    };
    Ok(Subnet {
        chain: address(earlier.map(|s| s.chain))?,
        facilitator: address(earlier.map(|s| s.facilitator))?,
        validator_status: address(earlier.map(|s| s.validator_status))?,
        gateway: Some(address(earlier.and_then(|s| s.gateway))?),
        metrics: Some(address(earlier.and_then(|s| s.metrics))?),
        miner_address: address(earlier.map(|s| s.miner_address))?,
        validator: ValidatorKey(keys.validator.hotkey()),
        miner: MinerKey(keys.miner.hotkey()),
        wallets: layout.wallets(),
    })
}

/// The chain's genesis: one subnet with the validator and the miner in it.
///
/// A balance of a key that nobody holds makes every run's chain another chain, so that no role takes its blocks for
/// those of the last run.
pub(crate) fn genesis(keys: &Keys, tempo: u16) -> Value {
    let owner = keys.owner.hotkey().to_string();
    let neuron = |hotkey: String, stake: u64, permit: bool| json!({"netuid": NETUID.0, "hotkey": hotkey, "coldkey": owner, "stake": stake, "permit": permit});
    let nobody = Keypair::generate().hotkey().to_string();
    json!({
        "subnets": [{"netuid": NETUID.0, "tempo": tempo}],
        "balances": {
            owner.clone(): STAKE,
            keys.validator.hotkey().to_string(): STAKE,
            keys.miner.hotkey().to_string(): STAKE,
            nobody: STAKE,
        },
        "neurons": [
            neuron(keys.validator.hotkey().to_string(), STAKE, true),
            neuron(keys.miner.hotkey().to_string(), 0, false),
        ],
        "allow_loopback": true,
    })
}

/// The facts that the roles' configurations depend on.
pub(crate) struct Setup<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) subnet: &'a Subnet,
    pub(crate) executors: u32,
    /// The address on which persistent executors connect.
    pub(crate) standing: Option<SocketAddr>,
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
    /// Whether an executor cheats once the flag of [`Layout::cheat_flag`] is there.
    pub(crate) may_cheat: bool,
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
    pub(crate) fn configurations(&self) -> [(&'static str, Value); 4] {
        [
            ("facilitator", self.facilitator()),
            ("validator", self.validator(None)),
            ("miner", self.miner()),
            ("executor", self.executor()),
        ]
    }

    fn store(&self, role: &str) -> String {
        format!("sqlite:{}", self.layout.data(&format!("{role}.db")).display())
    }

    fn wallet(&self, name: &str) -> Value {
        json!({"root": self.layout.wallets(), "name": name, "hotkey": HOTKEY})
    }

    fn facilitator(&self) -> Value {
        json!({
            "bind": self.subnet.facilitator,
            "ready_file": self.layout.ready("facilitator"),
            "store": self.store("facilitator"),
            "public_url": self.subnet.facilitator_url(),
            "chain": {"url": self.subnet.chain_url(), "netuid": NETUID.0, "refresh_s": 2},
            "files": {"store": format!("file:{}", self.layout.data("files").display())},
        })
    }

    /// Also the jobs of `signer` are taken: the facilitator's own key, known once it runs, signs for who has an API
    /// key only.
    pub(crate) fn validator(&self, signer: Option<String>) -> Value {
        let users: Vec<String> = [self.user.hotkey().to_string()]
            .into_iter()
            .chain(signer.clone())
            .collect();
        json!({
            "facilitator": {"url": format!("ws://{}/ws/v0/", self.subnet.facilitator)},
            "wallet": self.wallet("validator"),
            "chain": {"url": self.subnet.chain_url(), "netuid": NETUID.0},
            "store": self.store("validator"),
            "users": {"allow": users},
            "bind": self.subnet.validator_status,
            "ready_file": self.layout.ready("validator"),
            "gateway": self.gateway(signer),
            "grading": {
                "every_blocks": 0,
                "gather_s": 60,
                "images": {"always_on.test": {"image": self.grader}},
            },
        })
    }

    /// The demo image, which repeats what it hears, and what the user brought.
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
        });
        let services: Vec<Value> = std::iter::once(demo)
            .chain(self.services.iter().cloned())
            .collect();
        let mut gateway = json!({
            "facilitators": Vec::from_iter(facilitator),
            "max_sessions": self.executors.saturating_sub(1).max(1),
            "heartbeat_s": 2,
            "patience_s": 90,
            "start_s": 60,
            "services": services,
        });
        if let (Some(gateway), Some(bind)) = (gateway.as_object_mut(), self.subnet.gateway) {
            gateway.insert("bind".to_owned(), json!(bind));
        }
        gateway
    }

    fn miner(&self) -> Value {
        let mut standing = json!({"roll": self.layout.data("standing")});
        if let (Some(address), Some(standing)) = (self.standing, standing.as_object_mut()) {
            standing.insert("bind".to_owned(), json!(address));
        }
        let mut executor = Vec::new();
        if self.may_cheat {
            let engine = format!("unix://{}", self.layout.cheat_socket().display());
            executor.extend(["/bin/sh", "-c", MAYBE_CHEAT, "executor"].map(PathBuf::from));
            executor.extend([self.layout.cheat_flag(), engine.into()]);
        }
        executor.extend([
            self.muster.clone(),
            "executor".into(),
            "--config".into(),
            self.layout.config("executor"),
        ]);
        json!({
            "bind": self.subnet.miner_address,
            "announce": self.subnet.miner_address,
            "ready_file": self.layout.ready("miner"),
            "wallet": self.wallet("miner"),
            "chain": {"url": self.subnet.chain_url(), "netuid": NETUID.0},
            "store": self.store("miner"),
            "receipts_dir": self.layout.data("receipts"),
            "standing": standing,
            "executor": {
                "class": "always_on.test",
                "count": self.executors,
                "command": executor,
            },
        })
    }

    fn executor(&self) -> Value {
        // Users' files lie with the facilitator of this machine, and jobs fetch and leave them there.
        let door = self.subnet.facilitator;
        json!({
            "work_dir": self.layout.data("executor"),
            "images": {"cache_dir": self.layout.data("images")},
            "transfer": {"allow": [door.to_string()]},
        })
    }
}

/// Writes a configuration as TOML, with a head that says where it comes from.
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
        let keys = Keys::load_or_create(&layout).unwrap();
        let subnet = subnet(&layout, &keys, None).unwrap();
        let file = folder.path().join("models.toml");
        let mine = format!(
            "[[services]]\nmodel = 'mine'\nimage = '{}'\nclass = 'always_on.test'\n",
            Digest::of(b"mine")
        );
        std::fs::write(&file, mine).unwrap();
        let setup = Setup {
            layout: &layout,
            subnet: &subnet,
            executors: 2,
            standing: None,
            block_ms: 500,
            muster: PathBuf::from("/muster"),
            user: &keys.user,
            image: ImageId(Digest::of(b"image")),
            services: services(&file).unwrap(),
            grader: ImageId(Digest::of(b"grader")),
            may_cheat: true,
        };
        taken::<muster_facilitator::Config>("facilitator", &setup.facilitator());
        taken::<muster_miner::Config>("miner", &setup.miner());
        taken::<muster_executor::Config>("executor", &setup.executor());
        let signer = keys.owner.hotkey();
        for facilitator in [None, Some(signer.to_string())] {
            taken::<muster_validator::Config>("validator", &setup.validator(facilitator));
        }
        let text = toml::to_string(&setup.validator(Some(signer.to_string()))).unwrap();
        let gateway = parse::<muster_validator::Config>(&text, "validator")
            .unwrap()
            .gateway;
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
