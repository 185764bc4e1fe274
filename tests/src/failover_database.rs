//! PostgreSQL that fails over: etcd, two servers under Patroni and HAProxy before them, by the files of
//! `docs/operations/replicas` with the addresses of this machine.

use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use muster_testbed::{free_address, wait_for};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, User};

use crate::http::answer_of;
use crate::log_ends;
use crate::process::run;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations/replicas");
/// The programs, and Debian's packages that have them.
const PROGRAMS: [(&str, &str); 3] = [
    ("/usr/bin/etcd", "etcd-server"),
    ("/usr/bin/patroni", "patroni"),
    ("/usr/sbin/haproxy", "haproxy"),
];

/// A server of the pair: Patroni with the PostgreSQL that it starts.
#[derive(Debug)]
struct DatabaseServer {
    config: PathBuf,
    postgres: SocketAddr,
    rest: SocketAddr,
    process: Option<Child>,
}

/// The pair with everything before it; ends when dropped.
#[derive(Debug)]
pub struct FailoverDatabase {
    folder: tempfile::TempDir,
    etcd: Child,
    proxy: Option<Child>,
    servers: [DatabaseServer; 2],
    /// Where HAProxy leads to the primary.
    database: SocketAddr,
    /// Where it leads to the facilitators and to the validator that leads, and where these listen.
    roles: RolePorts,
}

/// The addresses of the roles behind HAProxy.
#[derive(Clone, Copy, Debug)]
pub struct RolePorts {
    /// The facilitators, for users and validators.
    pub facilitators: SocketAddr,
    /// The validator that leads, for its operator.
    pub validator: SocketAddr,
    /// Where the two facilitators listen.
    pub facilitator: [SocketAddr; 2],
    /// Where the two validators listen.
    pub validator_status: [SocketAddr; 2],
}

