//! Answers for the tests of this crate.

use muster_gateway::store::{LoggedAnswer, WordConsent};
use muster_protocol::{AttemptId, Digest, Hotkey, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{
    BucketNumber, HashScheme, RequestNonce, ResponseProof, SessionId, StreamEnd, Text, hash_chunk, root_of,
};
use uuid::Uuid;

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
        model: "tiny".to_owned(),
        proof: "proof".to_owned(),
        sequence,
        output_tokens: 3,
        earned: 5,
        bucket: BucketNumber(4),
        position: sequence,
        is_drawn: false,
        consent: WordConsent::Private,
        cut: false,
        ended_at: Timestamp::from_secs(100),
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
