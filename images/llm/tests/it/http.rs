//! OpenAI's interface and the scoring endpoint, over the Unix socket of a real process.

use std::io::{Read as _, Write as _};

use serde_json::{Value, json};

use crate::client::{Server, read};
use crate::support::{CONTEXT, VOCABULARY};
use crate::wait::wait_for;

fn server() -> Server {
    Server::start(&["--threads", "1"]).unwrap()
}

fn complete(server: &Server, changes: Value) -> Value {
    let mut body = json!({"model": "test", "prompt": "the prompt", "max_tokens": 12, "seed": 7, "logprobs": 3, "return_token_ids": true});
    body.as_object_mut()
        .unwrap()
        .extend(changes.as_object().unwrap().clone());
    let (status, answer) = server.post("/v1/completions", &body).unwrap();
    assert_eq!(status, 200, "{answer}");
    answer
}

fn ids(answer: &Value) -> Vec<u64> {
    answer["choices"][0]["token_ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect()
}

fn error(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let (status, answer) = server.post(path, body).unwrap();
    assert!(
        answer["error"]["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{answer}"
    );
    (status, answer["error"]["code"].clone())
}

#[test]
fn a_seed_names_its_answer_and_other_seeds_have_others() {
    let server = server();
    let first = complete(&server, json!({}));
    assert_eq!(first["usage"]["completion_tokens"], ids(&first).len());
    assert_eq!(first["choices"][0]["finish_reason"], "length");
    assert_eq!(ids(&first), ids(&complete(&server, json!({}))));
    assert_ne!(ids(&first), ids(&complete(&server, json!({"seed": 8}))));
    // Without a seed each answer has its own; two of them may still be the same by chance.
    let none = || ids(&complete(&server, json!({"seed": null})));
    let answers: std::collections::BTreeSet<Vec<u64>> = (0..8).map(|_| none()).collect();
    assert!(answers.len() > 1, "{answers:?}");
}

#[test]
fn probabilities_come_with_their_tokens() {
    let server = server();
    let answer = complete(&server, json!({"temperature": 0}));
    let logprobs = &answer["choices"][0]["logprobs"];
    for (i, id) in ids(&answer).iter().enumerate() {
        assert_eq!(logprobs["token_ids"][i], *id);
        assert_eq!(logprobs["top_token_ids"][i][0], *id, "greedy takes the likeliest");
        assert!(logprobs["token_logprobs"][i].as_f64().unwrap() <= 0.0);
    }
    let body = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "logprobs": true, "top_logprobs": 2, "seed": 1});
    let (_, answer) = server.post("/v1/chat/completions", &body).unwrap();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 3);
    assert!(
        content
            .iter()
            .all(|token| token["top_logprobs"].as_array().unwrap().len() == 2 && token["token_id"].is_u64())
    );
}

#[test]
fn the_seal_names_the_seed_of_a_request_that_names_none() {
    let server = server();
    let body = json!({"prompt": "the prompt", "max_tokens": 12, "return_token_ids": true});
    let told = |body: &Value, seed: &str| {
        let stream = server
            .send_with("/v1/completions", &format!("muster-seed: {seed}\r\n"), body)
            .unwrap();
        let (status, text) = read(stream).unwrap();
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    let seed = "ab".repeat(32);
    let (status, sealed) = told(&body, &seed);
    assert_eq!(status, 200, "{sealed}");
    let mut own = body.clone();
    own["muster_seed"] = json!(seed);
    let (_, asked) = server.post("/v1/completions", &own).unwrap();
    assert_eq!(ids(&sealed), ids(&asked), "the header stands for the field");
    let (_, other) = told(&own, &"cd".repeat(32));
    assert_eq!(ids(&other), ids(&asked), "the request's own seed counts");
    assert_eq!(told(&body, "zz").0, 400);
}

#[test]
fn a_stream_says_what_the_whole_says() {
    let server = server();
    let body = json!({"prompt": "abc", "max_tokens": 20, "seed": 3, "n": 2, "return_token_ids": true});
    let (_, whole) = server.post("/v1/completions", &body).unwrap();
    let mut streaming = body.clone();
    streaming["stream"] = json!(true);
    streaming["stream_options"] = json!({"include_usage": true});
    let events = server.events("/v1/completions", &streaming).unwrap();
    for index in 0..2 {
        let mine = || {
            events
                .iter()
                .filter(|event| event["choices"][0]["index"] == index)
        };
        let text: String = mine()
            .map(|event| event["choices"][0]["text"].as_str().unwrap())
            .collect();
        assert_eq!(whole["choices"][index]["text"], text);
        let ids: Vec<Value> = mine()
            .flat_map(|event| event["choices"][0]["token_ids"].as_array().unwrap().clone())
            .collect();
        assert_eq!(whole["choices"][index]["token_ids"], json!(ids));
        let prompts: Vec<&Value> = mine()
            .filter_map(|event| event["choices"][0].get("prompt_token_ids"))
            .collect();
        assert_eq!(
            prompts,
            [&whole["choices"][index]["prompt_token_ids"]],
            "once, with the first event"
        );
    }
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"]["completion_tokens"],
        whole["usage"]["completion_tokens"]
    );
    assert_ne!(whole["choices"][0]["text"], whole["choices"][1]["text"]);
}

