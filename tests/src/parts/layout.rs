//! The settings of a subnet's processes, and its chain's first block.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use muster_identity::Keypair;
use serde_json::{Value, json};

use super::{HOTKEY, Parts, Role};
use crate::image::IMAGES_OF_TESTS;
use crate::process::muster;

/// A thousand TAO: enough for a permit.
const STAKE: u64 = 1_000_000_000_000;

/// The settings that differ from one test to the next.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Where the roles keep what they know; SQLite files in the subnet's folder if it is not set. `ROLE` in it stands
    /// for the role.
    pub store: Option<String>,
    /// The address the miner announces; its own if it is not set.
    pub miner_announces: Option<SocketAddr>,
    /// Where the miner's executors dial; its own address if it is not set.
    pub executors_dial: Option<SocketAddr>,
    /// The miner's own port; a free one if it is not set.
    pub miner_port: Option<SocketAddr>,
    /// Where the validator finds its facilitator; its own address if it is not set.
    pub facilitator_through: Option<SocketAddr>,
    /// The facilitator's own port; a free one if it is not set.
    pub facilitator_port: Option<SocketAddr>,
    /// The facilitator's URL in what it signs; its own address if it is not set.
    pub public_url: Option<String>,
    /// The object store of the facilitator, with the credentials `a` and `b` if it is a bucket; a folder of its own if
    /// it is not set.
    pub files: Option<String>,
    /// An executor does not start before this file is there.
    pub gate: Option<PathBuf>,
    /// The engine of the executors; the machine's if it is not set.
    pub engine: Option<String>,
    /// How many jobs each miner runs at once.
    pub executors: u32,
    /// A second miner, of another owner.
    pub spare_miner: Option<SpareMiner>,
    /// How long the validator waits for a miner's greeting, and for its answer to an offer, in seconds; longer than any
    /// pause of a busy machine if it is not set.
    pub miner_answer_s: Option<u64>,
    /// How long each party waits for one that is away; the defaults if it is not set.
    pub absences: Option<Absences>,
    /// The longest that a program keeps an executor of a miner, in seconds; as long as its job allows if it is not set.
    pub lend_s: Option<u64>,
    /// Validators that the miner serves although they are in no metagraph.
    pub validators: Vec<String>,
}

/// A second miner of a subnet.
#[derive(Clone, Copy, Debug)]
pub struct SpareMiner {
    /// The miner's own port.
    pub port: SocketAddr,
    /// The address that the miner announces.
    pub announces: SocketAddr,
    /// The address that the miner's executors dial.
    pub executors_dial: SocketAddr,
}

/// How long each party waits for one that is away, in seconds. ADR 0053 orders them.
#[derive(Clone, Copy, Debug)]
pub struct Absences {
    /// How long an executor goes on without its miner.
    pub orphan_s: u64,
    /// How long a miner waits for an executor.
    pub miner_s: u64,
    /// How long a validator waits for a miner.
    pub validator_s: u64,
}

/// The keys of everyone.
#[derive(Debug)]
pub struct Keys {
    /// The key of the validator.
    pub validator: Keypair,
    /// The key of the miner.
    pub miner: Keypair,
    /// The key of the second miner, which has another owner.
    pub spare_miner: Keypair,
    /// The key that signs jobs.
    pub user: Keypair,
}

impl Parts {
    pub(super) fn config(&self, role: Role, layout: &Layout) -> Result<String> {
        let chain = json!({"url": self.chain.url(), "netuid": 1});
        let wallet =
            |name: &str| json!({"root": self.folder.path().join("wallets"), "name": name, "hotkey": HOTKEY});
        let mut config = json!({
            "bind": self.address(role),
            "ready_file": self.file(role, "ready"),
            "store": self.store(role),
            "chain": chain,
        });
        let more = match role {
            Role::Facilitator => json!({
                "public_url": layout.public_url.clone().unwrap_or(format!("http://{}", self.address(role))),
                "chain": {"url": self.chain.url(), "netuid": 1, "refresh_s": 2},
                "files": {"store": layout.files.clone().unwrap_or(format!("file:{}", self.folder.path().join("files").display()))},
                // A test may fill the queue of its validator.
                "limits": {"open_jobs": 10_000},
            }),
            Role::Validator => {
                let facilitator = layout
                    .facilitator_through
                    .unwrap_or(self.address(Role::Facilitator));
                // Longer than any pause a busy machine makes: what fails is to fail by the fault that struck.
                let answer_s = layout.miner_answer_s.unwrap_or(30);
                let mut timing =
                    json!({"leeway_s": 10, "dial_s": answer_s, "reservation_s": answer_s, "startup_s": 60});
                if let Some(absences) = layout.absences {
                    extend(
                        &mut timing,
                        json!({"reconnect_s": absences.validator_s, "reattach_s": absences.validator_s}),
                    );
                }
                json!({
                    "operator_token": self.file(role, "token"),
                    "dial": {"allow": ["127.0.0.0/8"]},
                    "facilitator": {"url": format!("ws://{facilitator}/ws/v0/"), "answer_s": 5},
                    "wallet": wallet("validator"),
                    "users": {"allow": [self.keys.user.hotkey().to_string()]},
                    "timing": timing,
                    // A miner is not to blame for the faults that strike it.
                    "routing": {"max_incidents": 1000},
                })
            }
            Role::Miner => self.miner_config(role, layout, layout.miner_announces, layout.executors_dial)?,
            Role::SpareMiner => {
                let announced = layout.spare_miner.map(|spare| spare.announces);
                let dialled = layout.spare_miner.map(|spare| spare.executors_dial);
                self.miner_config(role, layout, announced, dialled)?
            }
        };
        extend(&mut config, more);
        Ok(toml::to_string(&config)?)
    }

