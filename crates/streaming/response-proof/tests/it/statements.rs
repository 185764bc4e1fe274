//! The bytes of every statement against a separate reference, and every forgery with a reason of its own.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper that fails is a failure of its test"
)]

use std::time::Duration;

use muster_protocol::{
    AttemptId, Digest, Hotkey, ImageId, JobId, MinerKey, Signature, Timestamp, ValidatorKey,
};
use muster_response_proof::{
    Attestation, ChunkTree, ClockTolerance, EngineFacts, Envelope, EnvelopeError, Forgery, HashScheme,
    LayoutError, ObservedExchange, Price, ProofLedger, RequestNonce, ResponseProof, Sealable, SessionClose,
    SessionId, StreamEnd, Text, TokenFacts,
};
use proptest::prelude::*;
use serde_json::Value;
use uuid::Uuid;

const START: i64 = 1_769_000_000;
const BOUNDS: ClockTolerance = ClockTolerance {
    skew: Duration::from_secs(2),
};

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../../../tests/vectors/seal.json")).unwrap()
}

fn expected(name: &str) -> String {
    vectors()[name].as_str().unwrap().to_owned()
}

fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(START + secs)
}

fn text(text: &str) -> Text {
    Text::new(text).unwrap()
}

fn key(byte: u8) -> Hotkey {
    Hotkey::from_bytes([byte; 32])
}

fn attestation() -> Attestation {
    Attestation {
        session: SessionId(Uuid::from_u128(1)),
        session_key: key(0x11),
        job: JobId::from_uuid(Uuid::from_u128(2)),
        attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
        miner: MinerKey(key(0x22)),
        audience: ValidatorKey(key(0x33)),
        server_certificate: Digest::of(b"server certificate"),
        client_certificate: Digest::of(b"client certificate"),
        executor: text("executor-7"),
        address: text("203.0.113.7:6006"),
        image: ImageId(Digest::of(b"image")),
        model: Some(Digest::of(b"model")),
        scheme: HashScheme::RawHttp,
        price: Price {
            input: 1_000,
            output: 3_000,
        },
        not_before: at(0),
        not_after: at(3600),
    }
}

const INPUT: &[u8] = br#"{"model":"m"}"#;

fn output() -> Vec<u8> {
    b"data: {\"choices\":[]}\n\n".repeat(500)
}

fn proof() -> ResponseProof {
    let attested = Digest::of(&attestation().signed_bytes());
    let mut chunks = ChunkTree::default();
    chunks.update(&output());
    ResponseProof {
        session: SessionId(Uuid::from_u128(1)),
        sequence: 0,
        previous: attested,
        job: JobId::from_uuid(Uuid::from_u128(2)),
        attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
        audience: ValidatorKey(key(0x33)),
        client: Some(Digest::of(b"a client")),
        attestation: attested,
        client_nonce: Some(RequestNonce::from_bytes([0x44; 32])),
        gateway_nonce: Some(RequestNonce::from_bytes([0x55; 32])),
        method: text("POST"),
        path: text("/v1/chat/completions"),
        status: 200,
        content_type: Some(text("text/event-stream")),
        scheme: HashScheme::RawHttp,
        input: Digest::of(INPUT),
        output: Digest::of(&output()),
        output_bytes: output().len() as u64,
        chunks: chunks.finish(),
        from: at(1),
        first_byte: Some(Timestamp::from_micros(at(1).micros() + 1)),
        to: at(2),
        tokens: Some(TokenFacts {
            prompt: Digest::of(b"prompt"),
            prompt_count: 7,
            output: Digest::of(b"tokens"),
            output_count: 500,
        }),
        engine: Some(EngineFacts {
            model: Digest::of(b"model"),
            build: Digest::of(b"build"),
            sampling: Digest::of(b"sampling"),
        }),
        end: StreamEnd::Completed,
    }
}

fn close(responses: u64, last: Digest) -> SessionClose {
    SessionClose {
        session: SessionId(Uuid::from_u128(1)),
        attestation: Digest::of(&attestation().signed_bytes()),
        responses,
        last,
        at: at(3),
    }
}

#[test]
fn the_bytes_are_the_references() {
    let without_model = Attestation {
        model: None,
        ..attestation()
    };
    let bare = ResponseProof {
        client: None,
        client_nonce: None,
        gateway_nonce: None,
        content_type: None,
        first_byte: None,
        tokens: None,
        engine: None,
        end: StreamEnd::ClientGone,
        ..proof()
    };
    let last = Digest::of(&proof().signed_bytes());
    for (name, bytes) in [
        ("attestation", attestation().signed_bytes()),
        ("attestation_without_model", without_model.signed_bytes()),
        ("proof", proof().signed_bytes()),
        ("proof_without_options", bare.signed_bytes()),
        ("close", close(1, last).signed_bytes()),
    ] {
        assert_eq!(hex::encode(bytes), expected(name), "{name}");
    }
    for case in vectors()["chunk_roots"].as_array().unwrap() {
        let length = case["length"].as_u64().unwrap();
        let bytes: Vec<u8> = (0..length).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let mut tree = ChunkTree::default();
        tree.update(&bytes);
        assert_eq!(tree.finish().hex(), case["root"].as_str().unwrap(), "{length}");
    }
}

