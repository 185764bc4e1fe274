//! The log of proven answers, as the validator keeps it: buckets are filled, closed with a signed header, and drawn
//! from.
//!
//! The validator draws the number and the answers. This part keeps the places of the answers and their
//! words: sealed until the draw, readable after it if the answer is audited, and gone otherwise.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_protocol::Digest;
use muster_response_proof::BucketNumber;
use muster_store::StoreError;

use crate::answer_text_keys::AnswerTextKeys;
use crate::backend::ValidatorBackend;
use crate::nonces::NonceMaker;
use crate::store::{GatewayStore, LoggedAnswer, SealedAnswer, SealedText, StoredBucket, StoredDraw};
use crate::text_budget::{AnswerParties, TextBudget};

/// Bytes of words that become readable by the draw from one bucket. A drawn answer beyond it is not audited.
const MAX_READABLE: u64 = 256 * 1024 * 1024;

/// The log of one gateway. Clones are the same one.
#[derive(Clone)]
pub struct AnswerLog {
    store: GatewayStore,
    words: Arc<AnswerTextKeys>,
    nonces: Arc<NonceMaker>,
    backend: Arc<dyn ValidatorBackend>,
}

impl AnswerLog {
    pub(crate) fn new(
        store: GatewayStore,
        words: Arc<AnswerTextKeys>,
        nonces: Arc<NonceMaker>,
        backend: Arc<dyn ValidatorBackend>,
    ) -> Self {
        Self {
            store,
            words,
            nonces,
            backend,
        }
    }

    /// Makes the nonces of all later requests by this key of the validator's; random ones without a key.
    pub fn use_nonce_key(&self, key: Option<[u8; 32]>) {
        self.nonces.use_key(key);
    }

    /// The tables behind the log.
    pub const fn store(&self) -> &GatewayStore {
        &self.store
    }

    /// Gives the answers that stand in no bucket yet their places in this one, and returns all of its answers. The
    /// words of later answers get another key.
    ///
    /// # Errors
    /// The database fails.
    pub async fn fill(&self, bucket: BucketNumber) -> Result<Vec<LoggedAnswer>, StoreError> {
        self.words.begin_next();
        self.store.fill_bucket(bucket).await
    }

    /// Stores the signed header of a bucket, after which no answer joins it.
    ///
    /// # Errors
    /// The database fails.
    pub async fn close(&self, closed: &StoredBucket) -> Result<(), StoreError> {
        self.store.close_bucket(closed).await
    }

    /// Stores a draw: the words of the answers in `kept` and of drawn answers become readable, up to a bound in bytes,
    /// and those of all others of the bucket are shredded: their rows go, and then their key.
    ///
    /// # Errors
    /// The database fails.
    pub async fn draw(
        &self,
        bucket: BucketNumber,
        draw: &StoredDraw,
        drawn: &[String],
        kept: &BTreeSet<String>,
    ) -> Result<(), StoreError> {
        let chosen: BTreeSet<&String> = drawn.iter().collect();
        let sealed = self.store.sealed_answers(bucket).await?;
        let is_needed = |answer: &SealedAnswer| kept.contains(&answer.id) || chosen.contains(&answer.id);
        let needed: Vec<SealedAnswer> = sealed.into_iter().filter(is_needed).collect();
        let readable = self.choose_readable(needed, kept, &draw.block_hash);
        let open = |id: &str, sealed: &SealedText| {
            let words = self.words.open(id, sealed);
            if words.is_none() {
                // The answer stays drawn, and counts for the miner.
                tracing::warn!(answer = id, "the key of a drawn answer's words is gone");
            }
            words
        };
        self.store
            .store_draw(bucket, draw, drawn, &readable, &open)
            .await?;
        let oldest = self.store.oldest_needed_key().await?;
        self.words.forget_unneeded(oldest);
        Ok(())
    }

    /// The answers whose texts become readable: own prompts, which are the better evidence, and of the others as many
    /// as have room. Parties that hold the most of them have theirs left out first.
    fn choose_readable(
        &self,
        needed: Vec<SealedAnswer>,
        own: &BTreeSet<String>,
        block: &Digest,
    ) -> Vec<String> {
        let (own, others): (Vec<SealedAnswer>, Vec<SealedAnswer>) =
            needed.into_iter().partition(|answer| own.contains(&answer.id));
        let bytes = own.iter().map(|answer| answer.bytes).fold(0, u64::saturating_add);
        // The block came after the answers, and their ids are random.
        let mut budget = TextBudget::new(MAX_READABLE.saturating_sub(bytes), *block.as_bytes());
        let mut left_out = BTreeSet::new();
        for answer in &others {
            let parties = AnswerParties {
                session: answer.session,
                client: answer.client,
                coldkey: self.backend.owner_of(answer.miner),
            };
            let gone = budget.admit(&answer.id, parties, answer.bytes);
            left_out.extend(gone.into_iter().map(|gone| gone.id));
        }
        if !left_out.is_empty() {
            tracing::warn!(
                answers = left_out.len(),
                "the drawn answers of a bucket have too many words"
            );
        }
        let others = others.into_iter().filter(|answer| !left_out.contains(&answer.id));
        own.into_iter().chain(others).map(|answer| answer.id).collect()
    }
}