#[test]
fn stop_sequences_end_answers_and_stay_outside() {
    let server = server();
    // Letters only: of bytes that make no letter there is no text to stop at.
    let letters: Value = (32..127).map(|byte| (byte.to_string(), json!(100))).collect();
    let asked = json!({"temperature": 0, "max_tokens": 30, "logit_bias": letters});
    let plain = complete(&server, asked.clone());
    let text = plain["choices"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(text.len(), 30, "{text:?}");
    let stop: String = text.chars().skip(4).take(2).collect();
    let before = text.split(&stop).next().unwrap();
    let mut asked = asked;
    asked["stop"] = json!([stop]);
    let stopped = complete(&server, asked);
    assert_eq!(stopped["choices"][0]["text"], before);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
}

#[test]
fn the_model_may_end_its_answer() {
    let server = server();
    let answer = complete(&server, json!({"logit_bias": {"256": 100}}));
    assert_eq!(
        (ids(&answer), &answer["choices"][0]["finish_reason"]),
        (vec![256], &json!("stop"))
    );
    assert_eq!(answer["choices"][0]["text"], "");
}

#[test]
fn an_honest_answer_scores_without_margins() {
    let server = server();
    for parameters in [
        json!({"seed": 11}),
        json!({"seed": 12, "temperature": 0}),
        json!({"muster_seed": "ab".repeat(32), "temperature": 0.8, "top_p": 0.9, "top_k": 40, "frequency_penalty": 0.5, "logit_bias": {"65": 2.5}}),
    ] {
        let mut asked = parameters.clone();
        asked["max_tokens"] = json!(60);
        if asked.get("muster_seed").is_some() {
            asked["seed"] = Value::Null;
        }
        let answer = complete(&server, asked);
        let mut body = parameters.clone();
        body["prompt_token_ids"] = answer["choices"][0]["prompt_token_ids"].clone();
        body["token_ids"] = answer["choices"][0]["token_ids"].clone();
        body["top_likely"] = json!(2);
        let (status, scores) = server.post("/v1/score", &body).unwrap();
        assert_eq!(status, 200, "{scores}");
        let tokens = scores["tokens"].as_array().unwrap();
        assert_eq!(tokens.len(), ids(&answer).len());
        for (i, token) in tokens.iter().enumerate() {
            assert!(token["margin"].as_f64().unwrap() < 0.01, "{i}: {token}");
            let said = answer["choices"][0]["logprobs"]["token_logprobs"][i]
                .as_f64()
                .unwrap();
            assert!((token["logprob"].as_f64().unwrap() - said).abs() < 1e-3);
        }
        assert_eq!(scores["ends"][0]["token_id"], 256);
        // Another seed would not have chosen these.
        let mut other = body.clone();
        other["seed"] = json!(99);
        other.as_object_mut().unwrap().remove("muster_seed");
        if parameters.get("temperature") != Some(&json!(0)) {
            let (_, scores) = server.post("/v1/score", &other).unwrap();
            let off = scores["tokens"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|token| token["margin"].as_f64().unwrap_or(16.0) > 0.5);
            assert!(off.count() > 20);
        }
    }
}

#[test]
fn a_known_beginning_is_not_computed_again() {
    let server = Server::start(&["--threads", "1"]).unwrap();
    let prompt: Vec<u64> = (0..100).map(|i| i * 7 % 256).collect();
    let of = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let first = complete(&server, json!({"prompt": prompt}));
    assert_eq!(of(&first), 0);
    let second = complete(&server, json!({"prompt": prompt}));
    assert_eq!(of(&second), 99);
    assert_eq!(ids(&first), ids(&second));
    let branch = [&prompt[..50], &[1, 2, 3]].concat();
    let third = complete(&server, json!({"prompt": branch}));
    assert_eq!(of(&third), 50);
}

#[test]
fn thirty_texts_go_on_together_and_a_slow_reader_holds_up_nobody() {
    let server = Server::start(&["--threads", "1", "--streams", "32"]).unwrap();
    // So much data about each token that it does not fit into what lies between us: these stay open until they
    // are read.
    let body = |seed: u64| {
        json!({
            "messages": [{"role": "user", "content": seed.to_string()}], "max_tokens": 200, "seed": seed, "stream": true,
            "logprobs": true, "top_logprobs": 20, "return_token_ids": true, "logit_bias": {"256": -100},
        })
    };
    let slow: Vec<_> = (0..30)
        .map(|seed| server.send("/v1/chat/completions", &body(seed)).unwrap())
        .collect();
    let quick = complete(&server, json!({"max_tokens": 40, "logit_bias": {"256": -100}}));
    assert_eq!(ids(&quick).len(), 40);
    assert!(server.open().unwrap() > 0, "nobody has read");
    for (seed, stream) in (0_u64..).zip(slow) {
        let (status, text) = read(stream).unwrap();
        assert_eq!(status, 200);
        let mut said = Vec::new();
        for event in text
            .split("\n\n")
            .filter_map(|event| event.strip_prefix("data: {"))
        {
            let event: Value = serde_json::from_str(&format!("{{{event}")).unwrap();
            if let Some(tokens) = event["choices"][0]["token_ids"].as_array() {
                said.extend(tokens.iter().cloned());
            }
        }
        assert_eq!(said.len(), 200);
        // The plain template, in a vocabulary of bytes.
        let prompt: Vec<u32> = format!("user: {seed}\n\nassistant:")
            .bytes()
            .map(u32::from)
            .collect();
        let judged = json!({
            "prompt_token_ids": prompt, "token_ids": said, "seed": seed, "logit_bias": {"256": -100},
        });
        let (_, scores) = server.post("/v1/score", &judged).unwrap();
        let far = |token: &&Value| token["margin"].as_f64().unwrap() >= 0.01;
        assert_eq!(scores["tokens"].as_array().unwrap().iter().find(far), None);
    }
    server.idle().unwrap();
}

#[test]
fn a_port_is_served_and_other_weights_than_expected_are_not() {
    let folder = crate::support::folder().unwrap();
    let program = || {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_muster-llm"));
        program
            .args(["serve", "--threads", "1", "--model"])
            .arg(folder.path());
        program
    };
    let refused = program().args(["--expect", &"0".repeat(64)]).output().unwrap();
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let id = said.split("the model is ").nth(1).unwrap().get(..64).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .unwrap()
        .port();
    let mut child = program()
        .args(["--expect", id, "--port", &port.to_string()])
        .spawn()
        .unwrap();
    let answer = wait_for("the port answers", || {
        let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) else {
            return Ok(None);
        };
        let mut answer = String::new();
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
        stream.read_to_string(&mut answer)?;
        Ok(Some(answer))
    })
    .unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains(id),
        "{answer}"
    );
}

