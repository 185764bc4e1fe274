//! The request to a reference about an answer, and how its reply is read. Pure, over bytes of strangers.

use std::fmt;

use muster_audit::{FalseIds, MAX_TOKENS, Margin, TokenScore, UnusableReason};
use muster_gateway::store::AnswerText;
use muster_openai::without_mark;
use muster_response_proof::ResponseProof;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::answer_text::{AnswerIds, FoundIds, ShownText, find_ids, is_chat, read_text};
use crate::reference::sampler_fields::sampler_fields;
use crate::reference::scoring_engine::Sampling;

/// The most bytes of request and text together that a reference is asked to read for one answer.
const MAX_TEXT_REQUEST: usize = 768 * 1024;
/// The most bytes of a request to a reference.
const MAX_REQUEST: usize = 1024 * 1024;
/// No vocabulary has longer tokens, in bytes.
const MAX_TOKEN_BYTES: usize = 1024;
/// No template of chats adds more tokens to a request.
const MAX_TEMPLATE_TOKENS: usize = 64 * 1024;
/// A request to a reference's `POST /v1/score` about one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScoreRequest {
    pub(crate) body: Vec<u8>,
    /// Whether the reference has to find the tokens in the answer's text.
    pub(crate) is_text: bool,
    /// Whether nobody knows the seed, so that the reply has no margins.
    pub(crate) is_unseeded: bool,
    /// Whether the reference has to compare the ids of the tokens with the request, and with the text if it is there.
    pub(crate) is_compared: bool,
}

/// The reason why an answer has no scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScoreFailure {
    /// Nobody can score it, which counts for the miner.
    Unusable(UnusableReason),
    /// The session signed false ids, which counts against the miner.
    FalseIds(FalseIds),
}

impl fmt::Display for ScoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(reason) => f.write_str(reason.explanation()),
            Self::FalseIds(falsehood) => write!(f, "the session signed false ids ({})", falsehood.name()),
        }
    }
}

impl From<UnusableReason> for ScoreFailure {
    fn from(reason: UnusableReason) -> Self {
        Self::Unusable(reason)
    }
}

/// The question to a reference about an answer: by its ids if its session signed any, and by its text otherwise.
///
/// # Errors
/// The reason why the answer has no scores.
pub(crate) fn ask_about(
    model: &str,
    proof: &ResponseProof,
    words: &AnswerText,
    sampling: &Sampling,
) -> Result<ScoreRequest, ScoreFailure> {
    match find_ids(proof, words)? {
        FoundIds::Signed(ids) => {
            let text = read_text(words, is_chat(proof)).filter(|text| text.is_readable);
            let text = text.ok_or(ScoreFailure::FalseIds(FalseIds::Text))?;
            score_request(model, proof, &words.request, &ids, Some(&text), sampling)
        }
        FoundIds::Unsigned => Ok(text_request(model, proof, words, sampling)?),
        FoundIds::Missing => Err(ScoreFailure::FalseIds(FalseIds::Response)),
    }
}

/// The body of a request to a reference's `POST /v1/score` about one answer to this request. A reference that is the
/// whitelisted image itself compares the ids with the request, and with the text if it is known. Another engine may
/// render a chat or spell tokens otherwise than the reference, so its ids are not compared.
///
/// # Errors
/// The reason why the answer has no scores.
pub(crate) fn score_request(
    model: &str,
    proof: &ResponseProof,
    request: &[u8],
    ids: &AnswerIds,
    text: Option<&ShownText>,
    sampling: &Sampling,
) -> Result<ScoreRequest, ScoreFailure> {
    let asked = read_request(proof, request)?;
    check_sizes(request, &asked, ids, text)?;
    let fields = sampler_fields(sampling, proof, &asked)?;
    let mut body = fields.parameters;
    body.extend(fields.beside);
    body.extend(fields.seed.map(|seed| ("seed".to_owned(), seed)));
    body.insert("model".to_owned(), model.into());
    body.insert("prompt_token_ids".to_owned(), json!(ids.prompt));
    body.insert("token_ids".to_owned(), json!(ids.output));
    let is_compared = *sampling == Sampling::Muster;
    if is_compared {
        body.insert("request".to_owned(), Value::Object(asked));
    }
    if let Some(text) = text.filter(|_| is_compared) {
        body.insert("text".to_owned(), text.text.as_str().into());
        body.insert("finish_reason".to_owned(), json!(text.finish_reason));
    }
    let body = serde_json::to_vec(&body).map_err(|_| UnusableReason::TruncatedBody)?;
    if body.len() > MAX_REQUEST {
        return Err(UnusableReason::BeyondContext.into());
    }
    Ok(ScoreRequest {
        body,
        is_text: false,
        is_unseeded: fields.is_unseeded,
        is_compared,
    })
}

