//! Sends miners what they are owed about spot checks: at least once, until they have taken it or it is too old.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit::Verdict;
use muster_miner_link::{MinerConversation, MinerEndpoint};
use muster_process::error::Causes;
use muster_protocol::wire::audits::{
    AppealAnswer, AuditMessage, AuditNotice, AuditReply, BundlePart, VerdictNotice,
};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{Digest, Feature, MinerKey, Timestamp};
use muster_response_proof::BucketNumber;
use muster_response_proof::audit_limits::{MAX_BETWEEN, MAX_PART_BYTES};
use muster_store::StoreError;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::notices::contents::{header_notices, outcomes_notice};
use crate::runner_state::RunnerState;
use crate::store::notices::NoticeSubject;

/// How long a miner may take for each step of a conversation. A replay takes seconds.
const STEP_LIMIT: Duration = Duration::from_secs(60);
/// How long one conversation may take.
const WHOLE_LIMIT: Duration = Duration::from_secs(300);
/// Miners that are talked to at once.
const AT_ONCE: usize = 64;
/// Answers of a miner within one conversation.
const MAX_REPLIES: usize = 4_096;
/// Verdicts among which those to be sent are looked for.
const MAX_VERDICTS: u32 = 1_000;
/// The first pause after a failure, which doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);
/// How often a miner with a verdict against it is asked for appeals.
const ASK_APPEALS: Duration = Duration::from_secs(3_600);

/// When each miner is talked to again. It is not durable: after a restart everybody is tried at once.
#[derive(Debug, Default)]
pub(crate) struct DeliveryPauses {
    failed: BTreeMap<MinerKey, (u32, Timestamp)>,
    asked: BTreeMap<MinerKey, Timestamp>,
    /// The miners that are talked to now.
    talking: BTreeSet<MinerKey>,
}

impl DeliveryPauses {
    fn may_try(&self, miner: &MinerKey, now: Timestamp) -> bool {
        self.failed.get(miner).is_none_or(|(_, until)| *until <= now)
    }

    /// Whether a conversation with a miner can begin.
    fn is_free(&self, miner: &MinerKey, now: Timestamp) -> bool {
        self.may_try(miner, now) && !self.talking.contains(miner)
    }

    /// Whether a miner that may appeal is asked although nothing else is to be sent.
    fn is_asked_again(&self, miner: &MinerKey, now: Timestamp) -> bool {
        self.asked
            .get(miner)
            .is_none_or(|asked| now.since(*asked) >= ASK_APPEALS)
    }

    /// Begins a conversation with a miner, unless there is one or it is too early.
    fn begin(&mut self, miner: MinerKey, now: Timestamp) -> bool {
        self.may_try(&miner, now) && self.talking.insert(miner)
    }

    fn end(&mut self, miner: MinerKey, has_failed: bool, now: Timestamp) {
        self.talking.remove(&miner);
        if !has_failed {
            self.failed.remove(&miner);
            self.asked.insert(miner, now);
            return;
        }
        let failures = self.failed.get(&miner).map_or(0, |(failures, _)| *failures);
        let pause = FIRST_PAUSE
            .saturating_mul(2_u32.saturating_pow(failures.min(16)))
            .min(LONGEST_PAUSE);
        self.failed
            .insert(miner, (failures.saturating_add(1), now.plus(pause)));
    }
}

/// The conversations of a validator, which do not wait for one another.
#[derive(Clone)]
struct Conversations {
    pauses: Arc<Mutex<DeliveryPauses>>,
    places: Arc<Semaphore>,
}

/// Follows the chain's blocks and notifies miners of what is due at each.
pub(crate) async fn deliver_notices(state: Arc<RunnerState>) {
    let mut block = 0;
    let conversations = Conversations {
        pauses: Arc::default(),
        places: Arc::new(Semaphore::new(AT_ONCE)),
    };
    loop {
        (block, _) = state.subnet.wait_for_block_after(block).await;
        if let Err(error) = deliver_due(&state, &conversations).await
            && state.fail(error)
        {
            return;
        }
    }
}

