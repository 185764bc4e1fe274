//! The checks of a bundle that need no statistics: signatures, places in the log, and draws.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use muster_identity::verify;
use muster_protocol::{Digest, Hotkey, MinerKey};
use muster_response_proof::{
    AnswerLeaf, Attestation, AuditShare, BucketHeader, BucketNumber, Envelope, RequestNonce, ResponseProof,
    Sealable, Text, root_by_path,
};

use crate::answer_draw::BucketDraw;
use crate::bundle::{AnswerEvidence, AuditBundle, BucketEvidence, LoggedClient, Origin, SessionEvidence};
use crate::checked_answer::{CheckedAnswer, NonceState};
use crate::committed_lists::{CommittedLists, CommittingHeader, SeenPrompts, check_commitments};
use crate::missing_answers::{
    Delivery, MissingCause, MissingTrial, delivery_of, order_trials, separate_events,
};
use crate::nonce_keys::{NoncePeriod, is_derived_nonce};
use crate::own_prompt_key::OwnPromptKey;
use crate::replay_error::ReplayError;

/// A bucket whose header and draw were checked.
struct CheckedBucket {
    header: BucketHeader,
    draw: BucketDraw,
    shares: BTreeMap<MinerKey, u32>,
}

/// The answers of a bundle in the order of the log, and the draws from its buckets.
pub(crate) struct CheckedLog<'a> {
    pub(crate) answers: Vec<CheckedAnswer<'a>>,
    /// The ends of the answers that the test of missing ones takes, in its order.
    pub(crate) deliveries: Vec<Delivery>,
    /// Answers to clients that are not in the log.
    pub(crate) unlogged: usize,
    pub(crate) draws: Vec<BucketDraw>,
    /// The keys of nonces, by rising period.
    pub(crate) nonce_keys: Vec<[u8; 32]>,
    /// The headers that commit to lists of own prompts, and those between them.
    pub(crate) headers: Vec<CommittingHeader>,
    /// The keys of the own prompts of these headers, as far as lists of theirs are opened.
    pub(crate) own_keys: Vec<OwnPromptKey>,
}

/// Checks everything that was signed.
pub(crate) fn check_log(bundle: &AuditBundle) -> Result<CheckedLog<'_>, ReplayError> {
    let buckets = check_buckets(bundle)?;
    let lists = check_commitments(bundle)?;
    let keys = check_nonce_keys(bundle)?;
    let (mut answers, mut unlogged, mut seen) = (Vec::new(), 0, SeenPlaces::default());
    let (mut trials, mut shown) = (Vec::new(), BTreeSet::new());
    for (place, session) in bundle.sessions.iter().enumerate() {
        let attested = check_attestation(bundle, place, &session.attestation)?;
        let numbered = attested.check_numbers(session)?;
        let equal = EqualRequests::of(&numbered);
        let first = answers.len();
        let mut nonces: HashSet<RequestNonce> = HashSet::new();
        for numbered in numbered {
            // A proof that is logged in several buckets is one answer, and counts once at most.
            if !seen.proofs.insert(numbered.digest) {
                let (session, sequence) = (numbered.proof.session, numbered.proof.sequence);
                return Err(ReplayError::Repeated { session, sequence });
            }
            let nonce = numbered.proof.gateway_nonce;
            let is_repeated = nonce.is_some_and(|nonce| !nonces.insert(nonce));
            match numbered.evidence {
                Some(evidence) => {
                    let place = LogPlace {
                        evidence,
                        digest: numbered.digest,
                        is_repeated,
                    };
                    let mut answer =
                        attested.check_answer((&buckets, &lists), &mut seen, place, numbered.proof)?;
                    answer.nonce = match answer.position {
                        // The nonce was compared with the one of its position.
                        Some(_) => NonceState::Derived,
                        None => check_nonce(&keys, &equal, &answer),
                    };
                    answers.push(answer);
                }
                None => unlogged += usize::from(numbered.proof.client.is_some()),
            }
        }
        if answers.len() > first || !session.unproven.is_empty() {
            shown.insert(attested.statement.miner);
        }
        let logged = answers.get(first..).unwrap_or_default();
        let counts_itself = bundle.commits_to_clients();
        trials.extend(separate_events(session_trials(
            place,
            session,
            logged,
            counts_itself,
        )?));
    }
    check_miners(bundle, &shown)?;
    answers.sort_by_key(|answer| (answer.evidence.bucket, answer.evidence.position));
    let draws = buckets.values().map(|bucket| bucket.draw).collect();
    Ok(CheckedLog {
        answers,
        deliveries: order_trials(trials),
        unlogged,
        draws,
        nonce_keys: keys.into_values().collect(),
        headers: lists.headers,
        own_keys: lists.keys,
    })
}

