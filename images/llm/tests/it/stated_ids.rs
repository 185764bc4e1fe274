//! Ids that an answer states are compared with its request and its text before they are scored.

use serde_json::{Value, json};

use crate::client::Server;

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";
/// The honest engines of the calibration.
const MACHINES: [&[&str]; 3] = [&[], &["--rounding", "f16"], &["--rounding", "bf16"]];

fn engine(arguments: &[&str]) -> Server {
    Server::small(arguments).unwrap()
}

/// An answer that states its ids, as its client put it together.
#[derive(Clone, Debug)]
struct Stated {
    request: Value,
    prompt: Value,
    ids: Vec<Value>,
    text: String,
    finish_reason: Value,
}

fn answer(server: &Server, path: &str, request: &Value) -> Stated {
    let mut request = request.clone();
    request["return_token_ids"] = json!(true);
    let events = match request["stream"] == true {
        true => server.events(path, &request).unwrap(),
        false => {
            let (status, whole) = server.post(path, &request).unwrap();
            assert_eq!(status, 200, "{whole}");
            vec![whole]
        }
    };
    let mut stated = Stated {
        request,
        prompt: Value::Null,
        ids: Vec::new(),
        text: String::new(),
        finish_reason: Value::Null,
    };
    for event in events {
        let choice = &event["choices"][0];
        let texts = [
            &choice["text"],
            &choice["delta"]["content"],
            &choice["message"]["content"],
        ];
        stated.text.extend(texts.into_iter().filter_map(Value::as_str));
        stated
            .ids
            .extend(choice["token_ids"].as_array().cloned().unwrap_or_default());
        for (slot, given) in [
            (&mut stated.prompt, &choice["prompt_token_ids"]),
            (&mut stated.finish_reason, &choice["finish_reason"]),
        ] {
            if !given.is_null() {
                *slot = given.clone();
            }
        }
    }
    stated
}

/// The body of a request to score the answer; without the request and the text nothing is compared.
fn score_request(stated: &Stated, is_compared: bool) -> Value {
    let mut body = json!({
        "model": "test", "prompt_token_ids": stated.prompt, "token_ids": stated.ids,
    });
    for name in ["temperature", "seed", "logit_bias", "top_p"] {
        if !stated.request[name].is_null() {
            body[name] = stated.request[name].clone();
        }
    }
    if is_compared {
        body["request"] = stated.request.clone();
        body["text"] = json!(stated.text);
        body["finish_reason"] = stated.finish_reason.clone();
    }
    body
}

/// The code of the refusal; empty for an answer that is scored.
fn code(reference: &Server, stated: &Stated) -> String {
    let (status, scores) = reference.post("/v1/score", &score_request(stated, true)).unwrap();
    match status {
        200 => {
            assert_eq!(scores["compared"], true, "{scores}");
            assert_eq!(scores["tokens"].as_array().unwrap().len(), stated.ids.len());
            String::new()
        }
        _ => scores["error"]["code"].as_str().unwrap().to_owned(),
    }
}

