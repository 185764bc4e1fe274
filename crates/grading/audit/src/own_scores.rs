//! Another validator's conviction, judged by own scores alone: no score of a bundle's author is evidence.
//!
//! Every own prompt to which the author's headers commit counts, in the order of commitment: by the adopter's own
//! score, and with L = 0 without one. The author's scores decide only which answers are scored first, so a forged score
//! wastes an own score and proves nothing. The evidence is restarted, so with E[L | past] ≤ 1 an honest miner's reaches
//! A within n answers with a probability of at most n/A.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use muster_protocol::{Digest, MinerKey};
use serde::Serialize;

use crate::bundle::AuditBundle;
use crate::calibration::{Calibration, CalibrationLevel};
use crate::e_process::{ALARM, CONFIRMATION, EProcess, Restart};
use crate::fixed_point::{ONE, exp2};
use crate::likelihood::{CAP_LOG2, LikelihoodTable};
use crate::margin_cells::{CellCounts, MAX_TOKENS};
use crate::opened_text::{AnswerFinding, RescorablePair};
use crate::own_run::{LinkState, RunPosition};
use crate::replay::own_positions;
use crate::replay_error::ReplayError;

/// The mean evidence by own scores at which a conviction is adopted: as much as an alarm and its confirmation ask for
/// together.
pub const OWN_EVIDENCE: u128 = ALARM * CONFIRMATION;
/// The most answers of one bundle that an adopter scores.
pub const MOST_OWN_SCORES: usize = 16;

/// How much more evidence the statements have to give than is needed, where they can.
const SLACK: u128 = 64;

/// The result of an adopter's test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnJudgement {
    /// The own prompts to which the shown headers commit.
    pub positions: usize,
    /// Those of them with an own score.
    pub scored: usize,
    /// The binary logarithm of the largest mean evidence, in thousandths.
    pub log2: i64,
    /// Whether the evidence has reached [`OWN_EVIDENCE`].
    pub convicts: bool,
    /// The bucket of the newest answer that the conviction rests on: the one with which the evidence has reached
    /// [`OWN_EVIDENCE`]. `None` without a conviction.
    pub newest_answer: Option<u64>,
}

impl std::fmt::Display for OwnJudgement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            positions, scored, ..
        } = self;
        let evidence = self.log2.div_euclid(1_000);
        let needed = OWN_EVIDENCE.ilog2();
        write!(
            f,
            "own scores of {scored} of {positions} own prompts give evidence of 2^{evidence}, 2^{needed} is needed"
        )
    }
}

/// The positions of a bundle that count for the miner, whatever its author states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionTally {
    /// The own prompts to which the shown headers commit.
    pub positions: usize,
    /// Those of them without an answer in the bundle.
    pub unanswered: usize,
    /// Those with an answer that nobody can score again.
    pub closed: usize,
}

impl std::fmt::Display for PositionTally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            positions,
            unanswered,
            closed,
        } = self;
        if closed > unanswered {
            write!(
                f,
                "answers to {closed} of {positions} own prompts cannot be scored again"
            )?;
            return write!(f, ", and {unanswered} have none");
        }
        write!(f, "{unanswered} of {positions} own prompts have no answer")?;
        write!(f, ", and those to {closed} cannot be scored again")
    }
}

/// The result of an adopter whose calibration and whose scores are those of the bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AdoptionForecast {
    /// The own prompts to which the shown headers commit.
    pub positions: usize,
    /// The answers that the adopter scores.
    pub chosen: usize,
    /// Whether it adopts a conviction.
    pub convicts: bool,
}

/// The answers of a bundle as an adopter tests them.
#[derive(Clone, Debug)]
pub struct OwnTest {
    tables: Vec<LikelihoodTable>,
    positions: Vec<TestedPosition>,
}