/// Begins a conversation with every miner that is owed something and is not talked to.
async fn deliver_due(state: &Arc<RunnerState>, conversations: &Conversations) -> Result<(), StoreError> {
    let now = state.clock.now();
    state.store.make_header_notices(now).await?;
    if state.outcomes_due.swap(false, Ordering::SeqCst) {
        state.store.make_outcome_notices(now).await?;
    }
    let accused = send_verdicts(state, now).await?;
    let endpoints = endpoints(state);
    let reachable: BTreeSet<MinerKey> = {
        let pauses = conversations.pauses.lock();
        let miners = endpoints.keys().copied();
        miners.filter(|miner| pauses.is_free(miner, now)).collect()
    };
    let mut due = state.store.due_notices(&reachable, now).await?;
    for miner in accused {
        if conversations.pauses.lock().is_asked_again(&miner, now) {
            due.entry(miner).or_default();
        }
    }
    for (miner, subjects) in due {
        let Some(endpoint) = endpoints.get(&miner).copied() else {
            continue;
        };
        if conversations.pauses.lock().begin(miner, now) {
            let (talking, conversations) = (Arc::clone(state), conversations.clone());
            drop(state.tasks.spawn("audit conversation", async move {
                conversations.run(&talking, endpoint, subjects).await;
            }));
        }
    }
    Ok(())
}

impl Conversations {
    async fn run(&self, state: &RunnerState, endpoint: MinerEndpoint, subjects: Vec<NoticeSubject>) {
        let miner = endpoint.miner;
        // The semaphore is never closed.
        let Ok(_place) = self.places.acquire().await else {
            return;
        };
        let talking = tokio::time::timeout(WHOLE_LIMIT, talk(state, endpoint, subjects));
        let reason = match state.tasks.token().run_until_cancelled(talking).await {
            // The validator stops.
            None => return,
            Some(Ok(Ok(()))) => None,
            Some(Ok(Err(TalkFailure::Store(error)))) => {
                let reason = Causes(&error).to_string();
                if state.fail(error) {
                    return;
                }
                Some(reason)
            }
            Some(Ok(Err(TalkFailure::Miner(reason)))) => Some(reason),
            Some(Err(_)) => Some(format!("it took longer than {} s", WHOLE_LIMIT.as_secs())),
        };
        if let Some(reason) = &reason {
            tracing::debug!(%miner, reason, "a miner cannot be told of spot checks");
        }
        self.pauses.lock().end(miner, reason.is_some(), state.clock.now());
    }
}

/// Where each miner is dialled.
fn endpoints(state: &RunnerState) -> BTreeMap<MinerKey, MinerEndpoint> {
    let metagraph = state.subnet.last_metagraph();
    let endpoints = metagraph.iter().flat_map(|metagraph| {
        metagraph.neurons.iter().filter_map(|neuron| {
            let (miner, certificate) = (MinerKey(neuron.hotkey), metagraph.certificate_of(&neuron.hotkey));
            Some((miner, MinerEndpoint::new(miner, neuron.axon?, certificate)))
        })
    });
    endpoints.collect()
}

/// Puts the verdicts of a week into the outbox: accusations, and those that lift one. Returns the miners that are
/// accused now.
async fn send_verdicts(state: &RunnerState, now: Timestamp) -> Result<BTreeSet<MinerKey>, StoreError> {
    let oldest = now.minus(crate::store::notices::OTHERS_OFFERED);
    let mut accused_before = BTreeSet::new();
    let mut told = Vec::new();
    let mut verdicts = state.adopter.store.audits(MAX_VERDICTS).await?;
    verdicts.reverse();
    for verdict in verdicts {
        let subject = (verdict.coldkey, verdict.model.clone());
        if Verdict::is_accusation(&verdict.verdict) {
            accused_before.insert(subject.clone());
        }
        if verdict.adopted_at >= oldest && accused_before.contains(&subject) {
            told.extend(
                verdict
                    .miners
                    .iter()
                    .map(|miner| (*miner, verdict.digest, verdict.adopted_at)),
            );
        }
    }
    state.store.put_verdict_notices(&told, oldest).await?;
    let counting = state.adopter.store.counting_audits().await?;
    let accusing = counting
        .into_iter()
        .filter(|verdict| Verdict::is_accusation(&verdict.verdict));
    Ok(accusing.flat_map(|verdict| verdict.miners).collect())
}

/// Why a conversation ended early.
enum TalkFailure {
    /// The miner's side; the reason as text.
    Miner(String),
    /// The database fails.
    Store(StoreError),
}

impl From<StoreError> for TalkFailure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// One conversation with a miner.
struct Talk<'a> {
    state: &'a RunnerState,
    miner: MinerKey,
    conversation: MinerConversation,
    /// The number of the last notice.
    number: u64,
    replies: usize,
}

