//! Replays a bundle: checks every signature, path and draw, and computes the verdict again.

use std::collections::BTreeMap;

use muster_protocol::{Digest, Hotkey};
use muster_response_proof::{DAY_BUCKETS, ResponseProof};
use serde::Serialize;

use crate::bundle::{AuditBundle, AuditOutcome, BUNDLE_FORMAT, BUNDLE_FORMAT_1, MAX_BUNDLE_BYTES, Origin};
use crate::calibration::{CALIBRATION_FORMAT, Calibration, CalibrationLevel, ExceededPremise};
use crate::checked_log::{CheckedAnswer, CheckedLog, NonceState, check_log};
use crate::draw::BucketDraw;
use crate::fixed_point::ONE;
use crate::likelihood::LikelihoodTable;
use crate::margin_cells::{CellCounts, ENTROPY_BINS, MAX_TOKENS, TokenScore};
use crate::opened_words::{RescorablePair, check_words};
use crate::replay_error::ReplayError;
use crate::verdict::{Publicity, ScoredAnswer, TestOutcome, TestOutcomes, Verdict};
use crate::wealth::WealthCurve;
use crate::wilson::RateInterval;

/// The most answers of one client and day that are tested: a cheat that is spread over many clients is found all the
/// same, and one client cannot fill the test.
const CLIENT_DAY_ANSWERS: u32 = 4;

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayedBundle {
    /// The digest of the bundle's text.
    pub bundle: Digest,
    /// The coldkey that is judged.
    pub coldkey: Hotkey,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The verdict about the coldkey's answers from the model.
    pub verdict: Verdict,
    /// Whether users are served worse than the validator's own prompts.
    pub discriminates: bool,
    /// The factor of quality in scores, in thousandths.
    pub quality_per_mille: u16,
    /// How far verdicts by the calibration may go.
    pub level: CalibrationLevel,
    /// The alternatives that were tested.
    pub alternatives: Vec<String>,
    /// The machines that exceeded the premise when they were left out.
    pub exceeded: Vec<ExceededPremise>,
    /// The numbers of answers.
    pub counts: AnswerTally,
    /// The results of the tests.
    pub tests: TestOutcomes,
    /// The tokens that were off by the first reference, for each bin of entropy.
    pub off_rates: Vec<RateInterval>,
    /// The draws from the buckets, 64 hex digits each.
    pub draws: Vec<String>,
    /// The nonces of the tested answers; `None` if the bundle shows no key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonces: Option<NonceTally>,
    /// The keys of nonces, 64 hex digits each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nonce_keys: Vec<String>,
}

/// The numbers of tested answers by their nonces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NonceTally {
    /// A revealed key gives the nonce.
    pub derived: usize,
    /// No key of the answer's time gives the nonce. The answer's scores do not count.
    pub foreign: usize,
    /// The bundle does not show all keys of the answer's time.
    pub unchecked: usize,
}

impl NonceTally {
    fn of(tested: &[&CheckedAnswer<'_>]) -> Self {
        let mut tally = Self::default();
        for answer in tested {
            match answer.nonce {
                NonceState::Derived => tally.derived += 1,
                NonceState::Foreign => tally.foreign += 1,
                NonceState::Unchecked => tally.unchecked += 1,
            }
        }
        tally
    }
}

/// The numbers of answers in a bundle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AnswerTally {
    /// Proven answers in the log.
    pub logged: usize,
    /// Answers to clients whose proofs are not in the log: their clients went away, or they were not proven.
    pub unlogged: usize,
    /// Answers that were drawn, or came from the committed list.
    pub audited: usize,
    /// Audited answers beyond the bound for one client and day, which are not tested.
    pub beyond_client: usize,
    /// Tested answers that a reference scored.
    pub scored: usize,
    /// Tested answers that nobody scored; they count for the miner.
    pub unscored: usize,
}

/// Replays the text of a bundle.
///
/// # Errors
/// The text is no bundle, or something in it does not follow from what was signed. A verdict needs a whole bundle.
pub fn replay(text: &str) -> Result<ReplayedBundle, ReplayError> {
    replay_with_bundle(text).map(|(replayed, _)| replayed)
}

