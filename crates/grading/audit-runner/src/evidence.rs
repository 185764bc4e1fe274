//! Assembles the bundle about one coldkey and one model from what was logged, drawn and scored. Pure.

use std::collections::{BTreeMap, BTreeSet};

use muster_audit::{
    AnswerEvidence, AuditBundle, AuditOutcome, BUNDLE_FORMAT, BucketEvidence, Calibration, NoncePeriod,
    OpenedCanary, OpenedWords, Origin, ReferenceMachine, RevealedNonceKey, SessionEvidence, TokenScore,
    UnusableReason,
};
use muster_gateway::store::{LoggedAnswer, StoredBucket, WordConsent};
use muster_identity::ProvenOutput;
use muster_protocol::{Digest, Hotkey, MinerKey, ValidatorKey};
use muster_response_proof::inclusion_path;
use serde::{Deserialize, Serialize};

use crate::shares::{StoredShare, open_shares};

/// The result of one answer's audit by one reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReferenceOutcome {
    /// The tokens as the reference scored them.
    Scored(Vec<TokenScore>),
    /// The reason why it did not.
    Unusable(UnusableReason),
}

/// The results of an answer by both references.
pub(crate) type BothOutcomes = [Option<ReferenceOutcome>; 2];

/// A bucket from which was drawn, with all that a bundle shows of it.
#[derive(Clone, Debug)]
pub(crate) struct DrawnBucket {
    pub(crate) stored: StoredBucket,
    pub(crate) shares: Vec<StoredShare>,
    pub(crate) block_hash: Digest,
    pub(crate) draw: ProvenOutput,
    /// The hashes of its leaves, in their order.
    pub(crate) leaves: Vec<Digest>,
}

/// The facts that are the same for all bundles of a validator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AuditorFacts {
    pub(crate) genesis: Digest,
    pub(crate) netuid: u16,
    pub(crate) validator: ValidatorKey,
}

/// Everything that one bundle follows from.
#[derive(Debug)]
pub(crate) struct EvidenceInputs {
    pub(crate) auditor: AuditorFacts,
    pub(crate) coldkey: Hotkey,
    pub(crate) model: String,
    pub(crate) calibration: Calibration,
    pub(crate) references: Vec<ReferenceMachine>,
    pub(crate) sessions: Vec<WholeSession>,
    pub(crate) buckets: BTreeMap<u64, DrawnBucket>,
    /// The opened places of own prompts, by the ids of their answers.
    pub(crate) canaries: BTreeMap<String, OpenedCanary>,
    /// The keys of nonces that are public, by rising period.
    pub(crate) nonce_keys: Vec<RevealedNonceKey>,
    /// The results by the ids of answers.
    pub(crate) outcomes: BTreeMap<String, BothOutcomes>,
    /// The words of audited answers that may be published, by the ids of the answers.
    pub(crate) words: BTreeMap<String, OpenedWords>,
}

/// A session as a bundle shows it: all of its proofs from the first one on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WholeSession {
    /// Its answers in the log.
    pub(crate) answers: Vec<LoggedAnswer>,
    /// Its other proofs, in text form and in the order of their numbers.
    pub(crate) others: Vec<String>,
}

/// The part of a session that can be shown: from number 0 up to the last proof before a gap, or before an answer that
/// stands in no drawn bucket. Both lists have to be in the order of numbers; `None` if no answer is left.
pub(crate) fn whole_session(
    answers: Vec<LoggedAnswer>,
    others: Vec<(u64, String)>,
    is_drawn: impl Fn(&LoggedAnswer) -> bool,
) -> Option<WholeSession> {
    let mut whole = WholeSession {
        answers: Vec::new(),
        others: Vec::new(),
    };
    let (mut answers, mut others) = (answers.into_iter().peekable(), others.into_iter().peekable());
    for number in 0_u64.. {
        if let Some(answer) = answers.next_if(|answer| answer.sequence == number && is_drawn(answer)) {
            whole.answers.push(answer);
        } else if let Some((_, proof)) = others.next_if(|(sequence, _)| *sequence == number) {
            whole.others.push(proof);
        } else {
            break;
        }
    }
    (!whole.answers.is_empty()).then_some(whole)
}

