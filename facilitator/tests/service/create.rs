//! Submitting jobs: accepted ones, rejected ones with their reasons, and repeated requests.

use muster_protocol::rest::headers;
use muster_protocol::{JobStatus, Signature};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::facilitator::{Facilitator, validator_key};
use crate::user::{User, job_for, read_json, signature_headers};
use crate::validator::Validator;

const SECOND: i64 = 1_000_000_000;

fn replaced(
    headers: &[(&'static str, String)],
    name: &'static str,
    value: Option<&str>,
) -> Vec<(&'static str, String)> {
    let mut changed: Vec<_> = headers
        .iter()
        .filter(|(other, _)| *other != name)
        .cloned()
        .collect();
    changed.extend(value.map(|value| (name, value.to_owned())));
    changed
}

#[tokio::test]
async fn a_job_posted_by_the_sdk_is_seen_by_its_user_alone() {
    let facilitator = Facilitator::start().await;
    let _validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let mut body = job_for(validator_key("Validator"));
    body["artifacts_dir"] = Value::Null;
    let job = user.create(&body, facilitator.now_ns()).await;
    assert_eq!(job.last_status(), JobStatus::Sent);
    assert_eq!(
        (job.status.as_str(), job.artifacts_dir.as_deref()),
        ("Sent", None)
    );
    assert_eq!(job.env.keys().collect::<Vec<_>>(), ["B", "A"]);
    assert_eq!(job.target_validator_hotkey, validator_key("Validator"));
    assert_eq!(user.job(job.uuid).await, job);

    let stranger = User::login(&facilitator, "Other").await;
    let answer = read_json(
        stranger
            .get(&format!("/api/v1/jobs/{}/", job.uuid))
            .send()
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(answer, (404, json!({"detail": "Not found."})));
    for odd in ["x", "..", "%00", "11111111222243338444555555555555"] {
        let answer = user.get(&format!("/api/v1/jobs/{odd}/")).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{odd}");
    }
}

#[tokio::test]
async fn every_bad_signature_is_refused_with_a_reason() {
    let facilitator = Facilitator::start().await;
    let _validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let other = User::login(&facilitator, "Other").await;
    let body = job_for(validator_key("Validator"));
    let bytes = serde_json::to_vec(&body).unwrap();
    let now = facilitator.now_ns();
    let good = signature_headers(&user.sign(&body, now));
    let mut other_body = body.clone();
    other_body["env"] = json!({"A": "2", "B": "1"});
    let nobody = Signature::from_bytes([0; 64]).to_base64();
    let stolen = other.sign(&body, now).signature.to_base64();

    let mut cases = vec![
        ("no headers", Vec::new(), 401),
        (
            "bad base64",
            replaced(&good, headers::SIGNATURE, Some("???")),
            400,
        ),
        ("short", replaced(&good, headers::SIGNATURE, Some("AAAA")), 400),
        ("zeros", replaced(&good, headers::SIGNATURE, Some(&nobody)), 401),
        (
            "another key's",
            replaced(&good, headers::SIGNATURE, Some(&stolen)),
            401,
        ),
        ("another user's", signature_headers(&other.sign(&body, now)), 401),
        (
            "another body's",
            signature_headers(&user.sign(&other_body, now)),
            401,
        ),
        (
            "old",
            signature_headers(&user.sign(&body, now - 301 * SECOND)),
            401,
        ),
        (
            "future",
            signature_headers(&user.sign(&body, now + 3600 * SECOND)),
            401,
        ),
        (
            "other time",
            replaced(&good, headers::TIMESTAMP_NS, Some(&(now - 1).to_string())),
            401,
        ),
        (
            "no time",
            replaced(&good, headers::TIMESTAMP_NS, Some("now")),
            400,
        ),
        ("no address", replaced(&good, headers::SIGNATORY, Some("5x")), 400),
        (
            "other scheme",
            replaced(&good, headers::SIGNATURE_TYPE, Some("pgp")),
            400,
        ),
        (
            "other scope",
            replaced(&good, headers::SIGNATURE_SCOPE, Some("FullRequest")),
            400,
        ),
    ];
    for name in [
        headers::SIGNATURE_TYPE,
        headers::SIGNATORY,
        headers::TIMESTAMP_NS,
        headers::SIGNATURE,
        headers::SIGNATURE_SCOPE,
    ] {
        cases.push((name, replaced(&good, name, None), 401));
    }
    for (case, headers, status) in cases {
        let answer = read_json(user.post(bytes.clone(), &headers).await).await;
        assert_eq!(answer.0, status, "{case}: {answer:?}");
        let reason = answer.1["detail"].as_str().unwrap();
        assert!(reason.starts_with("Signature "), "{case}: {reason}");
    }
    assert_eq!(user.post(bytes, &good).await.status(), StatusCode::CREATED);
}

#[tokio::test]
async fn a_repeated_request_is_the_same_job() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let body = job_for(validator_key("Validator"));
    let bytes = serde_json::to_vec(&body).unwrap();
    let headers = signature_headers(&user.sign(&body, facilitator.now_ns()));
    let first = read_json(user.post(bytes.clone(), &headers).await).await;
    let delivered = validator.job().await;
    let (again, third) = tokio::join!(
        user.post(bytes.clone(), &headers),
        user.post(bytes.clone(), &headers)
    );
    assert_eq!(read_json(again).await, first);
    assert_eq!(read_json(third).await, first);
    assert_eq!((first.0, &first.1["uuid"]), (201, &json!(delivered.uuid)));
    validator.is_idle().await;

    // A new signature over the same fields creates a new job.
    let second = user.create(&body, facilitator.now_ns()).await;
    assert_ne!(second.uuid, delivered.uuid);
}

#[tokio::test]
async fn requests_that_race_make_one_job() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let body = job_for(validator_key("Validator"));
    let bytes = serde_json::to_vec(&body).unwrap();
    let headers = signature_headers(&user.sign(&body, facilitator.now_ns()));
    let post = || user.post(bytes.clone(), &headers);
    let (a, b, c, d) = tokio::join!(post(), post(), post(), post());
    let mut uuids = Vec::new();
    for answer in [a, b, c, d] {
        let (status, job) = read_json(answer).await;
        assert_eq!(status, 201);
        uuids.push(job["uuid"].clone());
    }
    uuids.dedup();
    assert_eq!(uuids, [json!(validator.job().await.uuid)]);
    validator.is_idle().await;
}

#[tokio::test]
async fn a_validator_that_is_not_there_cannot_be_selected() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    for name in ["Validator", "Stranger"] {
        let answer = read_json(
            user.submit(&job_for(validator_key(name)), facilitator.now_ns())
                .await,
        )
        .await;
        assert_eq!(answer, (400, json!(["Could not select Validator"])), "{name}");
    }
}

