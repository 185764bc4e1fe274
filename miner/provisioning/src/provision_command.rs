//! Executors that the operator's own commands start and release: one call of `provision` for a lease, and one or more
//! calls of `release` after it. A machine is released when its lease ends, and at its deadline whatever its lease does.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use muster_process::backoff::random_jitter;
use muster_process::error::Causes;
use muster_process::{Backoff, SharedClock};
use muster_protocol::AttemptId;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::child_process::end;
use crate::daily_spend::MachineTime;
use crate::provision_records::{LockedRecord, Record, Records};
use crate::spend_ledger::SpendLedger;
use crate::{ExecutorManager, ManagerError, Order, Running, SpendExceeded};

/// The time over which the limit on machine time counts.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The time between `SIGTERM` and `SIGKILL` for a command.
const PATIENCE: Duration = Duration::from_secs(10);
/// The waits between the tries of a release, which go on until it succeeds.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(2),
    max: Duration::from_secs(60),
};
/// After this many failures in a row the operator has to look.
const ALARM_AFTER: u32 = 6;

/// The operator's commands.
#[derive(Clone, Debug)]
pub struct Commands {
    /// Starts an executor; ends with status 0 once it is starting. Program first.
    pub provision: Vec<String>,
    /// Removes everything that `provision` made under the same `EXECUTOR_NAME`; ends with status 0 also if nothing is
    /// there.
    pub release: Vec<String>,
    /// The time for one call of either command.
    pub limit: Duration,
    /// The machine time of any 24 hours; `None` for no limit.
    pub daily: Option<Duration>,
}

/// Provisions and releases executors by the operator's commands.
#[derive(Clone, Debug)]
pub struct Provisioner {
    commands: Commands,
    records: Records,
    clock: SharedClock,
    spend: Arc<SpendLedger>,
}

impl Provisioner {
    /// Provisions with `commands`; the records in `folder` outlive this process.
    pub fn new(commands: Commands, folder: PathBuf, clock: SharedClock) -> Self {
        let records = Records::new(folder.clone());
        let now = clock.now();
        // A machine of an earlier version has no deadline, so it is taken to run for the day.
        let day = MachineTime {
            since: now,
            until: now.plus(DAY),
        };
        let running = records.read_all();
        let running = running
            .iter()
            .map(|record| (record.attempt, record.time().unwrap_or(day)));
        let spend = Arc::new(SpendLedger::open(folder, commands.daily, running, now));
        Self {
            commands,
            records,
            clock,
            spend,
        }
    }

    async fn run_to_end(self, order: Order, stop: CancellationToken) -> Result<String, ManagerError> {
        let now = self.clock.now();
        let held = self.records.write(Record::new(&order, now))?;
        if let Err(spent) = self.spend.begin(held.record.attempt, order.lasts, now) {
            tracing::warn!(attempt = %held.record.attempt, %spent, "no machine is provisioned");
            held.remove();
            return Err(spent.into());
        }
        let seconds = order.lasts.as_secs().saturating_add(1);
        let variables = [
            ("MINER_ADDRESS", order.miner_address.clone()),
            ("EXECUTOR_TOKEN", order.token.to_string()),
            ("EXECUTOR_LIFETIME_S", seconds.to_string()),
        ];
        let provisioned = self
            .call(&self.commands.provision, &held, &variables, Some(&stop))
            .await;
        if provisioned.is_ok() {
            // From here on the executor's own connection shows whether it lives.
            self.wait_for_end(&held.record, &stop).await;
        }
        // Also after a failure: the command may have made a part.
        self.release(held).await;
        if provisioned.is_ok() {
            // A lease that goes on must not start another machine in its place.
            stop.cancelled().await;
        }
        provisioned.map(|()| "it was released".to_owned())
    }

    /// Waits until the lease ends, or the machine's time is over: by this process's clock, or by the monotonic one,
    /// which nobody sets.
    async fn wait_for_end(&self, record: &Record, stop: &CancellationToken) {
        let Some(left) = record.left(self.clock.now()) else {
            return stop.cancelled().await;
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.clock.sleep(left) => {}
            () = tokio::time::sleep(left) => {}
        }
        tracing::error!(attempt = %record.attempt, "a provisioned executor has reached its deadline although its lease goes on; it is released");
    }

