//! Requests to a facilitator, in the name of a hotkey or of an API key.

use std::fmt;
use std::time::Duration;

use muster_identity::{Keypair, sign_job, sign_request, sign_terms};
use muster_process::SharedClock;
use muster_protocol::account_api::{
    AccountDeleted, AccountView, ApiKey, CreateKey, KeyList, LoginNonce, Token, WebLink,
};
use muster_protocol::rest::{
    AccountWebhookView, CreateFile, CreateJob, FilePage, FileView, JobCheckpointsView, JobMetricsView,
    JobPage, JobView, Message, MinerView, ReportCheat, SetWebhook, SubnetCapacity, headers,
};
use muster_protocol::wire::checks::JobCheck;
use muster_protocol::{Feature, FeatureSet, JobId, JobName, MUSTER_FEATURES_HEADER, MinerKey};
use parking_lot::Mutex;
use reqwest::{Client as Http, Method, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::ClientError;
use crate::facilitator_url::FacilitatorUrl;
use crate::login::sign_answer;

/// Longer than any answer of a facilitator that is well.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a request that may be repeated is repeated, and the first pause before it; the further ones double.
const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// In whose name requests are made.
#[derive(Clone)]
pub enum Credential {
    /// A hotkey, which signs a login and every job.
    Hotkey(Box<Keypair>),
    /// An API key. Jobs are signed by the facilitator.
    Key(String),
}

/// A user of a facilitator.
pub struct Client {
    pub(crate) http: Http,
    pub(crate) clock: SharedClock,
    base: String,
    credential: Credential,
    /// The value of the header `Authorization`.
    bearer: Mutex<String>,
}

type ClientResult<T> = Result<T, ClientError>;

// === impl Credential ===

impl Credential {
    /// A user who signs.
    pub fn hotkey(pair: Keypair) -> Self {
        Self::Hotkey(Box::new(pair))
    }

    /// A user who has no hotkey.
    pub fn key(key: impl Into<String>) -> Self {
        Self::Key(key.into())
    }
}

impl fmt::Debug for Credential {
    /// Secrets stay out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hotkey(pair) => write!(f, "Hotkey({})", pair.hotkey()),
            Self::Key(_) => f.write_str("Key(…)"),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("base", &self.base)
            .field("credential", &self.credential)
            .finish_non_exhaustive()
    }
}

// === impl Client ===

impl Client {
    /// A client of the facilitator at `base`, as [`FacilitatorUrl`] reads it. A hotkey logs in at once; an API key is
    /// shown with the first request.
    ///
    /// # Errors
    /// `base` is no address, or the facilitator does not answer, or does not take the login.
    pub async fn connect(base: &str, credential: Credential, clock: SharedClock) -> ClientResult<Self> {
        let base: String = base.parse::<FacilitatorUrl>()?.into();
        let unusable = |source| ClientError::Unreachable {
            base: base.clone(),
            source,
        };
        let http = Http::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(unusable)?;
        let client = Self {
            http,
            clock,
            base,
            credential,
            bearer: Mutex::default(),
        };
        client.renew().await?;
        Ok(client)
    }

    /// Its HTTP client, for signed URLs.
    pub fn http(&self) -> Http {
        self.http.clone()
    }

    /// Its URL, without a slash at the end.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Gets a fresh token where there are tokens.
    pub(crate) async fn renew(&self) -> ClientResult<()> {
        let bearer = match &self.credential {
            Credential::Key(key) => {
                let plain = !key.is_empty() && key.bytes().all(|c| c.is_ascii_graphic());
                plain.then(|| key.clone()).ok_or(ClientError::BadKey)?
            }
            Credential::Hotkey(pair) => {
                let ask = || self.plain(Method::GET, "/auth/nonce");
                let answer: LoginNonce = self.read(self.respond(ask, true).await?).await?;
                let login = sign_answer(pair, &answer, &self.base)?;
                let post = || self.plain(Method::POST, "/auth/login").json(&login);
                let token: Token = self.read(self.respond(post, false).await?).await?;
                token.token
            }
        };
        *self.bearer.lock() = bearer;
        Ok(())
    }

    fn plain(&self, method: Method, path: &str) -> RequestBuilder {
        self.http
            .request(method, format!("{}{path}", self.base))
            .timeout(REQUEST_TIMEOUT)
    }

    /// A request with our credential and no limit of time.
    pub(crate) fn open(&self, method: Method, path: &str) -> RequestBuilder {
        let bearer = self.bearer.lock().clone();
        self.http
            .request(method, format!("{}{path}", self.base))
            .bearer_auth(bearer)
    }

    fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.open(method, path).timeout(REQUEST_TIMEOUT)
    }

    /// Sends a request until there is an answer; one that must not be repeated is sent once.
    async fn respond(&self, request: impl Fn() -> RequestBuilder, repeat: bool) -> ClientResult<Response> {
        let mut pause = FIRST_PAUSE;
        let mut tries = if repeat { TRIES } else { 1 };
        loop {
            let failed = match self.once(request()).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            tries -= 1;
            if tries == 0 || !failed.is_passing() {
                return Err(failed);
            }
            self.clock.sleep(pause).await;
            pause *= 2;
        }
    }

    /// As [`Self::respond`], with a fresh token where the last one has expired.
    async fn authorised(&self, request: impl Fn() -> RequestBuilder, repeat: bool) -> ClientResult<Response> {
        match self.respond(&request, repeat).await {
            Err(ClientError::Unauthorised { .. }) if matches!(self.credential, Credential::Hotkey(_)) => {
                self.renew().await?;
                self.respond(&request, repeat).await
            }
            answer => answer,
        }
    }

    /// One request; a refusal becomes the reason that the facilitator gave.
    pub(crate) async fn once(&self, request: RequestBuilder) -> ClientResult<Response> {
        let base = || self.base.clone();
        let response = request.send().await.map_err(|source| ClientError::Unreachable {
            base: base(),
            source: source.without_url(),
        })?;
        let status = response.status();
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            return Ok(response);
        }
        let reason = reason(response).await;
        Err(
            if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
                ClientError::Unwell {
                    base: base(),
                    status,
                    reason,
                }
            } else if status == StatusCode::UNAUTHORIZED {
                ClientError::Unauthorised { status, reason }
            } else {
                ClientError::Refused { status, reason }
            },
        )
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: impl Fn() -> RequestBuilder,
        repeat: bool,
    ) -> ClientResult<T> {
        self.read(self.authorised(request, repeat).await?).await
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> ClientResult<T> {
        response.json().await.map_err(|source| ClientError::Unreadable {
            base: self.base.clone(),
            source,
        })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> ClientResult<T> {
        self.send(|| self.ask(Method::GET, path), true).await
    }

    /// As [`Self::get`], showing our features, so that the facilitator sends what ComputeHorde's clients do not know.
    async fn get_with_features<T: DeserializeOwned>(&self, path: &str) -> ClientResult<T> {
        let shown = FeatureSet::ours().to_string();
        let request = || self.ask(Method::GET, path).header(MUSTER_FEATURES_HEADER, &shown);
        self.send(request, true).await
    }

    /// Fails if the facilitator has not shown a feature.
    async fn require(&self, feature: Feature) -> ClientResult<()> {
        if self.features().await?.has(feature) {
            return Ok(());
        }
        Err(ClientError::Older {
            base: self.base.clone(),
            feature: feature.name(),
        })
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &(impl Serialize + Sync)) -> ClientResult<T> {
        self.send(|| self.ask(Method::POST, path).json(body), false).await
    }

    async fn delete(&self, path: &str) -> ClientResult<()> {
        let request = || self.ask(Method::DELETE, path);
        self.authorised(request, true).await.map(drop)
    }

    /// The features that the facilitator shows; none for a facilitator of another make.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn features(&self) -> ClientResult<FeatureSet> {
        /// The part of the answer that is read.
        #[derive(Default, Deserialize)]
        struct Health {
            #[serde(default)]
            features: FeatureSet,
        }
        let answer = match self.respond(|| self.plain(Method::GET, "/health"), true).await {
            Ok(answer) => answer,
            Err(ClientError::Refused { .. } | ClientError::Unauthorised { .. }) => {
                return Ok(FeatureSet::NONE);
            }
            Err(error) => return Err(error),
        };
        // The health page of another make need not be JSON.
        let text = answer.text().await.unwrap_or_default();
        Ok(serde_json::from_str::<Health>(&text).unwrap_or_default().features)
    }

    /// Fails if the facilitator lacks a feature that the job needs: it would drop a part of the job in silence.
    async fn require_features(&self, job: &CreateJob) -> ClientResult<()> {
        if job.webhook.is_some() {
            self.require(Feature::Webhooks).await?;
        }
        let needed = job.needed_features();
        if needed == FeatureSet::NONE {
            return Ok(());
        }
        match self.features().await?.lacks(needed) {
            None => Ok(()),
            Some(feature) => Err(ClientError::Lacks {
                base: self.base.clone(),
                feature: feature.name(),
            }),
        }
    }

    /// Submits a job: signed by the hotkey where there is one, its terms too.
    ///
    /// The request is repeated where the answer is lost: a signature, or a name drawn for it, stands for the one job
    /// that it makes.
    ///
    /// # Errors
    /// See [`ClientError`]; also if the job has terms and the facilitator does not know them.
    pub async fn create(&self, job: &CreateJob) -> ClientResult<JobView> {
        const PATH: &str = "/api/v1/job-docker/";
        self.require_features(job).await?;
        let Credential::Hotkey(pair) = &self.credential else {
            // Without a signature this names the one job that the request makes, however often it is sent.
            let name = Uuid::new_v4().to_string();
            let request = || {
                self.ask(Method::POST, PATH)
                    .header(headers::IDEMPOTENCY_KEY, name.as_str())
                    .json(job)
            };
            return self.send(request, true).await;
        };
        // A signature's time is in nanoseconds; ours is as fine as the clock.
        let timestamp_ns = self.clock.now().micros().saturating_mul(1_000);
        let fields = job.signed_fields();
        let signed = sign_job(pair, &fields, timestamp_ns);
        let mut job = job.clone();
        if let Some(extension) = &mut job.muster {
            let digest = fields.digest(timestamp_ns);
            let terms = extension.terms.as_ref();
            extension.signature = terms.map(|terms| sign_terms(pair, terms, &digest));
        }
        let request = || {
            self.ask(Method::POST, PATH)
                .header(headers::SIGNATURE_TYPE, "bittensor")
                .header(headers::SIGNATORY, signed.signatory.to_string())
                .header(headers::TIMESTAMP_NS, timestamp_ns.to_string())
                .header(headers::SIGNATURE, signed.signature.to_base64())
                .header(headers::SIGNATURE_SCOPE, "SignedFields")
                .json(&job)
        };
        self.send(request, true).await
    }

    /// One job with its history.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn job(&self, id: JobId) -> ClientResult<JobView> {
        let view = self.get_with_features(&format!("/api/v1/jobs/{id}/")).await;
        view.map_err(|error| unknown_job(error, id))
    }

    /// A page of the user's jobs, newest first; the first is 1.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn jobs(&self, page: u64, size: u32) -> ClientResult<JobPage> {
        self.get_with_features(&format!("/api/v1/jobs/?page={page}&page_size={size}"))
            .await
    }

    /// The first page of those of the user's jobs that a query of the API asks for, newest first.
    pub(crate) async fn jobs_where(&self, query: &str, size: u32) -> ClientResult<JobPage> {
        self.get_with_features(&format!("/api/v1/jobs/?page_size={size}&{query}"))
            .await
    }

    /// A page of those of the user's jobs that have one of these statuses, as the wire has them, or with `queued` wait
    /// for an executor, and this name; newest first. No status is any, and no name is any.
    ///
    /// # Errors
    /// See [`ClientError`]; also if the facilitator is too old to list jobs by status.
    pub async fn jobs_matching(
        &self,
        page: u64,
        size: u32,
        statuses: &[&str],
        name: Option<&JobName>,
    ) -> ClientResult<JobPage> {
        // An older facilitator would list every job.
        self.require(Feature::Capacity).await?;
        let statuses: String = statuses.iter().map(|word| format!("&status={word}")).collect();
        let name = name.map(|name| format!("&tag={name}")).unwrap_or_default();
        let path = format!("/api/v1/jobs/?page={page}&page_size={size}{statuses}{name}");
        self.get_with_features(&path).await
    }

    /// The offers of the subnet's miners now.
    ///
    /// # Errors
    /// See [`ClientError`]; also if the facilitator is too old to report it.
    pub async fn subnet(&self) -> ClientResult<SubnetCapacity> {
        self.require(Feature::Capacity).await?;
        self.get("/api/v1/subnet/").await
    }

    /// A miner's machines, as validators proved them and as the miner claims them.
    ///
    /// # Errors
    /// See [`ClientError`]; refused with 404 if no validator has reported the miner.
    pub async fn miner(&self, miner: MinerKey) -> ClientResult<MinerView> {
        self.require(Feature::Machines).await?;
        self.get(&format!("/api/v1/miners/{miner}/")).await
    }

    /// The state and the metrics that a job's program reported, while it runs and after.
    ///
    /// # Errors
    /// See [`ClientError`]; also if the facilitator is too old to keep it.
    pub async fn job_metrics(&self, id: JobId) -> ClientResult<JobMetricsView> {
        self.require(Feature::Metrics).await?;
        self.get_with_features(&format!("/api/v1/jobs/{id}/metrics/"))
            .await
    }

    /// The checkpoints of a job that are kept, with the URL that reads them.
    ///
    /// # Errors
    /// See [`ClientError`]; also if the facilitator is too old to keep any.
    pub async fn job_checkpoints(&self, id: JobId) -> ClientResult<JobCheckpointsView> {
        self.require(Feature::Checkpoints).await?;
        self.get(&format!("/api/v1/jobs/{id}/checkpoints/")).await
    }

    /// The validator's finding by running a job again on its own miner.
    ///
    /// # Errors
    /// See [`ClientError`]; refused with 404 while it has reported nothing.
    pub async fn job_check(&self, id: JobId) -> ClientResult<JobCheck> {
        self.require(Feature::CrossChecks).await?;
        self.get(&format!("/api/v1/jobs/{id}/check/")).await
    }

    /// Reports a job as cheated, signed by the hotkey where there is one.
    ///
    /// # Errors
    /// See [`ClientError`]; refused with 400 if the job was reported before.
    pub async fn report_cheat(&self, report: &ReportCheat) -> ClientResult<Message> {
        self.send_report("/api/v1/cheated-job/", report).await
    }

    /// Reports a streamed answer as not the model's: both ids are those of the job that its proof names, and the
    /// details have the proof. Signed by the hotkey where there is one.
    ///
    /// # Errors
    /// See [`ClientError`]; refused with 404 if the answer was another account's.
    pub async fn report_answer(&self, report: &ReportCheat) -> ClientResult<Message> {
        self.send_report("/api/v1/cheated-answer/", report).await
    }

    /// The finding about a session of which an answer was reported.
    ///
    /// # Errors
    /// See [`ClientError`]; refused with 404 if the account has reported no answer of it.
    pub async fn answer_check(&self, session_job: JobId) -> ClientResult<JobCheck> {
        self.get(&format!("/api/v1/answers/{session_job}/check/")).await
    }

    async fn send_report(&self, path: &str, report: &ReportCheat) -> ClientResult<Message> {
        let Credential::Hotkey(pair) = &self.credential else {
            return self.post(path, report).await;
        };
        let timestamp_ns = self.clock.now().micros().saturating_mul(1_000);
        let body = serde_json::to_value(report).unwrap_or_default();
        let signed = sign_request(pair, &body, timestamp_ns);
        let request = || {
            self.ask(Method::POST, path)
                .header(headers::SIGNATURE_TYPE, "bittensor")
                .header(headers::SIGNATORY, signed.signatory.to_string())
                .header(headers::TIMESTAMP_NS, timestamp_ns.to_string())
                .header(headers::SIGNATURE, signed.signature.to_base64())
                .header(headers::SIGNATURE_SCOPE, "FullRequest")
                .json(&body)
        };
        self.send(request, false).await
    }

    /// Asks for a job to be stopped. It has ended when its status shows it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn cancel(&self, id: JobId) -> ClientResult<JobView> {
        let path = format!("/api/v1/jobs/{id}/cancel/");
        // To ask twice is to ask once.
        let asked = self.send(|| self.ask(Method::POST, &path), true).await;
        asked.map_err(|error| unknown_job(error, id))
    }

    /// Draws a link that signs a browser in as this user, once and within a minute.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create_web_link(&self) -> ClientResult<WebLink> {
        self.post("/api/v1/web-links/", &serde_json::json!({})).await
    }

    /// Makes an API key, which is shown this once.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create_key(&self, key: &CreateKey) -> ClientResult<ApiKey> {
        self.post("/api/v1/keys/", key).await
    }

    /// The API keys that hold.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn keys(&self) -> ClientResult<Vec<ApiKey>> {
        let list: KeyList = self.get("/api/v1/keys/").await?;
        Ok(list.results)
    }

    /// Revokes an API key.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn revoke_key(&self, id: &str) -> ClientResult<()> {
        self.delete(&format!("/api/v1/keys/{}/", segment(id))).await
    }

    /// The account's webhook.
    ///
    /// # Errors
    /// See [`ClientError`]; refused with 404 if the account has none.
    pub async fn webhook(&self) -> ClientResult<AccountWebhookView> {
        self.require(Feature::Webhooks).await?;
        self.get("/api/v1/webhook/").await
    }

    /// Sets the account's webhook. The answer has the secret if it is new.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn set_webhook(&self, webhook: &SetWebhook) -> ClientResult<AccountWebhookView> {
        self.require(Feature::Webhooks).await?;
        let request = || self.ask(Method::PUT, "/api/v1/webhook/").json(webhook);
        // A secret whose answer is lost is lost, so the request is sent once.
        self.send(request, false).await
    }

    /// Removes the account's webhook and its secret.
    ///
    /// # Errors
    /// See [`ClientError`]; refused with 404 if the account has none.
    pub async fn remove_webhook(&self) -> ClientResult<()> {
        self.require(Feature::Webhooks).await?;
        self.delete("/api/v1/webhook/").await
    }

    /// The numbers of the account's jobs, files and keys.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn account(&self) -> ClientResult<AccountView> {
        self.get("/api/v1/account/").await
    }

    /// Deletes the account with its keys, files, jobs and usage. `confirm` is its name. Sent once: a second deletion of
    /// one day is refused.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_account(&self, confirm: &str) -> ClientResult<AccountDeleted> {
        let path = format!("/api/v1/account/?confirm={}", segment(confirm));
        self.send(|| self.ask(Method::DELETE, &path), false).await
    }

    /// The models that can be asked, and what is known of each.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn models(&self) -> ClientResult<Vec<serde_json::Value>> {
        let list: Models = self.get("/v1/models").await?;
        Ok(list.data)
    }

    /// Asks a model. The answer comes as it is made: there is no limit to how long it may take.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ask_model(&self, path: &str, body: Vec<u8>, client_nonce: &str) -> ClientResult<Response> {
        let request = || {
            self.open(Method::POST, path)
                .header("content-type", "application/json")
                .header("muster-client-nonce", client_nonce)
                .body(body.clone())
        };
        self.authorised(request, false).await
    }

    /// The proof of an answer, by the id that came with it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn proof<T: DeserializeOwned>(&self, id: &str) -> ClientResult<T> {
        self.get(&format!("/v1/proofs/{}", segment(id))).await
    }

    /// Makes a place for a file.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create_file(&self, file: &CreateFile) -> ClientResult<FileView> {
        self.post("/api/v1/files/", file).await
    }

    /// One file, with fresh URLs.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn file(&self, id: &str) -> ClientResult<FileView> {
        self.get(&format!("/api/v1/files/{}/", segment(id))).await
    }

    /// A page of the user's files, newest first; the first is 1.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn files(&self, page: u64, size: u32) -> ClientResult<FilePage> {
        self.get(&format!("/api/v1/files/?page={page}&page_size={size}"))
            .await
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_file(&self, id: &str) -> ClientResult<()> {
        self.delete(&format!("/api/v1/files/{}/", segment(id))).await
    }
}

