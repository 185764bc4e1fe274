//! The folder of a local subnet: where everything lies, and the file that names the addresses of all.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use muster_protocol::{ErrorCode, MinerKey, ValidatorKey};
use muster_terminal::failure::Failure;
use serde::{Deserialize, Serialize};

/// A log larger than this is set aside when the subnet starts, in place of the one set aside before.
const LOG_BYTES: u64 = 16 * 1024 * 1024;

/// Paths inside the folder of a local subnet.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The folder itself, without links.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Makes the folders that are not there yet.
    pub fn create(root: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(root).with_context(|| format!("cannot make {}", root.display()))?;
        let root = root
            .canonicalize()
            .with_context(|| format!("cannot use {}", root.display()))?;
        let layout = Self { root };
        for folder in ["config", "data", "images", "logs", "run", "wallets"] {
            let folder = layout.root.join(folder);
            std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        Ok(layout)
    }

    /// Wallets of every role and of the user.
    pub fn wallets(&self) -> PathBuf {
        self.root.join("wallets")
    }

    /// A role's configuration.
    pub fn config(&self, role: &str) -> PathBuf {
        self.root.join("config").join(format!("{role}.toml"))
    }

    /// The chain's genesis.
    pub fn genesis(&self) -> PathBuf {
        self.root.join("config/genesis.json")
    }

    /// The path of a role's data.
    pub fn data(&self, name: &str) -> PathBuf {
        self.root.join("data").join(name)
    }

    /// The token of the validator's operator.
    pub fn operator_token(&self) -> PathBuf {
        self.data("validator.token")
    }

    /// The archive of an image of ours.
    pub fn image(&self, name: &str) -> PathBuf {
        self.root.join("images").join(format!("{name}.tar"))
    }

    /// The failure of a start in a folder in which a subnet runs.
    fn occupied(&self) -> Failure {
        let process = std::fs::read_to_string(self.lock()).unwrap_or_default();
        // The subnet that runs may be about to write its addresses.
        let facilitator = match LocalSubnet::read(&self.root) {
            Ok(Some(subnet)) => format!(", facilitator {}", subnet.facilitator_url()),
            Ok(None) | Err(_) => String::new(),
        };
        let error = anyhow::anyhow!(
            "a subnet runs in {} already (process {process}{facilitator}): use it, stop it with Ctrl-C where it was \
             started, or name another folder with --dir",
            self.root.display()
        );
        Failure::new(ErrorCode::SubnetRunsAlready, error)
    }

    /// The path of a role's log.
    pub fn log(&self, role: &str) -> PathBuf {
        self.root.join("logs").join(format!("{role}.log"))
    }

    /// Sets a role's log aside if it has grown large.
    pub fn rotate_log(&self, role: &str) -> anyhow::Result<()> {
        let log = self.log(role);
        if std::fs::metadata(&log).is_ok_and(|meta| meta.len() > LOG_BYTES) {
            std::fs::rename(&log, log.with_extension("log.old")).context("cannot set a log aside")?;
        }
        Ok(())
    }

    /// The file that the process which runs the subnet keeps locked; it holds that process's id.
    fn lock(&self) -> PathBuf {
        self.root.join("run/up.lock")
    }

    /// The process id of a role.
    pub fn pid(&self, role: &str) -> PathBuf {
        self.root.join("run").join(format!("{role}.pid"))
    }

    /// The file by which the demonstration lets one executor cheat: the executor that can rename it does.
    pub fn cheat_flag(&self) -> PathBuf {
        self.root.join("run/cheat")
    }

    /// The socket of the Docker engine that lies to the cheating executor.
    pub fn cheat_socket(&self) -> PathBuf {
        self.root.join("run/cheat.sock")
    }

    /// The token of a miner's operator.
    pub fn miner_token(&self, name: &str) -> PathBuf {
        self.data(&format!("{name}-operator.token"))
    }

    /// The file by which a role reports that it is up.
    pub fn ready(&self, role: &str) -> PathBuf {
        self.root.join("run").join(format!("{role}.ready"))
    }
}

/// The right to run a subnet in a folder. It ends with the process, however that ends.
#[derive(Debug)]
pub struct FolderLock {
    /// Locked for as long as it is open.
    _file: File,
}