/// Replays the text of a bundle, and returns the bundle too.
///
/// # Errors
/// As those of [`replay`].
pub fn replay_with_bundle(text: &str) -> Result<(ReplayedBundle, AuditBundle), ReplayError> {
    replay_with_wealth(text).map(|(replayed, bundle, _)| (replayed, bundle))
}

/// Judges a bundle that was read before by another calibration than its own: a validator follows no verdict that its
/// own calibration does not give.
///
/// # Errors
/// As those of [`replay`], and if the calibration is of another engine or model.
pub fn judge_by(bundle: &AuditBundle, calibration: &Calibration) -> Result<ReplayedBundle, ReplayError> {
    let text = bundle.to_text();
    let other = AuditBundle {
        calibration: calibration.clone(),
        ..bundle.clone()
    };
    check_formats(&other)?;
    judge(&other, AuditBundle::digest_of(&text)).map(|(replayed, _)| replayed)
}

/// The answers of a bundle that are tested, were scored by the first reference, and can be scored again from their
/// opened words, in the order of the log.
///
/// # Errors
/// As those of [`replay`].
pub fn rescorable_pairs(bundle: &AuditBundle) -> Result<Vec<RescorablePair>, ReplayError> {
    check_formats(bundle)?;
    let log = check_log(bundle)?;
    for answer in &log.answers {
        check_words(answer)?;
    }
    let audited: Vec<&CheckedAnswer<'_>> = log.answers.iter().filter(|answer| answer.is_audited).collect();
    let tested = one_client_bounded(&audited);
    let judged = JudgedAnswers::new(bundle, &tested)?;
    let pairs = tested.iter().zip(&judged.answers).filter_map(|(answer, judged)| {
        let likelihoods = judged.convicting.first.as_ref()?;
        let speaks_against = likelihoods.iter().any(|likelihood| *likelihood > ONE);
        RescorablePair::of(answer, speaks_against)
    });
    Ok(pairs.collect())
}

/// Replays the text of a bundle, and returns the bundle and the wealth of each test, too.
///
/// # Errors
/// As those of [`replay`].
pub(crate) fn replay_with_wealth(
    text: &str,
) -> Result<(ReplayedBundle, AuditBundle, Vec<WealthCurve>), ReplayError> {
    let bundle = read(text)?;
    let (replayed, wealth) = judge(&bundle, AuditBundle::digest_of(text))?;
    Ok((replayed, bundle, wealth))
}

fn judge(bundle: &AuditBundle, digest: Digest) -> Result<(ReplayedBundle, Vec<WealthCurve>), ReplayError> {
    let CheckedLog {
        answers,
        unlogged,
        draws,
        nonce_keys,
    } = check_log(bundle)?;
    for answer in &answers {
        check_words(answer)?;
    }
    let audited: Vec<&CheckedAnswer<'_>> = answers.iter().filter(|answer| answer.is_audited).collect();
    let tested = one_client_bounded(&audited);
    let judged = JudgedAnswers::new(bundle, &tested)?;
    let tests = judged.tests();
    let scored = judged.scored();
    let verdict = tests.verdict(judged.level, bundle.calibration.statistic, scored);
    let wealth = judged.wealth();
    let replayed = ReplayedBundle {
        bundle: digest,
        coldkey: bundle.coldkey,
        model: bundle.model.clone(),
        verdict,
        discriminates: tests.discriminates(),
        quality_per_mille: tests.quality_per_mille(verdict),
        level: judged.level,
        alternatives: judged.alternatives.clone(),
        exceeded: bundle.calibration.exceeded_premises(),
        counts: AnswerTally {
            logged: answers.len(),
            unlogged,
            audited: audited.len(),
            beyond_client: audited.len() - tested.len(),
            scored,
            unscored: tested.len() - scored,
        },
        tests,
        off_rates: judged.off_rates(),
        draws: draws.iter().map(BucketDraw::hex).collect(),
        nonces: (!nonce_keys.is_empty()).then(|| NonceTally::of(&tested)),
        nonce_keys: nonce_keys.iter().map(hex::encode).collect(),
    };
    Ok((replayed, wealth))
}

