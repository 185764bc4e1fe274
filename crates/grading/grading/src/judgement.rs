//! The verdict on one executor of a batch: proven, serving, excused, zero with every reason, or void.

use std::fmt;

use muster_hardware_proof::grade::{Component, Components};
use muster_protocol::receipt::AttemptAtWork;
use serde::{Deserialize, Serialize};

/// The largest number of characters of a peer's text that is stored.
const MAX_SAID: usize = 300;

/// The reason why an executor was not challenged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "absence", rename_all = "snake_case", deny_unknown_fields)]
pub enum Absence {
    /// It could not be leased.
    NotLeased {
        /// The reason in the words of the miner or of the validator.
        said: String,
        /// Whether the miner showed receipts that all its executors of the class were at work.
        backed: bool,
        /// The attempts that these receipts are about. Files of earlier releases do not name them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        at_work: Vec<AttemptAtWork>,
    },
    /// It was leased and did not reach the barrier.
    NotReady {
        /// The fault as text.
        said: String,
    },
    /// It waited at the barrier and its session ended before the challenges were sent.
    LeftBarrier {
        /// The end of the session as text.
        said: String,
    },
    /// The validator could not challenge it. This is no fault of the executor.
    Void {
        /// The reason as text.
        said: String,
    },
}

/// The reason why an executor is worth nothing. Every zero has at least one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case", deny_unknown_fields)]
pub enum Why {
    /// Its miner did not announce its executors in time.
    NeverAnnounced {
        /// The failure as text.
        said: String,
    },
    /// It could not be leased.
    NeverLeased {
        /// The reason in the words of the miner or of the validator.
        said: String,
    },
    /// Its miner showed receipts for it, but did not have enough executors proven in one of the last eight batches.
    ExcuseBeyondProven {
        /// The largest number of executors proven in one of the last eight batches.
        proven: u32,
    },
    /// Its miner showed fewer receipts than it has executors that could not be leased.
    ExcuseMissing {
        /// The number of attempts that the receipts show at work.
        shown: u32,
    },
    /// It answered in the session that it serves, but its miner did not have enough executors fully proven in one of
    /// the last eight batches.
    ServesBeyondProven {
        /// The largest number of executors proven in one of the last eight batches.
        proven: u32,
    },
    /// It did not reach the barrier in time.
    NotAtBarrier {
        /// The fault as text.
        said: String,
    },
    /// Its session ended between the barrier and the first byte of a challenge.
    VanishedAtBarrier {
        /// The end of the session as text.
        said: String,
    },
    /// Its connection ended, or it rejected the challenge, before it committed.
    Gone {
        /// The failure as text.
        said: String,
    },
    /// It committed and did not send its opening.
    VanishedAfterCommitment,
    /// Its commitment, or the message that its memory is full, did not arrive in time.
    Late {
        /// The time limit in microseconds.
        limit_us: u64,
    },
    /// It sent a message out of turn.
    OutOfTurn {
        /// The kind in the message; 0 if it has none.
        kind: u8,
    },
    /// It sent a message longer than any valid one.
    Oversized {
        /// Bytes that were announced or received.
        length: u64,
        /// The largest length that was valid at that moment.
        most: u64,
    },
    /// It sent bytes that are not a message.
    Malformed {
        /// The fault as text.
        said: String,
    },
    /// It sent a message that belongs to another executor's challenge in this batch.
    Foreign {
        /// The place of that executor in the plan.
        of: usize,
    },
    /// It sent a message that belongs to an earlier challenge, or to none.
    Replayed,
    /// It derived wrong keys from its challenge.
    OtherKey,
    /// It committed to the roots of another executor, whose keys are different.
    CopiedRoot {
        /// The place of that executor in the plan.
        of: usize,
    },
    /// Its opening differs from its commitment or from the correct values.
    WrongOpening {
        /// The draw and the fault, as text.
        said: String,
    },
    /// Its proof is correct, but the measurement is below the threshold of the class.
    Below {
        /// The component that is too small.
        component: Component,
        /// The best measured value, in the unit of the component.
        measured: u64,
        /// The threshold of the class, in the unit of the component.
        #[serde(rename = "floor")]
        threshold: u64,
    },
    /// It proved nothing of this component.
    Unproven {
        /// The unproven component.
        component: Component,
    },
    /// There are no thresholds for the class.
    UnknownClass,
    /// The validator's evidence contradicts itself. This is a defect of the validator, not a zero.
    Evidence {
        /// The contradiction as text.
        said: String,
    },
}

