//! A user of a running subnet, over the job REST API.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use muster_identity::{Keypair, sign_job, sign_login};
use muster_protocol::account_api::{ApiKey, LoginNonce, LoginRequest, Token};
use muster_protocol::job::JobTerms;
use muster_protocol::rest::{CreateJob, JobCheckpointsView, JobMetricsView, headers};
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::{JobId, Timestamp};
use muster_testbed::patience;
use serde_json::{Value, json};

/// Adds terms to a job, signed by this key, as it is submitted at `now`.
pub fn add_terms(job: &mut CreateJob, key: &Keypair, terms: JobTerms, now: Timestamp) {
    let digest = job.signed_fields().digest(now.micros().saturating_mul(1_000));
    let signature = muster_identity::sign_terms(key, &terms, &digest);
    job.muster = Some(Box::new(JobExtension {
        signature: Some(signature),
        terms: Some(terms),
        ..JobExtension::default()
    }));
}

/// Logged in where it must be.
#[derive(Debug)]
pub struct User {
    http: reqwest::Client,
    base: String,
    key: Keypair,
    token: String,
}

impl User {
    /// Logs in with a signed nonce.
    ///
    /// # Errors
    /// The facilitator does not answer, or does not want us.
    pub async fn login(facilitator: SocketAddr, key: Keypair) -> Result<Self> {
        muster_process::tls::install_provider();
        let http = reqwest::Client::builder().timeout(patience()).build()?;
        let base = format!("http://{facilitator}");
        let nonce: LoginNonce = http
            .get(format!("{base}/auth/nonce"))
            .send()
            .await?
            .json()
            .await?;
        let nonce = nonce.nonce.parse()?;
        let login = LoginRequest::new(key.hotkey(), sign_login(&key, &nonce, None), &nonce);
        let token: Token = http
            .post(format!("{base}/auth/login"))
            .json(&login)
            .send()
            .await?
            .json()
            .await?;
        Ok(Self {
            http,
            base,
            key,
            token: token.token,
        })
    }

    /// Submits a job.
    ///
    /// # Errors
    /// It is refused, with the facilitator's text.
    pub async fn submit(&self, job: &CreateJob, now: Timestamp) -> Result<JobId> {
        let timestamp_ns = now.micros().saturating_mul(1_000);
        let signature = sign_job(&self.key, &job.signed_fields(), timestamp_ns).signature;
        let answer = self
            .http
            .post(format!("{}/api/v1/job-docker/", self.base))
            .bearer_auth(&self.token)
            .header(headers::SIGNATURE_TYPE, "bittensor")
            .header(headers::SIGNATORY, self.key.hotkey().to_string())
            .header(headers::TIMESTAMP_NS, timestamp_ns.to_string())
            .header(headers::SIGNATURE, signature.to_base64())
            .header(headers::SIGNATURE_SCOPE, "SignedFields")
            .json(job)
            .send()
            .await?;
        let status = answer.status();
        let text = answer.text().await?;
        if !status.is_success() {
            bail!("the facilitator refused the job ({status}): {text}");
        }
        let view: Value = serde_json::from_str(&text)?;
        let uuid = view
            .get("uuid")
            .and_then(Value::as_str)
            .context("a job without a uuid")?;
        Ok(uuid.parse()?)
    }

    /// The statuses that its user has been shown, oldest first.
    ///
    /// # Errors
    /// The facilitator does not answer.
    pub async fn history(&self, job: JobId) -> Result<Vec<String>> {
        let url = format!("{}/api/v1/jobs/{job}/", self.base);
        let view: Value = self
            .http
            .get(url)
            .bearer_auth(&self.token)
            .send()
            .await?
            .error_for_status()?
            .json()
            .await?;
        let entries = view
            .get("status_history")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let word = |entry: &Value| entry.get("status").and_then(Value::as_str).map(str::to_owned);
        Ok(entries.iter().filter_map(word).collect())
    }

    /// The checkpoints of a job that are kept.
    ///
    /// # Errors
    /// The facilitator does not answer.
    pub async fn checkpoints(&self, job: JobId) -> Result<JobCheckpointsView> {
        let url = format!("{}/api/v1/jobs/{job}/checkpoints/", self.base);
        let asked = self.http.get(url).bearer_auth(&self.token);
        Ok(asked.send().await?.error_for_status()?.json().await?)
    }

    /// The metrics of a job.
    ///
    /// # Errors
    /// The facilitator does not answer, or does not know the job.
    pub async fn metrics(&self, job: JobId) -> Result<JobMetricsView> {
        let url = format!("{}/api/v1/jobs/{job}/metrics/", self.base);
        let asked = self.http.get(url).bearer_auth(&self.token);
        Ok(asked.send().await?.error_for_status()?.json().await?)
    }

    /// An API key of the account, for the command line.
    ///
    /// # Errors
    /// The facilitator does not answer, or makes none.
    pub async fn create_key(&self, name: &str) -> Result<String> {
        let asked = self.http.post(format!("{}/api/v1/keys/", self.base));
        let asked = asked.bearer_auth(&self.token).json(&json!({ "name": name }));
        let made: ApiKey = asked.send().await?.error_for_status()?.json().await?;
        made.key.context("the answer has no key")
    }

    /// The job as the facilitator reports it.
    ///
    /// # Errors
    /// The facilitator does not answer.
    pub async fn job(&self, job: JobId) -> Result<Value> {
        let url = format!("{}/api/v1/jobs/{job}/", self.base);
        Ok(self
            .http
            .get(url)
            .bearer_auth(&self.token)
            .send()
            .await?
            .error_for_status()?
            .json()
            .await?)
    }
}