#[derive(Deserialize)]
struct Models {
    data: Vec<serde_json::Value>,
}

/// The error of a request about one job: the facilitator answers 404 for a job that is not the account's.
fn unknown_job(error: ClientError, id: JobId) -> ClientError {
    match error.status() {
        Some(StatusCode::NOT_FOUND) => ClientError::UnknownJob { job: id.to_string() },
        Some(_) | None => error,
    }
}

/// A person's input, escaped as one part of a path.
fn segment(id: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    id.chars().filter(|c| plain(*c)).take(64).collect()
}

/// The words in an error body: `{"detail"}`, `{"error"}`, OpenAI's `{"error": {"message"}}`, a list, a map of fields,
/// or whatever it is.
async fn reason(response: Response) -> String {
    const LONGEST: usize = 2_000;
    let text = response.text().await.unwrap_or_default();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let words = ["detail", "error"]
        .into_iter()
        .find_map(|key| value.get(key)?.as_str().map(str::to_owned))
        .or_else(|| Some(value.get("error")?.get("message")?.as_str()?.to_owned()));
    let fields = || {
        let object = value.as_object()?;
        let line = |(name, reasons): (&String, &serde_json::Value)| {
            let first = reasons.get(0).unwrap_or(reasons);
            let text = first.as_str().map_or_else(|| first.to_string(), str::to_owned);
            format!("{name}: {text}")
        };
        Some(object.iter().map(line).collect::<Vec<_>>().join("; "))
    };
    let listed = || value.get(0)?.as_str().map(str::to_owned);
    words
        .or_else(listed)
        .or_else(fields)
        .filter(|words| !words.is_empty())
        .unwrap_or_else(|| text.chars().take(LONGEST).collect())
}
