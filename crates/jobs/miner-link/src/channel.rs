//! An attempt's end of the connection to its miner: dialled when asked, dialled again with growing pauses, never polled.

use std::fmt;
use std::future::{pending, poll_fn};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_process::backoff::random_jitter;
use muster_process::clock::Sleep;
use muster_process::error::Causes;
use muster_protocol::AttemptId;
use muster_protocol::wire::miner::FromMiner;
use muster_protocol::wire::{WireError, decode};
use tokio::sync::mpsc;

use super::Lines;
use super::session::{BACKOFF, Halves, Item, Session};
use super::talk::{self, LIMITS};

/// What happened on the connection.
#[derive(Debug)]
pub enum Heard {
    /// It stands, and the miner was greeted.
    Up,
    /// It is gone, or could not be made.
    Down(Arc<str>),
    /// The miner says something.
    Message(Box<FromMiner>),
    /// The miner says something that is no message.
    Malformed(WireError),
}

/// An attempt's line to its miner.
pub struct Line {
    lines: Lines,
    session: Arc<Session>,
    attempt: AttemptId,
    way: Way,
}

enum Way {
    /// Through the session of all attempts; frames go in here while it stands.
    Together(Option<mpsc::Sender<String>>),
    /// Through a connection of its own.
    Alone(Box<Alone>),
}

struct Alone {
    /// Failures since something was last heard.
    failures: u32,
    state: State,
}

enum State {
    /// Nobody asked for a connection.
    Idle,
    Pausing(Sleep),
    Dialling(BoxFuture<'static, Result<Halves, String>>),
    Up(Halves),
}

impl Line {
    pub(crate) fn new(lines: Lines, session: Arc<Session>, attempt: AttemptId) -> Self {
        Self {
            lines,
            session,
            attempt,
            way: Way::Together(None),
        }
    }

    /// Asks for a connection: one is made at once the first time and after a pause later. An open one, or one that is being
    /// made, is left as it is.
    pub fn dial(&mut self) {
        match &mut self.way {
            Way::Together(_) => {
                if self.session.ask(self.attempt) {
                    let run = talk::run(self.lines.clone(), Arc::clone(&self.session));
                    drop(self.lines.setup().tasks.spawn("miner session", run));
                }
            }
            Way::Alone(alone) => alone.dial(&self.lines, &self.session),
        }
    }

    /// The next thing that happens; waits for ever while nobody asked for a connection. Cancel-safe.
    pub async fn next(&mut self) -> Heard {
        loop {
            if let Way::Alone(alone) = &mut self.way {
                return alone.next(&self.lines, &self.session).await;
            }
            let item = poll_fn(|cx| self.session.poll_next(self.attempt, cx)).await;
            match item {
                Item::Up(frames) => {
                    self.way = Way::Together(Some(frames));
                    return Heard::Up;
                }
                Item::Down(reason) => {
                    self.way = Way::Together(None);
                    return Heard::Down(reason);
                }
                Item::Message(message, _held) => return Heard::Message(message),
                Item::Alone(None) => {
                    let mut alone = Alone {
                        failures: 0,
                        state: State::Idle,
                    };
                    alone.dial(&self.lines, &self.session);
                    self.way = Way::Alone(Box::new(alone));
                }
                Item::Alone(Some(halves)) => {
                    let state = State::Up(*halves);
                    self.way = Way::Alone(Box::new(Alone { failures: 0, state }));
                    return Heard::Up;
                }
            }
        }
    }

    /// Sends a frame if the connection stands. A failure shows as [`Heard::Down`] next.
    pub async fn send(&mut self, frame: String) {
        let failed = match &mut self.way {
            Way::Together(Some(_)) if frame.len() > LIMITS.max_frame => Some("it is too long".to_owned()),
            Way::Together(Some(frames)) => frames.send(frame).await.err().map(|error| error.to_string()),
            Way::Together(None) => None,
            Way::Alone(alone) => match &mut alone.state {
                State::Up((_, writer)) => writer.send(frame).await.err().map(|error| error.to_string()),
                State::Idle | State::Pausing(_) | State::Dialling(_) => None,
            },
        };
        if let Some(reason) = failed {
            tracing::debug!(attempt = %self.attempt, reason, "a frame did not reach the miner");
        }
    }

    /// Whether the connection stands.
    pub fn is_up(&self) -> bool {
        match &self.way {
            Way::Together(frames) => frames.is_some(),
            Way::Alone(alone) => matches!(alone.state, State::Up(_)),
        }
    }

    /// Whether the connection stands and its other side is Muster.
    pub fn is_muster(&self) -> bool {
        match &self.way {
            Way::Together(frames) => frames.is_some(),
            Way::Alone(alone) => match &alone.state {
                State::Up((_, writer)) => writer.is_muster(),
                State::Idle | State::Pausing(_) | State::Dialling(_) => false,
            },
        }
    }

    /// Says goodbye, on a connection of its own. A session that others share is left.
    pub async fn close(mut self) {
        if let Way::Alone(alone) = &mut self.way
            && let State::Up((_, writer)) = &mut alone.state
        {
            writer.close(1000, "").await;
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.lines.detach(&self.session, self.attempt);
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line")
            .field("attempt", &self.attempt)
            .field("up", &self.is_up())
            .finish_non_exhaustive()
    }
}

impl Alone {
    fn dial(&mut self, lines: &Lines, session: &Session) {
        match self.state {
            State::Idle => {}
            State::Pausing(_) | State::Dialling(_) | State::Up(_) => return,
        }
        self.state = match self.failures.checked_sub(1) {
            None => dialling(lines, session),
            Some(failure) => {
                let pause = BACKOFF.delay(failure, random_jitter());
                State::Pausing(lines.setup().clock.sleep(pause))
            }
        };
    }

    async fn next(&mut self, lines: &Lines, session: &Session) -> Heard {
        loop {
            match &mut self.state {
                State::Idle => pending().await,
                State::Pausing(pause) => {
                    pause.await;
                    self.state = dialling(lines, session);
                }
                State::Dialling(dial) => match dial.await {
                    Ok(halves) => {
                        if halves.1.is_muster() {
                            session.not_apart();
                        }
                        self.state = State::Up(halves);
                        return Heard::Up;
                    }
                    Err(reason) => return self.down(&reason),
                },
                State::Up((reader, _)) => match reader.recv().await {
                    Ok(Some(frame)) => {
                        self.failures = 0;
                        return match decode(&frame) {
                            Ok(message) => Heard::Message(Box::new(message)),
                            Err(error) => Heard::Malformed(error),
                        };
                    }
                    Ok(None) => return self.down("the miner closed the connection"),
                    Err(error) if error.is_fatal() => return self.down(&Causes(&error).to_string()),
                    Err(error) => tracing::warn!(%error, "a frame of the miner was dropped"),
                },
            }
        }
    }

    fn down(&mut self, reason: &str) -> Heard {
        self.state = State::Idle;
        self.failures = self.failures.saturating_add(1);
        Heard::Down(reason.into())
    }
}

/// In a task of its own, so that it goes on while the attempt is being written down.
fn dialling(lines: &Lines, session: &Session) -> State {
    let (place, dialling) = (session.place(), lines.clone());
    let made = async move { talk::dialled(&dialling, place).await };
    let made = lines.setup().tasks.spawn("dial", made);
    let joined = async move { made.join().await.map_err(|error| error.to_string())? };
    State::Dialling(joined.boxed())
}
