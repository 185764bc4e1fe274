//! Keeps the log of answers: closes each bucket with a signed header before its draw block exists, and draws from it
//! afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_audit::own_prompts::RequestForm;
use muster_audit::{BucketDraw, NoncePeriod, OwnPromptKey, RevealedNonceKey, root_of_lists};
use muster_gateway::store::{LoggedAnswer, StoredBucket, StoredDraw};
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::{BucketHeader, BucketNumber, Envelope, root_of, seal};
use muster_store::StoreError;

use crate::answer_text::{is_chat, read_text};
use crate::evidence::inputs::AuditorFacts;
use crate::log::leaves::{leaf_hashes, proof_of};
use crate::log::shares::{DailyAnswers, StoredShare, share_ppm, share_root, shares_of};
use crate::runner_state::RunnerState;

use crate::own_prompts::asking::plan_own;
use crate::own_prompts::sources::MAX_FORMS_OF_BUCKET;
use crate::phases::AuditPhase;

const DAY: Duration = Duration::from_secs(86_400);
/// The longest answer with which a later prompt goes on, in bytes.
const MAX_REPLY: usize = 4 * 1024;

/// The keeper of one validator's log.
pub(crate) struct LogKeeper {
    state: Arc<RunnerState>,
    /// The last bucket that was looked at: closed, or without answers.
    looked_at: Option<BucketNumber>,
    /// The period whose key the gateway's nonces are made by.
    nonces_of: Option<NoncePeriod>,
}

/// The change of the key of the gateway's nonces at a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyChange {
    /// The key in use is that of the block's period.
    Keep,
    /// The key of this period is wanted. `in_use` states whether the one in use may go on until it is there.
    Renew { period: NoncePeriod, in_use: bool },
}

/// The change of key at a block. The key of the period before may be in use for as long as it is not public.
pub(crate) fn key_change(block: u64, nonces_of: Option<NoncePeriod>) -> KeyChange {
    let period = NoncePeriod::of_block(block);
    match nonces_of {
        Some(in_use) if in_use >= period => KeyChange::Keep,
        Some(in_use) => KeyChange::Renew {
            period,
            in_use: block < in_use.reveal_block(),
        },
        None => KeyChange::Renew {
            period,
            in_use: false,
        },
    }
}

/// The bucket that may be closed at a block: the one that has just ended, as long as its draw block does not exist.
/// Answers that come later, or that were given while the validator was away, stand in a later bucket.
pub(crate) fn closable_bucket(block: u64, looked_at: Option<BucketNumber>) -> Option<BucketNumber> {
    let ended = BucketNumber(BucketNumber::of_block(block).0.checked_sub(1)?);
    (block < ended.draw_block() && looked_at.is_none_or(|last| last < ended)).then_some(ended)
}

impl LogKeeper {
    pub(crate) fn new(state: Arc<RunnerState>, last_closed: Option<BucketNumber>) -> Self {
        Self {
            state,
            looked_at: last_closed,
            nonces_of: None,
        }
    }

    /// Does what is due at a block.
    pub(crate) async fn advance(&mut self, block: u64) -> Result<(), StoreError> {
        let Some(auditor) = self.state.auditor() else {
            return Ok(());
        };
        self.renew_nonce_key(auditor, block).await?;
        self.state.seen_block.store(block, Ordering::Release);
        if let Some(bucket) = closable_bucket(block, self.looked_at) {
            self.close(auditor, bucket).await?;
            self.looked_at = Some(bucket);
            self.state.outcomes_due.store(true, Ordering::SeqCst);
        }
        for bucket in self.state.log.store().undrawn_buckets().await? {
            if bucket.bucket.draw_block() <= block {
                self.draw(&bucket).await?;
            }
        }
        Ok(())
    }

    /// Gives the gateway the key of its nonces, as soon as the first block of a period is final.
    async fn renew_nonce_key(&mut self, auditor: AuditorFacts, block: u64) -> Result<(), StoreError> {
        let state = &self.state;
        let (period, in_use) = match key_change(block, self.nonces_of) {
            KeyChange::Keep => return Ok(()),
            KeyChange::Renew { period, in_use } => (period, in_use),
        };
        let stored = state.store.nonce_period(period).await?;
        let hash = match stored {
            Some(hash) => Some(hash),
            None => state.subnet.block_hash(period.first_block()).await,
        };
        if let Some(hash) = hash {
            // Before the first nonce, so that every key that was used can be revealed.
            let now = state.clock.now();
            state.store.put_nonce_period(period, &hash, now).await?;
            let (key, _) =
                RevealedNonceKey::prove(&state.keypair, &auditor.genesis, auditor.netuid, period, hash);
            state.log.use_nonce_key(Some(key));
            self.nonces_of = Some(period);
        } else if !in_use {
            // The key in use is public by now, so nonces by it could be foreseen.
            state.log.use_nonce_key(None);
            self.nonces_of = None;
        }
        Ok(())
    }

