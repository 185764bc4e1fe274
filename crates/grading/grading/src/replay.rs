//! Judges a batch's file again, as anyone can: the plan follows from the block's hash, each verdict from the evidence, each
//! judgement from the verdicts, and each author from the signatures. Every difference from the file is reported.

use std::collections::BTreeMap;

use muster_hardware_proof::keys::Identity;
use muster_hardware_proof::message::Spec;
use muster_hardware_proof::{Engine, Evidence};
use muster_protocol::JobId;

use crate::course::Course;
use crate::evidence::{BatchFile, FORMAT, FileError, SeatFile};
use crate::judgement::{Absence, Judgement};
use crate::plan::{Plan, draw, in_sessions};
use crate::seals::{self, Asked, Signed};
use crate::settlement::{settle, silence};
use crate::trial_result::{Tried, judge};

/// What was found on the way again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// What each executor in the file comes to, by place.
    pub judged: BTreeMap<usize, Judgement>,
    /// Where the file says otherwise, in words; nothing if it holds.
    pub differences: Vec<String>,
}

/// Derives the plan, the verdicts and the judgements again, and compares them with those of the file. `signed` tells whether a
/// key signed some bytes.
///
/// A file may hold the evidence of some executors only. The judgements of the others are taken from the file and not compared.
///
/// # Errors
/// The file has another format, or some of its evidence cannot be read.
pub fn replay(file: &BatchFile, engine: Engine, signed: Signed<'_>) -> Result<Replayed, FileError> {
    if file.format != FORMAT {
        return Err(FileError::Format);
    }
    let head = &file.head;
    let plan = draw(&head.hash, head.validator, &head.announced, head.bounds);
    let mut replay = Replay {
        file,
        engine,
        signed,
        sessions: in_sessions(&plan.seats, &head.serving),
        plan,
        report: Replayed::default(),
    };
    replay.check_head();
    let (judged, absent) = replay.judge_all()?;
    replay.compare(&judged, &absent);
    Ok(replay.report)
}

/// One replay under way.
struct Replay<'a> {
    file: &'a BatchFile,
    engine: Engine,
    signed: Signed<'a>,
    /// Derived from the head of the file.
    plan: Plan,
    /// The sessions in which executors were to be challenged, by place; derived from the head.
    sessions: BTreeMap<usize, JobId>,
    report: Replayed,
}