/// The periods whose keys give the nonces of the audited answers: an answer began in the period of its bucket or in the
/// one before.
pub(crate) fn nonce_periods<'a>(audited: impl Iterator<Item = &'a LoggedAnswer>) -> BTreeSet<NoncePeriod> {
    audited
        .map(|answer| NoncePeriod::of_bucket(answer.bucket))
        .flat_map(|ended| [Some(ended), ended.previous()])
        .flatten()
        .collect()
}

/// The bundle; `None` if what is stored does not fit together.
pub(crate) fn assemble(inputs: &EvidenceInputs) -> Option<AuditBundle> {
    let answers = || inputs.sessions.iter().flat_map(|session| &session.answers);
    let miners: BTreeSet<MinerKey> = answers().map(|answer| answer.miner).collect();
    let numbers: BTreeSet<u64> = answers().map(|answer| answer.bucket.0).collect();
    let buckets: Option<Vec<BucketEvidence>> = numbers
        .iter()
        .map(|number| {
            let bucket = inputs.buckets.get(number)?;
            Some(BucketEvidence {
                header: bucket.stored.header.clone(),
                block_hash: bucket.block_hash,
                draw: bucket.draw,
                shares: open_shares(&bucket.shares, &miners, &inputs.model)?,
            })
        })
        .collect();
    let sessions: Option<Vec<SessionEvidence>> = inputs
        .sessions
        .iter()
        .map(|session| {
            Some(SessionEvidence {
                attestation: session.answers.first()?.attestation.clone(),
                answers: session
                    .answers
                    .iter()
                    .map(|answer| evidence_of(inputs, answer))
                    .collect::<Option<_>>()?,
                others: session.others.clone(),
            })
        })
        .collect();
    Some(AuditBundle {
        format: BUNDLE_FORMAT.to_owned(),
        genesis: inputs.auditor.genesis,
        netuid: inputs.auditor.netuid,
        validator: inputs.auditor.validator,
        coldkey: inputs.coldkey,
        miners: miners.into_iter().collect(),
        model: inputs.model.clone(),
        calibration: inputs.calibration.clone(),
        references: inputs.references.clone(),
        buckets: buckets?,
        sessions: sessions?,
        nonce_keys: inputs.nonce_keys.clone(),
    })
}

fn evidence_of(inputs: &EvidenceInputs, answer: &LoggedAnswer) -> Option<AnswerEvidence> {
    let leaves = &inputs.buckets.get(&answer.bucket.0)?.leaves;
    let canary = inputs.canaries.get(&answer.id);
    let origin = match (canary, answer.consent) {
        (Some(opened), _) => Origin::Canary(opened.clone()),
        (None, WordConsent::Publish) => Origin::Consenting,
        (None, WordConsent::Private | WordConsent::Declined) => Origin::User,
    };
    let is_audited = answer.is_drawn || canary.is_some();
    let words = inputs.words.get(&answer.id).filter(|_| is_audited);
    Some(AnswerEvidence {
        words: words.and_then(|words| open_words(&origin, words)),
        proof: answer.proof.clone(),
        output_tokens: answer.output_tokens,
        earned: answer.earned,
        bucket: answer.bucket.0,
        position: answer.position,
        path: inclusion_path(leaves, usize::try_from(answer.position).ok()?)?,
        origin,
        outcome: is_audited.then(|| outcome_of(inputs.outcomes.get(&answer.id))),
    })
}

/// The words that a bundle opens of an answer of this origin: the request of an own prompt is opened with its place,
/// that of a consenting client is not opened otherwise, and a user's words are nobody's.
fn open_words(origin: &Origin, words: &OpenedWords) -> Option<OpenedWords> {
    match origin {
        Origin::User => None,
        Origin::Consenting => words.request.is_some().then(|| words.clone()),
        Origin::Canary(_) => Some(OpenedWords {
            request: None,
            ..words.clone()
        }),
    }
}

/// The outcome that a bundle states: the scores of both references where one scored, otherwise the first's reason.
fn outcome_of(both: Option<&BothOutcomes>) -> AuditOutcome {
    let Some(both) = both else {
        return AuditOutcome::Unusable(UnusableReason::NotAudited);
    };
    let scores: Vec<Option<Vec<TokenScore>>> = both
        .iter()
        .map(|outcome| match outcome {
            Some(ReferenceOutcome::Scored(tokens)) => Some(tokens.clone()),
            Some(ReferenceOutcome::Unusable(_)) | None => None,
        })
        .collect();
    if scores.iter().any(Option::is_some) {
        return AuditOutcome::Scored(scores);
    }
    let reason = both.iter().flatten().find_map(|outcome| match outcome {
        ReferenceOutcome::Unusable(reason) => Some(*reason),
        ReferenceOutcome::Scored(_) => None,
    });
    AuditOutcome::Unusable(reason.unwrap_or(UnusableReason::NotAudited))
}

