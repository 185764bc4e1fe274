//! Executors that the operator's own commands start and release: one call of `provision` for a lease, and one or more
//! calls of `release` after it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::time::Duration;

use muster_process::backoff::random_jitter;
use muster_process::error::Causes;
use muster_process::{Backoff, SharedClock};
use muster_protocol::AttemptId;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::child_process::end;
use crate::provision_records::{LockedRecord, Record, Records};
use crate::{ExecutorManager, ManagerError, Order, Running};

/// The time between `SIGTERM` and `SIGKILL` for a command.
const PATIENCE: Duration = Duration::from_secs(10);
/// The waits between the tries of a release, and their number; after that the next start releases the executor.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(2),
    max: Duration::from_secs(60),
};
const RETRIES: u32 = 6;

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
}

/// Provisions and releases executors by the operator's commands.
#[derive(Clone, Debug)]
pub struct Provisioner {
    commands: Commands,
    records: Records,
    clock: SharedClock,
}

impl Provisioner {
    /// Provisions with `commands`; the records in `folder` outlive this process.
    pub fn new(commands: Commands, folder: PathBuf, clock: SharedClock) -> Self {
        Self {
            commands,
            records: Records::new(folder),
            clock,
        }
    }

    async fn run_to_end(self, order: Order, stop: CancellationToken) -> Result<String, ManagerError> {
        let record = Record {
            attempt: order.token.attempt(),
            class: order.class,
        };
        let held = self.records.write(record)?;
        let secrets = [
            ("MINER_ADDRESS", order.miner_address.clone()),
            ("EXECUTOR_TOKEN", order.token.to_string()),
        ];
        let provisioned = self
            .call(&self.commands.provision, &held, &secrets, Some(&stop))
            .await;
        if provisioned.is_ok() {
            // From here on the executor's own connection shows whether it lives.
            stop.cancelled().await;
        }
        // Also after a failure: the command may have made a part.
        self.release(held).await;
        provisioned.map(|()| "it was released".to_owned())
    }

    async fn release(&self, held: LockedRecord) {
        let attempt = held.record.attempt;
        for failures in 0..RETRIES {
            match self.call(&self.commands.release, &held, &[], None).await {
                Ok(()) => return held.remove(),
                Err(error) => {
                    tracing::warn!(%attempt, error = %Causes(&error), "a provisioned executor could not be released; trying again");
                    self.clock.sleep(RETRY.delay(failures, random_jitter())).await;
                }
            }
        }
        tracing::error!(%attempt, "a provisioned executor is left running; the next start releases it, or do it by hand");
    }

    /// Runs one command to its end.
    async fn call(
        &self,
        command: &[String],
        held: &LockedRecord,
        secrets: &[(&str, String)],
        stop: Option<&CancellationToken>,
    ) -> Result<(), ManagerError> {
        let (program, arguments) = command
            .split_first()
            .map_or(("", [].as_slice()), |(p, a)| (p.as_str(), a));
        let failed = |source| ManagerError::Command {
            program: program.to_owned(),
            source,
        };
        let Record { attempt, class } = &held.record;
        let mut child = Command::new(program)
            .args(arguments)
            .env("EXECUTOR_NAME", format!("muster-{attempt}"))
            .env("EXECUTOR_CLASS", class.to_string())
            // Not arguments, which every user of the machine can read.
            .envs(secrets.iter().map(|(name, value)| (name, value)))
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
        stop.cancelled().await;
        if let Some(held) = held {
            self.release(held).await;
        }
        Ok("it was released".to_owned())
    }

    async fn release_all(self, kept: BTreeSet<AttemptId>) {
        let kept: Vec<_> = kept
            .into_iter()
            .map(|attempt| self.records.path_of(attempt))
            .collect();
        for path in self.records.paths() {
            if kept.contains(&path) {
                continue;
            }
            if let Some(held) = self
                .records
                .take_over(&path, self.commands.limit, &self.clock)
                .await
            {
                tracing::info!(attempt = %held.record.attempt, "releasing an executor that an earlier process provisioned");
                self.release(held).await;
            }
        }
    }
}