/// The judgement of one executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "grade", rename_all = "snake_case", deny_unknown_fields)]
pub enum Judgement {
    /// It has proven its class.
    Proven {
        /// The measured values.
        measured: Components,
        /// Whether a threshold is not yet measured on enough machines.
        provisional: bool,
    },
    /// It answered in the session that it serves, so it exists and computes. The rest of its class was proven in
    /// earlier batches.
    Serving {
        /// The measured values.
        measured: Components,
        /// Whether a threshold is not yet measured on enough machines.
        provisional: bool,
    },
    /// It was at work, as receipts show. The excuse counts once a finished receipt of its attempt counts.
    Excused {
        /// The refusal of its miner, as text.
        said: String,
        /// The attempt that excuses it; no other executor is excused by the same one. Files of earlier releases do
        /// not name it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<AttemptAtWork>,
    },
    /// It is worth nothing.
    Zero {
        /// All reasons for the zero, at least one.
        reasons: Vec<Why>,
    },
    /// The validator could not judge it.
    Void {
        /// The reason as text.
        said: String,
    },
}

/// Cuts a peer's text to the length that is stored, and replaces control characters by spaces.
pub fn sanitize_words(words: &str) -> String {
    let plain = words.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(MAX_SAID).collect()
}

impl Judgement {
    /// The same judgement, but `Serving` instead of `Proven` if the executor was challenged in a session: there it
    /// proves only a part of its class.
    #[must_use]
    pub(crate) fn for_session(self, in_session: bool) -> Self {
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

    /// The name of the variant, as in JSON and in the table of grades.
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
                f.write_str(if *provisional {
                    " (provisional thresholds)"
                } else {
                    ""
                })
            }
            Self::Serving {
                measured,
                provisional,
            } => {
                write!(f, "serving: int8 {} in the session that it serves", measured.int8)?;
                f.write_str(if *provisional {
                    " (provisional thresholds)"
                } else {
                    ""
                })
            }
            Self::Excused { said, .. } => write!(f, "excused: {said}"),
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
                write!(f, "its miner did not announce its executors: {said}")
            }
            Self::NeverLeased { said } => write!(f, "it could not be leased: {said}"),
            Self::ExcuseBeyondProven { proven } => {
                write!(
                    f,
                    "its miner has receipts for more than the {proven} executors that it proved at once in the last eight batches"
                )
            }
            Self::ExcuseMissing { shown } => write!(
                f,
                "its miner has receipts for {shown} attempts at work, and more executors that could not be leased"
            ),
            Self::ServesBeyondProven { proven } => write!(
                f,
                "it serves a session, and its miner fully proved no more than {proven} executors at once in the last eight batches"
            ),
            Self::NotAtBarrier { said } => write!(f, "it did not reach the barrier: {said}"),
            Self::VanishedAtBarrier { said } => write!(f, "it vanished at the barrier: {said}"),
            Self::Gone { said } => write!(f, "it left before it committed: {said}"),
            Self::VanishedAfterCommitment => f.write_str("it committed and did not open what was drawn"),
            Self::Late { limit_us } => write!(f, "it was late: nothing arrived within {limit_us} µs"),
            Self::OutOfTurn { kind } => write!(f, "it sent a message of kind {kind} out of turn"),
            Self::Oversized { length, most } => {
                write!(f, "it sent {length} bytes, but at most {most} are valid")
            }
            Self::Malformed { said } => write!(f, "its message cannot be read: {said}"),
            Self::Foreign { of } => write!(
                f,
                "its message belongs to the challenge of executor {of} of this batch"
            ),
            Self::Replayed => f.write_str("its message belongs to another batch's challenge, or to none"),
            Self::OtherKey => f.write_str("it derived wrong keys from its challenge"),
            Self::CopiedRoot { of } => write!(f, "it committed to the roots of executor {of} of this batch"),
            Self::WrongOpening { said } => write!(f, "its opening is wrong: {said}"),
            Self::Below {
                component,
                measured,
                threshold,
            } => write!(
                f,
                "{component:?} is {measured}, but the class requires {threshold}"
            ),
            Self::Unproven { component } => write!(f, "{component:?} was not proven"),
            Self::UnknownClass => f.write_str("the class has no thresholds"),
            Self::Evidence { said } => write!(f, "the evidence contradicts itself: {said}"),
        }
    }
}