/// An own prompt of the author.
#[derive(Clone, Debug)]
struct TestedPosition {
    /// Whether the evidence begins anew with it.
    starts_anew: bool,
    /// Whether the bundle shows an answer to it.
    is_answered: bool,
    /// The answer and its bucket, if the bundle shows what a reference needs to score it.
    scorable: Option<(Digest, u64)>,
    /// The likelihoods by the author's score, under each alternative; 0 where nothing can be scored again.
    stated: Vec<u128>,
}

impl OwnTest {
    /// The test of a bundle's own prompts to these miners by the adopter's calibration, at every level under the
    /// widened bound, and the answers that can be scored again. Alternatives are tested for which the premise holds
    /// token by token, too: an author chooses prompts and lengths of answers. Answers of buckets before `oldest` count
    /// for the miner, or an author would renew a conviction by old ones and a new one beside them. `state_of` states
    /// whether a header was seen in time, and whether none stands between it and the one before it.
    ///
    /// # Errors
    /// As those of [`crate::replay`].
    pub fn new(
        bundle: &AuditBundle,
        own: &Calibration,
        oldest: u64,
        miners: &BTreeSet<MinerKey>,
        state_of: &dyn Fn(&Digest) -> LinkState,
    ) -> Result<(Self, BTreeMap<Digest, RescorablePair>), ReplayError> {
        let mut run = own_positions(bundle, miners, state_of)?;
        for position in &mut run {
            position.pair.take_if(|pair| pair.bucket < oldest);
        }
        let test = Self::of_positions(own, &run);
        let pairs = run.into_iter().filter_map(|position| position.pair);
        Ok((test, pairs.map(|pair| (pair.digest, pair)).collect()))
    }

    /// The test of these positions.
    pub(crate) fn of_positions(own: &Calibration, run: &[RunPosition]) -> Self {
        let tables = widened_tables(own);
        let positions = run.iter().map(|position| {
            let pair = position.pair.as_ref();
            TestedPosition {
                starts_anew: position.starts_anew,
                is_answered: position.is_answered,
                scorable: pair.map(|pair| (pair.digest, pair.bucket)),
                stated: likelihoods(pair.map(|pair| &pair.stated), &tables),
            }
        });
        Self {
            positions: positions.collect(),
            tables,
        }
    }

    /// The result of an adopter that finds what the author states.
    pub(crate) fn forecast(&self, run: &[RunPosition]) -> AdoptionForecast {
        let chosen = self.choose();
        let stated = run.iter().filter_map(|position| position.pair.as_ref());
        let found = stated
            .filter(|pair| chosen.contains(&pair.digest))
            .map(|pair| (pair.digest, pair.stated.clone()));
        AdoptionForecast {
            positions: self.positions.len(),
            chosen: chosen.len(),
            convicts: self.judge(&found.collect()).convicts,
        }
    }

    /// The number of alternatives that are tested. Without one no evidence grows.
    pub const fn alternatives(&self) -> usize {
        self.tables.len()
    }

    /// The answers that are scored, in the order of commitment: those with the largest statements of the run that the
    /// author's scores convict by, at most [`MOST_OWN_SCORES`]. None if not even the author's scores convict.
    ///
    /// The run goes on until the statements give 64 times as much as is needed, since two honest references differ.
    pub fn choose(&self) -> Vec<Digest> {
        let run = self.stated_run(SLACK * OWN_EVIDENCE);
        let run = run.or_else(|| self.stated_run(OWN_EVIDENCE)).unwrap_or_default();
        let mut candidates: Vec<(usize, &TestedPosition)> = (run.start..)
            .zip(self.positions.get(run).unwrap_or_default())
            .filter(|(_, position)| position.stated.iter().any(|likelihood| *likelihood > ONE))
            .collect();
        candidates.sort_by_key(|(_, position)| Reverse(position.stated.iter().max().copied()));
        candidates.truncate(MOST_OWN_SCORES);
        candidates.sort_unstable_by_key(|(at, _)| *at);
        let scorable = candidates
            .into_iter()
            .filter_map(|(_, position)| position.scorable);
        scorable.map(|(digest, _)| digest).collect()
    }

