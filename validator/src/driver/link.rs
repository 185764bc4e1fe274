//! The connection of one attempt to its miner: dialled when asked, dialled again with growing pauses, never polled.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_kit::backoff::{Backoff, random_jitter};
use muster_kit::clock::Sleep;
use muster_kit::error::Causes;
use muster_kit::task::Task;
use muster_rpc::{ConnectError, Limits, Socket, SocketReader, SocketWriter, connect};

use crate::shared::Shared;

/// Short at first, since a job is waiting; the attempt's own deadline ends it.
const BACKOFF: Backoff = Backoff {
    base: std::time::Duration::from_millis(250),
    max: std::time::Duration::from_secs(5),
};

/// What happened on the connection.
#[derive(Debug)]
pub(super) enum Heard {
    /// It stands.
    Up,
    /// It is gone, or could not be made.
    Down(String),
    /// A frame.
    Frame(String),
}

pub(super) struct Link {
    url: String,
    shared: Arc<Shared>,
    /// Failures since something was last heard.
    failures: u32,
    state: State,
}

enum State {
    /// Nobody asked for a connection.
    Idle,
    Pausing(Sleep),
    Dialling(BoxFuture<'static, Result<Socket, ConnectError>>),
    Up(SocketReader, SocketWriter),
}

/// A connection to a miner that is being made.
pub(crate) type Dialled = Task<Result<Socket, ConnectError>>;

/// Begins to dial the miner at `address`, before anybody listens to it. Nothing is said to it yet.
pub(crate) fn dial(shared: &Arc<Shared>, address: SocketAddr) -> Dialled {
    let (url, dialling) = (url(address, shared), Arc::clone(shared));
    shared
        .tasks
        .spawn("dial", async move { dialled(url, dialling).await })
}

fn url(address: SocketAddr, shared: &Shared) -> String {
    format!("ws://{address}/v0.1/validator_interface/{}", shared.me())
}

async fn dialled(url: String, shared: Arc<Shared>) -> Result<Socket, ConnectError> {
    // It is never closed; without a permit one would be dialled all the same.
    let _place = shared.dials.acquire().await;
    connect(&url, &Limits::miner()).await
}

impl Link {
    /// A link to the miner at `address`.
    pub(super) fn new(address: SocketAddr, shared: &Arc<Shared>) -> Self {
        Self {
            url: url(address, shared),
            shared: Arc::clone(shared),
            failures: 0,
            state: State::Idle,
        }
    }

    /// Begins to dial, at once the first time and after a pause later. An open connection, or one that is being dialled,
    /// is left as it is.
    pub(super) fn dial(&mut self) {
        match self.state {
            State::Idle => {}
            State::Pausing(_) | State::Dialling(_) | State::Up(..) => return,
        }
        self.state = match self.failures.checked_sub(1) {
            None => self.dialling(),
            Some(failure) => State::Pausing(self.shared.clock.sleep(BACKOFF.delay(failure, random_jitter()))),
        };
    }

    fn dialling(&self) -> State {
        State::Dialling(dialled(self.url.clone(), Arc::clone(&self.shared)).boxed())
    }

    /// Goes on with a connection that is being made already. If whoever makes it is stopped, it is made anew.
    pub(super) fn take(&mut self, dialled: Dialled) {
        let (url, shared) = (self.url.clone(), Arc::clone(&self.shared));
        let joined = async move {
            match dialled.join().await {
                Ok(made) => made,
                Err(_) => self::dialled(url, shared).await,
            }
        };
        self.state = State::Dialling(joined.boxed());
    }

    /// The next thing that happens; waits for ever while nobody asked for a connection. Cancel-safe.
    pub(super) async fn next(&mut self) -> Heard {
        loop {
            match &mut self.state {
                State::Idle => pending().await,
                State::Pausing(pause) => {
                    pause.await;
                    self.state = self.dialling();
                }
                State::Dialling(dial) => match dial.await {
                    Ok(socket) => {
                        let (reader, writer) = socket.split();
                        self.state = State::Up(reader, writer);
                        return Heard::Up;
                    }
                    Err(error) => return self.down(Causes(&error).to_string()),
                },
                State::Up(reader, _) => match reader.recv().await {
                    Ok(Some(frame)) => {
                        self.failures = 0;
                        return Heard::Frame(frame);
                    }
                    Ok(None) => return self.down("the miner closed the connection".to_owned()),
                    Err(error) if error.is_fatal() => return self.down(Causes(&error).to_string()),
                    Err(error) => tracing::warn!(%error, "a frame of the miner was dropped"),
                },
            }
        }
    }

    fn down(&mut self, reason: String) -> Heard {
        self.state = State::Idle;
        self.failures = self.failures.saturating_add(1);
        Heard::Down(reason)
    }

    /// Sends a frame if the connection stands. A failure shows as [`Heard::Down`] next.
    pub(super) async fn send(&mut self, frame: String) {
        match &mut self.state {
            State::Up(_, writer) => {
                if let Err(error) = writer.send(frame).await {
                    tracing::debug!(%error, "a frame did not reach the miner");
                }
            }
            State::Idle | State::Pausing(_) | State::Dialling(_) => {}
        }
    }

    /// Whether the connection stands.
    pub(super) fn is_up(&self) -> bool {
        match self.state {
            State::Up(..) => true,
            State::Idle | State::Pausing(_) | State::Dialling(_) => false,
        }
    }

    /// Whether the connection stands and its other side is Muster.
    pub(super) fn is_muster(&self) -> bool {
        match &self.state {
            State::Up(_, writer) => writer.is_muster(),
            State::Idle | State::Pausing(_) | State::Dialling(_) => false,
        }
    }

    /// Says goodbye.
    pub(super) async fn close(self) {
        match self.state {
            State::Up(_, writer) => writer.close(1000, "").await,
            State::Idle | State::Pausing(_) | State::Dialling(_) => {}
        }
    }
}
