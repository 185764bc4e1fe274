//! Users' reports about results: feedback and cheat reports.

use muster_identity::{sign_request, verify_cheat_report};
use muster_protocol::wire::checks::{CheckOrigin, CheckState, CheckedOutput, JobCheck};
use muster_protocol::wire::facilitator::{MinerResponse, StatusMetadata, ToFacilitator, UserSignature};
use muster_protocol::wire::signing::full_request_object_digest;
use muster_protocol::{Digest, JobId, JobStatus, Signature, Timestamp};
use muster_testbed::sign_as_other_programs_do;
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::facilitator::{Facilitator, until, validator_key};
use crate::user::{User, job_for, read_json, signature_headers};
use crate::validator::Validator;

struct Stage {
    facilitator: Facilitator,
    validator: Validator,
    user: User,
    job: JobId,
    trusted: JobId,
}

impl Stage {
    async fn set() -> Self {
        let facilitator = Facilitator::start().await;
        let mut validator = Validator::connect(&facilitator, "Validator").await;
        let user = User::login(&facilitator, "User").await;
        let body = job_for(validator_key("Validator"));
        let job = user.create(&body, facilitator.now_ns()).await.uuid;
        let trusted = user.create(&body, facilitator.now_ns()).await.uuid;
        validator.job().await;
        validator.job().await;
        Self {
            facilitator,
            validator,
            user,
            job,
            trusted,
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        signature: Option<&UserSignature>,
    ) -> (u16, Value) {
        let mut request = self.user.request(method, path, Some(body));
        for (name, value) in signature.map(signature_headers).unwrap_or_default() {
            let value = if value == "SignedFields" {
                "FullRequest".to_owned()
            } else {
                value
            };
            request = request.header(name, value);
        }
        read_json(request.send().await.unwrap()).await
    }

    async fn report(&self, body: &Value) -> (u16, Value) {
        let signature = sign_request(&self.user.keys, body, self.facilitator.now_ns());
        self.send(Method::POST, "/api/v1/cheated-job/", body, Some(&signature))
            .await
    }

    fn now(&self) -> i64 {
        self.facilitator.now_ns()
    }
}

/// ComputeHorde has two defects here: its cheat reports never verify, and one without details is malformed.
#[tokio::test]
async fn a_report_of_cheating_verifies_at_the_validator_with_details_and_without() {
    for details in [Some(json!({"why": "ż", "n": [1, 2.5]})), Some(Value::Null), None] {
        let mut stage = Stage::set().await;
        let mut body = json!({"trusted_job_uuid": stage.trusted, "job_uuid": stage.job});
        if let Some(details) = &details {
            body["details"] = details.clone();
        }
        let answer = stage.report(&body).await;
        assert_eq!(answer, (201, json!({"message": "Job reported as cheated"})));
        let report = stage.validator.cheated().await;
        assert!(verify_cheat_report(&report).is_ok(), "{report:?}");
        assert_eq!(report.details, details.filter(|details| !details.is_null()));
        assert_eq!(report.job_uuid, stage.job.to_string());
        let frame = muster_protocol::wire::encode(&report);
        assert!(
            frame.contains("\"details\":"),
            "a ComputeHorde validator demands the field"
        );
        let again = stage.report(&body).await;
        assert_eq!(
            again,
            (400, json!({"error": "Cheat report already exists for this job"}))
        );
        stage.validator.is_idle().await;
    }
}

/// A job on the trusted miner, and the report that names it: the user reads which outputs differ.
#[tokio::test]
async fn a_report_shows_how_the_outputs_compare_with_those_of_the_trusted_miner() {
    for details in [Some(json!("the sum is wrong")), None] {
        let mut stage = Stage::set().await;
        let mut body = job_for(validator_key("Validator"));
        body["on_trusted_miner"] = json!(true);
        let trusted = stage.user.create(&body, stage.now()).await.uuid;
        assert!(stage.validator.job().await.on_trusted_miner);
        let mut report = json!({"job_uuid": stage.job, "trusted_job_uuid": trusted});
        if let Some(details) = &details {
            report["details"] = details.clone();
        }
        let path = format!("/api/v1/jobs/{}/cheat-report/", stage.job);
        let read = async |stage: &Stage| read_json(stage.user.get(&path).send().await.unwrap()).await;
        assert_eq!(read(&stage).await.0, 404, "nothing is reported yet");
        assert_eq!(stage.report(&report).await.0, 201);
        stage.validator.cheated().await;
        let (status, view) = read(&stage).await;
        assert_eq!(
            (status, &view["comparison"]["verdict"]),
            (200, &json!("not_compared")),
            "{view}"
        );
        for (job, stdout) in [(stage.job, "41\n"), (trusted, "42\n")] {
            let metadata = StatusMetadata {
                miner_response: Some(MinerResponse {
                    docker_process_stdout: stdout.to_owned(),
                    ..MinerResponse::default()
                }),
                ..StatusMetadata::default()
            };
            stage
                .validator
                .report_with(job, JobStatus::Completed, Some(metadata))
                .await
                .unwrap();
        }
        let (_, view) = read(&stage).await;
        assert_eq!(view["trusted_job_uuid"], json!(trusted));
        assert_eq!(view["details"], details.unwrap_or_default());
        let comparison = &view["comparison"];
        assert_eq!(comparison["verdict"], "differs", "{view}");
        assert_eq!(comparison["outputs"][0]["name"], "stdout");
        assert_ne!(
            comparison["outputs"][0]["job"],
            comparison["outputs"][0]["trusted_job"]
        );
        let other = User::login(&stage.facilitator, "Other").await;
        assert_eq!(read_json(other.get(&path).send().await.unwrap()).await.0, 404);
    }
}

/// The validator's finding by running the job again: the user reads it with the report, by itself and on the page.
#[tokio::test]
async fn a_report_shows_what_running_the_job_again_showed() {
    for (details, state, reason) in [
        (
            Some(json!("the sum is wrong")),
            CheckState::Differs,
            "1 of 1 outputs differ",
        ),
        (
            None,
            CheckState::Unproven,
            "its inputs cannot be fetched any more",
        ),
    ] {
        let mut stage = Stage::set().await;
        let mut report = json!({"job_uuid": stage.job, "trusted_job_uuid": stage.trusted});
        if let Some(details) = &details {
            report["details"] = details.clone();
        }
        let path = format!("/api/v1/jobs/{}/check/", stage.job);
        let read = async |path: &str| read_json(stage.user.get(path).send().await.unwrap()).await;
        assert_eq!(read(&path).await.0, 404, "nothing is told yet");
        assert_eq!(stage.report(&report).await.0, 201);
        stage.validator.cheated().await;
        let of_report = format!("/api/v1/jobs/{}/cheat-report/", stage.job);
        assert_eq!(read(&of_report).await.1["check"], Value::Null);
        let check = |uuid, state, reason: &str| JobCheck {
            uuid,
            origin: CheckOrigin::Reported,
            state,
            reason: reason.to_owned(),
            outputs: vec![CheckedOutput {
                name: "stdout".to_owned(),
                job: Some(Digest::of(b"41")),
                trusted: Some(Digest::of(b"42")),
            }],
            at: Timestamp::from_secs(1_769_000_000),
        };
        // Another validator's report about the job is not taken, nor a report about a job that nobody knows.
        let mut other = Validator::connect(&stage.facilitator, "Other").await;
        other
            .send_message(&ToFacilitator::MusterJobCheck(Box::new(check(
                stage.job,
                CheckState::Agrees,
                "",
            ))))
            .await;
        for told in [
            check(JobId::from_uuid(Uuid::from_u128(9)), state, reason),
            check(stage.job, CheckState::Pending, ""),
            check(stage.job, state, reason),
        ] {
            stage
                .validator
                .send_message(&ToFacilitator::MusterJobCheck(Box::new(told)))
                .await;
        }
        let shown = until(async || {
            let (status, shown) = read(&path).await;
            (status == 200 && shown["state"] == state.as_str()).then_some(shown)
        })
        .await;
        assert_eq!(
            (&shown["reason"], &shown["origin"]),
            (&json!(reason), &json!("reported")),
            "{shown}"
        );
        assert_eq!(shown["outputs"][0]["trusted"], json!(Digest::of(b"42")));
        assert_eq!(read(&of_report).await.1["check"], shown);
        let stranger = User::login(&stage.facilitator, "Stranger").await;
        assert_eq!(read_json(stranger.get(&path).send().await.unwrap()).await.0, 404);
    }
}

#[tokio::test]
async fn a_report_waits_for_its_validator_and_goes_once() {
    let stage = Stage::set().await;
    let (facilitator, user) = (stage.facilitator, stage.user);
    drop(stage.validator);
    let stage = Stage {
        validator: Validator::dial(&facilitator).await,
        facilitator,
        user,
        ..stage
    };
    let body = json!({"job_uuid": stage.job, "trusted_job_uuid": stage.trusted, "details": "x"});
    assert_eq!(stage.report(&body).await.0, 201);
    let mut validator = stage.validator;
    validator.authenticate("Validator").await;
    for _ in 0..2 {
        validator.job().await;
    }
    assert_eq!(validator.cheated().await.job_uuid, stage.job.to_string());
    drop(validator);
    let (mut validator, _) = Validator::connect_to_jobs(&stage.facilitator, "Validator", 2).await;
    validator.is_idle().await;
}

#[tokio::test]
async fn reports_about_others_jobs_and_false_signatures_are_refused() {
    let stage = Stage::set().await;
    let unknown = "11111111-2222-4333-8444-555555555555";
    let report =
        |job: Value, trusted: Value| json!({"job_uuid": job, "trusted_job_uuid": trusted, "details": null});
    let (job, trusted) = (json!(stage.job), json!(stage.trusted));
    let answer = stage.report(&report(json!(unknown), trusted.clone())).await;
    assert_eq!(answer, (404, json!({"error": "Job not found"})));
    let answer = stage.report(&report(job.clone(), json!(unknown))).await;
    assert_eq!(answer, (404, json!({"error": "Trusted job not found"})));
    for bad in [
        report(json!("x"), trusted.clone()),
        report(job.clone(), job.clone()),
        json!({"job_uuid": job}),
        json!([]),
    ] {
        assert_eq!(stage.report(&bad).await.0, 400, "{bad}");
    }
    let body = report(job.clone(), trusted.clone());
    let path = "/api/v1/cheated-job/";
    assert_eq!(stage.send(Method::POST, path, &body, None).await.0, 401);
    let other = sign_request(&stage.user.keys, &report(job, json!(unknown)), stage.now());
    assert_eq!(stage.send(Method::POST, path, &body, Some(&other)).await.0, 401);
    let old = sign_request(&stage.user.keys, &body, stage.now() - 400_000_000_000);
    assert_eq!(stage.send(Method::POST, path, &body, Some(&old)).await.0, 401);
    // A signature over the object that ComputeHorde's validator expects is accepted too.
    let now = stage.now();
    let object = UserSignature {
        signature: Signature::from_bytes(sign_as_other_programs_do(
            "//User",
            &full_request_object_digest(now, &body),
        )),
        ..sign_request(&stage.user.keys, &body, now)
    };
    assert_eq!(stage.send(Method::POST, path, &body, Some(&object)).await.0, 201);
}

#[tokio::test]
async fn feedback_is_given_once_and_read_back() {
    let stage = Stage::set().await;
    let path = format!("/api/v1/jobs/{}/feedback/", stage.job);
    let body = json!({"result_correctness": 0.5, "expected_duration": 2.0});
    let missing = stage.send(Method::PUT, &path, &body, None).await;
    assert_eq!(
        (missing.0, &missing.1["error"]),
        (400, &json!("Signature not found"))
    );
    assert!(missing.1["details"].is_string());
    assert_eq!(stage.send(Method::GET, &path, &body, None).await.0, 404);
    let put = async |body: &Value| {
        let signature = sign_request(&stage.user.keys, body, stage.now());
        stage.send(Method::PUT, &path, body, Some(&signature)).await
    };
    assert_eq!(put(&json!({"result_correctness": 2})).await.0, 400);
    assert_eq!(put(&body).await, (201, body.clone()));
    assert_eq!(put(&json!({"result_correctness": 1})).await.0, 409);
    assert_eq!(stage.send(Method::GET, &path, &body, None).await, (200, body));
    let other = User::login(&stage.facilitator, "Other").await;
    assert_eq!(read_json(other.get(&path).send().await.unwrap()).await.0, 404);
}
