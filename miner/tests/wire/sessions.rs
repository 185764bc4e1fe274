//! A streaming session is attested by its miner's own hotkey, or not at all, and its last message reaches the
//! validator.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_protocol::wire::executor::{SealSession, SessionClosed, SessionSealed};
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::miner::{AttemptNotice, SealTerms, StreamingDetails, StreamingJobReady};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{Digest, Hotkey, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{Attestation, Envelope, HashScheme, Price, Sealable as _, SessionId, Text};
use uuid::Uuid;

use crate::harness::*;

/// The answer to a statement.
async fn asked(executor: &mut Executor, stated: &Attestation) -> SessionSealed {
    let ask = SealSession {
        job_uuid: stated.attempt,
        statement: STANDARD.encode(stated.signed_bytes()),
    };
    executor
        .send_message(&ExecutorToMiner::MusterSealSession(Box::new(ask)))
        .await;
    let MinerToExecutor::MusterSessionSealed(answer) = executor.receive().await else {
        panic!("no answer to the statement")
    };
    answer
}

#[tokio::test]
async fn a_session_is_attested_if_it_is_true_and_its_end_is_told() {
    let mut miner = Miner::start_with(|config| config.executor.max_skew_ms = 700).await;
    let mut validator = Validator::connect(&miner).await;
    let (attempt, job_id) = (new_attempt(), JobId::from_uuid(Uuid::new_v4()));
    let client = muster_process::certificate::make_self_signed(&["client".to_owned()]).unwrap();
    let image = ImageId(Digest::of(b"image"));
    let mut offer = initial(attempt, validator.now);
    offer.streaming_details = Some(StreamingDetails {
        public_key: client.pem.clone(),
        executor_ip: None,
        muster: Some(SealTerms {
            job: Some(job_id),
            model: "tiny".to_owned(),
            image,
            weights: None,
            scheme: "raw-http".to_owned(),
            health: "/health".to_owned(),
            socket: Some("engine.sock".to_owned()),
            port: None,
            input_price: 1,
            output_price: 2,
            grader: None,
        }),
    });
    validator
        .send_message(&ValidatorToMiner::V0InitialJobRequest(Box::new(offer)))
        .await;
    assert_eq!(validator.receive_kind().await, "V0AcceptJobRequest");
    assert_eq!(validator.receive_kind().await, "MusterReceiptCountersigned");
    let mut executor = Executor::dial(&miner.wanted().await).await;
    executor.ready().await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorReadyRequest");
    validator
        .send_message(&ValidatorToMiner::V0JobRequest(Box::new(job(attempt))))
        .await;
    assert!(matches!(
        executor.receive().await,
        MinerToExecutor::V0JobRequest(_)
    ));
    let notice = AttemptNotice { job_uuid: attempt };
    executor
        .send_message(&ExecutorToMiner::V0VolumesReadyRequest(notice))
        .await;
    assert_eq!(validator.receive_kind().await, "V0VolumesReadyRequest");

    let text = |text: &str| Text::new(text).unwrap();
    let stated = Attestation {
        session: SessionId(Uuid::new_v4()),
        session_key: Hotkey::from_bytes([1; 32]),
        job: job_id,
        attempt,
        miner: MinerKey(miner_key().hotkey()),
        audience: ValidatorKey(validator_key().hotkey()),
        server_certificate: Digest::of(b"server"),
        client_certificate: client.identity.fingerprint(),
        executor: text("box"),
        address: text("127.0.0.1:6006"),
        image,
        model: None,
        scheme: HashScheme::RawHttp,
        price: Price { input: 1, output: 2 },
        not_before: validator.now,
        not_after: Timestamp::from_secs(validator.now.secs() + 1),
    };
    // Under another miner's name, and what is no statement: nothing is signed.
    let another = Attestation {
        miner: MinerKey(validator_key().hotkey()),
        ..stated.clone()
    };
    for statement in [STANDARD.encode(another.signed_bytes()), "bXVzdGVy".to_owned()] {
        let ask = SealSession {
            job_uuid: attempt,
            statement,
        };
        executor
            .send_message(&ExecutorToMiner::MusterSealSession(Box::new(ask)))
            .await;
        let complaint = executor.receive_error().await;
        assert!(
            complaint.contains("holds no attestation by this miner"),
            "{complaint}"
        );
    }
    // Another price than its validator's.
    let mut dearer = stated.clone();
    dearer.price.output = 3;
    let refused = asked(&mut executor, &dearer).await;
    assert_eq!(refused.attestation, None);
    assert!(refused.refusal.unwrap().contains("the price"));
    // A clock that is off by more than this miner's configuration allows; the test's own stands still.
    let mut ahead = stated.clone();
    ahead.not_before = validator.now.plus(Duration::from_millis(900));
    let refusal = asked(&mut executor, &ahead).await.refusal.unwrap();
    assert!(
        refusal.contains("900 ms ahead of") && refusal.contains("700 ms"),
        "{refusal}"
    );
    // A statement that is true.
    let signed = asked(&mut executor, &stated).await.attestation.unwrap();
    let envelope = Envelope::<Attestation>::from_text(&signed).unwrap();
    assert_eq!(envelope.signed_bytes(), stated.signed_bytes());
    assert!(muster_identity::verify(
        &miner_key().hotkey(),
        envelope.signed_bytes(),
        envelope.signature()
    ));

    let address = StreamingJobReady {
        job_uuid: attempt,
        executor_token: None,
        public_key: "PEM".to_owned(),
        ip: None,
        port: 6006,
        miner_signature: None,
    };
    executor
        .send_message(&ExecutorToMiner::V0StreamingJobReadyRequest(address))
        .await;
    assert_eq!(validator.receive_kind().await, "V0StreamingJobReadyRequest");
    let closed = SessionClosed {
        job_uuid: attempt,
        close: "bXVzdGVy".to_owned(),
    };
    executor
        .send_message(&ExecutorToMiner::MusterSessionClosed(closed.clone()))
        .await;
    assert_eq!(
        validator.receive().await,
        MinerToValidator::MusterSessionClosed(closed)
    );
}