impl FolderLock {
    /// Takes the right to run a subnet in this folder.
    ///
    /// # Errors
    /// A subnet runs there already, or the file cannot be locked.
    pub fn take(layout: &Layout) -> Result<Self, Failure> {
        let path = layout.lock();
        let cannot = || format!("cannot lock {}", path.display());
        let mut file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&path)
            .with_context(cannot)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(layout.occupied()),
            Err(TryLockError::Error(error)) => {
                return Err(anyhow::Error::new(error).context(cannot()).into());
            }
        }
        file.set_len(0).with_context(cannot)?;
        write!(file, "{}", std::process::id()).with_context(cannot)?;
        Ok(Self { _file: file })
    }
}

/// The keys and addresses of the subnet. Users' commands read this file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalSubnet {
    /// The chain's JSON-RPC.
    pub chain: SocketAddr,
    /// The facilitator's REST API.
    pub facilitator: SocketAddr,
    /// The validator's read-only status.
    pub validator_status: SocketAddr,
    /// The validator's gateway for streaming sessions; none in the folder of an older version.
    #[serde(default)]
    pub gateway: Option<SocketAddr>,
    /// Where the first validator serves its metrics; likewise.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// Where the other roles serve theirs, by their names.
    #[serde(default)]
    pub further_metrics: BTreeMap<String, SocketAddr>,
    /// The first miner's port for validators and executors.
    pub miner_address: SocketAddr,
    /// The key of the validator.
    pub validator: ValidatorKey,
    /// The key of the first miner.
    pub miner: MinerKey,
    /// The miners after the first.
    #[serde(default)]
    pub further_miners: Vec<FurtherMiner>,
    /// Where the first validator serves its pages to others; none in the folder of an older version.
    #[serde(default)]
    pub pages: Option<SocketAddr>,
    /// The validators after the first.
    #[serde(default)]
    pub further_validators: Vec<FurtherValidator>,
    /// Where validators and miners serve their operators' pages, by their names.
    #[serde(default)]
    pub operators: BTreeMap<String, SocketAddr>,
    /// Wallets, the user's among them.
    pub wallets: PathBuf,
}

/// A validator after the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FurtherValidator {
    /// The validator's hotkey, by which the chain knows it.
    pub key: ValidatorKey,
    /// Its read-only status.
    pub status: SocketAddr,
    /// Where it serves its pages to others.
    pub pages: SocketAddr,
}

/// A miner after the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FurtherMiner {
    /// The miner's hotkey, by which the chain knows it.
    pub key: MinerKey,
    /// The address that it announces.
    pub address: SocketAddr,
}

impl LocalSubnet {
    /// Where a role serves its metrics.
    pub fn metrics_of(&self, name: &str) -> Option<SocketAddr> {
        let own = self.metrics.filter(|_| name == "validator");
        own.or_else(|| self.further_metrics.get(name).copied())
    }

    fn file(root: &Path) -> PathBuf {
        root.join("subnet.json")
    }

    /// The key and the address of every miner.
    pub fn miners(&self) -> Vec<(MinerKey, SocketAddr)> {
        let further = self.further_miners.iter().map(|miner| (miner.key, miner.address));
        std::iter::once((self.miner, self.miner_address))
            .chain(further)
            .collect()
    }

    /// Where a validator or a miner serves its operator's pages.
    pub fn operator_of(&self, name: &str) -> Option<SocketAddr> {
        self.operators.get(name).copied()
    }

    /// URL of the facilitator.
    pub fn facilitator_url(&self) -> String {
        format!("http://{}", self.facilitator)
    }

    /// URL of the chain.
    pub fn chain_url(&self) -> String {
        format!("ws://{}", self.chain)
    }

    /// The file of the last `muster up` in that folder; `None` if there was none.
    pub fn read(root: &Path) -> anyhow::Result<Option<Self>> {
        let file = Self::file(root);
        match std::fs::read(&file) {
            Ok(text) => Ok(Some(
                serde_json::from_slice(&text).with_context(|| format!("{} is damaged", file.display()))?,
            )),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    /// Writes it in one step.
    pub fn write(&self, layout: &Layout) -> anyhow::Result<()> {
        let temporary = layout.root.join("subnet.json.new");
        std::fs::write(&temporary, serde_json::to_string_pretty(self)?)?;
        std::fs::rename(&temporary, Self::file(&layout.root)).context("cannot write subnet.json")
    }
}
