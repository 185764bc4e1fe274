//! A subnet whose processes a test holds one by one: killed, stopped, started again, and reached through relays.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use muster_identity::Keypair;
use muster_identity::wallet::{ColdkeyStorage, WalletPath, create};
use muster_process::ready;
use muster_protocol::JobId;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::devchain::RunningChain;
use crate::process::{muster, wait_for};

/// How long a role may take to be up on a busy machine.
const START: Duration = Duration::from_secs(60);
const HOTKEY: &str = "default";
/// A thousand TAO: enough for a permit.
const STAKE: u64 = 1_000_000_000_000;

/// A role that runs as a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Serves users: the REST API.
    Facilitator,
    /// The role that routes jobs.
    Validator,
    /// The role that runs jobs.
    Miner,
}

impl Role {
    /// Every role, in the order in which they need one another.
    pub const ALL: [Self; 3] = [Self::Facilitator, Self::Miner, Self::Validator];

    /// The subcommand of `muster`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Facilitator => "facilitator",
            Self::Validator => "validator",
            Self::Miner => "miner",
        }
    }
}

/// The settings that differ from one test to the next.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Where the roles keep what they know; SQLite files in the subnet's folder if it is not set. `ROLE` in it stands
    /// for the role.
    pub store: Option<String>,
    /// The address the miner announces; its own if it is not set.
    pub miner_announces: Option<SocketAddr>,
    /// The miner's own port; a free one if it is not set.
    pub miner_port: Option<SocketAddr>,
    /// Where the validator finds its facilitator; its own address if it is not set.
    pub facilitator_through: Option<SocketAddr>,
    /// The facilitator's own port; a free one if it is not set.
    pub facilitator_port: Option<SocketAddr>,
    /// An executor does not start before this file is there.
    pub gate: Option<PathBuf>,
    /// The engine of the executors; the machine's if it is not set.
    pub engine: Option<String>,
    /// How many jobs the miner runs at once.
    pub executors: u32,
    /// Validators that the miner serves although they are in no metagraph.
    pub validators: Vec<String>,
}

/// The keys of everyone.
#[derive(Debug)]
pub struct Keys {
    /// The key of the validator.
    pub validator: Keypair,
    /// The key of the miner.
    pub miner: Keypair,
    /// The key that signs jobs.
    pub user: Keypair,
}

/// A subnet that runs until it is dropped.
#[derive(Debug)]
pub struct Parts {
    folder: tempfile::TempDir,
    chain: RunningChain,
    keys: Keys,
    addresses: [SocketAddr; 3],
    processes: [Option<Child>; 3],
    stores: [String; 3],
}

/// An address on which nobody listens at this moment.
///
/// # Errors
/// There is none.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

const fn place(role: Role) -> usize {
    match role {
        Role::Facilitator => 0,
        Role::Validator => 1,
        Role::Miner => 2,
    }
}

