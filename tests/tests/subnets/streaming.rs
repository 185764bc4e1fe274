//! Streaming through the whole path, as real processes: client, facilitator, gateway, seal, engine in a container
//! without network.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers and sections of tests fail as tests do"
)]

use std::collections::BTreeSet;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_testbed::wait_for;
use muster_tests::{Output, RunningSubnet, program_from_env, python, run};
use serde_json::Value;

const PYTHON: &str = "MUSTER_TEST_OPENAI_PYTHON";
const MODEL: &str = "parrot";

fn json(output: &Output) -> Value {
    let last = output.stdout.trim();
    serde_json::from_str(last).unwrap_or_else(|error| unreadable(&error, output))
}

#[expect(clippy::panic, reason = "a test fails")]
fn unreadable(error: &serde_json::Error, output: &Output) -> Value {
    panic!("{error}: {output:?}")
}

fn logs(subnet: &RunningSubnet) -> String {
    ["facilitator", "validator", "miner"]
        .map(|role| subnet.log(role))
        .join("\n---\n")
}

/// The facilitator's base URL for OpenAI's clients, and an API key.
fn base_and_key(subnet: &RunningSubnet) -> (String, String) {
    let made = json(&subnet.muster(&["keys", "new", "openai", "--json"]).unwrap());
    let base = format!("http://{}/v1", subnet.field("facilitator").unwrap());
    let key = made.get("key").and_then(Value::as_str);
    (base, key.unwrap().to_owned())
}

/// The pseudonym that the session saw with a request, by the proof in the last line of the event stream: it stands
/// behind the tag and 120 bytes, as `docs/sealed-sessions.md` lays them out.
fn seen_client(body: &str) -> Option<Vec<u8>> {
    let line = body
        .lines()
        .find_map(|line| line.strip_prefix(": muster-proof "))?;
    let statement = STANDARD.decode(line.trim()).ok()?;
    let fields = statement.strip_prefix(b"muster/response-proof/1")?;
    let (flag, client) = (fields.get(120)?, fields.get(121..153)?);
    (*flag == 1).then(|| client.to_vec())
}

/// The validator's metrics.
fn metrics(subnet: &RunningSubnet) -> String {
    let url = format!("http://{}/metrics", subnet.field("metrics").unwrap());
    run(Command::new("curl").args(["-sS", &url])).unwrap().stdout
}

