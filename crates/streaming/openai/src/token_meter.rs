//! Counts the tokens of a response while it passes.
//!
//! The count is ours. An engine's own report of its usage is taken, but never for more tokens than the text of the
//! request and of the response can be, three bytes to a token, and never for a longer response than the request allows.
//! So text that its reader does not see, such as the reasoning of a model, is paid up to the request's limit.
//!
//! A document, a stream and a stream with its usage have one price: the seal asks for the report that a stream lacks
//! ([`crate::usage_report`]). Without a report the texts are counted, three bytes to a token, in all three alike; the
//! fields around them are no input.

use std::collections::BTreeMap;

use muster_http::event_stream::{self, LineSplitter};
use serde::{Deserialize, Serialize};

use crate::request_body::without_mark;
use crate::request_text::RequestText;
use crate::stream::{BodyKind, JsonReader};
use crate::usage_report::USAGE_COMMENT;

/// Bytes of the longest event, and of the longest response in one document, that is read. A longer one counts no
/// tokens.
const MAX_JSON: usize = 1024 * 1024;

/// The bytes of a token, where the model's own tokenizer is not at hand: byte-pair vocabularies average four bytes of
/// English text, and less of other languages and of code.
const BYTES_PER_TOKEN: u64 = 3;

/// The event that ends a stream, which is no JSON.
const DONE: &[u8] = b"[DONE]";

/// The most tokens that a request and its response may count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBounds {
    /// The most tokens of the request that a report may state: those of its text, by bytes, and what a chat template
    /// may add, but no more than the whole request has bytes for.
    pub input: u64,
    /// Tokens of the request's text, by its bytes: its price where nobody reports one.
    pub text: u64,
    /// Tokens of the response, by the request's `max_completion_tokens` or `max_tokens` for each of its choices; `None`
    /// if the request sets no limit.
    pub output: Option<u64>,
    /// The choices that the request asks for: `n` for each of its prompts. A choice beyond them counts nothing.
    pub choices: u64,
}

/// The fields of a request that bound its response.
#[derive(Default, Deserialize)]
struct OutputLimits {
    #[serde(default)]
    max_completion_tokens: Option<u64>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    n: Option<u64>,
    #[serde(default)]
    prompt: serde_json::Value,
}

impl OutputLimits {
    /// A prompt is a text or a list of token ids; a list of either is several prompts.
    fn prompts(&self) -> u64 {
        let is_list_of_prompts =
            |listed: &&Vec<serde_json::Value>| listed.first().is_some_and(|one| !one.is_number());
        let several = self.prompt.as_array().filter(is_list_of_prompts);
        several.map_or(1, |several| u64::try_from(several.len()).unwrap_or(u64::MAX))
    }
}

