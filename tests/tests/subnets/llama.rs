//! llama.cpp's server behind the seal: an engine that nobody here wrote, from its own wheel, in a container without
//! network.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;
use std::process::Command;

use muster_tests::{Output, RunningSubnet, program_from_env, python, run};
use serde_json::Value;

const PYTHON: &str = "MUSTER_TEST_OPENAI_PYTHON";
/// Its model, as `tests/python/llama_cpp_serves.py` names it.
const LLAMA: &str = "tiny-llama";

/// The last line of what a program printed; libraries of clients may print others before.
fn json(output: &Output) -> Value {
    let printed = output.stdout.trim();
    let last = printed.lines().next_back().unwrap_or_default();
    let read = serde_json::from_str(printed).or_else(|_| serde_json::from_str(last));
    assert!(read.is_ok(), "{read:?}: {output:?}");
    read.unwrap()
}

fn logs(subnet: &RunningSubnet) -> String {
    ["facilitator", "validator", "miner"]
        .map(|role| subnet.log(role))
        .join("\n---\n")
}

#[test]
fn llama_cpps_server_is_whitelisted_and_every_answer_of_it_is_proven() {
    let interpreter = program_from_env(PYTHON).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let image = runtime.block_on(muster_tests::llama_image(&interpreter)).unwrap();
    let here = tempfile::tempdir().unwrap();
    let path = |name: &str| here.path().join(name).to_str().unwrap().to_owned();
    let (services, saved) = (path("models.toml"), path("answer.json"));
    let entry = format!(
        "[[services]]\nmodel = '{LLAMA}'\nimage = '{image}'\nengine = 'llama-cpp'\nscheme = 'text'\nclass = 'always_on.test'\n\
         args = ['/muster/http.sock']\ninput_price = 1000000\noutput_price = 2000000\ninput_tokens_per_s = 100\noutput_tokens_per_s = 10\n"
    );
    std::fs::write(&services, entry).unwrap();
    let subnet = RunningSubnet::start_with(&["--services", &services]).unwrap();

    // A chat, checked by its client with the client's own bytes, and again from the file.
    let chat = [
        "chat",
        LLAMA,
        "-m",
        "The ownership rules of Rust",
        "--max-tokens",
        "8",
        "--save",
        &saved,
    ];
    let said = subnet.muster(&chat).unwrap();
    assert_eq!(
        (said.code, said.stderr.lines().last()),
        (Some(0), Some("[proven]")),
        "{said:?}\n{}",
        logs(&subnet)
    );
    let verified =
        run(Command::new(muster_tests::muster().unwrap()).args(["proof", "verify", &saved])).unwrap();
    assert!(verified.stdout.starts_with("proven\n"), "{verified:?}");
    let record: Value = serde_json::from_str(&std::fs::read_to_string(&saved).unwrap()).unwrap();
    // The engine samples without a seed. It reports eight tokens, and they count for no more than their text's bytes.
    assert_eq!(record["model"], LLAMA, "{record}");
    let output = record["usage"]["output"].as_u64().unwrap();
    assert!((1..=8).contains(&output), "{record}");

    // OpenAI's own client, with what only a real engine has.
    let made = json(&subnet.muster(&["keys", "new", "openai", "--json"]).unwrap());
    let base = format!("http://{}/v1", subnet.field("facilitator").unwrap());
    let key = made["key"].as_str().unwrap();
    let ran = python(&interpreter, "openai_asks_llama.py", &[&base, key, LLAMA]).unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", logs(&subnet));
    let report = json(&ran);
    assert_eq!(report["models"], serde_json::json!(["parrot", LLAMA]));
    assert_eq!(
        (&report["logprobs"], &report["whole"]),
        (&4.into(), &report["streamed"]),
        "{report}"
    );

    // Every shape of a request is answered as the same server answers it directly, or stands in the page's table.
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/streaming.md");
    let muster = muster_tests::muster().unwrap();
    let arguments = [
        base.as_str(),
        key,
        LLAMA,
        muster.to_str().unwrap(),
        docs.to_str().unwrap(),
    ];
    let ran = python(&interpreter, "openai_differential.py", &arguments).unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", logs(&subnet));
    let compared = json(&ran);
    assert_eq!(compared["differences"], serde_json::json!([]), "{compared}");
    let shapes = ["equal", "listed"].map(|of| compared[of].as_u64().unwrap());
    assert!(shapes[0] >= 60, "{compared}");
    assert_eq!(compared["shapes"], shapes.iter().sum::<u64>(), "{compared}");
    let compared_proofs = compared["proven"].as_u64().unwrap();
    assert!(compared_proofs >= shapes[0], "{compared}");

    // It earned the whitelist's price of its tokens: a rao for a token of input, two for one of output.
    let sessions = json(&subnet.muster(&["session", "ls", "--json"]).unwrap());
    let earned = &sessions["earned"][0];
    let tokens = |of: &str| earned["usage"][of].as_u64().unwrap();
    assert_eq!(
        (&earned["proven"], &earned["unproven"]),
        (&(4 + compared_proofs).into(), &0.into()),
        "{sessions}"
    );
    assert_eq!(
        earned["earned"],
        tokens("input") + 2 * tokens("output"),
        "{sessions}"
    );
    assert_eq!(
        sessions["sessions"].as_array().unwrap().len(),
        1,
        "one session served all of it: {sessions}"
    );
}