/// Finds ids and texts that are longer than any engine makes them for the request. A reference would refuse them for
/// their size, which would count for the miner.
///
/// # Errors
/// They are false, or the whole is more than a reference is asked to read.
fn check_sizes(
    request: &[u8],
    asked: &Map<String, Value>,
    ids: &AnswerIds,
    text: Option<&ShownText>,
) -> Result<(), ScoreFailure> {
    let most = ["max_tokens", "max_completion_tokens"]
        .iter()
        .filter_map(|name| asked.get(*name)?.as_u64())
        .max();
    let count = u64::try_from(ids.output.len()).unwrap_or(u64::MAX);
    if most.is_some_and(|most| count > most) {
        return Err(ScoreFailure::FalseIds(FalseIds::End));
    }
    // A token of a prompt has at least a byte.
    if ids.prompt.len() > request.len().saturating_add(MAX_TEMPLATE_TOKENS) {
        return Err(ScoreFailure::FalseIds(FalseIds::Prompt));
    }
    let bytes = text.map_or(0, |text| text.text.len());
    if bytes > ids.output.len().saturating_mul(MAX_TOKEN_BYTES) {
        return Err(ScoreFailure::FalseIds(FalseIds::Text));
    }
    match request.len().saturating_add(bytes) > MAX_TEXT_REQUEST {
        true => Err(UnusableReason::BeyondContext.into()),
        false => Ok(()),
    }
}

/// The request about an answer of which only the text is known: the reference reads the prompt as the engine did, and
/// makes the engine's choices again by their seed.
///
/// # Errors
/// The reason why nobody can score the answer.
pub(crate) fn text_request(
    model: &str,
    proof: &ResponseProof,
    words: &AnswerText,
    sampling: &Sampling,
) -> Result<ScoreRequest, UnusableReason> {
    let mut asked = read_request(proof, &words.request)?;
    let answer = read_text(words, is_chat(proof)).filter(ShownText::is_plain);
    let answer = answer.ok_or(UnusableReason::NoTokenIds)?;
    if words.request.len().saturating_add(answer.text.len()) > MAX_TEXT_REQUEST {
        return Err(UnusableReason::BeyondContext);
    }
    let fields = sampler_fields(sampling, proof, &asked)?;
    let is_seeded = fields.seed.is_some() || fields.beside.contains_key("muster_seed");
    if !is_seeded && !fields.is_unseeded {
        // Without a seed nobody can know which tokens the text has.
        return Err(UnusableReason::NoTokenIds);
    }
    asked.extend(fields.parameters);
    if *sampling != Sampling::Muster && fields.is_unseeded {
        asked.remove("seed");
    }
    let mut body = fields.beside;
    if asked.get("muster_seed").is_some_and(|seed| !seed.is_null()) {
        // The request names it.
        body.remove("muster_seed");
    }
    body.insert("model".to_owned(), model.into());
    body.insert("request".to_owned(), Value::Object(asked));
    body.insert("text".to_owned(), answer.text.into());
    body.insert("finish_reason".to_owned(), json!(answer.finish_reason));
    let body = serde_json::to_vec(&body).map_err(|_| UnusableReason::TruncatedBody)?;
    Ok(ScoreRequest {
        body,
        is_text: true,
        is_unseeded: fields.is_unseeded,
        is_compared: false,
    })
}

/// The stored request, if it asks for one answer. A reference takes a request with messages for a chat's, so those of a
/// request at another path are left out, as its engine ignored them.
fn read_request(proof: &ResponseProof, request: &[u8]) -> Result<Map<String, Value>, UnusableReason> {
    let mut asked: Map<String, Value> =
        serde_json::from_slice(without_mark(request)).map_err(|_| UnusableReason::TruncatedBody)?;
    let ignored = if is_chat(proof) { "prompt" } else { "messages" };
    asked.shift_remove(ignored);
    if asked.get("n").is_some_and(|choices| *choices != json!(1)) {
        return Err(UnusableReason::NoTokenIds);
    }
    Ok(asked)
}

