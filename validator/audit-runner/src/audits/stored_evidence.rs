//! The stored part of the evidence about one coldkey and one model: sessions, buckets, own prompts and scores.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use muster_audit::{
    Calibration, CanaryList, ListCommitment, ListHead, OpenedCanary, OpenedText, OwnPromptKey,
    ReferenceMachine, RevealedNonceKey, root_of_lists,
};
use muster_gateway::store::{LoggedAnswer, StoredBucket, UnprovenRow};
use muster_protocol::{Digest, Hotkey, MinerKey, Timestamp};
use muster_response_proof::{BucketHeader, BucketNumber, Envelope, LeafTree, SessionId};
use muster_store::StoreError;

use crate::audits::subject::Subject;
use crate::evidence::assemble::nonce_periods;
use crate::evidence::inputs::{DrawnBucket, EvidenceInputs, WholeSession};
use crate::evidence::outcome::BothOutcomes;
use crate::evidence::session_choice::{is_of_calibration, readable_sessions};
use crate::evidence::whole_session::{SessionGap, StoredSession, whole_session};
use crate::log::leaves::{leaf_hashes, proof_of};
use crate::log::nonce_key_release::HiddenKey;
use crate::runner_state::RunnerState;

/// Answers of one session that are read: more than a bundle has room for.
const MAX_READ_ANSWERS: u32 = 16_384;

/// The coldkey and the model that are judged, and the answers that are evidence.
#[derive(Clone, Debug)]
pub(crate) struct AuditScope {
    pub(crate) coldkey: Hotkey,
    pub(crate) model: String,
    /// Answers that ended earlier are no part of the evidence.
    pub(crate) since: Timestamp,
    /// Whether only sessions without an answer to a client are evidence, as for an appeal.
    pub(crate) is_appeal: bool,
    /// The owner of every miner.
    pub(crate) owners: BTreeMap<MinerKey, Hotkey>,
}

impl AuditScope {
    /// The scope of an audit of a subject that begins now.
    pub(crate) async fn of(state: &RunnerState, subject: &Subject) -> Result<Self, StoreError> {
        Ok(Self {
            coldkey: subject.coldkey,
            model: subject.model.clone(),
            since: state.judged_since(subject).await?,
            is_appeal: state.is_appealed(subject).await?,
            owners: state.owners(),
        })
    }

    /// The miners of the coldkey.
    pub(crate) fn miners(&self) -> impl Iterator<Item = &MinerKey> {
        let owners = self.owners.iter();
        owners.filter_map(|(miner, owner)| (*owner == self.coldkey).then_some(miner))
    }
}

/// The references that scored, as a bundle states them.
pub(crate) struct ReferenceFacts {
    /// The calibration by which they judge.
    pub(crate) calibration: Calibration,
    /// The calibration of answers whose seeds nobody knows, if the engine draws by seeds of its own.
    pub(crate) unseeded: Option<Calibration>,
    /// The machines of the first and of the second reference.
    pub(crate) machines: Vec<ReferenceMachine>,
}

/// All that is stored about one coldkey and one model.
pub(crate) struct AuditedSubject {
    pub(crate) scope: AuditScope,
    pub(crate) sessions: Vec<WholeSession>,
    buckets: BTreeMap<u64, DrawnBucket>,
    pub(crate) canaries: BTreeMap<String, OpenedCanary>,
    commitments: Vec<ListCommitment>,
    pub(crate) outcomes: BTreeMap<String, BothOutcomes>,
    pub(crate) words: BTreeMap<String, OpenedText>,
}

