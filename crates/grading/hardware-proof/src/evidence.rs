//! Everything that a validator saw of one proof, its stored form, and the verdict that follows from it.

use crate::chain::check as chain_check;
use crate::codec::{DecodeError, Reader};
use crate::keys::{self, SessionId};
use crate::merkle::Hash;
use crate::message::{self, Frame, HEAD, Kind, Places, Spec, commitment_digest};
use crate::simd::Engine;
use crate::verdict::{Measured, Reason, Verdict};
use crate::walk::check as walk_check;

/// The first bytes of stored evidence, with its version.
const MAGIC: [u8; 16] = *b"muster-evidence1";

/// The largest stored evidence in bytes: the openings of 1,024 draws, with two leaves and paths each, and some reserve.
pub const MOST_BYTES: usize = 8 << 20;

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
pub struct Received {
    /// The time of arrival, in microseconds after the challenge was sent.
    pub at_us: u64,
    /// The whole message.
    pub bytes: Vec<u8>,
}

/// Randomness that the validator sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// The time of sending, in microseconds after the challenge was sent.
    pub at_us: u64,
    /// The random bytes.
    pub bytes: [u8; 32],
}

/// The event that ended a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The executor sent its opening.
    Complete,
    /// A time limit passed.
    TimedOut,
    /// The executor's connection ended.
    Gone,
    /// The executor sent a message of this kind out of turn (0 if it has no kind).
    OutOfTurn(u8),
    /// The executor sent or announced a message that was too long: its length and the largest length that was valid then.
    Oversized(u64, u64),
}

/// The record of one conversation, as the validator saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The specification of the challenge.
    pub spec: Spec,
    /// The time limits of the challenge.
    pub limits: Limits,
    /// The message "filled" of a WALK.
    pub filled: Option<Received>,
    /// The seed of a WALK's walks.
    pub seed: Option<Sent>,
    /// The message with the roots.
    pub commitment: Option<Received>,
    /// The randomness from which the positions were drawn.
    pub draw: Option<Sent>,
    /// The message with the opened positions.
    pub opening: Option<Received>,
    /// The event that ended the conversation.
    pub ending: Ending,
}

impl Evidence {
    /// Judges the proof. The verdict depends on this evidence alone, so every replay gives the same.
    pub fn judge(&self, engine: Engine) -> Verdict {
        match self.check(engine) {
            Ok(measured) => Verdict::Passed(measured),
            Err(reason) => Verdict::Zero(reason),
        }
    }

    /// The validator's messages in order, each with the executor's answer if there is one in the evidence.
    pub fn exchanged(&self) -> Vec<(Vec<u8>, Option<&Received>)> {
        let session = self.spec.session();
        let challenge = message::frame(Kind::Challenge, &session, &[&self.spec.to_bytes()]);
        let mut said = Vec::new();
        match self.spec {
            Spec::Chain(_) => said.push((challenge, self.commitment.as_ref())),
            Spec::Walk(_) => {
                said.push((challenge, self.filled.as_ref()));
                if let Some(seed) = &self.seed {
                    let seed = message::frame(Kind::Seed, &session, &[&seed.bytes]);
                    said.push((seed, self.commitment.as_ref()));
                }
            }
        }
        if let (Some(committed), Some(draw)) = (&self.commitment, &self.draw) {
            let seed = self.seed.map_or([0; 32], |seed| seed.bytes);
            let digest = commitment_digest(&seed, &committed.bytes);
            let draw = message::frame(Kind::Draw, &session, &[&digest, &draw.bytes]);
            said.push((draw, self.opening.as_ref()));
        }
        said
    }