impl Replay<'_> {
    fn differs(&mut self, difference: String) {
        self.report.differences.push(difference);
    }

    /// Compares the numbers of executors and silent miners, and looks for miners that are called silent and announced something.
    fn check_head(&mut self) {
        let head = &self.file.head;
        let (drawn, silent) = (self.plan.seats.len(), head.silent.len());
        if drawn.saturating_add(silent) != self.file.judgements.len() {
            let judged = self.file.judgements.len();
            self.differs(format!(
                "the block's hash draws {drawn} executors, {silent} miners were silent, and {judged} judgements are here"
            ));
        }
        for silent in &head.silent {
            if head.announced.iter().any(|said| said.miner == silent.miner) {
                self.differs(format!(
                    "miner {} is called silent, and announced something",
                    silent.miner
                ));
            }
        }
    }

    /// The judgements by the executors' own proofs and the absences, both by place. Executors without evidence in the file keep
    /// the judgement that the file states.
    fn judge_all(&mut self) -> Result<(BTreeMap<usize, Judgement>, BTreeMap<usize, Absence>), FileError> {
        let file = self.file;
        let (drawn, silent) = (self.plan.seats.len(), file.head.silent.len());
        let mut judged: BTreeMap<_, _> = file.judgements.iter().take(drawn).cloned().enumerate().collect();
        let mut absent = BTreeMap::new();
        for (place, kept) in &file.seats {
            let Some(seat) = self.plan.seats.get(*place).copied() else {
                if place.saturating_sub(drawn) >= silent {
                    self.differs(format!(
                        "executor {place} is not among those that the block's hash draws"
                    ));
                }
                continue;
            };
            let asked = Asked {
                place: *place,
                seat: &seat,
                validator: file.head.validator,
                session: self.sessions.get(place).copied(),
            };
            judged.remove(place);
            match self.judge_one(&asked, kept)? {
                Some(judgement) => {
                    judged.insert(*place, judgement);
                }
                None => absent.extend(kept.absence.clone().map(|absence| (*place, absence))),
            }
        }
        Ok((judged, absent))
    }

    /// Checks the seals and the fingerprints of one executor and judges its proofs. `None` if its file states an absence or has
    /// no proofs.
    fn judge_one(&mut self, asked: &Asked<'_>, kept: &SeatFile) -> Result<Option<Judgement>, FileError> {
        let file = self.file;
        let place = asked.place;
        // If the head names a class twice, its last course counts.
        let mut courses = file.head.courses.iter().rev();
        let course = courses.find(|course| course.class() == asked.seat.class);
        let course = course.map(|course| match asked.session {
            Some(_) => course.beside(),
            None => course.clone(),
        });
        let proofs = kept.proofs.iter().enumerate();
        let seen: Vec<_> = proofs
            .map(|(number, proof)| proof.read(place, number))
            .collect::<Result<_, _>>()?;
        let unsigned = seals::check(asked, kept, &seen, self.signed);
        self.report.differences.extend(unsigned);
        let tried = self.judge_proofs(asked, kept, &seen, course.as_ref());
        let facts: Vec<_> = tried.iter().map(|tried| tried.facts).collect();
        if file.marks.get(&place).map_or(&[][..], Vec::as_slice) != facts {
            self.differs(format!(
                "executor {place}: the marks are not those of its evidence"
            ));
        }
        Ok(match (&kept.absence, course) {
            (None, Some(course)) if !tried.is_empty() => {
                let judgement = judge(place, &course, &tried, &file.marks);
                Some(judgement.seen(asked.session.is_some()))
            }
            (_, _) => None,
        })
    }

    /// The verdicts of one executor's proofs. Each proof must answer the challenge that its class gets in this batch.
    fn judge_proofs(
        &mut self,
        asked: &Asked<'_>,
        kept: &SeatFile,
        seen: &[Evidence],
        course: Option<&Course>,
    ) -> Vec<Tried> {
        let mut tried = Vec::new();
        for (number, (proof, evidence)) in kept.proofs.iter().zip(seen).enumerate() {
            let identity: Identity = match &evidence.spec {
                Spec::Chain(spec) => *spec.identity(),
                Spec::Walk(spec) => *spec.identity(),
            };
            let trial = course.and_then(|course| course.trials.get(proof.trial));
            let due = trial.and_then(|trial| trial.shape.spec(identity).ok());
            let right = identity.batch == self.plan.id && identity.executor == asked.seat.name();
            if !right
                || due != Some(evidence.spec)
                || trial.map(crate::Trial::limits) != Some(evidence.limits)
            {
                let place = asked.place;
                self.differs(format!(
                    "executor {place}: proof {number} is not of the challenge that its class gets"
                ));
            }
            tried.push(Tried::judge(
                proof.trial,
                evidence,
                proof.trouble.clone(),
                self.engine,
            ));
        }
        tried
    }

    /// Settles the whole batch and compares each executor whose evidence is in the file.
    fn compare(&mut self, judged: &BTreeMap<usize, Judgement>, absent: &BTreeMap<usize, Absence>) {
        let file = self.file;
        let mut settled = settle(&self.plan.seats, absent, judged, &file.head.proven_before());
        settled.extend(file.head.silent.iter().map(silence));
        for place in file.seats.keys() {
            let (Some(found), stated) = (settled.get(*place), file.judgements.get(*place)) else {
                continue;
            };
            if Some(found) != stated {
                let stated = stated.map_or_else(|| "nothing".to_owned(), ToString::to_string);
                self.differs(format!(
                    "executor {place}: the evidence comes to {found}, the file says {stated}"
                ));
            }
            self.report.judged.insert(*place, found.clone());
        }
    }
}
