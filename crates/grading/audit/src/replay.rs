//! Replays a bundle: checks every signature, path and draw, and computes the verdict again.

use std::collections::BTreeSet;

use muster_protocol::{Digest, Hotkey, MinerKey};
use muster_response_proof::ResponseProof;
use serde::Serialize;

use crate::answer_draw::BucketDraw;
use crate::bundle::{
    AuditBundle, AuditOutcome, BUNDLE_FORMAT, BUNDLE_FORMAT_1, BUNDLE_FORMAT_2, BUNDLE_FORMAT_3,
    BUNDLE_FORMAT_4, MAX_BUNDLE_BYTES, Origin, SessionEvidence,
};
use crate::bundle_bounds::exceeded_bound;
use crate::calibration::{Calibration, CalibrationLevel, ExceededPremise};
use crate::checked_answer::{CheckedAnswer, NonceState};
use crate::checked_log::{CheckedLog, check_log};
use crate::client_days::ClientDays;
use crate::fixed_point::exp2;
use crate::likelihood::{CAP_LOG2, LikelihoodTable};
use crate::margin_cells::{CellCounts, ENTROPY_BINS, MAX_TOKENS, TokenScore};
use crate::missing_answers::{MissingOutcome, missing_evidence};
use crate::opened_text::check_opened_text;
use crate::own_prompt_key::OwnPromptKey;
use crate::own_run::{LinkState, RunPosition, positions};
use crate::own_scores::{AdoptionForecast, OwnTest};
use crate::replay_error::ReplayError;
use crate::test_evidence::EvidenceCurve;
use crate::verdict::{Publicity, ScoredAnswer, TestOutcome, TestOutcomes, Verdict, WHOLE_QUALITY};
use crate::wilson::RateInterval;

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
    /// The bucket of the newest answer that a conviction rests on; `None` if the answers to own prompts convict nobody.
    #[serde(skip)]
    pub newest_answer: Option<u64>,
    /// Whether validators whose scores are those of the bundle would adopt a conviction; `None` for a bundle without
    /// positions of own prompts, and for one of an earlier format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adoption: Option<AdoptionForecast>,
    /// The result of the test of missing answers; `None` for a bundle of an earlier format, which does not show them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<MissingOutcome>,
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
    /// The keys of own prompts, 64 hex digits each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub own_keys: Vec<String>,
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
    /// Tested answers that a reference scored, or found with false ids.
    pub scored: usize,
    /// Those of them with false ids.
    #[serde(skip_serializing_if = "is_zero")]
    pub false_ids: usize,
    /// Tested answers that nobody scored; they count for the miner.
    pub unscored: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &usize) -> bool {
    *count == 0
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
    replay_with_evidence(text).map(|(replayed, bundle, _)| (replayed, bundle))
}

/// Checks everything in a bundle that a verdict needs: formats and bounds, signatures, places, draws, words, seeds and
/// the numbers of tokens. A bundle that passes has a verdict. The likelihoods, which take longest, are not computed.
///
/// # Errors
/// As those of [`replay`].
pub fn check_evidence(bundle: &AuditBundle) -> Result<(), ReplayError> {
    check_formats(bundle)?;
    for answer in &check_log(bundle)?.answers {
        check_opened_text(answer)?;
        check_seed(&bundle.calibration, answer)?;
        stated_findings(answer)?;
    }
    Ok(())
}

/// The positions of own prompts that a bundle's headers commit to, in their order, for an adopter: see
/// [`crate::own_run::positions`].
///
/// # Errors
/// As those of [`replay`].
pub(crate) fn own_positions(
    bundle: &AuditBundle,
    miners: &BTreeSet<MinerKey>,
    state_of: &dyn Fn(&Digest) -> LinkState,
) -> Result<Vec<RunPosition>, ReplayError> {
    check_formats(bundle)?;
    let log = check_log(bundle)?;
    for answer in &log.answers {
        check_opened_text(answer)?;
        check_seed(&bundle.calibration, answer)?;
    }
    Ok(positions(&log, bundle, miners, state_of))
}

/// Replays the text of a bundle, and returns the bundle and the evidence of each test, too.
///
/// # Errors
/// As those of [`replay`].
pub(crate) fn replay_with_evidence(
    text: &str,
) -> Result<(ReplayedBundle, AuditBundle, Vec<EvidenceCurve>), ReplayError> {
    let bundle = read(text)?;
    let (replayed, evidence) = judge(&bundle, AuditBundle::digest_of(text))?;
    Ok((replayed, bundle, evidence))
}

