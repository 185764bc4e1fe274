//! The command line as whole programs, from their start to their end: `muster job ls` of an account with many jobs, and
//! the completion of a job's id in a shell, from its cache and without one.
//!
//! The peer of the list is `curl` with the same page. `MUSTER_BENCH_PROGRAM` names the program; without it, the one
//! beside the bench runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, ensure};
use muster_protocol::account_api::{ApiKey, CreateKey};

use crate::facilitator_server::{FacilitatorServer, soon};
use crate::{Direction, Row, Turns, timed};

const ROUNDS: usize = 20;
/// The jobs that `muster job ls` shows.
const SHOWN: u32 = 20;

/// The list of the server's user, who has `listed` jobs, and completions of it; the home of a user is made in `folder`.
///
/// # Errors
/// There is no program, or it fails.
pub async fn measure(server: &FacilitatorServer, folder: &Path, listed: u64) -> anyhow::Result<Vec<Row>> {
    let user = User::of(server, folder).await?;
    Ok(vec![
        user.list(listed)?,
        user.complete_from_cache().await?,
        user.complete_without_cache()?,
    ])
}

/// A user with an API key and a home of their own.
struct User {
    program: PathBuf,
    home: PathBuf,
    facilitator: String,
    key: String,
}

impl User {
    async fn of(server: &FacilitatorServer, folder: &Path) -> anyhow::Result<Self> {
        let wanted = CreateKey {
            name: "bench".to_owned(),
            account: None,
            rights: None,
            days: None,
        };
        let http = reqwest::Client::new();
        let asked = server
            .asked(&http, reqwest::Method::POST, "/api/v1/keys/")
            .json(&wanted);
        let made: ApiKey = asked.send().await?.error_for_status()?.json().await?;
        let program = match std::env::var_os("MUSTER_BENCH_PROGRAM") {
            Some(program) => PathBuf::from(program),
            None => std::env::current_exe()?.with_file_name("muster"),
        };
        ensure!(
            program.exists(),
            "no program at {}: build it first",
            program.display()
        );
        Ok(Self {
            program,
            home: folder.join("home"),
            facilitator: server.server.base.clone(),
            key: made.key.context("the key is not shown")?,
        })
    }

    fn program(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .current_dir("/")
            .env_clear()
            .env("HOME", &self.home)
            .env("MUSTER_FACILITATOR", &self.facilitator)
            .env("MUSTER_API_KEY", &self.key)
            .stdin(Stdio::null());
        command
    }

    /// The time of the list, against that of the bare request.
    fn list(&self, listed: u64) -> anyhow::Result<Row> {
        let url = format!("{}/api/v1/jobs/?page=1&page_size={SHOWN}", self.facilitator);
        let header = format!("Authorization: Bearer {}", self.key);
        let mut turns = Turns {
            ours: Vec::new(),
            peer: Vec::new(),
        };
        for _ in 0..ROUNDS {
            let (shown, took) = timed(|| self.program(&["job", "ls"]).output());
            let lines = succeeded(shown?)?.lines().count();
            ensure!(
                lines >= usize::try_from(SHOWN.min(u32::try_from(listed)?))?,
                "{lines} lines of jobs"
            );
            turns.ours.push(took.as_secs_f64() * 1_000.0);
            let (page, took) = timed(|| Command::new("curl").args(["-sSf", "-H", &header, &url]).output());
            succeeded(page?)?;
            turns.peer.push(took.as_secs_f64() * 1_000.0);
        }
        let what = format!("`muster job ls` of {listed} jobs");
        Ok(Row::against(&what, "ms", Direction::LowerIsBetter, "curl", turns).target(300.0))
    }

    /// The shell's question behind `muster job show `.
    fn complete(&self) -> anyhow::Result<(String, f64)> {
        let mut asked = self.program(&["--", "muster", "job", "show", ""]);
        asked
            .env("MUSTER_COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", "3");
        asked.env("_CLAP_IFS", "\n").env("_CLAP_COMPLETE_COMP_TYPE", "9");
        let (answer, took) = timed(|| asked.output());
        Ok((succeeded(answer?)?, took.as_secs_f64() * 1_000.0))
    }

    fn completions(&self) -> PathBuf {
        self.home.join(".cache/muster/completion")
    }

    async fn complete_from_cache(&self) -> anyhow::Result<Row> {
        let first = self.complete()?;
        // A slow machine has the values behind the first answer.
        soon(async || {
            self.complete()
                .map(|(answer, _)| answer.contains("@last").then_some(()))
        })
        .await?;
        let mut samples = vec![];
        for _ in 0..ROUNDS {
            let (answer, took) = self.complete()?;
            ensure!(
                answer.contains("@last"),
                "no job in {answer:?}, at first {first:?}"
            );
            samples.push(took);
        }
        Ok(Row::alone(
            "completion of a job, from its cache",
            "ms",
            Direction::LowerIsBetter,
            samples,
        )
        .target(50.0))
    }

    fn complete_without_cache(&self) -> anyhow::Result<Row> {
        let mut samples = vec![];
        for _ in 0..ROUNDS {
            if self.completions().exists() {
                std::fs::remove_dir_all(self.completions())?;
            }
            samples.push(self.complete()?.1);
        }
        Ok(Row::alone(
            "completion of a job, without a cache",
            "ms",
            Direction::LowerIsBetter,
            samples,
        )
        .target(300.0))
    }
}

/// The standard output of a program that ended well.
fn succeeded(output: Output) -> anyhow::Result<String> {
    ensure!(
        output.status.success(),
        "the program failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}
