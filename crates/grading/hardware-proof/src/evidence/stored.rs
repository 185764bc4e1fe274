//! The stored form of evidence.

use super::{ConversationEnd, Evidence, Limits, MAX_EVIDENCE_BYTES, ReceivedMessage, SentRandomness};
use crate::challenge_message::ProofSpec;
use crate::codec::{DecodeError, Reader};

/// The first bytes of stored evidence, with its version.
const MAGIC: [u8; 16] = *b"muster-evidence1";

impl Evidence {
    /// Encodes the stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        push_bytes(&mut out, &self.spec.to_bytes());
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
            ConversationEnd::Complete => (0u8, 0, 0),
            ConversationEnd::TimedOut => (1, 0, 0),
            ConversationEnd::Gone => (2, 0, 0),
            ConversationEnd::OutOfTurn(kind) => (3, u64::from(kind), 0),
            ConversationEnd::Oversized(length, most) => (4, length, most),
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
            push_bytes(&mut out, bytes);
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
    /// The bytes are of another version, have wrong lengths, or are more than [`MAX_EVIDENCE_BYTES`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > MAX_EVIDENCE_BYTES {
            return Err(DecodeError::Length {
                expected: MAX_EVIDENCE_BYTES,
                got: bytes.len(),
            });
        }
        let mut reader = Reader::new(bytes);
        if *reader.take()? != MAGIC {
            return Err(DecodeError::Unknown("version of the evidence"));
        }
        let spec = ProofSpec::from_bytes(read_bytes(&mut reader)?)?;
        let [fill_us, commit_us, open_us, allowance_us] =
            [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?];
        let limits = Limits {
            fill_us,
            commit_us,
            open_us,
            allowance_us,
        };
        let ending = match (reader.u8()?, reader.u64()?, reader.u64()?) {
            (0, 0, 0) => ConversationEnd::Complete,
            (1, 0, 0) => ConversationEnd::TimedOut,
            (2, 0, 0) => ConversationEnd::Gone,
            (3, kind, 0) => {
                ConversationEnd::OutOfTurn(u8::try_from(kind).map_err(|_| DecodeError::Range("kind"))?)
            }
            (4, length, most) => ConversationEnd::Oversized(length, most),
            (0.., _, _) => return Err(DecodeError::Unknown("ending")),
        };
        let [filled, commitment, opening] = [
            read_message(&mut reader)?,
            read_message(&mut reader)?,
            read_message(&mut reader)?,
        ];
        let [seed, draw] = [read_randomness(&mut reader)?, read_randomness(&mut reader)?];
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

fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn read_bytes<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let length = usize::try_from(reader.u64()?).map_err(|_| DecodeError::Range("length"))?;
    if length > MAX_EVIDENCE_BYTES {
        return Err(DecodeError::Range("length"));
    }
    reader.slice(length)
}

fn read_flag(reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        2.. => Err(DecodeError::Unknown("flag")),
    }
}

fn read_message(reader: &mut Reader<'_>) -> Result<Option<ReceivedMessage>, DecodeError> {
    let there = read_flag(reader)?;
    let at_us = reader.u64()?;
    let bytes = read_bytes(reader)?.to_vec();
    match there {
        true => Ok(Some(ReceivedMessage { at_us, bytes })),
        false if at_us == 0 && bytes.is_empty() => Ok(None),
        false => Err(DecodeError::Range("absent part")),
    }
}

fn read_randomness(reader: &mut Reader<'_>) -> Result<Option<SentRandomness>, DecodeError> {
    let there = read_flag(reader)?;
    let part = SentRandomness {
        at_us: reader.u64()?,
        bytes: *reader.take()?,
    };
    match there {
        true => Ok(Some(part)),
        false
            if part
                == (SentRandomness {
                    at_us: 0,
                    bytes: [0; 32],
                }) =>
        {
            Ok(None)
        }
        false => Err(DecodeError::Range("absent part")),
    }
}