/// Checks that the list of miners names each miner once, and only miners of which the bundle shows an answer or a
/// missing one: a verdict is about all of them.
fn check_miners(bundle: &AuditBundle, shown: &BTreeSet<MinerKey>) -> Result<(), ReplayError> {
    let named: BTreeSet<MinerKey> = bundle.miners.iter().copied().collect();
    if named == *shown && named.len() == bundle.miners.len() {
        Ok(())
    } else {
        Err(ReplayError::Miners)
    }
}

/// The answers of a session as the test of missing ones sees them, in the order of their ends. `counts_itself` states
/// whether the validator has counted the answers of clients, whom the log does not show.
fn session_trials(
    place: usize,
    session: &SessionEvidence,
    logged: &[CheckedAnswer<'_>],
    counts_itself: bool,
) -> Result<Vec<MissingTrial>, ReplayError> {
    let mut unproven = session.unproven.iter().peekable();
    let mut trials = Vec::new();
    for ended in 0..=logged.len() {
        while let Some(missing) = unproven.next_if(|one| usize::try_from(one.after) == Ok(ended)) {
            trials.push(MissingTrial {
                place: (missing.bucket, u64::MAX),
                client: missing.client,
                is_beyond: false,
                delivery: Delivery::Missing(MissingCause::Unproven),
            });
        }
        if let Some(answer) = logged.get(ended) {
            trials.push(MissingTrial {
                place: (answer.evidence.bucket, answer.evidence.position),
                client: (!counts_itself).then_some(answer.stratum),
                is_beyond: answer.evidence.beyond,
                delivery: delivery_of(answer),
            });
        }
    }
    // One stands out of order, or behind more answers than there are.
    match unproven.next() {
        None => Ok(trials),
        Some(_) => Err(ReplayError::Unproven { place }),
    }
}

/// The keys of nonces by their periods.
fn check_nonce_keys(bundle: &AuditBundle) -> Result<BTreeMap<u64, [u8; 32]>, ReplayError> {
    let mut keys: BTreeMap<u64, [u8; 32]> = BTreeMap::new();
    for revealed in &bundle.nonce_keys {
        let period = revealed.period;
        let follows = keys.last_key_value().is_none_or(|(last, _)| *last < period);
        let key = revealed.check(&bundle.validator, &bundle.genesis, bundle.netuid);
        let key = key.filter(|_| follows).ok_or(ReplayError::NonceKey { period })?;
        keys.insert(period, key);
    }
    Ok(keys)
}

/// The numbers of a session's proofs that are of the same client, client's nonce and request.
struct EqualRequests(BTreeMap<RequestFacts, u64>);

type RequestFacts = (Option<Digest>, Option<[u8; 32]>, Digest);

fn request_facts(proof: &ResponseProof) -> RequestFacts {
    let client_nonce = proof.client_nonce.map(|nonce| *nonce.as_bytes());
    (proof.client, client_nonce, proof.input)
}

impl EqualRequests {
    fn of(numbered: &[NumberedProof<'_>]) -> Self {
        let mut counts = BTreeMap::new();
        for one in numbered {
            *counts.entry(request_facts(&one.proof)).or_default() += 1;
        }
        Self(counts)
    }

    fn count(&self, proof: &ResponseProof) -> u64 {
        self.0.get(&request_facts(proof)).copied().unwrap_or_default()
    }
}

/// Whether a key of the answer's time gives its nonce. An answer began in the period of its bucket or in the one
/// before it.
fn check_nonce(
    keys: &BTreeMap<u64, [u8; 32]>,
    equal: &EqualRequests,
    answer: &CheckedAnswer<'_>,
) -> NonceState {
    let ended = NoncePeriod::of_bucket(BucketNumber(answer.evidence.bucket));
    let periods = [Some(ended), ended.previous()];
    let of_time: Vec<Option<&[u8; 32]>> = periods
        .iter()
        .flatten()
        .map(|period| keys.get(&period.0))
        .collect();
    let proof = &answer.proof;
    // Own prompts are asked once, under a pseudonym and with a nonce that the validator cannot choose.
    let equal_requests = match &answer.evidence.origin {
        Origin::Canary(_) => 1,
        Origin::User | Origin::Consenting => equal.count(proof),
    };
    let gives = |key: &&[u8; 32]| is_derived_nonce(proof, key, equal_requests);
    if of_time.iter().copied().flatten().any(|key| gives(&key)) {
        NonceState::Derived
    } else if of_time.iter().all(Option::is_some) {
        NonceState::Foreign
    } else {
        NonceState::Unchecked
    }
}

/// A proof at its place in the log.
struct LogPlace<'a> {
    evidence: &'a AnswerEvidence,
    digest: Digest,
    /// Whether its session signed the gateway's nonce before.
    is_repeated: bool,
}

/// A proof at its place among all proofs of its session.
struct NumberedProof<'a> {
    proof: ResponseProof,
    digest: Digest,
    /// Its place in the log; `None` if it is not in the log.
    evidence: Option<&'a AnswerEvidence>,
}

