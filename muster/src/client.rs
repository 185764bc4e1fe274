//! A client of the job REST API, as `muster job` and the demo use it.

use std::time::Duration;

use muster_identity::Keypair;
use muster_kit::clock::SharedClock;
use muster_protocol::rest::{CreateJob, JobView, Login, Nonce, Token, headers};
use muster_protocol::{ErrorCode, JobId, Timestamp};
use reqwest::{Client as Http, RequestBuilder, Response, StatusCode};

use crate::failure::{Failure, Result};

/// Longer than any answer of a facilitator that is well.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a job's progress is asked for. The API has no other way yet.
const POLL: Duration = Duration::from_millis(100);

/// A logged-in user.
pub(crate) struct Client {
    http: Http,
    base: String,
    user: Keypair,
    token: String,
    clock: SharedClock,
}

impl Client {
    /// Logs in: the user's key signs a nonce and gets a token.
    pub(crate) async fn login(base: &str, user: Keypair, clock: SharedClock) -> Result<Self> {
        let http = Http::builder().timeout(REQUEST_TIMEOUT).build()?;
        let base = base.trim_end_matches('/').to_owned();
        let nonce: Nonce = read(&base, http.get(format!("{base}/auth/nonce"))).await?;
        let login = Login::new(user.hotkey(), user.sign(nonce.nonce.as_bytes()), nonce.nonce);
        let token: Token = read(&base, http.post(format!("{base}/auth/login")).json(&login)).await?;
        Ok(Self {
            http,
            base,
            user,
            token: token.token,
            clock,
        })
    }

    /// Submits a job under the user's signature.
    pub(crate) async fn create(&self, job: &CreateJob) -> Result<JobView> {
        // A signature's time is in nanoseconds; ours is as fine as the clock.
        let timestamp_ns = self.clock.now().micros().saturating_mul(1_000);
        let signature = self.user.sign(&job.signed_fields().digest(timestamp_ns));
        let request = self
            .http
            .post(format!("{}/api/v1/job-docker/", self.base))
            .bearer_auth(&self.token)
            .header(headers::SIGNATURE_TYPE, "bittensor")
            .header(headers::SIGNATORY, self.user.hotkey().to_string())
            .header(headers::TIMESTAMP_NS, timestamp_ns.to_string())
            .header(headers::SIGNATURE, signature.to_base64())
            .header(headers::SIGNATURE_SCOPE, "SignedFields")
            .json(job);
        read(&self.base, request).await
    }

    /// One job.
    pub(crate) async fn job(&self, id: JobId) -> Result<JobView> {
        let request = self
            .http
            .get(format!("{}/api/v1/jobs/{id}/", self.base))
            .bearer_auth(&self.token);
        read(&self.base, request).await
    }

    /// Follows a job to its end, or until `deadline`; `step` sees every view that brought something new.
    pub(crate) async fn follow(
        &self,
        id: JobId,
        deadline: Timestamp,
        mut step: impl FnMut(&JobView),
    ) -> Result<JobView> {
        let mut seen = 0;
        loop {
            let view = self.job(id).await?;
            if view.status_history.len() > seen {
                seen = view.status_history.len();
                step(&view);
            }
            if view.last_status().is_terminal() {
                return Ok(view);
            }
            if self.clock.now() >= deadline {
                return Err(Failure::usage(format_args!(
                    "job {id} did not end in time; it is {}",
                    view.last_status()
                )));
            }
            self.clock.sleep(POLL).await;
        }
    }
}

/// Sends a request and reads the answer; a refusal becomes the reason that the facilitator gave.
async fn read<T: serde::de::DeserializeOwned>(base: &str, request: RequestBuilder) -> Result<T> {
    let response = request.send().await.map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("the facilitator at {base} does not answer"));
        Failure::new(ErrorCode::FacilitatorUnreachable, error)
    })?;
    let status = response.status();
    if status.is_success() {
        return Ok(response.json().await?);
    }
    let reason = reason(response).await;
    let error = anyhow::anyhow!("the facilitator refused ({status}): {reason}");
    let code = match status {
        StatusCode::UNAUTHORIZED => Some(ErrorCode::SignatureRefused),
        _ => None,
    };
    Err(Failure::coded(code, error))
}

/// The words in an error body: `{"detail"}`, `{"error"}`, or whatever it is.
async fn reason(response: Response) -> String {
    let text = response.text().await.unwrap_or_default();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let words = ["detail", "error"]
        .into_iter()
        .find_map(|key| value.get(key)?.as_str().map(str::to_owned));
    words.unwrap_or(text)
}
