//! What is kept of a batch, and what anyone makes of it: the plan follows from the block's hash, each verdict from the evidence,
//! each judgement from the verdicts, and who said it from the signatures. [`replay`] goes that way again and says where the file says otherwise.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_hardware_proof::keys::Identity;
use muster_hardware_proof::message::Spec;
use muster_hardware_proof::{DecodeError, Engine, Evidence, MOST_BYTES};
use muster_protocol::{ExecutorClass, MinerKey, ValidatorKey};
use serde::{Deserialize, Serialize};

use crate::course::Course;
use crate::plan::{Announced, BlockHash, Bounds, Serving, Silent, draw, in_sessions};
use crate::seals::{self, Asked, Signed};
use crate::verdict::{
    Absence, Facts, Judgement, Marks, ProvenBefore, Tried, hexadecimal, judge, settle, silence,
};

/// The version of the file.
pub const FORMAT: &str = "muster-grading/1";

/// A batch's evidence: all of it, or that about some of its executors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchFile {
    /// [`FORMAT`].
    pub format: String,
    /// What was decided before anybody was challenged.
    pub head: Head,
    /// Every proof's facts, also of executors whose evidence is not in this file.
    pub marks: Marks,
    /// What every executor comes to, in the order of the plan; behind them the silent miners, in the order of the head.
    pub judgements: Vec<Judgement>,
    /// The executors, and silent miners, whose evidence is here, by place.
    pub seats: BTreeMap<usize, SeatFile>,
}

/// What was decided before anybody was challenged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Whose batch.
    pub validator: ValidatorKey,
    /// The block that it began with.
    pub block: u64,
    /// Its hash.
    #[serde(with = "hexadecimal")]
    pub hash: BlockHash,
    /// What miners had announced.
    pub announced: Vec<Announced>,
    /// Miners that were asked, and announced nothing in time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<Silent>,
    /// Sessions of this validator's that served then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub serving: Vec<Serving>,
    /// How large it might become.
    pub bounds: Bounds,
    /// What was asked of each class.
    pub courses: Vec<Course>,
    /// The most executors of one kind that each miner had proven at once before.
    pub before: Vec<Before>,
}

/// How many executors of one kind a miner had proven at once before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Before {
    /// Whose.
    pub miner: MinerKey,
    /// Of which kind.
    pub class: ExecutorClass,
    /// At most.
    pub proven: u32,
}

/// What is kept of one executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeatFile {
    /// Why it was not challenged, if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absence: Option<Absence>,
    /// The job by which it was leased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// What its miner attested of its session, signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<String>,
    /// Its proofs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proofs: Vec<ProofFile>,
}

/// One proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProofFile {
    /// Which trial of its course.
    pub trial: usize,
    /// When the first byte of the challenge left, in microseconds after that of the first one of its round.
    pub sent_us: u64,
    /// [`Evidence::to_bytes`], base64.
    pub evidence: String,
    /// What was seen besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// What the session signed about each answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seals: Vec<String>,
}

/// Why a file is none.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Another version.
    #[error("it is no evidence of a batch, or of another version")]
    Format,
    /// Some evidence of it cannot be read.
    #[error("proof {proof} of executor {place} cannot be read")]
    Evidence {
        /// Whose.
        place: usize,
        /// Which.
        proof: usize,
        /// Why.
        source: DecodeError,
    },
    /// Some evidence is no base64.
    #[error("proof {proof} of executor {place} is no base64")]
    Text {
        /// Whose.
        place: usize,
        /// Which.
        proof: usize,
    },
}

/// What was found on the way again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// What each executor in the file comes to, by place.
    pub judged: BTreeMap<usize, Judgement>,
    /// Where the file says otherwise, in words; nothing if it holds.
    pub differences: Vec<String>,
}

impl ProofFile {
    /// Writes evidence down.
    pub fn new(trial: usize, sent_us: u64, evidence: &Evidence) -> Self {
        Self {
            trial,
            sent_us,
            evidence: STANDARD.encode(evidence.to_bytes()),
            trouble: None,
            seals: Vec::new(),
        }
    }

    fn read(&self, place: usize, proof: usize) -> Result<Evidence, FileError> {
        let most = MOST_BYTES.saturating_mul(2);
        let text = Some(&self.evidence).filter(|text| text.len() <= most);
        let bytes = text.and_then(|text| STANDARD.decode(text).ok());
        let bytes = bytes.ok_or(FileError::Text { place, proof })?;
        Evidence::from_bytes(&bytes).map_err(|source| FileError::Evidence { place, proof, source })
    }
}

impl Head {
    /// As [`settle`] takes it.
    pub fn proven_before(&self) -> ProvenBefore {
        let before = self.before.iter();
        before
            .map(|before| ((before.miner, before.class), before.proven))
            .collect()
    }
}

