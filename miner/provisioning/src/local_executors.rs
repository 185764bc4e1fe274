//! Executors as child processes on this machine.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use muster_process::SharedClock;
use muster_protocol::AttemptId;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpgid};
use tokio::process::{Child, Command};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::child_process::signal;
use crate::{ExecutorManager, ManagerError, Order, Running};

/// The time for an executor that is no longer needed to end by itself, and again after `SIGTERM`.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a process is looked for that is no child of this one.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The variables from which an executor reads the address that it dials and the token of its lease.
const ADDRESS: &str = "MINER_ADDRESS";
const TOKEN: &str = "EXECUTOR_TOKEN";

/// Executors as child processes on this machine.
#[derive(Clone, Debug)]
pub struct LocalProcesses {
    command: Vec<String>,
    clock: SharedClock,
}

impl LocalProcesses {
    /// Starts `command`, program first.
    pub fn new(command: Vec<String>, clock: SharedClock) -> Self {
        Self { command, clock }
    }

    async fn run_to_end(self, order: Order, stop: CancellationToken) -> Result<String, ManagerError> {
        let attempt = order.token.attempt();
        let mut child = self.start(&order)?;
        let ended = tokio::select! {
            status = child.wait() => Some(status),
            () = stop.cancelled() => None,
        };
        let status = match ended {
            Some(status) => status,
            None => self.end(&mut child, attempt).await,
        };
        status
            .map(|status| format!("its process ended with {status}"))
            .map_err(ManagerError::Wait)
    }

    fn start(&self, order: &Order) -> Result<Child, ManagerError> {
        let (program, arguments) = self
            .command
            .split_first()
            .map_or(("", [].as_slice()), |(p, a)| (p.as_str(), a));
        Command::new(program)
            .args(arguments)
            // Every user of this machine may read a command line, and only this one an environment.
            .env(ADDRESS, &order.miner_address)
            .env(TOKEN, order.token.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // Its log lines name the executor and its attempt, and are passed on unchanged.
            .stderr(Stdio::inherit())
            // A process group of its own: it is ended as a whole, and not by a Ctrl-C for the miner.
            .process_group(0)
            // It outlives this process, and comes back to the next one.
            .kill_on_drop(false)
            .spawn()
            .map_err(|source| ManagerError::Start {
                program: program.to_owned(),
                source,
            })
    }

    /// Waits for the end of a process that another process of this miner started.
    async fn watch(self, order: Order, stop: CancellationToken) -> Result<String, ManagerError> {
        let token = order.token.to_string();
        let mut signals = [Signal::SIGTERM, Signal::SIGKILL].into_iter();
        let mut next_signal = None;
        let Some(leader) = find_process(&token).await else {
            return Ok("its process had ended before this process of the miner began".to_owned());
        };
        while has_token(leader, &token) {
            let now = self.clock.now();
            match next_signal {
                None if stop.is_cancelled() => next_signal = Some(now.plus(PATIENCE)),
                Some(due) if now >= due => {
                    if let Some(signal) = signals.next() {
                        tracing::warn!(attempt = %order.token.attempt(), %signal, "the executor has not ended by itself");
                        // It may have ended meanwhile.
                        let _ = killpg(leader, signal);
                        next_signal = Some(now.plus(PATIENCE));
                    }
                }
                None | Some(_) => {}
            }
            self.clock.sleep(LOOK_EVERY).await;
        }
        Ok("its process, which an earlier process of this miner started, has ended".to_owned())
    }

    /// Waits, then sends `SIGTERM` and `SIGKILL`. After `SIGTERM` an executor removes its container first.
    async fn end(&self, child: &mut Child, attempt: AttemptId) -> io::Result<ExitStatus> {
        for next in [Signal::SIGTERM, Signal::SIGKILL] {
            tokio::select! {
                status = child.wait() => return status,
                () = self.clock.sleep(PATIENCE) => {}
            }
            tracing::warn!(%attempt, signal = %next, "the executor has not ended by itself");
            signal(child, next);
        }
        child.wait().await
    }
}

impl ExecutorManager for LocalProcesses {
    fn run(&self, order: Order, stop: CancellationToken) -> Running {
        Box::pin(self.clone().run_to_end(order, stop))
    }

    fn resume(&self, order: Order, apart: bool, stop: CancellationToken) -> Option<Running> {
        apart.then(|| Box::pin(self.clone().watch(order, stop)) as Running)
    }
}

/// The process on this machine that was started with a token, which nobody else knows.
async fn find_process(token: &str) -> Option<Pid> {
    let token = token.to_owned();
    let look = move || {
        let entries = std::fs::read_dir("/proc").ok()?;
        entries.flatten().find_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
            // Programs that the executor starts have its variables too.
            let leads = getpgid(Some(pid)).is_ok_and(|group| group == pid);
            (leads && has_token(pid, &token)).then_some(pid)
        })
    };
    spawn_blocking(look).await.ok().flatten()
}