fn judge(bundle: &AuditBundle, digest: Digest) -> Result<(ReplayedBundle, Vec<EvidenceCurve>), ReplayError> {
    let log = check_log(bundle)?;
    for answer in &log.answers {
        check_opened_text(answer)?;
    }
    let miners = bundle.miners.iter().copied().collect();
    let run = positions(&log, bundle, &miners, &|_| LinkState::Joined);
    let CheckedLog {
        answers,
        deliveries,
        unlogged,
        draws,
        nonce_keys,
        headers: _,
        own_keys,
    } = log;
    let audited: Vec<&CheckedAnswer<'_>> = answers.iter().filter(|answer| answer.is_audited).collect();
    let tested = one_client_bounded(&audited);
    let judged = JudgedAnswers::new(bundle, &tested)?;
    let adoption = (!run.is_empty()).then(|| OwnTest::of_positions(&bundle.calibration, &run).forecast(&run));
    let tests = judged.tests();
    let scored = judged.scored();
    let by_scores = tests.verdict(judged.level, bundle.calibration.statistic, scored);
    let mut evidence = judged.evidence();
    let missing = bundle
        .shows_commitments()
        .then(|| MissingOutcome::of(deliveries.iter().copied()));
    let (verdict, quality) = match &missing {
        Some(missing) if missing.alarm.is_some() => {
            (by_scores.with_missing_answers(), missing.quality_per_mille())
        }
        _ => (by_scores, WHOLE_QUALITY),
    };
    if missing.is_some_and(|missing| missing.answers > 0) {
        evidence.push(missing_evidence(&deliveries));
    }
    let replayed = ReplayedBundle {
        bundle: digest,
        coldkey: bundle.coldkey,
        model: bundle.model.clone(),
        verdict,
        discriminates: tests.discriminates(),
        quality_per_mille: tests.quality_per_mille(by_scores).min(quality),
        level: judged.level,
        alternatives: judged.alternatives.clone(),
        exceeded: bundle.calibration.exceeded_premises(),
        counts: AnswerTally {
            logged: answers.len(),
            unlogged,
            audited: audited.len(),
            beyond_client: audited.len() - tested.len(),
            scored,
            false_ids: judged.false_ids(),
            unscored: tested.len() - scored,
        },
        tests,
        newest_answer: judged.newest_answer(&tested),
        adoption,
        missing,
        off_rates: judged.off_rates(),
        draws: draws.iter().map(BucketDraw::hex).collect(),
        nonces: (!nonce_keys.is_empty()).then(|| NonceTally::of(&tested)),
        nonce_keys: nonce_keys.iter().map(hex::encode).collect(),
        own_keys: own_keys.iter().map(OwnPromptKey::hex).collect(),
    };
    Ok((replayed, evidence))
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
        BUNDLE_FORMAT | BUNDLE_FORMAT_4 => !names_clients_of_missing(bundle),
        BUNDLE_FORMAT_3 => names_clients(bundle),
        BUNDLE_FORMAT_2 => names_clients(bundle) && is_earlier(bundle),
        BUNDLE_FORMAT_1 => {
            names_clients(bundle) && is_earlier(bundle) && !has_words(bundle) && bundle.nonce_keys.is_empty()
        }
        _ => false,
    };
    let fits = bundle.calibration.check_format().is_ok() && has_fitting_unseeded(bundle);
    if !is_known || !fits {
        return Err(ReplayError::Format);
    }
    if let Some(bound) = exceeded_bound(bundle) {
        return Err(ReplayError::Bound(bound));
    }
    match bundle.references.as_slice() {
        [first, second]
            if first.engine == bundle.calibration.reference_engine()
                && (first.machine != second.machine || first.engine != second.engine) =>
        {
            Ok(())
        }
        _ => Err(ReplayError::References),
    }
}

/// Whether the calibration of answers without seeds is of the same engine and reference, and is there if such answers
/// are.
fn has_fitting_unseeded(bundle: &AuditBundle) -> bool {
    let Some(unseeded) = &bundle.unseeded else {
        let mut answers = bundle.sessions.iter().flat_map(|session| &session.answers);
        return !answers.any(|answer| matches!(answer.outcome, Some(AuditOutcome::Unseeded(_))));
    };
    unseeded.check_format().is_ok() && unseeded.is_unseeded_of(&bundle.calibration)
}

