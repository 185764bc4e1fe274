//! The verdict on one executor of a batch: proven, serving, excused, zero with every reason, or void.

use std::fmt;

use muster_hardware_proof::grade::{Component, Components};
use serde::{Deserialize, Serialize};

/// The longest word of a peer's that is kept.
const MAX_SAID: usize = 300;

/// Why an executor was not challenged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "absence", rename_all = "snake_case", deny_unknown_fields)]
pub enum Absence {
    /// It was not to be had. `backed`: the miner showed receipts by which all its executors of the class were at work.
    NotLeased {
        /// What was said instead.
        said: String,
        /// Whether receipts show it.
        backed: bool,
    },
    /// It was to be had, and did not come to the barrier.
    NotReady {
        /// What was wrong.
        said: String,
    },
    /// It stood at the barrier and was gone when the challenges went out.
    LeftBarrier {
        /// What was seen.
        said: String,
    },
    /// The validator did not come to it: nobody's zero.
    Void {
        /// Why.
        said: String,
    },
}

/// Why an executor is worth nothing. Every zero has at least one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case", deny_unknown_fields)]
pub enum Why {
    /// Its miner was asked what it has, and did not say it in time.
    NeverAnnounced {
        /// What was seen instead.
        said: String,
    },
    /// It was never to be had.
    NeverLeased {
        /// What was said instead.
        said: String,
    },
    /// Its miner showed receipts, but never had so many executors proven at once.
    ExcuseBeyondProven {
        /// Executors that were proven at once, at most.
        proven: u32,
    },
    /// It answered in the session that it serves, but its miner never had so many executors proven in full at once.
    ServesBeyondProven {
        /// Executors that were proven at once, at most.
        proven: u32,
    },
    /// It did not come to the barrier in time.
    NotAtBarrier {
        /// What was wrong.
        said: String,
    },
    /// It left between the barrier and the first byte.
    VanishedAtBarrier {
        /// What was seen.
        said: String,
    },
    /// It went away, or refused, before it committed.
    Gone {
        /// What was seen.
        said: String,
    },
    /// It committed and did not open.
    VanishedAfterCommitment,
    /// Too slow: its commitment, or that its memory is full, did not come in time.
    Late {
        /// The limit.
        limit_us: u64,
    },
    /// A message before or after its turn.
    OutOfTurn {
        /// The kind it claimed.
        kind: u8,
    },
    /// A message longer than any that could be right.
    Oversized {
        /// What was announced or came.
        length: u64,
        /// The most that could be right.
        most: u64,
    },
    /// Bytes that are no message.
    Malformed {
        /// What cannot be read.
        said: String,
    },
    /// A message that belongs to another executor's challenge in this batch.
    Foreign {
        /// Whose: a place in the plan.
        of: usize,
    },
    /// A message that belongs to a challenge of the past, or to none.
    Replayed,
    /// It derived other keys than those of its challenge.
    OtherKey,
    /// It committed the roots of another executor, whose keys are others.
    CopiedRoot {
        /// Whose: a place in the plan.
        of: usize,
    },
    /// What it opened is not what was committed, or not what is right.
    WrongOpening {
        /// Where and how.
        said: String,
    },
    /// Right, and less than the class asks for.
    Below {
        /// What.
        component: Component,
        /// The better attempt.
        measured: u64,
        /// What the class asks for.
        floor: u64,
    },
    /// Nothing of this was proven.
    Unproven {
        /// What.
        component: Component,
    },
    /// The class has no floors.
    UnknownClass,
    /// The validator's evidence contradicts itself: nobody's zero, and a defect.
    Evidence {
        /// How.
        said: String,
    },
}

/// What an executor comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "grade", rename_all = "snake_case", deny_unknown_fields)]
pub enum Judgement {
    /// It is of its class.
    Proven {
        /// What was measured.
        measured: Components,
        /// Whether the floors are measured on too few machines yet.
        provisional: bool,
    },
    /// It answered in the session that it serves: it is there, and computes. What else its class asks for was proven before.
    Serving {
        /// What was measured.
        measured: Components,
        /// Whether the floors are measured on too few machines yet.
        provisional: bool,
    },
    /// It was at work for somebody, which receipts show.
    Excused {
        /// What its miner said.
        said: String,
    },
    /// It is worth nothing.
    Zero {
        /// Every reason.
        reasons: Vec<Why>,
    },
    /// The validator could not tell.
    Void {
        /// Why.
        said: String,
    },
}

