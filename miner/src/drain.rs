//! The operator's wish to empty the miner, or hosts of it. The wish is in files, so that it holds for the next process
//! too: one file for the miner, and in a folder one file for each host.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use muster_process::SharedClock;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::fleet::Fleet;
use crate::lease_table::Event;
use crate::manager::ExecutorManager as _;
use crate::session_queues::Inbox;

/// How often the miner looks for the files.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The most hosts that are emptied at one time.
const MAX_HOSTS: usize = 10_000;

/// Where the operator's wish is.
#[derive(Clone, Debug)]
pub struct DrainWish {
    miner: PathBuf,
    hosts: PathBuf,
}

impl DrainWish {
    /// The files of this configuration.
    pub fn of(config: &Config) -> Self {
        Self {
            miner: config.drain_file.clone(),
            hosts: config.drained_hosts(),
        }
    }

    /// The hosts that are to be emptied; `None` if the folder cannot be read now.
    async fn hosts(&self) -> Option<BTreeSet<String>> {
        let mut entries = match tokio::fs::read_dir(&self.hosts).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(BTreeSet::new()),
            Err(_) => return None,
        };
        let mut hosts = BTreeSet::new();
        while let Some(entry) = entries.next_entry().await.ok()? {
            if let Ok(name) = entry.file_name().into_string() {
                hosts.insert(name);
            }
            if hosts.len() >= MAX_HOSTS {
                break;
            }
        }
        Some(hosts)
    }
}

/// Declines offers while the miner's file is there, and lends nothing on the hosts in the folder. Programs with
/// checkpoints on them are asked to leave.
pub(crate) async fn watch(
    wish: DrainWish,
    fleet: Fleet,
    inbox: Inbox,
    clock: SharedClock,
    stop: CancellationToken,
) {
    let (mut told, mut excluded, mut asked) = (false, BTreeSet::new(), BTreeSet::new());
    loop {
        let there = tokio::fs::try_exists(&wish.miner).await.unwrap_or(told);
        if there != told {
            told = there;
            tracing::info!(draining = there, file = %wish.miner.display(), "the operator's wish has changed");
            inbox.send(Event::Drain(there)).await;
        }
        if let Some(hosts) = wish.hosts().await
            && hosts != excluded
        {
            tracing::info!(?hosts, "the operator empties these hosts");
            fleet.exclude_hosts(hosts.clone());
            excluded = hosts;
        }
        let on_hosts = if excluded.is_empty() {
            BTreeSet::new()
        } else {
            fleet.attempts_on(&excluded)
        };
        let new: BTreeSet<_> = on_hosts.difference(&asked).copied().collect();
        asked = on_hosts;
        if !new.is_empty() {
            inbox.send(Event::DrainAttempts(new)).await;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(LOOK_EVERY) => {}
        }
    }
}