async fn talk(
    state: &RunnerState,
    endpoint: MinerEndpoint,
    subjects: Vec<NoticeSubject>,
) -> Result<(), TalkFailure> {
    let miner = endpoint.miner;
    let opening = MinerConversation::open(
        &state.keypair,
        &state.clock,
        endpoint,
        Feature::Audits,
        STEP_LIMIT,
    );
    let Some(conversation) = opening.await.map_err(TalkFailure::Miner)? else {
        return Err(TalkFailure::Miner(
            "it does not know the messages of audits".to_owned(),
        ));
    };
    let mut talk = Talk {
        state,
        miner,
        conversation,
        number: 0,
        replies: 0,
    };
    for subject in subjects {
        for notice in notices_of(state, &miner, subject).await? {
            talk.send_notice(notice).await?;
        }
        state
            .store
            .note_delivered(&miner, subject, state.clock.now())
            .await?;
    }
    talk.send_notice(AuditNotice::Done).await?;
    talk.conversation.close().await;
    Ok(())
}

impl Talk<'_> {
    /// Sends a notice and answers the miner's questions until the miner has taken it.
    async fn send_notice(&mut self, notice: AuditNotice) -> Result<(), TalkFailure> {
        self.number = self.number.saturating_add(1);
        self.send(notice).await?;
        loop {
            self.replies = self.replies.saturating_add(1);
            if self.replies > MAX_REPLIES {
                return Err(TalkFailure::Miner("it says too much".to_owned()));
            }
            let said = self.conversation.next().await.map_err(TalkFailure::Miner)?;
            if let MinerToValidator::UnauthorizedError(_) = said {
                return Err(TalkFailure::Miner("it does not serve this validator".to_owned()));
            }
            if let MinerToValidator::GenericError(error) = said {
                return Err(TalkFailure::Miner(error.details.unwrap_or_default()));
            }
            // Its manifest, and messages of attempts that it owes.
            let MinerToValidator::MusterAuditReply(reply) = said else {
                continue;
            };
            match reply {
                AuditReply::Taken { number } if number == self.number => return Ok(()),
                AuditReply::Taken { .. } => {}
                AuditReply::Fetch { bundle, offset } => {
                    let part = bundle_part(self.state, bundle, offset).await?;
                    self.send(AuditNotice::BundlePart(Box::new(part))).await?;
                }
                AuditReply::Appeal { appeal } => {
                    if let Some(answer) = self.hear_appeal(&appeal).await? {
                        self.send(AuditNotice::AppealAnswer(Box::new(answer))).await?;
                    }
                }
            }
        }
    }

    async fn send(&mut self, notice: AuditNotice) -> Result<(), TalkFailure> {
        let message = ValidatorToMiner::MusterAudit(Box::new(AuditMessage {
            number: self.number,
            notice,
        }));
        self.conversation.send(&message).await.map_err(TalkFailure::Miner)
    }

    /// The answer to an appeal; `None` if it is about nothing.
    async fn hear_appeal(&self, appeal: &str) -> Result<Option<AppealAnswer>, TalkFailure> {
        let heard = crate::appeals::appeal_admission::hear_appeal(self.state, appeal).await;
        Ok(match heard {
            Ok(open) => Some(AppealAnswer {
                bundle: open.bundle,
                is_open: true,
                words: open.words(),
            }),
            Err(crate::appeals::appeal_admission::AppealRefusal::Store(error)) => return Err(error.into()),
            Err(refusal) => {
                tracing::info!(miner = %self.miner, %refusal, "an appeal is refused");
                crate::appeals::appeal_admission::bundle_of(appeal).map(|bundle| AppealAnswer {
                    bundle,
                    is_open: false,
                    words: refusal.to_string(),
                })
            }
        })
    }
}