impl TokenBounds {
    /// The bounds of a request with this body. A body that is no JSON object sets no limit.
    pub fn of(body: &[u8]) -> Self {
        let limits: OutputLimits = serde_json::from_slice(without_mark(body)).unwrap_or_default();
        let each = limits.max_completion_tokens.or(limits.max_tokens);
        let choices = limits.n.unwrap_or(1).max(1).saturating_mul(limits.prompts());
        let whole = length(body).div_ceil(BYTES_PER_TOKEN);
        let (input, text) = match RequestText::of(body) {
            Some(read) => {
                let tokens = |texts: &[String]| {
                    let bytes: usize = texts.iter().map(String::len).sum();
                    u64::try_from(bytes).unwrap_or(u64::MAX).div_ceil(BYTES_PER_TOKEN)
                };
                let text = tokens(&read.texts).saturating_add(read.ids).min(whole);
                let most = text
                    .saturating_add(tokens(&read.others))
                    .saturating_add(read.template());
                (most.min(whole), text)
            }
            // An engine refuses such a request.
            None => (whole, whole),
        };
        Self {
            input,
            text,
            output: each.map(|each| each.saturating_mul(choices)),
            choices,
        }
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Tokens of one response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Tokens of the request.
    pub input: u64,
    /// Tokens of the response.
    pub output: u64,
}

/// Counts the tokens of one response while it passes.
#[derive(Debug)]
pub struct TokenMeter {
    reader: MeterReader,
    count: TokenCount,
}

/// How the body is read.
#[derive(Debug)]
enum MeterReader {
    /// By lines: events, and the comment with the engine's report.
    Events(LineSplitter),
    Document(JsonReader),
    /// Not at all.
    Nothing,
}

/// The texts of a response's choices, of which the model's tokenizer may count the tokens.
#[derive(Debug)]
struct KeptTexts {
    /// The most bytes of all texts together.
    max: usize,
    bytes: usize,
    choices: BTreeMap<u32, String>,
}

#[derive(Debug)]
struct TokenCount {
    bounds: TokenBounds,
    /// `None` if nobody counts the texts, or they are too long.
    texts: Option<KeptTexts>,
    /// Pieces of text in the response. Engines send one token in each event.
    pieces: u64,
    /// Whether the response is an event stream that has not come to its end.
    is_cut: bool,
    /// Bytes of text in the response.
    text_bytes: u64,
    reported: Option<TokenUsage>,
    /// Bytes of the response's body.
    bytes: u64,
    /// The engine sent an error inside its stream.
    saw_error: bool,
}

#[derive(Deserialize)]
struct ResponseUsage {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<ReportedUsage>,
    #[serde(default)]
    error: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    delta: Option<Message>,
    #[serde(default)]
    message: Option<Message>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    tool_calls: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct ReportedUsage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

impl TokenMeter {
    /// For a response of this content type to a request with these bounds.
    pub fn new(content_type: Option<&str>, bounds: TokenBounds) -> Self {
        let kind = BodyKind::of(content_type);
        let reader = match kind {
            BodyKind::Events => MeterReader::Events(LineSplitter::new(MAX_JSON)),
            BodyKind::Json | BodyKind::Other => {
                JsonReader::new(kind, MAX_JSON).map_or(MeterReader::Nothing, MeterReader::Document)
            }
        };
        Self {
            reader,
            count: TokenCount {
                bounds,
                texts: None,
                pieces: 0,
                is_cut: kind == BodyKind::Events,
                text_bytes: 0,
                reported: None,
                bytes: 0,
                saw_error: false,
            },
        }
    }

    /// Keeps the texts of the response for [`Self::texts`], up to this many bytes.
    #[must_use]
    pub fn keeping_texts(mut self, max: usize) -> Self {
        self.count.texts = Some(KeptTexts {
            max,
            bytes: 0,
            choices: BTreeMap::new(),
        });
        self
    }

    /// The text of each choice, reasoning and calls of tools included, in the order of the choices. `None` if they were
    /// not kept, or are too long.
    pub fn texts(&mut self) -> Option<Vec<String>> {
        self.end();
        let texts = self.count.texts.take()?;
        Some(texts.choices.into_values().collect())
    }

    /// Takes the next bytes of the body, which may end anywhere.
    pub fn update(&mut self, bytes: &[u8]) {
        self.count.bytes = self.count.bytes.saturating_add(length(bytes));
        match &mut self.reader {
            MeterReader::Events(lines) => lines.push(bytes, |line| self.count.read_line(line)),
            MeterReader::Document(document) => document.update(bytes, |json| self.count.read(json)),
            MeterReader::Nothing => {}
        }
    }

    /// Bytes that have passed.
    pub const fn bytes(&self) -> u64 {
        self.count.bytes
    }

    /// Bytes of text in the events that have passed.
    pub const fn text_bytes(&self) -> u64 {
        self.count.text_bytes
    }

    /// Whether the engine reported an error inside its stream.
    pub const fn saw_error(&self) -> bool {
        self.count.saw_error
    }

    /// The tokens that have passed until now. At the end of the response they are what is paid for and charged.
    pub fn usage(&mut self) -> TokenUsage {
        self.end();
        self.count.usage()
    }

