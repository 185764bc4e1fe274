//! Counts the tokens of answers that have ended, by the models' own tokenizers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_protocol::Digest;
use muster_session_pool::Service;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::token_count::{CountedExchange, ModelTokenizer, TokenizerError, count_exchange};

/// Texts that are counted at a time: counting takes a core.
const COUNTED_AT_A_TIME: usize = 2;
/// Texts of one client that are counted or wait for it. A client that sends more at a time has the others bounded, and
/// keeps nobody else's from being counted.
const COUNTED_OF_A_CLIENT: usize = 4;
/// The longest wait for a place. Together with [`COUNT_LIMIT`] it bounds how much later a client sees the end of its
/// answer.
const PLACE_LIMIT: Duration = Duration::from_secs(4);
/// The longest time that a count may take.
const COUNT_LIMIT: Duration = Duration::from_secs(2);

/// The tokenizers of the models that have one.
#[derive(Debug)]
pub(crate) struct TokenCounters {
    by_model: BTreeMap<String, Arc<ModelTokenizer>>,
    permits: Arc<Semaphore>,
    /// The texts of each client that are counted or wait for it.
    clients: Mutex<HashMap<Digest, usize>>,
}

/// A client's place among the texts that are counted, until this is dropped.
struct ClientPlace<'a> {
    counters: &'a TokenCounters,
    client: Digest,
}

impl Drop for ClientPlace<'_> {
    fn drop(&mut self) {
        let mut clients = self.counters.clients.lock();
        if let std::collections::hash_map::Entry::Occupied(mut known) = clients.entry(self.client) {
            *known.get_mut() -= 1;
            if *known.get() == 0 {
                known.remove();
            }
        }
    }
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
            clients: Mutex::default(),
        })
    }

    /// Whether the tokens of this model are counted.
    pub(crate) fn knows(&self, model: &str) -> bool {
        self.by_model.contains_key(model)
    }

    /// The tokens of a client's request and of its answers' texts. `None` if the model has no tokenizer, the client has
    /// too many texts that are counted already, or a text is too long or takes too long: then the engine's report is
    /// bounded by bytes.
    pub(crate) async fn count(
        &self,
        model: &str,
        client: Digest,
        request: Bytes,
        texts: Vec<String>,
    ) -> Option<CountedExchange> {
        let tokenizer = Arc::clone(self.by_model.get(model)?);
        let counted = match self.place(client) {
            Some(_place) => self.count_in_turn(tokenizer, request, texts).await,
            None => None,
        };
        if counted.is_none() {
            tracing::info!(
                model,
                %client,
                "the tokens of an answer are bounded by its bytes, not counted"
            );
        }
        counted
    }

    fn place(&self, client: Digest) -> Option<ClientPlace<'_>> {
        let mut clients = self.clients.lock();
        let counted = clients.entry(client).or_default();
        if *counted >= COUNTED_OF_A_CLIENT {
            return None;
        }
        *counted += 1;
        Some(ClientPlace {
            counters: self,
            client,
        })
    }

    async fn count_in_turn(
        &self,
        tokenizer: Arc<ModelTokenizer>,
        request: Bytes,
        texts: Vec<String>,
    ) -> Option<CountedExchange> {
        let place = Arc::clone(&self.permits).acquire_owned();
        let permit = timeout(PLACE_LIMIT, place).await.ok()?.ok()?;
        let counting = tokio::task::spawn_blocking(move || {
            // The thread may take longer than anybody waits.
            let _permit = permit;
            count_exchange(&tokenizer, &request, &texts)
        });
        timeout(COUNT_LIMIT, counting).await.ok()?.ok()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_takes_its_own_places_and_gives_them_back() {
        let counters = TokenCounters::open(&[]).unwrap();
        let (one, other) = (Digest::of(b"one"), Digest::of(b"other"));
        let places: Vec<_> = (0..COUNTED_OF_A_CLIENT)
            .map(|_| counters.place(one).unwrap())
            .collect();
        assert!(counters.place(one).is_none());
        assert!(counters.place(other).is_some(), "others have their own");
        drop(places);
        assert!(counters.place(one).is_some());
        assert!(
            counters.clients.lock().is_empty(),
            "clients that wait for nothing are forgotten"
        );
    }
}
