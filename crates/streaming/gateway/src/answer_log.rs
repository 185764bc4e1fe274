//! The log of proven answers, as the validator keeps it: buckets are filled, closed with a signed header, and drawn
//! from.
//!
//! The validator draws the number and the answers. This part keeps the places of the answers and their
//! words: sealed until the draw, readable after it if the answer is audited, and gone otherwise.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_response_proof::BucketNumber;
use muster_store::StoreError;
use parking_lot::Mutex;

use crate::answer_text_keys::AnswerTextKeys;
use crate::nonces::NonceMaker;
use crate::store::{GatewayStore, LoggedAnswer, SealedText, StoredBucket, StoredDraw};

/// Bytes of words that become readable by the draw from one bucket. A drawn answer beyond it is not audited.
const MAX_READABLE: usize = 256 * 1024 * 1024;

/// The log of one gateway. Clones are the same one.
#[derive(Clone)]
pub struct AnswerLog {
    store: GatewayStore,
    words: Arc<AnswerTextKeys>,
    nonces: Arc<NonceMaker>,
}

impl AnswerLog {
    pub(crate) const fn new(
        store: GatewayStore,
        words: Arc<AnswerTextKeys>,
        nonces: Arc<NonceMaker>,
    ) -> Self {
        Self { store, words, nonces }
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
        // Own prompts are the better evidence. The others' ids are random, so nobody chooses which exceed the bound.
        let (own, others): (Vec<String>, Vec<String>) = sealed.into_iter().partition(|id| kept.contains(id));
        let others = others.into_iter().filter(|id| chosen.contains(id));
        let readable: Vec<String> = own.into_iter().chain(others).collect();
        let budget = Mutex::new(MAX_READABLE);
        let open = |id: &str, sealed: &SealedText| {
            let Some(words) = self.words.open(id, sealed) else {
                // The answer stays drawn, and counts for the miner.
                tracing::warn!(answer = id, "the key of a drawn answer's words is gone");
                return None;
            };
            let mut left = budget.lock();
            match left.checked_sub(words.request.len().saturating_add(words.response.len())) {
                Some(rest) => {
                    *left = rest;
                    Some(words)
                }
                None => {
                    tracing::warn!(
                        answer = id,
                        bucket = bucket.0,
                        "the drawn answers of a bucket have too many words"
                    );
                    None
                }
            }
        };
        self.store
            .store_draw(bucket, draw, drawn, &readable, &open)
            .await?;
        let oldest = self.store.oldest_needed_key().await?;
        self.words.forget_unneeded(oldest);
        Ok(())
    }
}
