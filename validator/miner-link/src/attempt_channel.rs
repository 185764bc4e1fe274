//! An attempt's end of the connection to its miner: dialled on request, dialled again with growing pauses, never
//! polled.

use std::fmt;
use std::future::{pending, poll_fn};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_process::backoff::random_jitter;
use muster_process::clock::Sleep;
use muster_process::error::Causes;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::wire::{WireError, decode};
use muster_protocol::{AttemptId, FeatureSet};
use muster_websocket::CloseCode;

use crate::MinerLink;
use crate::session_state::{AttemptItem, BACKOFF, MinerSession, SharedFrames, SocketHalves};
use crate::session_task::{self, LIMITS};

/// An event of the connection.
#[derive(Debug)]
pub enum ChannelEvent {
    /// It is open, and the miner was greeted.
    Up,
    /// It was lost, or could not be made; the text states why.
    Down(Arc<str>),
    /// A message of the miner.
    Message(Box<MinerToValidator>),
    /// A frame of the miner that is no message.
    Malformed(WireError),
}

/// An attempt's connection to its miner, shared or not. Dropping it ends the registration of the attempt.
pub struct MinerChannel {
    link: MinerLink,
    session: Arc<MinerSession>,
    attempt: AttemptId,
    mode: ChannelMode,
}

enum ChannelMode {
    /// Through the session of all attempts, while it is open.
    Shared(Option<SharedFrames>),
    /// Through a connection of the attempt's own.
    Own(Box<OwnConnection>),
}

struct OwnConnection {
    /// Failures since the last message.
    failures: u32,
    state: DialState,
}

enum DialState {
    /// No connection was asked for.
    Idle,
    Pausing(Sleep),
    Dialling(BoxFuture<'static, Result<SocketHalves, String>>),
    Up(SocketHalves),
}

// === impl MinerChannel ===

impl MinerChannel {
    pub(crate) fn new(link: MinerLink, session: Arc<MinerSession>, attempt: AttemptId) -> Self {
        Self {
            link,
            session,
            attempt,
            mode: ChannelMode::Shared(None),
        }
    }

    /// Asks for a connection. The first one is made at once, later ones after a pause. An open one, or one that is
    /// being made, is left as it is.
    pub fn dial(&mut self) {
        match &mut self.mode {
            ChannelMode::Shared(_) => {
                if self.session.request_dial(self.attempt) {
                    let run = session_task::run(self.link.clone(), Arc::clone(&self.session));
                    drop(self.link.setup().tasks.spawn("miner session", run));
                }
            }
            ChannelMode::Own(own) => own.dial(&self.link, &self.session),
        }
    }

    /// The next event; waits for ever while no connection was asked for. Cancel-safe.
    pub async fn next(&mut self) -> ChannelEvent {
        loop {
            if let ChannelMode::Own(own) = &mut self.mode {
                return own.next(&self.link, &self.session).await;
            }
            let item = poll_fn(|cx| self.session.poll_next(self.attempt, cx)).await;
            match item {
                AttemptItem::Up(frames) => {
                    self.mode = ChannelMode::Shared(Some(frames));
                    return ChannelEvent::Up;
                }
                AttemptItem::Down(reason) => {
                    self.mode = ChannelMode::Shared(None);
                    return ChannelEvent::Down(reason);
                }
                AttemptItem::Message(message, _permit) => return ChannelEvent::Message(message),
                AttemptItem::NeedsOwn(None) => {
                    let mut own = OwnConnection {
                        failures: 0,
                        state: DialState::Idle,
                    };
                    own.dial(&self.link, &self.session);
                    self.mode = ChannelMode::Own(Box::new(own));
                }
                AttemptItem::NeedsOwn(Some(halves)) => {
                    let state = DialState::Up(*halves);
                    self.mode = ChannelMode::Own(Box::new(OwnConnection { failures: 0, state }));
                    return ChannelEvent::Up;
                }
            }
        }
    }

    /// Sends a frame if the connection is open. A failure shows as the next [`ChannelEvent::Down`].
    pub async fn send(&mut self, frame: String) {
        let failure = match &mut self.mode {
            ChannelMode::Shared(Some(_)) if frame.len() > LIMITS.max_frame => {
                Some("the frame is too long".to_owned())
            }
            ChannelMode::Shared(Some(shared)) => shared
                .frames
                .send(frame)
                .await
                .err()
                .map(|error| error.to_string()),
            ChannelMode::Shared(None) => None,
            ChannelMode::Own(own) => match &mut own.state {
                DialState::Up((_, writer)) => writer.send(frame).await.err().map(|error| error.to_string()),
                DialState::Idle | DialState::Pausing(_) | DialState::Dialling(_) => None,
            },
        };
        if let Some(reason) = failure {
            tracing::debug!(attempt = %self.attempt, reason, "a frame did not reach the miner");
        }
    }

