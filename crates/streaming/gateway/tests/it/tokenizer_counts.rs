//! Counts by the tokenizer of `images/llm`'s model.

use std::path::{Path, PathBuf};

use muster_gateway::token_count::{ANSWER_END, MAX_TEXT, ModelTokenizer, TokenizerError, count_exchange};
use muster_openai::request_text::{PER_MESSAGE, PER_REQUEST};
use muster_protocol::Digest;
use proptest::prelude::*;
use serde_json::{Value, json};

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../images/llm/model/tokenizer.json")
}

fn digest() -> Digest {
    Digest::of(&std::fs::read(file()).unwrap())
}

fn tokenizer() -> ModelTokenizer {
    ModelTokenizer::open(&file(), &digest()).unwrap()
}

fn counted(request: &Value, answers: &[&str]) -> Option<(u64, u64)> {
    let answers: Vec<String> = answers.iter().map(|&text| text.to_owned()).collect();
    let counted = count_exchange(&tokenizer(), request.to_string().as_bytes(), &answers)?;
    let template = counted.template;
    Some((counted.usage.input + template, counted.usage.output))
}

#[test]
fn a_text_has_as_many_tokens_as_the_models_vocabulary_spells_it_with() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.count(""), Some(0));
    let words = tokenizer
        .count("The history of the city begins with its river.")
        .unwrap();
    assert!((9..30).contains(&words), "{words}");
    assert!(tokenizer.count("xqzjwv xqzjwv").unwrap() > tokenizer.count("the city").unwrap());
}

#[test]
fn every_text_of_a_request_and_of_each_choice_is_counted() {
    let tokenizer = tokenizer();
    let text = "The history of the city";
    let of = |text: &str| tokenizer.count(text).unwrap();
    let chat = json!({"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": [{"type": "text", "text": text}]}]});
    let input = 2 * of(text) + of("user") + of("assistant") + 2 * PER_MESSAGE + PER_REQUEST;
    assert_eq!(
        counted(&chat, &[text, "a"]),
        Some((input, of(text) + of("a") + 2 * ANSWER_END))
    );
    for (prompt, tokens) in [
        (json!(text), of(text)),
        (json!([text, text]), 2 * of(text)),
        (json!([5, 6, 7]), 3),
        (json!([[5, 6], [7]]), 3),
        (json!(null), 0),
    ] {
        assert_eq!(
            counted(&json!({"prompt": prompt}), &[]),
            Some((tokens + PER_REQUEST, 0))
        );
    }
    let tools = json!({"messages": [], "tools": [{"name": "weather in the city"}]});
    assert!(counted(&tools, &[]).unwrap().0 > PER_REQUEST + 3);
}

#[test]
fn a_text_that_is_too_long_and_a_body_that_is_no_request_have_no_count() {
    let long = "word ".repeat(MAX_TEXT / 5 + 1);
    assert_eq!(tokenizer().count(&long), None);
    assert_eq!(counted(&json!({"prompt": long}), &[]), None);
    assert_eq!(counted(&json!({"prompt": "a"}), &[&long]), None);
    assert_eq!(count_exchange(&tokenizer(), b"[", &[]), None);
    assert_eq!(count_exchange(&tokenizer(), b"[]", &[]), None);
}

#[test]
fn a_text_without_blanks_of_the_longest_length_is_counted() {
    let tokenizer = tokenizer();
    for bomb in ["a", "ab", "\u{3042}", "\u{0301}", "=", " ", "\n", "\u{10FFFF}"] {
        let text = bomb.repeat(MAX_TEXT / bomb.len());
        // The runner ends a test that hangs.
        assert!(tokenizer.count(&text).is_some(), "{bomb:?}");
    }
}

#[test]
fn another_file_than_the_whitelists_is_refused_by_name() {
    let other = ModelTokenizer::open(&file(), &Digest::of(b"another")).unwrap_err();
    assert!(
        matches!(&other, TokenizerError::OtherFile { found, .. } if *found == digest()),
        "{other}"
    );
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("tokenizer.json");
    std::fs::write(&broken, "{}").unwrap();
    let error = ModelTokenizer::open(&broken, &Digest::of(b"{}")).unwrap_err();
    assert!(matches!(error, TokenizerError::Format { .. }), "{error}");
    let missing = ModelTokenizer::open(&folder.path().join("nothing"), &digest()).unwrap_err();
    assert!(matches!(missing, TokenizerError::Read(..)), "{missing}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_text_of_a_stranger_brings_it_down(text in ".{0,300}", body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let tokenizer = tokenizer();
        let tokens = tokenizer.count(&text).unwrap();
        prop_assert!(tokens <= u64::try_from(text.len()).unwrap());
        let _ = count_exchange(&tokenizer, &body, &[text]);
    }
}
