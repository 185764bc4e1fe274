//! Staying connected: dial, serve, and dial again after a wait that grows while dialling fails.

use std::fmt::Display;
use std::future::Future;

use muster_process::backoff::{Backoff, random_jitter};
use muster_process::clock::SharedClock;
use tokio_util::sync::CancellationToken;

/// The decision after a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterConnection {
    /// Dial again, after the wait.
    Again,
    /// The connection did its work before it ended: dial again after the shortest wait.
    AgainSoon,
    /// Stop: the work is done, or another connection would not help.
    Stop,
}

/// The policy of a connection that is kept.
#[derive(Clone, Debug)]
pub struct Reconnecting {
    /// The peer's name in the log.
    pub name: &'static str,
    /// The waits between two tries.
    pub backoff: Backoff,
    /// The clock of the waits.
    pub clock: SharedClock,
    /// Ends dialling and waiting. An open connection is left to `serve`, which closes it.
    pub stop: CancellationToken,
}

impl Reconnecting {
    /// Dials until `serve` returns [`AfterConnection::Stop`], `fatal` holds for an error of dialling, or the token is
    /// cancelled.
    ///
    /// A connection that lived longer than the wait that would follow it counts as good: the next failure starts from
    /// the shortest wait again. So does one that did its work, as [`AfterConnection::AgainSoon`] states. One that is
    /// accepted and dropped at once does not. So a line that breaks every few
    /// seconds is away for a fraction of that time, and a server that drops everybody is not overrun.
    ///
    /// # Errors
    /// The error of dialling that `fatal` named.
    pub async fn run<C, E, D, Dial, S, Serve>(
        &self,
        mut dial: D,
        mut serve: S,
        fatal: impl Fn(&E) -> bool,
    ) -> Result<(), E>
    where
        E: Display,
        D: FnMut() -> Dial,
        Dial: Future<Output = Result<C, E>>,
        S: FnMut(C) -> Serve,
        Serve: Future<Output = AfterConnection>,
    {
        let mut failures = 0;
        loop {
            let dialled = tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                dialled = dial() => dialled,
            };
            match dialled {
                Ok(connection) => {
                    tracing::info!(peer = self.name, "connected");
                    let since = self.clock.now();
                    let after = serve(connection).await;
                    if after == AfterConnection::Stop || self.stop.is_cancelled() {
                        return Ok(());
                    }
                    let outlived = self.clock.now().since(since) > self.backoff.full_delay(failures);
                    if outlived || after == AfterConnection::AgainSoon {
                        failures = 0;
                    }
                }
                Err(error) if fatal(&error) => return Err(error),
                Err(error) => tracing::warn!(peer = self.name, %error, "cannot connect"),
            }
            let wait = self.backoff.delay(failures, random_jitter());
            failures = failures.saturating_add(1);
            tracing::debug!(peer = self.name, ?wait, "connecting again");
            tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                () = self.clock.sleep(wait) => {}
            }
        }
    }
}
