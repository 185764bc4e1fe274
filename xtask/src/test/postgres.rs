//! A PostgreSQL cluster of our own for one run: a fresh folder, a free port, gone at the end.

use std::{
    ffi::OsStr,
    fs::{self, File},
    net::TcpListener,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, anyhow};
use nix::{sys::signal::Signal, unistd::User};
use tempfile::TempDir;

use super::{
    child_process::{last_lines, on_path, quietly, within},
    daemon::{Daemon, tied},
    install::root,
};

/// Debian keeps the server's programs off the path, one folder per major version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// Between choosing a free port and listening on it somebody else may take it.
const ATTEMPTS: u32 = 3;
/// Tests are not about the disk, and nothing in here outlives them.
const SETTINGS: &[&str] = &[
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "max_connections=300",
    "listen_addresses=127.0.0.1",
];

/// A running cluster. Dropping it stops the server and removes its folder, in this order.
pub(super) struct Postgres {
    server: Daemon,
    _folder: TempDir,
    url: String,
}

impl Postgres {
    /// Makes and starts it; returns once it answers.
    pub(super) fn start() -> anyhow::Result<Self> {
        let programs = programs().ok_or_else(|| anyhow!("no initdb below {DEBIAN} and none on the path"))?;
        let user = user()?;
        let folder = folder(user.as_ref())?;
        let password = password()?;
        let name = user.as_ref().map(|user| user.name.as_str());

        let secret = folder.path().join("password");
        fs::write(&secret, &password).context("write the password for initdb")?;
        give(&secret, user.as_ref())?;
        let data = folder.path().join("data");
        let mut initdb = tied(&programs.join("initdb"), name, "KILL");
        initdb.current_dir(folder.path()).args([
            "--username=muster",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
        ]);
        initdb
            .args(["--locale=C", "--no-sync"])
            .arg("--pwfile")
            .arg(&secret)
            .arg("--pgdata")
            .arg(&data);
        quietly(&mut initdb).context("make a PostgreSQL cluster")?;

        let mut last = anyhow!("it was not tried");
        for _ in 0..ATTEMPTS {
            let port = free_port()?;
            match serve(&programs, name, folder.path(), port) {
                Ok(server) => {
                    let url = format!("postgres://muster:{password}@127.0.0.1:{port}/postgres");
                    return Ok(Self {
                        server,
                        _folder: folder,
                        url,
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The server's process, whose children serve the connections.
    pub(super) fn process(&self) -> u32 {
        self.server.process()
    }

    /// Where its superuser `muster` connects; tests make databases of their own.
    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

fn serve(programs: &Path, user: Option<&str>, folder: &Path, port: u16) -> anyhow::Result<Daemon> {
    let log = folder.join("log");
    let mut command = tied(&programs.join("postgres"), user, "INT");
    command.current_dir(folder).arg("-D").arg(folder.join("data"));
    command.arg("-p").arg(port.to_string()).arg("-k").arg(folder);
    for setting in SETTINGS {
        command.args(["-c", setting]);
    }
    let output = File::create(&log).context("open PostgreSQL's log")?;
    command.stdout(output.try_clone()?).stderr(output);
    // SIGINT is its fast shutdown: clients are disconnected, not waited for.
    let mut server = Daemon::start(&mut command, Signal::SIGINT, Duration::from_secs(20))?;
    let mut ended = None;
    let ready = within(Duration::from_secs(60), || {
        ended = server.ended();
        ended.is_some() || answers(programs, port)
    });
    if ready && ended.is_none() {
        return Ok(server);
    }
    let why = ended.map_or_else(
        || "does not answer".to_owned(),
        |status| format!("ended with {status}"),
    );
    let said = fs::read_to_string(&log).unwrap_or_default();
    Err(anyhow!(
        "PostgreSQL on port {port} {why}:\n{}",
        last_lines(&said, 10)
    ))
}

fn answers(programs: &Path, port: u16) -> bool {
    let mut ask = Command::new(programs.join("pg_isready"));
    ask.args(["--quiet", "--host=127.0.0.1", "--timeout=1"])
        .arg(format!("--port={port}"));
    ask.stdin(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The folder with initdb and postgres: the newest of Debian's, or the one on the path.
pub(super) fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(DEBIAN)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    newest(versions.filter(|path| path.join("bin/initdb").is_file()))
        .map(|version| version.join("bin"))
        .or_else(on_the_path)
}

fn newest(versions: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let number = |path: &PathBuf| {
        path.file_name()
            .and_then(OsStr::to_str)
            .and_then(|name| name.parse::<u32>().ok())
    };
    versions.max_by_key(number)
}

fn on_the_path() -> Option<PathBuf> {
    if !(on_path("initdb") && on_path("postgres")) {
        return None;
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).find(|folder| folder.join("postgres").is_file())
}

/// PostgreSQL refuses to run as root, so root runs it as somebody else.
fn user() -> anyhow::Result<Option<User>> {
    if !root() {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        if let Some(user) = User::from_name(name)? {
            return Ok(Some(user));
        }
    }
    Err(anyhow!(
        "PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody"
    ))
}

fn folder(user: Option<&User>) -> anyhow::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("muster-postgres-");
    // The other user must be able to reach it, which a TMPDIR of root's may not allow.
    let folder = if user.is_some() {
        builder.tempdir_in("/tmp")
    } else {
        builder.tempdir()
    };
    let folder = folder.context("make a folder for PostgreSQL")?;
    give(folder.path(), user)?;
    Ok(folder)
}

fn give(path: &Path, user: Option<&User>) -> anyhow::Result<()> {
    let Some(user) = user else { return Ok(()) };
    chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
        .with_context(|| format!("give {} to {}", path.display(), user.name))
}

/// A password, because every user of this machine can reach the port and a superuser of PostgreSQL can run programs.
fn password() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| anyhow!("read random bytes: {error}"))?;
    Ok(hex::encode(bytes))
}

fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("find a free port")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_chosen_by_number() {
        let versions = ["/p/9", "/p/15", "/p/10", "/p/common"].map(PathBuf::from);
        assert_eq!(newest(versions.into_iter()), Some(PathBuf::from("/p/15")));
        assert_eq!(newest(std::iter::empty()), None);
    }

    #[test]
    fn passwords_differ() {
        assert_ne!(password().unwrap(), password().unwrap());
    }

    #[test]
    fn a_cluster_answers_and_leaves_nothing_behind() {
        let programs = programs().expect("`cargo xtask test` installs PostgreSQL");
        let cluster = Postgres::start().unwrap();
        let folder = cluster._folder.path().to_path_buf();
        let mut psql = Command::new(programs.join("psql"));
        let said = quietly(
            psql.args(["--no-psqlrc", "-tAc", "select current_user"])
                .arg(cluster.url()),
        )
        .unwrap();
        assert_eq!(said.trim(), "muster");
        let stranger = cluster.url().replace("muster:", "muster:not");
        assert!(
            quietly(
                Command::new(programs.join("psql"))
                    .args(["-tAc", "select 1"])
                    .arg(stranger)
            )
            .is_err()
        );
        drop(cluster);
        assert!(!folder.exists());
    }
}
