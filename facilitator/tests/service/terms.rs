//! Jobs with terms: signed by the user or by the facilitator, handed over with their account, refused where they would
//! be dropped in silence.

use muster_identity::{sign_terms, verify_job};
use muster_protocol::job::JobTerms;
use muster_protocol::rest::{CreateJob, JobView};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::computehorde::ComputeHordeValidator;
use crate::facilitator::{Facilitator, validator_key};
use crate::user::{User, job_for, read_json, signature_headers};
use crate::validator::Validator;

fn with_terms(terms: &Value) -> Value {
    let mut body = job_for(validator_key("Validator"));
    body["muster"] = json!({"terms": terms});
    body
}

/// Adds the user's signature over the terms.
fn signed_terms(user: &User, mut body: Value, timestamp_ns: i64) -> Value {
    let job: CreateJob = serde_json::from_value(body.clone()).unwrap();
    let terms: JobTerms = serde_json::from_value(body["muster"]["terms"].clone()).unwrap();
    let signature = sign_terms(&user.keys, &terms, &job.signed_fields().digest(timestamp_ns));
    body["muster"]["signature"] = json!(signature);
    body
}

#[tokio::test]
async fn a_users_terms_reach_the_validator_and_the_view() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let now = facilitator.now_ns();
    let start = json!({"workdir": "/w", "entrypoint": "", "stdin": "in"});
    let terms = json!({"image_time_limit": 3600, "priority": 8, "start": start});
    let body = signed_terms(&user, with_terms(&terms), now);
    let job = user.create(&body, now).await;
    let delivered = validator.job().await;
    assert!(verify_job(&delivered).is_ok());
    assert_eq!(json!(delivered.terms()), terms);
    assert_eq!(delivered.account(), user.keys.hotkey().to_string());
    let seen = json!(user.job(job.uuid).await.muster);
    assert_eq!(seen, json!({"terms": terms}), "the view holds no signature");
    assert_eq!(json!(job.muster), seen);
}

#[tokio::test]
async fn terms_that_the_user_did_not_sign_for_this_job_are_refused() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let now = facilitator.now_ns();
    let plain = with_terms(&json!({"priority": 8}));
    let earlier = signed_terms(&user, plain.clone(), now - 1);
    let mut changed = signed_terms(&user, plain.clone(), now);
    changed["muster"]["terms"]["priority"] = json!(10);
    for (body, words) in [
        (plain.clone(), "did not sign these terms"),
        (earlier, "did not sign these terms"),
        (changed, "did not sign these terms"),
        (with_terms(&json!({"image_time_limit": 0})), "image_time_limit"),
        (with_terms(&json!({"priority": 11})), "priority"),
        (with_terms(&json!({"max_price": 1})), "max_price"),
        (
            with_terms(&json!({"start": {"workdir": "w"}})),
            "working directory",
        ),
        (with_terms(&json!({"start": {"shell": "sh"}})), "shell"),
        (
            {
                let mut body = plain.clone();
                body["muster"]["account"] = json!("alice");
                body
            },
            "account",
        ),
    ] {
        // A body that cannot be read as a job is signed as one without terms: they are not among the signed fields.
        let mut bare = body.clone();
        bare.as_object_mut().unwrap().remove("muster");
        let headers = signature_headers(&user.sign(&bare, now));
        let answer = user.post(serde_json::to_vec(&body).unwrap(), &headers).await;
        let (status, reason) = read_json(answer).await;
        assert_eq!(status, 400, "{reason}");
        assert!(reason["muster"].to_string().contains(words), "{reason}");
    }
    validator.is_idle().await;
}

#[tokio::test]
async fn the_facilitator_signs_the_terms_and_names_the_account_of_a_job_with_an_api_key() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let made = user
        .send(Method::POST, "/api/v1/keys/", Some(&json!({"name": "laptop"})))
        .await;
    let (_, made) = read_json(made).await;
    let holder = user.with_token(made["key"].as_str().unwrap());
    for terms in [Some(json!({"priority": 2})), None] {
        let body = match &terms {
            Some(terms) => with_terms(terms),
            None => job_for(validator_key("Validator")),
        };
        let answer = holder
            .send(Method::POST, "/api/v1/job-docker/", Some(&body))
            .await;
        assert_eq!(answer.status(), StatusCode::CREATED);
        let view: JobView = answer.json().await.unwrap();
        let delivered = validator.job().await;
        assert!(verify_job(&delivered).is_ok());
        assert_eq!(delivered.account(), user.keys.hotkey().to_string());
        assert_ne!(delivered.signature.signatory.0, user.keys.hotkey());
        let shown = terms.as_ref().map(|terms| json!({"terms": terms}));
        assert_eq!(json!(view.muster), json!(shown), "the account is nobody's to see");
    }
}

#[tokio::test]
async fn a_validator_without_the_feature_gets_no_terms_and_no_account() {
    let facilitator = Facilitator::start().await;
    let mut stranger = ComputeHordeValidator::dial(&facilitator).await;
    assert_eq!(stranger.greet("Validator").await, "success");
    stranger.settle().await;
    let user = User::login(&facilitator, "User").await;
    let now = facilitator.now_ns();
    let body = signed_terms(&user, with_terms(&json!({"priority": 8})), now);
    let (status, reason) = read_json(user.submit(&body, now).await).await;
    assert_eq!(status, 400);
    assert!(reason["muster"].to_string().contains("does not know"), "{reason}");
    let start = json!({"start": {"workdir": "/w", "entrypoint": "", "stdin": "in"}});
    let body = signed_terms(&user, with_terms(&start), now);
    let (status, reason) = read_json(user.submit(&body, now).await).await;
    assert_eq!(status, 400);
    assert!(reason["muster"].to_string().contains("does not know"), "{reason}");
    for (path, kind, words) in [
        ("a", "file", "does not know"),
        ("a//b", "folder", "empty component"),
    ] {
        let mut body = job_for(validator_key("Validator"));
        body["uploads"] = json!([{
            "output_upload_type": "single_file_put", "url": "http://h/", "relative_path": path, "kind": kind,
        }]);
        let (status, reason) = read_json(user.submit(&body, facilitator.now_ns()).await).await;
        assert_eq!(status, 400);
        assert!(reason["uploads"].to_string().contains(words), "{reason}");
    }
    let (_, made) = read_json(
        user.send(Method::POST, "/api/v1/keys/", Some(&json!({"name": "laptop"})))
            .await,
    )
    .await;
    let holder = user.with_token(made["key"].as_str().unwrap());
    let plain = job_for(validator_key("Validator"));
    let answer = holder
        .send(Method::POST, "/api/v1/job-docker/", Some(&plain))
        .await;
    assert_eq!(answer.status(), StatusCode::CREATED);
    let frame = stranger.next().await;
    assert_eq!(frame["message_type"], "V2JobRequest");
    assert!(frame.get("muster").is_none(), "{frame}");
}