impl FailoverDatabase {
    /// Starts everything, with a schema for each of these roles, and waits until a commit is on both servers.
    ///
    /// # Errors
    /// A program is missing, or something does not come up.
    pub fn start(schemas: &[&str]) -> Result<Self> {
        for (program, package) in PROGRAMS {
            let there = Path::new(program).exists();
            ensure!(there, "this test needs {program}: apt-get install {package}");
        }
        let folder = tempfile::Builder::new()
            .prefix("muster-failover-")
            .tempdir_in("/tmp")?;
        let user = User::from_name("postgres")?.context("no user postgres: apt-get install postgresql")?;
        chown(folder.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
        let [client, peer] = [free_address()?, free_address()?];
        let etcd = spawn(
            Command::new("/usr/bin/etcd")
                .args(["--name", "one", "--data-dir"])
                .arg(folder.path().join("etcd"))
                .args(["--listen-client-urls", &format!("http://{client}")])
                .args(["--advertise-client-urls", &format!("http://{client}")])
                .args(["--listen-peer-urls", &format!("http://{peer}")])
                .args(["--initial-advertise-peer-urls", &format!("http://{peer}")])
                .args(["--initial-cluster", &format!("one=http://{peer}")]),
            &folder.path().join("etcd.log"),
        )?;
        let server = |name: &str| {
            Ok::<_, anyhow::Error>(DatabaseServer {
                config: folder.path().join(name).with_extension("yml"),
                postgres: free_address()?,
                rest: free_address()?,
                process: None,
            })
        };
        let roles = RolePorts {
            facilitators: free_address()?,
            validator: free_address()?,
            facilitator: [free_address()?, free_address()?],
            validator_status: [free_address()?, free_address()?],
        };
        let mut this = Self {
            servers: [server("db1")?, server("db2")?],
            folder,
            etcd,
            proxy: None,
            database: free_address()?,
            roles,
        };
        for index in 0..this.servers.len() {
            this.write_config(index, client)?;
            this.begin(index)?;
            // The first one makes the cluster, the other one copies it.
            wait_for("a server under Patroni", || {
                let rest = this.servers.get(index).map(|server| server.rest);
                let rest = rest.context("no such server")?;
                let state = answer_of(|http| http.get(format!("http://{rest}/patroni"))).ok();
                let running =
                    state.is_some_and(|state| state.get("state").is_some_and(|state| state == "running"));
                anyhow::Ok(running.then_some(()))
            })?;
        }
        this.begin_proxy()?;
        let urls = this.wait_for_both();
        urls.with_context(|| this.logs())?;
        for schema in schemas {
            let made = this.query(&format!("CREATE SCHEMA {schema}"))?;
            ensure!(
                made.code == Some(0),
                "cannot make the schema {schema}: {}",
                made.stderr
            );
        }
        Ok(this)
    }

    /// The addresses of the roles.
    pub fn roles(&self) -> RolePorts {
        self.roles
    }

    /// The URL of a role's store; `ROLE` stands for the schema.
    pub fn stores(&self) -> String {
        format!(
            "postgres://postgres:SUPERUSER-PASSWORD@{}/postgres?options[search_path]=ROLE",
            self.database
        )
    }

    /// Waits until one server is primary and the other one takes every commit.
    ///
    /// # Errors
    /// They do not get there.
    pub fn wait_for_both(&self) -> Result<()> {
        wait_for("a primary with its synchronous standby", || {
            let standbys =
                self.query("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")?;
            anyhow::Ok((standbys.stdout.trim() == "1").then_some(()))
        })
    }

    /// Kills the primary with its Patroni, as the loss of its machine would; which of the two it was.
    ///
    /// # Errors
    /// Nobody is primary.
    pub fn kill_primary(&mut self) -> Result<usize> {
        for (index, server) in self.servers.iter_mut().enumerate() {
            let status = answer_of(|http| http.get(format!("http://{}/patroni", server.rest))).ok();
            let role = status.as_ref().and_then(|status| status.get("role")?.as_str());
            if !matches!(role, Some("master" | "primary")) {
                continue;
            }
            let mut process = server.process.take().context("it does not run")?;
            killpg(Pid::from_raw(i32::try_from(process.id())?), Signal::SIGKILL)?;
            process.wait()?;
            // PostgreSQL leaves the group of its Patroni, so its own is killed too.
            let data = self.folder.path().join(format!("db{}-data", index + 1));
            let postmaster = std::fs::read_to_string(data.join("postmaster.pid"))?;
            let postmaster: i32 = postmaster.lines().next().unwrap_or_default().parse()?;
            for pid in children_of(postmaster)?.into_iter().chain([postmaster]) {
                let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            return Ok(index);
        }
        anyhow::bail!("no server is primary\n{}", self.logs())
    }

    /// Starts a server that was killed.
    ///
    /// # Errors
    /// Patroni cannot be started.
    pub fn begin(&mut self, index: usize) -> Result<()> {
        let log = self.folder.path().join(format!("db{}.log", index + 1));
        let server = self.servers.get_mut(index).context("no such server")?;
        let mut patroni = Command::new("setpriv");
        patroni
            .args([
                "--reuid=postgres",
                "--regid=postgres",
                "--init-groups",
                "--",
                "/usr/bin/patroni",
            ])
            .arg(&server.config);
        server.process = Some(spawn(&mut patroni, &log)?);
        Ok(())
    }

    /// The ends of all logs, for the messages of failing tests.
    pub fn logs(&self) -> String {
        let names =
            ["etcd", "db1", "db2", "haproxy"].map(|name| self.folder.path().join(name).with_extension("log"));
        names
            .iter()
            .map(|log| format!("== {}\n{}\n", log.display(), log_ends::end_of(log)))
            .collect()
    }

    fn query(&self, sql: &str) -> Result<crate::process::Output> {
        let url = format!(
            "postgres://postgres:SUPERUSER-PASSWORD@{}/postgres",
            self.database
        );
        run(Command::new("psql").args(["--no-psqlrc", "-tAc", sql, &url]))
    }

    /// Writes Patroni's file of the documentation for one server.
    fn write_config(&self, index: usize, etcd: SocketAddr) -> Result<()> {
        let server = self.servers.get(index).context("no such server")?;
        let data = self.folder.path().join(format!("db{}-data", index + 1));
        let text = |path: &Path| path.display().to_string();
        let config = std::fs::read_to_string(Path::new(FOLDER).join("patroni.yml"))?
            .replace("name: db1", &format!("name: db{}", index + 1))
            .replace("10.0.0.11:8008", &server.rest.to_string())
            .replace("10.0.0.11:5432", &server.postgres.to_string())
            .replace("10.0.0.11:2379,10.0.0.12:2379,10.0.0.13:2379", &etcd.to_string())
            .replace("10.0.0.0/24", "127.0.0.0/8")
            .replace("/var/lib/postgresql/15/muster", &text(&data))
            .replace(
                "/var/lib/postgresql/muster.pgpass",
                &text(&data.with_extension("pgpass")),
            )
            .replace("/var/run/postgresql", &text(self.folder.path()));
        ensure!(
            !config.contains("10.0.0."),
            "an address of the documentation stayed:\n{config}"
        );
        Ok(std::fs::write(&server.config, config)?)
    }

    /// Writes HAProxy's file of the documentation, and starts it.
    fn begin_proxy(&mut self) -> Result<()> {
        let [first, second] = &self.servers;
        let roles = &self.roles;
        let [facilitator, other_facilitator] = roles.facilitator;
        let [validator, other_validator] = roles.validator_status;
        let check =
            |server: &DatabaseServer| format!("{} check port {}", server.postgres, server.rest.port());
        let config = std::fs::read_to_string(Path::new(FOLDER).join("haproxy.cfg"))?
            .replace("10.0.0.11:5432 check port 8008", &check(first))
            .replace("10.0.0.12:5432 check port 8008", &check(second))
            .replace("127.0.0.1:5000", &self.database.to_string())
            .replace("*:8080", &roles.facilitators.to_string())
            .replace("10.0.0.21:8081", &facilitator.to_string())
            .replace("10.0.0.22:8081", &other_facilitator.to_string())
            .replace("127.0.0.1:9002", &roles.validator.to_string())
            .replace("10.0.0.21:9001", &validator.to_string())
            .replace("10.0.0.22:9001", &other_validator.to_string());
        ensure!(
            !config.contains("10.0.0."),
            "an address of the documentation stayed:\n{config}"
        );
        let file = self.folder.path().join("haproxy.cfg");
        std::fs::write(&file, config)?;
        let mut haproxy = Command::new("/usr/sbin/haproxy");
        haproxy.arg("-db").arg("-f").arg(&file);
        self.proxy = Some(spawn(&mut haproxy, &self.folder.path().join("haproxy.log"))?);
        Ok(())
    }
}

impl Drop for FailoverDatabase {
    fn drop(&mut self) {
        let logs =
            ["etcd", "db1", "db2", "haproxy"].map(|name| self.folder.path().join(name).with_extension("log"));
        log_ends::show_if_panicking(&logs);
        let servers = self
            .servers
            .iter_mut()
            .filter_map(|server| server.process.as_mut());
        for process in servers.chain(&mut self.proxy).chain([&mut self.etcd]) {
            // Patroni stops its PostgreSQL when it is told to end.
            let group = i32::try_from(process.id()).map(Pid::from_raw);
            let _ = group.map(|group| killpg(group, Signal::SIGTERM));
            let _ = process.wait();
        }
    }
}

/// Starts a process in a group of its own.
fn spawn(command: &mut Command, log: &Path) -> Result<Child> {
    use std::os::unix::process::CommandExt as _;
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
    let name = format!("{:?}", command.get_program());
    command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {name}"))
}

/// The processes whose parent is `parent`.
fn children_of(parent: i32) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        if line.is_some_and(|line| line.trim() == parent.to_string()) {
            found.push(pid);
        }
    }
    Ok(found)
}