    /// The tokens of a response whose texts the model's tokenizer has counted: the lower of the engine's report and of
    /// the count, and never more output than the request allows. A report may state as many tokens of input beyond the
    /// count as a chat template may add; without a report the text alone is counted.
    pub fn usage_by_count(&mut self, counted: TokenUsage, template: u64) -> TokenUsage {
        self.end();
        let reported = self.count.reported.unwrap_or(counted);
        let most = self.count.bounds.output.unwrap_or(u64::MAX);
        TokenUsage {
            input: reported.input.min(counted.input.saturating_add(template)),
            output: reported.output.min(counted.output).min(most),
        }
    }

    fn end(&mut self) {
        match &mut self.reader {
            MeterReader::Events(lines) => lines.finish(|line| self.count.read_line(line)),
            MeterReader::Document(document) => document.end(|json| self.count.read(json)),
            MeterReader::Nothing => {}
        }
    }
}

impl TokenCount {
    fn usage(&self) -> TokenUsage {
        let text = self.text_bytes.div_ceil(BYTES_PER_TOKEN);
        let counted = TokenUsage {
            input: self.bounds.text,
            // A stream that broke off lacks its report, and is no dearer than the tokens that came.
            output: if self.is_cut { self.pieces } else { text },
        };
        let usage = self.reported.unwrap_or(counted);
        TokenUsage {
            input: usage.input.min(self.bounds.input),
            output: usage.output.min(text).min(self.bounds.output.unwrap_or(u64::MAX)),
        }
    }

    fn read_line(&mut self, line: &[u8]) {
        if let Some(data) = event_stream::data(line) {
            self.is_cut &= data.trim_ascii() != DONE;
            self.read(data);
        } else if let Some(report) = line.strip_prefix(USAGE_COMMENT)
            && let Ok(usage) = serde_json::from_slice::<ReportedUsage>(report)
        {
            self.report(&usage);
        }
    }

    fn report(&mut self, usage: &ReportedUsage) {
        self.reported = Some(TokenUsage {
            input: usage.prompt_tokens,
            output: usage.completion_tokens,
        });
    }

    fn read(&mut self, json: &[u8]) {
        let Ok(read) = serde_json::from_slice::<ResponseUsage>(json) else {
            return;
        };
        self.saw_error |= read.error.is_some();
        let is_asked_for = |choice: &&Choice| u64::from(choice.index) < self.bounds.choices;
        for choice in read.choices.iter().filter(is_asked_for) {
            let bytes = choice.text_bytes();
            if bytes > 0 {
                self.pieces = self.pieces.saturating_add(1);
                self.text_bytes = self.text_bytes.saturating_add(bytes);
                self.texts = self.texts.take().and_then(|texts| texts.with(choice));
            }
        }
        if let Some(usage) = read.usage {
            self.report(&usage);
        }
    }
}

impl KeptTexts {
    /// Adds the text of a choice; `None` once the texts are too long.
    fn with(mut self, choice: &Choice) -> Option<Self> {
        let text = self.choices.entry(choice.index).or_default();
        let before = text.len();
        let messages = choice.delta.iter().chain(&choice.message);
        let parts = messages.flat_map(|message| [&message.reasoning_content, &message.content]);
        for part in std::iter::once(&choice.text).chain(parts).flatten() {
            text.push_str(part);
        }
        for message in choice.delta.iter().chain(&choice.message) {
            if let Some(calls) = &message.tool_calls {
                text.push_str(&calls.to_string());
            }
        }
        self.bytes = self.bytes.saturating_add(text.len().saturating_sub(before));
        (self.bytes <= self.max).then_some(self)
    }
}

impl Choice {
    fn text_bytes(&self) -> u64 {
        let of = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let mut bytes = of(&self.text);
        for message in self.delta.iter().chain(&self.message) {
            bytes += of(&message.content) + of(&message.reasoning_content);
            bytes += message
                .tool_calls
                .as_ref()
                .map_or(0, |calls| calls.to_string().len());
        }
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVENTS: Option<&str> = Some("text/event-stream; charset=utf-8");

    fn stream(words: &[&str], usage: Option<(u64, u64)>) -> String {
        let mut body =
            String::from(": hello\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n");
        for word in words {
            body += &format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{word}\"}}}}]}}\r\n\r\n");
        }
        if let Some((input, output)) = usage {
            body += &format!(
                "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{input},\"completion_tokens\":{output}}}}}\n\n"
            );
        }
        body + "data: [DONE]\n\n"
    }

