//! Signatures made by ComputeHorde's own Python code: ours accepts them, and rejects each one with a changed bit.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::time::Duration;

use muster_identity::{
    AuthError, FrameSignature, Keypair, LoginForm, Party, VerifyError, countersign, offer_receipt,
    sign_facilitator_auth, sign_frame, sign_job, sign_login, sign_streaming_ready, sign_terms,
    sign_validator_auth, verify, verify_countersigned, verify_facilitator_auth, verify_frame, verify_job,
    verify_login, verify_offered, verify_receipt, verify_streaming_ready, verify_validator_auth,
};
use muster_protocol::job::{JobTerms, Priority};
use muster_protocol::login::{LoginHost, NonceText};
use muster_protocol::receipt::{OfferedReceipt, Receipt, ReceiptError};
use muster_protocol::wire::facilitator::{Authentication, SignatureScope, UserJobRequest};
use muster_protocol::wire::miner::{StreamingJobReady, ValidatorAuth};
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::wire::signing::decode_from_validator;
use muster_protocol::wire::validator_socket::ValidatorToMiner;
use muster_protocol::{MinerKey, ReceiptPayload, Signature, Timestamp, UserKey, ValidatorKey};
use serde::de::DeserializeOwned;
use sp_core::{Pair as _, sr25519};

const VECTORS: &str = include_str!("../../../../../tests/vectors/wire.json");
const AGE: Duration = Duration::from_secs(10);
const AHEAD: Duration = Duration::from_secs(3);

fn vector<T: DeserializeOwned>(name: &str) -> T {
    let all: serde_json::Map<String, serde_json::Value> = serde_json::from_str(VECTORS).unwrap();
    serde_json::from_value(all[name].clone()).unwrap()
}

fn key(uri: &str) -> Keypair {
    Keypair::from_uri(uri).unwrap()
}

fn validator() -> ValidatorKey {
    ValidatorKey(key("//Validator").hotkey())
}

fn miner() -> MinerKey {
    MinerKey(key("//Miner").hotkey())
}

/// A signature over any bytes, as another program makes it.
fn sign_raw(uri: &str, bytes: &[u8]) -> Signature {
    let pair = sr25519::Pair::from_string(uri, None).unwrap();
    Signature::from_bytes(pair.sign(bytes).0)
}

fn flipped(signature: &Signature) -> Signature {
    let mut bytes = *signature.as_bytes();
    bytes[17] ^= 4;
    Signature::from_bytes(bytes)
}

/// The moment at which the vectors were made, by their own receipts.
fn then() -> Timestamp {
    "2026-01-21T12:34:56.789012Z".parse().unwrap()
}

mod greeting {
    use super::*;

    /// Python's greeting, of which `timestamp` seconds is the time.
    fn auth() -> ValidatorAuth {
        let mut fields: serde_json::Value = vector("ValidatorAuthForMiner");
        fields.as_object_mut().unwrap().remove("message_type");
        serde_json::from_value(fields).unwrap()
    }

    fn check(auth: ValidatorAuth, seconds_later: i64) -> Result<(), AuthError> {
        let now = Timestamp::from_secs(1_769_000_000 + seconds_later);
        verify_validator_auth(auth, validator(), miner(), now, AGE, AHEAD).map(drop)
    }

    #[test]
    fn pythons_greeting_is_accepted_while_it_is_fresh() {
        assert_eq!(auth().signed_bytes(), vector::<String>("auth_blob").into_bytes());
        for later in [-3, 0, 10] {
            assert_eq!(check(auth(), later), Ok(()), "{later}");
        }
        assert_eq!(check(auth(), 11), Err(AuthError::TooOld));
        assert_eq!(check(auth(), -4), Err(AuthError::Future));
    }

    #[test]
    fn times_from_elsewhere_do_not_overflow() {
        for (timestamp, expected) in [(i64::MIN, AuthError::TooOld), (i64::MAX, AuthError::Future)] {
            let auth = ValidatorAuth { timestamp, ..auth() };
            assert_eq!(check(auth, 0), Err(expected));
        }
    }

