//! The events that a pool takes and the effects that it asks for.

use std::time::Duration;

use muster_openai::OpenAiError;
use muster_protocol::{Digest, Timestamp};

/// The number that a pool gives to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionNumber(pub u64);

/// The number that the gateway gives to a request. No number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestNumber(pub u64);

/// An event that the pool must know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client's request has arrived.
    Arrived {
        /// The number that the gateway gave to the request.
        request: RequestNumber,
        /// The client's pseudonym; clients take turns by it.
        user: Digest,
        /// How long it waits before it is refused.
        patience: Duration,
    },
    /// A request has arrived that only this session may serve. It gets the next free place there.
    ArrivedFor {
        /// The number that the gateway gave to the request.
        request: RequestNumber,
        /// The client's pseudonym.
        user: Digest,
        /// The session that alone may serve it.
        session: SessionNumber,
    },
    /// The session is wanted until this time: it is not closed before because nobody uses it.
    Hold(SessionNumber, Timestamp),
    /// The client has gone, whether its request was waiting or being served.
    Left(RequestNumber),
    /// The first byte of the answer is on its way to the client.
    FirstByte(RequestNumber, SessionNumber),
    /// The answer has ended, completely or not, and nothing more follows.
    Served(RequestNumber, SessionNumber),
    /// The session failed before the first byte of the answer.
    Failed(RequestNumber, SessionNumber),
    /// The session is attested and serves until this time.
    Ready(SessionNumber, Timestamp),
    /// The session cannot be started or cannot seal; the reason, for clients and logs.
    Unusable(SessionNumber, String),
    /// No executor was free for the session, which says nothing about it: the requests go on waiting.
    NoRoom {
        /// The session that did not start.
        session: SessionNumber,
        /// The reason, for clients and logs.
        why: String,
        /// When an executor is likely to be free, if that is known.
        expected: Option<Timestamp>,
    },
    /// An executor is free for a shorter session than this one: it is started anew at once.
    TooLong(SessionNumber),
    /// An executor may have become free.
    Room,
    /// Whether jobs wait for executors of the pool's class, because all that there are are at work.
    JobsWait(bool),
    /// The session's job has ended.
    Died(SessionNumber),
    /// A health check of the session has passed (`true`) or failed.
    Health(SessionNumber, bool),
    /// The executor of the session is wanted for something else: the session serves the requests that it has and takes
    /// no more. The start of another session waits for eight times [`Limits::backoff`](super::Limits), or it
    /// would take the executor.
    Drain(SessionNumber),
    /// Nothing new begins; every session is drained.
    Stop,
    /// Time has passed; see [`wake`](super::SessionPool::wake).
    Tick,
}

/// An action that the pool asks the gateway for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start a session of this number.
    Start(SessionNumber),
    /// Send the request to the session.
    Route(RequestNumber, SessionNumber),
    /// Answer the client with this error.
    Refuse(RequestNumber, OpenAiError),
    /// The answer has begun and its session is presumed dead: pass on what still arrives, and report an error inside
    /// the stream if nothing does.
    BreakOff(RequestNumber),
    /// Close the session.
    Close(SessionNumber, CloseReason),
}

/// Why a session is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// It did not start, or cannot seal.
    Unusable,
    /// No executor was free for it.
    NoRoom,
    /// It failed too many health checks one after another.
    Unhealthy,
    /// Its job ended, although the gateway had not closed it.
    JobOver,
    /// No request used it for the idle time.
    Idle,
    /// It was being replaced or ended soon, and has served its last request.
    Drained,
    /// Its time is over.
    Expired,
    /// The gateway is stopping.
    GatewayStopping,
}

impl CloseReason {
    /// The reason as text, as the gateway's store keeps it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Unusable => "it cannot be used",
            Self::NoRoom => "no executor was free for it",
            Self::Unhealthy => "it does not answer health checks",
            Self::JobOver => "its job is over",
            Self::Idle => "nobody used it",
            Self::Drained => "it is drained",
            Self::Expired => "its time is over",
            Self::GatewayStopping => "the gateway is stopping",
        }
    }

    /// Whether the session is at fault. Otherwise the gateway ends it by its own choice, and a request that the session
    /// does not answer any more is not held against its miner.
    pub const fn is_session_fault(self) -> bool {
        match self {
            Self::Unusable | Self::Unhealthy | Self::JobOver => true,
            Self::NoRoom | Self::Idle | Self::Drained | Self::Expired | Self::GatewayStopping => false,
        }
    }
}

impl Event {
    /// The request that has ended with this event.
    pub const fn ended_request(&self) -> Option<RequestNumber> {
        match self {
            Self::Left(request) | Self::Served(request, _) => Some(*request),
            Self::Arrived { .. }
            | Self::ArrivedFor { .. }
            | Self::FirstByte(..)
            | Self::Failed(..)
            | Self::Ready(..)
            | Self::Unusable(..)
            | Self::NoRoom { .. }
            | Self::TooLong(_)
            | Self::Room
            | Self::JobsWait(_)
            | Self::Died(_)
            | Self::Health(..)
            | Self::Hold(..)
            | Self::Drain(_)
            | Self::Stop
            | Self::Tick => None,
        }
    }

    /// The session whose job has ended, although the gateway had not closed it.
    pub const fn dead_session(&self) -> Option<SessionNumber> {
        match self {
            Self::Died(session) => Some(*session),
            Self::Arrived { .. }
            | Self::ArrivedFor { .. }
            | Self::Left(_)
            | Self::FirstByte(..)
            | Self::Served(..)
            | Self::Failed(..)
            | Self::Ready(..)
            | Self::Unusable(..)
            | Self::NoRoom { .. }
            | Self::TooLong(_)
            | Self::Room
            | Self::JobsWait(_)
            | Self::Health(..)
            | Self::Hold(..)
            | Self::Drain(_)
            | Self::Stop
            | Self::Tick => None,
        }
    }
}
