//! Executors as child processes on this machine.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use muster_process::SharedClock;
use muster_protocol::AttemptId;
use nix::sys::signal::Signal;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use crate::child_process::signal;
use crate::{ExecutorManager, ManagerError, Order, Running};

/// The time for an executor that is no longer needed to end by itself, and again after `SIGTERM`.
const PATIENCE: Duration = Duration::from_secs(10);

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
            .args([
                "--miner-address",
                &order.miner_address,
                "--token",
                &order.token.to_string(),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // Its log lines name the executor and its attempt, and are passed on unchanged.
            .stderr(Stdio::inherit())
            // A process group of its own: it is ended as a whole, and not by a Ctrl-C for the miner.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| ManagerError::Start {
                program: program.to_owned(),
                source,
            })
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
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_process::TestClock;
    use muster_protocol::{ExecutorClass, ExecutorToken};
    use uuid::Uuid;

    use super::*;

    fn order() -> Order {
        Order {
            token: ExecutorToken::new(AttemptId::from_uuid(Uuid::new_v4()), Uuid::new_v4()),
            class: ExecutorClass::AlwaysOnTest,
            private_image: false,
            miner_address: "ws://127.0.0.1:1".to_owned(),
        }
    }

    fn shell(script: &str, clock: &TestClock) -> LocalProcesses {
        let command = ["sh", "-c", script, "executor"].map(str::to_owned).to_vec();
        LocalProcesses::new(command, Arc::new(clock.clone()))
    }

    #[tokio::test]
    async fn an_executor_gets_its_address_and_token() {
        let order = order();
        let script = format!(
            "[ \"$1 $2 $3 $4\" = '--miner-address ws://127.0.0.1:1 --token {}' ] && exit 7",
            order.token
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
            while !deaf.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await; // polls until it is there; the caller sets the deadline
            }
            stop.cancel();
            loop {
                clock.wait_for_sleepers(1).await;
                clock.advance(PATIENCE);
                tokio::task::yield_now().await;
            }
        };
        let end = tokio::time::timeout(Duration::from_secs(60), async {
            tokio::select! {
                end = running => end,
                () = time => panic!("time does not end"),
            }
        });
        let end = end.await.unwrap();
        assert!(end.unwrap().contains("signal: 9"));
    }
}
