//! What came of each executor: proven, excused, or nothing, with every reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use muster_hardware_proof::grade::{Attempt, Component, Components, Grade, Shortfall, grade};
use muster_hardware_proof::keys::SessionId;
use muster_hardware_proof::message::{Frame, HEAD};
use muster_hardware_proof::{Engine, Evidence, Reason, Verdict};
use muster_protocol::{ExecutorClass, MinerKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::course::Course;
use crate::plan::{Seat, Silent};

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

/// One proof that was asked for, as its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Which trial of the course.
    pub trial: usize,
    /// What the evidence comes to.
    pub verdict: Verdict,
    /// What was seen besides the messages, in words: how the executor refused, or what its seal lacked.
    pub trouble: Option<String>,
    /// What else the evidence says.
    pub facts: Facts,
}

/// What the evidence of one proof says besides its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Which challenge.
    #[serde(with = "hexadecimal")]
    pub session: [u8; 32],
    /// SHA-256 over the committed roots.
    #[serde(default, with = "hexadecimal_option", skip_serializing_if = "Option::is_none")]
    pub roots: Option<[u8; 32]>,
    /// The challenge that a message named instead.
    #[serde(default, with = "hexadecimal_option", skip_serializing_if = "Option::is_none")]
    pub named: Option<[u8; 32]>,
}

/// The facts of every proof of a batch, by the executor's place in its plan. By these copies are told from mistakes.
pub type Marks = BTreeMap<usize, Vec<Facts>>;

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

/// How many executors of one kind of one miner count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Whose.
    pub miner: MinerKey,
    /// Of which kind.
    pub class: ExecutorClass,
    /// Proven in this batch.
    pub proven: u32,
    /// At work elsewhere, and proven before.
    pub excused: u32,
}

/// A peer's words, cut to what is kept, without control characters.
pub fn said(words: &str) -> String {
    let plain = words.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(MAX_SAID).collect()
}

impl Facts {
    /// What this evidence says.
    pub fn of(evidence: &Evidence) -> Self {
        let session = evidence.spec.session();
        let committed = evidence.commitment.as_ref().map(|received| &received.bytes);
        // Behind the head and the print of the keys stand the roots.
        let roots = committed
            .and_then(|bytes| bytes.get(HEAD.saturating_add(16)..))
            .filter(|roots| !roots.is_empty());
        let parts = [&evidence.filled, &evidence.commitment, &evidence.opening];
        let named = parts.into_iter().flatten().find_map(|received| {
            let frame = Frame::parse(&received.bytes).ok()?;
            (frame.session != session).then_some(frame.session.0)
        });
        let SessionId(session) = session;
        Self {
            session,
            roots: roots.map(|roots| Sha256::digest(roots).into()),
            named,
        }
    }
}

impl Tried {
    /// Judges the evidence of one proof.
    pub fn judge(trial: usize, evidence: &Evidence, trouble: Option<String>, engine: Engine) -> Self {
        Self {
            trial,
            verdict: evidence.judge(engine),
            trouble,
            facts: Facts::of(evidence),
        }
    }
}

/// What an executor comes to by its own proofs; an absence is settled by [`settle`] with those of the others of its miner.
pub fn judge(place: usize, course: &Course, tried: &[Tried], marks: &Marks) -> Judgement {
    let attempts = tried.iter().filter_map(|tried| {
        let of = course.trials.get(tried.trial)?.shape.challenged();
        Some(Attempt {
            of,
            verdict: tried.verdict,
        })
    });
    let attempts: Vec<_> = attempts.collect();
    let shortfalls = match grade(course.class(), std::slice::from_ref(&course.floors), &attempts) {
        Grade::Proven {
            measured,
            provisional,
            ..
        } => {
            return Judgement::Proven {
                measured,
                provisional,
            };
        }
        Grade::Zero(shortfalls) => shortfalls,
    };
    let reasons: Vec<_> = shortfalls
        .iter()
        .map(|shortfall| match *shortfall {
            Shortfall::Wrong(reason) | Shortfall::Failed(_, reason) => named(place, reason, tried, marks),
            Shortfall::Unproven(component) => Why::Unproven { component },
            Shortfall::Below {
                component,
                measured,
                floor,
            } => Why::Below {
                component,
                measured,
                floor,
            },
            Shortfall::UnknownClass => Why::UnknownClass,
        })
        .collect();
    // A walk stands for two components, and fails them for one reason.
    let mut reasons: Vec<_> = reasons;
    reasons.dedup();
    if let [Why::Evidence { said }, ..] = reasons.as_slice() {
        return Judgement::Void { said: said.clone() };
    }
    Judgement::Zero { reasons }
}

