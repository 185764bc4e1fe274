//! Everything that a validator saw of one proof, its stored form, and the verdict that follows from it.

mod stored;

use crate::challenge_keys::{self, ChallengeId};
use crate::challenge_message::{
    self, DrawnPositions, HEAD, MessageFrame, MessageKind, ProofSpec, commitment_digest,
};
use crate::codec::{DecodeError, Reader};
use crate::matmul::check as matmul_check;
use crate::memory_walk::check as walk_check;
use crate::merkle::Hash;
use crate::proof_verdict::{Measurement, ProofVerdict, ZeroReason};
use crate::simd::InstructionSet;

/// The largest stored evidence in bytes: the openings of 1,024 draws, with two leaves and paths each, and some reserve.
pub const MAX_EVIDENCE_BYTES: usize = 8 << 20;

/// The time limits of a challenge, in microseconds of the validator's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From the challenge to the message "filled". A MATMUL does not use it.
    pub fill_us: u64,
    /// From the challenge (MATMUL) or the seed (WALK) to the commitment.
    pub commit_us: u64,
    /// From the draw to the opening.
    pub open_us: u64,
    /// Subtracted from the measured time, at most half of it. It is the same for every executor.
    pub allowance_us: u64,
}

/// A message from the executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The time of arrival, in microseconds after the challenge was sent.
    pub at_us: u64,
    /// The whole message.
    pub bytes: Vec<u8>,
}

/// Randomness that the validator sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentRandomness {
    /// The time of sending, in microseconds after the challenge was sent.
    pub at_us: u64,
    /// The random bytes.
    pub bytes: [u8; 32],
}

/// The event that ended a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversationEnd {
    /// The executor sent its opening.
    Complete,
    /// A time limit passed.
    TimedOut,
    /// The executor's connection ended.
    Gone,
    /// The executor sent a message of this kind out of turn (0 if it has no kind).
    OutOfTurn(u8),
    /// The executor sent or announced a message that was too long: its length and the largest length that was valid
    /// then.
    Oversized(u64, u64),
}

/// The record of one conversation, as the validator saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The specification of the challenge.
    pub spec: ProofSpec,
    /// The time limits of the challenge.
    pub limits: Limits,
    /// The message "filled" of a WALK.
    pub filled: Option<ReceivedMessage>,
    /// The seed of a WALK's walks.
    pub seed: Option<SentRandomness>,
    /// The message with the roots.
    pub commitment: Option<ReceivedMessage>,
    /// The randomness from which the positions were drawn.
    pub draw: Option<SentRandomness>,
    /// The message with the opened positions.
    pub opening: Option<ReceivedMessage>,
    /// The event that ended the conversation.
    pub ending: ConversationEnd,
}

impl Evidence {
    /// Judges the proof. The verdict depends on this evidence alone, so every replay gives the same.
    pub fn judge(&self, engine: InstructionSet) -> ProofVerdict {
        match self.verify(engine) {
            Ok(measured) => ProofVerdict::Passed(measured),
            Err(reason) => ProofVerdict::Zero(reason),
        }
    }

    /// The validator's messages in order, each with the executor's answer if there is one in the evidence.
    pub fn exchanges(&self) -> Vec<(Vec<u8>, Option<&ReceivedMessage>)> {
        let challenge_id = self.spec.challenge_id();
        let challenge = challenge_message::encode_message(
            MessageKind::Challenge,
            &challenge_id,
            &[&self.spec.to_bytes()],
        );
        let mut said = Vec::new();
        match self.spec {
            ProofSpec::Matmul(_) => said.push((challenge, self.commitment.as_ref())),
            ProofSpec::Walk(_) => {
                said.push((challenge, self.filled.as_ref()));
                if let Some(seed) = &self.seed {
                    let seed =
                        challenge_message::encode_message(MessageKind::Seed, &challenge_id, &[&seed.bytes]);
                    said.push((seed, self.commitment.as_ref()));
                }
            }
        }
        if let (Some(committed), Some(draw)) = (&self.commitment, &self.draw) {
            let seed = self.seed.map_or([0; 32], |seed| seed.bytes);
            let digest = commitment_digest(&seed, &committed.bytes);
            let draw =
                challenge_message::encode_message(MessageKind::Draw, &challenge_id, &[&digest, &draw.bytes]);
            said.push((draw, self.opening.as_ref()));
        }
        said
    }