    fn miner_config(
        &self,
        role: Role,
        layout: &Layout,
        announced: Option<SocketAddr>,
        dialled: Option<SocketAddr>,
    ) -> Result<Value> {
        let executor = self.folder.path().join("executor.toml");
        std::fs::write(&executor, self.executor_config(layout)?)?;
        let name = role.name();
        let mut provisioned = json!({
            "class": "always_on.test",
            "count": layout.executors,
            "command": command(layout, &executor)?,
            "dial": dialled.map(|address| format!("ws://{address}")).unwrap_or_default(),
        });
        if let Some(absences) = layout.absences {
            extend(&mut provisioned, json!({"reattach_s": absences.miner_s}));
        }
        if let Some(lend_s) = layout.lend_s {
            extend(&mut provisioned, json!({"lend_s": lend_s}));
        }
        Ok(json!({
            "announce": announced.unwrap_or(self.address(role)),
            "wallet": {"root": self.folder.path().join("wallets"), "name": name, "hotkey": HOTKEY},
            "receipts_dir": self.folder.path().join(format!("{name}-receipts")),
            "validators": layout.validators,
            "drain_file": self.folder.path().join(format!("{name}-drain")),
            "standing": {"roll": self.folder.path().join(format!("{name}-standing"))},
            "tls": {
                // A relay before the miner reads and changes frames, which TLS is there to prevent.
                "enabled": announced.is_none(),
                "certificate": self.folder.path().join(format!("{name}-tls/port.pem")),
            },
            "executor": provisioned,
        }))
    }

    fn executor_config(&self, layout: &Layout) -> Result<String> {
        let mut config = json!({
            "work_dir": self.work_dir(),
            "stop_grace_s": 1,
            "transfer": {"allow": ["127.0.0.1"], "cache_dir": self.folder.path().join("inputs"), "cache_mib": 0},
        });
        if let Some(engine) = &layout.engine {
            extend(&mut config, json!({"engine": engine}));
        }
        if let Some(absences) = layout.absences {
            extend(&mut config, json!({"orphan_s": absences.orphan_s}));
        }
        Ok(toml::to_string(&config)? + IMAGES_OF_TESTS)
    }
}

/// Adds the settings of `more`.
fn extend(settings: &mut Value, more: Value) {
    if let (Some(settings), Value::Object(more)) = (settings.as_object_mut(), more) {
        settings.extend(more);
    }
}

/// Starts an executor, behind the gate if there is one.
fn command(layout: &Layout, executor: &Path) -> Result<Vec<String>> {
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path that is no text");
    let own = [
        text(&muster()?)?,
        "executor".to_owned(),
        "--config".to_owned(),
        text(executor)?,
    ];
    Ok(match &layout.gate {
        None => own.to_vec(),
        Some(gate) => {
            let folder = gate.parent().context("a gate without a folder")?;
            // The wait ends with the test, which takes the gate's folder along.
            let script = format!(
                "while [ ! -e '{}' ]; do [ -d '{}' ] || exit 1; sleep 0.02; done; exec \"$@\"",
                gate.display(),
                folder.display()
            );
            let shell = ["sh".to_owned(), "-c".to_owned(), script, "executor".to_owned()];
            shell.into_iter().chain(own).collect()
        }
    })
}

/// The first block: a subnet of the validator and its miners.
pub(super) fn spec(keys: &Keys, layout: &Layout) -> Value {
    // Work that an owner's validator pays to the owner's miner does not count, so each of them has an owner.
    let [owner, miners_owner, other_owner] = [(); 3].map(|()| Keypair::generate().hotkey().to_string());
    let [validator, miner, spare] =
        [&keys.validator, &keys.miner, &keys.spare_miner].map(|key| key.hotkey().to_string());
    let neuron = |hotkey: &str, owner: &str, stake: u64, permit: bool| json!({"netuid": 1, "hotkey": hotkey, "coldkey": owner, "stake": stake, "permit": permit});
    let mut neurons = vec![
        neuron(&validator, &owner, STAKE, true),
        neuron(&miner, &miners_owner, 0, false),
    ];
    if layout.spare_miner.is_some() {
        neurons.push(neuron(&spare, &other_owner, 0, false));
    }
    json!({
        "subnets": [{"netuid": 1, "tempo": 20}],
        "balances": {owner: STAKE, miners_owner: STAKE, other_owner: STAKE, validator: STAKE, miner: STAKE, spare: STAKE},
        "neurons": neurons,
        "allow_loopback": true,
    })
}
