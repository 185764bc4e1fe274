//! The verdict on one proof: a measurement, or a zero with its reason.

use crate::codec::DecodeError;
use crate::spec::NumberFormat;

/// The reason why an executor's proof is worth nothing.
///
/// The texts are part of stored judgements, which a replay compares: they must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ZeroReason {
    /// The executor's connection ended before it committed to anything.
    #[error("the executor went away before it committed")]
    Gone,
    /// The memory was not reported filled in time.
    #[error("the executor did not fill its memory within {limit_us} µs")]
    NotFilled {
        /// The limit in microseconds, from [`crate::Limits`].
        limit_us: u64,
    },
    /// No commitment arrived in time.
    #[error("the executor did not commit within {limit_us} µs")]
    NotCommitted {
        /// The limit in microseconds, from [`crate::Limits`].
        limit_us: u64,
    },
    /// The executor committed and then did not send an opening. This counts as a wrong opening.
    #[error("the executor committed and then did not open what was drawn")]
    Vanished,
    /// A message arrived out of turn, for example a repeated one.
    #[error("the executor sent a message of kind {kind} out of turn")]
    OutOfTurn {
        /// The kind in the message; 0 if it has none.
        kind: u8,
    },
    /// A message was longer than any valid one.
    #[error("the executor sent {length} bytes where at most {most} can be right")]
    Oversized {
        /// Bytes that were announced or received.
        length: u64,
        /// The largest length that was valid at that moment.
        most: u64,
    },
    /// The bytes are not the expected message.
    #[error("the executor's message cannot be read")]
    Malformed(#[from] DecodeError),
    /// The message belongs to another challenge: of another batch, executor, nonce or shape.
    #[error("the executor's message belongs to another challenge")]
    OtherChallenge,
    /// The executor derived other keys from the same challenge.
    #[error("the executor derived other keys")]
    OtherKey,
    /// The opening belongs to another commitment: the roots were altered, added or exchanged.
    #[error("the opening does not belong to the roots that were committed")]
    OtherCommitment,
    /// The executor opened an entry of another round.
    #[error("draw {draw}: an entry of round {found} where one of round {expected} was drawn")]
    OtherRound {
        /// The number of the draw, from 0.
        draw: usize,
        /// The drawn round.
        expected: u32,
        /// The opened round.
        found: u32,
    },
    /// The executor opened another position than the drawn one, or in another order.
    #[error("draw {draw}: not the place that was drawn")]
    OtherPlace {
        /// The number of the draw, from 0.
        draw: usize,
    },
    /// The opened entry is not the inner product.
    #[error("draw {draw}: the entry is {found}, its inner product is {expected}")]
    WrongEntry {
        /// The number of the draw, from 0.
        draw: usize,
        /// The correct inner product.
        expected: i32,
        /// The opened value.
        found: i32,
    },
    /// The opened state does not follow from the state before it.
    #[error("draw {draw}: the state does not follow from the one before")]
    WrongStep {
        /// The number of the draw, from 0.
        draw: usize,
    },
    /// The drawn value is right, but another value in its leaf is wrong.
    #[error("draw {draw}: the leaf was altered beside what was drawn")]
    AlteredLeaf {
        /// The number of the draw, from 0.
        draw: usize,
    },
    /// The leaf is right, but its path does not lead to the committed root. For a walk, this can also be the leaf
    /// before.
    #[error("draw {draw}: the path does not lead to the committed root")]
    AlteredPath {
        /// The number of the draw, from 0.
        draw: usize,
    },
    /// The stored evidence contradicts itself. This is not the executor's fault.
    #[error("the evidence contradicts itself: {0}")]
    Evidence(&'static str),
}

impl ZeroReason {
    /// Whether the proof was wrong, and not only slow or absent. Vanishing after the commitment counts as wrong.
    pub fn is_wrong(&self) -> bool {
        match self {
            Self::Vanished
            | Self::OtherCommitment
            | Self::OtherRound { .. }
            | Self::OtherPlace { .. }
            | Self::WrongEntry { .. }
            | Self::WrongStep { .. }
            | Self::AlteredLeaf { .. }
            | Self::AlteredPath { .. } => true,
            Self::Gone
            | Self::NotFilled { .. }
            | Self::NotCommitted { .. }
            | Self::OutOfTurn { .. }
            | Self::Oversized { .. }
            | Self::Malformed(_)
            | Self::OtherChallenge
            | Self::OtherKey
            | Self::Evidence(_) => false,
        }
    }

    /// The number that is sent to the executor. Numbers are never reused.
    pub fn code(&self) -> u16 {
        match self {
            Self::Gone => 1,
            Self::NotFilled { .. } => 2,
            Self::NotCommitted { .. } => 3,
            Self::Vanished => 4,
            Self::OutOfTurn { .. } => 5,
            Self::Oversized { .. } => 6,
            Self::Malformed(_) => 7,
            Self::OtherChallenge => 8,
            Self::OtherKey => 9,
            Self::OtherCommitment => 10,
            Self::OtherRound { .. } => 11,
            Self::OtherPlace { .. } => 12,
            Self::WrongEntry { .. } => 13,
            Self::WrongStep { .. } => 14,
            Self::AlteredLeaf { .. } => 15,
            Self::AlteredPath { .. } => 16,
            Self::Evidence(_) => 17,
        }
    }
}

/// The measurement of a correct proof, in whole numbers so that all replays agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measurement {
    /// A rate of computing.
    Matmul {
        /// The format of the multiplied entries.
        numbers: NumberFormat,
        /// Multiplications and additions per microsecond (10⁶ operations per second).
        rate: u64,
        /// Microseconds from the challenge to the commitment, less the allowance.
        elapsed_us: u64,
    },
    /// The size of a memory and the rate at which it was read.
    Walk {
        /// The size of the filled memory in bytes.
        bytes: u64,
        /// Bytes read per microsecond (10⁶ bytes per second).
        rate: u64,
        /// Microseconds from the seed to the commitment, less the allowance.
        elapsed_us: u64,
    },
}

/// The verdict on one proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofVerdict {
    /// Everything that was opened is right.
    Passed(Measurement),
    /// The proof is worth nothing, for this reason.
    Zero(ZeroReason),
}

impl ProofVerdict {
    /// The number that is sent to the executor: 0 for a pass, else [`ZeroReason::code`].
    pub fn code(&self) -> u16 {
        match self {
            Self::Passed(_) => 0,
            Self::Zero(reason) => reason.code(),
        }
    }
}