#[test]
fn signed_statements_are_read_back() {
    let statement = attestation();
    assert_eq!(Attestation::read(&statement.signed_bytes()), Ok(statement));
    assert_eq!(ResponseProof::read(&proof().signed_bytes()), Ok(proof()));
    let last = close(1, Digest::of(b"last"));
    assert_eq!(SessionClose::read(&last.signed_bytes()), Ok(last));
}

#[test]
fn one_statement_is_not_another() {
    let bytes = attestation().signed_bytes();
    assert_eq!(
        ResponseProof::read(&bytes),
        Err(LayoutError::Tag("muster/response-proof/1"))
    );
    let mut longer = proof().signed_bytes();
    longer.push(0);
    assert_eq!(ResponseProof::read(&longer), Err(LayoutError::Trailing(1)));
    for length in 0..longer.len() - 1 {
        assert!(ResponseProof::read(&longer[..length]).is_err(), "{length}");
    }
}

#[test]
fn a_text_too_long_for_a_statement_is_refused_when_it_is_made() {
    assert!(Text::new("x".repeat(4096)).is_ok());
    let refused = Text::new("x".repeat(4097)).unwrap_err().to_string();
    assert!(refused.contains("4097"), "{refused}");
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000), tagged in any::<bool>()) {
        let bytes = if tagged { [b"muster/response-proof/1", bytes.as_slice()].concat() } else { bytes };
        if let Ok(read) = ResponseProof::read(&bytes) {
            prop_assert_eq!(read.signed_bytes(), bytes.clone());
        }
        let _ = Envelope::<ResponseProof>::from_bytes(&bytes);
    }

    #[test]
    fn one_changed_byte_is_another_statement_or_none(at in 0_usize..600, bit in 0_u8..8) {
        let mut bytes = proof().signed_bytes();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok(read) = ResponseProof::read(&bytes) {
            prop_assert_ne!(read, proof());
        }
    }
}

/// A signature that this test's `signed` takes for the session key's.
fn sign(bytes: &[u8]) -> Signature {
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(Digest::of(bytes).as_bytes());
    Signature::from_bytes(signature)
}

fn signed(by: &Hotkey, bytes: &[u8], signature: &Signature) -> bool {
    *by == key(0x11) && *signature == sign(bytes)
}

fn envelope<T: Sealable>(statement: &T) -> Envelope<T> {
    Envelope::new(statement, sign)
}

fn exchange() -> ObservedExchange<'static> {
    ObservedExchange {
        client: proof().client,
        client_nonce: Some(RequestNonce::from_bytes([0x44; 32])),
        gateway_nonce: Some(RequestNonce::from_bytes([0x55; 32])),
        method: "POST",
        path: "/v1/chat/completions",
        input: Digest::of(INPUT),
        status: 200,
        content_type: Some("text/event-stream"),
        output: Some(Digest::of(&output())),
        output_bytes: output().len() as u64,
        asked: at(1),
        ended: at(2),
    }
}

fn ledger() -> ProofLedger {
    ProofLedger::open(&envelope(&attestation())).unwrap()
}

/// The n-th proof of an honest session.
fn chain(length: u64) -> Vec<Envelope<ResponseProof>> {
    let mut previous = Digest::of(&attestation().signed_bytes());
    (0..length)
        .map(|sequence| {
            let made = envelope(&ResponseProof {
                sequence,
                previous,
                ..proof()
            });
            previous = made.digest();
            made
        })
        .collect()
}

#[test]
fn an_honest_session_is_accepted_in_any_order_and_closes() {
    let proofs = chain(5);
    let mut ledger = ledger();
    for index in [2, 0, 1, 4, 3] {
        let accepted = ledger
            .accept(&proofs[index], &exchange(), BOUNDS, signed)
            .unwrap();
        assert_eq!(accepted.sequence, index as u64);
    }
    let last = envelope(&close(5, proofs[4].digest()));
    assert_eq!(ledger.close(&last, signed).unwrap().responses, 5);
}

