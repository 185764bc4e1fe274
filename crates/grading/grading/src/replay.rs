//! Judges a batch's file again. The plan follows from the block's hash, each verdict from the evidence, and each
//! judgement from the verdicts; the signatures show who sent the answers. Every difference from the file is reported.

use std::collections::BTreeMap;

use muster_hardware_proof::{Evidence, InstructionSet};
use muster_protocol::JobId;

use crate::batch_file::{BatchFile, BatchFileError, FORMAT, ParticipantEvidence};
use crate::batch_plan::{BatchPlan, assign_sessions, draw_batch};
use crate::batch_settlement::{judge_silent_miner, settle};
use crate::evidence_signatures::{self, ChallengedParticipant, SignatureCheck};
use crate::grade_spec::GradeSpec;
use crate::judgement::{Absence, Judgement};
use crate::trial_result::{TrialResult, judge_participant};

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// The judgement of each executor whose evidence is in the file, by place.
    pub judgements: BTreeMap<usize, Judgement>,
    /// The differences from the file, as texts. Empty if the file is right.
    pub differences: Vec<String>,
}

/// Derives the plan, the verdicts and the judgements again, and compares them with those of the file. `signed` returns
/// whether a key signed some bytes.
///
/// A file may hold the evidence of some executors only. The judgements of the others are taken from the file and not
/// compared.
///
/// # Errors
/// The file has another format, or some of its evidence cannot be read.
pub fn replay(
    file: &BatchFile,
    engine: InstructionSet,
    signed: SignatureCheck<'_>,
) -> Result<ReplayReport, BatchFileError> {
    if file.format != FORMAT {
        return Err(BatchFileError::Format);
    }
    let head = &file.head;
    let plan = draw_batch(
        head.kind,
        &head.hash,
        head.validator,
        &head.announced,
        head.bounds,
    );
    let mut replay = Replay {
        file,
        engine,
        signed,
        sessions: assign_sessions(&plan.participants, &head.serving),
        plan,
        report: ReplayReport::default(),
    };
    replay.check_head();
    let (judged, absent) = replay.judge_all()?;
    replay.compare(&judged, &absent);
    Ok(replay.report)
}

/// One replay under way.
struct Replay<'a> {
    file: &'a BatchFile,
    engine: InstructionSet,
    signed: SignatureCheck<'a>,
    /// Derived from the head of the file.
    plan: BatchPlan,
    /// The sessions in which executors were to be challenged, by place; derived from the head.
    sessions: BTreeMap<usize, JobId>,
    report: ReplayReport,
}

/// The judgements by executors' own proofs and the absences, both by place.
type JudgedPlaces = (BTreeMap<usize, Judgement>, BTreeMap<usize, Absence>);

