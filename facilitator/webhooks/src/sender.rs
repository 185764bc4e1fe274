//! Sends the messages about jobs' ends to the URLs that users named. Due messages lie in the store, so a restart loses
//! nothing; a message may come twice, with the same id.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use muster_job_data::{NotificationError, Notifications};
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::rest::JobView;
use muster_protocol::{JobId, Timestamp};
use muster_store::StoreError;

use crate::message::{
    DeliveryOutcome, ID_HEADER, NextStep, SIGNATURE_HEADER, TIMESTAMP_HEADER, WebhookSecret, describe_end,
    message_id, next_step, unix_seconds,
};
use crate::store::{DueMessage, WebhookStore};

/// How long an attempt may take.
pub const ATTEMPT_LIMIT: Duration = Duration::from_secs(10);
/// The pause between two looks into the store.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Attempts at the same time.
const MAX_PARALLEL: usize = 256;
/// Attempts of one account at the same time, so that a slow receiver delays the messages of its own account.
const PER_ACCOUNT_AT_ONCE: usize = 4;
/// Messages of one account that are looked at.
const PER_ACCOUNT: u32 = 4;

/// A message ready to be sent.
#[derive(Debug)]
struct SignedMessage {
    headers: HeaderMap,
    body: String,
}

/// Reads a job as its user sees it; `None` if there is no such job.
pub type ReadJobView =
    Box<dyn Fn(JobId) -> BoxFuture<'static, Result<Option<JobView>, StoreError>> + Send + Sync>;

/// The jobs whose messages are under way, by account.
#[derive(Debug, Default)]
struct AttemptsInFlight(BTreeMap<String, BTreeSet<JobId>>);

impl AttemptsInFlight {
    /// Begins an attempt, if there is a place for it and none of the same message is under way.
    fn begin(&mut self, account: &str, job: JobId) -> bool {
        let all: usize = self.0.values().map(BTreeSet::len).sum();
        let of_account = self.0.get(account).map_or(0, BTreeSet::len);
        let has_place = of_account < PER_ACCOUNT_AT_ONCE && all < MAX_PARALLEL;
        has_place && self.0.entry(account.to_owned()).or_default().insert(job)
    }

    /// Ends an attempt.
    fn end(&mut self, account: &str, job: JobId) {
        if let Some(jobs) = self.0.get_mut(account) {
            jobs.remove(&job);
            if jobs.is_empty() {
                self.0.remove(account);
            }
        }
    }
}

/// Sends messages that are due.
pub struct WebhookSender {
    /// The messages of all accounts, in the facilitator's database.
    pub store: WebhookStore,
    /// Reads the job that a message is about.
    pub read_job: ReadJobView,
    /// The way to the receivers.
    pub notifications: Notifications,
    /// The source of time.
    pub clock: SharedClock,
}

impl WebhookSender {
    /// Sends what is due, until it is dropped. A receiver that is slow keeps its own account's messages back, and a few
    /// of the places, until its attempts end.
    pub async fn run(self) {
        let mut in_flight = AttemptsInFlight::default();
        let mut sending = FuturesUnordered::new();
        loop {
            match self.store.due_messages(PER_ACCOUNT, self.clock.now()).await {
                Ok(due) => {
                    for message in due {
                        if in_flight.begin(&message.account, message.job) {
                            sending.push(self.send(message));
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(error = %Causes(&error), "cannot read which webhooks are due; trying again");
                }
            }
            let mut pause = std::pin::pin!(self.clock.sleep(LOOK_EVERY));
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    Some((message, was_tried)) = sending.next() => {
                        in_flight.end(&message.account, message.job);
                        // More may be due already.
                        if was_tried {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Sends one message, unless another facilitator sends it. Returns it, and whether it was tried.
    async fn send(&self, message: DueMessage) -> (DueMessage, bool) {
        let was_tried = match self.try_once(&message).await {
            Ok(was_tried) => was_tried,
            Err(error) => {
                tracing::warn!(error = %Causes(&error), "a webhook's attempt could not be stored");
                false
            }
        };
        (message, was_tried)
    }

    async fn try_once(&self, message: &DueMessage) -> Result<bool, StoreError> {
        if !self.store.claim_message(message, self.clock.now()).await? {
            return Ok(false);
        }
        let attempts = message.attempts.saturating_add(1);
        let outcome = match self.prepare(message).await? {
            Some(signed) => self.post(message, signed).await,
            None => DeliveryOutcome::Refused("the account has no webhook any more".to_owned()),
        };
        let step = next_step(outcome, attempts);
        match &step {
            NextStep::Delivered => tracing::debug!(job = %message.job, attempts, "sent a webhook"),
            NextStep::Retry(pause, reason) => {
                tracing::debug!(job = %message.job, attempts, ?pause, reason, "a webhook is sent again");
            }
            NextStep::GiveUp(reason) => {
                tracing::info!(job = %message.job, attempts, reason, "gave a webhook up");
            }
        }
        self.store
            .note_attempt(message.job, &step, self.clock.now())
            .await?;
        Ok(true)
    }

    async fn prepare(&self, message: &DueMessage) -> Result<Option<SignedMessage>, StoreError> {
        let Some(webhook) = self.store.account_webhook(&message.account).await? else {
            return Ok(None);
        };
        let Some(view) = (self.read_job)(message.job).await? else {
            return Ok(None);
        };
        let body = describe_end(&view);
        Ok(sign(&webhook.secret, message.job, self.clock.now(), body))
    }

    async fn post(&self, message: &DueMessage, signed: SignedMessage) -> DeliveryOutcome {
        match self
            .notifications
            .post(&message.url, signed.headers, signed.body)
            .await
        {
            Ok(status) => DeliveryOutcome::Answered(status.as_u16()),
            Err(NotificationError::Refused(reason)) => DeliveryOutcome::Refused(reason),
            Err(NotificationError::Unanswered(reason)) => DeliveryOutcome::Failed(reason),
        }
    }
}

fn sign(secret: &WebhookSecret, job: JobId, now: Timestamp, body: String) -> Option<SignedMessage> {
    let id = message_id(job);
    let values = [
        (ID_HEADER, id.clone()),
        (TIMESTAMP_HEADER, unix_seconds(now).to_string()),
        (SIGNATURE_HEADER, secret.sign(&id, now, &body)),
    ];
    let mut headers = HeaderMap::new();
    for (name, value) in values {
        headers.insert(HeaderName::from_static(name), HeaderValue::try_from(value).ok()?);
    }
    Some(SignedMessage { headers, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_four_attempts_at_once_and_leaves_the_others_their_places() {
        let mut in_flight = AttemptsInFlight::default();
        let job = |number: usize| JobId::from_uuid(uuid::Uuid::from_u128(number as u128));
        let begun = (0..9)
            .filter(|number| in_flight.begin("slow", job(*number)))
            .count();
        assert_eq!(begun, PER_ACCOUNT_AT_ONCE);
        assert!(
            in_flight.begin("quick", job(10)) && !in_flight.begin("quick", job(10)),
            "each once"
        );
        in_flight.end("slow", job(0));
        assert!(in_flight.begin("slow", job(0)) && !in_flight.begin("slow", job(9)));
        let others = (0..MAX_PARALLEL).filter(|other| in_flight.begin(&other.to_string(), job(*other)));
        assert_eq!(others.count(), MAX_PARALLEL - 5, "as many as there are places");
    }
}
