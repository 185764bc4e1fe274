//! Webhooks: the message about a job's end, its signature, and when a message is sent again. Pure.
//!
//! The signature is that of Standard Webhooks (<https://www.standardwebhooks.com>), so that receivers may check it with
//! a library: HMAC-SHA256 over `ID.TIMESTAMP.BODY`, in the headers [`ID_HEADER`], [`TIMESTAMP_HEADER`] and
//! [`SIGNATURE_HEADER`].

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac as _};
use muster_protocol::job::Outcome;
use muster_protocol::rest::JobView;
use muster_protocol::wire::facilitator::StatusMetadata;
use muster_protocol::{JobId, Timestamp};
use serde_json::{Map, Value, json};
use sha2::Sha256;

/// The header with the id of the message. A message that is sent again has the same id.
pub const ID_HEADER: &str = "webhook-id";
/// The header with the time of sending, in Unix seconds. A receiver refuses an old one: it may be a replay.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// The header with the signature, `v1,` and base64.
pub const SIGNATURE_HEADER: &str = "webhook-signature";

/// How often a message is sent, at most.
pub const MAX_ATTEMPTS: u32 = 8;

/// The longest URL of a webhook, in bytes.
pub const MAX_URL: usize = 2_048;

/// The pauses after the first attempts, in seconds; about nine hours in all.
const PAUSES: [u64; 7] = [5, 30, 120, 600, 1_800, 7_200, 21_600];

/// The prefix of a secret's text form.
const SECRET_PREFIX: &str = "whsec_";
/// Names in a list of a message, at most, and the characters of a text in it.
const MAX_NAMES: usize = 64;
const MAX_CHARS: usize = 500;

/// The secret of an account's webhooks: 32 random bytes; text form `whsec_` and base64.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret([u8; 32]);

/// The text is no secret of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a webhook's secret is {SECRET_PREFIX} and the base64 of 32 bytes")]
pub struct WebhookSecretError;

/// The answer to a message, or the lack of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The receiver answered with this status.
    Answered(u16),
    /// There was no answer, for this reason; the next attempt may have one.
    Failed(String),
    /// The facilitator does not send to this URL, for this reason.
    Refused(String),
}

/// The step that follows an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// The receiver has the message.
    Delivered,
    /// The message is sent again after this pause, because of this.
    Retry(Duration, String),
    /// The message is not sent again, because of this.
    GiveUp(String),
}

impl WebhookSecret {
    /// Wraps bytes that the caller has drawn.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The text form. It is shown to the account's user once, and stored.
    pub fn reveal(&self) -> String {
        format!("{SECRET_PREFIX}{}", STANDARD.encode(self.0))
    }

    /// The value of [`SIGNATURE_HEADER`] for a message.
    pub fn sign(&self, id: &str, sent: Timestamp, body: &str) -> String {
        let seconds = unix_seconds(sent);
        let signed = format!("{id}.{seconds}.{body}");
        // A key of any length is accepted.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else {
            return String::new();
        };
        mac.update(signed.as_bytes());
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for WebhookSecret {
    /// Keeps the secret out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(…)")
    }
}

impl FromStr for WebhookSecret {
    type Err = WebhookSecretError;

    fn from_str(text: &str) -> Result<Self, WebhookSecretError> {
        let encoded = text.strip_prefix(SECRET_PREFIX).ok_or(WebhookSecretError)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| WebhookSecretError)?;
        bytes.try_into().map(Self).map_err(|_| WebhookSecretError)
    }
}

/// The time as receivers read it in [`TIMESTAMP_HEADER`].
pub fn unix_seconds(time: Timestamp) -> i64 {
    time.micros().div_euclid(1_000_000)
}

/// The id of the message about a job's end.
pub fn message_id(job: JobId) -> String {
    format!("job_ended_{job}")
}

/// Decides what follows from attempt number `attempts`, the first of which is 1.
pub fn next_step(outcome: DeliveryOutcome, attempts: u32) -> NextStep {
    let reason = match outcome {
        DeliveryOutcome::Answered(200..=299) => return NextStep::Delivered,
        DeliveryOutcome::Answered(410) => {
            return NextStep::GiveUp("the receiver answered 410: it wants no messages".to_owned());
        }
        DeliveryOutcome::Answered(status @ 300..=399) => {
            format!("the receiver answered {status}; redirects are not followed")
        }
        DeliveryOutcome::Answered(status) => format!("the receiver answered {status}"),
        DeliveryOutcome::Failed(reason) => shorten(&reason),
        DeliveryOutcome::Refused(reason) => return NextStep::GiveUp(shorten(&reason)),
    };
    let before = usize::try_from(attempts.saturating_sub(1)).unwrap_or(usize::MAX);
    match PAUSES.get(before) {
        Some(seconds) if attempts < MAX_ATTEMPTS => NextStep::Retry(Duration::from_secs(*seconds), reason),
        Some(_) | None => NextStep::GiveUp(reason),
    }
}

