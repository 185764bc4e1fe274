//! The bytes of the log of answers and of gateways' nonces against a separate reference.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper that fails is a failure of its test"
)]

use muster_protocol::{Digest, Hotkey, MinerKey, Signature, ValidatorKey};
use muster_response_proof::{
    AnswerLeaf, AuditShare, BucketHeader, BucketNumber, Envelope, NonceInput, RequestNonce, Sealable,
    SessionId, Text, answer_seed, root_of,
};
use proptest::prelude::*;
use serde_json::Value;
use uuid::Uuid;

fn expected(name: &str) -> String {
    let vectors: Value =
        serde_json::from_str(include_str!("../../../../../tests/vectors/seal.json")).unwrap();
    vectors[name].as_str().unwrap().to_owned()
}

fn leaf(sequence: u64) -> AnswerLeaf {
    AnswerLeaf {
        session: SessionId(Uuid::from_u128(1)),
        sequence,
        proof: Digest::of(b"proof"),
        output_tokens: 500,
        earned: 1_500,
        stratum: Digest::of(b"a client"),
    }
}

fn share() -> AuditShare {
    AuditShare {
        miner: MinerKey(Hotkey::from_bytes([0x22; 32])),
        model: Text::new("tiny").unwrap(),
        ppm: 70_000,
    }
}

fn header() -> BucketHeader {
    BucketHeader {
        genesis: Digest::of(b"genesis"),
        netuid: 12,
        validator: ValidatorKey(Hotkey::from_bytes([0x33; 32])),
        bucket: BucketNumber(4_321),
        answers: 3,
        root: root_of((0..3).map(|sequence| leaf(sequence).hash())),
        previous: Digest::of(b"the header before"),
        shares: 1,
        share_root: root_of([share().hash()]),
        canaries: Digest::of(b"own prompts"),
    }
}

#[test]
fn the_bytes_are_the_references() {
    assert_eq!(hex::encode(leaf(2).bytes()), expected("answer_leaf"));
    assert_eq!(hex::encode(share().bytes()), expected("audit_share"));
    assert_eq!(hex::encode(header().signed_bytes()), expected("bucket"));
    let message = header().draw_message(&Digest::of(b"block"));
    assert_eq!(hex::encode(message), expected("draw_message"));
}

#[test]
fn a_nonce_is_the_references_and_changes_with_every_fact() {
    let (attestation, client, request) = (
        Digest::of(b"attestation"),
        Digest::of(b"a client"),
        Digest::of(b"request"),
    );
    let client_nonce = RequestNonce::from_bytes([0x44; 32]);
    let facts = NonceInput {
        attestation: &attestation,
        client: &client,
        client_nonce: Some(&client_nonce),
        request: &request,
        ordinal: 7,
    };
    let derive = |facts: &NonceInput<'_>| RequestNonce::derive(&[0x66; 32], facts);
    assert_eq!(derive(&facts).hex(), expected("gateway_nonce"));
    let without = NonceInput {
        client_nonce: None,
        ..facts
    };
    assert_eq!(derive(&without).hex(), expected("gateway_nonce_without_clients"));
    let others = [
        NonceInput {
            attestation: &request,
            ..facts
        },
        NonceInput {
            client: &request,
            ..facts
        },
        NonceInput {
            request: &client,
            ..facts
        },
        NonceInput { ordinal: 8, ..facts },
    ];
    for other in others {
        assert_ne!(derive(&other), derive(&facts));
    }
    assert_ne!(RequestNonce::derive(&[0x67; 32], &facts), derive(&facts));
}

#[test]
fn a_seed_is_the_references() {
    let (client, gateway) = (
        RequestNonce::from_bytes([0x44; 32]),
        RequestNonce::from_bytes([0x55; 32]),
    );
    let request = Digest::of(b"request");
    let seed = |client| hex::encode(answer_seed(client, &request, &gateway));
    assert_eq!(seed(Some(&client)), expected("answer_seed"));
    assert_eq!(seed(None), expected("answer_seed_without_clients"));
}

proptest! {
    #[test]
    fn a_header_comes_back_and_arbitrary_bytes_are_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..400), at in 0_usize..240, bit in 0_u8..8,
    ) {
        let envelope = Envelope::new(&header(), |_| Signature::from_bytes([9; 64]));
        let read = Envelope::<BucketHeader>::from_text(&envelope.to_text()).unwrap();
        prop_assert_eq!(read.statement().unwrap(), header());
        let _ = BucketHeader::read(&bytes);
        let mut altered = header().signed_bytes();
        if let Some(byte) = altered.get_mut(at) {
            *byte ^= 1 << bit;
            prop_assert_ne!(BucketHeader::read(&altered).ok(), Some(header()));
        }
    }
}