    fn check(&self, engine: Engine) -> Result<Measured, Reason> {
        let session = self.spec.session();
        let (seed, started_us) = match &self.spec {
            Spec::Chain(_) => ([0; 32], 0),
            Spec::Walk(spec) => {
                let filled = self.filled.as_ref().ok_or_else(|| self.ended())?;
                let body = body(filled, Kind::Filled, &session)?;
                if body.exactly()? != &keys::print(&session, &spec.memory().label_key()) {
                    return Err(Reason::OtherKey);
                }
                if filled.at_us > self.limits.fill_us {
                    return Err(Reason::NotFilled {
                        limit_us: self.limits.fill_us,
                    });
                }
                let seed = self.seed.ok_or_else(|| self.ended())?;
                (seed.bytes, seed.at_us)
            }
        };
        let (roots, committed) = self.roots(&session, &seed)?;
        let taken_us = committed
            .at_us
            .checked_sub(started_us)
            .ok_or(Reason::Evidence("time runs backwards"))?;
        if taken_us > self.limits.commit_us {
            return Err(Reason::NotCommitted {
                limit_us: self.limits.commit_us,
            });
        }
        let draw = self.draw.ok_or_else(|| self.ended())?;
        let opening = self.opening.as_ref().ok_or_else(|| self.ended())?;
        if draw.at_us < committed.at_us || opening.at_us < draw.at_us {
            return Err(Reason::Evidence("time runs backwards"));
        }
        if opening.at_us - draw.at_us > self.limits.open_us {
            return Err(Reason::Vanished);
        }
        if self.ending != Ending::Complete {
            return Err(self.ended());
        }
        let digest = commitment_digest(&seed, &committed.bytes);
        let opened = self.opened(opening, &session, &digest, &draw.bytes)?;
        let elapsed_us = self.elapsed(taken_us);
        match (&self.spec, opened) {
            (Spec::Chain(spec), (Places::Chain(places), body)) => {
                chain_check::openings(spec, engine, &roots, &places, body)?;
                let rate = per_us(spec.operations(), elapsed_us);
                Ok(Measured::Chain {
                    numbers: spec.shape().numbers,
                    rate,
                    elapsed_us,
                })
            }
            (Spec::Walk(spec), (Places::Walk(places), body)) => {
                let root = roots.first().copied().unwrap_or_default();
                walk_check::openings(spec, engine, &seed, &root, &places, body)?;
                Ok(Measured::Walk {
                    bytes: spec.bytes(),
                    rate: per_us(spec.bytes_read(), elapsed_us),
                    elapsed_us,
                })
            }
            (Spec::Chain(_), (Places::Walk(_), _)) | (Spec::Walk(_), (Places::Chain(_), _)) => {
                Err(Reason::Evidence("a draw of the other kind"))
            }
        }
    }

    fn roots(&self, session: &SessionId, seed: &[u8; 32]) -> Result<(Vec<Hash>, &Received), Reason> {
        let committed = self.commitment.as_ref().ok_or_else(|| self.ended())?;
        let frame = body(committed, Kind::Commitment, session)?;
        if committed.bytes.len() != self.spec.commitment_bytes() {
            let (expected, got) = (self.spec.commitment_bytes(), committed.bytes.len());
            return Err(DecodeError::Length { expected, got }.into());
        }
        let mut reader = Reader::new(frame.body);
        let key = match &self.spec {
            Spec::Chain(spec) => *crate::chain::Generator::new(*spec, Engine::PORTABLE).b_key(),
            Spec::Walk(spec) => spec.start_key(seed),
        };
        if reader.take()? != &keys::print(session, &key) {
            return Err(Reason::OtherKey);
        }
        Ok((reader.hashes(self.spec.roots())?.to_vec(), committed))
    }