    /// Closes a bucket, if there is anything that its header has to name: answers, or lists of own prompts.
    async fn close(&self, auditor: AuditorFacts, bucket: BucketNumber) -> Result<(), StoreError> {
        let state = &self.state;
        let answers = state.log.fill(bucket).await?;
        plan_own(state).await?;
        let lists = state.lists.take_planned();
        if answers.is_empty() && lists.is_empty() {
            return Ok(());
        }
        let watched = state.watched().await?;
        let daily = self.daily().await?;
        let shares = shares_of(&answers, &state.owners(), &daily, &watched, &state.settings);
        let canary_list = root_of_lists(lists.iter().map(|list| &list.digest));
        let previous = match state.log.store().last_bucket().await? {
            Some(last) => Envelope::<BucketHeader>::from_text(&last.header)
                .map_err(|error| StoreError::corrupt("header", error.to_string()))?
                .digest(),
            None => Digest::of(b""),
        };
        let header = header_of(auditor, bucket, &answers, &shares, previous, canary_list)
            .ok_or_else(|| StoreError::corrupt("proof", "no signed proof".to_owned()))?;
        let signed = seal(&header, &state.keypair);
        let closed = StoredBucket {
            bucket,
            answers: header.answers,
            header: signed.to_text(),
            shares: serde_json::to_string(&shares)
                .map_err(|error| StoreError::corrupt("shares", error.to_string()))?,
            canary_list,
            closed_at: state.clock.now(),
            draw: None,
        };
        state.enter(AuditPhase::ClosingBucket).await;
        let stored: Vec<_> = lists.iter().map(|list| (&list.head, &list.list)).collect();
        state
            .store
            .insert_lists(bucket, &stored, closed.closed_at)
            .await?;
        state.log.close(&closed).await?;
        state.lists.note_committed(bucket, lists);
        tracing::info!(
            bucket = bucket.0,
            answers = header.answers,
            "a bucket of answers is closed"
        );
        Ok(())
    }

    /// The answers of the last day by coldkey and model.
    async fn daily(&self) -> Result<DailyAnswers, StoreError> {
        let owners = self.state.owners();
        let since = self.state.clock.now().minus(DAY);
        let mut daily = DailyAnswers::new();
        for (miner, model, answers) in self.state.store.count_answers(since).await? {
            let owner = owners.get(&miner).copied().unwrap_or(miner.0);
            let of_owner = daily.entry((owner, model)).or_default();
            *of_owner = of_owner.saturating_add(answers);
        }
        Ok(daily)
    }

    async fn draw(&self, bucket: &StoredBucket) -> Result<(), StoreError> {
        let state = &self.state;
        let Some(block_hash) = state.subnet.block_hash(bucket.bucket.draw_block()).await else {
            return Ok(());
        };
        let envelope = Envelope::<BucketHeader>::from_text(&bucket.header)
            .map_err(|error| StoreError::corrupt("header", error.to_string()))?;
        let header = envelope
            .statement()
            .map_err(|error| StoreError::corrupt("header", error.to_string()))?;
        let shares: Vec<StoredShare> = serde_json::from_str(&bucket.shares)
            .map_err(|error| StoreError::corrupt("shares", error.to_string()))?;
        let (draw, proven) = BucketDraw::prove(&state.keypair, &header, &block_hash);
        let answers = state.log.store().answers_of_bucket(bucket.bucket).await?;
        let drawn = drawn_of(&answers, &draw, &shares);
        let stored = StoredDraw {
            block_hash,
            text: serde_json::to_string(&proven)
                .map_err(|error| StoreError::corrupt("draw", error.to_string()))?,
            at: state.clock.now(),
        };
        let own = state.store.answered_prompts(bucket.closed_at.minus(DAY)).await?;
        let kept: BTreeSet<String> = own.into_keys().collect();
        state.enter(AuditPhase::Drawing).await;
        state.log.draw(bucket.bucket, &stored, &drawn, &kept).await?;
        self.keep_forms(&answers, &drawn, &kept).await?;
        self.keep_replies(&answers, &kept).await?;
        let (key, _) = OwnPromptKey::prove(&state.keypair, &header, &block_hash);
        state.lists.release(bucket.bucket, &block_hash, &key);
        state.outcomes_due.store(true, Ordering::SeqCst);
        metrics::counter!("muster_audit_answers_total", "of" => "logged").increment(bucket.answers);
        metrics::counter!("muster_audit_answers_total", "of" => "drawn")
            .increment(u64::try_from(drawn.len()).unwrap_or(u64::MAX));
        tracing::info!(
            bucket = bucket.bucket.0,
            answers = bucket.answers,
            drawn = drawn.len(),
            "answers are drawn"
        );
        Ok(())
    }