/// The proven answers of the model that the gateway has counted.
fn proven_answers(subnet: &RunningSubnet) -> u64 {
    let told = metrics(subnet);
    let is_counter = |line: &&str| {
        let labels = ["verdict=\"proven\"", "model=\"parrot\""];
        line.starts_with("muster_gateway_responses_total{") && labels.iter().all(|label| line.contains(label))
    };
    let counter = told.lines().find(is_counter);
    counter.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

fn curl(args: &[&str], key: &str) -> Output {
    let bearer = format!("authorization: Bearer {key}");
    run(Command::new("curl")
        .args(["-sS", "-N", "-i", "-H", &bearer])
        .args(args))
    .unwrap()
}

pub(crate) fn openais_own_client_does_everything_it_can(subnet: &RunningSubnet) {
    let interpreter = program_from_env(PYTHON).unwrap();
    let (base, key) = base_and_key(subnet);
    let ran = python(&interpreter, "openai_client.py", &[&base, &key, MODEL]).unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", logs(subnet));
    let report = json(&ran);
    assert_eq!(report["models"], serde_json::json!([MODEL]));
    let said = "Say something. Say something. Say something. Say something. ";
    assert_eq!(
        (&report["stream"], &report["stream_usage"]),
        (&said.into(), &8.into()),
        "{report}"
    );
    assert_eq!(
        (&report["plain"], &report["proof_header"]),
        (&said.into(), &true.into()),
        "{report}"
    );
    assert_eq!(
        (&report["async"], &report["gathered"]),
        (&said.into(), &3.into()),
        "{report}"
    );
    assert_eq!(
        (&report["logprobs"], &report["after_abort"]),
        (&4.into(), &"Say something. ".into())
    );
    let used = serde_json::json!({"input": 2, "output": 4});
    assert_eq!(report["used"], serde_json::json!([used, used, used, used]));
    let refused = &report["refused"];
    assert_eq!(
        refused["key"],
        serde_json::json!({"class": "AuthenticationError", "status": 401, "code": "invalid_api_key"})
    );
    assert_eq!(
        refused["model"],
        serde_json::json!({"class": "NotFoundError", "status": 404, "code": "model_not_found"})
    );
    assert_eq!(refused["large"]["code"], "request_too_large", "{refused}");
    // A broken answer is proven as such.
    for (id, end) in [("id", "completed"), ("aborted", "client-gone")] {
        let url = format!("{base}/proofs/{}", report[id].as_str().unwrap());
        let view = wait_for("the proof", || {
            let answer = curl(&[&url], &key);
            let body = answer
                .stdout
                .split_once("\r\n\r\n")
                .map(|(_, body)| body.to_owned());
            anyhow::Ok(answer.stdout.contains(" 200 ").then_some(body).flatten())
        })
        .unwrap();
        let view: Value = serde_json::from_str(&view).unwrap();
        assert_eq!(
            (&view["verdict"], &view["end"]),
            (&"proven".into(), &end.into()),
            "{view}"
        );
    }
}

/// Both executors are at work: one by the caller's job.
pub(crate) fn a_chat_waits_for_a_machine_is_told_its_place_and_gets_its_answer(subnet: &RunningSubnet) {
    let second = super::users::a_long_job_runs(subnet);
    let log = tempfile::NamedTempFile::new().unwrap();
    let output = log.reopen().unwrap();
    let mut chat = Command::new(muster_tests::muster().unwrap())
        .args(["chat", "--dir"])
        .arg(subnet.folder())
        .args([MODEL, "-m", "one two", "--max-tokens", "2"])
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap();
    let said = || std::fs::read_to_string(log.path());
    wait_for("the place in the waiting list", || {
        let place = "waiting: place 1 of the waiting list until a machine is free";
        anyhow::Ok(said()?.contains(place).then_some(()))
    })
    .unwrap();
    // The stumble: three declines refused the chat, and it did not hear of the executor that became free.
    subnet.muster(&["job", "cancel", &second]).unwrap();
    let ended = wait_for("the answer", || anyhow::Ok(chat.try_wait()?)).unwrap();
    let said = said().unwrap();
    assert!(
        ended.success() && said.contains("[proven]"),
        "{said}\n{}",
        logs(subnet)
    );
}

/// One executor is at work by the caller's job, and the other one by a session that was used just now. Without the need
/// of the job that session would stay for `gateway.idle_s`, which is longer than the job may wait.
pub(crate) fn a_job_gets_the_executor_of_a_session_that_nobody_uses(subnet: &RunningSubnet) {
    let words = [
        "job",
        "run",
        "-q",
        "--queue-time",
        "200s",
        subnet.demo_image(),
        "--",
        "probe",
        "exit",
        "0",
    ];
    let ran = subnet.muster(&words).unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", logs(subnet));
}

pub(crate) fn a_chat_in_the_terminal_shows_what_each_answer_is_worth_and_a_changed_one_is_worth_nothing(
    subnet: &RunningSubnet,
) {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("answer.json");
    let file = file.to_str().unwrap();
    let args = [
        "chat",
        MODEL,
        "-m",
        "one two three",
        "--max-tokens",
        "5",
        "--save",
        file,
    ];
    let said = subnet.muster(&args).unwrap();
    assert_eq!(said.code, Some(0), "{said:?}\n{}", logs(subnet));
    // A session may have had to start, and the chat told its place meanwhile.
    assert_eq!(
        (said.stdout.as_str(), said.stderr.lines().last()),
        ("one two three one two \n", Some("[proven]")),
        "{said:?}"
    );

    let muster = |args: &[&str]| run(Command::new(muster_tests::muster().unwrap()).args(args)).unwrap();
    let verified = muster(&["proof", "verify", file]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let validator = subnet.field("validator").unwrap();
    assert!(
        verified.stdout.starts_with("proven\n")
            && verified.stdout.contains(validator)
            && verified.stdout.contains("  said  one two three one two\n"),
        "{verified:?}"
    );
    // One word of the question is another, or one bit of the answer.
    for (of, change) in [("request", "b25l"), ("response", "ZGF0YTog")] {
        let text = std::fs::read_to_string(file).unwrap();
        let mut record: Value = serde_json::from_str(&text).unwrap();
        record["words"][of] = change.into();
        let forged = here.path().join("forged.json");
        std::fs::write(&forged, record.to_string()).unwrap();
        let refused = muster(&["proof", "verify", forged.to_str().unwrap()]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stdout.contains(&format!("another {of}")), "{refused:?}");
    }

    // Its account opens the pseudonym, so the facilitator and the validator take its report.
    let reported = subnet.muster(&["proof", "report", file]).unwrap();
    assert_eq!(reported.code, Some(0), "{reported:?}\n{}", logs(subnet));

    let sessions = json(&subnet.muster(&["session", "ls", "--json"]).unwrap());
    assert_eq!(
        (&sessions["models"][0]["model"], &sessions["models"][0]["live"]),
        (&MODEL.into(), &1.into())
    );
    assert_eq!(sessions["sessions"][0]["model"], MODEL, "{sessions}");
    assert_eq!(
        (
            &sessions["earned"][0]["proven"],
            &sessions["earned"][0]["unproven"]
        ),
        (&2.into(), &0.into()),
        "the answer that had to wait, and this one"
    );
    let listed = subnet.muster(&["session", "ls"]).unwrap();
    assert!(listed.stdout.contains(MODEL), "{listed:?}");
}

pub(crate) fn curl_sees_the_words_one_by_one_and_the_proof_last_whichever_http_it_speaks(
    subnet: &RunningSubnet,
) {
    let (base, key) = base_and_key(subnet);
    let before = proven_answers(subnet);
    let url = format!("{base}/chat/completions");
    let ask = |http: &str| {
        let ask = r#"{"model":"parrot","stream":true,"max_tokens":3,"messages":[{"role":"user","content":"a b c"}]}"#;
        curl(
            &[http, "-H", "content-type: application/json", "-d", ask, &url],
            &key,
        )
    };
    let mut seen = BTreeSet::new();
    for (http, status) in [
        ("--http1.1", "HTTP/1.1 200"),
        // Without a TLS handshake nothing negotiates that HTTP/2 is spoken: the client has to know it.
        ("--http2-prior-knowledge", "HTTP/2 200"),
    ] {
        let answer = ask(http);
        let (head, body) = answer.stdout.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(status), "{answer:?}\n{}", logs(subnet));
        assert!(head.to_ascii_lowercase().contains("x-request-id: "), "{head}");
        let words = ["a ", "b ", "c "].map(|word| body.find(&format!("\"content\":\"{word}\"")));
        assert!(words.is_sorted() && words[0].is_some(), "{body}");
        let (done, proof) = (
            body.find("[DONE]").unwrap(),
            body.find("\n: muster-proof ").unwrap(),
        );
        assert!(words[2] < Some(done) && done < proof, "{body}");
        // Two equal requests of one account: the miner has seen two clients.
        assert!(seen.insert(seen_client(body).unwrap()), "{body}");
    }
    // The same question again comes from the session that is there: nothing waits.
    let again = ask("--http1.1");
    assert!(
        !again.stdout.contains("muster-wait") && again.stdout.contains("[DONE]"),
        "{again:?}"
    );

    // The gateway's counters are there for Prometheus.
    let told = metrics(subnet);
    assert_eq!(proven_answers(subnet), before + 3, "{told}");
    let live = r#"muster_gateway_sessions{model="parrot",state="live"} 1"#;
    assert!(
        told.contains(live) && told.contains("muster_gateway_first_byte_seconds"),
        "{told}"
    );
}