impl AuditedSubject {
    /// Reads the newest sessions of the subject that attest what the calibration was measured with, as many as a bundle
    /// may have room for: those with audited answers, and behind them all others, whose answers came or are missing.
    pub(crate) async fn read(
        state: &RunnerState,
        scope: AuditScope,
        calibration: &Calibration,
    ) -> Result<Self, StoreError> {
        let log = state.log.store();
        let (mut audited, mut others, mut miners) = (Vec::new(), Vec::new(), BTreeMap::new());
        for miner in scope.miners() {
            let with_audited = log.audited_sessions(miner, &scope.model, scope.since).await?;
            let without = log.unaudited_sessions(miner, &scope.model, scope.since).await?;
            let listed = with_audited.iter().chain(&without);
            miners.extend(listed.map(|session| (session.session, *miner)));
            audited.extend(with_audited);
            others.extend(without);
        }
        let mut unproven: BTreeMap<SessionId, Vec<UnprovenRow>> = BTreeMap::new();
        for answer in log.unproven_of_model(&scope.model, scope.since).await? {
            unproven.entry(answer.session).or_default().push(answer);
        }
        let faulty = log.faulty_sessions(&scope.model, scope.since).await?;
        let faulty: BTreeMap<SessionId, bool> = faulty.into_iter().collect();
        audited.retain(|session| is_of_calibration(&session.attestation, calibration));
        others.retain(|session| is_of_calibration(&session.attestation, calibration));
        let mut buckets: BTreeMap<u64, Option<DrawnBucket>> = BTreeMap::new();
        let mut sessions = Vec::new();
        for session in readable_sessions(audited, others) {
            let Some(miner) = miners.get(&session.session).copied() else {
                continue;
            };
            let answers = log.answers_of_session(session.session, MAX_READ_ANSWERS).await?;
            for answer in &answers {
                if let Entry::Vacant(unread) = buckets.entry(answer.bucket.0) {
                    unread.insert(read_bucket(state, answer.bucket.0).await?);
                }
            }
            let others = log.other_proofs(session.session).await?;
            let is_drawn = |answer: &LoggedAnswer| buckets.get(&answer.bucket.0).is_some_and(Option::is_some);
            let stored = StoredSession {
                miner,
                attestation: session.attestation,
                answers,
                others,
                unproven: unproven.remove(&session.session).unwrap_or_default(),
                end: match faulty.get(&session.session) {
                    None => SessionGap::Regular,
                    Some(true) => SessionGap::Withheld,
                    Some(false) => SessionGap::Unclosed,
                },
            };
            sessions.extend(whole_session(stored, is_drawn));
        }
        let drawn = buckets.into_iter();
        let buckets = drawn
            .filter_map(|(number, bucket)| Some((number, bucket?)))
            .collect();
        let (canaries, commitments) = open_canaries(state, &scope, &sessions).await?;
        if scope.is_appeal {
            sessions.retain(|session| is_own(session, &canaries));
        }
        Ok(Self {
            canaries,
            commitments,
            outcomes: state.store.outcomes(&scope.model, scope.since).await?,
            words: BTreeMap::new(),
            sessions,
            buckets,
            scope,
        })
    }

    /// The ids of the audited answers that can be shown.
    pub(crate) fn audited_ids(&self) -> BTreeSet<&str> {
        let answers = self.sessions.iter().flat_map(|session| &session.answers);
        let audited = answers.filter(|answer| self.is_audited(answer));
        audited.map(|answer| answer.id.as_str()).collect()
    }

    fn is_audited(&self, answer: &LoggedAnswer) -> bool {
        answer.is_drawn || self.canaries.contains_key(&answer.id)
    }

    /// Whether the first reference was not asked about an audited answer: a second one alone finds nothing.
    pub(crate) fn has_unscored(&self) -> bool {
        let is_unscored = |answer: &LoggedAnswer| {
            let found = self.outcomes.get(&answer.id);
            found.is_none_or(|[first, _]| first.is_none())
        };
        let mut answers = self.sessions.iter().flat_map(|session| &session.answers);
        answers.any(|answer| self.is_audited(answer) && is_unscored(answer))
    }

    /// Whether answers are missing that the newest verdict about the subject has not judged: the draw of their bucket
    /// came after its audit had begun, or a gap was found since.
    pub(crate) fn has_unjudged_missing(&self, judged: Option<Timestamp>) -> bool {
        let is_unjudged = |session: &WholeSession| {
            let newest = session.newest_unproven;
            newest.is_some_and(|drawn_at| judged.is_none_or(|judged| judged < drawn_at))
        };
        self.sessions.iter().any(is_unjudged) || self.behind_gap().next().is_some()
    }

