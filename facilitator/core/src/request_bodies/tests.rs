//! Accepted bodies, and the reasons for rejecting others.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn body() -> Value {
    json!({
        "target_validator_hotkey": "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY",
        "executor_class": "always_on.test", "docker_image": "alpine", "job_namespace": "SN1.0",
        "args": ["a"], "env": {"B": "1", "A": "2"}, "use_gpu": true, "artifacts_dir": null,
        "on_trusted_miner": false, "download_time_limit": 1, "execution_time_limit": 2,
        "streaming_start_time_limit": 3, "upload_time_limit": 4,
        "volumes": [{"volume_type": "inline", "contents": "", "relative_path": "x"}],
    })
}

fn with(field: &str, value: Value) -> Vec<u8> {
    let mut body = body();
    body[field] = value;
    serde_json::to_vec(&body).unwrap()
}

fn errors(body: &[u8]) -> FieldErrors {
    match parse_job(body).unwrap_err() {
        BodyRejection::Fields(errors) => errors,
        other @ (BodyRejection::NotJson(_) | BodyRejection::NotObject) => panic!("{other}"),
    }
}

#[test]
fn a_user_sets_no_terms_of_a_sealed_session() {
    let plain = json!({"public_key": "-----BEGIN CERTIFICATE-----"});
    assert!(parse_job(&with("streaming_details", plain.clone())).is_ok());
    let mut sealed = plain;
    sealed["muster"] = json!({
        "model": "m", "image": format!("sha256:{}", "0".repeat(64)), "scheme": "text", "health": "/",
        "input_price": 0, "output_price": 0,
    });
    let errors = errors(&with("streaming_details", sealed));
    assert_eq!(
        errors["streaming_details"],
        ["The terms of a sealed session are the validator's to set."]
    );
}

#[test]
fn label_of_a_job_has_the_form_of_a_name() {
    for (tag, is_refused) in [
        (json!("train-3.b"), false),
        (json!(null), false),
        (json!("a b"), true),
        (json!(""), false),
    ] {
        let parsed = parse_job(&with("tag", tag.clone()));
        assert_eq!(parsed.is_err(), is_refused, "{tag}");
    }
}

#[test]
fn a_text_that_is_no_image_name_is_refused_before_a_job_is_made() {
    for bad in ["H3/Upper", "http://x/a", "alpine:", "a._b", "a@b"] {
        let errors = errors(&with("docker_image", json!(bad)));
        assert!(
            errors["docker_image"][0].contains("is not the name of an image"),
            "{errors:?}"
        );
        assert_eq!((errors.len(), errors["docker_image"].len()), (1, 1), "{errors:?}");
    }
    let id = format!("sha256:{}", "0".repeat(64));
    for good in ["alpine", "ghcr.io/a/b:1", "127.0.0.1:5000/x_y-z:V.1", id.as_str()] {
        assert!(parse_job(&with("docker_image", json!(good))).is_ok(), "{good}");
    }
}

#[test]
fn a_job_of_the_sdk_keeps_the_order_of_its_fields() {
    let job = parse_job(&serde_json::to_vec(&body()).unwrap()).unwrap();
    assert_eq!(job.artifacts_dir, None);
    assert_eq!(job.env.keys().collect::<Vec<_>>(), ["B", "A"]);
    assert_eq!(job.volumes.unwrap().len(), 1);
}

#[test]
fn every_wrong_field_is_named_at_once() {
    let all = errors(b"{\"executor_class\": \"h100\", \"args\": null, \"env\": {\"A\": 1}}");
    for field in [
        "target_validator_hotkey",
        "executor_class",
        "docker_image",
        "args",
        "env",
        "download_time_limit",
    ] {
        assert!(all.contains_key(field), "{field} in {all:?}");
    }
    assert_eq!(all["docker_image"], ["This field is required."]);
    assert_eq!(all["args"], ["This field may not be null."]);
    assert!(all["executor_class"][0].contains("always_on.test"), "{all:?}");
}