/// The name of a proof's failure.
fn named(place: usize, reason: Reason, tried: &[Tried], marks: &Marks) -> Why {
    let which = tried.iter().find(|tried| tried.verdict == Verdict::Zero(reason));
    let facts = which.map(|tried| tried.facts);
    if reason.is_wrong()
        && let Some(roots) = facts.and_then(|facts| facts.roots)
        && let Some(of) = elsewhere(place, marks, |other| other.roots == Some(roots))
    {
        return Why::CopiedRoot { of };
    }
    match reason {
        Reason::Gone => {
            let trouble = which.and_then(|tried| tried.trouble.clone());
            let said = trouble.unwrap_or_else(|| reason.to_string());
            Why::Gone { said }
        }
        Reason::NotFilled { limit_us } | Reason::NotCommitted { limit_us } => Why::Late { limit_us },
        Reason::Vanished => Why::VanishedAfterCommitment,
        Reason::OutOfTurn { kind } => Why::OutOfTurn { kind },
        Reason::Oversized { length, most } => Why::Oversized { length, most },
        Reason::Malformed(error) => Why::Malformed {
            said: error.to_string(),
        },
        Reason::OtherSession => {
            let named = facts.and_then(|facts| facts.named);
            let of = named.and_then(|named| elsewhere(place, marks, |other| other.session == named));
            of.map_or(Why::Replayed, |of| Why::Foreign { of })
        }
        Reason::OtherKey => Why::OtherKey,
        Reason::OtherCommitment
        | Reason::OtherRound { .. }
        | Reason::OtherPlace { .. }
        | Reason::WrongEntry { .. }
        | Reason::WrongStep { .. }
        | Reason::AlteredLeaf { .. }
        | Reason::AlteredPath { .. } => Why::WrongOpening {
            said: reason.to_string(),
        },
        Reason::Evidence(said) => Why::Evidence {
            said: said.to_owned(),
        },
    }
}

fn elsewhere(place: usize, marks: &Marks, is: impl Fn(&Facts) -> bool) -> Option<usize> {
    let mut others = marks.iter().filter(|(other, _)| **other != place);
    others.find_map(|(other, facts)| facts.iter().any(&is).then_some(*other))
}

/// The most executors of one kind that a miner ever had proven in one batch.
pub type ProvenBefore = BTreeMap<(MinerKey, ExecutorClass), u32>;

