//! Answers of which only the text is known, written and scored by the real model.

use serde_json::{Value, json};

use crate::client::{Server, small_model};

const ANSWERS: u64 = 24;
const PROMPTS: [&str; 4] = [
    "The history of the",
    "When the rain had stopped, she",
    "fn main() {",
    "In the year of the flood there were",
];

fn engine(arguments: &[&str]) -> Server {
    Server::small(arguments).unwrap()
}

fn request(number: u64) -> Value {
    json!({
        "model": "test", "prompt": PROMPTS[(number % 4) as usize], "max_tokens": 64,
        "temperature": if number.is_multiple_of(2) { 1.0 } else { 0.3 },
    })
}

/// An answer: the request without a seed, the seed, the choice, and the ids that were sampled.
struct Answer {
    request: Value,
    seed: String,
    choice: Value,
    ids: Vec<u64>,
}

fn answer(server: &Server, path: &str, request: &Value, number: u64) -> Answer {
    let seed = format!("{number:064x}");
    let mut body = request.clone();
    body["muster_seed"] = json!(seed);
    body["return_token_ids"] = json!(true);
    let (status, answered) = server.post(path, &body).unwrap();
    assert_eq!(status, 200, "{answered}");
    let choice = answered["choices"][0].clone();
    let ids = choice["token_ids"].as_array().unwrap();
    Answer {
        request: request.clone(),
        seed,
        ids: ids.iter().map(|id| id.as_u64().unwrap()).collect(),
        choice,
    }
}

/// The scored tokens of the answer's text, and whether they are all of them.
fn retraced(reference: &Server, answer: &Answer) -> (Vec<Value>, bool) {
    let text = answer.choice["text"].as_str();
    let text = text.or(answer.choice["message"]["content"].as_str()).unwrap();
    let body = json!({
        "model": "test", "request": answer.request, "text": text, "muster_seed": answer.seed,
        "finish_reason": answer.choice["finish_reason"],
    });
    let (status, scores) = reference.post("/v1/score", &body).unwrap();
    if status == 400 && scores["error"]["param"] == "text" {
        return (Vec::new(), false);
    }
    assert_eq!(status, 200, "{scores}");
    let tokens = scores["tokens"].as_array().unwrap().clone();
    (tokens, scores["retraced"]["whole"] == true)
}

fn ids(tokens: &[Value]) -> Vec<u64> {
    tokens
        .iter()
        .map(|token| token["token_id"].as_u64().unwrap())
        .collect()
}

fn margin(token: &Value) -> f64 {
    token["margin"].as_f64().unwrap_or(99.0)
}

#[test]
fn a_text_gives_the_ids_that_were_sampled_where_its_own_tokenization_does_not() {
    let reference = engine(&[]);
    let file = small_model().join("tokenizer.json");
    let tokenizer = tokenizers::Tokenizer::from_file(file).unwrap();
    let mut alike = 0;
    for number in 0..ANSWERS {
        let answer = answer(&reference, "/v1/completions", &request(number), number);
        let (tokens, is_whole) = retraced(&reference, &answer);
        assert_eq!(ids(&tokens), answer.ids[..tokens.len()], "answer {number}");
        let text = answer.choice["text"].as_str().unwrap();
        if !text.contains('\u{FFFD}') {
            assert!(
                is_whole && tokens.len() == answer.ids.len(),
                "answer {number}: {text}"
            );
        }
        assert!(tokens.iter().all(|token| margin(token) == 0.0), "answer {number}");
        let encoded = tokenizer.encode(text, false).unwrap();
        let encoded: Vec<u64> = encoded.get_ids().iter().map(|id| u64::from(*id)).collect();
        alike += u64::from(encoded == answer.ids);
    }
    println!("{alike} of {ANSWERS} texts are tokenized again as they were sampled");
    assert!(alike < ANSWERS, "the texts are ambiguous");
}