    /// The drawn answers behind a gap that stays, about which no reference was asked.
    pub(crate) fn behind_gap(&self) -> impl Iterator<Item = &String> {
        let hidden = self.sessions.iter().flat_map(|session| &session.behind_gap);
        hidden.filter(|answer| !self.outcomes.contains_key(*answer))
    }

    /// The audited answers that a reference was not asked about, in the order of the log.
    pub(crate) fn waiting(&self) -> Vec<LoggedAnswer> {
        let owed = |answer: &&LoggedAnswer| {
            let is_scored = self
                .outcomes
                .get(&answer.id)
                .is_some_and(|both| both.iter().all(Option::is_some));
            self.is_audited(answer) && !is_scored
        };
        let answers = self.sessions.iter().flat_map(|session| &session.answers);
        let mut waiting: Vec<LoggedAnswer> = answers.filter(owed).cloned().collect();
        waiting.sort_by_key(|answer| (answer.bucket, answer.position));
        waiting
    }

    pub(crate) fn into_inputs(
        self,
        state: &RunnerState,
        references: ReferenceFacts,
        nonce_keys: Vec<RevealedNonceKey>,
    ) -> Option<EvidenceInputs> {
        Some(EvidenceInputs {
            auditor: state.auditor()?,
            coldkey: self.scope.coldkey,
            model: self.scope.model,
            calibration: references.calibration,
            unseeded: references.unseeded,
            references: references.machines,
            sessions: self.sessions,
            buckets: self.buckets,
            canaries: self.canaries,
            commitments: self.commitments,
            nonce_keys,
            outcomes: self.outcomes,
            words: self.words,
        })
    }

    /// The keys of the audited answers' nonces, as far as they are public. Answers of the last two hours are shown
    /// without.
    pub(crate) async fn reveal_nonce_keys(
        &self,
        state: &RunnerState,
    ) -> Result<Vec<RevealedNonceKey>, StoreError> {
        let answers = self.sessions.iter().flat_map(|session| &session.answers);
        let audited = answers.filter(|answer| self.is_audited(answer));
        let mut keys = Vec::new();
        for period in nonce_periods(audited) {
            match state.reveal_nonce_key(period).await {
                Ok(told) => keys.push(told.revealed),
                Err(HiddenKey::Store(error)) => return Err(error),
                Err(hidden @ (HiddenKey::NotYet(_) | HiddenKey::NotUsed | HiddenKey::NoChain)) => {
                    tracing::info!(period = period.0, %hidden, "a bundle lacks a key of nonces");
                }
            }
        }
        Ok(keys)
    }
}

/// Whether all answers of a session are to own prompts.
fn is_own(session: &WholeSession, canaries: &BTreeMap<String, OpenedCanary>) -> bool {
    let mut answers = session.answers.iter();
    !session.answers.is_empty() && answers.all(|answer| canaries.contains_key(&answer.id))
}

/// A bucket with its leaves; `None` if nothing was drawn from it yet.
async fn read_bucket(state: &RunnerState, number: u64) -> Result<Option<DrawnBucket>, StoreError> {
    let corrupt = |what, error: &dyn std::fmt::Display| StoreError::corrupt(what, error.to_string());
    let bucket = BucketNumber(number);
    let Some(stored) = state.log.store().find_bucket(bucket).await? else {
        return Ok(None);
    };
    let Some(draw) = &stored.draw else { return Ok(None) };
    let answers = state.log.store().answers_of_bucket(bucket).await?;
    let leaves = leaf_hashes(&answers).ok_or_else(|| corrupt("proof", &"no signed proof"))?;
    let tree = LeafTree::new(leaves);
    Ok(Some(DrawnBucket {
        shares: serde_json::from_str(&stored.shares).map_err(|error| corrupt("shares", &error))?,
        block_hash: draw.block_hash,
        draw: serde_json::from_str(&draw.text).map_err(|error| corrupt("draw", &error))?,
        tree,
        stored,
    }))
}

/// The most bytes of headers in one bundle. Those with lists of answered prompts are shown beyond it.
const MAX_HEADER_BYTES: usize = 2 * 1024 * 1024;

/// A list of own prompts with what follows from the header that commits to it.
struct CommittedPrompts {
    bucket: BucketNumber,
    block_hash: Digest,
    key: OwnPromptKey,
    list: CanaryList,
}