/// Whether a process runs that was started with this token. Earlier versions of the miner gave it as an argument.
fn has_token(pid: Pid, wanted: &str) -> bool {
    let holds = |file: &str, wanted: &str| {
        let words = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        words
            .split(|byte| *byte == 0)
            .any(|word| word == wanted.as_bytes())
    };
    holds("environ", &format!("{TOKEN}={wanted}")) || holds("cmdline", wanted)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_process::TestClock;
    use muster_protocol::{ExecutorClass, ExecutorToken};
    use muster_testbed::{until, within};
    use uuid::Uuid;

    use super::*;

    fn order() -> Order {
        Order {
            token: ExecutorToken::new(AttemptId::from_uuid(Uuid::new_v4()), Uuid::new_v4()),
            class: ExecutorClass::AlwaysOnTest,
            private_image: false,
            lasts: Duration::from_secs(60),
            notice: crate::Notice::default(),
            miner_address: "ws://127.0.0.1:1".to_owned(),
        }
    }

    fn shell(script: &str, clock: &TestClock) -> LocalProcesses {
        let command = ["sh", "-c", script, "executor"].map(str::to_owned).to_vec();
        LocalProcesses::new(command, Arc::new(clock.clone()))
    }

    #[tokio::test]
    async fn an_executor_gets_its_address_and_token_where_no_other_user_reads_them() {
        let order = order();
        let token = order.token.clone();
        let script = format!(
            "[ \"$MINER_ADDRESS $EXECUTOR_TOKEN\" = 'ws://127.0.0.1:1 {token}' ] && [ $# = 0 ] && exit 7"
        );
        let end = shell(&script, &TestClock::default())
            .run(order, CancellationToken::new())
            .await;
        assert_eq!(end.unwrap(), "its process ended with exit status: 7");
    }

    #[tokio::test]
    async fn a_program_that_is_missing_is_named() {
        let manager = LocalProcesses::new(vec!["/no/such".to_owned()], Arc::new(TestClock::default()));
        let error = manager.run(order(), CancellationToken::new()).await.unwrap_err();
        assert!(error.to_string().contains("/no/such"), "{error}");
    }

    #[tokio::test]
    async fn one_that_does_not_leave_is_asked_and_then_forced() {
        let folder = tempfile::tempdir().unwrap();
        let deaf = folder.path().join("deaf");
        let script = format!(
            "trap '' TERM; touch {}; while :; do sleep 0.01; done",
            deaf.display()
        );
        let clock = TestClock::default();
        let stop = CancellationToken::new();
        let running = shell(&script, &clock).run(order(), stop.clone());
        let time = async {
            until("the script is deaf", async || deaf.exists().then_some(())).await;
            stop.cancel();
            loop {
                clock.wait_for_sleepers(1).await;
                clock.advance(PATIENCE);
                tokio::task::yield_now().await;
            }
        };
        let end = within("the end of the process", async {
            tokio::select! {
                end = running => end,
                () = time => panic!("time does not end"),
            }
        });
        let end = end.await;
        assert!(end.unwrap().contains("signal: 9"));
    }

    #[tokio::test]
    async fn an_executor_of_an_earlier_process_is_watched_to_its_end() {
        let clock = TestClock::default();
        let order = order();
        // The shell itself stays, and the token among its variables with it.
        let manager = shell("while :; do sleep 1; done", &clock);
        let mut child = manager.start(&order).unwrap();
        let token = order.token.to_string();
        until("the process has its variables", async || {
            find_process(&token).await
        })
        .await;
        let resume = || {
            manager
                .resume(order.clone(), true, CancellationToken::new())
                .unwrap()
        };
        let watching = resume();
        let time = async {
            clock.wait_for_sleepers(1).await;
            child.kill().await.unwrap();
            loop {
                clock.advance(LOOK_EVERY);
                tokio::time::sleep(Duration::from_millis(5)).await; // polls until the end is noticed, within the patience
            }
        };
        let ended = within("the end is noticed", async {
            tokio::select! {
                ended = watching => ended,
                () = time => panic!("time does not end"),
            }
        });
        assert!(ended.await.unwrap().contains("has ended"));
        // Of one that is gone there is nothing to wait for.
        assert!(within("the end of nothing", resume()).await.is_ok());
        // One that is persistent is nobody's child.
        assert!(manager.resume(order, false, CancellationToken::new()).is_none());
    }
}
