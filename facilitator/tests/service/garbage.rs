//! Seeded garbage in bodies, headers and frames: the answer is always a reason, never a server error.

use muster_protocol::rest::headers;
use serde_json::Value;

use crate::facilitator::{Facilitator, validator_key};
use crate::user::{User, job_for, login_with, signature_headers};
use crate::validator::Validator;

/// SplitMix64, a small random generator with the same output on every platform.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }

    /// Changes, removes or inserts a few bytes.
    fn mangle(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        for _ in 0..=self.below(4) {
            if out.is_empty() {
                break;
            }
            let at = self.below(out.len());
            match self.below(4) {
                0 => out[at] = u8::try_from(self.below(256)).unwrap(),
                1 => {
                    out.remove(at);
                }
                2 => out.insert(at, b"\"{}[]:,\\0n\xff"[self.below(11)]),
                _ => out.truncate(at.max(1)),
            }
        }
        out
    }

    /// Replaces one value of an object by one of another type.
    fn retype(&mut self, object: &Value) -> Value {
        let mut object = object.clone();
        let odd = [
            Value::Null,
            Value::Bool(true),
            serde_json::json!(-1),
            serde_json::json!(1e300),
            serde_json::json!(u64::MAX),
            serde_json::json!("\u{0}é"),
            serde_json::json!([[[]]]),
            serde_json::json!({"a": {"b": null}}),
        ];
        let fields = object.as_object_mut().unwrap();
        let at = self.below(fields.len());
        let value = odd[self.below(odd.len())].clone();
        *fields.get_index_mut_value(at) = value;
        object
    }
}

trait NthValue {
    fn get_index_mut_value(&mut self, at: usize) -> &mut Value;
}

impl NthValue for serde_json::Map<String, Value> {
    fn get_index_mut_value(&mut self, at: usize) -> &mut Value {
        self.values_mut().nth(at).unwrap()
    }
}

#[tokio::test]
async fn no_body_and_no_header_is_ever_the_servers_fault() {
    let facilitator = Facilitator::start().await;
    let _validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let mut seeded = Seeded(7);
    let body = job_for(validator_key("Validator"));
    let bytes = serde_json::to_vec(&body).unwrap();
    let good = signature_headers(&user.sign(&body, facilitator.now_ns()));
    let mut bodies: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"null".to_vec(),
        b"\xff\xfe".to_vec(),
        b"[".repeat(100_000),
        b"{\"a\":".repeat(100_000),
    ];
    bodies.extend((0..150).map(|_| seeded.mangle(&bytes)));
    bodies.extend((0..150).map(|_| serde_json::to_vec(&seeded.retype(&body)).unwrap()));
    for body in bodies {
        let answer = user.post(body.clone(), &good).await;
        let status = answer.status().as_u16();
        assert!(status < 500, "{status}: {}", String::from_utf8_lossy(&body));
        let _: Value = answer.json().await.unwrap();
    }
    for _ in 0..150 {
        let mut odd = good.clone();
        let at = seeded.below(odd.len());
        let text = seeded.mangle(odd[at].1.as_bytes());
        // A header can contain visible ASCII only.
        odd[at].1 = text
            .iter()
            .filter(|byte| (b' '..=b'~').contains(*byte))
            .map(|byte| char::from(*byte))
            .collect();
        let status = user.post(bytes.clone(), &odd).await.status().as_u16();
        assert!(status < 500, "{status}: {odd:?}");
    }
    for _ in 0..50 {
        let login =
            serde_json::json!({"hotkey": user.keys.hotkey(), "signature": "00", "nonce": headers::SIGNATURE});
        let odd = seeded.retype(&login);
        let status = login_with(&facilitator, &user.http, &odd).await.status().as_u16();
        assert!((400..500).contains(&status), "{status}: {odd}");
    }
}

#[tokio::test]
async fn no_frame_ends_a_validators_session() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let mut seeded = Seeded(11);
    let update = serde_json::json!({
        "message_type": "V0JobStatusUpdate",
        "uuid": "11111111-2222-4333-8444-555555555555",
        "status": "completed",
        "metadata": {"miner_response": {"docker_process_stdout": "", "docker_process_stderr": ""}},
    });
    let text = update.to_string();
    for _ in 0..200 {
        let frame = match seeded.below(2) {
            0 => String::from_utf8_lossy(&seeded.mangle(text.as_bytes())).into_owned(),
            _ => seeded.retype(&update).to_string(),
        };
        validator.socket.send(frame.clone()).await.unwrap();
        // Every frame but a heartbeat is answered, and none of these becomes a heartbeat.
        assert_eq!(validator.response().await.errors.len(), 1, "{frame}");
    }
    validator.is_idle().await;
}
