//! Users' reports of streamed answers: only an answer to the account is taken, the validator gets it once, and its
//! finding is shown to the account that reported.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_identity::{Keypair, sign_request, verify_cheat_report};
use muster_protocol::wire::checks::{CheckOrigin, CheckState, JobCheck};
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::{AttemptId, Digest, JobId, Timestamp, ValidatorKey};
use muster_response_proof::{
    ClientKey, Envelope, GatewayToken, HashScheme, ReportedAnswer, RequestNonce, ResponseProof, SessionId,
    StreamEnd, Text, client_pseudonym, hash_chunk, root_of, seal,
};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::facilitator::{Facilitator, key, until};
use crate::models::{Gateway, announced, notice};
use crate::user::{User, read_json, signature_headers};
use crate::validator::Validator;

const ASKED: &[u8] = b"{}";
const ANSWERED: &[u8] = b"{\"choices\":[]}";

/// The proof of an answer of the session that ran as this job, in text form.
fn proof(job: JobId, client: Digest) -> String {
    let statement = ResponseProof {
        session: SessionId(Uuid::from_u128(1)),
        sequence: 0,
        previous: Digest::of(b""),
        job,
        attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
        audience: ValidatorKey(key("Validator").hotkey()),
        client: Some(client),
        attestation: Digest::of(b"attested"),
        client_nonce: None,
        gateway_nonce: Some(RequestNonce::from_bytes([7; 32])),
        method: Text::new("POST").unwrap(),
        path: Text::new("/v1/chat/completions").unwrap(),
        status: 200,
        content_type: None,
        scheme: HashScheme::RawHttp,
        input: Digest::of(ASKED),
        output: Digest::of(ANSWERED),
        output_bytes: 14,
        chunks: root_of([hash_chunk(ANSWERED)]),
        from: Timestamp::from_secs(1),
        first_byte: None,
        to: Timestamp::from_secs(2),
        tokens: None,
        engine: None,
        end: StreamEnd::Completed,
    };
    let session = Keypair::generate();
    seal(&statement, &session).to_text()
}

fn body(job: JobId, proof: &str, response: &[u8]) -> Value {
    let words = json!({"request": STANDARD.encode(ASKED), "response": STANDARD.encode(response)});
    json!({
        "job_uuid": job, "trusted_job_uuid": job,
        "details": {"answer": {"proof": proof, "words": words}, "text": "it is another model"},
    })
}

async fn report(facilitator: &Facilitator, user: &User, body: &Value) -> (u16, Value) {
    let signature = sign_request(&user.keys, body, facilitator.now_ns());
    let mut request = user.request(Method::POST, "/api/v1/cheated-answer/", Some(body));
    for (name, value) in signature_headers(&signature) {
        let value = if value == "SignedFields" {
            "FullRequest".to_owned()
        } else {
            value
        };
        request = request.header(name, value);
    }
    read_json(request.send().await.unwrap()).await
}

#[tokio::test]
async fn a_reported_answer_reaches_its_validator_and_its_finding_the_account() {
    let facilitator = Facilitator::start().await;
    let (gateway, url) = Gateway::open().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let (user, other) = (
        User::login(&facilitator, "User").await,
        User::login(&facilitator, "Other").await,
    );
    validator.send_message(&notice(&url)).await;
    announced(&user).await;
    // The gateway receives the key that gives the account's requests their pseudonyms.
    let ask = json!({"model": "org/tiny", "stream": true, "messages": []});
    let answer = user.send(Method::POST, "/v1/chat/completions", Some(&ask)).await;
    assert_eq!(answer.status(), 200);
    let key = key_of(&gateway);
    let drawn = RequestNonce::from_bytes([9; 32]);
    let job = JobId::from_uuid(Uuid::from_u128(2));
    let proven = proof(job, key.pseudonym(&Digest::of(ASKED), &drawn));
    let opened = |nonce: Option<RequestNonce>| {
        let mut report = body(job, &proven, ANSWERED);
        if let Some(nonce) = nonce {
            report["details"]["answer"]["pseudonym_nonce"] = json!(nonce.hex());
        }
        report
    };
    let good = opened(Some(drawn));

    let path = format!("/api/v1/answers/{job}/check/");
    let finding = async |of: &User| read_json(of.get(&path).send().await.unwrap()).await;
    assert_eq!(finding(&user).await.0, 404, "nothing was reported");
    let elsewhere = JobId::from_uuid(Uuid::from_u128(9));
    let wrong: [(&str, Value); 5] = [
        ("details", opened(None)),
        ("job_uuid", body(elsewhere, &proven, ANSWERED)),
        ("details", body(job, "no proof", ANSWERED)),
        ("details", body(job, &proven, b"other words")),
        ("details", json!({"job_uuid": job, "trusted_job_uuid": job})),
    ];
    for (field, body) in wrong {
        let (status, said) = report(&facilitator, &user, &body).await;
        assert_eq!((status, said[field].is_array()), (400, true), "{said}");
    }
    let foreign = report(&facilitator, &other, &good).await;
    assert_eq!(foreign, (404, json!({"error": "Answer not found"})));
    let another = report(
        &facilitator,
        &user,
        &opened(Some(RequestNonce::from_bytes([8; 32]))),
    )
    .await;
    assert_eq!(another, foreign, "the nonce opens another pseudonym");

    let taken = report(&facilitator, &user, &good).await;
    assert_eq!(taken, (201, json!({"message": "Answer reported as cheated"})));
    let told = validator.cheated().await;
    assert!(verify_cheat_report(&told).is_ok(), "{told:?}");
    assert_eq!(told.job_uuid, job.to_string());
    let answer = ReportedAnswer::from_details(told.details.as_ref()).unwrap();
    assert_eq!(answer.proof, proven);
    assert!(answer.words.unwrap().check(&answer_proof(&proven)).is_ok());
    let again = report(&facilitator, &user, &good).await;
    assert_eq!(again.0, 400, "{again:?}");
    validator.is_idle().await;

    assert_eq!(finding(&user).await.1["state"], "pending");
    let check = JobCheck {
        uuid: job,
        origin: CheckOrigin::Reported,
        state: CheckState::Differs,
        reason: "20 of the 128 tokens".to_owned(),
        outputs: Vec::new(),
        at: Timestamp::from_secs(1),
    };
    validator
        .send_message(&ToFacilitator::MusterJobCheck(Box::new(check)))
        .await;
    until(async || (finding(&user).await.1["state"] == "differs").then_some(())).await;
    assert_eq!(finding(&user).await.1["reason"], "20 of the 128 tokens");
    assert_eq!(
        finding(&other).await.0,
        404,
        "another account has reported nothing"
    );
}