    #[test]
    fn each_wrong_part_has_its_word() {
        let stranger = key("//Stranger").hotkey();
        let other = ValidatorAuth {
            miner_hotkey: MinerKey(stranger),
            ..auth()
        };
        let error = check(other, 0).unwrap_err();
        assert_eq!(error.to_string(), format!("wrong miner hotkey ({stranger})"));
        let other = ValidatorAuth {
            validator_hotkey: ValidatorKey(stranger),
            ..auth()
        };
        let error = check(other, 0).unwrap_err();
        assert_eq!(error.to_string(), format!("wrong validator hotkey ({stranger})"));
        let other = ValidatorAuth {
            signature: flipped(&auth().signature),
            ..auth()
        };
        assert_eq!(check(other, 0).unwrap_err().to_string(), "Signature mismatches");
        let moved = ValidatorAuth {
            timestamp: auth().timestamp + 1,
            ..auth()
        };
        assert_eq!(check(moved, 1), Err(AuthError::Signature));
        assert_eq!(AuthError::TooOld.to_string(), "msg too old");
    }

    #[test]
    fn ours_is_accepted_by_ourselves() {
        let auth = sign_validator_auth(&key("//Validator"), miner(), then());
        let verified = verify_validator_auth(auth, validator(), miner(), then(), AGE, AHEAD).unwrap();
        assert_eq!(verified.validator_hotkey, validator());
    }

    #[test]
    fn facilitators_greeting() {
        let mut fields: serde_json::Value = vector("V0AuthenticationRequest");
        fields.as_object_mut().unwrap().remove("message_type");
        let auth: Authentication = serde_json::from_value(fields).unwrap();
        let verified = verify_facilitator_auth(&auth).unwrap();
        let stranger = |signature, public_key: &str| {
            verify_facilitator_auth(&Authentication {
                signature,
                public_key: public_key.to_owned(),
            })
            .unwrap_err()
        };
        let error = stranger(flipped(&auth.signature), &auth.public_key);
        let expected = VerifyError::Signature {
            party: Party::Validator,
            key: verified.into_inner().0,
        };
        assert_eq!(error, expected);
        assert_eq!(stranger(auth.signature, "0x00"), VerifyError::PublicKey);
        assert_eq!(stranger(auth.signature, &"é".repeat(32)), VerifyError::PublicKey);
        assert_eq!(
            verify_facilitator_auth(&sign_facilitator_auth(&key("//Validator")))
                .unwrap()
                .into_inner(),
            validator()
        );
    }

    #[test]
    fn a_login_signs_the_nonce_or_the_nonce_at_one_facilitator() {
        let user = UserKey(key("//User").hotkey());
        let nonce = format!("{}:1:{}", "a".repeat(32), "b".repeat(43));
        let other: NonceText = nonce.replace(":1:", ":2:").parse().unwrap();
        let parsed: NonceText = nonce.parse().unwrap();
        let host = |name| LoginHost::new(name, None).unwrap();
        let (own, elsewhere) = (host("own.example"), host("elsewhere.example"));
        let form = |nonce, host, signature| verify_login(user, nonce, host, &signature).map(|form| *form);
        // ComputeHorde's SDK signs the text itself, and a browser's wallet the wrapped text.
        for bytes in [nonce.clone(), format!("<Bytes>{nonce}</Bytes>")] {
            let signature = sign_raw("//User", bytes.as_bytes());
            assert_eq!(form(&parsed, None, signature), Ok(LoginForm::Nonce));
            assert_eq!(form(&parsed, Some(&own), signature), Ok(LoginForm::Nonce));
            assert!(form(&other, Some(&own), signature).is_err());
            assert!(form(&parsed, None, flipped(&signature)).is_err());
        }
        let plain = sign_login(&key("//User"), &parsed, None);
        assert_eq!(form(&parsed, Some(&own), plain), Ok(LoginForm::Nonce));
        let bound = sign_login(&key("//User"), &parsed, Some(&own));
        assert_eq!(form(&parsed, Some(&own), bound), Ok(LoginForm::Bound));
        assert!(form(&parsed, Some(&elsewhere), bound).is_err());
        assert!(form(&parsed, None, bound).is_err());
        assert!(form(&other, Some(&own), bound).is_err());
        let golden = format!("muster/login/1\nown.example\n{nonce}");
        assert!(verify(&user.0, golden.as_bytes(), &bound));
    }
}

mod receipts {
    use super::*;

    fn receipt() -> Receipt {
        vector("Receipt_started")
    }

    #[test]
    fn pythons_receipt_is_whole_and_each_half_is_checked() {
        let verified = verify_receipt(receipt(), then()).unwrap();
        assert_eq!(verified.payload.validator(), validator());
        let blob = vector::<String>("started_blob").into_bytes();
        assert!(verify(&miner().0, &blob, &receipt().miner_signature));

        let bad = Receipt {
            validator_signature: flipped(&receipt().validator_signature),
            ..receipt()
        };
        let refused = |party, key| Err(VerifyError::Signature { party, key });
        assert_eq!(
            verify_receipt(bad, then()).map(drop),
            refused(Party::Validator, validator().0)
        );
        let bad = Receipt {
            miner_signature: receipt().validator_signature,
            ..receipt()
        };
        assert_eq!(
            verify_receipt(bad, then()).map(drop),
            refused(Party::Miner, miner().0)
        );
    }

