//! The frames that ComputeHorde's own code wrote (`tests/vectors`), and the answers of this executor.

use serde_json::{Value, json};

use crate::support::lease::{Lease, inline_volume};
use crate::support::miner::FakeMiner;
use crate::support::{engine, image};

/// The id of the job in the vectors.
const THEIR_UUID: &str = "11111111-2222-4333-8444-555555555555";

/// A message as Python's pydantic wrote it: every field, including nulls, in the order of its model.
fn frame(name: &str) -> String {
    let vectors = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/wire.json"));
    let vectors: Value = serde_json::from_str(&vectors.unwrap()).unwrap();
    vectors[format!("{name}__raw")].as_str().unwrap().to_owned()
}

/// The same frame about another job.
fn about(name: &str, uuid: &str, changes: &[(&str, Value)]) -> String {
    let mut message: Value = serde_json::from_str(&frame(name).replace(THEIR_UUID, uuid)).unwrap();
    for (field, value) in changes {
        assert!(message.get(field).is_some(), "{name} has no {field}");
        message[*field] = value.clone();
    }
    // serde_json keeps the order and writes as compactly as pydantic does.
    message.to_string()
}

#[tokio::test]
async fn a_python_miners_frames_are_answered_with_the_frames_that_python_reads() {
    let engine = engine().await;
    let archive = image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let (executor, mut wire) = lease.start(&miner).await;
    let uuid = lease.token.attempt().to_string();
    let (image, class) = (json!(archive.id), json!("always_on.test"));

    // V0InitialJobRequest: the volume comes here, the receipt's time with more digits than a miner's database keeps.
    let offer = about(
        "V0InitialJobRequest",
        &uuid,
        &[
            ("executor_class", class.clone()),
            ("docker_image", image.clone()),
            ("volume", inline_volume(&[("a.txt", "to be or not to be")])),
            ("streaming_details", Value::Null),
        ],
    );
    assert!(offer.starts_with(r#"{"message_type":"V0InitialJobRequest","job_uuid":""#));
    wire.send_text(&offer).await;
    assert_eq!(
        wire.recv_text().await.unwrap(),
        frame("V0ExecutorReadyRequest").replace(THEIR_UUID, &uuid)
    );

    // V0JobRequest.
    let request = about(
        "V0JobRequest",
        &uuid,
        &[
            ("executor_class", class),
            ("docker_image", image),
            ("docker_run_options_preset", json!("none")),
            ("docker_run_cmd", json!(["words"])),
            ("output_upload", Value::Null),
        ],
    );
    wire.send_text(&request).await;
    // Not among the vectors: the two fields of the model, which V0ExecutionDoneRequest has too.
    let done = frame("V0ExecutionDoneRequest").replace(THEIR_UUID, &uuid);
    assert_eq!(
        wire.recv_text().await.unwrap(),
        done.replace("ExecutionDone", "VolumesReady")
    );
    assert_eq!(wire.recv_text().await.unwrap(), done);

    // V0MachineSpecsRequest: specs within specs, the parts that the Python executor names.
    let specs = wire.expect("V0MachineSpecsRequest").await;
    assert_eq!(
        specs.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["message_type", "job_uuid", "specs"]
    );
    for part in ["gpu", "cpu", "ram", "hard_disk", "os"] {
        assert!(specs["specs"]["specs"].get(part).is_some(), "{part}: {specs}");
    }

    // V0JobFinishedRequest: the fields and their order are the vector's, none is null.
    let finished: Value = serde_json::from_str(&wire.recv_text().await.unwrap()).unwrap();
    let theirs: Value = serde_json::from_str(&frame("V0JobFinishedRequest")).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&finished), keys(&theirs));
    assert!(
        finished
            .as_object()
            .unwrap()
            .values()
            .all(|value| !value.is_null())
    );
    assert_eq!(
        keys(&finished["artifacts"]),
        ["/artifacts/words.json"],
        "keyed as theirs: {theirs}"
    );
    wire.expect_end().await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn a_python_miners_error_and_a_streaming_offer_are_understood() {
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    // GenericError before the offer: Python leaves the socket open, this executor does not stay.
    let (executor, mut wire) = lease.start(&miner).await;
    wire.send_text(&frame("GenericError")).await;
    wire.expect_end().await;
    let error = executor.join().await.unwrap().unwrap_err();
    assert!(matches!(error, muster_executor::Error::Refused(reason) if reason == "x"));

    // V0InitialJobRequest exactly as it was written, but for the id and the image: a streaming job.
    let engine = engine().await;
    let image = image::load(&engine).await.id.to_string();
    let lease = Lease::new();
    let (executor, mut wire) = lease.start(&miner).await;
    let uuid = lease.token.attempt().to_string();
    let offer = frame("V0InitialJobRequest").replace(THEIR_UUID, &uuid);
    assert!(
        offer.contains("BEGIN CERTIFICATE") && offer.contains("alpine:latest"),
        "{offer}"
    );
    wire.send_text(&offer.replace("alpine:latest", &image)).await;
    wire.expect("V0ExecutorReadyRequest").await;
    wire.send_text("{").await;
    let failed: Value = serde_json::from_str(&wire.recv_text().await.unwrap()).unwrap();
    let theirs: Value = serde_json::from_str(&frame("V0HordeFailedRequest")).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&failed), keys(&theirs));
    assert_eq!(
        (&failed["message_type"], &failed["reported_by"], &failed["reason"]),
        (
            &json!("V0HordeFailedRequest"),
            &json!("executor"),
            &json!("generic_error")
        )
    );
    wire.expect_end().await;
    executor.join().await.unwrap().unwrap();
}