/// A peer's words, cut to what is kept, without control characters.
pub fn said(words: &str) -> String {
    let plain = words.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(MAX_SAID).collect()
}

impl Judgement {
    /// The same of an executor that was challenged in a session, if it was: what it passed is no whole course.
    #[must_use]
    pub(crate) fn seen(self, in_session: bool) -> Self {
        match self {
            Self::Proven {
                measured,
                provisional,
            } if in_session => Self::Serving {
                measured,
                provisional,
            },
            Self::Proven { .. }
            | Self::Serving { .. }
            | Self::Excused { .. }
            | Self::Zero { .. }
            | Self::Void { .. } => self,
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Proven { .. } => "proven",
            Self::Serving { .. } => "serving",
            Self::Excused { .. } => "excused",
            Self::Zero { .. } => "zero",
            Self::Void { .. } => "void",
        }
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proven {
                measured,
                provisional,
            } => {
                write!(f, "proven: int8 {}, ", measured.int8)?;
                if measured.fp16 > 0 {
                    write!(f, "fp16 {}, ", measured.fp16)?;
                }
                let Components {
                    memory, bandwidth, ..
                } = measured;
                write!(f, "memory {memory} MiB, bandwidth {bandwidth}")?;
                f.write_str(if *provisional { " (provisional floors)" } else { "" })
            }
            Self::Serving {
                measured,
                provisional,
            } => {
                write!(f, "serving: int8 {} in the session that it serves", measured.int8)?;
                f.write_str(if *provisional { " (provisional floors)" } else { "" })
            }
            Self::Excused { said } => write!(f, "excused: {said}"),
            Self::Zero { reasons } => {
                f.write_str("zero: ")?;
                for (at, why) in reasons.iter().enumerate() {
                    write!(f, "{}{why}", if at == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
            Self::Void { said } => write!(f, "void: {said}"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverAnnounced { said } => {
                write!(f, "its miner did not say what it has: {said}")
            }
            Self::NeverLeased { said } => write!(f, "it was never to be had: {said}"),
            Self::ExcuseBeyondProven { proven } => {
                write!(
                    f,
                    "its miner has receipts for more executors than the {proven} it ever proved at once"
                )
            }
            Self::ServesBeyondProven { proven } => write!(
                f,
                "it serves, and its miner never proved more than {proven} executors in full at once"
            ),
            Self::NotAtBarrier { said } => write!(f, "it did not come to the barrier: {said}"),
            Self::VanishedAtBarrier { said } => write!(f, "it vanished at the barrier: {said}"),
            Self::Gone { said } => write!(f, "it went away before it committed: {said}"),
            Self::VanishedAfterCommitment => f.write_str("it committed and did not open what was drawn"),
            Self::Late { limit_us } => write!(f, "it was late: nothing came within {limit_us} µs"),
            Self::OutOfTurn { kind } => write!(f, "it sent a message of kind {kind} out of turn"),
            Self::Oversized { length, most } => {
                write!(f, "it sent {length} bytes where at most {most} can be right")
            }
            Self::Malformed { said } => write!(f, "its message cannot be read: {said}"),
            Self::Foreign { of } => write!(
                f,
                "its message belongs to the challenge of executor {of} of this batch"
            ),
            Self::Replayed => f.write_str("its message belongs to another batch's challenge, or to none"),
            Self::OtherKey => f.write_str("it derived other keys than its challenge's"),
            Self::CopiedRoot { of } => write!(f, "it committed the roots of executor {of} of this batch"),
            Self::WrongOpening { said } => write!(f, "its opening is wrong: {said}"),
            Self::Below {
                component,
                measured,
                floor,
            } => write!(f, "{component:?} is {measured}, the class asks for {floor}"),
            Self::Unproven { component } => write!(f, "{component:?} was not proven"),
            Self::UnknownClass => f.write_str("the class has no floors"),
            Self::Evidence { said } => write!(f, "the evidence contradicts itself: {said}"),
        }
    }
}