    fn opened<'a>(
        &self,
        opening: &'a Received,
        session: &SessionId,
        commitment: &Hash,
        entropy: &[u8; 32],
    ) -> Result<(Places, &'a [u8]), Reason> {
        let frame = body(opening, Kind::Opening, session)?;
        let mut reader = Reader::new(frame.body);
        if reader.take()? != commitment {
            return Err(Reason::OtherCommitment);
        }
        let places = self.spec.places(commitment, entropy);
        let (expected, got) = (self.spec.opening_bytes(&places), opening.bytes.len());
        if expected != got {
            return Err(DecodeError::Length { expected, got }.into());
        }
        Ok((places, reader.rest()))
    }

    /// The reason for a zero if the conversation ended before a part that is needed.
    fn ended(&self) -> Reason {
        let walk = matches!(self.spec, Spec::Walk(_));
        match self.ending {
            Ending::OutOfTurn(kind) => Reason::OutOfTurn { kind },
            Ending::Oversized(length, most) => Reason::Oversized { length, most },
            Ending::Gone | Ending::TimedOut if self.commitment.is_some() => Reason::Vanished,
            Ending::Gone => Reason::Gone,
            Ending::TimedOut if walk && self.filled.is_none() => Reason::NotFilled {
                limit_us: self.limits.fill_us,
            },
            Ending::TimedOut => Reason::NotCommitted {
                limit_us: self.limits.commit_us,
            },
            Ending::Complete => Reason::Evidence("called complete, and a part is missing"),
        }
    }

    fn elapsed(&self, taken_us: u64) -> u64 {
        taken_us
            .saturating_sub(self.limits.allowance_us)
            .max(taken_us / 2)
            .max(1)
    }

    /// Encodes the stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        push(&mut out, &self.spec.to_bytes());
        let limits = &self.limits;
        for limit in [
            limits.fill_us,
            limits.commit_us,
            limits.open_us,
            limits.allowance_us,
        ] {
            out.extend(limit.to_le_bytes());
        }
        let (tag, a, b) = match self.ending {
            Ending::Complete => (0u8, 0, 0),
            Ending::TimedOut => (1, 0, 0),
            Ending::Gone => (2, 0, 0),
            Ending::OutOfTurn(kind) => (3, u64::from(kind), 0),
            Ending::Oversized(length, most) => (4, length, most),
        };
        out.push(tag);
        out.extend(a.to_le_bytes());
        out.extend(b.to_le_bytes());
        for part in [&self.filled, &self.commitment, &self.opening] {
            let (at, bytes) = part
                .as_ref()
                .map_or((0, [].as_slice()), |part| (part.at_us, &part.bytes));
            out.push(u8::from(part.is_some()));
            out.extend(at.to_le_bytes());
            push(&mut out, bytes);
        }
        for part in [&self.seed, &self.draw] {
            let (at, bytes) = part.map_or((0, [0; 32]), |part| (part.at_us, part.bytes));
            out.push(u8::from(part.is_some()));
            out.extend(at.to_le_bytes());
            out.extend(bytes);
        }
        out
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// The bytes are of another version, have wrong lengths, or are more than [`MOST_BYTES`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > MOST_BYTES {
            return Err(DecodeError::Length {
                expected: MOST_BYTES,
                got: bytes.len(),
            });
        }
        let mut reader = Reader::new(bytes);
        if *reader.take()? != MAGIC {
            return Err(DecodeError::Unknown("version of the evidence"));
        }
        let spec = Spec::from_bytes(pull(&mut reader)?)?;
        let [fill_us, commit_us, open_us, allowance_us] =
            [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?];
        let limits = Limits {
            fill_us,
            commit_us,
            open_us,
            allowance_us,
        };
        let ending = match (reader.u8()?, reader.u64()?, reader.u64()?) {
            (0, 0, 0) => Ending::Complete,
            (1, 0, 0) => Ending::TimedOut,
            (2, 0, 0) => Ending::Gone,
            (3, kind, 0) => Ending::OutOfTurn(u8::try_from(kind).map_err(|_| DecodeError::Range("kind"))?),
            (4, length, most) => Ending::Oversized(length, most),
            (0.., _, _) => return Err(DecodeError::Unknown("ending")),
        };
        let [filled, commitment, opening] = [
            received(&mut reader)?,
            received(&mut reader)?,
            received(&mut reader)?,
        ];
        let [seed, draw] = [sent(&mut reader)?, sent(&mut reader)?];
        reader.finish()?;
        Ok(Self {
            spec,
            limits,
            filled,
            seed,
            commitment,
            draw,
            opening,
            ending,
        })
    }
}

fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn pull<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let length = usize::try_from(reader.u64()?).map_err(|_| DecodeError::Range("length"))?;
    if length > MOST_BYTES {
        return Err(DecodeError::Range("length"));
    }
    reader.slice(length)
}

fn flag(reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        2.. => Err(DecodeError::Unknown("flag")),
    }
}

fn received(reader: &mut Reader<'_>) -> Result<Option<Received>, DecodeError> {
    let there = flag(reader)?;
    let at_us = reader.u64()?;
    let bytes = pull(reader)?.to_vec();
    match there {
        true => Ok(Some(Received { at_us, bytes })),
        false if at_us == 0 && bytes.is_empty() => Ok(None),
        false => Err(DecodeError::Range("absent part")),
    }
}

fn sent(reader: &mut Reader<'_>) -> Result<Option<Sent>, DecodeError> {
    let there = flag(reader)?;
    let part = Sent {
        at_us: reader.u64()?,
        bytes: *reader.take()?,
    };
    match there {
        true => Ok(Some(part)),
        false
            if part
                == (Sent {
                    at_us: 0,
                    bytes: [0; 32],
                }) =>
        {
            Ok(None)
        }
        false => Err(DecodeError::Range("absent part")),
    }
}

/// Parses a message, which must be of this kind and belong to this challenge.
fn body<'a>(received: &'a Received, kind: Kind, session: &SessionId) -> Result<Frame<'a>, Reason> {
    let frame = Frame::parse(&received.bytes)?;
    if frame.kind != kind {
        return Err(Reason::OutOfTurn {
            kind: frame.kind as u8,
        });
    }
    if frame.session != *session {
        return Err(Reason::OtherSession);
    }
    Ok(frame)
}

fn per_us(amount: u128, us: u64) -> u64 {
    u64::try_from(amount / u128::from(us.max(1))).unwrap_or(u64::MAX)
}

const _: () = assert!(MOST_BYTES > 1024 * (12 + 2 * (1024 + 40 * 32)) + HEAD + 32 + 16_384);
