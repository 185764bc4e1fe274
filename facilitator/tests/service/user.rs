//! A scripted user.

use muster_identity::{Keypair, sign_job, sign_login};
use muster_protocol::account_api::{LoginRequest, Token};
use muster_protocol::rest::{CreateJob, JobView, headers};
use muster_protocol::wire::facilitator::UserSignature;
use muster_protocol::{JobId, ValidatorKey};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

use crate::facilitator::{Facilitator, key};

pub(crate) struct User {
    pub(crate) keys: Keypair,
    pub(crate) http: reqwest::Client,
    pub(crate) token: String,
    base: String,
}

/// The body that the SDK sends for a simple job.
pub(crate) fn job_for(validator: ValidatorKey) -> Value {
    json!({
        "target_validator_hotkey": validator,
        "executor_class": "always_on.test",
        "docker_image": "alpine:latest",
        "job_namespace": "SN1.0",
        "args": ["sh", "-c", "echo ż"],
        "env": {"B": "1", "A": "2"},
        "use_gpu": true,
        "artifacts_dir": "/artifacts",
        "on_trusted_miner": false,
        "download_time_limit": 5,
        "execution_time_limit": 10,
        "streaming_start_time_limit": 5,
        "upload_time_limit": 5,
        "volumes": [{"volume_type": "inline", "contents": "UEsFBg==", "relative_path": "x"}],
    })
}

/// The headers of a signature, as pairs that a test can change.
pub(crate) fn signature_headers(signature: &UserSignature) -> Vec<(&'static str, String)> {
    vec![
        (headers::SIGNATURE_TYPE, "bittensor".to_owned()),
        (headers::SIGNATORY, signature.signatory.to_string()),
        (headers::TIMESTAMP_NS, signature.timestamp_ns.to_string()),
        (headers::SIGNATURE, signature.signature.to_base64()),
        (headers::SIGNATURE_SCOPE, "SignedFields".to_owned()),
    ]
}

impl User {
    /// Logs `//name` in.
    pub(crate) async fn login(facilitator: &Facilitator, name: &str) -> Self {
        let keys = key(name);
        let http = reqwest::Client::new();
        let answer = attempt(facilitator, &http, &keys).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let Token { token } = answer.json().await.unwrap();
        let base = facilitator.url("");
        Self {
            keys,
            http,
            token,
            base,
        }
    }

    /// The same user at a restarted facilitator.
    pub(crate) fn at(mut self, facilitator: &Facilitator) -> Self {
        self.base = facilitator.url("");
        self
    }

    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.http
            .get(format!("{}{path}", self.base))
            .bearer_auth(&self.token)
    }

    /// The same client with another token or with an API key.
    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self {
            keys: self.keys.clone(),
            http: self.http.clone(),
            token: token.to_owned(),
            base: self.base.clone(),
        }
    }

    pub(crate) fn request(&self, method: Method, path: &str, body: Option<&Value>) -> RequestBuilder {
        let request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .bearer_auth(&self.token);
        match body {
            Some(body) => request.json(body),
            None => request,
        }
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Response {
        self.request(method, path, body).send().await.unwrap()
    }

    pub(crate) fn sign(&self, body: &Value, timestamp_ns: i64) -> UserSignature {
        let job: CreateJob = serde_json::from_value(body.clone()).unwrap();
        sign_job(&self.keys, &job.signed_fields(), timestamp_ns)
    }

    /// Posts a body with these signature headers.
    pub(crate) async fn post(&self, body: Vec<u8>, headers: &[(&'static str, String)]) -> Response {
        let mut request = self
            .http
            .post(format!("{}/api/v1/job-docker/", self.base))
            .bearer_auth(&self.token)
            .header("content-type", "application/json")
            .body(body);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        request.send().await.unwrap()
    }

    /// Posts a job signed as the SDK signs it.
    pub(crate) async fn submit(&self, body: &Value, timestamp_ns: i64) -> Response {
        let signature = self.sign(body, timestamp_ns);
        self.post(serde_json::to_vec(body).unwrap(), &signature_headers(&signature))
            .await
    }

    /// Submits a job that must be accepted.
    pub(crate) async fn create(&self, body: &Value, timestamp_ns: i64) -> JobView {
        let answer = self.submit(body, timestamp_ns).await;
        assert_eq!(answer.status(), StatusCode::CREATED);
        answer.json().await.unwrap()
    }

    pub(crate) async fn job(&self, uuid: JobId) -> JobView {
        let answer = self.get(&format!("/api/v1/jobs/{uuid}/")).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        answer.json().await.unwrap()
    }
}

/// One login, successful or not.
pub(crate) async fn attempt(facilitator: &Facilitator, http: &reqwest::Client, keys: &Keypair) -> Response {
    let nonce = nonce(facilitator, http).await;
    let nonce = nonce.parse().unwrap();
    let login = LoginRequest::new(keys.hotkey(), sign_login(keys, &nonce, None), &nonce);
    login_with(facilitator, http, &json!(login)).await
}

pub(crate) async fn nonce(facilitator: &Facilitator, http: &reqwest::Client) -> String {
    let answer: Value = http
        .get(facilitator.url("/auth/nonce"))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    answer["nonce"].as_str().unwrap().to_owned()
}

pub(crate) async fn login_with(facilitator: &Facilitator, http: &reqwest::Client, body: &Value) -> Response {
    http.post(facilitator.url("/auth/login"))
        .json(body)
        .send()
        .await
        .unwrap()
}

/// The status and the JSON body of an answer.
pub(crate) async fn read_json(answer: Response) -> (u16, Value) {
    let status = answer.status().as_u16();
    (status, answer.json().await.unwrap())
}
