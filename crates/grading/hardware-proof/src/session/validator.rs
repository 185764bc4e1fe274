//! The validator's side of a conversation: sends the messages and collects the evidence. It never judges.

use crate::evidence::{Ending, Evidence, Limits, Received, Sent};
use crate::message::{self, Frame, HEAD, Kind, Spec, commitment_digest};

/// An event for the validator's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input<'a> {
    /// The challenge was handed to the network. The clock starts at this input's time.
    Started,
    /// A whole message arrived.
    Message(&'a [u8]),
    /// A message of this length was announced. It is longer than [`Validator::most_bytes`] and was not read.
    Oversized(u64),
    /// Fresh bytes from the operating system, requested by [`Action::NeedRandomness`].
    Randomness([u8; 32]),
    /// The executor's connection ended.
    Gone,
    /// The time has changed.
    Tick,
}

/// What the caller must do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send these bytes now.
    Send(Vec<u8>),
    /// Draw 32 random bytes now, not earlier, and pass them in as [`Input::Randomness`].
    NeedRandomness,
    /// The conversation is over: take [`Validator::into_evidence`].
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Ready,
    Filling,
    NeedSeed,
    Committing,
    NeedDraw,
    Opening,
    Ended,
}

/// The validator's side of one conversation with one executor.
///
/// A batch prepares the conversations of all its executors first and sends the challenges afterwards, together.
#[derive(Debug, Clone)]
pub struct Validator {
    phase: Phase,
    origin_us: u64,
    phase_us: u64,
    most: usize,
    challenge: Vec<u8>,
    evidence: Evidence,
}

impl Validator {
    /// Prepares a challenge and encodes its message.
    pub fn new(spec: Spec, limits: Limits) -> Self {
        let challenge = message::frame(Kind::Challenge, &spec.session(), &[&spec.to_bytes()]);
        let evidence = Evidence {
            spec,
            limits,
            filled: None,
            seed: None,
            commitment: None,
            draw: None,
            opening: None,
            ending: Ending::TimedOut,
        };
        Self {
            phase: Phase::Ready,
            origin_us: 0,
            phase_us: 0,
            most: 0,
            challenge,
            evidence,
        }
    }

    /// The challenge message, to be sent before [`Input::Started`].
    pub fn challenge(&self) -> &[u8] {
        &self.challenge
    }

    /// The time limits of the challenge.
    pub fn limits(&self) -> &Limits {
        &self.evidence.limits
    }

    /// The length of the longest message that is valid now. A transport rejects a longer one by its announced length.
    pub fn most_bytes(&self) -> usize {
        self.most
    }

    /// The time at which [`Input::Tick`] is due, on the clock of the inputs.
    pub fn deadline_us(&self) -> Option<u64> {
        let limits = &self.evidence.limits;
        let limit = match self.phase {
            Phase::Filling => limits.fill_us,
            Phase::Committing => limits.commit_us,
            Phase::Opening => limits.open_us,
            Phase::Ready | Phase::NeedSeed | Phase::NeedDraw | Phase::Ended => return None,
        };
        // A message that arrives exactly at the limit is still in time.
        Some(self.phase_us.saturating_add(limit).saturating_add(1))
    }

    /// The evidence of the conversation. Before the end, it is that of a conversation that timed out in its present phase.
    pub fn into_evidence(self) -> Evidence {
        self.evidence
    }

