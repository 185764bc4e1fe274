//! A validator shows the miner its spot checks: the miner compares them with what its executors have signed, fetches
//! the evidence about itself, and appeals.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit_check::{AuditCheckStore, appeal};
use muster_miner::store::Store;
use muster_protocol::wire::audits::{
    AppealAnswer, AuditMessage, AuditNotice, AuditReply, BundlePart, HeaderNotice, LeafNotice, SessionProofs,
    SignedProof, VerdictNotice,
};
use muster_protocol::wire::executor_socket::ExecutorToMiner;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{AttemptId, Digest, ValidatorKey};
use muster_response_proof::{
    AnswerLeaf, AuditAppeal, BucketHeader, BucketNumber, Envelope, SessionId, inclusion_path, root_of, seal,
};
use uuid::Uuid;

use crate::harness::*;

/// The conviction of another miner.
const BUNDLE: &str = include_str!("../../../tests/vectors/audit-bundle.json");

fn session() -> SessionId {
    SessionId(Uuid::from_u128(7))
}

fn proof(sequence: u64) -> Digest {
    Digest::of(&sequence.to_be_bytes())
}

/// The proofs 0 to 3, of which the first is a health check.
fn signed(attempt: AttemptId, now: muster_protocol::Timestamp) -> ExecutorToMiner {
    let one = |sequence: u64| SignedProof {
        digest: proof(sequence),
        is_answer: sequence > 0,
        at: now,
    };
    ExecutorToMiner::MusterSessionProofs(Box::new(SessionProofs {
        job_uuid: attempt,
        session: session().to_string(),
        validator: ValidatorKey(validator_key().hotkey()),
        first: 0,
        proofs: (0..4).map(one).collect(),
    }))
}

/// The header of a bucket with these numbers of the session, and its digest.
fn header(bucket: u64, numbers: &[u64], previous: Digest) -> (HeaderNotice, Digest) {
    let leaf = |sequence: u64| AnswerLeaf {
        session: session(),
        sequence,
        proof: proof(sequence),
        output_tokens: 3,
        earned: 5,
        stratum: Digest::of(b"client"),
    };
    let hashes: Vec<Digest> = numbers.iter().map(|number| leaf(*number).hash()).collect();
    let stated = BucketHeader {
        genesis: Digest::of(b"genesis"),
        netuid: 1,
        validator: ValidatorKey(validator_key().hotkey()),
        bucket: BucketNumber(bucket),
        answers: u64::try_from(numbers.len()).unwrap(),
        root: root_of(hashes.clone()),
        previous,
        shares: 0,
        share_root: Digest::of(b""),
        canaries: Digest::of(b""),
    };
    let envelope = seal(&stated, &validator_key());
    let leaves = numbers.iter().enumerate().map(|(position, number)| {
        let leaf = leaf(*number);
        LeafNotice {
            session: leaf.session.to_string(),
            sequence: leaf.sequence,
            proof: leaf.proof,
            output_tokens: leaf.output_tokens,
            earned: leaf.earned,
            stratum: leaf.stratum,
            model: "tiny".to_owned(),
            position: u64::try_from(position).unwrap(),
            path: inclusion_path(&hashes, position).unwrap(),
        }
    });
    let notice = HeaderNotice {
        header: envelope.to_text(),
        between: vec![],
        own: stated.answers,
        leaves: leaves.collect(),
    };
    (notice, envelope.digest())
}

/// Sends a notice; returns the next answer.
async fn send_message(validator: &mut Validator, number: u64, notice: AuditNotice) -> AuditReply {
    let message = AuditMessage { number, notice };
    validator
        .send_message(&ValidatorToMiner::MusterAudit(Box::new(message)))
        .await;
    heard(validator).await
}

async fn heard(validator: &mut Validator) -> AuditReply {
    let MinerToValidator::MusterAuditReply(reply) = validator.receive().await else {
        panic!("no answer to a notice")
    };
    reply
}

async fn kept(miner: &Miner) -> AuditCheckStore {
    let url = format!("sqlite:{}", miner.folder.path().join("store.db").display());
    Store::open(&url).await.unwrap().audit_check().unwrap()
}

