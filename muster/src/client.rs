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

/// Why a request brought nothing.
enum Refusal {
    /// The facilitator does not answer, or is not itself: it may be well again in a moment.
    Unwell(anyhow::Error),
    /// It does not take our token, or our signature.
    Unauthorised(anyhow::Error),
    /// It will not do it.
    Final(anyhow::Error),
}

type Answer<T> = std::result::Result<T, Refusal>;

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unwell(error) => Self::new(ErrorCode::FacilitatorUnreachable, error),
            Refusal::Unauthorised(error) => Self::new(ErrorCode::SignatureRefused, error),
            Refusal::Final(error) => Self::coded(None, error),
        }
    }
}

impl Client {
    /// Logs in: the user's key signs a nonce and gets a token.
    pub(crate) async fn login(base: &str, user: Keypair, clock: SharedClock) -> Result<Self> {
        let http = Http::builder().timeout(REQUEST_TIMEOUT).build()?;
        let base = base.trim_end_matches('/').to_owned();
        let mut client = Self {
            http,
            base,
            user,
            token: String::new(),
            clock,
        };
        client.renew().await.map_err(Failure::from)?;
        Ok(client)
    }

    /// Gets a fresh token.
    async fn renew(&mut self) -> Answer<()> {
        let base = &self.base;
        let nonce: Nonce = read(base, self.http.get(format!("{base}/auth/nonce"))).await?;
        let signature = self.user.sign(nonce.nonce.as_bytes());
        let login = Login::new(self.user.hotkey(), signature, nonce.nonce);
        let token: Token = read(base, self.http.post(format!("{base}/auth/login")).json(&login)).await?;
        self.token = token.token;
        Ok(())
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
        read(&self.base, request).await.map_err(Failure::from)
    }

    /// One job.
    pub(crate) async fn job(&self, id: JobId) -> Result<JobView> {
        self.look(id).await.map_err(Failure::from)
    }

    async fn look(&self, id: JobId) -> Answer<JobView> {
        let url = format!("{}/api/v1/jobs/{id}/", self.base);
        read(&self.base, self.http.get(url).bearer_auth(&self.token)).await
    }

    /// Follows a job to its end, or until `deadline`; `step` sees every view that brought something new.
    ///
    /// A facilitator that restarts meanwhile is waited for, and a token that has expired is renewed: jobs take hours.
    pub(crate) async fn follow(
        &mut self,
        id: JobId,
        deadline: Timestamp,
        mut step: impl FnMut(&JobView),
    ) -> Result<JobView> {
        let mut seen = 0;
        loop {
            let late = self.clock.now() >= deadline;
            let refused = match self.look(id).await {
                Ok(view) => {
                    if view.status_history.len() > seen {
                        seen = view.status_history.len();
                        step(&view);
                    }
                    let status = view.last_status();
                    if status.is_terminal() {
                        return Ok(view);
                    }
                    Refusal::Unwell(anyhow::anyhow!("job {id} did not end in time; it is {status}"))
                }
                Err(Refusal::Unauthorised(refused)) => match self.renew().await {
                    Ok(()) => Refusal::Unwell(refused),
                    Err(refusal) => refusal,
                },
                Err(refusal) => refusal,
            };
            match refused {
                Refusal::Unwell(_) if !late => self.clock.sleep(POLL).await,
                Refusal::Unwell(_) | Refusal::Unauthorised(_) | Refusal::Final(_) => {
                    return Err(refused.into());
                }
            }
        }
    }
}

/// Sends a request and reads the answer; a refusal becomes the reason that the facilitator gave.
async fn read<T: serde::de::DeserializeOwned>(base: &str, request: RequestBuilder) -> Answer<T> {
    let response = request.send().await.map_err(|error| {
        let error = anyhow::Error::new(error);
        Refusal::Unwell(error.context(format!("the facilitator at {base} does not answer")))
    })?;
    let status = response.status();
    if status.is_success() {
        let answer = response.json().await.map_err(anyhow::Error::new);
        return answer
            .map_err(|error| Refusal::Final(error.context("the facilitator's answer cannot be read")));
    }
    let error = anyhow::anyhow!("the facilitator refused ({status}): {}", reason(response).await);
    Err(
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            Refusal::Unwell(error)
        } else if status == StatusCode::UNAUTHORIZED {
            Refusal::Unauthorised(error)
        } else {
            Refusal::Final(error)
        },
    )
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