#[cfg(test)]
mod tests {
    use muster_audit::{Canary, CanaryList};

    use super::*;
    use crate::testing::answer;

    #[test]
    fn a_session_is_shown_up_to_the_first_gap_or_undrawn_bucket() {
        let shown = |answers: &[(u64, u64)], others: &[u64]| {
            let logged = answers.iter().map(|(sequence, bucket)| {
                let mut one = answer(1, *sequence);
                one.bucket.0 = *bucket;
                one
            });
            let others = others.iter().map(|number| (*number, number.to_string()));
            let whole = whole_session(logged.collect(), others.collect(), |answer| answer.bucket.0 != 9)?;
            let numbers: Vec<u64> = whole.answers.iter().map(|answer| answer.sequence).collect();
            Some((numbers, whole.others.join(" ")))
        };
        let some = |numbers: &[u64], others: &str| Some((numbers.to_vec(), others.to_owned()));
        assert_eq!(shown(&[(1, 4), (2, 4), (4, 5)], &[0, 3]), some(&[1, 2, 4], "0 3"));
        assert_eq!(
            shown(&[(1, 4), (3, 4)], &[0]),
            some(&[1], "0"),
            "number 2 is missing"
        );
        assert_eq!(
            shown(&[(0, 4), (1, 9), (2, 4)], &[3]),
            some(&[0], ""),
            "not drawn yet"
        );
        assert_eq!(shown(&[(1, 4)], &[]), None, "the first proof is missing");
        assert_eq!(shown(&[], &[0, 1]), None, "nothing was answered");
    }

    #[test]
    fn the_words_of_users_are_opened_to_nobody() {
        let words = |request: Option<&str>| OpenedWords {
            prompt: vec![5],
            output: vec![7],
            request: request.map(str::to_owned),
        };
        let opened = CanaryList::new(vec![Canary {
            salt: [1; 32],
            request: b"{}".to_vec(),
        }]);
        let canary = Origin::Canary(opened.open(0).unwrap());
        assert_eq!(open_words(&Origin::User, &words(Some("e30="))), None);
        assert_eq!(open_words(&Origin::Consenting, &words(None)), None);
        assert_eq!(
            open_words(&Origin::Consenting, &words(Some("e30="))),
            Some(words(Some("e30=")))
        );
        assert_eq!(open_words(&canary, &words(Some("e30="))), Some(words(None)));
    }

    #[test]
    fn the_keys_of_an_answers_own_period_and_of_the_one_before_are_shown() {
        let ended_in = |bucket| {
            let mut one = answer(1, 0);
            one.bucket.0 = bucket;
            one
        };
        let periods = |buckets: &[u64]| {
            let answers: Vec<LoggedAnswer> = buckets.iter().map(|bucket| ended_in(*bucket)).collect();
            let periods = nonce_periods(answers.iter());
            periods.into_iter().map(|period| period.0).collect::<Vec<u64>>()
        };
        assert_eq!(periods(&[0, 11]), [0]);
        assert_eq!(periods(&[12, 40, 41]), [0, 1, 2, 3]);
        assert_eq!(periods(&[]), [0_u64; 0]);
    }

    #[test]
    fn an_outcome_has_the_scores_of_whoever_scored_or_one_reason() {
        let died = || Some(ReferenceOutcome::Unusable(UnusableReason::ReferenceDied));
        let scored = || Some(ReferenceOutcome::Scored(Vec::new()));
        let unusable = AuditOutcome::Unusable;
        assert_eq!(outcome_of(None), unusable(UnusableReason::NotAudited));
        assert_eq!(
            outcome_of(Some(&[None, None])),
            unusable(UnusableReason::NotAudited)
        );
        assert_eq!(
            outcome_of(Some(&[died(), None])),
            unusable(UnusableReason::ReferenceDied)
        );
        let one = AuditOutcome::Scored(vec![None, Some(Vec::new())]);
        assert_eq!(outcome_of(Some(&[died(), scored()])), one);
    }
}