    #[test]
    fn every_field_is_covered() {
        let whole: serde_json::Value = vector("Receipt_started");
        let changes = [
            (
                "job_uuid",
                serde_json::json!("21111111-2222-4333-8444-555555555555"),
            ),
            ("timestamp", serde_json::json!("2026-01-21T12:34:56.789013Z")),
            ("executor_class", serde_json::json!("spin_up-4min.gpu-24gb")),
            ("is_organic", serde_json::json!(false)),
            ("ttl", serde_json::json!(8)),
            ("miner_hotkey", serde_json::json!(validator())),
            ("validator_hotkey", serde_json::json!(miner())),
        ];
        for (field, value) in changes {
            let mut changed = whole.clone();
            changed["payload"][field] = value;
            let receipt: Receipt = serde_json::from_value(changed).unwrap();
            assert!(verify_receipt(receipt, then()).is_err(), "{field}");
        }
    }

    #[test]
    fn pythons_offer_of_an_accepted_receipt() {
        let message: serde_json::Value = vector("V0JobAcceptedReceiptRequest");
        let payload: ReceiptPayload = serde_json::from_value(message["payload"].clone()).unwrap();
        let validator_signature: Signature = serde_json::from_value(message["signature"].clone()).unwrap();
        assert_eq!(
            payload.signed_bytes(),
            vector::<String>("accepted_blob").into_bytes()
        );
        let offered = OfferedReceipt {
            payload,
            validator_signature,
        };
        verify_offered(offered.clone(), then()).unwrap();
        let bad = OfferedReceipt {
            validator_signature: flipped(&validator_signature),
            ..offered
        };
        assert!(verify_offered(bad, then()).is_err());
    }

    #[test]
    fn a_receipt_may_be_an_hour_early_and_as_old_as_it_likes() {
        let hour = Duration::from_secs(3600);
        let written = receipt().payload.timestamp();
        let earlier = |span: Duration| {
            Timestamp::from_micros(written.micros() - i64::try_from(span.as_micros()).unwrap())
        };
        assert!(verify_receipt(receipt(), earlier(hour)).is_ok());
        let error = verify_receipt(receipt(), earlier(hour + Duration::from_micros(1))).unwrap_err();
        assert_eq!(error, VerifyError::Future { written });
        assert!(verify_receipt(receipt(), written.plus(hour * 24 * 365)).is_ok());
    }

    #[test]
    fn limits_hold_even_if_both_signed() {
        let ReceiptPayload::Started(mut started) = receipt().payload else {
            panic!("the vector is a started receipt")
        };
        started.ttl = 2_592_001;
        let payload = ReceiptPayload::Started(started);
        let bytes = payload.signed_bytes();
        let receipt = Receipt {
            payload,
            validator_signature: sign_raw("//Validator", &bytes),
            miner_signature: sign_raw("//Miner", &bytes),
        };
        let error = verify_receipt(receipt, then()).unwrap_err();
        assert_eq!(error, VerifyError::Limits(ReceiptError::Ttl(2_592_001)));
    }

    #[test]
    fn offered_countersigned_and_handed_back() {
        let payload = receipt().payload;
        let offered = offer_receipt(&key("//Validator"), payload.clone())
            .unwrap()
            .into_inner();
        let arrived = verify_offered(offered.clone(), then()).unwrap();
        let whole = countersign(&key("//Miner"), arrived.clone())
            .unwrap()
            .into_inner();
        assert!(verify_receipt(whole.clone(), then()).is_ok());
        assert!(verify_countersigned(whole.clone(), &offered, then()).is_ok());

        assert!(offer_receipt(&key("//Miner"), payload).is_err());
        assert!(countersign(&key("//Validator"), arrived).is_err());
        let ReceiptPayload::Started(mut other) = offered.payload.clone() else {
            panic!("the vector is a started receipt")
        };
        other.ttl += 1;
        let other = offer_receipt(&key("//Validator"), ReceiptPayload::Started(other))
            .unwrap()
            .into_inner();
        assert!(verify_countersigned(whole, &other, then()).is_err());
    }
}

mod jobs {
    use super::*;

    fn job() -> UserJobRequest {
        vector("V2JobRequest")
    }