#[test]
fn values_that_no_executor_could_honour_are_refused() {
    for (field, value) in [
        ("execution_time_limit", json!(604_801)),
        ("execution_time_limit", json!(0)),
        ("docker_image", json!(" ")),
        ("docker_image", json!("")),
        ("docker_image", json!("a b")),
        ("docker_image", json!("a/../b")),
        ("docker_image", json!("a\u{1}")),
        ("args", json!(["a\u{0}b"])),
        ("env", json!({"A": "\u{0}"})),
        ("env", json!({"": "x"})),
        ("env", json!({"A=B": "x"})),
        ("docker_image", json!("a".repeat(513))),
        ("artifacts_dir", json!("relative")),
        ("upload_time_limit", json!(-1)),
        ("volumes", json!([{"volume_type": "tape"}])),
    ] {
        assert_eq!(errors(&with(field, value)).keys().collect::<Vec<_>>(), [&field]);
    }
}

#[test]
fn other_shapes_are_told_apart() {
    let deep = "[".repeat(100_000);
    assert!(matches!(parse_job(b""), Err(BodyRejection::NotJson(_))));
    assert!(matches!(parse_job(b"\xff"), Err(BodyRejection::NotJson(_))));
    assert!(matches!(
        parse_job(deep.as_bytes()),
        Err(BodyRejection::NotJson(_))
    ));
    assert_eq!(parse_job(b"[]"), Err(BodyRejection::NotObject));
    let twice = br#"{"docker_image":"a","docker_image":"b"}"#;
    assert!(!errors(twice).is_empty());
}

#[test]
fn reports_feedback_and_keys_are_bounded() {
    let (one, two) = (
        "11111111-2222-4333-8444-555555555555",
        "11111111-2222-4333-8444-555555555556",
    );
    let read = |body: Value| parse_cheat_report(&serde_json::to_vec(&body).unwrap());
    let report = read(json!({"job_uuid": one, "trusted_job_uuid": two})).unwrap();
    assert_eq!(report.0.details, None);
    assert!(read(json!({"job_uuid": one, "trusted_job_uuid": two, "details": null})).is_ok());
    assert!(read(json!({"job_uuid": one, "trusted_job_uuid": one})).is_err());
    assert!(
        read(json!({"job_uuid": one, "trusted_job_uuid": two, "details": "x".repeat(MAX_DETAILS)})).is_err()
    );
    assert!(read(json!([one, two])).is_err());
    for (good, feedback) in [
        (true, r#"{"result_correctness": 1}"#),
        (true, r#"{"result_correctness": 0.5, "expected_duration": 0}"#),
        (false, r#"{"result_correctness": 1.01}"#),
        (false, r#"{"result_correctness": -0.01}"#),
        (false, r#"{"result_correctness": 1, "expected_duration": -1}"#),
        (false, r#"{"result_correctness": 1e999}"#),
        (false, r#"{"result_correctness": "1"}"#),
        (false, r#"{"expected_duration": 1}"#),
        (false, "[1]"),
    ] {
        assert_eq!(parse_feedback(feedback.as_bytes()).is_ok(), good, "{feedback}");
    }
    for (good, name) in [
        (true, "laptop"),
        (false, ""),
        (false, " "),
        (false, "a\u{0}"),
        (false, &*"x".repeat(101)),
    ] {
        let body = serde_json::to_vec(&json!({"name": name})).unwrap();
        assert_eq!(parse_key_request(&body).is_ok(), good, "{name}");
    }
    for (good, more) in [
        (true, json!({"rights": ["read", "jobs"], "days": 1})),
        (true, json!({"rights": null, "days": 3650})),
        (false, json!({"rights": []})),
        (false, json!({"rights": ["root"]})),
        (false, json!({"rights": "read"})),
        (false, json!({"days": 0})),
        (false, json!({"days": 3651})),
        (false, json!({"days": "x"})),
    ] {
        let mut body = more.clone();
        body["name"] = json!("laptop");
        let body = serde_json::to_vec(&body).unwrap();
        assert_eq!(parse_key_request(&body).is_ok(), good, "{more}");
    }
}

proptest! {
    #[test]
    fn garbage_is_a_reason_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(parse_job(&bytes).is_err());
    }
}