/// The notices about a subject; none if it is gone.
async fn notices_of(
    state: &RunnerState,
    miner: &MinerKey,
    subject: NoticeSubject,
) -> Result<Vec<AuditNotice>, StoreError> {
    let log = state.log.store();
    match subject {
        NoticeSubject::Header(number) => {
            let bucket = BucketNumber(number);
            let Some(closed) = log.find_bucket(bucket).await? else {
                return Ok(Vec::new());
            };
            let between = match state.store.last_told_bucket(miner).await? {
                Some(last) => {
                    let most = u32::try_from(MAX_BETWEEN).unwrap_or(u32::MAX);
                    log.headers_between(BucketNumber(last), bucket, most).await?
                }
                None => Vec::new(),
            };
            let answers = log.answers_of_bucket(bucket).await?;
            let miner = *miner;
            // The paths of many leaves take seconds.
            let making =
                tokio::task::spawn_blocking(move || header_notices(&closed, &answers, &miner, between));
            let made = making.await;
            let made = made.map_err(|error| StoreError::corrupt("leaves", error.to_string()))?;
            let notices = made.ok_or_else(|| StoreError::corrupt("proof", "no signed proof".to_owned()))?;
            Ok(notices
                .into_iter()
                .map(|notice| AuditNotice::Header(Box::new(notice)))
                .collect())
        }
        NoticeSubject::Outcomes(number) => {
            let bucket = BucketNumber(number);
            let Some(closed) = log.find_bucket(bucket).await? else {
                return Ok(Vec::new());
            };
            let answers = log.answers_of_bucket(bucket).await?;
            let found = state
                .store
                .revealed_outcomes(number, is_reveal_due(state, &closed))
                .await?;
            let notice = outcomes_notice(&closed, &answers, miner, &found);
            Ok(notice
                .into_iter()
                .map(|notice| AuditNotice::Outcomes(Box::new(notice)))
                .collect())
        }
        NoticeSubject::Verdict(bundle) => {
            let verdicts = state.adopter.store.audits(MAX_VERDICTS).await?;
            let Some(verdict) = verdicts.into_iter().find(|verdict| verdict.digest == bundle) else {
                return Ok(Vec::new());
            };
            let text = state
                .adopter
                .store
                .audit_bundle(bundle)
                .await?
                .unwrap_or_default();
            Ok(vec![AuditNotice::Verdict(Box::new(VerdictNotice {
                bundle,
                bytes: u64::try_from(text.len()).unwrap_or(u64::MAX),
                verdict: verdict.verdict,
                model: verdict.model,
                quality_per_mille: verdict.quality_per_mille,
                since: verdict.adopted_at,
            }))])
        }
    }
}

/// Whether the draw is so old that answers without a verdict are shown as they are.
pub(crate) fn is_reveal_due(state: &RunnerState, closed: &muster_gateway::store::StoredBucket) -> bool {
    let now = state.clock.now();
    let drawn = closed.draw.as_ref();
    drawn.is_some_and(|draw| now.since(draw.at) >= crate::store::notices::LATEST_REVEAL)
}

/// A part of a bundle that counts or did. Empty if there is none at this place.
async fn bundle_part(state: &RunnerState, bundle: Digest, offset: u64) -> Result<BundlePart, StoreError> {
    let text = state
        .adopter
        .store
        .audit_bundle(bundle)
        .await?
        .unwrap_or_default();
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
    let until = from.saturating_add(MAX_PART_BYTES).min(text.len());
    let part = text.as_bytes().get(from..until).unwrap_or_default();
    Ok(BundlePart {
        bundle,
        offset,
        data: STANDARD.encode(part),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

    #[test]
    fn a_miner_that_fails_is_tried_less_and_less_often_and_asked_for_appeals_once_an_hour() {
        let miner = MinerKey(key(1));
        let mut pauses = DeliveryPauses::default();
        let mut now = Timestamp::from_secs(1_000);
        assert!(pauses.may_try(&miner, now));
        let mut waited = Vec::new();
        for _ in 0..8 {
            assert!(pauses.begin(miner, now));
            assert!(
                !pauses.is_free(&miner, now) && !pauses.begin(miner, now),
                "it is talked to"
            );
            pauses.end(miner, true, now);
            let mut pause = 0_u64;
            while !pauses.may_try(&miner, now.plus(Duration::from_secs(pause))) {
                pause += 60;
            }
            waited.push(pause / 60);
            now = now.plus(Duration::from_secs(pause));
        }
        assert_eq!(waited, [1, 2, 4, 8, 16, 32, 60, 60], "minutes");
        assert!(pauses.is_asked_again(&miner, now));
        pauses.end(miner, false, now);
        assert!(pauses.may_try(&miner, now));
        assert!(!pauses.is_asked_again(&miner, now.plus(Duration::from_secs(3_599))));
        assert!(pauses.is_asked_again(&miner, now.plus(Duration::from_secs(3_600))));
    }
}