    /// A request without a limit, with text for nine tokens at most.
    const UNLIMITED: TokenBounds = TokenBounds {
        input: 14,
        text: 9,
        output: None,
        choices: 2,
    };

    fn measured(body: &str, content_type: Option<&str>) -> TokenUsage {
        let mut meter = TokenMeter::new(content_type, UNLIMITED);
        meter.update(body.as_bytes());
        meter.usage()
    }

    #[test]
    fn a_report_is_taken_and_a_claim_of_more_than_there_is_text_is_not() {
        let body = stream(&["ab", "cd"], Some((7, 3)));
        assert_eq!(measured(&body, EVENTS), TokenUsage { input: 7, output: 2 });
        let body = stream(&["abcdef", "ghi"], Some((7_000, 3_000)));
        assert_eq!(measured(&body, EVENTS), TokenUsage { input: 14, output: 3 });
        let silent = stream(&["abcdef", "ghi"], None);
        assert_eq!(measured(&silent, EVENTS), TokenUsage { input: 9, output: 3 });
        let cut = silent.trim_end_matches("data: [DONE]\n\n");
        assert_eq!(
            measured(cut, EVENTS),
            TokenUsage { input: 9, output: 2 },
            "each event is a token"
        );
    }

    #[test]
    fn texts_are_kept_by_choice_up_to_a_length() {
        let body = concat!(
            "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"c\"}},{\"delta\":{\"content\":\"a\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"b\"}}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":9}}\n\n",
        );
        let kept = |max| {
            let mut meter = TokenMeter::new(EVENTS, UNLIMITED).keeping_texts(max);
            meter.update(body.as_bytes());
            meter.texts()
        };
        assert_eq!(kept(3), Some(vec!["ab".to_owned(), "c".to_owned()]));
        assert_eq!(kept(2), None, "too long");
        let mut meter = TokenMeter::new(EVENTS, UNLIMITED);
        meter.update(body.as_bytes());
        assert_eq!(meter.texts(), None, "nobody counts");
    }

    #[test]
    fn the_lower_of_report_and_count_pays() {
        let by_count = |usage, input, output| {
            let bounds = TokenBounds {
                input: 1,
                text: 1,
                output: Some(6),
                choices: 1,
            };
            let mut meter = TokenMeter::new(EVENTS, bounds);
            meter.update(stream(&["abcdef"], usage).as_bytes());
            let paid = meter.usage_by_count(TokenUsage { input, output }, 1);
            (paid.input, paid.output)
        };
        assert_eq!(by_count(Some((7, 3)), 9, 4), (7, 3), "the report");
        assert_eq!(
            by_count(Some((7_000, 3_000)), 9, 4),
            (10, 4),
            "the count and the template"
        );
        assert_eq!(
            by_count(Some((7_000, 3_000)), 9, 40),
            (10, 6),
            "the request's limit"
        );
        assert_eq!(by_count(None, 9, 4), (9, 4), "no report");
    }