    async fn release(&self, mut held: LockedRecord) {
        let attempt = held.record.attempt;
        self.call_release(&held).await;
        if held.has_other_command() {
            tracing::warn!(%attempt, "a command of an earlier process still works on an executor; it is released again after the command's end");
            held.wait_for_other_command(&self.clock).await;
            self.call_release(&held).await;
        }
        self.spend.end(attempt, self.clock.now());
        held.remove();
    }

    /// Calls the operator's `release` until it succeeds.
    async fn call_release(&self, held: &LockedRecord) {
        let attempt = held.record.attempt;
        let mut failures = 0_u32;
        while let Err(error) = self.call(&self.commands.release, held, &[], None).await {
            failures = failures.saturating_add(1);
            if failures < ALARM_AFTER {
                tracing::warn!(%attempt, error = %Causes(&error), "a provisioned executor could not be released; trying again");
            } else {
                tracing::error!(%attempt, failures, error = %Causes(&error), "a provisioned executor may still run and cost; its release is tried again");
            }
            self.clock.sleep(RETRY.delay(failures, random_jitter())).await;
        }
    }

    /// Runs one command to its end.
    async fn call(
        &self,
        command: &[String],
        held: &LockedRecord,
        variables: &[(&str, String)],
        stop: Option<&CancellationToken>,
    ) -> Result<(), ManagerError> {
        let (program, arguments) = command
            .split_first()
            .map_or(("", [].as_slice()), |(p, a)| (p.as_str(), a));
        let failed = |source| ManagerError::Command {
            program: program.to_owned(),
            source,
        };
        let Record { attempt, class, .. } = &held.record;
        let mut child = Command::new(program)
            .args(arguments)
            .env("EXECUTOR_NAME", format!("muster-{attempt}"))
            .env("EXECUTOR_CLASS", class.to_string())
            // Not arguments, which every user of the machine can read.
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(held.share().map_err(failed)?))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let never = CancellationToken::new();
        let how = tokio::select! {
            status = child.wait() => {
                let status = status.map_err(failed)?;
                if status.success() {
                    return Ok(());
                }
                format!("ended with {status}")
            }
            () = self.clock.sleep(self.commands.limit) => format!("took longer than {} s", self.commands.limit.as_secs()),
            () = stop.unwrap_or(&never).cancelled() => "was stopped, since its lease has ended".to_owned(),
        };
        end(&mut child, PATIENCE, &self.clock).await.map_err(failed)?;
        let program = program.to_owned();
        Err(ManagerError::Failed { program, how })
    }

    /// Releases an executor of an earlier process once its lease has ended.
    async fn keep(self, path: PathBuf, stop: CancellationToken) -> Result<String, ManagerError> {
        let held = self
            .records
            .take_over(&path, self.commands.limit, &self.clock)
            .await;
        if let Some(held) = held {
            self.wait_for_end(&held.record, &stop).await;
            self.release(held).await;
        }
        stop.cancelled().await;
        Ok("it was released".to_owned())
    }

    async fn release_all(self, kept: BTreeSet<AttemptId>) {
        let kept: Vec<_> = kept
            .into_iter()
            .map(|attempt| self.records.path_of(attempt))
            .collect();
        let paths = self.records.paths();
        let left = paths.into_iter().filter(|path| !kept.contains(path));
        // Each by itself: a command that does not end must not keep the other machines.
        join_all(left.map(|path| self.release_left(path))).await;
    }

    async fn release_left(&self, path: PathBuf) {
        let held = self.records.take_over(&path, self.commands.limit, &self.clock);
        if let Some(held) = held.await {
            tracing::info!(attempt = %held.record.attempt, "releasing an executor that an earlier process provisioned");
            self.release(held).await;
        }
    }
}

impl ExecutorManager for Provisioner {
    fn run(&self, order: Order, stop: CancellationToken) -> Running {
        Box::pin(self.clone().run_to_end(order, stop))
    }

    fn check_spend(&self, lasts: Duration) -> Result<(), SpendExceeded> {
        self.spend.check(lasts, self.clock.now())
    }

    fn resume(&self, order: Order, _apart: bool, stop: CancellationToken) -> Option<Running> {
        let path = self.records.path_of(order.token.attempt());
        path.exists()
            .then(|| Box::pin(self.clone().keep(path, stop)) as Running)
    }

    fn reclaim(&self, kept: BTreeSet<AttemptId>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.clone().release_all(kept))
    }
}

#[cfg(test)]
mod tests;