impl Replay<'_> {
    fn add_difference(&mut self, difference: String) {
        self.report.differences.push(difference);
    }

    /// Compares the numbers of executors and silent miners, and looks for miners that are called silent and announced
    /// something.
    fn check_head(&mut self) {
        let head = &self.file.head;
        let (drawn, silent) = (self.plan.participants.len(), head.silent.len());
        if drawn.saturating_add(silent) != self.file.judgements.len() {
            let judged = self.file.judgements.len();
            self.add_difference(format!(
                "the block's hash draws {drawn} executors and {silent} miners were silent, but the file has {judged} judgements"
            ));
        }
        for silent in &head.silent {
            if head.announced.iter().any(|said| said.miner == silent.miner) {
                self.add_difference(format!(
                    "miner {} is listed as silent, but it announced executors",
                    silent.miner
                ));
            }
        }
    }

    /// The judgements by the executors' own proofs and the absences, both by place. Executors without evidence in the
    /// file keep the judgement that the file states.
    fn judge_all(&mut self) -> Result<JudgedPlaces, BatchFileError> {
        let file = self.file;
        let (drawn, silent) = (self.plan.participants.len(), file.head.silent.len());
        let mut judged: BTreeMap<_, _> = file.judgements.iter().take(drawn).cloned().enumerate().collect();
        let mut absent = BTreeMap::new();
        for (place, kept) in &file.participants {
            let Some(participant) = self.plan.participants.get(*place).copied() else {
                if place.saturating_sub(drawn) >= silent {
                    self.add_difference(format!(
                        "executor {place} is not among those that the block's hash draws"
                    ));
                }
                continue;
            };
            let asked = ChallengedParticipant {
                place: *place,
                participant: &participant,
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

    /// Checks the seals and the fingerprints of one executor and judges its proofs. `None` if its file states an
    /// absence or has no proofs.
    fn judge_one(
        &mut self,
        asked: &ChallengedParticipant<'_>,
        kept: &ParticipantEvidence,
    ) -> Result<Option<Judgement>, BatchFileError> {
        let file = self.file;
        let place = asked.place;
        // If the head names a class twice, its last course counts.
        let mut grade_specs = file.head.grade_specs.iter().rev();
        let grade_spec = grade_specs.find(|grade_spec| grade_spec.class() == asked.participant.class);
        let grade_spec = grade_spec.map(|grade_spec| match asked.session {
            Some(_) => grade_spec.for_session(),
            None => grade_spec.clone(),
        });
        let proofs = kept.proofs.iter().enumerate();
        let seen: Vec<_> = proofs
            .map(|(number, proof)| proof.decode(place, number))
            .collect::<Result<_, _>>()?;
        let unsigned = evidence_signatures::check_seals(asked, kept, &seen, self.signed);
        self.report.differences.extend(unsigned);
        let results = self.judge_proofs(asked, kept, &seen, grade_spec.as_ref());
        let fingerprint: Vec<_> = results.iter().map(|result| result.fingerprint).collect();
        if file.fingerprints.get(&place).map_or(&[][..], Vec::as_slice) != fingerprint {
            self.add_difference(format!(
                "executor {place}: the fingerprints differ from those of its evidence"
            ));
        }
        Ok(match (&kept.absence, grade_spec) {
            (None, Some(grade_spec)) if !results.is_empty() => {
                let judgement = judge_participant(place, &grade_spec, &results, &file.fingerprints);
                Some(judgement.for_session(asked.session.is_some()))
            }
            (_, _) => None,
        })
    }

    /// The verdicts of one executor's proofs. Each proof must answer the challenge that its class gets in this batch.
    fn judge_proofs(
        &mut self,
        asked: &ChallengedParticipant<'_>,
        kept: &ParticipantEvidence,
        seen: &[Evidence],
        grade_spec: Option<&GradeSpec>,
    ) -> Vec<TrialResult> {
        let mut results = Vec::new();
        let mut memory = None;
        for (number, (proof, evidence)) in kept.proofs.iter().zip(seen).enumerate() {
            let trial = grade_spec.and_then(|grade_spec| grade_spec.trial_in(proof.trial));
            let identity = *evidence.spec.identity();
            let due = trial.and_then(|trial| trial.shape.challenge_spec(identity, memory).ok());
            memory = evidence.spec.walk_memory().or(memory);
            let right =
                identity.batch == self.plan.id && identity.executor == asked.participant.executor_name();
            if !right
                || due != Some(evidence.spec)
                || trial.map(crate::Trial::limits) != Some(evidence.limits)
            {
                let place = asked.place;
                self.add_difference(format!(
                    "executor {place}: proof {number} does not answer the challenge of its class"
                ));
            }
            results.push(TrialResult::from_evidence(
                proof.trial,
                evidence,
                proof.trouble.clone(),
                self.engine,
            ));
        }
        results
    }

    /// Settles the whole batch and compares each executor whose evidence is in the file.
    fn compare(&mut self, judged: &BTreeMap<usize, Judgement>, absent: &BTreeMap<usize, Absence>) {
        let file = self.file;
        let mut settled = settle(
            &self.plan.participants,
            absent,
            judged,
            &file.head.proven_before(),
        );
        settled.extend(file.head.silent.iter().map(judge_silent_miner));
        for place in file.participants.keys() {
            let (Some(found), stated) = (settled.get(*place), file.judgements.get(*place)) else {
                continue;
            };
            if Some(found) != stated {
                let stated = stated.map_or_else(|| "nothing".to_owned(), ToString::to_string);
                self.add_difference(format!(
                    "executor {place}: the evidence gives {found}, the file says {stated}"
                ));
            }
            self.report.judgements.insert(*place, found.clone());
        }
    }
}
