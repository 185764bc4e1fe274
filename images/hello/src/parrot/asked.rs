//! The request of a completion, as the stand-in for a model reads it.
//!
//! A parameter of OpenAI's that changes the answer is honoured or refused by its name. The program repeats its input
//! and samples nothing, so parameters of the sampler (`temperature`, `top_p`, `seed`, the penalties) change nothing.

use serde_json::Value;

use super::MODEL;

/// The most words of one choice.
const MAX_WORDS: u64 = 4_096;
/// The words of a choice whose request sets no limit.
const WORDS: u64 = 16;
/// The most choices of an answer, over all of its prompts.
const MAX_CHOICES: usize = 64;
/// The most alternatives of a token that may be asked for.
const MAX_ALTERNATIVES: u64 = 20;

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ParameterRefusal {
    /// The parameter at fault.
    pub(super) parameter: &'static str,
    pub(super) message: String,
}

/// A completion, as the request asks for it.
#[derive(Debug)]
pub(super) struct AskedCompletion {
    /// The model's name, as the request states it.
    pub(super) model: String,
    pub(super) choices: Vec<Choice>,
    /// Words of all prompts.
    pub(super) prompt_words: u64,
    pub(super) streams: bool,
    /// Whether a stream ends with an event about the usage.
    pub(super) reports_usage: bool,
    /// The alternatives of each token; `None` if no log-probabilities are asked for.
    pub(super) logprobs: Option<u64>,
    pub(super) is_chat: bool,
}

/// One choice of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Each with the space behind it; the last one may be cut by a stop sequence.
    pub(super) words: Vec<String>,
    pub(super) finish_reason: &'static str,
}

fn refuse<T>(parameter: &'static str, message: impl Into<String>) -> Result<T, ParameterRefusal> {
    let message = message.into();
    Err(ParameterRefusal { parameter, message })
}

impl AskedCompletion {
    /// Reads a request's body.
    ///
    /// # Errors
    /// The body is no request, or a parameter is wrong or cannot be honoured.
    pub(super) fn read(body: &[u8], is_chat: bool) -> Result<Self, ParameterRefusal> {
        let Ok(Value::Object(fields)) = serde_json::from_slice(body) else {
            return refuse("body", "the request must be a JSON object");
        };
        let asked = Value::Object(fields);
        refuse_what_cannot_be_done(&asked)?;
        let prompts = if is_chat {
            vec![last_message(&asked)?]
        } else {
            prompts(&asked)?
        };
        let longest = match whole(&asked, "max_completion_tokens")? {
            None => whole(&asked, "max_tokens")?,
            limit => limit,
        };
        let longest = longest.unwrap_or(WORDS).min(MAX_WORDS);
        let several = whole(&asked, "n")?.unwrap_or(1);
        let several = usize::try_from(several).unwrap_or(usize::MAX);
        if several == 0 || several.saturating_mul(prompts.len()) > MAX_CHOICES {
            return refuse(
                "n",
                format!("`n` must be 1 or more, with {MAX_CHOICES} choices at most"),
            );
        }
        let stops = stops(&asked)?;
        let choices = prompts.iter().flat_map(|prompt| {
            let choice = Choice::repeating(prompt, longest, &stops);
            std::iter::repeat_n(choice, several)
        });
        let words = prompts.iter().map(|prompt| prompt.split_whitespace().count());
        Ok(Self {
            model: field(&asked, "model").as_str().unwrap_or(MODEL).to_owned(),
            choices: choices.collect(),
            prompt_words: count(words.sum()),
            streams: switch(&asked, "stream")?,
            reports_usage: field(field(&asked, "stream_options"), "include_usage") == true,
            logprobs: logprobs(&asked, is_chat)?,
            is_chat,
        })
    }

    /// Words of all choices.
    pub(super) fn said_words(&self) -> u64 {
        count(self.choices.iter().map(|choice| choice.words.len()).sum())
    }
}