/// The body of the message about a job's end: its id, its status and a summary of its result. It holds no output.
pub fn describe_end(view: &JobView) -> String {
    let last = view.status_history.last();
    let metadata = last.and_then(|entry| entry.metadata.as_ref());
    let mut data = Map::new();
    data.insert("job".to_owned(), json!(view.uuid));
    data.insert("status".to_owned(), json!(view.last_status()));
    data.insert("created_at".to_owned(), json!(view.created_at));
    data.insert("ended_at".to_owned(), json!(view.last_update));
    data.insert("docker_image".to_owned(), json!(shorten(&view.docker_image)));
    if let Some(image) = &view.image {
        data.insert("image_id".to_owned(), json!(image.id));
        data.insert("image_manifest".to_owned(), json!(image.manifest));
    }
    let summary = metadata.and_then(summarise_failure);
    data.extend(summary.unwrap_or_default());
    data.insert("artifacts".to_owned(), list(view.artifacts.keys()));
    data.insert("delivered_outputs".to_owned(), list(view.upload_results.keys()));
    json!({ "type": "job.ended", "timestamp": view.last_update, "data": data }).to_string()
}

/// The message, the reason, the party at fault and the exit code of a job that did not succeed.
fn summarise_failure(metadata: &StatusMetadata) -> Option<Map<String, Value>> {
    let (outcome, reason, message, exit) = if let Some(details) = &metadata.job_rejection_details {
        let outcome = Outcome::Rejected(details.clone());
        (outcome, details.reason.as_str(), &details.message, None)
    } else if let Some(details) = &metadata.job_failure_details {
        let outcome = Outcome::Failed(Box::new(details.clone()));
        let exit = details.docker_process_exit_status;
        (outcome, details.reason.as_str(), &details.message, exit)
    } else {
        let details = metadata.horde_failure_details.as_ref()?;
        let outcome = Outcome::HordeFailed(details.clone());
        (outcome, details.reason.as_str(), &details.message, None)
    };
    let fields = [
        ("reason", json!(reason)),
        ("message", json!(shorten(message))),
        ("fault", json!(outcome.fault())),
        ("exit_code", json!(exit)),
    ];
    let fields = fields.into_iter().map(|(key, value)| (key.to_owned(), value));
    Some(fields.collect())
}

fn list<'a>(names: impl Iterator<Item = &'a String>) -> Value {
    names.take(MAX_NAMES).map(|name| shorten(name)).collect()
}

fn shorten(text: &str) -> String {
    text.chars().take(MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_the_one_that_receivers_libraries_compute() {
        let secret = WebhookSecret::from_bytes([7; 32]);
        assert_eq!(
            secret.reveal(),
            "whsec_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc="
        );
        assert_eq!(secret.reveal().parse(), Ok(secret.clone()));
        assert!(!format!("{secret:?}").contains("Bwc"));
        let signed = secret.sign("job_ended_1", Timestamp::from_secs(1_700_000_000), r#"{"a":1}"#);
        assert_eq!(signed, "v1,aYlH+4a57mKUgr6qvNqVuB6GarjE6Huv7PLHitQRIyw=");
        for bad in [
            "",
            "whsec_",
            "whsec_BwcH",
            "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=",
        ] {
            assert_eq!(bad.parse::<WebhookSecret>(), Err(WebhookSecretError), "{bad}");
        }
    }

    #[test]
    fn attempts_are_bounded_and_their_pauses_grow() {
        let failed = || DeliveryOutcome::Answered(500);
        let mut pauses = Vec::new();
        for attempt in 1..MAX_ATTEMPTS {
            match next_step(failed(), attempt) {
                NextStep::Retry(pause, reason) => {
                    assert_eq!(reason, "the receiver answered 500");
                    pauses.push(pause);
                }
                other @ (NextStep::Delivered | NextStep::GiveUp(_)) => panic!("{other:?}"),
            }
        }
        assert!(pauses.is_sorted() && pauses.len() == 7);
        for attempt in [MAX_ATTEMPTS, MAX_ATTEMPTS + 1, u32::MAX] {
            assert!(matches!(next_step(failed(), attempt), NextStep::GiveUp(_)));
        }
        assert_eq!(next_step(DeliveryOutcome::Answered(204), 1), NextStep::Delivered);
        assert!(matches!(
            next_step(DeliveryOutcome::Answered(302), 1),
            NextStep::Retry(..)
        ));
        for end in [
            DeliveryOutcome::Answered(410),
            DeliveryOutcome::Refused("inside".to_owned()),
        ] {
            assert!(matches!(next_step(end, 1), NextStep::GiveUp(_)));
        }
    }
}