    #[test]
    fn a_request_bounds_its_response() {
        let bounds = |body: &[u8]| TokenBounds::of(body).output;
        assert_eq!(bounds(br#"{"max_tokens":7}"#), Some(7));
        assert_eq!(
            bounds(br#"{"max_tokens":7,"max_completion_tokens":5,"n":3}"#),
            Some(15)
        );
        assert_eq!(bounds(br#"{"max_tokens":null}"#), None);
        for several in [r#"["a","b","c"]"#, "[[1],[2],[3]]"] {
            let body = format!(r#"{{"max_tokens":7,"n":2,"prompt":{several}}}"#);
            assert_eq!(bounds(body.as_bytes()), Some(42), "{several}");
        }
        for one in [r#""a""#, "[1,2,3]", "[]", "null"] {
            let body = format!(r#"{{"max_tokens":7,"n":2,"prompt":{one}}}"#);
            assert_eq!(bounds(body.as_bytes()), Some(14), "{one}");
        }
        assert_eq!(bounds(b"["), None);
        assert_eq!(TokenBounds::of(b"[123]").input, 2);
    }

    #[test]
    fn a_document_a_stream_and_a_stream_with_usage_have_one_price() {
        let plain = r#"{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"one two three"}]}"#;
        let wide = plain.replace(
            "\"m\",",
            "\"m\",\"stream\":true,\"user\":\"0123456789012345678901234567890123456789\",",
        );
        let cost = |request: &str, kind, body: &str| {
            let mut meter = TokenMeter::new(kind, TokenBounds::of(request.as_bytes()));
            meter.update(body.as_bytes());
            meter.usage()
        };
        let json = Some("application/json");
        let words = ["one ", "two ", "three ", "one "];
        let text = words.concat();
        let message = format!("\"choices\":[{{\"message\":{{\"content\":\"{text}\"}}}}]");
        let comment = ": muster-usage {\"prompt_tokens\":3,\"completion_tokens\":4}\ndata: [DONE]";
        let reported = [
            cost(
                plain,
                json,
                &format!("{{{message},\"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":4}}}}"),
            ),
            cost(&wide, EVENTS, &stream(&words, Some((3, 4)))),
            cost(
                &wide,
                EVENTS,
                &stream(&words, None).replace("data: [DONE]", comment),
            ),
        ];
        assert_eq!(reported, [TokenUsage { input: 3, output: 4 }; 3]);
        // An engine that reports nothing anywhere.
        let silent = [
            cost(plain, json, &format!("{{{message}}}")),
            cost(&wide, EVENTS, &stream(&words, None)),
        ];
        assert_eq!(silent, [TokenUsage { input: 6, output: 4 }; 2]);
    }

    #[test]
    fn splitting_joining_or_hiding_events_earns_a_miner_nothing() {
        let honest = ["one ", "two ", "three ", "four "];
        let text = honest.concat();
        let letters: Vec<&str> = text.split("").filter(|letter| !letter.is_empty()).collect();
        let most = u64::try_from(text.len()).unwrap().div_ceil(BYTES_PER_TOKEN);
        // In a whole stream the form of the events says nothing.
        for words in [&honest[..], &letters, &[text.as_str()]] {
            assert_eq!(measured(&stream(words, None), EVENTS).output, most);
            assert_eq!(measured(&stream(words, Some((3, 4))), EVENTS).output, 4);
        }
        // A stream that its engine breaks off pays no more than a whole one, and no more input.
        for (words, output) in [(&honest[..], 4), (&letters, most), (&[text.as_str()], 1)] {
            let cut = stream(words, None).replace("data: [DONE]\n\n", "");
            assert_eq!(measured(&cut, EVENTS), TokenUsage { input: 9, output });
        }
    }

    #[test]
    fn metadata_is_no_input() {
        let of = |more: &str| {
            let body = format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{more}}}"#);
            TokenBounds::of(body.as_bytes())
        };
        let metadata = format!(",\"metadata\":{{\"k\":\"{}\"}}", "x".repeat(30_000));
        assert_eq!((of("").text, of(&metadata).text), (2, 2));
        assert_eq!(
            of(&metadata).input,
            2 + crate::request_text::PER_MESSAGE + crate::request_text::PER_REQUEST
        );
        let picture = r#"[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]"#;
        let picture = TokenBounds::of(format!(r#"{{"messages":[{{"content":{picture}}}]}}"#).as_bytes());
        assert_eq!(picture.text, 0, "a picture has no text");
        assert!(picture.input > 20, "and an engine may report tokens of it");
    }

    #[test]
    fn an_engines_comment_is_read_as_a_report_and_bounded_as_one() {
        let body = stream(&["abcdef"], None);
        for (comment, output) in [
            (
                ": muster-usage {\"prompt_tokens\":5,\"completion_tokens\":1}\n",
                1,
            ),
            (
                ": muster-usage {\"prompt_tokens\":5,\"completion_tokens\":900}\n",
                2,
            ),
            (": muster-usage no JSON\n", 2),
            (": muster-usages {\"completion_tokens\":1}\n", 2),
        ] {
            assert_eq!(
                measured(&format!("{comment}{body}"), EVENTS).output,
                output,
                "{comment}"
            );
        }
    }

    #[test]
    fn padding_that_no_reader_sees_is_paid_up_to_the_requests_limit() {
        let hidden = "x".repeat(30_000);
        let mut body =
            format!("data: {{\"choices\":[{{\"delta\":{{\"reasoning_content\":\"{hidden}\"}}}}]}}\n\n");
        body += &stream(&["seen"], Some((7, 9_999)));
        let bounds = TokenBounds {
            output: Some(20),
            ..UNLIMITED
        };
        let mut meter = TokenMeter::new(EVENTS, bounds);
        meter.update(body.as_bytes());
        assert_eq!(meter.usage().output, 20);
    }

    #[test]
    fn choices_that_nobody_asked_for_count_nothing() {
        let body = concat!(
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"abc\"}},{\"index\":1,\"delta\":{\"content\":\"d\"}}]}\n\n",
            "data: {\"choices\":[{\"index\":7,\"delta\":{\"content\":\"e\"}}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":9}}\n\n",
        );
        let bounds = TokenBounds::of(br#"{"messages":[]}"#);
        let mut meter = TokenMeter::new(EVENTS, bounds).keeping_texts(100);
        meter.update(body.as_bytes());
        assert_eq!(meter.usage().output, 1);
        assert_eq!(meter.texts(), Some(vec!["abc".to_owned()]));
    }

    #[test]
    fn a_document_is_read_as_a_whole() {
        let body = r#"{"choices":[{"message":{"content":"abc"}}],"usage":{"prompt_tokens":5,"completion_tokens":2}}"#;
        assert_eq!(
            measured(body, Some("application/json")),
            TokenUsage { input: 5, output: 1 }
        );
        assert_eq!(
            measured(body, Some("image/png")),
            TokenUsage { input: 9, output: 0 }
        );
        let embedding = r#"{"data":[{"embedding":[1]}],"usage":{"prompt_tokens":5,"total_tokens":5}}"#;
        assert_eq!(
            measured(embedding, Some("application/json")),
            TokenUsage { input: 5, output: 0 }
        );
    }

    #[test]
    fn an_overlong_line_counts_nothing_and_the_next_one_does() {
        let mut meter = TokenMeter::new(EVENTS, UNLIMITED);
        meter.update(&vec![b'x'; MAX_JSON + 1]);
        meter.update(b"\ndata: {\"choices\":[{\"text\":\"a\"}]}\n");
        assert_eq!(meter.usage().output, 1);
    }

    #[test]
    fn an_error_in_the_stream_is_seen() {
        let mut meter = TokenMeter::new(EVENTS, UNLIMITED);
        meter.update(b"data: {\"error\":{\"message\":\"no\"}}\n\n");
        assert!(meter.saw_error());
    }

    proptest! {
        /// The network may cut the body anywhere.
        #[test]
        fn cuts_change_nothing(
            words in proptest::collection::vec("[a-z]{1,9}", 0..20),
            usage in proptest::option::of((0_u64..50, 0_u64..50)),
            cuts in proptest::collection::vec(1_usize..40, 0..60),
        ) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let body = stream(&words, usage);
            let mut meter = TokenMeter::new(EVENTS, UNLIMITED);
            let mut rest = body.as_bytes();
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                meter.update(head);
                rest = tail;
            }
            meter.update(rest);
            prop_assert_eq!(meter.usage(), measured(&body, EVENTS));
        }

        #[test]
        fn no_bytes_bring_it_down(body in proptest::collection::vec(any::<u8>(), 0..400), kind in 0..3) {
            let kind = [EVENTS, Some("application/json"), None][usize::try_from(kind).unwrap()];
            let mut meter = TokenMeter::new(kind, UNLIMITED);
            meter.update(&body);
            prop_assert!(meter.usage().output <= meter.bytes());
        }
    }
}
