//! Sends the messages about jobs' ends to the URLs that users named. Due messages lie in the store, so a restart loses
//! nothing; a message may come twice, with the same id.

use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, stream};
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
const MAX_PARALLEL: usize = 32;
/// Messages of one account in one round, so that a slow receiver delays the messages of its own account.
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
    /// Sends what is due, until it is dropped.
    pub async fn run(self) {
        loop {
            match self.send_due().await {
                // More may be due already.
                Ok(sent) if sent > 0 => {}
                Ok(_) => self.clock.sleep(LOOK_EVERY).await,
                Err(error) => {
                    tracing::warn!(error = %Causes(&error), "cannot read which webhooks are due; trying again");
                    self.clock.sleep(LOOK_EVERY).await;
                }
            }
        }
    }

    /// Sends one round of due messages. Returns how many were tried.
    async fn send_due(&self) -> Result<usize, StoreError> {
        let due = self.store.due_messages(PER_ACCOUNT, self.clock.now()).await?;
        let sending: Vec<_> = due.iter().map(|message| self.send(message)).collect();
        let mut sending = stream::iter(sending).buffer_unordered(MAX_PARALLEL);
        let mut tried = 0_usize;
        while let Some(sent) = sending.next().await {
            match sent {
                Ok(true) => tried = tried.saturating_add(1),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(error = %Causes(&error), "a webhook's attempt could not be stored");
                }
            }
        }
        Ok(tried)
    }

    /// Sends one message, unless another facilitator sends it. Returns whether it was tried.
    async fn send(&self, message: &DueMessage) -> Result<bool, StoreError> {
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
