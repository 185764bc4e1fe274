//! `muster miner drain` and `muster executor drain`: a running process takes no more jobs and finishes those that it
//! has.
//!
//! The wish is a file that the running process looks for, so it also holds for the next process.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use muster_executor::persistent::is_running;
use muster_process::SharedClock;
use muster_terminal::print;
use serde::Deserialize;

use crate::cli::{Drain, MinerDrain};
use crate::failure::{Failure, Result};
use crate::role_config::{ensure_store, look_at_config, read_config};

/// How often the running process is asked.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The part of a miner's `/health` that is read.
#[derive(Debug, Deserialize)]
struct MinerHealth {
    #[serde(default)]
    draining: bool,
    #[serde(default)]
    open_leases: usize,
}

/// Empties a miner or one host of it, or opens it again.
pub(crate) async fn miner(asked: &MinerDrain, clock: &SharedClock) -> Result<ExitCode> {
    let MinerDrain {
        host,
        check,
        drain: asked,
    } = asked;
    if *check {
        let config: muster_miner::Config = look_at_config(asked.config.as_deref())?;
        return Ok(count_jobs(&config).await);
    }
    let config: muster_miner::Config = read_config(asked.config.as_deref())?;
    ensure_store(&config.store)?;
    if !asked.undo {
        // A wish that nobody hears would only surprise the next process.
        ask_health(&config).await.context(
            "nothing was changed: start the miner, or name the configuration with which it runs with --config",
        )?;
    }
    if let Some(host) = host {
        return drain_host(&config, host, asked.undo);
    }
    if asked.undo {
        return undo(&config.drain_file, "the miner");
    }
    make(&config.drain_file)?;
    let mut told = None;
    loop {
        let health = ask_health(&config)
            .await
            .context("the miner ended before it was empty, and takes no jobs when it is started again")?;
        if health.draining && health.open_leases == 0 {
            print::raw("the miner is empty; it takes jobs again after `muster miner drain --undo`\n");
            return Ok(ExitCode::SUCCESS);
        }
        tell_waiting(&mut told, health.open_leases);
        clock.sleep(ASK_EVERY).await;
    }
}

/// Says how many jobs a miner has; a miner that does not run has none that it could lose now.
async fn count_jobs(config: &muster_miner::Config) -> ExitCode {
    let open = ask_health(config).await.map_or(0, |health| health.open_leases);
    match open {
        0 => print::raw("the miner has no jobs\n"),
        1 => print::raw("the miner has 1 job\n"),
        several => print::raw(&format!("the miner has {several} jobs\n")),
    }
    if open == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints the number of jobs that the command waits for, if it is not the one that was told last.
fn tell_waiting(told: &mut Option<String>, jobs: usize) {
    let line = waiting_line(jobs);
    if line.is_some() && *told != line {
        print::raw(line.as_deref().unwrap_or_default());
        *told = line;
    }
}

/// The line about the jobs that are not over. None for no job: then the command waits for nothing but the process's
/// word.
fn waiting_line(jobs: usize) -> Option<String> {
    match jobs {
        0 => None,
        1 => Some("waiting for 1 job to end\n".to_owned()),
        several => Some(format!("waiting for {several} jobs to end\n")),
    }
}

async fn ask_health(config: &muster_miner::Config) -> anyhow::Result<MinerHealth> {
    let address = muster_process::listen::local_address(config.bind);
    let url = format!("http://{address}/health");
    let answer = reqwest::get(&url)
        .await
        .and_then(reqwest::Response::error_for_status)
        .with_context(|| format!("no miner answers at {address}, its `bind`"))?;
    let health = answer.json().await;
    health.with_context(|| format!("{url} is not a miner's health"))
}

/// Lets a miner start nothing on a host, or again. Its jobs there are not waited for.
fn drain_host(config: &muster_miner::Config, host: &str, undo_it: bool) -> Result<ExitCode> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if host.is_empty() || host.starts_with('.') || !host.bytes().all(is_plain) {
        let text =
            format!("{host:?} is not the name of a host: letters, digits, dots, hyphens and underscores");
        return Err(Failure::from(anyhow::anyhow!(text)));
    }
    let folder = config.drained_hosts();
    let file = folder.join(host);
    if undo_it {
        return undo(&file, &format!("the host {host}"));
    }
    make(&file)?;
    print::raw(&format!(
        "the miner starts nothing on {host} any more, and asks jobs with checkpoints there to leave; undo with \
         `muster miner drain {host} --undo`\n"
    ));
    Ok(ExitCode::SUCCESS)
}

/// Empties a persistent executor, or opens it again.
pub(crate) async fn executor(asked: &Drain, clock: &SharedClock) -> Result<ExitCode> {
    let config: muster_executor::Config = read_config(asked.config.as_deref())?;
    let wish = config.drain_file();
    if asked.undo {
        return undo(&wish, "the executor");
    }
    let membership = config.persistent.membership.display();
    let is_running = || is_running(&config).with_context(|| format!("cannot read {membership}"));
    if !is_running()? {
        return Err(Failure::from(anyhow::anyhow!(
            "no persistent executor runs by the membership {membership}; nothing was changed: start it, or name the \
             configuration with which it runs with --config"
        )));
    }
    let status = config.drained_file();
    let stale = fs::remove_file(&status);
    if let Err(error) = stale
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(Failure::from(
            anyhow::Error::new(error).context(format!("cannot remove {}", status.display())),
        ));
    }
    make(&wish)?;
    let mut told = None;
    loop {
        let jobs = fs::read_to_string(&status)
            .ok()
            .and_then(|text| text.trim().parse::<usize>().ok());
        match jobs {
            Some(0) => {
                print::raw(
                    "the executor is empty; it takes jobs again after `muster executor drain --undo`\n",
                );
                return Ok(ExitCode::SUCCESS);
            }
            Some(_) | None if is_running()? => {}
            Some(_) | None => {
                return Err(Failure::from(anyhow::anyhow!(
                    "the executor ended before it was empty, and takes no jobs when it is started again"
                )));
            }
        }
        tell_waiting(&mut told, jobs.unwrap_or_default());
        clock.sleep(ASK_EVERY).await;
    }
}

fn make(file: &Path) -> Result {
    let made = file
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(file, ""));
    made.with_context(|| {
        format!(
            "cannot write {}, by which the running process learns of the wish",
            file.display()
        )
    })?;
    Ok(())
}

fn undo(file: &Path, process: &str) -> Result<ExitCode> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::from(
            anyhow::Error::new(error).context(format!("cannot remove {}", file.display())),
        )),
        Ok(()) | Err(_) => {
            print::raw(&format!("{process} takes jobs again\n"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_names_jobs_and_never_none() {
        assert_eq!(waiting_line(0), None);
        assert_eq!(waiting_line(1).as_deref(), Some("waiting for 1 job to end\n"));
        assert_eq!(waiting_line(2).as_deref(), Some("waiting for 2 jobs to end\n"));
    }
}