/// The key with which the account's first request came to the gateway.
fn key_of(gateway: &Gateway) -> ClientKey {
    let key = gateway.heard()[0].0["muster-client-key"]
        .to_str()
        .unwrap()
        .to_owned();
    ClientKey::from_hex(&key).unwrap()
}

#[tokio::test]
async fn an_account_has_a_key_at_each_validator_that_no_client_chooses() {
    let facilitator = Facilitator::start().await;
    let (first, url) = Gateway::open().await;
    let (second, other_url) = Gateway::open().await;
    let mut of_first = Validator::connect(&facilitator, "Validator").await;
    let mut of_second = Validator::connect(&facilitator, "Other").await;
    let user = User::login(&facilitator, "User").await;
    of_first.send_message(&notice(&url)).await;
    of_second.send_message(&notice(&other_url)).await;
    announced(&user).await;
    let ask = json!({"model": "org/tiny", "stream": true, "messages": []});
    for (name, gateway) in [("Validator", &first), ("Other", &second)] {
        let asked = async || {
            let request = user.request(Method::POST, "/v1/chat/completions", Some(&ask));
            let request = request.header("muster-validator", key(name).hotkey().to_string());
            let request = request.header("muster-client-key", "00".repeat(32));
            let status = request.send().await.unwrap().status();
            (status == 200).then_some(())
        };
        until(asked).await;
        assert_eq!(
            gateway.heard()[0].0.get_all("muster-client-key").iter().count(),
            1
        );
    }
    assert_ne!(
        key_of(&first),
        key_of(&second),
        "one validator cannot open the requests to another"
    );
    assert_ne!(key_of(&first), ClientKey::from_bytes([0; 32]));
}

fn answer_proof(text: &str) -> ResponseProof {
    Envelope::<ResponseProof>::from_text(text)
        .unwrap()
        .statement()
        .unwrap()
}

#[tokio::test]
async fn an_account_reports_five_answers_a_day() {
    let facilitator = Facilitator::start().await;
    let (gateway, url) = Gateway::open().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    validator.send_message(&notice(&url)).await;
    announced(&user).await;
    let ask = json!({"model": "org/tiny", "stream": true, "messages": []});
    user.send(Method::POST, "/v1/chat/completions", Some(&ask)).await;
    let bearer = gateway.heard()[0].0["authorization"].to_str().unwrap().to_owned();
    let token = Envelope::<GatewayToken>::from_text(bearer.trim_start_matches("Bearer ")).unwrap();
    let stated = token.statement().unwrap();
    let client = client_pseudonym(stated.facilitator.as_bytes(), stated.client.as_bytes());
    for number in 0..6 {
        let job = JobId::from_uuid(Uuid::from_u128(10 + number));
        let (status, said) = report(&facilitator, &user, &body(job, &proof(job, client), ANSWERED)).await;
        assert_eq!(status, if number < 5 { 201 } else { 400 }, "{said}");
    }
}