impl ExecutorManager for Provisioner {
    fn run(&self, order: Order, stop: CancellationToken) -> Running {
        Box::pin(self.clone().run_to_end(order, stop))
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
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use muster_process::SystemClock;
    use muster_protocol::{AttemptId, ExecutorClass, ExecutorToken};
    use uuid::Uuid;

    use super::*;

    /// A cloud whose machines are files in a folder: `provision` makes one, `release` removes it.
    struct Cloud(tempfile::TempDir);

    impl Cloud {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn machines(&self) -> Vec<String> {
            let mut names: Vec<_> = std::fs::read_dir(self.0.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name.starts_with("muster-"))
                .collect();
            names.sort();
            names
        }

        fn manager(&self, provision: &str, release: &str) -> Provisioner {
            let shell = |script: &str| {
                let script = format!("cd {} && {script}", self.0.path().display());
                ["sh", "-c", &script].map(str::to_owned).to_vec()
            };
            let commands = Commands {
                provision: shell(provision),
                release: shell(release),
                limit: Duration::from_secs(30),
            };
            Provisioner::new(commands, self.records(), Arc::new(SystemClock::default()))
        }

        fn records(&self) -> PathBuf {
            self.0.path().join("records")
        }

        fn recorded(&self) -> usize {
            Records::new(self.records()).paths().len()
        }

        /// Whether the command that told its process id has ended, and its end was noticed.
        fn has_ended(&self) -> bool {
            let pid = std::fs::read_to_string(self.0.path().join("pid")).unwrap();
            !Path::new("/proc").join(pid.trim()).exists()
        }

        fn has(&self, name: &str) -> impl Fn() -> bool {
            let path = self.0.path().join(name);
            move || path.exists()
        }
    }

    const TELL_PID: &str = "echo $$ > pid";
    const MAKE: &str =
        r#"printf '%s %s %s' "$MINER_ADDRESS" "$EXECUTOR_TOKEN" "$EXECUTOR_CLASS" > "$EXECUTOR_NAME""#;
    const REMOVE: &str = r#"rm -f "$EXECUTOR_NAME""#;

    fn order() -> Order {
        Order {
            token: ExecutorToken::new(AttemptId::from_uuid(Uuid::new_v4()), Uuid::new_v4()),
            class: ExecutorClass::AlwaysOnTest,
            private_image: false,
            miner_address: "ws://192.0.2.1:8092".to_owned(),
        }
    }

    async fn until(holds: impl Fn() -> bool) {
        let waiting = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(5)).await; // polls until it holds; the deadline is below
            }
        };
        tokio::time::timeout(Duration::from_secs(30), waiting)
            .await
            .expect("it did not come about");
    }

    fn spawn(
        manager: &Provisioner,
        order: &Order,
        stop: &CancellationToken,
    ) -> tokio::task::JoinHandle<Result<String, ManagerError>> {
        #[expect(clippy::disallowed_methods, reason = "a test waits for the task itself")]
        tokio::spawn(manager.run(order.clone(), stop.clone()))
    }

    #[tokio::test]
    async fn an_executor_is_provisioned_for_its_lease_and_released_after_it() {
        let cloud = Cloud::new();
        let (order, stop) = (order(), CancellationToken::new());
        let name = format!("muster-{}", order.token.attempt());
        let running = spawn(
            &cloud.manager(&format!("{TELL_PID} && {MAKE}"), REMOVE),
            &order,
            &stop,
        );
        until(cloud.has(&name)).await;
        // A lease that ends while the command still runs stops the command.
        until(|| cloud.has_ended()).await;
        let told = || std::fs::read_to_string(cloud.0.path().join(&name)).unwrap_or_default();
        let expected = format!("ws://192.0.2.1:8092 {} always_on.test", order.token);
        until(|| told() == expected).await;
        assert_eq!(cloud.recorded(), 1);
        stop.cancel();
        assert_eq!(running.await.unwrap().unwrap(), "it was released");
        assert_eq!(cloud.machines(), Vec::<String>::new());
        assert_eq!(cloud.recorded(), 0);
    }

    #[tokio::test]
    async fn a_command_that_fails_is_named_and_what_it_left_is_released() {
        let cloud = Cloud::new();
        let manager = cloud.manager(&format!("{MAKE}; exit 3"), REMOVE);
        let error = manager.run(order(), CancellationToken::new()).await.unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
        assert_eq!(cloud.machines(), Vec::<String>::new());
        assert_eq!(cloud.recorded(), 0);
        let missing = Commands {
            provision: vec!["/no/such".to_owned()],
            release: vec!["true".to_owned()],
            limit: Duration::from_secs(30),
        };
        let manager = Provisioner::new(missing, cloud.records(), Arc::new(SystemClock::default()));
        let error = manager.run(order(), CancellationToken::new()).await.unwrap_err();
        assert!(error.to_string().contains("/no/such"), "{error}");
    }

    #[tokio::test]
    async fn a_lease_that_ends_while_it_is_provisioned_leaves_nothing() {
        let cloud = Cloud::new();
        let (order, stop) = (order(), CancellationToken::new());
        let running = spawn(
            &cloud.manager(&format!("{MAKE}; exec tail -f /dev/null"), REMOVE),
            &order,
            &stop,
        );
        until(cloud.has(&format!("muster-{}", order.token.attempt()))).await;
        stop.cancel();
        let error = running.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("its lease has ended"), "{error}");
        assert_eq!(cloud.machines(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_release_that_fails_is_tried_again() {
        let cloud = Cloud::new();
        // The second call succeeds.
        let release = format!("if [ -e tried ]; then {REMOVE}; else touch tried; exit 1; fi");
        let stop = CancellationToken::new();
        stop.cancel();
        let clock = muster_process::TestClock::default();
        let mut manager = cloud.manager(MAKE, &release);
        manager.clock = Arc::new(clock.clone());
        manager.commands.limit = Duration::from_secs(24 * 3600);
        // Stopped from the start: whether the command got to making the machine or not, it is released.
        let running = spawn(&manager, &order(), &stop);
        until(cloud.has("tried")).await;
        until(|| {
            clock.advance(RETRY.max);
            running.is_finished()
        })
        .await;
        running.await.unwrap().unwrap_err();
        assert_eq!(cloud.machines(), Vec::<String>::new());
        assert_eq!(cloud.recorded(), 0);
    }

    /// The miner is killed while its executor works: the next process keeps the executor for as long as its lease.
    #[tokio::test]
    async fn an_executor_whose_lease_goes_on_is_kept_and_released_after_it() {
        let cloud = Cloud::new();
        let order = order();
        let attempt = order.token.attempt();
        let name = format!("muster-{attempt}");
        std::fs::write(cloud.0.path().join(&name), "").unwrap();
        let record = Record {
            attempt,
            class: order.class,
        };
        drop(Records::new(cloud.records()).write(record).unwrap());
        let manager = cloud.manager(MAKE, REMOVE);
        manager.reclaim(BTreeSet::from([attempt])).await;
        assert_eq!((cloud.machines(), cloud.recorded()), (vec![name], 1));
        let stop = CancellationToken::new();
        let resumed = manager.resume(order.clone(), false, stop.clone()).unwrap();
        stop.cancel();
        resumed.await.unwrap();
        assert_eq!((cloud.machines(), cloud.recorded()), (vec![], 0));
        assert!(
            manager.resume(order, false, stop).is_none(),
            "it is no executor of this manager"
        );
    }

    /// The miner is killed while its command still works: the next process waits for it and then releases.
    #[tokio::test]
    async fn what_a_killed_miner_left_is_released_by_the_next_one_after_its_command_has_ended() {
        let cloud = Cloud::new();
        let order = order();
        let name = format!("muster-{}", order.token.attempt());
        let records = Records::new(cloud.records());
        let record = Record {
            attempt: order.token.attempt(),
            class: order.class,
        };
        let held = records.write(record).unwrap();
        // As the killed miner's child: it holds the record through its standard input, and makes the machine late.
        let script = format!("while [ ! -e go ]; do sleep 0.01; done; touch {name}");
        let mut orphan = std::process::Command::new("sh")
            .args(["-c", &script])
            .current_dir(cloud.0.path())
            .stdin(Stdio::from(held.share().unwrap()))
            .spawn()
            .unwrap();
        drop(held);
        let manager = cloud.manager(MAKE, &format!("[ -e {name} ] && {REMOVE}"));
        #[expect(clippy::disallowed_methods, reason = "a test waits for the task itself")]
        let reclaiming = tokio::spawn(manager.reclaim(BTreeSet::new()));
        tokio::task::yield_now().await;
        assert_eq!(cloud.recorded(), 1);
        std::fs::write(cloud.0.path().join("go"), "").unwrap();
        reclaiming.await.unwrap();
        orphan.wait().unwrap();
        assert_eq!(cloud.machines(), Vec::<String>::new());
        assert_eq!(cloud.recorded(), 0);
    }

    #[tokio::test]
    async fn a_torn_record_is_no_executor() {
        let cloud = Cloud::new();
        std::fs::create_dir_all(cloud.records()).unwrap();
        let torn: &Path = &cloud.records().join("x.json");
        std::fs::write(torn, "{\"att").unwrap();
        cloud.manager(MAKE, "exit 1").reclaim(BTreeSet::new()).await;
        assert!(!torn.exists());
    }
}