#[test]
fn a_client_that_goes_is_forgotten() {
    let server = Server::start(&["--threads", "1", "--streams", "2", "--waiting", "4"]).unwrap();
    for stream in [true, false] {
        let body = json!({"prompt": "x", "max_tokens": CONTEXT - 1, "stream": stream, "n": 2, "logit_bias": {"256": -100}});
        let connections: Vec<_> = (0..2)
            .map(|_| server.send("/v1/completions", &body).unwrap())
            .collect();
        drop(connections);
        server.idle().unwrap();
    }
    assert_eq!(complete(&server, json!({}))["usage"]["completion_tokens"], 12);
}

#[test]
fn senseless_requests_are_refused_with_openais_errors() {
    let server = server();
    let over = json!({"prompt": vec![1; CONTEXT], "max_tokens": 1});
    assert_eq!(
        error(&server, "/v1/completions", &over),
        (400, json!("context_length_exceeded"))
    );
    let over = json!({"messages": [{"role": "user", "content": "x".repeat(CONTEXT)}]});
    assert_eq!(
        error(&server, "/v1/chat/completions", &over),
        (400, json!("context_length_exceeded"))
    );
    let over = json!({"prompt_token_ids": vec![1; CONTEXT], "token_ids": [1]});
    assert_eq!(
        error(&server, "/v1/score", &over),
        (400, json!("context_length_exceeded"))
    );
    let body = |changes: Value| {
        let mut body = json!({"prompt": "x"});
        body.as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        body
    };
    for changes in [
        json!({"temperature": -1}),
        json!({"temperature": 1e308}),
        json!({"top_p": 2}),
        json!({"top_k": -7}),
        json!({"n": 0}),
        json!({"n": 1_000_000}),
        json!({"max_tokens": 0}),
        json!({"logprobs": 1000}),
        json!({"stop": vec!["a"; 100]}),
        json!({"stop": ""}),
        json!({"logit_bias": {"99999999": 1}}),
        json!({"logit_bias": {"x": 1}}),
        json!({"logit_bias": {"1": 1e9}}),
        json!({"presence_penalty": 3}),
        json!({"echo": true}),
        json!({"best_of": 5}),
        json!({"prompt": [VOCABULARY]}),
        json!({"muster_seed": "zz"}),
        json!({"suffix": "y"}),
        json!({"min_p": -0.1}),
    ] {
        assert_eq!(
            error(&server, "/v1/completions", &body(changes.clone())),
            (400, json!("invalid_value")),
            "{changes}"
        );
    }
    for wrong in [
        json!({}),
        json!([1]),
        json!({"prompt": {"a": 1}}),
        json!({"prompt": "x", "n": -1}),
        json!({"prompt": "x", "seed": "y"}),
    ] {
        assert_eq!(error(&server, "/v1/completions", &wrong).0, 400, "{wrong}");
    }
    let chat = |message: Value| json!({"messages": [message]});
    for message in [
        json!({"role": "wizard", "content": "x"}),
        json!({"role": "user", "content": [{"type": "image_url"}]}),
    ] {
        assert_eq!(
            error(&server, "/v1/chat/completions", &chat(message)),
            (400, json!("invalid_value"))
        );
    }
    assert_eq!(
        error(&server, "/v1/completions", &body(json!({"model": "gpt-9"}))),
        (404, json!("model_not_found"))
    );
    assert_eq!(error(&server, "/v1/nothing", &json!({})).0, 404);
    assert_eq!(server.get("/v1/completions").unwrap().0, 405);
    for wrong in [
        json!({"prompt_token_ids": [1], "token_ids": []}),
        json!({"prompt_token_ids": [1], "token_ids": [VOCABULARY]}),
    ] {
        assert_eq!(error(&server, "/v1/score", &wrong), (400, json!("invalid_value")));
    }
    let long = json!({"prompt": "x".repeat(2 << 20)});
    assert_eq!(
        error(&server, "/v1/completions", &long),
        (413, json!("request_too_large"))
    );
}