#[test]
fn an_envelope_keeps_its_text_form() {
    let made = envelope(&proof());
    let read = Envelope::<ResponseProof>::from_text(&made.to_text()).unwrap();
    assert_eq!(read, made);
    assert_eq!(read.statement().unwrap(), proof());
    for bad in ["", "%%%", "AAAA", &"A".repeat(100_000)] {
        assert_eq!(
            Envelope::<ResponseProof>::from_text(bad),
            Err(EnvelopeError::Text)
        );
    }
}

/// Each row: how the signed proof differs from the honest one, and what the checker reports.
#[test]
fn each_forgery_fails_for_its_own_reason() {
    let other = Digest::of(b"another");
    let rows: Vec<(&str, ResponseProof, Forgery)> = vec![
        (
            "another session",
            ResponseProof {
                session: SessionId(Uuid::from_u128(9)),
                ..proof()
            },
            Forgery::Session,
        ),
        (
            "another attestation",
            ResponseProof {
                attestation: other,
                ..proof()
            },
            Forgery::Attestation,
        ),
        (
            "another job",
            ResponseProof {
                job: JobId::from_uuid(Uuid::from_u128(9)),
                ..proof()
            },
            Forgery::Job,
        ),
        (
            "another attempt",
            ResponseProof {
                attempt: AttemptId::from_uuid(Uuid::from_u128(9)),
                ..proof()
            },
            Forgery::Job,
        ),
        (
            "another validator",
            ResponseProof {
                audience: ValidatorKey(key(9)),
                ..proof()
            },
            Forgery::Audience,
        ),
        (
            "another scheme",
            ResponseProof {
                scheme: HashScheme::Text,
                ..proof()
            },
            Forgery::Scheme(HashScheme::Text),
        ),
        (
            "before its time",
            ResponseProof {
                from: at(-1),
                ..proof()
            },
            Forgery::Expired,
        ),
        (
            "after its time",
            ResponseProof {
                to: at(3601),
                ..proof()
            },
            Forgery::Expired,
        ),
        (
            "another nonce",
            ResponseProof {
                gateway_nonce: Some(RequestNonce::from_bytes([1; 32])),
                ..proof()
            },
            Forgery::Nonce,
        ),
        (
            "no nonce",
            ResponseProof {
                client_nonce: None,
                ..proof()
            },
            Forgery::Nonce,
        ),
        (
            "another client",
            ResponseProof {
                client: Some(Digest::of(b"another client")),
                ..proof()
            },
            Forgery::Client,
        ),
        (
            "no client",
            ResponseProof {
                client: None,
                ..proof()
            },
            Forgery::Client,
        ),
        (
            "another method",
            ResponseProof {
                method: text("GET"),
                ..proof()
            },
            Forgery::Request("the method"),
        ),
        (
            "another path",
            ResponseProof {
                path: text("/v1/models"),
                ..proof()
            },
            Forgery::Request("the path"),
        ),
        (
            "another input",
            ResponseProof {
                input: other,
                ..proof()
            },
            Forgery::Request("the body's digest"),
        ),
        (
            "another status",
            ResponseProof {
                status: 201,
                ..proof()
            },
            Forgery::Response("the status"),
        ),
        (
            "another type",
            ResponseProof {
                content_type: None,
                ..proof()
            },
            Forgery::Response("the content type"),
        ),
        (
            "another length",
            ResponseProof {
                output_bytes: 1,
                ..proof()
            },
            Forgery::Response("the length"),
        ),
        (
            "another output",
            ResponseProof {
                output: other,
                ..proof()
            },
            Forgery::Response("the body's digest"),
        ),
        (
            "times backwards",
            ResponseProof {
                first_byte: Some(at(3)),
                ..proof()
            },
            Forgery::Backwards,
        ),
        (
            "ends before it begins",
            ResponseProof {
                from: at(3),
                first_byte: None,
                ..proof()
            },
            Forgery::Backwards,
        ),
        (
            "ends long after",
            ResponseProof {
                to: at(60),
                ..proof()
            },
            Forgery::Clock(Duration::from_secs(58)),
        ),
        (
            "far ahead",
            ResponseProof {
                sequence: 5000,
                ..proof()
            },
            Forgery::Ahead {
                expected: 0,
                got: 5000,
            },
        ),
        (
            "off the chain",
            ResponseProof {
                previous: other,
                ..proof()
            },
            Forgery::Chain(0),
        ),
    ];
    for (what, forged, reason) in rows {
        let mut ledger = ledger();
        let refused = ledger.accept(&envelope(&forged), &exchange(), BOUNDS, signed);
        assert_eq!(refused, Err(reason), "{what}");
        // Nothing was taken: the honest one still passes.
        assert!(
            ledger
                .accept(&envelope(&proof()), &exchange(), BOUNDS, signed)
                .is_ok(),
            "{what}"
        );
    }
}

