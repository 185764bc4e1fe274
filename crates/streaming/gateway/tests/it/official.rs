//! Third-party clients of the gateway: OpenAI's own library, and curl.

use std::path::Path;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::rig::{KEY, World};

/// The interpreter of an environment that has the package `openai`.
const PYTHON: &str = "MUSTER_TEST_OPENAI_PYTHON";

async fn run_to_end(command: &mut Command) -> String {
    let ran = muster_testbed::within("the end of the program", command.output())
        .await
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "{out}\n{err}");
    out.into_owned()
}

#[tokio::test]
async fn openais_own_client_does_everything_it_can() {
    let interpreter = std::env::var_os(PYTHON)
        .expect("this test needs MUSTER_TEST_OPENAI_PYTHON, which `cargo xtask test` sets");
    let world = World::new(|_| ()).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/python/openai_client.py");
    let base = format!("{}/v1", world.base);
    let mut command = Command::new(interpreter);
    command.arg(script).args([&base, KEY, "tiny"]);
    let report: Value = serde_json::from_str(&run_to_end(&mut command).await).unwrap();
    assert_eq!(
        (&report["models"], &report["model"]),
        (&json!(["tiny"]), &json!("tiny"))
    );
    let words: String = (0..8).map(|word| format!("word{word} ")).collect();
    assert_eq!(
        (&report["stream"], &report["stream_usage"]),
        (&json!(words), &json!(8)),
        "{report}"
    );
    assert_eq!(
        (&report["plain"], &report["proof_header"]),
        (&json!("word ".repeat(8)), &json!(true))
    );
    assert_eq!(
        (&report["async"], &report["gathered"], &report["logprobs"]),
        (&json!(words), &json!(3), &json!(4))
    );
    assert_eq!(report["after_abort"], "word word ");
    let used = json!({"input": 5, "output": 4});
    assert_eq!(report["used"], json!([used, used, used, used]));
    let refused = &report["refused"];
    assert_eq!(
        refused["key"],
        json!({"class": "AuthenticationError", "status": 401, "code": "invalid_api_key"})
    );
    assert_eq!(
        refused["model"],
        json!({"class": "NotFoundError", "status": 404, "code": "model_not_found"})
    );
    assert_eq!(refused["large"]["code"], "request_too_large", "{refused}");
    // An answer that was read to its end is proven as complete, an aborted one as the part that was sent.
    for (id, ends) in [
        ("id", &["completed"][..]),
        ("aborted", &["client-gone", "completed"]),
    ] {
        let view = world.proof(report[id].as_str().unwrap()).await;
        assert_eq!(view["verdict"], "proven", "{view}");
        assert!(ends.contains(&view["end"].as_str().unwrap()), "{view}");
    }
}

#[tokio::test]
async fn curl_sees_the_same_over_http_1_and_http_2() {
    let world = World::new(|_| ()).await;
    let url = format!("{}/v1/chat/completions", world.base);
    let ask = r#"{"model":"tiny","stream":true,"max_tokens":3,"messages":[]}"#;
    for (version, line) in [
        ("--http1.1", "HTTP/1.1 200"),
        ("--http2-prior-knowledge", "HTTP/2 200"),
    ] {
        let mut curl = Command::new("curl");
        curl.args([
            "-sS",
            "-N",
            "-i",
            version,
            "-H",
            &format!("authorization: Bearer {KEY}"),
            "-d",
            ask,
            &url,
        ]);
        let output = run_to_end(&mut curl).await;
        assert!(output.starts_with(line), "{output}");
        assert!(
            output.to_ascii_lowercase().contains("\r\nx-request-id: "),
            "{output}"
        );
        let (done, proof) = (
            output.find("[DONE]").unwrap(),
            output.find("\n: muster-proof ").unwrap(),
        );
        assert!(output.find("word2").unwrap() < done && done < proof, "{output}");
    }
}