    /// Whether the connection is open.
    pub fn is_up(&self) -> bool {
        match &self.mode {
            ChannelMode::Shared(frames) => frames.is_some(),
            ChannelMode::Own(own) => matches!(own.state, DialState::Up(_)),
        }
    }

    /// Whether the connection is open and the miner is Muster.
    pub fn is_muster(&self) -> bool {
        match &self.mode {
            ChannelMode::Shared(frames) => frames.is_some(),
            ChannelMode::Own(own) => match &own.state {
                DialState::Up((_, writer)) => writer.is_muster(),
                DialState::Idle | DialState::Pausing(_) | DialState::Dialling(_) => false,
            },
        }
    }

    /// The features that the miner showed on the open connection; none while it is not open.
    pub fn features(&self) -> FeatureSet {
        match &self.mode {
            ChannelMode::Shared(shared) => shared.as_ref().map(|shared| shared.features).unwrap_or_default(),
            ChannelMode::Own(own) => match &own.state {
                DialState::Up((_, writer)) => writer.features(),
                DialState::Idle | DialState::Pausing(_) | DialState::Dialling(_) => FeatureSet::NONE,
            },
        }
    }

    /// Closes the attempt's own connection. A session that others share stays open.
    pub async fn close(mut self) {
        if let ChannelMode::Own(own) = &mut self.mode
            && let DialState::Up((_, writer)) = &mut own.state
        {
            writer.close(CloseCode::Normal, "").await;
        }
    }
}

impl Drop for MinerChannel {
    fn drop(&mut self) {
        self.link.remove_channel(&self.session, self.attempt);
    }
}

impl fmt::Debug for MinerChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MinerChannel")
            .field("attempt", &self.attempt)
            .field("up", &self.is_up())
            .finish_non_exhaustive()
    }
}

// === impl OwnConnection ===

impl OwnConnection {
    fn dial(&mut self, link: &MinerLink, session: &MinerSession) {
        match self.state {
            DialState::Idle => {}
            DialState::Pausing(_) | DialState::Dialling(_) | DialState::Up(_) => return,
        }
        self.state = match self.failures.checked_sub(1) {
            None => spawn_dial(link, session),
            Some(failure) => {
                let pause = BACKOFF.delay(failure, random_jitter());
                DialState::Pausing(link.setup().clock.sleep(pause))
            }
        };
    }

    async fn next(&mut self, link: &MinerLink, session: &MinerSession) -> ChannelEvent {
        loop {
            match &mut self.state {
                DialState::Idle => pending().await,
                DialState::Pausing(pause) => {
                    pause.await;
                    self.state = spawn_dial(link, session);
                }
                DialState::Dialling(dial) => match dial.await {
                    Ok(halves) => {
                        if halves.1.is_muster() {
                            session.share_again();
                        }
                        self.state = DialState::Up(halves);
                        return ChannelEvent::Up;
                    }
                    Err(reason) => return self.fail(&reason),
                },
                DialState::Up((reader, _)) => match reader.recv().await {
                    Ok(Some(frame)) => {
                        self.failures = 0;
                        return match decode(&frame) {
                            Ok(message) => ChannelEvent::Message(Box::new(message)),
                            Err(error) => ChannelEvent::Malformed(error),
                        };
                    }
                    Ok(None) => return self.fail("the miner closed the connection"),
                    Err(error) if error.is_fatal() => return self.fail(&Causes(&error).to_string()),
                    Err(error) => tracing::warn!(%error, "a frame of the miner was dropped"),
                },
            }
        }
    }

    fn fail(&mut self, reason: &str) -> ChannelEvent {
        self.state = DialState::Idle;
        self.failures = self.failures.saturating_add(1);
        ChannelEvent::Down(reason.into())
    }
}

/// Dials in a task of its own, so that dialling goes on while the attempt is being stored.
fn spawn_dial(link: &MinerLink, session: &MinerSession) -> DialState {
    let (endpoint, dialling) = (session.endpoint(), link.clone());
    let made = async move { session_task::dial(&dialling, endpoint).await };
    let made = link.setup().tasks.spawn("dial", made);
    let joined = async move { made.join().await.map_err(|error| error.to_string())? };
    DialState::Dialling(joined.boxed())
}