#[test]
fn chats_ends_and_stop_sequences_are_told_as_far_as_they_are_known() {
    let reference = engine(&[]);
    let chat = json!({
        "model": "test", "max_tokens": 24, "temperature": 0.8,
        "messages": [{"role": "system", "content": "short"}, {"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    });
    let chatted = answer(&reference, "/v1/chat/completions", &chat, 5);
    let (tokens, _) = retraced(&reference, &chatted);
    assert!(tokens.len() > 4, "{}", chatted.choice);
    assert_eq!(ids(&tokens), chatted.ids[..tokens.len()]);
    // The model's own end is a token, too.
    let end = json!({"model": "test", "prompt": "a", "max_tokens": 9, "logit_bias": {"0": 100}});
    let ended = answer(&reference, "/v1/completions", &end, 6);
    assert_eq!(ended.choice["finish_reason"], "stop");
    let (tokens, is_whole) = retraced(&reference, &ended);
    assert_eq!((ids(&tokens), is_whole), (ended.ids, true));
    // A stop sequence cuts the last token's text, so the last tokens stay unknown.
    let stop = json!({"model": "test", "prompt": "The", "max_tokens": 64, "stop": ["e "]});
    for number in 0..8 {
        let stopped = answer(&reference, "/v1/completions", &stop, number);
        let (tokens, is_whole) = retraced(&reference, &stopped);
        assert_eq!(ids(&tokens), stopped.ids[..tokens.len()]);
        assert!(!is_whole, "{}", stopped.choice);
    }
}

#[test]
fn a_cheaper_engine_shows_and_honest_rounding_does_not() {
    let reference = engine(&[]);
    let mut off = Vec::new();
    for arguments in [
        ["--weights", "q4_0"].as_slice(),
        &["--weights", "bf16", "--rounding", "bf16"],
        &["--weights", "f16", "--rounding", "f16"],
    ] {
        let served = engine(arguments);
        let (mut scored, mut sampled, mut largest) = (0, 0, Vec::new());
        for number in 0..ANSWERS {
            let answer = answer(&served, "/v1/completions", &request(number), number);
            let (tokens, _) = retraced(&reference, &answer);
            scored += tokens.len();
            sampled += answer.ids.len();
            // All but the last are the engine's own, and of the last nothing larger than the engine's margin
            // is reported.
            let chosen = tokens.len().saturating_sub(1);
            assert_eq!(ids(&tokens)[..chosen], answer.ids[..chosen]);
            assert!(tokens[..chosen].iter().all(|token| margin(token) == 0.0));
            largest.push(tokens.last().map_or(0.0, margin));
        }
        let above = largest.iter().filter(|margin| **margin > 0.05).count();
        println!(
            "{arguments:?}: {scored} of {sampled} tokens scored, {above} of {ANSWERS} answers off by 0.05 nats"
        );
        off.push((above, largest.into_iter().fold(0.0, f64::max)));
    }
    assert!(off[0].0 > 12, "{off:?}");
    assert!(off[1].1 < 0.3 && off[2].1 < 0.3, "{off:?}");
}

#[test]
fn a_text_without_a_seed_of_several_answers_or_of_another_tokenizer_is_refused() {
    let reference = engine(&[]);
    let asked = |request: Value, text: &str, seed: Option<String>| {
        let body = json!({"request": request, "text": text, "muster_seed": seed});
        let (status, answer) = reference.post("/v1/score", &body).unwrap();
        (
            status,
            answer["error"]["param"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let seed = || Some("07".repeat(32));
    let prompt = || json!({"prompt": "a", "max_tokens": 3});
    assert_eq!(asked(prompt(), "text", None), (400, "muster_seed".to_owned()));
    assert_eq!(
        asked(prompt(), "text", Some("07".to_owned())),
        (400, "muster_seed".to_owned())
    );
    assert_eq!(
        asked(json!({"prompt": "a", "n": 2}), "text", seed()),
        (400, "request".to_owned())
    );
    assert_eq!(asked(prompt(), "\u{FFFD}", seed()), (400, "text".to_owned()));
    assert_eq!(asked(prompt(), "", seed()), (400, "text".to_owned()));
    assert_eq!(
        asked(json!({"messages": []}), "text", seed()),
        (400, "messages".to_owned())
    );
    let long = json!({"prompt": "word ".repeat(40_000)});
    let body = json!({"request": long, "text": "text", "muster_seed": seed()});
    let (status, answer) = reference.post("/v1/score", &body).unwrap();
    assert_eq!(
        (status, &answer["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
}

/// Answers of llama.cpp's server under its own seeds, as `tests/python/llama_cpp_choices.py` had them written.
fn of_llama_cpp() -> Vec<Value> {
    serde_json::from_str(include_str!("../vectors/llama_cpp.json")).unwrap()
}

#[test]
fn a_text_of_llama_cpp_gives_the_ids_that_its_sampler_chose() {
    let reference = engine(&[]);
    let file = small_model().join("tokenizer.json");
    let tokenizer = tokenizers::Tokenizer::from_file(file).unwrap();
    let (mut told, mut sampled, mut off, mut under_another) = (0, 0, 0, 0);
    for row in of_llama_cpp() {
        let chosen: Vec<u32> = serde_json::from_value(row["tokens"].clone()).unwrap();
        let text = tokenizer.decode(&chosen, false).unwrap();
        let scored = |seed: Value| {
            let mut request = json!({"max_tokens": chosen.len(), "logit_bias": {"0": -100}, "seed": seed});
            for name in ["prompt", "temperature", "top_k", "top_p", "min_p"] {
                request[name] = row[name].clone();
            }
            let body = json!({
                "request": request, "text": text, "finish_reason": "length", "sampler": "llama.cpp",
                "sampler_version": "b11549",
            });
            let (status, scores) = reference.post("/v1/score", &body).unwrap();
            assert_eq!(status, 200, "{scores}");
            scores["tokens"].as_array().unwrap().clone()
        };
        let tokens = scored(row["seed"].clone());
        let all_but_last = tokens.len() - 1;
        let expected: Vec<u64> = chosen.iter().map(|id| u64::from(*id)).collect();
        assert_eq!(ids(&tokens)[..all_but_last], expected[..all_but_last], "{row}");
        told += tokens.len();
        sampled += chosen.len();
        off += tokens.iter().filter(|token| margin(token) > 0.0).count();
        under_another += scored(json!(5_000))
            .iter()
            .filter(|token| margin(token) > 0.0)
            .count();
        // Without a seed the text is tokenized, and no margins are reported.
        let unseeded = scored(Value::Null);
        assert!(unseeded.iter().all(|token| token.get("margin").is_none()));
        assert!(
            unseeded
                .iter()
                .all(|token| token["logprob"].as_f64().unwrap() <= 0.0)
        );
    }
    println!("{told} of {sampled} tokens told, {off} off, {under_another} answers off under another seed");
    assert!(
        told * 10 > sampled * 9 && off <= 4,
        "{told} of {sampled}, {off} off"
    );
    assert!(under_another >= 30, "{under_another} of 36 under another seed");
}

#[test]
fn a_text_of_another_engine_is_scored_by_that_engines_seed_and_version_alone() {
    let reference = engine(&[]);
    let param = |changes: Value| {
        let mut body = json!({"request": {"prompt": "a", "max_tokens": 3, "seed": 1}, "text": "text"});
        body.as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        let (status, answer) = reference.post("/v1/score", &body).unwrap();
        (
            status,
            answer["error"]["param"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let refused = |name: &str| (400, name.to_owned());
    assert_eq!(param(json!({"sampler": "other"})), refused("sampler"));
    assert_eq!(
        param(json!({"sampler": "llama.cpp", "sampler_version": "b1"})),
        refused("sampler_version")
    );
    let seeded_by_the_seal = json!({"sampler": "vllm", "muster_seed": "07".repeat(32)});
    assert_eq!(param(seeded_by_the_seal), refused("muster_seed"));
    let large = json!({"sampler": "llama.cpp", "request": {"prompt": "a", "seed": 1_u64 << 32}});
    assert_eq!(param(large), refused("seed"));
    let penalty =
        json!({"sampler": "llama.cpp", "request": {"prompt": "a", "seed": 1, "presence_penalty": 1}});
    assert_eq!(param(penalty), refused("sampler"));
}