/// Puts the absent beside the proven: of the executors of one kind of one miner, those that prove themselves and those that are
/// excused are together never more than were proven at once, now or before.
pub fn settle(
    seats: &[Seat],
    absent: &BTreeMap<usize, Absence>,
    judged: &BTreeMap<usize, Judgement>,
    before: &ProvenBefore,
) -> Vec<Judgement> {
    let mut room = BTreeMap::<(MinerKey, ExecutorClass), u32>::new();
    for (place, seat) in seats.iter().enumerate() {
        let kind = (seat.miner, seat.class);
        let most = room
            .entry(kind)
            .or_insert_with(|| before.get(&kind).copied().unwrap_or(0));
        if matches!(judged.get(&place), Some(Judgement::Proven { .. })) {
            *most = most.saturating_sub(1);
        }
    }
    // Who answered in its session comes before whoever shows nothing but receipts.
    let mut beyond = BTreeSet::new();
    for (place, seat) in seats.iter().enumerate() {
        if matches!(judged.get(&place), Some(Judgement::Serving { .. })) {
            match room.get_mut(&(seat.miner, seat.class)) {
                Some(room) if *room > 0 => *room = room.saturating_sub(1),
                Some(_) | None => {
                    beyond.insert(place);
                }
            }
        }
    }
    let settled = seats.iter().enumerate().map(|(place, seat)| {
        let kind = (seat.miner, seat.class);
        let zero = |why| Judgement::Zero { reasons: vec![why] };
        if beyond.contains(&place) {
            return zero(Why::ServesBeyondProven {
                proven: before.get(&kind).copied().unwrap_or(0),
            });
        }
        if let Some(judged) = judged.get(&place) {
            return judged.clone();
        }
        match absent.get(&place) {
            Some(Absence::NotLeased { said, backed: true }) => match room.get_mut(&kind) {
                Some(room) if *room > 0 => {
                    *room = room.saturating_sub(1);
                    Judgement::Excused { said: said.clone() }
                }
                Some(_) | None => zero(Why::ExcuseBeyondProven {
                    proven: before.get(&kind).copied().unwrap_or(0),
                }),
            },
            Some(Absence::NotLeased { said, backed: false }) => zero(Why::NeverLeased { said: said.clone() }),
            Some(Absence::NotReady { said }) => zero(Why::NotAtBarrier { said: said.clone() }),
            Some(Absence::LeftBarrier { said }) => zero(Why::VanishedAtBarrier { said: said.clone() }),
            Some(Absence::Void { said }) => Judgement::Void { said: said.clone() },
            None => Judgement::Void {
                said: "the validator lost track of it".to_owned(),
            },
        }
    });
    settled.collect()
}

/// What a miner comes to that did not say what it has.
pub fn silence(silent: &Silent) -> Judgement {
    let said = silent.said.clone();
    Judgement::Zero {
        reasons: vec![Why::NeverAnnounced { said }],
    }
}

/// What counts, by miner and class.
pub fn capacities(seats: &[Seat], judged: &[Judgement]) -> Vec<Capacity> {
    let mut counts = BTreeMap::<(MinerKey, ExecutorClass), (u32, u32)>::new();
    for (seat, judgement) in seats.iter().zip(judged) {
        let count = counts.entry((seat.miner, seat.class)).or_default();
        match judgement {
            Judgement::Proven { .. } => count.0 = count.0.saturating_add(1),
            // Both are at work, and proven before.
            Judgement::Serving { .. } | Judgement::Excused { .. } => count.1 = count.1.saturating_add(1),
            Judgement::Zero { .. } | Judgement::Void { .. } => {}
        }
    }
    let counted = counts
        .into_iter()
        .map(|((miner, class), (proven, excused))| Capacity {
            miner,
            class,
            proven,
            excused,
        });
    counted.collect()
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

/// Thirty-two bytes as text.
pub(crate) mod hexadecimal {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut bytes = [0; 32];
        hex::decode_to_slice(&text, &mut bytes).map_err(D::Error::custom)?;
        Ok(bytes)
    }
}

/// Thirty-two bytes as text, or nothing.
mod hexadecimal_option {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    #[expect(clippy::ref_option, reason = "serde hands it over like this")]
    pub(super) fn serialize<S: Serializer>(
        bytes: &Option<[u8; 32]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.serialize_str(&hex::encode(bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<[u8; 32]>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else {
            return Ok(None);
        };
        let mut bytes = [0; 32];
        hex::decode_to_slice(&text, &mut bytes).map_err(D::Error::custom)?;
        Ok(Some(bytes))
    }
}
