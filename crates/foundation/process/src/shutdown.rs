//! The signals by which an operator stops a role.

use std::fmt;
use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// A signal to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// `SIGTERM`: from a supervisor.
    Terminate,
    /// `SIGINT`: Ctrl-C.
    Interrupt,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
        })
    }
}

/// Waits for the next signal to stop. A binary calls it once to begin an orderly shutdown, and again to cut it short.
///
/// # Errors
/// The operating system does not install a handler.
pub async fn wait_for_signal() -> io::Result<Signal> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = terminate.recv() => Signal::Terminate,
        _ = interrupt.recv() => Signal::Interrupt,
    })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use nix::sys::signal::{self, raise};

    use super::*;

    // Both in one test: a signal reaches every waiter of the process.
    #[tokio::test]
    async fn both_signals_are_told_apart() {
        for (sent, expected) in [
            (signal::SIGTERM, Signal::Terminate),
            (signal::SIGINT, Signal::Interrupt),
        ] {
            let mut waiting = Box::pin(wait_for_signal());
            // The first poll installs the handlers; a signal before that would end this process.
            assert!((&mut waiting).now_or_never().is_none());
            raise(sent).unwrap();
            assert_eq!(waiting.await.unwrap(), expected);
        }
    }
}