    /// The numbers of positions without evidence.
    pub fn tally(&self) -> PositionTally {
        let unanswered = self.positions.iter().filter(|position| !position.is_answered);
        let closed = self
            .positions
            .iter()
            .filter(|position| position.is_answered && position.scorable.is_none());
        PositionTally {
            positions: self.positions.len(),
            unanswered: unanswered.count(),
            closed: closed.count(),
        }
    }

    /// Whether the author's scores give 64 times as much evidence as is needed, so that own scores of an honest
    /// reference, which differ a little, convict as well.
    pub fn states_amply(&self) -> bool {
        self.stated_run(SLACK * OWN_EVIDENCE).is_some()
    }

    /// Tests the answers by own findings. An answer without one counts for the miner.
    pub fn judge(&self, own: &BTreeMap<Digest, AnswerFinding>) -> OwnJudgement {
        let found = |position: &TestedPosition| own.get(&position.scorable?.0);
        let mut evidence = EProcess::new(self.tables.len(), Restart::AtOne);
        let (mut log2, mut convicts, mut newest_answer) = (0, false, None);
        for position in &self.positions {
            if position.starts_anew {
                evidence = EProcess::new(self.tables.len(), Restart::AtOne);
            }
            evidence.observe(&likelihoods(found(position), &self.tables));
            log2 = log2.max(evidence.mean_log2());
            if evidence.mean() >= OWN_EVIDENCE && !convicts {
                convicts = true;
                newest_answer = position.scorable.map(|(_, bucket)| bucket);
            }
        }
        OwnJudgement {
            positions: self.positions.len(),
            scored: self.positions.iter().filter_map(found).count(),
            log2,
            convicts,
            newest_answer,
        }
    }

    /// The run of answers whose stated scores reach this evidence first, from where their evidence begins.
    fn stated_run(&self, threshold: u128) -> Option<Range<usize>> {
        let mut forwards = EProcess::new(self.tables.len(), Restart::AtOne);
        let mut start = 0;
        let last = self.positions.iter().enumerate().position(|(at, position)| {
            if position.starts_anew {
                forwards = EProcess::new(self.tables.len(), Restart::AtOne);
                start = at;
            }
            forwards.observe(&position.stated);
            forwards.mean() >= threshold
        })?;
        // The product of e-values is the same backwards, so the evidence begins where it suffices for the first time.
        let mut backwards = EProcess::new(self.tables.len(), Restart::Never);
        let run = self.positions.get(start..=last).unwrap_or_default();
        let first = run.iter().rposition(|position| {
            backwards.observe(&position.stated);
            backwards.mean() >= threshold
        });
        Some(start + first.unwrap_or_default()..last + 1)
    }
}

/// The tables of the alternatives that an adopter tests; none if its calibration knows too few machines.
fn widened_tables(own: &Calibration) -> Vec<LikelihoodTable> {
    let tested = own.tested_alternatives();
    match own.level(&tested) {
        CalibrationLevel::Zero => Vec::new(),
        CalibrationLevel::One | CalibrationLevel::Two => {
            let holding = tested
                .into_iter()
                .filter(|alternative| own.holds_by_token(alternative));
            own.tables(&own.bound().widened(), holding)
        }
    }
}

/// min(L, e⁸) under each alternative: 0 without a finding, and the most that an answer counts for false ids.
fn likelihoods(finding: Option<&AnswerFinding>, tables: &[LikelihoodTable]) -> Vec<u128> {
    match finding {
        Some(AnswerFinding::Tokens(tokens)) if (1..=MAX_TOKENS).contains(&tokens.len()) => {
            let cells = CellCounts::of(tokens);
            tables.iter().map(|table| table.of_answer(&cells)).collect()
        }
        Some(AnswerFinding::FalseIds) => vec![exp2(CAP_LOG2); tables.len()],
        Some(AnswerFinding::Tokens(_)) | None => vec![0; tables.len()],
    }
}

#[cfg(test)]
mod tests;