impl Parts {
    /// Starts a chain and every role.
    ///
    /// # Errors
    /// Something does not come up; the message has the end of its log.
    pub fn start(layout: &Layout) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("muster-parts-").tempdir()?;
        let wallets = folder.path().join("wallets");
        let key = |name: &str| -> Result<Keypair> {
            let made = create(
                &WalletPath::new(&wallets, name, HOTKEY),
                ColdkeyStorage::Unencrypted,
            )?;
            Ok(made.hotkey)
        };
        let keys = Keys {
            validator: key("validator")?,
            miner: key("miner")?,
            user: key("user")?,
        };
        let genesis = folder.path().join("genesis.json");
        std::fs::write(&genesis, spec(&keys).to_string())?;
        let genesis = genesis.to_str().context("a folder that is no text")?;
        let chain = RunningChain::start(&["--spec", genesis, "--block-time-ms", "500"])?;
        let given = |address: Option<SocketAddr>| address.map_or_else(free_address, Ok);
        let addresses = [
            given(layout.facilitator_port)?,
            free_address()?,
            given(layout.miner_port)?,
        ];
        let at = |name: &str| {
            format!(
                "sqlite:{}",
                folder.path().join(name).with_extension("db").display()
            )
        };
        let store = |role: Role| match &layout.store {
            Some(template) => template.replace("ROLE", role.name()),
            None => at(role.name()),
        };
        let stores = [Role::Facilitator, Role::Validator, Role::Miner].map(store);
        let mut parts = Self {
            folder,
            chain,
            keys,
            addresses,
            processes: [None, None, None],
            stores,
        };
        for role in Role::ALL {
            let config = parts.config(role, layout)?;
            std::fs::write(parts.file(role, "toml"), config)?;
            parts.begin(role)?;
        }
        parts.wait_for_validator()?;
        Ok(parts)
    }

    /// The folder of everything.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The keys of all parties.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The running devchain.
    pub fn chain(&self) -> &RunningChain {
        &self.chain
    }

    /// Where a role listens.
    pub fn address(&self, role: Role) -> SocketAddr {
        let [facilitator, validator, miner] = self.addresses;
        match role {
            Role::Facilitator => facilitator,
            Role::Validator => validator,
            Role::Miner => miner,
        }
    }

    /// Where a role keeps what it knows.
    pub fn store(&self, role: Role) -> &str {
        let [facilitator, validator, miner] = &self.stores;
        match role {
            Role::Facilitator => facilitator,
            Role::Validator => validator,
            Role::Miner => miner,
        }
    }

    /// Where executors work.
    pub fn work_dir(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn file(&self, role: Role, extension: &str) -> PathBuf {
        self.folder.path().join(role.name()).with_extension(extension)
    }

    fn config(&self, role: Role, layout: &Layout) -> Result<String> {
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
                "public_url": format!("http://{}", self.address(role)),
                "chain": {"url": self.chain.url(), "netuid": 1, "refresh_s": 2},
                "files": {"store": format!("file:{}", self.folder.path().join("files").display())},
                // A test may fill the queue of its validator.
                "limits": {"open_jobs": 10_000},
            }),
            Role::Validator => {
                let door = layout
                    .facilitator_through
                    .unwrap_or(self.address(Role::Facilitator));
                json!({
                    "facilitator": {"url": format!("ws://{door}/ws/v0/"), "answer_s": 5},
                    "wallet": wallet("validator"),
                    "users": {"allow": [self.keys.user.hotkey().to_string()]},
                    // Longer than any pause a busy machine makes: what fails is to fail by the fault that struck.
                    "timing": {"leeway_s": 10, "dial_s": 30, "reservation_s": 30, "startup_s": 60},
                    // There is one miner, and what is done to it is not its fault.
                    "routing": {"max_incidents": 1000},
                })
            }
            Role::Miner => {
                let executor = self.folder.path().join("executor.toml");
                std::fs::write(&executor, self.executor_config(layout)?)?;
                json!({
                    "announce": layout.miner_announces.unwrap_or(self.address(role)),
                    "wallet": wallet("miner"),
                    "receipts_dir": self.folder.path().join("receipts"),
                    "validators": layout.validators,
                    "standing": {"roll": self.folder.path().join("standing")},
                    "executor": {
                        "class": "always_on.test",
                        "count": layout.executors,
                        "command": command(layout, &executor)?,
                    },
                })
            }
        };
        if let (Some(config), Value::Object(more)) = (config.as_object_mut(), more) {
            config.extend(more);
        }
        Ok(toml::to_string(&config)?)
    }

    fn executor_config(&self, layout: &Layout) -> Result<String> {
        let mut config = json!({
            "work_dir": self.work_dir(),
            "stop_grace_s": 1,
            "transfer": {"allow": ["127.0.0.1"], "cache_dir": self.folder.path().join("inputs"), "cache_mib": 0},
        });
        if let (Some(config), Some(engine)) = (config.as_object_mut(), &layout.engine) {
            config.insert("engine".to_owned(), json!(engine));
        }
        Ok(toml::to_string(&config)?)
    }

    /// Starts a role that does not run and waits until it is up.
    ///
    /// # Errors
    /// It does not come up.
    pub fn begin(&mut self, role: Role) -> Result<()> {
        let ready_file = self.file(role, "ready");
        if ready_file.exists() {
            std::fs::remove_file(&ready_file)?;
        }
        self.spawn(role)?;
        let log_file = self.file(role, "log");
        let process = self
            .processes
            .get_mut(place(role))
            .and_then(Option::as_mut)
            .context("no process")?;
        wait_for(&format!("the {}", role.name()), START, || {
            if let Some(status) = process.try_wait()? {
                let log = std::fs::read_to_string(&log_file).unwrap_or_default();
                bail!("the {} ended early ({status}):\n{log}", role.name());
            }
            Ok(ready::read(&ready_file)?)
        })?;
        Ok(())
    }

    fn spawn(&mut self, role: Role) -> Result<()> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.file(role, "log"))?;
        let child = Command::new(muster()?)
            .arg(role.name())
            .arg("--config")
            .arg(self.file(role, "toml"))
            // The lifeline: whoever runs the test may be killed.
            .arg("--lifeline")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start the {}", role.name()))?;
        if let Some(place) = self.processes.get_mut(place(role)) {
            *place = Some(child);
        }
        Ok(())
    }

    /// Starts every process that has ended, as a supervisor would. A process that does not come up is tried again at
    /// the next call.
    ///
    /// # Errors
    /// It cannot be started at all.
    pub fn keep_running(&mut self) -> Result<()> {
        for role in Role::ALL {
            let process = self.processes.get_mut(place(role)).and_then(Option::as_mut);
            if process.is_none_or(|process| !matches!(process.try_wait(), Ok(None))) {
                self.spawn(role)?;
            }
        }
        Ok(())
    }

    /// Sends a signal to a role's process.
    ///
    /// # Errors
    /// It does not run.
    pub fn signal(&self, role: Role, signal: Signal) -> Result<()> {
        let process = self
            .processes
            .get(place(role))
            .and_then(Option::as_ref)
            .context("it does not run")?;
        Ok(kill(Pid::from_raw(i32::try_from(process.id())?), signal)?)
    }

    /// Kills a role without warning and waits until it is gone.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&mut self, role: Role) -> Result<()> {
        self.signal(role, Signal::SIGKILL)?;
        if let Some(mut process) = self.processes.get_mut(place(role)).and_then(Option::take) {
            process.wait()?;
        }
        Ok(())
    }

    /// Processes of executors whose command line names this attempt.
    ///
    /// # Errors
    /// The machine does not list its processes.
    pub fn executors_of(&self, attempt: &str) -> Result<Vec<i32>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            if line.contains("--token") && line.contains(attempt) {
                found.push(pid);
            }
        }
        Ok(found)
    }

    /// Kills the executor of an attempt without warning; how many processes that were.
    ///
    /// # Errors
    /// As [`Self::executors_of`].
    pub fn kill_executor(&self, attempt: &str) -> Result<usize> {
        let processes = self.executors_of(attempt)?;
        for pid in &processes {
            // Each leads a group of its own. One that has just left needs no killing.
            let _ = killpg(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        Ok(processes.len())
    }

    /// The end of a role's log, for messages of failing tests.
    pub fn log(&self, role: Role) -> String {
        let text = std::fs::read_to_string(self.file(role, "log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines
            .get(lines.len().saturating_sub(60)..)
            .unwrap_or_default()
            .join("\n")
    }

    /// Waits until the facilitator has its validator and the validator a miner's address.
    fn wait_for_validator(&self) -> Result<()> {
        let url = format!("http://{}/health", self.address(Role::Facilitator));
        wait_for("the validator at its facilitator", START, || {
            let health = fetch(&url).unwrap_or_default();
            Ok(health
                .get("validators")
                .and_then(Value::as_u64)
                .filter(|count| *count > 0))
        })?;
        let miner = self.keys.miner.hotkey().to_string();
        wait_for("the miner's address on the chain", START, || {
            let text = std::fs::read_to_string(self.file(Role::Miner, "log")).unwrap_or_default();
            Ok(text.contains("the address is on the chain").then_some(()))
        })
        .with_context(|| format!("miner {miner}\n{}", self.log(Role::Miner)))
    }

    /// The validator's state, as it serves it.
    ///
    /// # Errors
    /// It does not answer.
    pub fn validator_state(&self) -> Result<Value> {
        fetch(&format!("http://{}/v0/state", self.address(Role::Validator)))
    }
}

impl Parts {
    /// The ids of the first thousand jobs that wait in the validator's queue, in the order in which they start.
    ///
    /// # Errors
    /// The validator does not answer.
    pub fn waiting_jobs(&self) -> Result<Vec<JobId>> {
        let url = format!("http://{}/v0/queue?limit=1000", self.address(Role::Validator));
        let queue = fetch(&url)?;
        let jobs = queue.get("jobs").and_then(Value::as_array).context("no jobs")?;
        let id = |job: &Value| Ok(job.get("job").and_then(Value::as_str).context("no id")?.parse()?);
        jobs.iter().map(id).collect()
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().flatten() {
            let _ = i32::try_from(process.id()).map(|id| kill(Pid::from_raw(id), Signal::SIGCONT));
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A JSON answer.
fn fetch(url: &str) -> Result<Value> {
    muster_process::tls::install_provider();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let client = reqwest::Client::builder()
            .timeout(Duration::from_secs(5))
            .build()?;
        Ok(client.get(url).send().await?.json().await?)
    })
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
            let script = format!(
                "while [ ! -e '{}' ]; do sleep 0.02; done; exec \"$@\"",
                gate.display()
            );
            let shell = ["sh".to_owned(), "-c".to_owned(), script, "executor".to_owned()];
            shell.into_iter().chain(own).collect()
        }
    })
}

fn spec(keys: &Keys) -> Value {
    let owner = Keypair::generate().hotkey().to_string();
    let (validator, miner) = (
        keys.validator.hotkey().to_string(),
        keys.miner.hotkey().to_string(),
    );
    let neuron = |hotkey: &str, stake: u64, permit: bool| json!({"netuid": 1, "hotkey": hotkey, "coldkey": owner, "stake": stake, "permit": permit});
    json!({
        "subnets": [{"netuid": 1, "tempo": 20}],
        "balances": {owner.clone(): STAKE, validator.clone(): STAKE, miner.clone(): STAKE},
        "neurons": [neuron(&validator, STAKE, true), neuron(&miner, 0, false)],
        "allow_loopback": true,
    })
}
