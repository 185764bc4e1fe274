//! The request to a reference about an answer, and how its reply is read. Pure, over bytes of strangers.

use muster_audit::{MAX_TOKENS, Margin, TokenScore, UnusableReason};
use muster_gateway::store::AnswerWords;
use muster_openai::stream::JsonReader;
use muster_openai::{BodyKind, TokenIdReader};
use muster_protocol::Digest;
use muster_response_proof::{ResponseProof, answer_seed};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

/// The largest body of a response that is read, in bytes.
const MAX_BODY: usize = 16 * 1024 * 1024;
/// The most bytes of request and text together that a reference is asked to read for one answer.
const MAX_TEXT_REQUEST: usize = 768 * 1024;
/// The parameters of a request that decide its answer's tokens, beside prompt and seed.
const SAMPLING: [&str; 8] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
];

/// A request to a reference's `POST /v1/score` about one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScoreRequest {
    pub(crate) body: Vec<u8>,
    /// Whether the reference has to find the tokens in the answer's text.
    pub(crate) is_text: bool,
}

/// The ids of an answer's tokens; `None` if the response states none, so that only its text is known.
///
/// # Errors
/// The reason why nobody can score the answer: a part of its body was not kept, or the ids that the session signed are
/// not those of the body.
pub(crate) fn find_ids(
    proof: &ResponseProof,
    words: &AnswerWords,
) -> Result<Option<AnswerIds>, UnusableReason> {
    if u64::try_from(words.response.len()).is_ok_and(|bytes| bytes < proof.output_bytes) {
        return Err(UnusableReason::TruncatedBody);
    }
    match ids_of(proof, words) {
        Ok(ids) => Ok(Some(ids)),
        // The session signed ids that the stored body does not have.
        Err(reason) if proof.tokens.is_some() => Err(reason),
        Err(_) => Ok(None),
    }
}

/// The ids of an answer's tokens, which have to be those that the session signed, if it signed any.
///
/// # Errors
/// The reason why nobody can score the answer.
fn ids_of(proof: &ResponseProof, words: &AnswerWords) -> Result<AnswerIds, UnusableReason> {
    let ids = answer_ids(words)?;
    if let Some(facts) = &proof.tokens {
        // The ids that were stored are those that the session signed, or the body is not what was sent.
        let stated = stated_ids(words).ok_or(UnusableReason::NoTokenIds)?;
        if stated.0 != facts.output || stated.1 != facts.prompt {
            return Err(UnusableReason::OtherTokenizer);
        }
    }
    Ok(ids)
}

/// The body of a request to a reference's `POST /v1/score` about one answer to this request.
///
/// # Errors
/// The reason why nobody can score the answer.
pub(crate) fn score_request(
    model: &str,
    proof: &ResponseProof,
    request: &[u8],
    ids: &AnswerIds,
) -> Result<ScoreRequest, UnusableReason> {
    let asked = read_request(request)?;
    let mut body = Map::new();
    for name in SAMPLING {
        if let Some(value) = asked.get(name).filter(|value| !value.is_null()) {
            body.insert(name.to_owned(), value.clone());
        }
    }
    if !body.contains_key("seed")
        && let Some(seed) = seed_of_seal(proof)
    {
        body.insert("muster_seed".to_owned(), seed.into());
    }
    body.insert("model".to_owned(), model.into());
    body.insert("prompt_token_ids".to_owned(), json!(ids.prompt));
    body.insert("token_ids".to_owned(), json!(ids.output));
    let body = serde_json::to_vec(&body).map_err(|_| UnusableReason::TruncatedBody)?;
    Ok(ScoreRequest { body, is_text: false })
}

/// The request about an answer of which only the text is known: the reference reads the prompt as the engine did, and
/// makes the engine's choices again by their seed.
///
/// # Errors
/// The reason why nobody can score the answer.
pub(crate) fn text_request(
    model: &str,
    proof: &ResponseProof,
    words: &AnswerWords,
) -> Result<ScoreRequest, UnusableReason> {
    let asked = read_request(&words.request)?;
    let answer = answer_text(words)?;
    if words.request.len().saturating_add(answer.text.len()) > MAX_TEXT_REQUEST {
        return Err(UnusableReason::BeyondContext);
    }
    let mut body = Map::new();
    if asked.get("seed").is_none_or(Value::is_null) {
        // Without a seed nobody can tell which tokens the text has.
        let seed = seed_of_seal(proof).ok_or(UnusableReason::NoTokenIds)?;
        body.insert("muster_seed".to_owned(), seed.into());
    }
    body.insert("model".to_owned(), model.into());
    body.insert("request".to_owned(), Value::Object(asked));
    body.insert("text".to_owned(), answer.text.into());
    body.insert("finish_reason".to_owned(), json!(answer.finish_reason));
    let body = serde_json::to_vec(&body).map_err(|_| UnusableReason::TruncatedBody)?;
    Ok(ScoreRequest { body, is_text: true })
}

