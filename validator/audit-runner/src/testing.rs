//! Answers for the tests of this crate.

use std::time::Duration;

use muster_audit::{CanaryList, ListHead};
use muster_gateway::store::{LoggedAnswer, TextConsent};
use muster_protocol::{AttemptId, Digest, Hotkey, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{
    BucketNumber, HashScheme, RequestNonce, ResponseProof, SessionId, StreamEnd, Text, hash_chunk, root_of,
};
use muster_validator_store::{AdoptedAudit, AuditOrigin};
use uuid::Uuid;

use crate::appeals::appeal_admission::APPEAL_TIME;
use crate::appeals::stored_appeal::StoredAppeal;
use crate::audits::run_record::{AuditRun, RunState};
use crate::store::audit_store::AuditStore;
use crate::store::self_tests::{SelfTest, SelfTestState};

pub(crate) fn key(seed: u8) -> Hotkey {
    Hotkey::from_bytes([seed; 32])
}

/// The answer of this number in the one session of a miner.
pub(crate) fn answer(miner: u8, sequence: u64) -> LoggedAnswer {
    LoggedAnswer {
        id: format!("{miner}-{sequence}"),
        session: SessionId(Uuid::from_u128(miner.into())),
        miner: MinerKey(key(miner)),
        attestation: "attested".to_owned(),
        client: Digest::of(b"client"),
        client_key: None,
        model: "tiny".to_owned(),
        proof: "proof".to_owned(),
        sequence,
        output_tokens: 3,
        earned: 5,
        bucket: BucketNumber(4),
        position: sequence,
        is_drawn: false,
        consent: TextConsent::Private,
        cut: false,
        ended_at: Timestamp::from_secs(100),
    }
}

/// The head of a list that is asked of the miner of seed 1.
pub(crate) fn list_head(list: &CanaryList) -> ListHead {
    ListHead {
        salt: [9; 32],
        session: Digest::of(b"session"),
        miner: MinerKey(key(1)),
        model: "tiny".to_owned(),
        length: list.length(),
        root: list.root(),
    }
}

pub(crate) fn proof(sequence: u64) -> ResponseProof {
    ResponseProof {
        session: SessionId(Uuid::from_u128(1)),
        sequence,
        previous: Digest::of(b""),
        job: JobId::from_uuid(Uuid::from_u128(2)),
        attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
        audience: ValidatorKey(key(4)),
        client: Some(Digest::of(b"client")),
        attestation: Digest::of(b"attested"),
        client_nonce: None,
        gateway_nonce: Some(RequestNonce::from_bytes([7; 32])),
        method: Text::new("POST").unwrap(),
        path: Text::new("/v1/chat/completions").unwrap(),
        status: 200,
        content_type: None,
        scheme: HashScheme::RawHttp,
        input: Digest::of(b"asked"),
        output: Digest::of(b"answered"),
        output_bytes: 8,
        chunks: root_of([hash_chunk(b"answered")]),
        from: Timestamp::from_secs(1),
        first_byte: None,
        to: Timestamp::from_secs(2),
        tokens: None,
        engine: None,
        end: StreamEnd::Completed,
    }
}

/// The time at which appeals are judged.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_secs(1_000_000)
}

pub(crate) fn ago(seconds: u64) -> Timestamp {
    now().minus(Duration::from_secs(seconds))
}

/// A verdict about two miners of one coldkey.
pub(crate) fn verdict(name: &str, adopted_at: Timestamp) -> AdoptedAudit {
    AdoptedAudit {
        digest: Digest::of(b"bundle"),
        coldkey: key(1),
        miners: vec![MinerKey(key(2)), MinerKey(key(3))],
        model: "tiny".to_owned(),
        verdict: name.to_owned(),
        quality_per_mille: 0,
        adopted_at,
        origin: AuditOrigin::Own,
        author: None,
        through_bucket: 0,
        newest_answer: 0,
        scored: 0,
    }
}

/// An appeal about the verdict of [`verdict`].
pub(crate) fn stored_appeal(received_at: Timestamp, ended: Option<&str>) -> StoredAppeal {
    StoredAppeal {
        bundle: Digest::of(b"bundle"),
        received_at,
        miner: MinerKey(key(2)),
        coldkey: key(1),
        model: "tiny".to_owned(),
        reason: String::new(),
        open_until: received_at.plus(APPEAL_TIME),
        ended_at: ended.map(|_| received_at.plus(APPEAL_TIME)),
        ended: ended.map(str::to_owned),
        fresh_bundle: None,
    }
}

/// An audit that has ended, of three scored answers.
pub(crate) fn run(run: &str, began_at: i64, state: RunState, reason: Option<&str>) -> AuditRun {
    AuditRun {
        run: run.to_owned(),
        coldkey: key(9),
        model: "tiny".to_owned(),
        state,
        answers: 3,
        scored: 3,
        began_at: Timestamp::from_micros(began_at),
        ended_at: Some(Timestamp::from_micros(began_at)),
        bundle: None,
        verdict: (state == RunState::Judged).then(|| "consistent".to_owned()),
        reason: reason.map(str::to_owned),
    }
}

/// Stores an audit with its end.
pub(crate) async fn put_run(store: &AuditStore, run: &AuditRun) {
    store.insert_run(run).await.unwrap();
    store.update_run(run).await.unwrap();
}

/// A self-test of one cheated answer.
pub(crate) fn self_test(model: &str, began: i64, verdict: Option<&str>) -> SelfTest {
    SelfTest {
        test: "t".to_owned(),
        model: model.to_owned(),
        state: SelfTestState::Judged,
        answers: 1,
        cheated: 1,
        began_at: Timestamp::from_secs(began),
        ended_at: None,
        verdict: verdict.map(str::to_owned),
        reason: None,
        bundle: None,
    }
}