    /// Takes one input at `now_us`, on a monotonic clock of the caller.
    pub fn apply(&mut self, input: Input<'_>, now_us: u64) -> Option<Action> {
        match (self.phase, input) {
            (Phase::Ended, _) => None,
            (Phase::Ready, Input::Started) => {
                self.origin_us = now_us;
                let walk = matches!(self.evidence.spec, Spec::Walk(_));
                self.enter(if walk { Phase::Filling } else { Phase::Committing }, now_us);
                None
            }
            (Phase::Filling | Phase::Committing | Phase::Opening, _) if self.late(now_us) => {
                self.end(Ending::TimedOut)
            }
            (Phase::NeedSeed, Input::Randomness(bytes)) => {
                self.evidence.seed = Some(Sent {
                    at_us: self.since(now_us),
                    bytes,
                });
                self.enter(Phase::Committing, now_us);
                Some(self.send(Kind::Seed, &[&bytes]))
            }
            (Phase::NeedDraw, Input::Randomness(bytes)) => {
                self.evidence.draw = Some(Sent {
                    at_us: self.since(now_us),
                    bytes,
                });
                let digest = self.digest();
                let places = self.evidence.spec.places(&digest, &bytes);
                self.enter(Phase::Opening, now_us);
                self.most = self.evidence.spec.opening_bytes(&places);
                Some(self.send(Kind::Draw, &[&digest, &bytes]))
            }
            (Phase::Filling | Phase::Committing | Phase::Opening, Input::Message(bytes)) => {
                self.message(bytes, now_us)
            }
            (_, Input::Message(bytes)) => self.end(Ending::OutOfTurn(kind(bytes))),
            (_, Input::Oversized(length)) => self.end(Ending::Oversized(length, self.most as u64)),
            (_, Input::Gone) => self.end(Ending::Gone),
            (_, Input::Tick | Input::Started | Input::Randomness(_)) => None,
        }
    }

    fn message(&mut self, bytes: &[u8], now_us: u64) -> Option<Action> {
        if bytes.len() > self.most {
            return self.end(Ending::Oversized(bytes.len() as u64, self.most as u64));
        }
        let expected = match self.phase {
            Phase::Filling => Kind::Filled,
            Phase::Committing => Kind::Commitment,
            Phase::Opening => Kind::Opening,
            Phase::Ready | Phase::NeedSeed | Phase::NeedDraw | Phase::Ended => return None,
        };
        if kind(bytes) != expected as u8 {
            return self.end(Ending::OutOfTurn(kind(bytes)));
        }
        let received = Some(Received {
            at_us: self.since(now_us),
            bytes: bytes.to_vec(),
        });
        match expected {
            Kind::Filled => self.evidence.filled = received,
            Kind::Commitment => self.evidence.commitment = received,
            Kind::Opening => {
                self.evidence.opening = received;
                return self.end(Ending::Complete);
            }
            Kind::Challenge | Kind::Seed | Kind::Draw | Kind::Verdict => return None,
        }
        // A message with a wrong head or length decides the verdict. It is kept, and the conversation ends.
        if Frame::parse(bytes).is_err() || bytes.len() != self.most {
            return self.end(Ending::Complete);
        }
        self.enter(
            if expected == Kind::Filled {
                Phase::NeedSeed
            } else {
                Phase::NeedDraw
            },
            now_us,
        );
        Some(Action::NeedRandomness)
    }

    fn enter(&mut self, phase: Phase, now_us: u64) {
        self.phase = phase;
        self.phase_us = now_us;
        self.most = match phase {
            Phase::Filling => HEAD + 16,
            Phase::Committing => self.evidence.spec.commitment_bytes(),
            Phase::Ready | Phase::NeedSeed | Phase::NeedDraw | Phase::Opening | Phase::Ended => 0,
        };
    }

    fn late(&self, now_us: u64) -> bool {
        self.deadline_us().is_some_and(|deadline| now_us >= deadline)
    }

    fn since(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.origin_us)
    }

    fn digest(&self) -> [u8; 32] {
        let seed = self.evidence.seed.map_or([0; 32], |seed| seed.bytes);
        let message = self
            .evidence
            .commitment
            .as_ref()
            .map_or([].as_slice(), |received| &received.bytes);
        commitment_digest(&seed, message)
    }

    fn send(&self, kind: Kind, parts: &[&[u8]]) -> Action {
        Action::Send(message::frame(kind, &self.evidence.spec.session(), parts))
    }

    fn end(&mut self, ending: Ending) -> Option<Action> {
        self.evidence.ending = ending;
        self.enter(Phase::Ended, self.phase_us);
        Some(Action::End)
    }
}

fn kind(bytes: &[u8]) -> u8 {
    bytes.get(1).copied().unwrap_or_default()
}
