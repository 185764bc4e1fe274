//! A subnet whose processes a test holds one by one: killed, stopped, started again, and reached through relays.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use muster_identity::Keypair;
use muster_identity::wallet::{ColdkeyStorage, WalletPath, create};
use muster_process::ready;
use muster_protocol::rest::CreateJob;
use muster_protocol::{AttemptId, JobId};
use muster_testbed::tally::count_subnet;
use muster_testbed::{free_address, wait_for};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::devchain::RunningChain;
use crate::http::answer_of;
use crate::process::{muster, release_mounts};
use crate::{log_ends, log_secrets};

mod layout;

pub use layout::{Absences, Keys, Layout, SpareMiner};

/// The time between two blocks, in milliseconds: short, because tests wait for blocks and epochs.
pub(crate) const BLOCK_MS: &str = "200";
const HOTKEY: &str = "default";

/// A role that runs as a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Serves users: the REST API.
    Facilitator,
    /// The role that routes jobs.
    Validator,
    /// The role that runs jobs.
    Miner,
    /// A second miner, of another owner, if the layout has one.
    SpareMiner,
}

impl Role {
    /// Every role, in the order in which they need one another.
    pub const ALL: [Self; 4] = [Self::Facilitator, Self::Miner, Self::SpareMiner, Self::Validator];

    /// The name of its files and its wallet.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Facilitator => "facilitator",
            Self::Validator => "validator",
            Self::Miner => "miner",
            Self::SpareMiner => "spare_miner",
        }
    }

    /// The subcommand of `muster`.
    const fn command(self) -> &'static str {
        match self {
            Self::Facilitator => "facilitator",
            Self::Validator => "validator",
            Self::Miner | Self::SpareMiner => "miner",
        }
    }
}

/// A subnet that runs until it is dropped.
#[derive(Debug)]
pub struct Parts {
    folder: tempfile::TempDir,
    chain: RunningChain,
    keys: Keys,
    /// The roles that this subnet has, in the order in which they need one another.
    roles: Vec<Role>,
    addresses: [SocketAddr; 4],
    processes: [Option<Child>; 4],
    stores: [String; 4],
}

const fn place(role: Role) -> usize {
    match role {
        Role::Facilitator => 0,
        Role::Validator => 1,
        Role::Miner => 2,
        Role::SpareMiner => 3,
    }
}

impl Parts {
    /// Starts a chain and every role.
    ///
    /// # Errors
    /// Something does not come up; the message has the end of its log.
    pub fn start(layout: &Layout) -> Result<Self> {
        count_subnet("parts")?;
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
            spare_miner: key("spare_miner")?,
            user: key("user")?,
        };
        let genesis = folder.path().join("genesis.json");
        std::fs::write(&genesis, layout::spec(&keys, layout).to_string())?;
        let genesis = genesis.to_str().context("a folder that is no text")?;
        let chain = RunningChain::start(&["--spec", genesis, "--block-time-ms", BLOCK_MS])?;
        let given = |address: Option<SocketAddr>| address.map_or_else(free_address, Ok);
        let addresses = [
            given(layout.facilitator_port)?,
            free_address()?,
            given(layout.miner_port)?,
            given(layout.spare_miner.as_ref().map(|spare| spare.port))?,
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
        let stores = [Role::Facilitator, Role::Validator, Role::Miner, Role::SpareMiner].map(store);
        let there = |role: &Role| *role != Role::SpareMiner || layout.spare_miner.is_some();
        let roles: Vec<_> = Role::ALL.into_iter().filter(there).collect();
        let mut parts = Self {
            folder,
            chain,
            keys,
            roles: roles.clone(),
            addresses,
            processes: [const { None }; 4],
            stores,
        };
        for role in roles {
            if role == Role::Validator {
                // The validator's first reading of the chain then has the addresses, whatever strikes the chain.
                parts.wait_for_miners()?;
            }
            let config = parts.config(role, layout)?;
            std::fs::write(parts.config_file(role), config)?;
            parts.begin(role)?;
        }
        parts.wait_for_validator()?;
        Ok(parts)
    }

    /// The roles that this subnet has, in the order in which they need one another.
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// The folder of everything.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A job for the validator that runs a script of the shell, for at most `execution_s` seconds.
    ///
    /// # Errors
    /// A job has other fields.
    pub fn shell_job(&self, image: &str, script: &str, execution_s: u64) -> Result<CreateJob> {
        let job = json!({
            "target_validator_hotkey": self.keys().validator.hotkey().to_string(),
            "executor_class": "always_on.test",
            "docker_image": image,
            "args": ["-c", script],
            "download_time_limit": 30,
            "execution_time_limit": execution_s,
            "streaming_start_time_limit": 0,
            "upload_time_limit": 20,
        });
        Ok(serde_json::from_value(job)?)
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
        let [facilitator, validator, miner, spare_miner] = self.addresses;
        match role {
            Role::Facilitator => facilitator,
            Role::Validator => validator,
            Role::Miner => miner,
            Role::SpareMiner => spare_miner,
        }
    }

    /// Where a role keeps what it knows.
    pub fn store(&self, role: Role) -> &str {
        let [facilitator, validator, miner, spare_miner] = &self.stores;
        match role {
            Role::Facilitator => facilitator,
            Role::Validator => validator,
            Role::Miner => miner,
            Role::SpareMiner => spare_miner,
        }
    }