    fn verify(&self, engine: InstructionSet) -> Result<Measurement, ZeroReason> {
        let challenge_id = self.spec.challenge_id();
        let (seed, started_us) = match &self.spec {
            ProofSpec::Matmul(_) => ([0; 32], 0),
            ProofSpec::Walk(spec) => {
                let filled = self.filled.as_ref().ok_or_else(|| self.reason_of_end())?;
                let body = parse_message(filled, MessageKind::Filled, &challenge_id)?;
                if body.exactly()?
                    != &challenge_keys::key_confirmation(&challenge_id, &spec.memory().label_key())
                {
                    return Err(ZeroReason::OtherKey);
                }
                if filled.at_us > self.limits.fill_us {
                    return Err(ZeroReason::NotFilled {
                        limit_us: self.limits.fill_us,
                    });
                }
                let seed = self.seed.ok_or_else(|| self.reason_of_end())?;
                (seed.bytes, seed.at_us)
            }
        };
        let (roots, committed) = self.read_roots(&challenge_id, &seed)?;
        let taken_us = committed
            .at_us
            .checked_sub(started_us)
            .ok_or(ZeroReason::Evidence("time runs backwards"))?;
        if taken_us > self.limits.commit_us {
            return Err(ZeroReason::NotCommitted {
                limit_us: self.limits.commit_us,
            });
        }
        let draw = self.draw.ok_or_else(|| self.reason_of_end())?;
        let opening = self.opening.as_ref().ok_or_else(|| self.reason_of_end())?;
        if draw.at_us < committed.at_us || opening.at_us < draw.at_us {
            return Err(ZeroReason::Evidence("time runs backwards"));
        }
        if opening.at_us - draw.at_us > self.limits.open_us {
            return Err(ZeroReason::Vanished);
        }
        if self.ending != ConversationEnd::Complete {
            return Err(self.reason_of_end());
        }
        let digest = commitment_digest(&seed, &committed.bytes);
        let opened = self.read_opening(opening, &challenge_id, &digest, &draw.bytes)?;
        let elapsed_us = self.counted_time(taken_us);
        match (&self.spec, opened) {
            (ProofSpec::Matmul(spec), (DrawnPositions::Matmul(places), body)) => {
                matmul_check::check_openings(spec, engine, &roots, &places, body)?;
                let rate = rate_per_us(spec.operations(), elapsed_us);
                Ok(Measurement::Matmul {
                    numbers: spec.shape().numbers,
                    rate,
                    elapsed_us,
                })
            }
            (ProofSpec::Walk(spec), (DrawnPositions::Walk(places), body)) => {
                let root = roots.first().copied().unwrap_or_default();
                walk_check::check_openings(spec, engine, &seed, &root, &places, body)?;
                Ok(Measurement::Walk {
                    bytes: spec.bytes(),
                    rate: rate_per_us(spec.bytes_read(), elapsed_us),
                    elapsed_us,
                })
            }
            (ProofSpec::Matmul(_), (DrawnPositions::Walk(_), _))
            | (ProofSpec::Walk(_), (DrawnPositions::Matmul(_), _)) => {
                Err(ZeroReason::Evidence("a draw of the other kind"))
            }
        }
    }

