//! The words of the REST API's rejections: one table, so that every change of a text is seen in a review.

use std::sync::Arc;

use muster_identity::sign_request;
use muster_process::{SystemClock, TestClock};
use muster_protocol::JobStatus;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::facilitator::{Facilitator, validator_key};
use crate::user::{User, job_for, read_json, signature_headers};
use crate::validator::Validator;

const UNKNOWN: &str = "11111111-2222-4333-8444-555555555555";

/// Sends each request and compares the whole answer.
async fn check(cases: Vec<(RequestBuilder, u16, Value)>) {
    let mut wrong = Vec::new();
    for (request, status, body) in cases {
        let request = request.build().unwrap();
        let what = format!("{} {}", request.method(), request.url().path());
        let answer = read_json(reqwest::Client::new().execute(request).await.unwrap()).await;
        if answer != (status, body.clone()) {
            wrong.push(format!("{what}: expected {status} {body}, got {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn detail(text: &str) -> Value {
    json!({"detail": text})
}

#[tokio::test]
async fn calls_without_valid_credentials_have_these_answers() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let http = reqwest::Client::new();
    let list = |token: &str| user.with_token(token).get("/api/v1/jobs/");
    check(vec![
        (
            http.get(facilitator.url("/api/v1/jobs/")),
            401,
            detail("Authentication credentials were not provided."),
        ),
        (list("a.b.c"), 401, detail("Invalid token.")),
        (
            list(&format!("msk_{}", "0".repeat(64))),
            401,
            detail("Invalid API key: it is unknown, has ended, or has been revoked."),
        ),
        (user.get("/nothing"), 404, detail("Not found.")),
        (
            user.request(Method::PATCH, "/api/v1/jobs/", None),
            405,
            detail("Method \"PATCH\" not allowed."),
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_hotkey_that_is_no_longer_allowed_has_this_answer() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let facilitator = facilitator
        .restart_with(|config| config.users = Some(Vec::new()))
        .await;
    let user = user.at(&facilitator);
    check(vec![(
        user.get("/api/v1/jobs/"),
        403,
        detail("Hotkey not allowed."),
    )])
    .await;
}

#[tokio::test]
async fn wrong_bodies_and_queries_have_these_answers() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let post = |path: &str, body: &'static str| {
        let request = user.request(Method::POST, path, None);
        request.header("content-type", "application/json").body(body)
    };
    let (key, _) = make_key(&user).await;
    let holder = user.with_token(&key);
    let submit = |body: Value| holder.request(Method::POST, "/api/v1/job-docker/", Some(&body));
    let job = job_for(validator_key("Validator"));
    check(vec![
        (
            user.request(Method::POST, "/api/v1/keys/", None)
                .header("content-type", "text/plain")
                .body("{}"),
            415,
            detail("Unsupported media type in request: send Content-Type: application/json."),
        ),
        (
            post("/api/v1/keys/", "{"),
            400,
            detail("JSON parse error: EOF while parsing an object at line 1 column 1"),
        ),
        (
            post("/api/v1/keys/", "[]"),
            400,
            json!({"non_field_errors": ["Invalid data. Expected a JSON object."]}),
        ),
        (
            post("/api/v1/keys/", "{}"),
            400,
            json!({"name": ["This field is required."]}),
        ),
        (
            post("/api/v1/keys/", r#"{"name": null}"#),
            400,
            json!({"name": ["This field may not be null."]}),
        ),
        (
            post("/api/v1/keys/", r#"{"name": ""}"#),
            400,
            json!({"name": ["It should have 1 to 100 characters, none of them a control character."]}),
        ),
        (
            post("/api/v1/keys/", r#"{"name": "x", "account": "bob"}"#),
            403,
            detail("Only an administrator of this facilitator may create keys for other accounts."),
        ),
        (
            submit(job.clone()).header("Idempotency-Key", ""),
            400,
            detail("Idempotency-Key must be 1 to 255 visible ASCII characters."),
        ),
        (submit(job.clone()), 400, json!(["Could not select Validator"])),
        (
            submit(with(&job, "execution_time_limit", json!(604_801))),
            400,
            json!({"execution_time_limit": ["Ensure this value is less than or equal to 604800."]}),
        ),
        (
            submit(with(&job, "artifacts_dir", json!("relative"))),
            400,
            json!({"artifacts_dir": ["It should be an absolute path (starting with '/')."]}),
        ),
        (user.get("/api/v1/jobs/?page=0"), 404, detail("Invalid page.")),
        (
            user.get(&format!("/api/v1/jobs/{UNKNOWN}/")),
            404,
            detail("Not found."),
        ),
        (
            user.request(Method::DELETE, "/api/v1/keys/key_1/", None),
            404,
            detail("Not found."),
        ),
        (
            post("/api/v1/files/", r#"{"name": ""}"#),
            400,
            detail("a file's name has 1 to 255 characters and no control characters"),
        ),
        (
            post("/api/v1/files/", r#"{"name": "a", "sha256": "zz"}"#),
            400,
            detail("sha256 must be 64 hex digits"),
        ),
        (
            user.get(&format!("/api/v1/files/{UNKNOWN}/")),
            404,
            detail("there is no such file; it may have expired"),
        ),
    ])
    .await;
}

#[tokio::test]
async fn wrong_signatures_have_these_answers() {
    let clock = TestClock::default();
    let facilitator = Facilitator::start_with(Arc::new(clock), |_| {}).await;
    let user = User::login(&facilitator, "User").await;
    let body = job_for(validator_key("Validator"));
    let good = signature_headers(&user.sign(&body, facilitator.now_ns()));
    let submit = |name: &str, value: Option<&str>| {
        let mut request = user.request(Method::POST, "/api/v1/job-docker/", Some(&body));
        for (header, text) in &good {
            match (*header == name, value) {
                (true, None) => {}
                (true, Some(other)) => request = request.header(*header, other),
                (false, _) => request = request.header(*header, text),
            }
        }
        request
    };
    let (old, ahead) = (
        facilitator.now_ns() - 1_000_000_000_000,
        facilitator.now_ns() + 1_000_000_000_000,
    );
    let foreign = validator_key("Other").to_string();
    let malformed = |name: &str, expected: &str| {
        detail(&format!(
            "Signature malformed: the header {name} must be {expected}"
        ))
    };
    let [scheme, signatory, time, signature, scope] = [0, 1, 2, 3, 4].map(|at: usize| good[at].0);
    let own = &user.keys.hotkey();
    check(vec![
        (
            submit(signature, None),
            401,
            detail(&format!("Signature not found: the header {signature} is missing")),
        ),
        (submit(scheme, Some("pgp")), 400, malformed(scheme, "bittensor")),
        (
            submit(signatory, Some("x")),
            400,
            malformed(signatory, "an ss58 address"),
        ),
        (
            submit(time, Some("now")),
            400,
            malformed(time, "an integer: Unix time in nanoseconds"),
        ),
        (
            submit(signature, Some("??")),
            400,
            malformed(signature, "the base64 of 64 bytes"),
        ),
        (
            submit(scope, Some("All")),
            400,
            malformed(scope, "SignedFields or FullRequest"),
        ),
        (
            submit(scope, Some("FullRequest")),
            400,
            malformed(scope, "SignedFields for this request"),
        ),
        (
            submit(signatory, Some(&foreign)),
            401,
            detail(&format!(
                "Signature refused: it is {foreign}'s, but the token is {own}'s"
            )),
        ),
        (
            submit(time, Some(&old.to_string())),
            401,
            detail("Signature refused: it is 1000 s old, and at most 300 s are allowed; sign again, and check your clock"),
        ),
        (
            submit(time, Some(&ahead.to_string())),
            401,
            detail(
                "Signature refused: its time is 1000 s ahead of the facilitator's clock, and at most 30 s are allowed; \
                 check your clock",
            ),
        ),
        (
            submit(signature, Some(&format!("{}==", "A".repeat(86)))),
            401,
            detail("Signature refused: it does not match the request's fields"),
        ),
    ])
    .await;
}

#[tokio::test]
async fn calls_about_jobs_have_these_answers() {
    let facilitator = Facilitator::start_with(Arc::new(SystemClock::new()), |config| {
        config.limits.open_jobs = 2;
        config.limits.watchers = 1;
    })
    .await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let body = job_for(validator_key("Validator"));
    let done = user.create(&body, facilitator.now_ns()).await.uuid;
    validator.job().await;
    validator.report(done, JobStatus::Completed).await.unwrap();
    let open = user.create(&body, facilitator.now_ns()).await.uuid;
    user.create(&body, facilitator.now_ns()).await;
    let path = |rest: &str| format!("/api/v1/jobs/{open}/{rest}");
    let streaming = user.get(&path("events/")).send().await.unwrap();
    let signed = |method: Method, path: &str, body: &Value| {
        let signature = sign_request(&user.keys, body, facilitator.now_ns());
        let mut request = user.request(method, path, Some(body));
        for (name, value) in signature_headers(&signature) {
            let value = value.replace("SignedFields", "FullRequest");
            request = request.header(name, value);
        }
        request
    };
    let cheat = |job: &str, trusted: &str| {
        let body = json!({"job_uuid": job, "trusted_job_uuid": trusted, "details": null});
        signed(Method::POST, "/api/v1/cheated-job/", &body)
    };
    let (open, done) = (open.to_string(), done.to_string());
    let over = user.sign(&body, facilitator.now_ns());
    let mut submit = user.request(Method::POST, "/api/v1/job-docker/", Some(&body));
    for (name, value) in signature_headers(&over) {
        submit = submit.header(name, value);
    }
    let feedback = json!({"result_correctness": 2});
    check(vec![
        (
            submit,
            429,
            detail("The account has as many open jobs as it may have; wait for one to end, or cancel one."),
        ),
        (
            user.request(Method::POST, &format!("/api/v1/jobs/{done}/cancel/"), None),
            409,
            detail("The job has already ended: completed."),
        ),
        (
            user.get(&path("events/")).header("Last-Event-ID", "x"),
            400,
            detail("Last-Event-ID is not valid: two numbers joined by a hyphen are expected"),
        ),
        (
            user.get(&path("events/")),
            429,
            detail("Too many event streams of this account are open."),
        ),
        (cheat(UNKNOWN, &open), 404, json!({"error": "Job not found"})),
        (cheat(&open, UNKNOWN), 404, json!({"error": "Trusted job not found"})),
        (
            cheat(&open, &open),
            400,
            json!({"trusted_job_uuid": ["It must be another job than job_uuid."]}),
        ),
        (
            signed(Method::PUT, &path("feedback/"), &feedback),
            400,
            json!({"result_correctness": ["Ensure this value is from 0 to 1."]}),
        ),
        (
            user.request(Method::PUT, &path("feedback/"), Some(&json!({"result_correctness": 1}))),
            400,
            json!({
                "error": "Signature not found",
                "details": format!("Signature not found: the header {} is missing", signature_headers(&over)[0].0),
            }),
        ),
    ])
    .await;
    drop(streaming);
}

fn with(body: &Value, field: &str, value: Value) -> Value {
    let mut body = body.clone();
    body[field] = value;
    body
}

/// Creates an API key of the user's account; its text and its id.
async fn make_key(user: &User) -> (String, String) {
    let body = json!({"name": "key"});
    let answer = user.send(Method::POST, "/api/v1/keys/", Some(&body)).await;
    let (status, key) = read_json(answer).await;
    assert_eq!(status, 201);
    let text = |field: &str| key[field].as_str().unwrap().to_owned();
    (text("key"), text("id"))
}