fn read(text: &str) -> Result<AuditBundle, ReplayError> {
    if text.len() > MAX_BUNDLE_BYTES {
        return Err(ReplayError::TooLong);
    }
    let bundle: AuditBundle = serde_json::from_str(text)?;
    check_formats(&bundle)?;
    Ok(bundle)
}

fn check_formats(bundle: &AuditBundle) -> Result<(), ReplayError> {
    let is_known = match bundle.format.as_str() {
        BUNDLE_FORMAT => true,
        BUNDLE_FORMAT_1 => !has_words(bundle) && bundle.nonce_keys.is_empty(),
        _ => false,
    };
    if !is_known || bundle.calibration.format != CALIBRATION_FORMAT {
        return Err(ReplayError::Format);
    }
    match bundle.references.as_slice() {
        [first, second]
            if first.engine == bundle.calibration.engine
                && (first.machine != second.machine || first.engine != second.engine) =>
        {
            Ok(())
        }
        _ => Err(ReplayError::References),
    }
}

fn has_words(bundle: &AuditBundle) -> bool {
    let mut answers = bundle.sessions.iter().flat_map(|session| &session.answers);
    answers.any(|answer| answer.words.is_some())
}

/// The first answers of each client and day.
fn one_client_bounded<'a, 'b>(audited: &[&'a CheckedAnswer<'b>]) -> Vec<&'a CheckedAnswer<'b>> {
    let mut seen: BTreeMap<(Digest, u64), u32> = BTreeMap::new();
    let within = |answer: &&&CheckedAnswer<'_>| {
        let count = seen
            .entry((answer.stratum, answer.evidence.bucket / DAY_BUCKETS))
            .or_default();
        *count += 1;
        *count <= CLIENT_DAY_ANSWERS
    };
    audited.iter().filter(within).copied().collect()
}

/// An answer under the bound of honest machines and under the bound that convicts.
struct JudgedAnswer {
    publicity: Publicity,
    plain: ScoredAnswer,
    convicting: ScoredAnswer,
    cells: Option<CellCounts>,
}

struct JudgedAnswers {
    level: CalibrationLevel,
    alternatives: Vec<String>,
    answers: Vec<JudgedAnswer>,
}

impl JudgedAnswers {
    fn new(bundle: &AuditBundle, tested: &[&CheckedAnswer<'_>]) -> Result<Self, ReplayError> {
        let calibration = &bundle.calibration;
        let alternatives = calibration.tested_alternatives();
        let level = calibration.level(&alternatives);
        let bound = calibration.bound();
        let convicting = match level {
            CalibrationLevel::Zero | CalibrationLevel::One => bound.widened(),
            CalibrationLevel::Two => bound,
        };
        let plain = calibration.tables(&bound, alternatives.iter().copied());
        let convicting = calibration.tables(&convicting, alternatives.iter().copied());
        let judge = |answer: &&CheckedAnswer<'_>| {
            let [first, second] = scores(answer)?;
            let by = |tables: &[LikelihoodTable]| ScoredAnswer {
                first: first.map(|cells| likelihoods(tables, &cells)),
                second: second.map(|cells| likelihoods(tables, &cells)),
            };
            Ok(JudgedAnswer {
                publicity: publicity(&answer.evidence.origin),
                plain: by(&plain),
                convicting: by(&convicting),
                cells: first,
            })
        };
        Ok(Self {
            level,
            alternatives: alternatives
                .iter()
                .map(|alternative| alternative.name.clone())
                .collect(),
            answers: tested.iter().map(judge).collect::<Result<_, ReplayError>>()?,
        })
    }

    fn tests(&self) -> TestOutcomes {
        let convicting = |publicity| -> TestOutcome {
            let of_kind = self.answers.iter().filter(|answer| answer.publicity == publicity);
            let answers: Vec<&ScoredAnswer> = of_kind.map(|answer| &answer.convicting).collect();
            TestOutcome::of(&answers, self.alternatives.len())
        };
        let all: Vec<&ScoredAnswer> = self.answers.iter().map(|answer| &answer.plain).collect();
        TestOutcomes {
            all: TestOutcome::of(&all, self.alternatives.len()),
            public: convicting(Publicity::Public),
            private: convicting(Publicity::Private),
        }
    }