impl Choice {
    /// The prompt's words over and over, up to a stop sequence or to the limit.
    fn repeating(prompt: &str, longest: u64, stops: &[String]) -> Self {
        let given: Vec<&str> = prompt.split_whitespace().collect();
        let repeated = given.iter().cycle().map(|word| format!("{word} "));
        let mut words: Vec<String> = repeated.take(usize::try_from(longest).unwrap_or(0)).collect();
        let text = words.concat();
        // The sequence that is complete first ends the text.
        let ends = stops.iter().filter_map(|stop| {
            let begin = text.find(stop.as_str())?;
            Some((begin.saturating_add(stop.len()), begin))
        });
        let stop = ends.min().map(|(_, begin)| begin);
        let mut rest = stop.unwrap_or(usize::MAX);
        for word in &mut words {
            // A stop sequence begins where a character does.
            let kept = word.get(..rest).unwrap_or(word).to_owned();
            rest = rest.saturating_sub(word.len());
            *word = kept;
        }
        words.retain(|word| !word.is_empty());
        Self {
            words,
            finish_reason: if stop.is_some() { "stop" } else { "length" },
        }
    }
}

/// A field of an object; `null` if it is absent, as OpenAI reads an absent one.
pub(super) fn field<'a>(object: &'a Value, name: &str) -> &'a Value {
    object.get(name).unwrap_or(&Value::Null)
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// The last message's text, of which parts may be made.
fn last_message(asked: &Value) -> Result<String, ParameterRefusal> {
    let messages = field(asked, "messages").as_array();
    let Some(last) = messages.and_then(|messages| messages.last()) else {
        return refuse("messages", "a chat needs `messages`");
    };
    match field(last, "content") {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts.iter().map(part_text).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            refuse("messages", "the last message must have a text")
        }
    }
}

fn part_text(part: &Value) -> Result<String, ParameterRefusal> {
    match (field(part, "type").as_str(), field(part, "text").as_str()) {
        (Some("text"), Some(text)) => Ok(text.to_owned()),
        (kind, _) => refuse(
            "messages",
            format!(
                "this model reads text, and no part of the type `{}`",
                kind.unwrap_or("none")
            ),
        ),
    }
}

fn prompts(asked: &Value) -> Result<Vec<String>, ParameterRefusal> {
    let of_text = |one: &Value| match one {
        Value::String(text) => Ok(text.clone()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            refuse("prompt", "a prompt must be a text: this model has no token ids")
        }
    };
    match field(asked, "prompt") {
        Value::Array(several) if several.is_empty() => refuse("prompt", "the list of prompts is empty"),
        Value::Array(several) => several.iter().map(of_text).collect(),
        one @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
            Ok(vec![of_text(one)?])
        }
    }
}

fn stops(asked: &Value) -> Result<Vec<String>, ParameterRefusal> {
    let listed = match field(asked, "stop") {
        Value::Null => Vec::new(),
        Value::Array(several) => several.clone(),
        one @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => vec![one.clone()],
    };
    let text = |stop: &Value| match stop.as_str() {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        Some(_) | None => refuse(
            "stop",
            "`stop` must be a text or a list of texts, none of them empty",
        ),
    };
    listed.iter().map(text).collect()
}

/// A chat asks by a switch and a number of alternatives, a completion by that number alone.
fn logprobs(asked: &Value, is_chat: bool) -> Result<Option<u64>, ParameterRefusal> {
    let (parameter, alternatives) = if is_chat {
        let alternatives = whole(asked, "top_logprobs")?;
        let is_on = switch(asked, "logprobs")?;
        if alternatives.is_some_and(|alternatives| alternatives > 0) && !is_on {
            return refuse("top_logprobs", "`top_logprobs` needs `logprobs`");
        }
        ("top_logprobs", is_on.then(|| alternatives.unwrap_or(0)))
    } else {
        ("logprobs", whole(asked, "logprobs")?)
    };
    if alternatives > Some(MAX_ALTERNATIVES) {
        return refuse(
            parameter,
            format!("`{parameter}` must be {MAX_ALTERNATIVES} or less"),
        );
    }
    Ok(alternatives)
}