#[test]
fn models_are_listed_with_their_digest() {
    let server = server();
    let (_, list) = server.get("/v1/models").unwrap();
    assert_eq!(list["data"][0]["id"], "test");
    assert_eq!(list["data"][0]["digest"].as_str().unwrap().len(), 64);
    assert_eq!(server.get("/v1/models/test").unwrap().0, 200);
    assert_eq!(server.get("/v1/models/other").unwrap().0, 404);
}

#[test]
fn a_thousand_connections_are_borne() {
    let server = Server::start(&[
        "--threads",
        "1",
        "--connections",
        "1100",
        "--waiting",
        "64",
        "--streams",
        "8",
    ])
    .unwrap();
    let before = server.memory().unwrap();
    let mut idle = Vec::new();
    for _ in 0..500 {
        let mut stream = server.connect().unwrap();
        stream
            .write_all(b"POST /v1/completions HTTP/1.1\r\nhost")
            .unwrap();
        idle.push(stream);
    }
    let body = json!({"prompt": "x", "max_tokens": 4});
    let asking: Vec<_> = (0..500)
        .map(|_| server.send("/v1/completions", &body).unwrap())
        .collect();
    let (mut answered, mut refused) = (0, 0);
    for stream in asking {
        let (status, text) = read(stream).unwrap();
        match status {
            200 => answered += 1,
            503 => {
                assert!(text.contains("engine_full"), "{text}");
                refused += 1;
            }
            other => panic!("{other}: {text}"),
        }
    }
    assert_eq!(answered + refused, 500);
    assert!(answered >= 64, "{answered} answered");
    let grown = server.memory().unwrap().saturating_sub(before);
    assert!(grown < 200 << 10, "{grown} KiB for 1,000 connections");
    drop(idle);
    assert_eq!(complete(&server, json!({}))["usage"]["completion_tokens"], 12);
}