/// The scores of an answer whose tokens the reference found in its text.
///
/// # Errors
/// The reply is no score, or the text has a token that no engine with this tokenizer and prompt can have chosen.
pub(crate) fn check_text_scores(scores: Vec<TokenScore>) -> Result<Vec<TokenScore>, UnusableReason> {
    if scores.iter().any(|score| score.margin == Margin::Impossible) {
        return Err(UnusableReason::OtherTokenizer);
    }
    Ok(scores)
}

/// The scores in a reference's reply. Without a seed there is no margin: then the number of a token is how far −log p
/// lies above the entropy.
///
/// # Errors
/// The reply is no score of that number of tokens.
pub(crate) fn read_scores(reply: &[u8], is_unseeded: bool) -> Result<Vec<TokenScore>, UnusableReason> {
    #[derive(Deserialize)]
    struct Reply {
        tokens: Vec<Token>,
    }
    #[derive(Deserialize)]
    struct Token {
        entropy: f64,
        logprob: Option<f64>,
        margin: Option<Value>,
    }
    let reply: Reply = serde_json::from_slice(reply).map_err(|_| UnusableReason::ReferenceRefused)?;
    if reply.tokens.is_empty() || reply.tokens.len() > MAX_TOKENS {
        return Err(UnusableReason::ReferenceRefused);
    }
    let score = |token: &Token| match &token.margin {
        None if is_unseeded => {
            TokenScore::from_nats(Some((-token.logprob? - token.entropy).max(0.0)), token.entropy)
        }
        Some(_) if is_unseeded => None,
        Some(Value::Number(nats)) => TokenScore::from_nats(Some(nats.as_f64()?), token.entropy),
        Some(Value::String(said)) if said == "impossible" => TokenScore::from_nats(None, token.entropy),
        // Without a seed there is no margin.
        _ => None,
    };
    let scores: Option<Vec<TokenScore>> = reply.tokens.iter().map(score).collect();
    scores.ok_or(UnusableReason::ReferenceRefused)
}

#[cfg(test)]
mod tests {
    use muster_audit::{SamplerEngine, digest_of_ids};
    use muster_gateway::store::BodyForm;
    use muster_openai::{BodyKind, FieldBounds, FieldReader};
    use muster_response_proof::TokenFacts;
    use proptest::prelude::*;

    use super::*;

    use crate::reference::scoring_engine::SamplerSettings;
    use crate::testing::proof;

    fn request_about(proof: &ResponseProof, words: &AnswerText) -> Result<ScoreRequest, ScoreFailure> {
        ask_about("tiny", proof, words, &Sampling::Muster)
    }

    fn engine(engine: SamplerEngine, version: &str) -> Sampling {
        Sampling::Engine(SamplerSettings {
            engine,
            version: version.to_owned(),
            defaults: None,
        })
    }

    /// A proof of a session that signed these ids.
    fn signed(prompt: &[u32], output: &[u32]) -> ResponseProof {
        let count = |ids: &[u32]| u32::try_from(ids.len()).unwrap();
        let mut signed = proof(0);
        signed.tokens = Some(TokenFacts {
            prompt: digest_of_ids(prompt),
            prompt_count: count(prompt),
            output: digest_of_ids(output),
            output_count: count(output),
        });
        signed
    }

    /// The proof of `STREAM`.
    fn of_stream() -> ResponseProof {
        signed(&[5, 6], &[7, 8, 9])
    }

    fn falsehood(proof: &ResponseProof, request: &str, response: &str) -> FalseIds {
        match request_about(proof, &words(request, response)) {
            Err(ScoreFailure::FalseIds(falsehood)) => falsehood,
            other => panic!("{other:?}"),
        }
    }

    fn words(request: &str, response: &str) -> AnswerText {
        AnswerText {
            request: request.into(),
            response: response.into(),
            form: BodyForm::Whole,
            content_type: Some("text/event-stream".to_owned()),
        }
    }