fn has_words(bundle: &AuditBundle) -> bool {
    let mut answers = bundle.sessions.iter().flat_map(|session| &session.answers);
    answers.any(|answer| answer.words.is_some())
}

fn has_false_ids(bundle: &AuditBundle) -> bool {
    let mut answers = bundle.sessions.iter().flat_map(|session| &session.answers);
    answers.any(|answer| matches!(answer.outcome, Some(AuditOutcome::FalseIds(_))))
}

fn opens_responses(bundle: &AuditBundle) -> bool {
    let answers = bundle.sessions.iter().flat_map(|session| &session.answers);
    let mut words = answers.filter_map(|answer| answer.words.as_ref());
    words.any(|words| words.response.is_some())
}

/// Whether a bundle shows what the test of missing answers alone reads.
fn shows_missing(bundle: &AuditBundle) -> bool {
    let is_shown = |session: &SessionEvidence| {
        !session.unproven.is_empty() || session.answers.iter().any(|answer| answer.cut)
    };
    bundle.sessions.iter().any(is_shown)
}

/// Whether a missing answer names its client, as it did before the validator counted.
fn names_clients_of_missing(bundle: &AuditBundle) -> bool {
    let mut missing = bundle.sessions.iter().flat_map(|session| &session.unproven);
    missing.any(|one| one.client.is_some())
}

/// Whether all leaves and missing answers name clients, as those of earlier formats do.
fn names_clients(bundle: &AuditBundle) -> bool {
    let is_named = |session: &SessionEvidence| {
        session.unproven.iter().all(|one| one.client.is_some())
            && session
                .answers
                .iter()
                .all(|answer| answer.client.is_none() && !answer.beyond)
    };
    bundle.sessions.iter().all(is_named)
}

/// The first users' answers of each client and day. Own prompts are not bounded, because they convict: each is asked
/// once, under a pseudonym of its own.
fn one_client_bounded<'a, 'b>(audited: &[&'a CheckedAnswer<'b>]) -> Vec<&'a CheckedAnswer<'b>> {
    let mut days = ClientDays::default();
    let within = |answer: &&&CheckedAnswer<'_>| {
        answer.publicity == Publicity::Public || days.admit(answer.stratum, answer.evidence.bucket)
    };
    audited.iter().filter(within).copied().collect()
}

/// An answer under the bound of honest machines and under the bound that convicts.
struct JudgedAnswer {
    publicity: Publicity,
    /// Whether nobody knows its seed: then it stands in a test of its own.
    is_unseeded: bool,
    plain: ScoredAnswer,
    convicting: ScoredAnswer,
    first: Option<ReferenceFinding>,
    has_false_ids: bool,
}

/// The finding of one reference about an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReferenceFinding {
    /// It scored the tokens.
    Cells(CellCounts),
    /// The session signed false ids.
    FalseIds,
}

impl ReferenceFinding {
    /// min(L, e⁸) of the answer for each alternative. False ids count as much as an answer can count: no honest engine
    /// states them, and every alternative may.
    fn likelihoods(&self, tables: &[LikelihoodTable]) -> Vec<u128> {
        match self {
            Self::Cells(cells) => tables.iter().map(|table| table.of_answer(cells)).collect(),
            Self::FalseIds => vec![exp2(CAP_LOG2); tables.len()],
        }
    }

    const fn cells(&self) -> Option<&CellCounts> {
        match self {
            Self::Cells(cells) => Some(cells),
            Self::FalseIds => None,
        }
    }
}

struct JudgedAnswers {
    level: CalibrationLevel,
    alternatives: Vec<String>,
    /// The number of alternatives that answers without seeds are tested against; `None` without a calibration of them.
    unseeded_alternatives: Option<usize>,
    answers: Vec<JudgedAnswer>,
}