/// The proofs, the places in the log and the committed prompts that were seen, to find one that is named twice.
#[derive(Default)]
struct SeenPlaces {
    proofs: BTreeSet<Digest>,
    leaves: BTreeSet<(u64, u64)>,
    prompts: SeenPrompts,
}

fn check_buckets(bundle: &AuditBundle) -> Result<BTreeMap<u64, CheckedBucket>, ReplayError> {
    let mut checked: BTreeMap<u64, CheckedBucket> = BTreeMap::new();
    for (place, evidence) in (0_u64..).zip(&bundle.buckets) {
        let opened = open::<BucketHeader>(&evidence.header, &bundle.validator.0);
        let (header, _) = opened.ok_or(ReplayError::Header { bucket: place })?;
        let bucket = header.bucket.0;
        let follows = checked.last_key_value().is_none_or(|(last, _)| *last < bucket);
        if !follows || !is_of_bundle(&header, bundle) {
            return Err(ReplayError::Header { bucket });
        }
        let draw = BucketDraw::check(&bundle.validator, &header, &evidence.block_hash, &evidence.draw);
        let draw = draw.ok_or(ReplayError::Draw { bucket })?;
        let shares = check_shares(bundle, &header, evidence)?;
        checked.insert(bucket, CheckedBucket { header, draw, shares });
    }
    Ok(checked)
}

/// Whether a header is of the bundle's validator, chain and subnet.
pub(crate) fn is_of_bundle(header: &BucketHeader, bundle: &AuditBundle) -> bool {
    header.validator == bundle.validator && header.genesis == bundle.genesis && header.netuid == bundle.netuid
}

fn check_shares(
    bundle: &AuditBundle,
    header: &BucketHeader,
    evidence: &BucketEvidence,
) -> Result<BTreeMap<MinerKey, u32>, ReplayError> {
    let wrong = || ReplayError::Share {
        bucket: header.bucket.0,
    };
    let mut shares = BTreeMap::new();
    for opened in &evidence.shares {
        let share = AuditShare {
            miner: opened.miner,
            model: Text::new(bundle.model.as_str()).map_err(|_| wrong())?,
            ppm: opened.ppm,
        };
        let root = root_by_path(share.hash(), opened.position, header.shares, &opened.path);
        if root != Some(header.share_root) || shares.insert(opened.miner, opened.ppm).is_some() {
            return Err(wrong());
        }
    }
    Ok(shares)
}

/// Reads a statement that this key has to have signed, with the digest of its bytes.
pub(crate) fn open<T: Sealable>(text: &str, key: &Hotkey) -> Option<(T, Digest)> {
    let envelope = Envelope::<T>::from_text(text).ok()?;
    verify(key, envelope.signed_bytes(), envelope.signature())
        .then(|| envelope.statement().ok())
        .flatten()
        .map(|statement| (statement, envelope.digest()))
}

/// An attestation whose signature was checked.
struct AttestedSession {
    statement: Attestation,
    digest: Digest,
}

fn check_attestation(bundle: &AuditBundle, place: usize, text: &str) -> Result<AttestedSession, ReplayError> {
    let wrong = ReplayError::Attestation { place };
    let Ok(envelope) = Envelope::<Attestation>::from_text(text) else {
        return Err(wrong);
    };
    let Ok(statement) = envelope.statement() else {
        return Err(wrong);
    };
    let model_fits = statement
        .model
        .is_none_or(|model| model == bundle.calibration.model);
    let fits = bundle.miners.contains(&statement.miner)
        && statement.audience == bundle.validator
        && statement.image.0 == bundle.calibration.engine
        && model_fits
        && verify(&statement.miner.0, envelope.signed_bytes(), envelope.signature());
    if fits {
        Ok(AttestedSession {
            digest: envelope.digest(),
            statement,
        })
    } else {
        Err(wrong)
    }
}