    const STREAM: &str = concat!(
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"prompt_token_ids\":[5,6],\"token_ids\":[7]}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"},\"token_ids\":[8,9]}]}\n\n",
        "data: [DONE]\n\n",
    );

    fn asked(request: &str, response: &str) -> Result<Value, UnusableReason> {
        let proof = if response == STREAM { of_stream() } else { proof(0) };
        match request_about(&proof, &words(request, response)) {
            Ok(asked) => Ok(serde_json::from_slice(&asked.body).unwrap()),
            Err(ScoreFailure::Unusable(reason)) => Err(reason),
            Err(ScoreFailure::FalseIds(falsehood)) => panic!("{falsehood:?}"),
        }
    }

    /// The events of an answer with these deltas.
    fn stream(deltas: &[Value], finish: Option<&str>) -> String {
        let event =
            |delta: &Value| format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta}]}));
        let last = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]});
        let events: String = deltas.iter().map(event).collect();
        format!("{events}data: {last}\n\ndata: [DONE]\n\n")
    }

    #[test]
    fn the_reference_is_asked_with_the_ids_the_seed_the_request_and_the_text_of_the_answer() {
        let request = r#"{"messages":[],"temperature":0.3,"stream":true,"top_p":null}"#;
        let body = asked(request, STREAM).unwrap();
        assert_eq!(body["prompt_token_ids"], json!([5, 6]));
        assert_eq!(body["token_ids"], json!([7, 8, 9]));
        assert_eq!(
            (&body["temperature"], &body["model"]),
            (&json!(0.3), &json!("tiny"))
        );
        assert_eq!(body["muster_seed"].as_str().unwrap().len(), 64);
        assert!(
            body.get("stream").is_none() && body.get("messages").is_none() && body.get("top_p").is_none()
        );
        let sent: Value = serde_json::from_str(request).unwrap();
        assert_eq!((&body["request"], &body["text"]), (&sent, &json!("ab")));
        assert!(body["finish_reason"].is_null());
        let compared = request_about(&of_stream(), &words(request, STREAM)).unwrap();
        assert!(compared.is_compared && !compared.is_text);
    }

    #[test]
    fn a_seed_of_the_requests_own_goes_before_the_seals_as_in_the_engine() {
        let seeds = |request: &str| {
            let body = asked(request, STREAM).unwrap();
            (body["seed"].clone(), body["muster_seed"].clone())
        };
        assert_eq!(seeds(r#"{"seed":7}"#), (json!(7), Value::Null));
        let own = "5a".repeat(32);
        let request = json!({ "muster_seed": own }).to_string();
        assert_eq!(seeds(&request), (Value::Null, json!(own)));
        let of_seal = seeds(r#"{"seed":null,"muster_seed":null}"#);
        assert!(of_seal.0.is_null() && of_seal.1 != json!(own) && of_seal.1.is_string());
        // The same where the text alone is known: the reference reads the seed in the request.
        let text = stream(&[json!({"content": "a"})], None);
        let body = asked(&request, &text).unwrap();
        assert_eq!(
            (&body["request"]["muster_seed"], body.get("muster_seed")),
            (&json!(own), None)
        );
        let body = asked(r#"{"seed":null,"muster_seed":null}"#, &text).unwrap();
        assert_eq!(body["muster_seed"], of_seal.1, "a null is no seed");
    }

    #[test]
    fn the_request_is_shown_as_the_engine_of_its_path_read_it() {
        let both = r#"{"prompt":"p","messages":[{"role":"user","content":"m"}]}"#;
        let request = asked(both, STREAM).unwrap()["request"].clone();
        assert!(request.get("prompt").is_none() && request.get("messages").is_some());
        let mut completion = of_stream();
        completion.path = muster_response_proof::Text::new("/v1/completions").unwrap();
        let text = STREAM.replace("\"delta\":{\"content\":\"a\"}", "\"text\":\"a\"");
        let asked = request_about(&completion, &words(both, &text)).unwrap();
        let body: Value = serde_json::from_slice(&asked.body).unwrap();
        assert_eq!(body["request"], json!({"prompt": "p"}));
        assert_eq!(body["text"], "a", "the second event has no text of a completion");
    }

    #[test]
    fn an_answer_that_cannot_be_scored_has_a_reason() {
        let reason = |request, response| asked(request, response).unwrap_err();
        assert_eq!(
            reason("{}", "data: {\"choices\":[]}\n\n"),
            UnusableReason::NoTokenIds
        );
        assert_eq!(reason("{\"mess", STREAM), UnusableReason::TruncatedBody);
        assert_eq!(reason("{\"n\":2}", STREAM), UnusableReason::NoTokenIds);
        // The engine failed before its first token.
        let failed = "data: {\"choices\":[{\"prompt_token_ids\":[5]}]}\n\n";
        let failed = request_about(&signed(&[5], &[]), &words("{}", failed));
        assert_eq!(failed, Err(ScoreFailure::Unusable(UnusableReason::NoTokenIds)));
    }

    #[test]
    fn ids_count_only_if_the_session_signed_them() {
        let unsigned = request_about(&proof(0), &words("{}", STREAM)).unwrap();
        let body: Value = serde_json::from_slice(&unsigned.body).unwrap();
        assert!(unsigned.is_text && body.get("token_ids").is_none(), "{body}");
        assert_eq!(body["text"], "ab");
    }

    #[test]
    fn ids_that_the_response_does_not_have_are_false() {
        for other in [
            signed(&[5, 6], &[7, 8]),
            signed(&[5], &[7, 8, 9]),
            signed(&[5, 6], &[7, 8, 10]),
        ] {
            assert_eq!(falsehood(&other, "{}", STREAM), FalseIds::Response);
        }
        let mut miscounted = of_stream();
        if let Some(facts) = &mut miscounted.tokens {
            facts.output_count = 1;
        }
        assert_eq!(falsehood(&miscounted, "{}", STREAM), FalseIds::Response);
        let without = stream(&[json!({"content": "ab"})], None);
        assert_eq!(falsehood(&of_stream(), "{}", &without), FalseIds::Response);
    }

    #[test]
    fn ids_and_texts_that_no_engine_makes_so_long_are_false() {
        let short = r#"{"max_tokens":2}"#;
        assert_eq!(falsehood(&of_stream(), short, STREAM), FalseIds::End);
        let long = "x".repeat(4 * MAX_TOKEN_BYTES);
        let text = STREAM.replace("\"a\"", &format!("\"{long}\""));
        assert_eq!(falsehood(&of_stream(), "{}", &text), FalseIds::Text);
        let many = vec![1; MAX_TEMPLATE_TOKENS + 3];
        let list = serde_json::to_string(&many).unwrap();
        let prompt = STREAM.replace("[5,6]", &list);
        assert_eq!(
            falsehood(&signed(&many, &[7, 8, 9]), "{}", &prompt),
            FalseIds::Prompt
        );
        // A client may read what this program cannot.
        let hidden = format!("data: {{\"choices\":\n{STREAM}");
        assert_eq!(falsehood(&of_stream(), "{}", &hidden), FalseIds::Text);
    }

    #[test]
    fn an_answer_without_ids_is_asked_about_by_its_request_and_its_text() {
        let deltas = [
            json!({"role": "assistant", "content": "a "}),
            json!({"content": "b\u{e9}"}),
        ];
        let request = r#"{"messages":[{"role":"user","content":"well?"}],"temperature":0.3,"stream":true}"#;
        let body = asked(request, &stream(&deltas, Some("length"))).unwrap();
        let sent: Value = serde_json::from_str(request).unwrap();
        assert_eq!((&body["request"], &body["text"]), (&sent, &json!("a b\u{e9}")));
        assert_eq!(
            (&body["finish_reason"], &body["model"]),
            (&json!("length"), &json!("tiny"))
        );
        assert_eq!(body["muster_seed"].as_str().unwrap().len(), 64);
        let body = asked(r#"{"prompt":"a","seed":7}"#, &stream(&deltas, None)).unwrap();
        assert_eq!(
            (&body["request"]["seed"], body.get("muster_seed")),
            (&json!(7), None)
        );
        let whole = r#"{"choices":[{"message":{"content":"ab"},"finish_reason":"stop"}]}"#;
        let mut document = words("{}", whole);
        document.content_type = Some("application/json".to_owned());
        let asked = request_about(&proof(0), &document).unwrap();
        let body: Value = serde_json::from_slice(&asked.body).unwrap();
        assert!(asked.is_text);
        assert_eq!(
            (&body["text"], &body["finish_reason"]),
            (&json!("ab"), &json!("stop"))
        );
    }

    #[test]
    fn a_text_that_is_not_the_whole_answer_is_not_asked_about() {
        let reason = |request: &str, response: &str| asked(request, response).unwrap_err();
        let said = || json!({"content": "ab"});
        let none = UnusableReason::NoTokenIds;
        for hidden in [
            json!({"reasoning_content": "secret"}),
            json!({"tool_calls": [{"function": {"name": "f"}}]}),
        ] {
            assert_eq!(reason("{}", &stream(&[said(), hidden], None)), none);
        }
        assert_eq!(reason("{}", &stream(&[], Some("stop"))), none, "no text");
        let failed = format!(
            "{}data: {{\"error\":{{\"message\":\"no\"}}}}\n\n",
            stream(&[said()], None)
        );
        assert_eq!(reason("{}", &failed), none, "an error in the stream");
        let second = r#"data: {"choices":[{"index":1,"delta":{"content":"ab"}}]}"#;
        assert_eq!(reason("{}", &format!("{second}\n\n")), none, "another choice");
        let mut random = proof(0);
        random.gateway_nonce = None;
        let unseeded = request_about(&random, &words("{}", &stream(&[said()], None)));
        assert_eq!(unseeded.unwrap_err(), none.into(), "nobody knows the seed");
    }

    #[test]
    fn bodies_that_were_cut_or_are_too_long_have_a_reason() {
        let mut longer = of_stream();
        longer.output_bytes = u64::try_from(STREAM.len()).unwrap() + 1;
        let cut = request_about(&longer, &words("{}", STREAM));
        assert_eq!(cut.unwrap_err(), UnusableReason::TruncatedBody.into());
        // A text that would keep a tokenizer busy is not sent to it.
        let bomb = json!({"content": "\u{3042}".repeat(MAX_TEXT_REQUEST / 3)});
        let reason = asked("{}", &stream(&[bomb], None)).unwrap_err();
        assert_eq!(reason, UnusableReason::BeyondContext);
        let prompt = json!({"prompt": "x".repeat(MAX_TEXT_REQUEST)}).to_string();
        let reason = asked(&prompt, &stream(&[json!({"content": "a"})], None)).unwrap_err();
        assert_eq!(reason, UnusableReason::BeyondContext);
    }

    #[test]
    fn an_impossible_token_of_a_text_is_another_tokenizers() {
        let score = |margin| TokenScore { margin, entropy: 7 };
        let (off, impossible) = (Margin::Micronats(900_000), Margin::Impossible);
        assert_eq!(check_text_scores(vec![score(off)]), Ok(vec![score(off)]));
        let refused = check_text_scores(vec![score(off), score(impossible)]);
        assert_eq!(refused, Err(UnusableReason::OtherTokenizer));
    }

    #[test]
    fn a_reply_gives_every_token_a_score_or_none_at_all() {
        let reply = r#"{"tokens":[{"entropy":1.5,"margin":0.0},{"entropy":0.2,"margin":"impossible"}]}"#;
        let scores = read_scores(reply.as_bytes(), false).unwrap();
        let margins: Vec<Margin> = scores.iter().map(|score| score.margin).collect();
        assert_eq!(margins, [Margin::Micronats(0), Margin::Impossible]);
        for broken in [
            "{}",
            r#"{"tokens":[]}"#,
            r#"{"tokens":[{"entropy":1.0}]}"#,
            r#"{"tokens":[{"entropy":-1.0,"margin":0.1}]}"#,
            r#"{"tokens":[{"entropy":1.0,"margin":"far"}]}"#,
        ] {
            assert_eq!(
                read_scores(broken.as_bytes(), false),
                Err(UnusableReason::ReferenceRefused),
                "{broken}"
            );
        }
    }

    #[test]
    fn a_text_of_llama_cpp_is_asked_about_by_its_seed_and_its_own_parameters() {
        let llama_cpp = engine(SamplerEngine::LlamaCpp, "b11549");
        let answer = stream(&[json!({"content": "a b"})], Some("length"));
        let asked =
            |request: &str| ask_about("tiny", &proof(0), &words(request, &answer), &llama_cpp).unwrap();
        let seeded = asked(r#"{"messages":[],"temperature":0.3,"seed":9}"#);
        let body: Value = serde_json::from_slice(&seeded.body).unwrap();
        assert_eq!(
            body["request"],
            json!({"messages": [], "temperature": 0.3, "seed": 9, "top_k": 40, "top_p": 0.95, "min_p": 0.05})
        );
        assert_eq!(
            (&body["sampler"], &body["sampler_version"]),
            (&json!("llama.cpp"), &json!("b11549"))
        );
        assert!(body.get("muster_seed").is_none() && seeded.is_text && !seeded.is_unseeded);
        let unseeded = asked(r#"{"messages":[],"seed":-1}"#);
        let body: Value = serde_json::from_slice(&unseeded.body).unwrap();
        assert!(
            body["request"].get("seed").is_none() && unseeded.is_unseeded,
            "{body}"
        );
    }

    #[test]
    fn ids_of_vllm_are_scored_by_the_requests_seed() {
        let vllm = engine(SamplerEngine::Vllm, "2026-11");
        let asked = |request: &str| ask_about("tiny", &of_stream(), &words(request, STREAM), &vllm).unwrap();
        let seeded = asked(r#"{"messages":[],"temperature":0.7,"seed":-3,"return_token_ids":true}"#);
        let body: Value = serde_json::from_slice(&seeded.body).unwrap();
        let expected = json!({
            "model": "tiny", "prompt_token_ids": [5, 6], "token_ids": [7, 8, 9], "temperature": 0.7, "seed": -3,
            "sampler": "vllm", "sampler_version": "2026-11",
        });
        assert_eq!(body, expected);
        assert!(asked("{}").is_unseeded);
    }

    /// The answer as a gateway stores it that keeps the fields only.
    fn read_form(proof: &ResponseProof, whole: &AnswerText) -> AnswerText {
        let kind = BodyKind::of(whole.content_type.as_deref());
        let bounds = FieldBounds {
            event: 1_000_000,
            kept: 1_000_000,
        };
        let mut reader = FieldReader::new(kind, is_chat(proof), bounds);
        reader.update(&whole.response);
        AnswerText {
            response: reader.finish().unwrap().to_body(kind, is_chat(proof)),
            form: BodyForm::Read,
            ..whole.clone()
        }
    }

    proptest! {
        /// Padding, errors and unreadable events change nothing about what the reference is asked.
        #[test]
        fn the_fields_of_an_answer_are_scored_as_the_whole_one(
            lines in proptest::collection::vec((0_usize..6, 0_usize..9, "[a-z ]{0,9}"), 0..8),
        ) {
            let mut events: Vec<String> = STREAM.split_inclusive("\n\n").map(str::to_owned).collect();
            for (place, what, more) in lines {
                let line = match what {
                    0..3 => format!(": {more}\n\n"),
                    3..6 => format!("data: {{\"logprobs\":\"{more}\",\"choices\":[]}}\n\n"),
                    6 => format!("data: {{\"error\":\"{more}\"}}\n\n"),
                    7 => format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{more}\"}},\"token_ids\":[1]}}]}}\n\n"),
                    _ => format!("data: {more}\n\n"),
                };
                events.insert(place.min(events.len()), line);
            }
            let mut whole = words("{}", &events.concat());
            whole.request = br#"{"messages":[],"max_tokens":9}"#.to_vec();
            for mut proof in [of_stream(), proof(0)] {
                // A whole body is at least as long as the signed one.
                proof.output_bytes = 0;
                let read = read_form(&proof, &whole);
                prop_assert_eq!(request_about(&proof, &read), request_about(&proof, &whole));
                proof.output_bytes = u64::MAX;
                let truncated = request_about(&proof, &read) == Err(UnusableReason::TruncatedBody.into());
                prop_assert!(!truncated, "a body that was reduced is not a truncated one");
            }
        }

        #[test]
        fn no_bytes_of_a_stranger_end_the_audit(
            request in proptest::collection::vec(any::<u8>(), 0..200),
            response in proptest::collection::vec(any::<u8>(), 0..400),
            reply in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            for content_type in [None, Some("text/event-stream"), Some("application/json")] {
                let content_type = content_type.map(str::to_owned);
                let words = AnswerText {
                    request: request.clone(), response: response.clone(), form: BodyForm::Whole, content_type,
                };
                let _ = request_about(&proof(0), &words);
                let _ = request_about(&of_stream(), &words);
            }
            let ids = AnswerIds { prompt: vec![1], output: vec![2] };
            let _ = score_request("tiny", &proof(0), &request, &ids, None, &Sampling::Muster);
            let _ = read_scores(&reply, reply.len() % 2 == 0);
        }
    }
}
