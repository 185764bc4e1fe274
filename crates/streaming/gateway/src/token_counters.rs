//! Counts the tokens of answers that have ended, by the models' own tokenizers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_openai::TokenUsage;
use muster_session_pool::Service;
use muster_token_count::{ModelTokenizer, TokenizerError, count_exchange};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Texts that are counted at a time: counting takes a core.
const COUNTED_AT_A_TIME: usize = 2;
/// The longest wait for a count. A client waits so long for the end of its answer at most.
const COUNT_LIMIT: Duration = Duration::from_secs(2);

/// The tokenizers of the models that have one.
#[derive(Debug)]
pub(crate) struct TokenCounters {
    by_model: BTreeMap<String, Arc<ModelTokenizer>>,
    permits: Arc<Semaphore>,
}

impl TokenCounters {
    /// Reads the tokenizers that the whitelist names.
    ///
    /// # Errors
    /// A file cannot be read, is another one than the whitelist names, or is no tokenizer.
    pub(crate) fn open(services: &[Service]) -> Result<Self, TokenizerError> {
        let mut by_model = BTreeMap::new();
        for service in services {
            if let Some(file) = &service.tokenizer {
                let tokenizer = ModelTokenizer::open(&file.path, &file.sha256)?;
                by_model.insert(service.model.clone(), Arc::new(tokenizer));
            }
        }
        Ok(Self {
            by_model,
            permits: Arc::new(Semaphore::new(COUNTED_AT_A_TIME)),
        })
    }

    /// Whether the tokens of this model are counted.
    pub(crate) fn knows(&self, model: &str) -> bool {
        self.by_model.contains_key(model)
    }

    /// The tokens of a request and of its answers' texts. `None` if the model has no tokenizer, or a text is too long
    /// or takes too long: then the engine's report is bounded by bytes.
    pub(crate) async fn count(&self, model: &str, request: Bytes, texts: Vec<String>) -> Option<TokenUsage> {
        let tokenizer = Arc::clone(self.by_model.get(model)?);
        let permits = Arc::clone(&self.permits);
        let counting = async {
            let permit = permits.acquire_owned().await.ok()?;
            let counting = tokio::task::spawn_blocking(move || {
                // The thread may take longer than anybody waits.
                let _permit = permit;
                count_exchange(&tokenizer, &request, &texts)
            });
            counting.await.ok().flatten()
        };
        let counted = timeout(COUNT_LIMIT, counting).await.ok().flatten();
        if counted.is_none() {
            tracing::info!(
                model,
                "the tokens of an answer are bounded by its bytes, not counted"
            );
        }
        counted
    }
}
