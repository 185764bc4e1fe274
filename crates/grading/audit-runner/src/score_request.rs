//! The request to a reference about an answer, and how its reply is read. Pure, over bytes of strangers.

use muster_audit::{MAX_TOKENS, TokenScore, UnusableReason};
use muster_gateway::store::AnswerWords;
use muster_openai::stream::JsonReader;
use muster_openai::{BodyKind, TokenIdReader};
use muster_protocol::Digest;
use muster_response_proof::{ResponseProof, answer_seed};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The largest body of a response that is read, in bytes.
const MAX_BODY: usize = 16 * 1024 * 1024;
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

/// The ids of an answer's tokens, which have to be those that the session signed, if it signed any.
///
/// # Errors
/// The reason why nobody can score the answer.
pub(crate) fn ids_of(proof: &ResponseProof, words: &AnswerWords) -> Result<AnswerIds, UnusableReason> {
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
) -> Result<Vec<u8>, UnusableReason> {
    let asked: Map<String, Value> =
        serde_json::from_slice(request).map_err(|_| UnusableReason::TruncatedBody)?;
    if asked.get("n").is_some_and(|choices| *choices != json!(1)) {
        return Err(UnusableReason::NoTokenIds);
    }
    let mut body = Map::new();
    for name in SAMPLING {
        if let Some(value) = asked.get(name).filter(|value| !value.is_null()) {
            body.insert(name.to_owned(), value.clone());
        }
    }
    if !body.contains_key("seed")
        && let Some(gateway) = &proof.gateway_nonce
    {
        let seed = answer_seed(proof.client_nonce.as_ref(), &proof.input, gateway);
        body.insert("muster_seed".to_owned(), hex::encode(seed).into());
    }
    body.insert("model".to_owned(), model.into());
    body.insert("prompt_token_ids".to_owned(), json!(ids.prompt));
    body.insert("token_ids".to_owned(), json!(ids.output));
    serde_json::to_vec(&body).map_err(|_| UnusableReason::TruncatedBody)
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

/// The digests of the ids of output and prompt, as the session's proxy computed them.
fn stated_ids(words: &AnswerWords) -> Option<(Digest, Digest)> {
    let mut reader = TokenIdReader::new(BodyKind::of(words.content_type.as_deref()))?;
    reader.update(&words.response);
    let stated = reader.finish()?;
    Some((stated.output, stated.prompt))
}

#[cfg(test)]
mod tests {
    use muster_audit::Margin;
    use proptest::prelude::*;

    use super::*;
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
        let words = words(request, response);
        let ids = ids_of(&proof(0), &words)?;
        let body = score_request("tiny", &proof(0), &words.request, &ids)?;
        Ok(serde_json::from_slice(&body).unwrap())
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