    /// Keeps the texts of miners' answers to own prompts, so that later prompts go on with them as users do.
    async fn keep_replies(&self, answers: &[LoggedAnswer], own: &BTreeSet<String>) -> Result<(), StoreError> {
        let state = &self.state;
        for answer in answers.iter().filter(|answer| own.contains(&answer.id)) {
            if !proof_of(answer).is_some_and(|proof| is_chat(&proof)) {
                continue;
            }
            let words = state.log.store().find_text(&answer.id).await?;
            let shown = words.as_ref().and_then(|words| read_text(words, true));
            if let Some(reply) = shown.map(|shown| shown.text)
                && (1..=MAX_REPLY).contains(&reply.len())
            {
                state.store.put_reply(&answer.id, &reply).await?;
            }
        }
        Ok(())
    }

    /// Keeps the forms of users' requests among the drawn ones, so that own prompts look like them.
    async fn keep_forms(
        &self,
        answers: &[LoggedAnswer],
        drawn: &[String],
        own: &BTreeSet<String>,
    ) -> Result<(), StoreError> {
        let state = &self.state;
        let drawn: BTreeSet<&String> = drawn.iter().collect();
        let of_users = answers
            .iter()
            .filter(|answer| drawn.contains(&answer.id) && !own.contains(&answer.id));
        for answer in of_users.take(MAX_FORMS_OF_BUCKET) {
            let words = state.log.store().find_text(&answer.id).await?;
            if let (Some(words), Some(proof)) = (words, proof_of(answer))
                && let Some(form) = RequestForm::read(&words.request, proof.client_nonce.is_some())
            {
                let now = state.clock.now();
                let (model, client) = (&answer.model, &answer.client);
                state
                    .store
                    .put_form(&answer.id, model, client, &form, now)
                    .await?;
            }
        }
        Ok(())
    }
}

/// The header of a bucket with these answers; `None` if a proof cannot be decoded.
fn header_of(
    auditor: AuditorFacts,
    bucket: BucketNumber,
    answers: &[LoggedAnswer],
    shares: &[StoredShare],
    previous: Digest,
    canaries: Digest,
) -> Option<BucketHeader> {
    Some(BucketHeader {
        genesis: auditor.genesis,
        netuid: auditor.netuid,
        validator: ValidatorKey(auditor.validator.0),
        bucket,
        answers: u64::try_from(answers.len()).ok()?,
        root: root_of(leaf_hashes(answers)?),
        previous,
        shares: u64::try_from(shares.len()).ok()?,
        share_root: share_root(shares)?,
        canaries,
    })
}

/// The ids of the answers that a draw chooses.
fn drawn_of(answers: &[LoggedAnswer], draw: &BucketDraw, shares: &[StoredShare]) -> Vec<String> {
    let is_drawn = |answer: &&LoggedAnswer| {
        let ppm = share_ppm(shares, &answer.miner, &answer.model);
        answer.leaf().is_some_and(|leaf| draw.draws(&leaf.proof, ppm))
    };
    answers
        .iter()
        .filter(is_drawn)
        .map(|answer| answer.id.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_nonces_changes_with_the_period_and_is_not_used_once_it_is_public() {
        let change = |block, in_use: Option<u64>| key_change(block, in_use.map(NoncePeriod));
        let renew = |period, in_use| KeyChange::Renew {
            period: NoncePeriod(period),
            in_use,
        };
        assert_eq!(change(5, None), renew(0, false), "the first key");
        assert_eq!(change(299, Some(0)), KeyChange::Keep);
        assert_eq!(change(300, Some(0)), renew(1, true));
        assert_eq!(change(599, Some(0)), renew(1, true), "its block is not known yet");
        assert_eq!(change(600, Some(0)), renew(2, false), "the key is public");
        assert_eq!(
            change(299, Some(1)),
            KeyChange::Keep,
            "an older block of another node"
        );
    }

    #[test]
    fn a_bucket_is_closed_between_its_end_and_its_draw_block_and_once() {
        let closable =
            |block, last: Option<u64>| closable_bucket(block, last.map(BucketNumber)).map(|one| one.0);
        assert_eq!(closable(24, None), None, "the first bucket has not ended");
        assert_eq!(closable(25, None), Some(0));
        assert_eq!(closable(36, None), Some(0));
        assert_eq!(closable(37, None), None, "the draw block exists");
        assert_eq!(closable(49, None), None);
        assert_eq!(closable(50, Some(0)), Some(1));
        assert_eq!(closable(51, Some(1)), None, "it is closed");
        assert_eq!(closable(1_000, Some(1)), Some(39), "after a long absence");
    }
}