#[tokio::test]
async fn bodies_that_are_no_job_are_refused_by_field_size_and_kind() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let headers = signature_headers(&user.sign(&job_for(validator_key("Validator")), facilitator.now_ns()));

    let fields = read_json(user.post(b"{\"args\": null}".to_vec(), &headers).await).await;
    assert_eq!(fields.0, 400);
    assert_eq!(fields.1["docker_image"], json!(["This field is required."]));
    assert_eq!(fields.1["args"], json!(["This field may not be null."]));
    let broken = read_json(user.post(b"{".to_vec(), &headers).await).await;
    assert_eq!(broken.0, 400);
    assert!(
        broken.1["detail"]
            .as_str()
            .unwrap()
            .starts_with("JSON parse error")
    );

    let large = read_json(user.post(vec![b' '; 16 * 1024 * 1024 + 1], &headers).await).await;
    assert_eq!(large.0, 413);
    assert!(
        large.1["detail"].as_str().unwrap().contains("16777216"),
        "{large:?}"
    );

    let mut plain = user
        .http
        .post(facilitator.url("/api/v1/job-docker/"))
        .bearer_auth(&user.token)
        .header("content-type", "text/plain")
        .body("{}");
    for (name, value) in &headers {
        plain = plain.header(*name, value);
    }
    assert_eq!(read_json(plain.send().await.unwrap()).await.0, 415);
}