/// A parameter that is a whole number, if the request has it.
fn whole(asked: &Value, parameter: &'static str) -> Result<Option<u64>, ParameterRefusal> {
    let given = field(asked, parameter);
    if given.is_null() {
        return Ok(None);
    }
    match given.as_u64() {
        Some(number) => Ok(Some(number)),
        None => refuse(parameter, format!("`{parameter}` must be a whole number")),
    }
}

fn switch(asked: &Value, parameter: &'static str) -> Result<bool, ParameterRefusal> {
    match field(asked, parameter) {
        Value::Null => Ok(false),
        Value::Bool(value) => Ok(*value),
        Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            refuse(parameter, format!("`{parameter}` must be true or false"))
        }
    }
}

/// Refuses the parameters that would change the answer of a model that could do more than to repeat.
fn refuse_what_cannot_be_done(asked: &Value) -> Result<(), ParameterRefusal> {
    let is_empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    };
    let is_word = |value: &Value, words: &[&str]| value.as_str().is_some_and(|word| words.contains(&word));
    let no_tools = field(asked, "tool_choice") == "none";
    let refused = [
        ("tools", !no_tools && !is_empty(field(asked, "tools"))),
        (
            "tool_choice",
            !is_empty(field(asked, "tool_choice"))
                && !is_word(field(asked, "tool_choice"), &["none", "auto"]),
        ),
        (
            "functions",
            field(asked, "function_call") != "none" && !is_empty(field(asked, "functions")),
        ),
        (
            "function_call",
            !is_empty(field(asked, "function_call"))
                && !is_word(field(asked, "function_call"), &["none", "auto"]),
        ),
        (
            "response_format",
            !is_empty(field(asked, "response_format"))
                && field(field(asked, "response_format"), "type") != "text",
        ),
        (
            "modalities",
            !is_empty(field(asked, "modalities"))
                && *field(asked, "modalities") != serde_json::json!(["text"]),
        ),
        (
            "best_of",
            !is_empty(field(asked, "best_of")) && field(asked, "best_of") != 1,
        ),
        ("logit_bias", !is_empty(field(asked, "logit_bias"))),
        ("audio", !is_empty(field(asked, "audio"))),
        ("prediction", !is_empty(field(asked, "prediction"))),
        (
            "web_search_options",
            !field(asked, "web_search_options").is_null(),
        ),
        ("echo", !is_empty(field(asked, "echo"))),
        ("suffix", !is_empty(field(asked, "suffix"))),
    ];
    match refused.into_iter().find(|(_, is_asked)| *is_asked) {
        Some((parameter, _)) => refuse(
            parameter,
            format!("this model repeats the words that it is given, and cannot honour `{parameter}`"),
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chat(more: Value) -> Result<AskedCompletion, ParameterRefusal> {
        let mut asked =
            json!({ "model": "org/parrot", "messages": [{ "role": "user", "content": "one two three" }] });
        for (name, value) in more.as_object().unwrap() {
            asked[name.as_str()] = value.clone();
        }
        AskedCompletion::read(asked.to_string().as_bytes(), true)
    }

    fn texts(asked: &AskedCompletion) -> Vec<String> {
        asked.choices.iter().map(|choice| choice.words.concat()).collect()
    }

    #[test]
    fn limits_choices_and_stop_sequences_are_honoured() {
        let asked = chat(json!({ "max_completion_tokens": 2, "max_tokens": 9, "n": 3 })).unwrap();
        assert_eq!(texts(&asked), ["one two "; 3]);
        assert_eq!((asked.prompt_words, asked.said_words()), (3, 6));
        assert_eq!(asked.model, "org/parrot");
        let length = chat(json!({ "n": null, "max_tokens": null })).unwrap();
        assert_eq!((length.choices.len(), length.said_words()), (1, 16));
        for (stop, said) in [
            (json!("two"), "one "),
            (json!(["never", "e t"]), "on"),
            (json!(["three one", "ee"]), "one two thr"),
            (json!("one"), ""),
        ] {
            let asked = chat(json!({ "stop": stop })).unwrap();
            assert_eq!(
                (texts(&asked), asked.choices[0].finish_reason),
                (vec![said.to_owned()], "stop")
            );
        }
        let other = chat(json!({ "stop": ["never"] })).unwrap();
        assert_eq!(other.choices[0].finish_reason, "length");
        let umlaut = json!([{ "role": "user", "content": "zwölf ä" }]);
        assert_eq!(
            texts(&chat(json!({ "messages": umlaut, "stop": "ö" })).unwrap()),
            ["zw"]
        );
    }

    #[test]
    fn parts_of_text_and_lists_of_prompts_are_read() {
        let parts = json!([{ "role": "user", "content": [{ "type": "text", "text": "a " }, { "type": "text", "text": "b" }] }]);
        assert_eq!(
            texts(&chat(json!({ "messages": parts, "max_tokens": 2 })).unwrap()),
            ["a b "]
        );
        let asked = json!({ "prompt": ["a", "b"], "max_tokens": 1, "n": 2 });
        let asked = AskedCompletion::read(asked.to_string().as_bytes(), false).unwrap();
        assert_eq!(texts(&asked), ["a ", "a ", "b ", "b "]);
    }

    #[test]
    fn a_parameter_that_cannot_be_honoured_is_refused_by_its_name() {
        let tool = json!([{ "type": "function", "function": { "name": "f" } }]);
        let image =
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "x" } }] }]);
        for (more, parameter) in [
            (json!({ "tools": tool }), "tools"),
            (json!({ "tool_choice": "required" }), "tool_choice"),
            (json!({ "functions": tool }), "functions"),
            (
                json!({ "response_format": { "type": "json_object" } }),
                "response_format",
            ),
            (json!({ "logit_bias": { "5": 1 } }), "logit_bias"),
            (json!({ "modalities": ["text", "audio"] }), "modalities"),
            (json!({ "best_of": 2 }), "best_of"),
            (json!({ "web_search_options": {} }), "web_search_options"),
            (json!({ "messages": image }), "messages"),
            (json!({ "messages": [] }), "messages"),
            (json!({ "n": 0 }), "n"),
            (json!({ "n": 65 }), "n"),
            (json!({ "n": "two" }), "n"),
            (json!({ "max_completion_tokens": -1 }), "max_completion_tokens"),
            (json!({ "stop": [""] }), "stop"),
            (json!({ "stop": 7 }), "stop"),
            (json!({ "stream": "yes" }), "stream"),
            (json!({ "top_logprobs": 2 }), "top_logprobs"),
            (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        ] {
            assert_eq!(chat(more.clone()).unwrap_err().parameter, parameter, "{more}");
        }
        let ids = AskedCompletion::read(br#"{"prompt":[1,2]}"#, false);
        assert_eq!(ids.unwrap_err().parameter, "prompt");
        assert_eq!(AskedCompletion::read(b"[]", true).unwrap_err().parameter, "body");
    }

    #[test]
    fn parameters_that_change_nothing_here_are_taken() {
        let tool = json!([{ "type": "function", "function": { "name": "f" } }]);
        for more in [
            json!({ "tools": tool, "tool_choice": "none" }),
            json!({ "tools": [], "tool_choice": "auto" }),
            json!({ "response_format": { "type": "text" }, "modalities": ["text"], "best_of": 1 }),
            json!({ "temperature": 0.7, "top_p": 0.5, "seed": 1, "presence_penalty": 1, "user": "u", "logit_bias": {} }),
        ] {
            assert!(chat(more.clone()).is_ok(), "{more}");
        }
    }
}