#[test]
fn connections_beyond_the_limit_wait() {
    let server = Server::start(&["--threads", "1", "--connections", "2"]).unwrap();
    let first = server.connect().unwrap();
    let second = server.connect().unwrap();
    let mut third = server.connect().unwrap();
    third
        .write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .unwrap();
    let moment = Some(std::time::Duration::from_millis(200));
    third.set_read_timeout(moment).unwrap(); // bounds: no answer may come within it
    assert!(third.read(&mut [0; 1]).is_err(), "it waits");
    drop((first, second));
    assert_eq!(read(third).unwrap().0, 200);
}

#[test]
fn a_score_names_the_sampler_that_chose() {
    let server = server();
    let answer = complete(&server, json!({"max_tokens": 40}));
    let choice = &answer["choices"][0];
    let asked = |changes: Value| {
        let mut body = json!({
            "prompt_token_ids": choice["prompt_token_ids"], "token_ids": choice["token_ids"], "seed": 7,
        });
        body.as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        body
    };
    let off = |changes: Value| {
        let (status, scores) = server.post("/v1/score", &asked(changes)).unwrap();
        assert_eq!(status, 200, "{scores}");
        let tokens = scores["tokens"].as_array().unwrap();
        tokens
            .iter()
            .filter(|token| token["margin"] != json!(0.0))
            .count()
    };
    assert_eq!(off(json!({})), 0);
    assert_eq!(off(json!({"sampler": "muster"})), 0);
    let (_, models) = server.get("/v1/models").unwrap();
    for sampler in ["muster", "llama.cpp", "vllm"] {
        let version = &models["data"][0]["samplers"][sampler];
        assert!(version.is_string(), "{models}");
        off(json!({"sampler": sampler, "sampler_version": version}));
    }
    // The same number, drawn by other engines, would have chosen other tokens.
    assert_eq!(
        off(json!({"sampler": "unknown"})),
        choice["token_ids"].as_array().unwrap().len()
    );
    assert!(off(json!({"sampler": "vllm"})) > 10);
    assert!(off(json!({"sampler": "llama.cpp"})) > 10);
    assert_eq!(
        off(json!({"sampler": "llama.cpp", "temperature": 0})),
        off(json!({"temperature": 0}))
    );
    let (_, unseeded) = server
        .post("/v1/score", &asked(json!({"sampler": "llama.cpp", "seed": null})))
        .unwrap();
    assert!(
        unseeded["tokens"][0].get("margin").is_none(),
        "without a seed there is no margin"
    );
    for refused in [
        json!({"sampler": "other"}),
        json!({"sampler": "other", "seed": null}),
        json!({"sampler": "llama.cpp", "seed": -1}),
        json!({"sampler": "llama.cpp", "frequency_penalty": 0.5}),
        json!({"sampler": "vllm", "choice": 1}),
        json!({"sampler": "llama.cpp", "sampler_version": "b1"}),
        json!({"sampler": "vllm", "sampler_version": "b11549"}),
        json!({"sampler_version": "0"}),
        json!({"sampler": "vllm", "muster_seed": "ab".repeat(32), "seed": null}),
    ] {
        let (status, _) = error(&server, "/v1/score", &asked(refused.clone()));
        assert_eq!(status, 400, "{refused}");
    }
}