/// Requests of every kind that an own prompt or a client may be, with their paths.
fn requests() -> Vec<(&'static str, Value)> {
    let messages = json!([
        {"role": "developer", "content": "short"},
        {"role": "user", "content": [{"type": "text", "text": "Tell me of \u{e9}t\u{e9} \u{1f600}"}]},
    ]);
    let mut all = Vec::new();
    for seed in 0..3 {
        for stream in [false, true] {
            let common = json!({"model": "test", "seed": seed, "stream": stream});
            let with = |more: Value| {
                let mut request = common.clone();
                request
                    .as_object_mut()
                    .unwrap()
                    .extend(more.as_object().unwrap().clone());
                request
            };
            all.extend([
                (
                    CHAT,
                    with(json!({"messages": messages, "max_tokens": 24, "temperature": 0.7})),
                ),
                (
                    CHAT,
                    with(json!({"messages": messages, "max_completion_tokens": 1})),
                ),
                (
                    COMPLETION,
                    with(json!({"prompt": "The history of the", "max_tokens": 40, "stop": ["e ", "zz"]})),
                ),
                (
                    COMPLETION,
                    with(json!({"prompt": "In the year", "max_tokens": 32, "stop": "and"})),
                ),
                // Letters that stay unfinished, in the middle and at the end. The trained model hardly ever writes
                // bytes of letters beyond ASCII by itself: 130 and 104 are the bytes C2 and A7.
                (
                    COMPLETION,
                    with(json!({
                        "prompt": "\u{e9}", "max_tokens": 30, "temperature": 2.0,
                        "logit_bias": {"130": 10, "104": 10},
                    })),
                ),
                (
                    COMPLETION,
                    with(json!({"prompt": "\u{e9}", "max_tokens": 3, "logit_bias": {"130": 100}})),
                ),
                (
                    COMPLETION,
                    with(json!({"prompt": [70, 71, 72], "max_tokens": 9, "temperature": 0.0})),
                ),
                // The model ends the answer itself.
                (
                    COMPLETION,
                    with(json!({"prompt": ["a"], "max_tokens": 9, "logit_bias": {"0": 100}})),
                ),
                (
                    CHAT,
                    with(json!({"messages": messages, "max_tokens": 1, "logit_bias": {"0": 100}})),
                ),
            ]);
        }
    }
    all
}

#[test]
fn honest_answers_of_every_kind_and_machine_pass_the_comparison() {
    let reference = engine(&[]);
    let mut ends = std::collections::BTreeSet::new();
    let (mut broken_within, mut broken_at_end) = (0, 0);
    for machine in MACHINES {
        let served = engine(machine);
        for (path, request) in requests() {
            let stated = answer(&served, path, &request);
            assert_eq!(code(&reference, &stated), "", "{machine:?} {stated:?}");
            ends.insert(stated.finish_reason.to_string());
            let before_end = stated.text.trim_end_matches('\u{FFFD}');
            broken_within += usize::from(before_end.contains('\u{FFFD}'));
            broken_at_end += usize::from(stated.text.ends_with('\u{FFFD}'));
        }
    }
    assert_eq!(ends.len(), 2, "{ends:?}");
    assert!(
        broken_within > 3 && broken_at_end > 3,
        "letters were to stay unfinished: {broken_within} {broken_at_end}"
    );
}

#[test]
fn other_prompts_texts_and_ends_are_refused_each_with_its_code() {
    let reference = engine(&[]);
    let prompt =
        json!({"model": "test", "prompt": "The history of the", "max_tokens": 24, "seed": 3, "stream": true});
    let honest = answer(&reference, COMPLETION, &prompt);
    assert_eq!(honest.finish_reason, "length");
    let altered = |alter: &dyn Fn(&mut Stated)| {
        let mut stated = honest.clone();
        alter(&mut stated);
        code(&reference, &stated)
    };
    assert_eq!(altered(&|_| {}), "");
    assert_eq!(altered(&|stated| stated.prompt = json!([5])), "prompt_ids_differ");
    assert_eq!(
        altered(&|stated| stated.prompt = json!([9_999_999])),
        "prompt_ids_differ"
    );
    assert_eq!(altered(&|stated| stated.prompt = json!([])), "prompt_ids_differ");
    assert_eq!(altered(&|stated| stated.text.push('x')), "text_differs");
    assert_eq!(
        altered(&|stated| {
            let _ = stated.text.pop();
        }),
        "text_differs"
    );
    assert_eq!(altered(&|stated| stated.text.clear()), "text_differs");
    assert_eq!(
        altered(&|stated| stated.ids[3] = json!(9_999_999)),
        "text_differs"
    );
    assert_eq!(altered(&|stated| stated.ids.swap(0, 1)), "text_differs");
    // One token is stated of an answer that has more.
    assert_eq!(altered(&|stated| stated.ids.truncate(1)), "end_differs");
    assert_eq!(altered(&|stated| stated.ids.push(json!(70))), "end_differs");
    assert_eq!(
        altered(&|stated| stated.finish_reason = json!("stop")),
        "end_differs"
    );
    assert_eq!(
        altered(&|stated| {
            stated.ids.truncate(1);
            stated.finish_reason = Value::Null;
        }),
        "text_differs",
        "an answer that was broken off"
    );
    let mut ended = prompt.clone();
    ended["logit_bias"] = json!({"0": 100});
    let mut ended = answer(&reference, COMPLETION, &ended);
    ended.ids.push(json!(70));
    assert_eq!(code(&reference, &ended), "end_differs", "a token behind the end");
}