/// The stored request, if it asks for one answer.
fn read_request(request: &[u8]) -> Result<Map<String, Value>, UnusableReason> {
    let asked: Map<String, Value> =
        serde_json::from_slice(request).map_err(|_| UnusableReason::TruncatedBody)?;
    if asked.get("n").is_some_and(|choices| *choices != json!(1)) {
        return Err(UnusableReason::NoTokenIds);
    }
    Ok(asked)
}

/// The seed that the sealing proxy set, 64 hex digits; `None` for an answer without the gateway's nonce.
fn seed_of_seal(proof: &ResponseProof) -> Option<String> {
    let gateway = proof.gateway_nonce.as_ref()?;
    let seed = answer_seed(proof.client_nonce.as_ref(), &proof.input, gateway);
    Some(hex::encode(seed))
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

/// The scores in a reference's reply.
///
/// # Errors
/// The reply is no score of so many tokens.
pub(crate) fn read_scores(reply: &[u8]) -> Result<Vec<TokenScore>, UnusableReason> {
    #[derive(Deserialize)]
    struct Reply {
        tokens: Vec<Token>,
    }
    #[derive(Deserialize)]
    struct Token {
        entropy: f64,
        margin: Option<Value>,
    }
    let reply: Reply = serde_json::from_slice(reply).map_err(|_| UnusableReason::ReferenceRefused)?;
    if reply.tokens.is_empty() || reply.tokens.len() > MAX_TOKENS {
        return Err(UnusableReason::ReferenceRefused);
    }
    let score = |token: &Token| match &token.margin {
        Some(Value::Number(nats)) => TokenScore::from_nats(Some(nats.as_f64()?), token.entropy),
        Some(Value::String(said)) if said == "impossible" => TokenScore::from_nats(None, token.entropy),
        // Without a seed there is no margin.
        _ => None,
    };
    let scores: Option<Vec<TokenScore>> = reply.tokens.iter().map(score).collect();
    scores.ok_or(UnusableReason::ReferenceRefused)
}

/// The ids of an answer's tokens and of its prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnswerIds {
    pub(crate) prompt: Vec<u32>,
    pub(crate) output: Vec<u32>,
}

#[derive(Deserialize)]
struct ResponseIds {
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    choices: Vec<ChoiceIds>,
}

#[derive(Deserialize)]
struct ChoiceIds {
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
}

fn answer_ids(words: &AnswerWords) -> Result<AnswerIds, UnusableReason> {
    let kind = BodyKind::of(words.content_type.as_deref());
    let mut reader = JsonReader::new(kind, MAX_BODY).ok_or(UnusableReason::NoTokenIds)?;
    let (mut prompt, mut output) = (None, Vec::new());
    let mut read = |json: &[u8]| {
        // An event that is no JSON, such as `[DONE]`, states nothing.
        let Ok(read) = serde_json::from_slice::<ResponseIds>(json) else {
            return;
        };
        prompt = prompt.take().or(read.prompt_token_ids);
        for choice in read.choices {
            prompt = prompt.take().or(choice.prompt_token_ids);
            output.extend(choice.token_ids.unwrap_or_default());
        }
    };
    reader.update(&words.response, &mut read);
    reader.end(&mut read);
    match prompt {
        Some(prompt) if !output.is_empty() && output.len() <= MAX_TOKENS => Ok(AnswerIds { prompt, output }),
        _ => Err(UnusableReason::NoTokenIds),
    }
}