    fn read_roots(
        &self,
        challenge_id: &ChallengeId,
        seed: &[u8; 32],
    ) -> Result<(Vec<Hash>, &ReceivedMessage), ZeroReason> {
        let committed = self.commitment.as_ref().ok_or_else(|| self.reason_of_end())?;
        let frame = parse_message(committed, MessageKind::Commitment, challenge_id)?;
        if committed.bytes.len() != self.spec.commitment_bytes() {
            let (expected, got) = (self.spec.commitment_bytes(), committed.bytes.len());
            return Err(DecodeError::Length { expected, got }.into());
        }
        let mut reader = Reader::new(frame.body);
        let key = match &self.spec {
            ProofSpec::Matmul(spec) => {
                *crate::matmul::MatrixGenerator::new(*spec, InstructionSet::PORTABLE).b_key()
            }
            ProofSpec::Walk(spec) => spec.start_key(seed),
        };
        if reader.take()? != &challenge_keys::key_confirmation(challenge_id, &key) {
            return Err(ZeroReason::OtherKey);
        }
        Ok((reader.hashes(self.spec.root_count())?.to_vec(), committed))
    }

    fn read_opening<'a>(
        &self,
        opening: &'a ReceivedMessage,
        challenge_id: &ChallengeId,
        commitment: &Hash,
        entropy: &[u8; 32],
    ) -> Result<(DrawnPositions, &'a [u8]), ZeroReason> {
        let frame = parse_message(opening, MessageKind::Opening, challenge_id)?;
        let mut reader = Reader::new(frame.body);
        if reader.take()? != commitment {
            return Err(ZeroReason::OtherCommitment);
        }
        let places = self.spec.draw_positions(commitment, entropy);
        let (expected, got) = (self.spec.opening_bytes(&places), opening.bytes.len());
        if expected != got {
            return Err(DecodeError::Length { expected, got }.into());
        }
        Ok((places, reader.rest()))
    }

    /// The reason for a zero if the conversation ended before a part that is needed.
    fn reason_of_end(&self) -> ZeroReason {
        let walk = matches!(self.spec, ProofSpec::Walk(_));
        match self.ending {
            ConversationEnd::OutOfTurn(kind) => ZeroReason::OutOfTurn { kind },
            ConversationEnd::Oversized(length, most) => ZeroReason::Oversized { length, most },
            ConversationEnd::Gone | ConversationEnd::TimedOut if self.commitment.is_some() => {
                ZeroReason::Vanished
            }
            ConversationEnd::Gone => ZeroReason::Gone,
            ConversationEnd::TimedOut if walk && self.filled.is_none() => ZeroReason::NotFilled {
                limit_us: self.limits.fill_us,
            },
            ConversationEnd::TimedOut => ZeroReason::NotCommitted {
                limit_us: self.limits.commit_us,
            },
            ConversationEnd::Complete => ZeroReason::Evidence("called complete, and a part is missing"),
        }
    }

    fn counted_time(&self, taken_us: u64) -> u64 {
        taken_us
            .saturating_sub(self.limits.allowance_us)
            .max(taken_us / 2)
            .max(1)
    }
}

/// Parses a message, which must be of this kind and belong to this challenge.
fn parse_message<'a>(
    received: &'a ReceivedMessage,
    kind: MessageKind,
    challenge_id: &ChallengeId,
) -> Result<MessageFrame<'a>, ZeroReason> {
    let frame = MessageFrame::parse(&received.bytes)?;
    if frame.kind != kind {
        return Err(ZeroReason::OutOfTurn {
            kind: frame.kind as u8,
        });
    }
    if frame.challenge_id != *challenge_id {
        return Err(ZeroReason::OtherChallenge);
    }
    Ok(frame)
}

fn rate_per_us(amount: u128, us: u64) -> u64 {
    u64::try_from(amount / u128::from(us.max(1))).unwrap_or(u64::MAX)
}

const _: () = assert!(MAX_EVIDENCE_BYTES > 1024 * (12 + 2 * (1024 + 40 * 32)) + HEAD + 32 + 16_384);
