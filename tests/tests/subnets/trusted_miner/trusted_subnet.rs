//! A subnet whose validator keeps an unregistered miner.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use muster_identity::Keypair;
use muster_identity::wallet::{ColdkeyStorage, WalletPath, create};
use muster_process::ready;
use muster_testbed::wait_for;
use muster_tests::{Output, RunningSubnet, free_address, muster, shell_image};
use serde_json::{Value, json};

/// A subnet whose validator keeps an unregistered miner.
pub(crate) struct TrustedSubnet {
    pub(crate) subnet: RunningSubnet,
    pub(crate) key: Keypair,
    address: SocketAddr,
    miner: Option<Child>,
}

pub(crate) fn read_toml(path: &Path) -> Value {
    toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn write_toml(path: &Path, config: &Value) {
    std::fs::write(path, toml::to_string(config).unwrap()).unwrap();
}

impl TrustedSubnet {
    pub(crate) fn start(subnet: RunningSubnet) -> Self {
        let wallets = subnet.folder().join("wallets");
        let made = create(
            &WalletPath::new(&wallets, "trusted", "default"),
            ColdkeyStorage::Unencrypted,
        );
        let mut this = Self {
            address: free_address().unwrap(),
            key: made.unwrap().hotkey,
            subnet,
            miner: None,
        };
        this.configure_miner(&[]);
        this.begin_miner();
        this.name_it_to_the_validator();
        this
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.subnet.folder().join(name)
    }

    /// Lets the executors of the subnet's miner use another container engine, and restarts the miner.
    pub(crate) fn replace_engine(&self, socket: &Path) {
        let path = self.path("config/miner.toml");
        let mut config = read_toml(&path);
        let script = r#"DOCKER_HOST=$1; export DOCKER_HOST; shift; exec "$@""#;
        let engine = format!("unix://{}", socket.display());
        let before = ["/bin/sh", "-c", script, "executor", &engine].map(str::to_owned);
        config["executor"]["command"] = json!([before.to_vec(), self.executor_command()].concat());
        write_toml(&path, &config);
        // A miner serves validators once it has read the chain.
        let starts = || {
            let log = std::fs::read_to_string(self.path("logs/miner.log")).unwrap();
            log.matches("the address is on the chain").count()
        };
        let before = starts();
        self.subnet.kill("miner").unwrap();
        wait_for("the miner's next process", || {
            anyhow::Ok((starts() > before).then_some(()))
        })
        .unwrap();
    }

    /// The verdict about a job that the validator runs again, as its user sees it.
    pub(crate) fn verdict_of(&self, job: &Value) -> Value {
        let id = job["uuid"].as_str().unwrap();
        let found = wait_for("the verdict about a job that runs again", || {
            let shown = self.subnet.muster(&["job", "check", id, "--json"])?;
            let check: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
            let state = check["state"].as_str().unwrap_or("pending");
            anyhow::Ok((state != "pending").then_some(check))
        });
        found.unwrap()
    }

    /// The command that starts an executor on this machine.
    fn executor_command(&self) -> Vec<String> {
        let of_subnet = read_toml(&self.path("config/miner.toml"));
        serde_json::from_value(of_subnet["executor"]["command"].clone()).unwrap()
    }

    /// Writes the miner's configuration, with these settings for its executors.
    fn configure_miner(&self, executor: &[(&str, Value)]) {
        let mut config = json!({
            "registered": false,
            "validators": [self.subnet.field("validator").unwrap()],
            "bind": self.address,
            "ready_file": self.path("trusted.ready"),
            "store": format!("sqlite:{}", self.path("trusted.db").display()),
            "wallet": {"root": self.path("wallets"), "name": "trusted", "hotkey": "default"},
            "receipts_dir": self.path("trusted-receipts"),
            "drain_file": self.path("trusted-drain"),
            "standing": {"roll": self.path("trusted-standing")},
            "tls": {"certificate": self.path("trusted-tls/port.pem")},
            "executor": {
                "class": "always_on.test",
                "count": 2,
                "command": self.executor_command(),
                "provisioned": self.path("trusted-provisioned"),
            },
        });
        for (key, value) in executor {
            config["executor"][*key] = value.clone();
        }
        write_toml(&self.path("config/trusted.toml"), &config);
    }

    pub(crate) fn begin_miner(&mut self) {
        let ready_file = self.path("trusted.ready");
        let _ = std::fs::remove_file(&ready_file);
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path("logs/trusted.log"))
            .unwrap();
        let child = Command::new(muster().unwrap())
            .args(["miner", "--config"])
            .arg(self.path("config/trusted.toml"))
            // The lifeline: the process of the test may be killed.
            .arg("--lifeline")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.miner = Some(child.unwrap());
        wait_for("the unregistered miner", || anyhow::Ok(ready::read(&ready_file)?)).unwrap();
    }

    pub(crate) fn kill_miner(&mut self) {
        let mut miner = self.miner.take().unwrap();
        miner.kill().unwrap();
        miner.wait().unwrap();
    }

    /// Lets the miner provision its executors: each is a process of this machine, and each call is written down.
    pub(crate) fn provision_executors(&self) {
        let folder = self.path("fleet");
        std::fs::create_dir(&folder).unwrap();
        let script = self.path("fleet.sh");
        let text = format!(
            r#"cd '{}'
echo "$1 $EXECUTOR_NAME" >> calls
if [ "$1" = provision ]; then
    shift
    [ "$EXECUTOR_LIFETIME_S" -gt 0 ]
    setsid "$@" < /dev/null > /dev/null 2>&1 &
    echo $! > "$EXECUTOR_NAME"
else
    [ -e "$EXECUTOR_NAME" ] || exit 0
    kill -TERM -- "-$(cat "$EXECUTOR_NAME")" 2> /dev/null
    while kill -0 -- "-$(cat "$EXECUTOR_NAME")" 2> /dev/null; do sleep 0.1; done
    rm "$EXECUTOR_NAME"
fi
"#,
            folder.display()
        );
        std::fs::write(&script, text).unwrap();
        let call = |action: &str| vec!["sh".to_owned(), script.display().to_string(), action.to_owned()];
        let provision = [call("provision"), self.executor_command()].concat();
        self.configure_miner(&[
            ("provision", json!(provision)),
            ("release", json!(call("release"))),
        ]);
    }

    /// The names with which a command of the fleet was called.
    pub(crate) fn fleet_calls(&self, action: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("fleet/calls")).unwrap_or_default();
        let calls = text.lines().filter_map(|line| line.strip_prefix(action));
        calls.map(|name| name.trim().to_owned()).collect()
    }

    /// The machines of the fleet that were not released.
    pub(crate) fn machines(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("fleet")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("muster-")).collect()
    }

    /// Starts a job on the trusted miner whose program goes on until [`Self::end_held`].
    pub(crate) fn begin_held(&self) -> String {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let shell = runtime.block_on(shell_image("")).unwrap();
        self.subnet.begin_held(shell, &["--on-trusted-miner"]).unwrap()
    }

    /// Lets the job end; its output is whole.
    pub(crate) fn end_held(&self, id: &str) {
        let (ended, _) = self.subnet.end_held(id).unwrap();
        assert_eq!(self.miners_of(&ended), [self.key.hotkey().to_string()]);
    }

    /// Adds the section to the validator's configuration and restarts the validator.
    pub(crate) fn name_it_to_the_validator(&self) {
        let path = self.path("config/validator.toml");
        let mut config = read_toml(&path);
        config["trusted_miner"] = json!({"hotkey": self.key.hotkey(), "address": self.address});
        config["cross_checks"] = json!({"share_ppm": 1_000_000});
        write_toml(&path, &config);
        let before = self.subnet.pid("validator").unwrap();
        self.subnet.kill("validator").unwrap();
        wait_for("the validator's next process", || {
            let is_new = self.subnet.pid("validator").is_ok_and(|pid| pid != before);
            let state = self.subnet.validator_state().unwrap_or_default();
            anyhow::Ok((is_new && state["facilitator"]["state"] == "connected").then_some(()))
        })
        .unwrap();
    }

    pub(crate) fn logs(&self) -> String {
        let roles = ["validator", "miner", "trusted"];
        roles.map(|role| self.subnet.log(role)).join("\n---\n")
    }

    pub(crate) fn run_job(&self, rest: &[&str]) -> Value {
        let ran = self.subnet.muster(&[&["job", "run"], rest].concat()).unwrap();
        assert_eq!(ran.code, Some(0), "{ran:?}\n{}", self.logs());
        view(&ran)
    }

    /// The miners of a job's attempts.
    pub(crate) fn miners_of(&self, job: &Value) -> Vec<String> {
        let state = self.subnet.validator_state().unwrap();
        let jobs = state["jobs"].as_array().unwrap();
        let known = jobs.iter().find(|known| known["job"] == job["uuid"]).unwrap();
        let attempts = known["attempts"].as_array().unwrap().iter();
        attempts
            .map(|attempt| attempt["miner"].as_str().unwrap().to_owned())
            .collect()
    }
}

impl Drop for TrustedSubnet {
    fn drop(&mut self) {
        if let Some(miner) = &mut self.miner {
            let _ = miner.kill();
            let _ = miner.wait();
        }
    }
}

pub(crate) fn view(ran: &Output) -> Value {
    serde_json::from_str(&ran.stdout).unwrap()
}
