//! A PostgreSQL cluster of a test's own, which may be killed.

use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use muster_testbed::{free_address, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};

use crate::log_ends;
use crate::process::run;

/// Debian keeps the server's programs off the path, one folder per major version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// A cluster that runs until it is dropped.
#[derive(Debug)]
pub struct Cluster {
    folder: tempfile::TempDir,
    programs: PathBuf,
    address: SocketAddr,
    server: Option<Child>,
}

impl Cluster {
    /// Makes and starts one.
    ///
    /// # Errors
    /// This machine has no PostgreSQL, or it does not come up.
    pub fn start() -> Result<Self> {
        let programs = programs().with_context(|| {
            format!("this test needs PostgreSQL below {DEBIAN}: `cargo xtask test` installs it")
        })?;
        // The server's user must be able to reach it, which a TMPDIR of root's may not allow.
        let folder = tempfile::Builder::new()
            .prefix("muster-cluster-")
            .tempdir_in("/tmp")?;
        if let Some(user) = server_user()? {
            chown(folder.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
        }
        let mut cluster = Self {
            folder,
            programs,
            address: free_address()?,
            server: None,
        };
        let made = run(cluster
            .command("initdb")?
            .args([
                "--username=muster",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ])
            .arg("--pgdata")
            .arg(cluster.data()))?;
        if made.code != Some(0) {
            bail!("initdb: {}", made.stderr);
        }
        cluster.begin()?;
        Ok(cluster)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// One of its programs, as the user it runs as.
    fn command(&self, program: &str) -> Result<Command> {
        let program = self.programs.join(program);
        let mut command = match server_user()? {
            None => Command::new(program),
            Some(user) => {
                let mut command = Command::new("setpriv");
                let ids = [format!("--reuid={}", user.name), format!("--regid={}", user.name)];
                command.args(ids).args(["--init-groups", "--"]).arg(program);
                command
            }
        };
        command.current_dir(self.folder.path());
        Ok(command)
    }

    /// Starts its server and waits until it answers.
    ///
    /// # Errors
    /// It does not answer.
    pub fn begin(&mut self) -> Result<()> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))?;
        let server = self
            .command("postgres")?
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.address.port().to_string(), "-k"])
            .arg(self.folder.path())
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "max_connections=100"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start PostgreSQL")?;
        self.server = Some(server);
        wait_for("PostgreSQL", || {
            let answered = self.query("SELECT 1")?;
            anyhow::Ok((answered.code == Some(0)).then_some(()))
        })
    }

    fn query(&self, sql: &str) -> Result<crate::process::Output> {
        run(Command::new(self.programs.join("psql"))
            .args(["--no-psqlrc", "-tAc", sql])
            .arg(self.url()))
    }

    /// Where its superuser connects.
    fn url(&self) -> String {
        format!("postgres://muster@{}/postgres", self.address)
    }

    /// A store for each role, a schema each; `ROLE` stands for the role.
    ///
    /// # Errors
    /// The schemas cannot be made.
    pub fn stores(&self, roles: &[&str]) -> Result<String> {
        for role in roles {
            let made = self.query(&format!("CREATE SCHEMA IF NOT EXISTS {role}"))?;
            if made.code != Some(0) {
                bail!("cannot make the schema {role}: {}", made.stderr);
            }
        }
        Ok(format!("{}?options[search_path]=ROLE", self.url()))
    }

    /// Kills the server without warning, its children with it, and waits until it is gone.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&mut self) -> Result<()> {
        let mut server = self.server.take().context("PostgreSQL does not run")?;
        kill(Pid::from_raw(i32::try_from(server.id())?), Signal::SIGKILL)?;
        server.wait()?;
        // Its children notice and leave; until then a new server would not start on their memory.
        wait_for("the end of PostgreSQL's children", || {
            anyhow::Ok(children_of(&self.data())?.is_empty().then_some(()))
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        log_ends::show_if_panicking(&[self.folder.path().join("log")]);
        if let Some(mut server) = self.server.take() {
            // Its fast shutdown: clients are disconnected, not waited for.
            let asked = i32::try_from(server.id()).map(|id| kill(Pid::from_raw(id), Signal::SIGINT));
            if !matches!(asked, Ok(Ok(()))) {
                let _ = server.kill();
            }
            let _ = server.wait();
        }
    }
}

/// Processes whose working folder is the cluster's.
fn children_of(data: &Path) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok());
        let Some(pid) = pid else { continue };
        if std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == data) {
            found.push(pid);
        }
    }
    Ok(found)
}

fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())))
        .max()?;
    let bin = newest.1.join("bin");
    bin.join("initdb").exists().then_some(bin)
}

/// PostgreSQL refuses to run as root; as root it runs as `postgres`.
fn server_user() -> Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let user = User::from_name("postgres")?.or(User::from_name("nobody")?);
    user.map(Some).context("neither a user postgres nor nobody")
}