    #[test]
    fn pythons_job_is_accepted_and_every_signed_field_is_covered() {
        assert_eq!(
            hex::encode(job().signed_digest()),
            vector::<String>("V2_hash_hex")
        );
        let verified = verify_job(&job()).unwrap();
        assert_eq!(verified.signature.signatory, UserKey(key("//User").hotkey()));

        let changes: [fn(&mut UserJobRequest); 9] = [
            |job| job.signature.signature = flipped(&job.signature.signature),
            |job| job.signature.timestamp_ns += 1,
            |job| job.signature.signatory = UserKey(key("//Miner").hotkey()),
            |job| job.docker_image.push('x'),
            |job| job.args.reverse(),
            |job| job.env.reverse(),
            |job| job.use_gpu = !job.use_gpu,
            |job| job.execution_time_limit += 1,
            |job| job.volume = None,
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut job = job();
            change(&mut job);
            assert!(verify_job(&job).is_err(), "change {index}");
        }
    }

    #[test]
    fn terms_are_accepted_from_the_signatory_and_for_one_job_only() {
        let (user, terms) = (key("//User"), JobTerms::default());
        let with = |terms: Option<JobTerms>, signature: Option<Signature>| {
            let mut job = job();
            job.muster = Some(Box::new(JobExtension {
                terms,
                signature,
                ..JobExtension::default()
            }));
            verify_job(&job)
        };
        let refused = Err(VerifyError::Terms { key: user.hotkey() });
        let good = sign_terms(&user, &terms, &job().signed_digest());
        assert!(with(Some(terms.clone()), Some(good)).is_ok());
        assert!(with(None, None).is_ok());
        let urgent = JobTerms {
            priority: Priority::HIGHEST,
            ..JobTerms::default()
        };
        let other_job = sign_terms(&user, &terms, &[7; 64]);
        let other_user = sign_terms(&key("//Miner"), &terms, &job().signed_digest());
        for (terms, signature) in [
            (Some(urgent), Some(good)),
            (Some(terms.clone()), Some(other_job)),
            (Some(terms.clone()), Some(other_user)),
            (Some(terms), None),
            (None, Some(good)),
        ] {
            assert_eq!(with(terms, signature), refused);
        }
    }

    #[test]
    fn another_scope_is_refused_before_anything_else() {
        let mut job = job();
        job.signature.signature_scope = SignatureScope::FullRequest;
        assert_eq!(verify_job(&job).unwrap_err(), VerifyError::Scope);
    }

    #[test]
    fn ours_is_accepted_by_ourselves() {
        let mut job = job();
        job.docker_image = "busybox@sha256:00".to_owned();
        job.signature = sign_job(&key("//User"), &job.signed_fields(), -7);
        assert!(verify_job(&job).is_ok());
    }

    #[test]
    fn where_a_streaming_job_answers() {
        let mut fields: serde_json::Value = vector("V0StreamingJobReadyRequest");
        fields.as_object_mut().unwrap().remove("message_type");
        let ready: StreamingJobReady = serde_json::from_value(fields).unwrap();
        assert!(verify_streaming_ready(ready.clone(), miner()).is_ok());
        let moved = StreamingJobReady {
            port: 6007,
            ..ready.clone()
        };
        assert!(verify_streaming_ready(moved.clone(), miner()).is_err());
        let signature = sign_streaming_ready(
            &key("//Miner"),
            ready.job_uuid,
            "1.2.3.4",
            6007,
            &ready.public_key,
        );
        let signed = StreamingJobReady {
            miner_signature: Some(signature),
            ..moved
        };
        assert!(verify_streaming_ready(signed, miner()).is_ok());
        let bare = StreamingJobReady { ip: None, ..ready };
        assert_eq!(
            verify_streaming_ready(bare, miner()).unwrap_err(),
            VerifyError::Missing
        );
    }

    #[test]
    fn a_frame_signed_as_compute_horde_0_0_27_signs() {
        let message: ValidatorToMiner = vector("V0InitialJobRequest");
        let frame = sign_frame(&key("//Validator"), &message);
        let signed = decode_from_validator(&frame).unwrap();
        assert_eq!(verify_frame(&signed, validator()), Ok(FrameSignature::Valid));
        assert!(verify_frame(&signed, ValidatorKey(miner().0)).is_err());
        let changed = decode_from_validator(&frame.replace("alpine:latest", "alpine:3")).unwrap();
        assert!(verify_frame(&changed, validator()).is_err());
        let bare = decode_from_validator(&vector::<String>("V0InitialJobRequest__raw")).unwrap();
        assert_eq!(verify_frame(&bare, validator()), Ok(FrameSignature::Absent));
    }
}
