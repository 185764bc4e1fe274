//! The validator's side of a conversation: sends the messages and collects the evidence. It never judges.

use crate::challenge_message::{self, HEAD, MessageFrame, MessageKind, ProofSpec, commitment_digest};
use crate::evidence::{ConversationEnd, Evidence, Limits, ReceivedMessage, SentRandomness};

/// An event for the validator's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValidatorInput<'a> {
    /// The challenge was handed to the network. The clock starts at this input's time.
    Started,
    /// A whole message arrived.
    Message(&'a [u8]),
    /// A message of this length was announced. It is longer than [`ValidatorConversation::max_message_bytes`] and was
    /// not read.
    Oversized(u64),
    /// Fresh bytes from the operating system, requested by [`ValidatorAction::NeedRandomness`].
    Randomness([u8; 32]),
    /// The executor's connection ended.
    Gone,
    /// The time has changed.
    Tick,
}

/// The next action of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValidatorAction {
    /// Send these bytes now.
    Send(Vec<u8>),
    /// Draw 32 random bytes now, not earlier, and pass them in as [`ValidatorInput::Randomness`].
    NeedRandomness,
    /// The conversation is over: take [`ValidatorConversation::into_evidence`].
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValidatorPhase {
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
pub struct ValidatorConversation {
    phase: ValidatorPhase,
    origin_us: u64,
    phase_us: u64,
    max_bytes: usize,
    challenge: Vec<u8>,
    evidence: Evidence,
}

impl ValidatorConversation {
    /// Prepares a challenge and encodes its message.
    pub fn new(spec: ProofSpec, limits: Limits) -> Self {
        let challenge = challenge_message::encode_message(
            MessageKind::Challenge,
            &spec.challenge_id(),
            &[&spec.to_bytes()],
        );
        let evidence = Evidence {
            spec,
            limits,
            filled: None,
            seed: None,
            commitment: None,
            draw: None,
            opening: None,
            ending: ConversationEnd::TimedOut,
        };
        Self {
            phase: ValidatorPhase::Ready,
            origin_us: 0,
            phase_us: 0,
            max_bytes: 0,
            challenge,
            evidence,
        }
    }

    /// The challenge message, to be sent before [`ValidatorInput::Started`].
    pub fn challenge(&self) -> &[u8] {
        &self.challenge
    }

    /// The time limits of the challenge.
    pub fn limits(&self) -> &Limits {
        &self.evidence.limits
    }

    /// The length of the longest message that is valid now. A transport rejects a longer one by its announced length.
    pub fn max_message_bytes(&self) -> usize {
        self.max_bytes
    }

    /// The time at which [`ValidatorInput::Tick`] is due, on the clock of the inputs.
    pub fn deadline_us(&self) -> Option<u64> {
        let limits = &self.evidence.limits;
        let limit = match self.phase {
            ValidatorPhase::Filling => limits.fill_us,
            ValidatorPhase::Committing => limits.commit_us,
            ValidatorPhase::Opening => limits.open_us,
            ValidatorPhase::Ready
            | ValidatorPhase::NeedSeed
            | ValidatorPhase::NeedDraw
            | ValidatorPhase::Ended => return None,
        };
        // A message that arrives exactly at the limit is still in time.
        Some(self.phase_us.saturating_add(limit).saturating_add(1))
    }

    /// The evidence of the conversation. Before the end, it is that of a conversation that timed out in its present
    /// phase.
    pub fn into_evidence(self) -> Evidence {
        self.evidence
    }

    /// Takes one input at `now_us`, on a monotonic clock of the caller.
    pub fn apply(&mut self, input: ValidatorInput<'_>, now_us: u64) -> Option<ValidatorAction> {
        match (self.phase, input) {
            (ValidatorPhase::Ended, _) => None,
            (ValidatorPhase::Ready, ValidatorInput::Started) => {
                self.origin_us = now_us;
                let walk = matches!(self.evidence.spec, ProofSpec::Walk(_));
                self.enter(
                    if walk {
                        ValidatorPhase::Filling
                    } else {
                        ValidatorPhase::Committing
                    },
                    now_us,
                );
                None
            }
            (ValidatorPhase::Filling | ValidatorPhase::Committing | ValidatorPhase::Opening, _)
                if self.is_late(now_us) =>
            {
                self.end(ConversationEnd::TimedOut)
            }
            (ValidatorPhase::NeedSeed, ValidatorInput::Randomness(bytes)) => {
                self.evidence.seed = Some(SentRandomness {
                    at_us: self.elapsed_us(now_us),
                    bytes,
                });
                self.enter(ValidatorPhase::Committing, now_us);
                Some(self.send(MessageKind::Seed, &[&bytes]))
            }
            (ValidatorPhase::NeedDraw, ValidatorInput::Randomness(bytes)) => {
                self.evidence.draw = Some(SentRandomness {
                    at_us: self.elapsed_us(now_us),
                    bytes,
                });
                let digest = self.commitment_digest();
                let places = self.evidence.spec.draw_positions(&digest, &bytes);
                self.enter(ValidatorPhase::Opening, now_us);
                self.max_bytes = self.evidence.spec.opening_bytes(&places);
                Some(self.send(MessageKind::Draw, &[&digest, &bytes]))
            }
            (
                ValidatorPhase::Filling | ValidatorPhase::Committing | ValidatorPhase::Opening,
                ValidatorInput::Message(bytes),
            ) => self.receive(bytes, now_us),
            (_, ValidatorInput::Message(bytes)) => self.end(ConversationEnd::OutOfTurn(message_kind(bytes))),
            (_, ValidatorInput::Oversized(length)) => {
                self.end(ConversationEnd::Oversized(length, self.max_bytes as u64))
            }
            (_, ValidatorInput::Gone) => self.end(ConversationEnd::Gone),
            (_, ValidatorInput::Tick | ValidatorInput::Started | ValidatorInput::Randomness(_)) => None,
        }
    }

    fn receive(&mut self, bytes: &[u8], now_us: u64) -> Option<ValidatorAction> {
        if bytes.len() > self.max_bytes {
            return self.end(ConversationEnd::Oversized(
                bytes.len() as u64,
                self.max_bytes as u64,
            ));
        }
        let expected = match self.phase {
            ValidatorPhase::Filling => MessageKind::Filled,
            ValidatorPhase::Committing => MessageKind::Commitment,
            ValidatorPhase::Opening => MessageKind::Opening,
            ValidatorPhase::Ready
            | ValidatorPhase::NeedSeed
            | ValidatorPhase::NeedDraw
            | ValidatorPhase::Ended => return None,
        };
        if message_kind(bytes) != expected as u8 {
            return self.end(ConversationEnd::OutOfTurn(message_kind(bytes)));
        }
        let received = Some(ReceivedMessage {
            at_us: self.elapsed_us(now_us),
            bytes: bytes.to_vec(),
        });
        match expected {
            MessageKind::Filled => self.evidence.filled = received,
            MessageKind::Commitment => self.evidence.commitment = received,
            MessageKind::Opening => {
                self.evidence.opening = received;
                return self.end(ConversationEnd::Complete);
            }
            MessageKind::Challenge | MessageKind::Seed | MessageKind::Draw | MessageKind::Verdict => {
                return None;
            }
        }
        // A message with a wrong head or length decides the verdict. It is kept, and the conversation ends.
        if MessageFrame::parse(bytes).is_err() || bytes.len() != self.max_bytes {
            return self.end(ConversationEnd::Complete);
        }
        self.enter(
            if expected == MessageKind::Filled {
                ValidatorPhase::NeedSeed
            } else {
                ValidatorPhase::NeedDraw
            },
            now_us,
        );
        Some(ValidatorAction::NeedRandomness)
    }

    fn enter(&mut self, phase: ValidatorPhase, now_us: u64) {
        self.phase = phase;
        self.phase_us = now_us;
        self.max_bytes = match phase {
            ValidatorPhase::Filling => HEAD + 16,
            ValidatorPhase::Committing => self.evidence.spec.commitment_bytes(),
            ValidatorPhase::Ready
            | ValidatorPhase::NeedSeed
            | ValidatorPhase::NeedDraw
            | ValidatorPhase::Opening
            | ValidatorPhase::Ended => 0,
        };
    }

    fn is_late(&self, now_us: u64) -> bool {
        self.deadline_us().is_some_and(|deadline| now_us >= deadline)
    }

    fn elapsed_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.origin_us)
    }

    fn commitment_digest(&self) -> [u8; 32] {
        let seed = self.evidence.seed.map_or([0; 32], |seed| seed.bytes);
        let message = self
            .evidence
            .commitment
            .as_ref()
            .map_or([].as_slice(), |received| &received.bytes);
        commitment_digest(&seed, message)
    }

    fn send(&self, kind: MessageKind, parts: &[&[u8]]) -> ValidatorAction {
        ValidatorAction::Send(challenge_message::encode_message(
            kind,
            &self.evidence.spec.challenge_id(),
            parts,
        ))
    }

    fn end(&mut self, ending: ConversationEnd) -> Option<ValidatorAction> {
        self.evidence.ending = ending;
        self.enter(ValidatorPhase::Ended, self.phase_us);
        Some(ValidatorAction::End)
    }
}

fn message_kind(bytes: &[u8]) -> u8 {
    bytes.get(1).copied().unwrap_or_default()
}