#[test]
fn text_held_back_by_the_stream_is_no_part_of_a_broken_answer() {
    let reference = engine(&[]);
    let request = json!({
        "model": "test", "prompt": "The history of the", "max_tokens": 24, "seed": 3, "stream": true,
        "stop": ["\u{1f600}"],
    });
    let mut stated = answer(&reference, COMPLETION, &request);
    stated.finish_reason = Value::Null;
    let whole = stated.text.clone();
    assert_eq!(code(&reference, &stated), "");
    // As if the client had gone after some events: ids and text stop together.
    stated.text = whole.chars().take(3).collect();
    assert_eq!(code(&reference, &stated), "text_differs");
}

#[test]
fn only_an_answer_alone_is_compared() {
    let reference = engine(&[]);
    let request = json!({"model": "test", "prompt": "a", "max_tokens": 4, "seed": 3});
    let honest = answer(&reference, COMPLETION, &request);
    let param = |alter: &dyn Fn(&mut Value)| {
        let mut body = score_request(&honest, true);
        alter(&mut body);
        let (status, answer) = reference.post("/v1/score", &body).unwrap();
        assert_eq!(status, 400, "{answer}");
        answer["error"]["param"].clone()
    };
    assert_eq!(param(&|body| body["request"]["n"] = json!(2)), "request");
    assert_eq!(
        param(&|body| body["request"]["prompt"] = json!(["a", "b"])),
        "request"
    );
    assert_eq!(
        param(&|body| drop(body.as_object_mut().unwrap().remove("request"))),
        "request"
    );
    // A text that nobody knows is not compared, the prompt is.
    let mut body = score_request(&honest, true);
    body.as_object_mut().unwrap().remove("text");
    assert_eq!(reference.post("/v1/score", &body).unwrap().0, 200);
    body["prompt_token_ids"] = json!([5]);
    let (_, refused) = reference.post("/v1/score", &body).unwrap();
    assert_eq!(refused["error"]["code"], "prompt_ids_differ");
    let (_, plain) = reference
        .post("/v1/score", &score_request(&honest, false))
        .unwrap();
    assert!(plain.get("compared").is_none() && plain["tokens"].is_array());
}

#[test]
fn ids_of_an_honest_answer_beside_a_cheaper_text_are_found() {
    let reference = engine(&[]);
    for (cheat, expected) in [
        ("other-text", "text_differs"),
        ("other-prompt", "prompt_ids_differ"),
    ] {
        let cheating = Server::cheating_small(&["--cheat", cheat]).unwrap();
        let mut found = 0;
        for seed in 0..6 {
            for stream in [false, true] {
                let messages = json!([{"role": "user", "content": "Describe the moon."}]);
                let request = json!({
                    "model": "test", "messages": messages, "max_tokens": 48, "seed": seed, "stream": stream,
                });
                let stated = answer(&cheating, CHAT, &request);
                // Without the comparison nothing shows: every token is the honest engine's choice.
                let (status, scores) = reference
                    .post("/v1/score", &score_request(&stated, false))
                    .unwrap();
                assert_eq!(status, 200, "{scores}");
                let tokens = scores["tokens"].as_array().unwrap();
                assert!(
                    tokens.iter().all(|token| token["margin"] == json!(0.0)),
                    "{scores}"
                );
                found += usize::from(code(&reference, &stated) == expected);
            }
        }
        // Four bits may write the very same text.
        assert!(found >= 10, "{cheat}: {found} of 12");
    }
}