/// The tables by which answers without seeds are judged; none if their calibration is of level 0.
fn unseeded_tables(calibration: &Calibration) -> Vec<LikelihoodTable> {
    let alternatives = calibration.tested_alternatives();
    match calibration.level(&alternatives) {
        CalibrationLevel::Zero => Vec::new(),
        CalibrationLevel::One | CalibrationLevel::Two => {
            calibration.tables(&calibration.bound(), alternatives)
        }
    }
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
        let unseeded = bundle.unseeded.as_ref().map(unseeded_tables);
        let judge = |answer: &&CheckedAnswer<'_>| {
            check_seed(calibration, answer)?;
            let [first, second] = findings(answer)?;
            let is_unseeded = matches!(answer.evidence.outcome, Some(AuditOutcome::Unseeded(_)));
            let (plain, convicting) = match (&unseeded, is_unseeded) {
                (Some(tables), true) => (tables, tables),
                (_, _) => (&plain, &convicting),
            };
            let by = |tables: &[LikelihoodTable]| ScoredAnswer {
                first: first.map(|finding| finding.likelihoods(tables)),
                second: second.map(|finding| finding.likelihoods(tables)),
            };
            Ok(JudgedAnswer {
                publicity: answer.publicity,
                is_unseeded,
                plain: by(plain),
                convicting: by(convicting),
                has_false_ids: [first, second].contains(&Some(ReferenceFinding::FalseIds)),
                first,
            })
        };
        Ok(Self {
            level,
            alternatives: alternatives
                .iter()
                .map(|alternative| alternative.name.clone())
                .collect(),
            unseeded_alternatives: unseeded.as_ref().map(Vec::len),
            answers: tested.iter().map(judge).collect::<Result<_, ReplayError>>()?,
        })
    }

    fn tests(&self) -> TestOutcomes {
        let convicting = |publicity| -> TestOutcome {
            let of_kind = self.seeded().filter(|answer| answer.publicity == publicity);
            let answers: Vec<&ScoredAnswer> = of_kind.map(|answer| &answer.convicting).collect();
            TestOutcome::of(&answers, self.alternatives.len())
        };
        let all: Vec<&ScoredAnswer> = self.seeded().map(|answer| &answer.plain).collect();
        TestOutcomes {
            all: TestOutcome::of(&all, self.alternatives.len()),
            public: convicting(Publicity::Public),
            private: convicting(Publicity::Private),
            unseeded: self
                .unseeded_alternatives
                .map(|alternatives| TestOutcome::of(&self.unseeded(), alternatives)),
        }
    }

    /// The answers whose seeds are known.
    fn seeded(&self) -> impl Iterator<Item = &JudgedAnswer> {
        self.answers.iter().filter(|answer| !answer.is_unseeded)
    }

    fn unseeded(&self) -> Vec<&ScoredAnswer> {
        let unseeded = self.answers.iter().filter(|answer| answer.is_unseeded);
        unseeded.map(|answer| &answer.plain).collect()
    }

    /// The evidence of each test by the first reference. A test without answers has no curve.
    fn evidence(&self) -> Vec<EvidenceCurve> {
        let of_kind = |publicity: Publicity| {
            let answers = self.seeded().filter(move |answer| answer.publicity == publicity);
            answers.map(|answer| &answer.convicting).collect::<Vec<_>>()
        };
        let all: Vec<&ScoredAnswer> = self.seeded().map(|answer| &answer.plain).collect();
        let alternatives = self.alternatives.len();
        let tests = [
            ("all", all, alternatives),
            ("public", of_kind(Publicity::Public), alternatives),
            ("private", of_kind(Publicity::Private), alternatives),
            (
                "unseeded",
                self.unseeded(),
                self.unseeded_alternatives.unwrap_or_default(),
            ),
        ];
        tests
            .into_iter()
            .filter(|(_, answers, _)| !answers.is_empty())
            .map(|(test, answers, alternatives)| EvidenceCurve::of(test, &answers, alternatives))
            .collect()
    }

    /// The bucket of the newest answer that the conviction on own prompts rests on: see
    /// [`TestOutcome::newest_confirmed`].
    fn newest_answer(&self, tested: &[&CheckedAnswer<'_>]) -> Option<u64> {
        let is_own = |judged: &JudgedAnswer| judged.publicity == Publicity::Public && !judged.is_unseeded;
        let (buckets, own): (Vec<u64>, Vec<&ScoredAnswer>) = tested
            .iter()
            .zip(&self.answers)
            .filter(|(_, judged)| is_own(judged))
            .map(|(answer, judged)| (answer.evidence.bucket, &judged.convicting))
            .unzip();
        let newest = TestOutcome::newest_confirmed(&own, self.alternatives.len())?;
        buckets.get(newest.checked_sub(1)?).copied()
    }

    fn scored(&self) -> usize {
        let is_scored =
            |answer: &&JudgedAnswer| answer.plain.first.is_some() || answer.plain.second.is_some();
        self.answers.iter().filter(is_scored).count()
    }

    /// The answers of which a reference found false ids.
    fn false_ids(&self) -> usize {
        let answers = self.answers.iter();
        answers.filter(|answer| answer.has_false_ids).count()
    }

    fn off_rates(&self) -> Vec<RateInterval> {
        let cells = self.seeded().filter_map(|answer| answer.first.as_ref()?.cells());
        let all = CellCounts::sum(cells);
        let rate = |entropy| RateInterval::of(all.at_least(entropy, 1).into(), all.tokens(entropy).into());
        (0..ENTROPY_BINS).map(rate).collect()
    }
}

