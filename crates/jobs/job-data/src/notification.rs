//! Sends one small message to a URL that a user named, under the same rules of addresses as a job's data.

use std::sync::Arc;
use std::time::Duration;

use muster_http::addresses::AddressRules;
use muster_process::error::Causes;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use tokio::time::timeout;

use crate::error::HttpError;
use crate::job_url::Target;
use crate::pinned_request::PinnedClient;

/// The reason why a message was not answered.
#[derive(Debug, thiserror::Error)]
pub enum NotificationError {
    /// The rules forbid the URL or its addresses; another attempt would not help.
    #[error("{0}")]
    Refused(String),
    /// The receiver cannot be reached, or did not answer in time.
    #[error("{0}")]
    Unanswered(String),
}

/// Sends messages under an operator's rules of addresses.
#[derive(Clone, Debug)]
pub struct Notifications {
    rules: Arc<AddressRules>,
    limit: Duration,
}

impl Notifications {
    /// Each message takes `limit` at most, from the look-up of the name to the answer's head.
    pub fn new(rules: AddressRules, limit: Duration) -> Self {
        Self {
            rules: Arc::new(rules),
            limit,
        }
    }

    /// Checks a URL as far as its text allows.
    ///
    /// # Errors
    /// The reason, for the user who named the URL.
    pub fn check(&self, url: &str) -> Result<(), String> {
        Target::parse(url, &self.rules)
            .map(drop)
            .map_err(|error| error.to_string())
    }

    /// Posts `body` as JSON and returns the status of the answer. The name is resolved anew for each message. No
    /// redirect is followed, and the answer's body is not read.
    ///
    /// # Errors
    /// See [`NotificationError`].
    pub async fn post(
        &self,
        url: &str,
        headers: HeaderMap,
        body: String,
    ) -> Result<StatusCode, NotificationError> {
        let target =
            Target::parse(url, &self.rules).map_err(|error| NotificationError::Refused(error.to_string()))?;
        let sent = timeout(self.limit, self.send(&target, headers, body)).await;
        sent.unwrap_or_else(|_| {
            let seconds = self.limit.as_secs();
            Err(NotificationError::Unanswered(format!(
                "the receiver did not answer within {seconds} s"
            )))
        })
    }

    async fn send(
        &self,
        target: &Target,
        headers: HeaderMap,
        body: String,
    ) -> Result<StatusCode, NotificationError> {
        let client = PinnedClient::new(Arc::clone(&self.rules));
        let client = client.client(target).await.map_err(|error| {
            if let HttpError::NotPublic { host } = &error {
                NotificationError::Refused(format!("{host} has no address on the public Internet"))
            } else {
                NotificationError::Unanswered(Causes(&error).to_string())
            }
        })?;
        let request = client.post(target.url().clone()).headers(headers);
        let answer = request
            .header(CONTENT_TYPE, "application/json")
            .body(body)
            .send()
            .await
            // The URL may hold a secret of the user's.
            .map_err(|error| NotificationError::Unanswered(Causes(&error.without_url()).to_string()))?;
        Ok(answer.status())
    }
}