    /// The wealth of each test by the first reference. A test without answers has no curve.
    fn wealth(&self) -> Vec<WealthCurve> {
        let of_kind = |publicity: Publicity| {
            let answers = self
                .answers
                .iter()
                .filter(move |answer| answer.publicity == publicity);
            answers.map(|answer| &answer.convicting).collect::<Vec<_>>()
        };
        let all: Vec<&ScoredAnswer> = self.answers.iter().map(|answer| &answer.plain).collect();
        let tests = [
            ("all", all),
            ("public", of_kind(Publicity::Public)),
            ("private", of_kind(Publicity::Private)),
        ];
        let alternatives = self.alternatives.len();
        tests
            .into_iter()
            .filter(|(_, answers)| !answers.is_empty())
            .map(|(test, answers)| WealthCurve::of(test, &answers, alternatives))
            .collect()
    }

    fn scored(&self) -> usize {
        let is_scored =
            |answer: &&JudgedAnswer| answer.plain.first.is_some() || answer.plain.second.is_some();
        self.answers.iter().filter(is_scored).count()
    }

    fn off_rates(&self) -> Vec<RateInterval> {
        let all = CellCounts::sum(self.answers.iter().filter_map(|answer| answer.cells.as_ref()));
        let rate = |entropy| RateInterval::of(all.at_least(entropy, 1).into(), all.tokens(entropy).into());
        (0..ENTROPY_BINS).map(rate).collect()
    }
}

fn likelihoods(tables: &[LikelihoodTable], cells: &CellCounts) -> Vec<u128> {
    tables.iter().map(|table| table.of_answer(cells)).collect()
}

const fn publicity(origin: &Origin) -> Publicity {
    match origin {
        Origin::User => Publicity::Private,
        Origin::Consenting | Origin::Canary(_) => Publicity::Public,
    }
}

/// The counts of an answer by the first and by the second reference.
fn scores(answer: &CheckedAnswer<'_>) -> Result<[Option<CellCounts>; 2], ReplayError> {
    let cells = stated_scores(answer)?;
    match answer.nonce {
        NonceState::Derived | NonceState::Unchecked => Ok(cells),
        // The validator may have searched for a seed on which honest rounding shows.
        NonceState::Foreign => Ok([None, None]),
    }
}

fn stated_scores(answer: &CheckedAnswer<'_>) -> Result<[Option<CellCounts>; 2], ReplayError> {
    match &answer.evidence.outcome {
        None => Ok([None, None]),
        // All reasons count alike: an answer that nobody scored counts for the miner.
        Some(AuditOutcome::Unusable(_)) => Ok([None, None]),
        Some(AuditOutcome::Scored(by_reference)) => {
            let mut cells = [None, None];
            if by_reference.len() > cells.len() {
                return Err(ReplayError::References);
            }
            for (cells, tokens) in cells.iter_mut().zip(by_reference) {
                if let Some(tokens) = tokens {
                    *cells = Some(count(&answer.proof, tokens)?);
                }
            }
            Ok(cells)
        }
    }
}

/// Counts the tokens, which have to be as many as the session's proof states.
fn count(proof: &ResponseProof, tokens: &[TokenScore]) -> Result<CellCounts, ReplayError> {
    // Without ids in the proof the answer was tokenized again, which the proof cannot confirm.
    let stated = proof.tokens.map(|facts| facts.output_count);
    let fits = stated.is_none_or(|stated| usize::try_from(stated).is_ok_and(|stated| stated == tokens.len()));
    if tokens.is_empty() || tokens.len() > MAX_TOKENS || !fits {
        return Err(ReplayError::TokenCount {
            session: proof.session,
            sequence: proof.sequence,
        });
    }
    Ok(CellCounts::of(tokens))
}
