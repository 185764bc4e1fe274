//! The use of models: tokens are reserved before a request is forwarded, and settled once its answer has ended.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_facilitator_core::credentials::Account;
use muster_facilitator_store::{Store, TokenPair, UsageReservation};
use muster_openai::{OpenAiError, TokenBounds};
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::Timestamp;
use muster_store::StoreError;

const DAY_S: i64 = 86_400;

/// Tokens of output that a request reserves if it sets no limit.
const UNLIMITED_OUTPUT: u64 = 4_096;

/// Tokens of output that a request reserves at most: more than any model answers, and few enough that the sums of a
/// store do not overflow, whatever limit a request names.
const MOST_OUTPUT: u64 = 1 << 24;

/// The most tokens that a request may use; more than its output if it sets no limit.
fn most_tokens(body: &[u8]) -> TokenPair {
    let bounds = TokenBounds::of(body);
    TokenPair {
        input: bounds.input,
        output: bounds.output.unwrap_or(UNLIMITED_OUTPUT).min(MOST_OUTPUT),
    }
}

/// The counter of all requests.
#[derive(Debug)]
pub(crate) struct UsageCounter {
    pub(crate) store: Store,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    /// Tokens of one account a day, if they are limited.
    pub(crate) daily_tokens: Option<u64>,
}

impl UsageCounter {
    /// Counts a request with this body.
    ///
    /// # Errors
    /// The request may use more than its account has left today, or the store fails.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        account: &Account,
        model: &str,
        body: &[u8],
    ) -> Result<Arc<CountedRequest>, ReservationError> {
        let (wanted, now) = (most_tokens(body), self.clock.now());
        let reserved = self
            .store
            .reserve_usage(account, model, wanted, self.daily_tokens, now)
            .await?;
        match (reserved, self.daily_tokens) {
            (Ok(reservation), _) => Ok(Arc::new(CountedRequest {
                counter: Arc::clone(self),
                open: Mutex::new(Some(reservation)),
            })),
            (Err(full), limit) => Err(ReservationError::Exhausted(exhausted(
                full.used,
                full.wanted,
                limit.unwrap_or_default(),
                now,
            ))),
        }
    }

    fn settle(&self, reservation: UsageReservation, used: Option<TokenPair>) {
        let store = self.store.clone();
        drop(self.tasks.spawn("usage", async move {
            if let Err(error) = store.settle_usage(&reservation, used).await {
                tracing::error!(error = %Causes(&error), ?reservation, ?used, "cannot settle the usage of a request");
            }
        }));
    }
}

/// The reason why a request is not forwarded.
#[derive(Debug)]
pub(crate) enum ReservationError {
    Exhausted(OpenAiError),
    Store(StoreError),
}

impl From<StoreError> for ReservationError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

fn exhausted(used: u64, wanted: u64, limit: u64, now: Timestamp) -> OpenAiError {
    let left = DAY_S - now.secs().rem_euclid(DAY_S);
    OpenAiError::QuotaExceeded {
        message: format!(
            "the request may use {wanted} tokens, and the account's requests of today have used or reserved {used} of \
             its {limit} tokens a day; set a smaller max_tokens, or wait for midnight UTC"
        ),
        retry_after: Duration::from_secs(u64::try_from(left).unwrap_or(1)),
    }
}

/// A request that is counted. It is settled once: with the tokens of its answer, or with none if it is dropped before.
#[derive(Debug)]
pub(crate) struct CountedRequest {
    counter: Arc<UsageCounter>,
    open: Mutex<Option<UsageReservation>>,
}

impl CountedRequest {
    /// The answer has ended; `None` if it was no success.
    pub(crate) fn settle(&self, used: Option<TokenPair>) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reservation) = open {
            self.counter.settle(reservation, used);
        }
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.settle(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reserves_what_its_bytes_and_its_limit_allow() {
        let tokens = most_tokens(br#"{"max_tokens":10,"n":2}"#);
        assert_eq!(tokens, TokenPair { input: 8, output: 20 });
        assert_eq!(most_tokens(b"{}").output, UNLIMITED_OUTPUT);
        let absurd = format!(r#"{{"max_tokens":{},"n":{}}}"#, u64::MAX, u64::MAX);
        assert_eq!(most_tokens(absurd.as_bytes()).output, MOST_OUTPUT);
    }

    #[test]
    fn a_refusal_says_what_to_do_and_when() {
        let at = Timestamp::from_secs(DAY_S * 3 + 60);
        let OpenAiError::QuotaExceeded { message, retry_after } = exhausted(90, 20, 100, at) else {
            panic!("not a quota");
        };
        assert!(
            message.contains("may use 20 tokens") && message.contains("90 of its 100"),
            "{message}"
        );
        assert_eq!(retry_after, Duration::from_secs(86_340));
    }
}