#[tokio::test]
async fn an_answer_that_no_header_has_is_found_by_what_the_executor_told_and_a_forged_header_is_refused() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    let attempt = new_attempt();
    validator.offer(attempt).await;
    let mut executor = Executor::dial(&miner.wanted().await).await;
    executor.send_message(&signed(attempt, validator.now)).await;
    // The ready message is received behind it, so the proofs are kept.
    executor.ready().await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorReadyRequest");

    let taken = |number| AuditReply::Taken { number };
    let header_of = |notice| AuditNotice::Header(Box::new(notice));
    let (first, digest) = header(3, &[2], Digest::of(b""));
    let mut forged = first.clone();
    let mut bytes = STANDARD.decode(&forged.header).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    forged.header = STANDARD.encode(bytes);
    assert_eq!(send_message(&mut validator, 1, header_of(forged)).await, taken(1));
    assert_eq!(send_message(&mut validator, 2, header_of(first)).await, taken(2));
    let (mut second, _) = header(4, &[3], digest);
    // A leaf that is not the tree's.
    let mut false_leaf = second.leaves[0].clone();
    false_leaf.sequence = 1;
    second.leaves.push(false_leaf);
    assert_eq!(send_message(&mut validator, 3, header_of(second)).await, taken(3));
    assert_eq!(send_message(&mut validator, 4, AuditNotice::Done).await, taken(4));

    let store = kept(&miner).await;
    let mut found: Vec<(String, String)> = store
        .findings()
        .await
        .unwrap()
        .into_iter()
        .map(|one| (one.kind, one.about))
        .collect();
    found.sort();
    let row = |kind: &str, about: &str| (kind.to_owned(), about.to_owned());
    let answer = format!("answer 1 of session {}", session());
    assert_eq!(
        found,
        [
            row("false_leaf", "bucket 4, place 0"),
            row("forged_header", "bucket 3"),
            row("withheld", &answer),
        ],
        "the health check is no answer"
    );
    // It comes later after all.
    let (third, _) = header(5, &[1], Digest::of(b"another one"));
    assert_eq!(send_message(&mut validator, 5, header_of(third)).await, taken(5));
    let found = store.findings().await.unwrap();
    assert!(!found.iter().any(|one| one.kind == "withheld"), "{found:?}");
    assert!(
        found
            .iter()
            .any(|one| one.kind == "broken_chain" && one.about == "bucket 5"),
        "{found:?}"
    );
}

#[tokio::test]
async fn evidence_is_fetched_in_parts_and_replayed_and_an_appeal_waits_for_its_validator_through_a_restart() {
    let miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    let bundle = Digest::of(BUNDLE.as_bytes());
    let told = AuditNotice::Verdict(Box::new(VerdictNotice {
        bundle,
        bytes: u64::try_from(BUNDLE.len()).unwrap(),
        verdict: "convicted".to_owned(),
        model: "tiny".to_owned(),
        quality_per_mille: 0,
        since: validator.now,
    }));
    let mut reply = send_message(&mut validator, 1, told).await;
    let mut parts = 0;
    while let AuditReply::Fetch {
        bundle: asked,
        offset,
    } = reply
    {
        assert_eq!(asked, bundle);
        let from = usize::try_from(offset).unwrap();
        let until = BUNDLE.len().min(from + BUNDLE.len() / 3);
        let part = BundlePart {
            bundle,
            offset,
            data: STANDARD.encode(&BUNDLE[from..until]),
        };
        parts += 1;
        reply = send_message(&mut validator, 1, AuditNotice::BundlePart(Box::new(part))).await;
    }
    assert_eq!(reply, AuditReply::Taken { number: 1 });
    assert!(parts >= 3, "{parts}");
    let store = kept(&miner).await;
    let [verdict] = store.verdicts().await.unwrap().try_into().unwrap();
    assert_eq!(
        verdict.opinion, "proves_nothing",
        "it is about //Cheat: {verdict:?}"
    );
    assert_eq!(store.bundle(bundle).await.unwrap().as_deref(), Some(BUNDLE));
    assert_eq!(store.findings().await.unwrap()[0].kind, "false_verdict");

    let appeals = appeal(&store, &miner_key(), bundle, "not mine", validator.now)
        .await
        .unwrap();
    assert_eq!(appeals.len(), 1);
    drop(validator);
    let miner = miner.killed_and_restarted().await;
    let mut validator = Validator::connect(&miner).await;
    let AuditReply::Appeal { appeal: signed } = send_message(&mut validator, 1, AuditNotice::Done).await
    else {
        panic!("the appeal was due")
    };
    assert_eq!(heard(&mut validator).await, AuditReply::Taken { number: 1 });
    let envelope = Envelope::<AuditAppeal>::from_text(&signed).unwrap();
    let stated = envelope.statement().unwrap();
    assert_eq!((stated.bundle, stated.reason.as_str()), (bundle, "not mine"));
    assert!(muster_identity::verify(
        &miner_key().hotkey(),
        envelope.signed_bytes(),
        envelope.signature()
    ));
    let answer = AuditNotice::AppealAnswer(Box::new(AppealAnswer {
        bundle,
        is_open: true,
        words: "fresh answers are audited".to_owned(),
    }));
    let message = AuditMessage {
        number: 1,
        notice: answer,
    };
    validator
        .send_message(&ValidatorToMiner::MusterAudit(Box::new(message)))
        .await;
    assert_eq!(
        send_message(&mut validator, 2, AuditNotice::Done).await,
        AuditReply::Taken { number: 2 },
        "it is answered"
    );
    let told = kept(&miner).await.verdicts().await.unwrap();
    assert_eq!(told[0].answer.as_deref(), Some("fresh answers are audited"));
    miner.stop().await;
}