/// Opens the places of own prompts that were asked as their lists fix it, and the headers from the first of their lists
/// to the last.
async fn open_canaries(
    state: &RunnerState,
    scope: &AuditScope,
    sessions: &[WholeSession],
) -> Result<(BTreeMap<String, OpenedCanary>, Vec<ListCommitment>), StoreError> {
    let answered = state.store.answered_prompts(scope.since).await?;
    let mut lists: BTreeMap<Digest, Option<CommittedPrompts>> = BTreeMap::new();
    let (mut opened, mut needed) = (BTreeMap::new(), BTreeSet::new());
    for answer in sessions.iter().flat_map(|session| &session.answers) {
        let Some((digest, position)) = answered.get(&answer.id) else {
            continue;
        };
        if let Entry::Vacant(unread) = lists.entry(*digest) {
            unread.insert(read_prompts(state, digest).await?);
        }
        if let Some(Some(prompts)) = lists.get(digest)
            && prompts.fix(digest, *position, answer)
            && let Some(place) = prompts.list.open(*position)
        {
            opened.insert(answer.id.clone(), place.of_list(*digest));
            needed.insert(prompts.bucket);
        }
    }
    let commitments = read_headers(state, scope, &needed).await?;
    Ok((opened, commitments))
}

impl CommittedPrompts {
    /// Whether an answer has the pseudonym and the nonce of this position, and came after the header.
    fn fix(&self, digest: &Digest, position: u64, answer: &LoggedAnswer) -> bool {
        let canary = self.list.next(position);
        let proof = proof_of(answer);
        canary.zip(proof).is_some_and(|(canary, proof)| {
            self.bucket < answer.bucket
                && proof.client == Some(canary.client(&self.block_hash))
                && proof.gateway_nonce == Some(self.key.nonce(digest, position))
        })
    }
}

/// The prompts of a list whose header was drawn from; `None` of a list of an earlier release.
async fn read_prompts(state: &RunnerState, digest: &Digest) -> Result<Option<CommittedPrompts>, StoreError> {
    let Some(stored) = state.store.find_list(digest).await? else {
        return Ok(None);
    };
    let Some(closed) = state.log.store().find_bucket(stored.bucket).await? else {
        return Ok(None);
    };
    let Some(draw) = &closed.draw else { return Ok(None) };
    let (key, _) = OwnPromptKey::prove(&state.keypair, &header_of(&closed)?, &draw.block_hash);
    Ok(Some(CommittedPrompts {
        bucket: stored.bucket,
        block_hash: draw.block_hash,
        key,
        list: state.store.read_list(digest).await?,
    }))
}

fn header_of(closed: &StoredBucket) -> Result<BucketHeader, StoreError> {
    let corrupt = |error: &dyn std::fmt::Display| StoreError::corrupt("header", error.to_string());
    let envelope = Envelope::<BucketHeader>::from_text(&closed.header).map_err(|error| corrupt(&error))?;
    envelope.statement().map_err(|error| corrupt(&error))
}

/// The headers from the first of these buckets to the last with their lists: opened ones of the scope's miners and
/// model, and sealed others. If they are too long, the oldest ones between the needed ones are left out.
async fn read_headers(
    state: &RunnerState,
    scope: &AuditScope,
    needed: &BTreeSet<BucketNumber>,
) -> Result<Vec<ListCommitment>, StoreError> {
    let (Some(first), Some(last)) = (needed.first().copied(), needed.last().copied()) else {
        return Ok(Vec::new());
    };
    let mut by_bucket: BTreeMap<BucketNumber, Vec<ListHead>> = BTreeMap::new();
    for stored in state.store.lists_of(first, last).await? {
        by_bucket.entry(stored.bucket).or_default().push(stored.head);
    }
    let miners: BTreeSet<MinerKey> = scope.miners().copied().collect();
    let mut shown = Vec::new();
    let mut left = MAX_HEADER_BYTES;
    for closed in state.log.store().buckets_between(first, last).await?.iter().rev() {
        let heads = by_bucket.remove(&closed.bucket).unwrap_or_default();
        let commitment = commitment_of(state, closed, &heads, |head| {
            head.model == scope.model && miners.contains(&head.miner)
        })?;
        let Some(commitment) = commitment else { continue };
        let bytes = serde_json::to_vec(&commitment).map_or(usize::MAX, |text| text.len());
        let has_room = left >= bytes;
        left = left.saturating_sub(bytes);
        if has_room || needed.contains(&closed.bucket) {
            shown.push(commitment);
        }
    }
    shown.reverse();
    Ok(shown)
}