#[test]
fn altered_bytes_and_other_keys_fail_by_signature() {
    let mut bytes = envelope(&proof()).to_bytes();
    let length = bytes.len();
    bytes[length - 65] ^= 1;
    let altered = Envelope::from_bytes(&bytes).unwrap();
    let refused = ledger().accept(&altered, &exchange(), BOUNDS, signed);
    assert_eq!(refused, Err(Forgery::Signature));
    let stranger = Attestation {
        session_key: key(0x66),
        ..attestation()
    };
    let mut theirs = ProofLedger::open(&envelope(&stranger)).unwrap();
    let refused = theirs.accept(&envelope(&proof()), &exchange(), BOUNDS, signed);
    assert_eq!(refused, Err(Forgery::Signature));
}

#[test]
fn replays_exchanges_and_gaps_show() {
    let proofs = chain(3);
    let mut ledger = ledger();
    ledger.accept(&proofs[0], &exchange(), BOUNDS, signed).unwrap();
    let again = ledger.accept(&proofs[0], &exchange(), BOUNDS, signed);
    assert_eq!(again, Err(Forgery::Replayed(0)));
    ledger.accept(&proofs[2], &exchange(), BOUNDS, signed).unwrap();
    assert_eq!(ledger.missing(), vec![1..2]);
    let early = envelope(&close(3, proofs[2].digest()));
    assert_eq!(ledger.close(&early, signed), Err(Forgery::Gap(1)));
    // A second proof of number 1 that the third one does not follow on.
    let exchanged = envelope(&ResponseProof {
        sequence: 1,
        previous: proofs[0].digest(),
        status: 201,
        ..proof()
    });
    let seen = ObservedExchange {
        status: 201,
        ..exchange()
    };
    assert_eq!(
        ledger.accept(&exchanged, &seen, BOUNDS, signed),
        Err(Forgery::Chain(1))
    );
    ledger.accept(&proofs[1], &exchange(), BOUNDS, signed).unwrap();
    assert!(ledger.missing().is_empty());
    let short = envelope(&close(2, proofs[1].digest()));
    assert_eq!(ledger.close(&short, signed), Err(Forgery::Replayed(2)));
    let wrong = envelope(&close(3, proofs[1].digest()));
    assert_eq!(ledger.close(&wrong, signed), Err(Forgery::Chain(3)));
    assert!(ledger.close(&early, signed).is_ok());
}

#[test]
fn an_answer_that_nobody_saw_fills_its_place_if_it_is_the_sessions_own() {
    let proofs = chain(2);
    let mut ledger = ledger();
    ledger.accept(&proofs[1], &exchange(), BOUNDS, signed).unwrap();
    let last = envelope(&close(2, proofs[1].digest()));
    assert_eq!(
        (ledger.proven(), ledger.close(&last, signed)),
        (0, Err(Forgery::Gap(1)))
    );
    let nobody = |_: &Hotkey, _: &[u8], _: &Signature| false;
    assert_eq!(ledger.accept_unseen(&proofs[0], nobody), Err(Forgery::Signature));
    let foreign = envelope(&ResponseProof {
        session: SessionId(Uuid::from_u128(99)),
        ..proof()
    });
    assert_eq!(ledger.accept_unseen(&foreign, signed), Err(Forgery::Session));
    ledger.accept_unseen(&proofs[0], signed).unwrap();
    assert_eq!(
        ledger.accept_unseen(&proofs[0], signed),
        Err(Forgery::Replayed(0))
    );
    assert_eq!((ledger.proven(), ledger.close(&last, signed).is_ok()), (2, true));
}

#[test]
fn a_reader_of_a_beginning_accepts_no_shorter_response() {
    let cut = ObservedExchange {
        output: None,
        output_bytes: 100,
        ..exchange()
    };
    assert!(ledger().accept(&envelope(&proof()), &cut, BOUNDS, signed).is_ok());
    let longer = ObservedExchange {
        output: None,
        output_bytes: output().len() as u64 + 1,
        ..exchange()
    };
    assert_eq!(
        ledger().accept(&envelope(&proof()), &longer, BOUNDS, signed),
        Err(Forgery::Response("the length"))
    );
}

#[test]
fn a_stream_of_events_is_one_whatever_its_type_says_beside() {
    let seen = |content_type| {
        let seen = ObservedExchange {
            content_type: Some(content_type),
            ..exchange()
        };
        ledger().accept(&chain(1)[0], &seen, BOUNDS, signed)
    };
    assert!(seen("Text/Event-Stream; charset=utf-8").is_ok());
    for other in [
        "text/plain",
        "text/event-streams",
        "application/json; text/event-stream",
    ] {
        assert_eq!(seen(other), Err(Forgery::Response("the content type")), "{other}");
    }
}
