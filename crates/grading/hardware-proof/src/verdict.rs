//! What a grading comes to: a measurement, or a zero with its reason.

use crate::codec::DecodeError;
use crate::spec::Numbers;

/// Why an executor's proof is worth nothing. Every zero has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The executor's connection ended before it committed to anything.
    #[error("the executor went away before it committed")]
    Gone,
    /// The memory was not reported filled in time.
    #[error("the executor did not fill its memory within {limit_us} µs")]
    NotFilled {
        /// The limit.
        limit_us: u64,
    },
    /// No commitment in time.
    #[error("the executor did not commit within {limit_us} µs")]
    NotCommitted {
        /// The limit.
        limit_us: u64,
    },
    /// It committed and then opened nothing, by silence or by leaving: as good as a wrong opening.
    #[error("the executor committed and then did not open what was drawn")]
    Vanished,
    /// A message at a moment when it has no place, a repeated one included.
    #[error("the executor sent a message of kind {kind} out of turn")]
    OutOfTurn {
        /// The kind it claimed; 0 if it claimed none.
        kind: u8,
    },
    /// A message longer than any that could be right.
    #[error("the executor sent {length} bytes where at most {most} can be right")]
    Oversized {
        /// What came.
        length: u64,
        /// The most that could be right.
        most: u64,
    },
    /// Bytes that are not the message they should be.
    #[error("the executor's message cannot be read")]
    Malformed(#[from] DecodeError),
    /// A message of another challenge: another batch, executor, nonce or shape.
    #[error("the executor's message belongs to another challenge")]
    OtherSession,
    /// The executor derived other keys from the same challenge.
    #[error("the executor derived other keys")]
    OtherKey,
    /// The opening belongs to another commitment: roots were altered, added or exchanged.
    #[error("the opening does not belong to the roots that were committed")]
    OtherCommitment,
    /// An entry of another round was opened.
    #[error("draw {draw}: an entry of round {found} where one of round {expected} was drawn")]
    OtherRound {
        /// Which draw.
        draw: usize,
        /// The drawn round.
        expected: u32,
        /// The opened round.
        found: u32,
    },
    /// Another place was opened than was drawn, or in another order.
    #[error("draw {draw}: not the place that was drawn")]
    OtherPlace {
        /// Which draw.
        draw: usize,
    },
    /// The entry is not the inner product.
    #[error("draw {draw}: the entry is {found}, its inner product is {expected}")]
    WrongEntry {
        /// Which draw.
        draw: usize,
        /// The inner product.
        expected: i32,
        /// What was opened.
        found: i32,
    },
    /// The state does not follow from the one before it.
    #[error("draw {draw}: the state does not follow from the one before")]
    WrongStep {
        /// Which draw.
        draw: usize,
    },
    /// What was drawn is right, something else in its leaf is not.
    #[error("draw {draw}: the leaf was altered beside what was drawn")]
    AlteredLeaf {
        /// Which draw.
        draw: usize,
    },
    /// The leaf is right and its path does not lead to the committed root (or, for a walk, the leaf before does not).
    #[error("draw {draw}: the path does not lead to the committed root")]
    AlteredPath {
        /// Which draw.
        draw: usize,
    },
    /// The stored evidence contradicts itself: not the executor's fault.
    #[error("the evidence contradicts itself: {0}")]
    Evidence(&'static str),
}

impl Reason {
    /// Whether it shows a wrong proof rather than a slow or absent one. Vanishing after the commitment is one of them.
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
            | Self::OtherSession
            | Self::OtherKey
            | Self::Evidence(_) => false,
        }
    }

    /// The number that goes over the wire; never reused.
    pub fn code(&self) -> u16 {
        match self {
            Self::Gone => 1,
            Self::NotFilled { .. } => 2,
            Self::NotCommitted { .. } => 3,
            Self::Vanished => 4,
            Self::OutOfTurn { .. } => 5,
            Self::Oversized { .. } => 6,
            Self::Malformed(_) => 7,
            Self::OtherSession => 8,
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

/// What an honest proof measured. Whole numbers: two replays agree to the last digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measured {
    /// A rate of computing.
    Chain {
        /// Of which numbers.
        numbers: Numbers,
        /// Multiplications and additions per microsecond (10⁶ operations per second).
        rate: u64,
        /// From the challenge to the commitment, the allowance taken off, in µs.
        elapsed_us: u64,
    },
    /// A memory and the rate at which it is read.
    Walk {
        /// Bytes that were filled.
        bytes: u64,
        /// Bytes read per microsecond (10⁶ bytes per second).
        rate: u64,
        /// From the seed to the commitment, the allowance taken off, in µs.
        elapsed_us: u64,
    },
}

/// The end of one proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Everything opened was right.
    Passed(Measured),
    /// Worth nothing, and why.
    Zero(Reason),
}

impl Verdict {
    /// The number that goes over the wire: 0 for a pass, else the reason's.
    pub fn code(&self) -> u16 {
        match self {
            Self::Passed(_) => 0,
            Self::Zero(reason) => reason.code(),
        }
    }
}