/// A header with its lists; `None` if it names others than the stored ones, as one of an earlier release does, or if
/// the block that gives the key of an opened list is not there.
fn commitment_of(
    state: &RunnerState,
    closed: &StoredBucket,
    heads: &[ListHead],
    is_judged: impl Fn(&ListHead) -> bool,
) -> Result<Option<ListCommitment>, StoreError> {
    let digests: Vec<Digest> = heads.iter().map(ListHead::digest).collect();
    if root_of_lists(&digests) != closed.canary_list {
        return Ok(None);
    }
    let mut commitment = ListCommitment {
        header: closed.header.clone(),
        block_hash: None,
        key: None,
        lists: heads
            .iter()
            .map(|head| if is_judged(head) { head.open() } else { head.seal() })
            .collect(),
    };
    if heads.iter().any(is_judged) {
        let Some(draw) = &closed.draw else { return Ok(None) };
        let (_, proof) = OwnPromptKey::prove(&state.keypair, &header_of(closed)?, &draw.block_hash);
        commitment.block_hash = Some(draw.block_hash);
        commitment.key = Some(proof);
    }
    Ok(Some(commitment))
}

#[cfg(test)]
mod tests {
    use muster_audit::Canary;

    use super::*;
    use crate::testing::{answer, key};

    #[test]
    fn a_session_with_one_answer_to_a_client_is_no_evidence_in_an_appeal() {
        let list = CanaryList::new(vec![Canary {
            salt: [1; 32],
            request: b"{}".to_vec(),
        }]);
        let own = |answers: &[u64]| {
            let opened = |sequence: &u64| (answer(1, *sequence).id, list.open(0).unwrap());
            answers.iter().map(opened).collect::<BTreeMap<_, _>>()
        };
        let session = |answers: &[u64]| WholeSession {
            miner: MinerKey(key(1)),
            attestation: "attested".to_owned(),
            answers: answers.iter().map(|sequence| answer(1, *sequence)).collect(),
            others: Vec::new(),
            unproven: Vec::new(),
            newest_unproven: None,
            behind_gap: Vec::new(),
        };
        assert!(is_own(&session(&[0, 1]), &own(&[0, 1])));
        assert!(!is_own(&session(&[0, 1, 2]), &own(&[0, 1])));
        assert!(!is_own(&session(&[]), &own(&[])), "nothing was answered");
    }

    #[test]
    fn missing_answers_wait_for_one_verdict_and_no_other() {
        let at = Timestamp::from_secs;
        let mut subject = AuditedSubject {
            scope: AuditScope {
                coldkey: key(9),
                model: "tiny".to_owned(),
                since: at(0),
                is_appeal: false,
                owners: BTreeMap::new(),
            },
            sessions: vec![WholeSession {
                miner: MinerKey(key(1)),
                attestation: "attested".to_owned(),
                answers: Vec::new(),
                others: Vec::new(),
                unproven: Vec::new(),
                newest_unproven: Some(at(10)),
                behind_gap: Vec::new(),
            }],
            buckets: BTreeMap::new(),
            canaries: BTreeMap::new(),
            commitments: Vec::new(),
            outcomes: BTreeMap::new(),
            words: BTreeMap::new(),
        };
        assert!(subject.has_unjudged_missing(None));
        assert!(subject.has_unjudged_missing(Some(at(9))));
        assert!(!subject.has_unjudged_missing(Some(at(10))), "it was judged");
        // A gap is found when the session has ended, long after the draw, and is reported once.
        subject.sessions[0].behind_gap = vec!["hidden".to_owned()];
        assert!(subject.has_unjudged_missing(Some(at(10))));
        subject.outcomes.insert("hidden".to_owned(), Default::default());
        assert!(!subject.has_unjudged_missing(Some(at(10))));
    }
}