/// Goes the way again from the hash to the judgements. `signed` says whether a key signed bytes.
///
/// Of a file with some executors only, what the others come to is taken as the file says: it is not in question.
///
/// # Errors
/// It cannot be read.
pub fn replay(file: &BatchFile, engine: Engine, signed: Signed<'_>) -> Result<Replayed, FileError> {
    if file.format != FORMAT {
        return Err(FileError::Format);
    }
    let head = &file.head;
    let mut replayed = Replayed::default();
    let plan = draw(&head.hash, head.validator, &head.announced, head.bounds);
    let (drawn, silent) = (plan.seats.len(), head.silent.len());
    if drawn.saturating_add(silent) != file.judgements.len() {
        let judged = file.judgements.len();
        let said = format!(
            "the block's hash draws {drawn} executors, {silent} miners were silent, and {judged} judgements are here"
        );
        replayed.differences.push(said);
    }
    for silent in &head.silent {
        if head.announced.iter().any(|said| said.miner == silent.miner) {
            let said = format!("miner {} is called silent, and announced something", silent.miner);
            replayed.differences.push(said);
        }
    }
    let sessions = in_sessions(&plan.seats, &head.serving);
    let courses: BTreeMap<_, _> = head
        .courses
        .iter()
        .map(|course| (course.class(), course))
        .collect();
    let mut judged: BTreeMap<_, _> = file.judgements.iter().take(drawn).cloned().enumerate().collect();
    let mut absent = BTreeMap::new();
    for (place, kept) in &file.seats {
        let Some(seat) = plan.seats.get(*place) else {
            if place.saturating_sub(drawn) >= silent {
                let said = format!("executor {place} is not among those that the block's hash draws");
                replayed.differences.push(said);
            }
            continue;
        };
        let session = sessions.get(place);
        let course = courses.get(&seat.class).map(|course| match session {
            Some(_) => course.beside(),
            None => (*course).clone(),
        });
        let seen = read(*place, kept)?;
        let asked = Asked {
            place: *place,
            seat,
            validator: head.validator,
            session: session.copied(),
        };
        replayed
            .differences
            .extend(seals::check(&asked, kept, &seen, signed));
        let tried = proofs(
            &asked,
            kept,
            &seen,
            &plan.id,
            course.as_ref(),
            engine,
            &mut replayed,
        );
        let facts: Vec<_> = tried.iter().map(|tried| tried.facts).collect();
        if file.marks.get(place).map_or(&[][..], Vec::as_slice) != facts {
            let said = format!("executor {place}: the marks are not those of its evidence");
            replayed.differences.push(said);
        }
        judged.remove(place);
        match (&kept.absence, course) {
            (None, Some(course)) if !tried.is_empty() => {
                let found = judge(*place, &course, &tried, &file.marks).seen(session.is_some());
                judged.insert(*place, found);
            }
            (absence, _) => {
                absent.extend(absence.clone().map(|absence| (*place, absence)));
            }
        }
    }
    let mut settled = settle(&plan.seats, &absent, &judged, &head.proven_before());
    settled.extend(head.silent.iter().map(silence));
    for place in file.seats.keys() {
        let (Some(found), stated) = (settled.get(*place), file.judgements.get(*place)) else {
            continue;
        };
        if Some(found) != stated {
            let stated = stated.map_or_else(|| "nothing".to_owned(), ToString::to_string);
            let said = format!("executor {place}: the evidence comes to {found}, the file says {stated}");
            replayed.differences.push(said);
        }
        replayed.judged.insert(*place, found.clone());
    }
    Ok(replayed)
}

/// The evidence of one executor's proofs.
fn read(place: usize, kept: &SeatFile) -> Result<Vec<Evidence>, FileError> {
    let proofs = kept.proofs.iter().enumerate();
    proofs.map(|(number, proof)| proof.read(place, number)).collect()
}

/// The verdicts of one executor's proofs; each must be of the challenge that it was to get.
fn proofs(
    asked: &Asked<'_>,
    kept: &SeatFile,
    seen: &[Evidence],
    batch: &muster_hardware_proof::keys::BatchId,
    course: Option<&Course>,
    engine: Engine,
    replayed: &mut Replayed,
) -> Vec<Tried> {
    let mut tried = Vec::new();
    for (number, (proof, evidence)) in kept.proofs.iter().zip(seen).enumerate() {
        let identity: Identity = match &evidence.spec {
            Spec::Chain(spec) => *spec.identity(),
            Spec::Walk(spec) => *spec.identity(),
        };
        let trial = course.and_then(|course| course.trials.get(proof.trial));
        let due = trial.and_then(|trial| trial.shape.spec(identity).ok());
        let right = identity.batch == *batch && identity.executor == asked.seat.name();
        if !right || due != Some(evidence.spec) || trial.map(crate::Trial::limits) != Some(evidence.limits) {
            let place = asked.place;
            let said =
                format!("executor {place}: proof {number} is not of the challenge that its class gets");
            replayed.differences.push(said);
        }
        tried.push(Tried {
            trial: proof.trial,
            verdict: evidence.judge(engine),
            trouble: proof.trouble.clone(),
            facts: Facts::of(evidence),
        });
    }
    tried
}