impl AttestedSession {
    /// Checks that the session key signed these proofs, that they are numbered from 0 without gaps, and that each names
    /// the one before it.
    fn check_numbers<'a>(&self, session: &'a SessionEvidence) -> Result<Vec<NumberedProof<'a>>, ReplayError> {
        let mut logged = session.answers.iter().peekable();
        let mut others = session.others.iter().peekable();
        let mut numbered = Vec::new();
        let mut previous = self.digest;
        for sequence in 0_u64.. {
            let next = |text: &str| self.check_proof(sequence, previous, text);
            // The number decides from which of the two lists the next proof comes.
            let (evidence, (proof, digest)) = match (logged.peek(), others.peek()) {
                (None, None) => break,
                (Some(evidence), None) => (Some(*evidence), next(&evidence.proof)?),
                (None, Some(text)) => (None, next(text)?),
                (Some(evidence), Some(text)) => match next(&evidence.proof) {
                    Ok(found) => (Some(*evidence), found),
                    Err(_) => (None, next(text)?),
                },
            };
            match evidence {
                Some(_) => drop(logged.next()),
                None => drop(others.next()),
            }
            previous = digest;
            numbered.push(NumberedProof {
                proof,
                digest,
                evidence,
            });
        }
        Ok(numbered)
    }

    /// Checks that the session key signed this proof as the one with this number, after the one with this digest.
    fn check_proof(
        &self,
        sequence: u64,
        previous: Digest,
        text: &str,
    ) -> Result<(ResponseProof, Digest), ReplayError> {
        let session = self.statement.session;
        let wrong = || ReplayError::Proof { session, sequence };
        let (proof, digest) = open::<ResponseProof>(text, &self.statement.session_key).ok_or_else(wrong)?;
        let fits = proof.session == session
            && proof.sequence == sequence
            && proof.previous == previous
            && proof.attestation == self.digest
            && proof.audience == self.statement.audience;
        if fits { Ok((proof, digest)) } else { Err(wrong()) }
    }
}

impl AttestedSession {
    /// Checks the answer's place in the log and the origin of its prompt.
    fn check_answer<'a>(
        &self,
        (buckets, lists): (&BTreeMap<u64, CheckedBucket>, &CommittedLists),
        seen: &mut SeenPlaces,
        place: LogPlace<'a>,
        proof: ResponseProof,
    ) -> Result<CheckedAnswer<'a>, ReplayError> {
        let LogPlace {
            evidence,
            digest,
            is_repeated,
        } = place;
        let (session, sequence) = (proof.session, proof.sequence);
        let misplaced = || ReplayError::Leaf { session, sequence };
        let bucket = buckets.get(&evidence.bucket).ok_or_else(misplaced)?;
        let client = check_leaf(bucket, evidence, &proof, digest).ok_or_else(misplaced)?;
        if !seen.leaves.insert((evidence.bucket, evidence.position)) {
            return Err(misplaced());
        }
        let root = &bucket.header.canaries;
        let of_session = (self.statement.miner, is_repeated);
        let origin = lists.check_origin(evidence, &proof, root, of_session, &mut seen.prompts);
        let origin = origin.ok_or(ReplayError::Canary { session, sequence })?;
        // Without the share nobody can check whether the answer was drawn.
        let ppm = bucket
            .shares
            .get(&self.statement.miner)
            .ok_or(ReplayError::Share {
                bucket: evidence.bucket,
            })?;
        let is_audited = origin.is_own || bucket.draw.draws(&digest, *ppm);
        let stratum = shown_stratum(client, is_audited).ok_or(ReplayError::Client { session, sequence })?;
        Ok(CheckedAnswer {
            evidence,
            proof,
            digest,
            position: origin.position,
            request: origin.request,
            stratum,
            is_audited,
            publicity: origin.publicity,
            nonce: NonceState::Unchecked,
        })
    }
}

/// The client in the leaf of an answer.
enum LeafClient {
    /// The pseudonym that its proof states, as earlier releases logged it.
    Stated(Digest),
    Committed(LoggedClient),
}

/// The stratum of an answer; `None` if an audited one hides its client, or one that is not audited shows it.
fn shown_stratum(client: LeafClient, is_audited: bool) -> Option<Digest> {
    match client {
        LeafClient::Stated(pseudonym) => Some(pseudonym),
        LeafClient::Committed(LoggedClient::Sealed(commitment)) => (!is_audited).then_some(commitment),
        LeafClient::Committed(LoggedClient::Opened(opening)) => is_audited.then_some(opening.label),
    }
}

/// The client of an answer that stands in the log where it says.
fn check_leaf(
    bucket: &CheckedBucket,
    evidence: &AnswerEvidence,
    proof: &ResponseProof,
    digest: Digest,
) -> Option<LeafClient> {
    // A gateway logs answers to clients only.
    let stated = proof.client?;
    let (client, stratum) = match evidence.client {
        None => (LeafClient::Stated(stated), stated),
        Some(committed @ LoggedClient::Sealed(commitment)) => (LeafClient::Committed(committed), commitment),
        Some(committed @ LoggedClient::Opened(opening)) => {
            (LeafClient::Committed(committed), opening.commitment())
        }
    };
    let leaf = AnswerLeaf {
        session: proof.session,
        sequence: proof.sequence,
        proof: digest,
        output_tokens: evidence.output_tokens,
        earned: evidence.earned,
        stratum,
    };
    let header = &bucket.header;
    let root = root_by_path(leaf.hash(), evidence.position, header.answers, &evidence.path)?;
    (root == header.root).then_some(client)
}
