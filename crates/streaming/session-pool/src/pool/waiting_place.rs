//! The place of a request that waits, and how long it is likely to wait.

use std::fmt;
use std::time::Duration;

use muster_protocol::Timestamp;

use super::sessions::SessionPhase;
use super::waiting_requests::RequestPosition;
use super::{RequestNumber, SessionPool};

/// The share of a new duration in the mean.
const SHARE: u32 = 8;

/// The mean of recent durations; a newer one counts for more.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeanTime(Option<Duration>);

/// The thing that a request lacks while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingFor {
    /// A place in a session that serves.
    Place,
    /// The start of a session.
    Start,
    /// An executor for a session.
    Executor,
}

/// The place of a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingPlace {
    /// Its number in the waiting list, from 1.
    pub place: usize,
    /// The thing that the list lacks.
    pub waits_for: WaitingFor,
    /// How long it is likely to wait; `None` if that is not known.
    pub expected: Option<Duration>,
}

impl MeanTime {
    pub(super) const NONE: Self = Self(None);

    pub(super) fn note(&mut self, took: Duration) {
        let mean = self.0.map_or(took, |mean| {
            let rest = mean.saturating_mul(SHARE.saturating_sub(1));
            rest.saturating_add(took) / SHARE
        });
        self.0 = Some(mean);
    }
}

impl WaitingFor {
    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Place => "place",
            Self::Start => "start",
            Self::Executor => "executor",
        }
    }

    /// The meaning of a word on the wire.
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Place, Self::Start, Self::Executor]
            .into_iter()
            .find(|known| known.word() == word)
    }
}

impl WaitingPlace {
    /// Whether the time rests on the answers of sessions that serve, and not on other jobs, which may end earlier.
    pub const fn is_measured(self) -> bool {
        matches!(self.waits_for, WaitingFor::Place) && self.expected.is_some()
    }
}

impl fmt::Display for WaitingPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "place {} of the waiting list", self.place)?;
        f.write_str(match self.waits_for {
            WaitingFor::Place => "",
            WaitingFor::Start => " while the model starts",
            WaitingFor::Executor => " until a machine is free",
        })?;
        match self.expected {
            Some(expected) => write!(f, ", about {} s", expected.as_secs().max(1)),
            None => Ok(()),
        }
    }
}

impl SessionPool {
    /// The place of a request that waits for any session; `None` if it does not.
    pub fn waiting_place(&self, request: RequestNumber, now: Timestamp) -> Option<WaitingPlace> {
        let known = self.requests.get(&request)?;
        match known.position {
            RequestPosition::Waiting { .. } => {}
            RequestPosition::Assigned { .. } => return None,
        }
        let ahead = self.queue.ahead_of(&known.user, &request)?;
        let (mut usable, mut live, mut begun) = (0_usize, 0_usize, None::<Timestamp>);
        for session in self.sessions.values() {
            match session.phase {
                SessionPhase::Live { .. } => {
                    live = live.saturating_add(1);
                    usable = usable.saturating_add(1);
                }
                SessionPhase::Starting => {
                    begun = Some(begun.map_or(session.begun, |other| other.min(session.begun)));
                    usable = usable.saturating_add(1);
                }
                SessionPhase::Draining { .. } => {}
            }
        }
        let places = usable.max(1).saturating_mul(self.limits.per_session.max(1));
        let (waits_for, begins, turns) = match (live, begun) {
            (1.., _) => (
                WaitingFor::Place,
                Some(Duration::ZERO),
                (ahead / places).saturating_add(1),
            ),
            (0, Some(begun)) => {
                let left = self.starts.0.map(|mean| mean.saturating_sub(now.since(begun)));
                (WaitingFor::Start, left, ahead / places)
            }
            (0, None) => {
                let room = self.no_room.and_then(|no_room| no_room.expected);
                let begins = room.map(|at| at.since(now).saturating_add(self.starts.0.unwrap_or_default()));
                (WaitingFor::Executor, begins, ahead / places)
            }
        };
        let turns = u32::try_from(turns).unwrap_or(u32::MAX);
        let served = match turns {
            0 => Some(Duration::ZERO),
            _ => self.answers.0.map(|mean| mean.saturating_mul(turns)),
        };
        Some(WaitingPlace {
            place: ahead.saturating_add(1),
            waits_for,
            expected: begins
                .zip(served)
                .map(|(begins, served)| begins.saturating_add(served)),
        })
    }
}