/// The text of an answer with one choice.
struct AnswerText {
    text: String,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct ResponseText {
    #[serde(default)]
    choices: Vec<ChoiceText>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct ChoiceText {
    #[serde(default)]
    index: u32,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    delta: Option<MessageText>,
    #[serde(default)]
    message: Option<MessageText>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct MessageText {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning_content: Option<Value>,
    #[serde(default)]
    tool_calls: Option<Value>,
}

impl ChoiceText {
    /// Adds the choice's text; `false` if the engine shows a part of its output elsewhere than in the text.
    fn read_into(&self, answer: &mut AnswerText) -> bool {
        let messages = || self.delta.iter().chain(&self.message);
        let is_plain = |one: &MessageText| {
            is_nothing(one.reasoning_content.as_ref()) && is_nothing(one.tool_calls.as_ref())
        };
        let is_whole = self.index == 0 && messages().all(is_plain);
        let parts = messages().filter_map(|one| one.content.as_deref());
        for part in self.text.as_deref().into_iter().chain(parts) {
            answer.text.push_str(part);
        }
        answer.finish_reason = answer.finish_reason.take().or_else(|| self.finish_reason.clone());
        is_whole
    }
}

/// Whether a field is absent or empty.
fn is_nothing(field: Option<&Value>) -> bool {
    match field {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => false,
    }
}

fn answer_text(words: &AnswerWords) -> Result<AnswerText, UnusableReason> {
    let kind = BodyKind::of(words.content_type.as_deref());
    let mut reader = JsonReader::new(kind, MAX_BODY).ok_or(UnusableReason::NoTokenIds)?;
    let mut answer = AnswerText {
        text: String::new(),
        finish_reason: None,
    };
    let mut is_whole = true;
    let mut read = |json: &[u8]| {
        // An event that is no JSON, such as `[DONE]`, states nothing.
        let Ok(read) = serde_json::from_slice::<ResponseText>(json) else {
            return;
        };
        is_whole &= read.error.is_none();
        for choice in read.choices {
            is_whole &= choice.read_into(&mut answer);
        }
    };
    reader.update(&words.response, &mut read);
    reader.end(&mut read);
    if is_whole && !answer.text.is_empty() {
        Ok(answer)
    } else {
        Err(UnusableReason::NoTokenIds)
    }
}

/// The digests of the ids of output and prompt, as the session's proxy computed them.
fn stated_ids(words: &AnswerWords) -> Option<(Digest, Digest)> {
    let mut reader = TokenIdReader::new(BodyKind::of(words.content_type.as_deref()))?;
    reader.update(&words.response);
    let stated = reader.finish()?;
    Some((stated.output, stated.prompt))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request_about(proof: &ResponseProof, words: &AnswerWords) -> Result<ScoreRequest, UnusableReason> {
        match find_ids(proof, words)? {
            Some(ids) => score_request("tiny", proof, &words.request, &ids),
            None => text_request("tiny", proof, words),
        }
    }
    use crate::testing::proof;

    fn words(request: &str, response: &str) -> AnswerWords {
        AnswerWords {
            request: request.into(),
            response: response.into(),
            content_type: Some("text/event-stream".to_owned()),
        }
    }

    const STREAM: &str = concat!(
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"prompt_token_ids\":[5,6],\"token_ids\":[7]}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"},\"token_ids\":[8,9]}]}\n\n",
        "data: [DONE]\n\n",
    );

    fn asked(request: &str, response: &str) -> Result<Value, UnusableReason> {
        let asked = request_about(&proof(0), &words(request, response))?;
        Ok(serde_json::from_slice(&asked.body).unwrap())
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
    fn the_reference_is_asked_with_the_ids_the_seed_and_the_parameters_of_the_answer() {
        let body = asked(
            r#"{"messages":[],"temperature":0.3,"stream":true,"top_p":null}"#,
            STREAM,
        )
        .unwrap();
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
        // A client's own seed goes before the seal's, as in the engine.
        let body = asked(r#"{"seed":7}"#, STREAM).unwrap();
        assert_eq!((&body["seed"], body.get("muster_seed")), (&json!(7), None));
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
        let mut signed = proof(0);
        signed.tokens = Some(muster_response_proof::TokenFacts {
            prompt: Digest::of(b"other"),
            prompt_count: 2,
            output: Digest::of(b"other"),
            output_count: 3,
        });
        let refused = ids_of(&signed, &words("{}", STREAM));
        assert_eq!(refused.unwrap_err(), UnusableReason::OtherTokenizer);
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
        assert_eq!(unseeded.unwrap_err(), none, "nobody knows the seed");
        // A session that signed ids has a body with ids.
        let mut signed = proof(0);
        signed.tokens = Some(muster_response_proof::TokenFacts {
            prompt: Digest::of(b"prompt"),
            prompt_count: 2,
            output: Digest::of(b"ids"),
            output_count: 3,
        });
        let without = request_about(&signed, &words("{}", &stream(&[said()], None)));
        assert_eq!(without.unwrap_err(), none);
    }

    #[test]
    fn bodies_that_were_cut_or_are_too_long_have_a_reason() {
        let mut longer = proof(0);
        longer.output_bytes = u64::try_from(STREAM.len()).unwrap() + 1;
        let cut = request_about(&longer, &words("{}", STREAM));
        assert_eq!(cut.unwrap_err(), UnusableReason::TruncatedBody);
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
        let scores = read_scores(reply.as_bytes()).unwrap();
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
                read_scores(broken.as_bytes()),
                Err(UnusableReason::ReferenceRefused),
                "{broken}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_stranger_end_the_audit(
            request in proptest::collection::vec(any::<u8>(), 0..200),
            response in proptest::collection::vec(any::<u8>(), 0..400),
            reply in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let words = AnswerWords { request, response, content_type: None };
            let _ = ids_of(&proof(0), &words);
            let ids = AnswerIds { prompt: vec![1], output: vec![2] };
            let _ = score_request("tiny", &proof(0), &words.request, &ids);
            let _ = read_scores(&reply);
        }
    }
}