/// Whether a bundle shows nothing that formats before this one do not have.
fn is_earlier(bundle: &AuditBundle) -> bool {
    bundle.commitments.is_empty()
        && bundle.calibration.reference.is_none()
        && bundle.unseeded.is_none()
        && !has_false_ids(bundle)
        && !opens_responses(bundle)
        && !shows_missing(bundle)
}

/// Checks that an own prompt with margins under another engine's sampler names a seed that this engine takes: without
/// one nobody knows how the engine drew. Since the fifth format the seed is that of the prompt's position: its
/// validator could look for another one before it commits to the list.
fn check_seed(calibration: &Calibration, answer: &CheckedAnswer<'_>) -> Result<(), ReplayError> {
    let Origin::Canary(opened) = &answer.evidence.origin else {
        return Ok(());
    };
    let Some(sampler) = &calibration.sampler else {
        return Ok(());
    };
    let has_margins = matches!(answer.evidence.outcome, Some(AuditOutcome::Scored(_)));
    let seed = || {
        let request = answer.request.as_ref()?;
        let is_fixed = answer.position.is_none() || !opened.has_request(request);
        let asked = serde_json::from_slice(request).ok().filter(|_| is_fixed)?;
        sampler.engine.seed_in(&asked)
    };
    if !has_margins || seed().is_some() {
        return Ok(());
    }
    Err(ReplayError::Seed {
        session: answer.proof.session,
        sequence: answer.proof.sequence,
    })
}

/// The findings about an answer by the first and by the second reference.
fn findings(answer: &CheckedAnswer<'_>) -> Result<[Option<ReferenceFinding>; 2], ReplayError> {
    let stated = stated_findings(answer)?;
    match answer.nonce {
        NonceState::Derived | NonceState::Unchecked => Ok(stated),
        // The validator may have searched for a seed on which honest rounding shows.
        NonceState::Foreign => Ok([None, None]),
    }
}

fn stated_findings(answer: &CheckedAnswer<'_>) -> Result<[Option<ReferenceFinding>; 2], ReplayError> {
    match &answer.evidence.outcome {
        None => Ok([None, None]),
        // All reasons count alike: an answer that nobody scored counts for the miner.
        Some(AuditOutcome::Unusable(_)) => Ok([None, None]),
        Some(AuditOutcome::Scored(by_reference) | AuditOutcome::Unseeded(by_reference)) => {
            by_both(by_reference, |tokens| {
                Ok(ReferenceFinding::Cells(count(&answer.proof, tokens)?))
            })
        }
        // Without a statement about ids nothing can be false.
        Some(AuditOutcome::FalseIds(_)) if answer.proof.tokens.is_none() => Err(ReplayError::FalseIds {
            session: answer.proof.session,
            sequence: answer.proof.sequence,
        }),
        Some(AuditOutcome::FalseIds(by_reference)) => {
            by_both(by_reference, |_| Ok(ReferenceFinding::FalseIds))
        }
    }
}

/// The findings of at most two references.
fn by_both<T>(
    by_reference: &[Option<T>],
    finding: impl Fn(&T) -> Result<ReferenceFinding, ReplayError>,
) -> Result<[Option<ReferenceFinding>; 2], ReplayError> {
    let mut found = [None, None];
    if by_reference.len() > found.len() {
        return Err(ReplayError::References);
    }
    for (found, stated) in found.iter_mut().zip(by_reference) {
        *found = stated.as_ref().map(&finding).transpose()?;
    }
    Ok(found)
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