    /// Where executors work.
    pub fn work_dir(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// The configuration of a role.
    pub fn config_file(&self, role: Role) -> PathBuf {
        self.file(role, "toml")
    }

    fn file(&self, role: Role, extension: &str) -> PathBuf {
        self.folder.path().join(role.name()).with_extension(extension)
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
        wait_for(&format!("the {}", role.name()), || {
            if let Some(status) = process.try_wait()? {
                let log = std::fs::read_to_string(&log_file).unwrap_or_default();
                bail!("the {} ended early ({status}):\n{log}", role.name());
            }
            anyhow::Ok(ready::read(&ready_file)?)
        })?;
        Ok(())
    }

    fn spawn(&mut self, role: Role) -> Result<()> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.file(role, "log"))?;
        let child = Command::new(muster()?)
            .arg(role.command())
            .arg("--config")
            .arg(self.config_file(role))
            // For a bucket of a test.
            .env("AWS_ACCESS_KEY_ID", "a")
            .env("AWS_SECRET_ACCESS_KEY", "b")
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
        for role in self.roles.clone() {
            let process = self.processes.get_mut(place(role)).and_then(Option::as_mut);
            if process.is_none_or(|process| !matches!(process.try_wait(), Ok(None))) {
                self.spawn(role)?;
            }
        }
        Ok(())
    }

    /// The id of a role's process.
    ///
    /// # Errors
    /// It does not run.
    pub fn pid(&self, role: Role) -> Result<i32> {
        let process = self.processes.get(place(role)).and_then(Option::as_ref);
        Ok(i32::try_from(process.context("it does not run")?.id())?)
    }

    /// Sends a signal to a role's process.
    ///
    /// # Errors
    /// It does not run.
    pub fn signal(&self, role: Role, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.pid(role)?), signal)?)
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

    /// Processes of executors whose token is of this attempt.
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
            let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let wanted = format!("EXECUTOR_TOKEN={attempt}");
            let mut variables = variables.split(|byte| *byte == 0);
            if variables.any(|variable| variable.starts_with(wanted.as_bytes())) {
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
        log_ends::end_of(&self.file(role, "log"))
    }

    /// Waits until the facilitator has its validator.
    fn wait_for_validator(&self) -> Result<()> {
        let url = format!("http://{}/health", self.address(Role::Facilitator));
        wait_for("the validator at its facilitator", || {
            let health = answer_of(|client| client.get(&url)).unwrap_or_default();
            let validators = health.get("validators").and_then(Value::as_u64);
            anyhow::Ok(validators.is_some_and(|count| count > 0).then_some(()))
        })
    }

    /// Waits until the chain has the address of each miner.
    fn wait_for_miners(&self) -> Result<()> {
        for role in self.roles.iter().filter(|role| role.command() == "miner") {
            wait_for("the miner's address on the chain", || {
                let text = std::fs::read_to_string(self.file(*role, "log")).unwrap_or_default();
                anyhow::Ok(text.contains("the address is on the chain").then_some(()))
            })
            .with_context(|| format!("{}\n{}", role.name(), self.log(*role)))?;
        }
        Ok(())
    }

    /// The end of every role's log, for messages of failing tests.
    pub fn logs(&self) -> String {
        let log = |role: &Role| format!("== {}\n{}\n", role.name(), self.log(*role));
        self.roles.iter().map(log).collect()
    }

    /// The validator's state, as it serves it.
    ///
    /// # Errors
    /// It does not answer.
    pub fn validator_state(&self) -> Result<Value> {
        let url = format!("http://{}/v0/state", self.address(Role::Validator));
        answer_of(|client| client.get(url))
    }
}

impl Parts {
    /// The attempts of a job so far, oldest first, each with its miner.
    ///
    /// # Errors
    /// The validator does not answer.
    pub fn attempts_of(&self, job: JobId) -> Result<Vec<(AttemptId, Role)>> {
        let state = self.validator_state()?;
        let jobs = state.get("jobs").and_then(Value::as_array).context("no jobs")?;
        let id = job.to_string();
        let known = jobs
            .iter()
            .find(|known| known.get("job").and_then(Value::as_str) == Some(&id));
        let attempts = known.and_then(|known| known.get("attempts")?.as_array());
        let spare = self.keys.spare_miner.hotkey().to_string();
        let text = |attempt: &Value, key: &str| attempt.get(key).and_then(Value::as_str).map(str::to_owned);
        let read = |attempt: &Value| {
            let miner = match text(attempt, "miner") {
                Some(miner) if miner == spare => Role::SpareMiner,
                Some(_) | None => Role::Miner,
            };
            let id = text(attempt, "attempt").context("an attempt without an id")?;
            Ok((id.parse()?, miner))
        };
        attempts.into_iter().flatten().map(read).collect()
    }

    /// The ids of the first thousand jobs that wait in the validator's queue, in the order in which they start.
    ///
    /// # Errors
    /// The validator does not answer.
    pub fn waiting_jobs(&self) -> Result<Vec<JobId>> {
        let url = format!("http://{}/v0/queue?limit=1000", self.address(Role::Validator));
        let queue = answer_of(|client| client.get(&url))?;
        let jobs = queue.get("jobs").and_then(Value::as_array).context("no jobs")?;
        let id = |job: &Value| Ok(job.get("job").and_then(Value::as_str).context("no id")?.parse()?);
        jobs.iter().map(id).collect()
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        let logs: Vec<_> = self.roles.iter().map(|role| self.file(*role, "log")).collect();
        log_ends::show_if_panicking(&logs);
        for process in self.processes.iter_mut().flatten() {
            let _ = i32::try_from(process.id()).map(|id| kill(Pid::from_raw(id), Signal::SIGCONT));
            let _ = process.kill();
            let _ = process.wait();
        }
        release_mounts(self.folder.path());
        // A test that fails already has its own reason.
        if !std::thread::panicking() {
            let found = log_secrets::find_beside_roles(self.folder.path())
                .unwrap_or_else(|error| vec![error.to_string()]);
            assert!(
                found.is_empty(),
                "the logs of these roles show secrets: {found:?}"
            );
        }
    }
}
