//! An answer that its client reports with its words: a reference scores it by itself.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit::CellCounts;
use muster_protocol::JobId;
use muster_protocol::wire::checks::CheckState;
use muster_protocol::wire::encode;
use serde_json::{Value, json};

use crate::sockets::audit_runs::{Audited, with_validator};
use crate::sockets::cross_checks::report;
use crate::sockets::support::model::{calibration, model};
use crate::sockets::support::within;

/// Asks for answers with ids, and returns the one of which most tokens are off by its measurement: its proof and words
/// as a report shows them.
async fn worst_answer(audited: &Audited, engine: &[CellCounts], is_stream: bool) -> Value {
    let body = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "well?"}], "return_token_ids": true,
        "stream": is_stream,
    });
    let body = body.to_string();
    let client = reqwest::Client::new();
    let mut worst = (0, Value::Null);
    for _ in 0..5 {
        let url = format!("{}/v1/chat/completions", audited.gateway());
        let asking = client.post(url).bearer_auth("key").body(body.clone()).send();
        let answer = within("an answer", asking).await.unwrap();
        let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
        let bytes = answer.bytes().await.unwrap();
        let proof = audited.stored_proof(&id).await;
        let said = match is_stream {
            true => {
                let text = std::str::from_utf8(&bytes).unwrap();
                assert!(
                    text.contains("\n: muster-proof "),
                    "a client reports what it got: {text}"
                );
                let event = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
                serde_json::from_str::<Value>(event).unwrap()
            }
            false => serde_json::from_slice(&bytes).unwrap(),
        };
        let number = usize::try_from(said["choices"][0]["token_ids"][1].as_u64().unwrap()).unwrap();
        let off: u32 = engine[number]
            .0
            .iter()
            .map(|row| row[1..].iter().sum::<u32>())
            .sum();
        let words = json!({
            "request": STANDARD.encode(&body), "response": STANDARD.encode(&bytes), "content_type": kind,
        });
        if worst.1.is_null() || off > worst.0 {
            worst = (
                off,
                json!({ "answer": { "proof": proof["proof"], "words": words } }),
            );
        }
    }
    worst.1
}

#[tokio::test]
async fn a_reported_answer_whose_client_shows_its_words_is_scored_by_itself() {
    for (cheats, is_stream) in [(true, false), (true, true), (false, false)] {
        with_validator(model(cheats, None), false, async |audited| {
            let calibration = calibration();
            let engine = match cheats {
                true => calibration
                    .alternatives
                    .iter()
                    .find(|one| one.name == "int4")
                    .unwrap()
                    .answers
                    .clone(),
                false => calibration
                    .machines
                    .iter()
                    .flat_map(|run| run.answers.clone())
                    .collect(),
            };
            let details = worst_answer(audited, &engine, is_stream).await;
            let sessions = audited.world.get("/v0/sessions").await;
            let job: JobId = sessions["sessions"][0]["job"].as_str().unwrap().parse().unwrap();
            // Nobody else's answer is taken: the proof is not this session's.
            let foreign = json!({ "answer": { "proof": "another" } });
            let refused = encode(&report("//User", job, Some(foreign), 1));
            audited.world.facilitator.send(refused).await;
            let verdict = audited.world.facilitator.verdict_of(job).await;
            assert_eq!(verdict.state, CheckState::Unproven, "{verdict:?}");
            assert!(verdict.reason.contains("no proven answer"), "{verdict:?}");

            let taken = encode(&report("//User", job, Some(details), 2));
            audited.world.facilitator.send(taken).await;
            let verdict = audited.world.facilitator.verdict_of(job).await;
            let expected = if cheats {
                CheckState::Differs
            } else {
                CheckState::Agrees
            };
            assert_eq!(verdict.state, expected, "{verdict:?}");
            assert!(
                verdict.reason.contains("tokens of the reported answer"),
                "{verdict:?}"
            );
        })
        .await;
    }
}
