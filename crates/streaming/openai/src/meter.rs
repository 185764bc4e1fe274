//! What came through: tokens as far as they can be counted by whoever passes the bytes on, and what they cost.
//!
//! The count is ours. Where an engine reports its usage that is taken, but never for more tokens than the answer has bytes of
//! text: a token is at least one byte, so an engine that claims more claims what nobody got.

use muster_response_proof::Price;
use serde::{Deserialize, Serialize};

/// The longest line of a stream, and the longest whole answer, that is looked into. What is longer is passed on and counted by
/// its bytes only.
const MAX_LINE: usize = 1024 * 1024;

/// Tokens of one response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the input.
    pub input: u64,
    /// Of the output.
    pub output: u64,
}

impl Usage {
    /// What it costs, in rao, rounded up.
    pub fn cost(self, price: Price) -> u64 {
        let part = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        let millionths = part(self.input, price.input) + part(self.output, price.output);
        u64::try_from(millionths.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

/// How the body is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Server-sent events.
    Events,
    /// One JSON document.
    Document,
    /// Something else: only bytes are counted.
    Opaque,
}

/// Reads along while an answer passes.
#[derive(Debug)]
pub struct Meter {
    form: Form,
    /// Bytes of text in the request: what its tokens cannot exceed.
    asked: u64,
    line: Vec<u8>,
    overlong: bool,
    /// Pieces of text that came, and their bytes.
    pieces: u64,
    text: u64,
    reported: Option<Usage>,
    bytes: u64,
    /// Whether an error was among the events.
    failed: bool,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Reported>,
    #[serde(default)]
    error: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice {
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
struct Reported {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

impl Meter {
    /// For an answer of this content type to a request whose body has so many bytes.
    pub fn new(content_type: Option<&str>, request_bytes: usize) -> Self {
        let kind = content_type
            .and_then(|kind| kind.split(';').next())
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
        Self {
            form: match kind.as_str() {
                "text/event-stream" => Form::Events,
                "application/json" => Form::Document,
                _ => Form::Opaque,
            },
            asked: u64::try_from(request_bytes).unwrap_or(u64::MAX),
            line: Vec::new(),
            overlong: false,
            pieces: 0,
            text: 0,
            reported: None,
            bytes: 0,
            failed: false,
        }
    }

    /// Takes the next bytes of the body. They need not end where a line does.
    pub fn update(&mut self, bytes: &[u8]) {
        self.bytes = self
            .bytes
            .saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        match self.form {
            Form::Opaque => {}
            Form::Document => self.keep(bytes),
            Form::Events => {
                let mut rest = bytes;
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let (head, tail) = rest.split_at(end);
                    self.keep(head);
                    self.end_line();
                    rest = tail.get(1..).unwrap_or_default();
                }
                self.keep(rest);
            }
        }
    }

    /// Bytes that have passed.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the engine reported an error inside its stream.
    pub const fn saw_error(&self) -> bool {
        self.failed
    }

    /// What has passed until now. At the end of the answer this is what is paid for and charged.
    pub fn usage(&mut self) -> Usage {
        match self.form {
            Form::Document | Form::Events => self.end_line(),
            Form::Opaque => {}
        }
        let counted = Usage {
            // Without a report: four bytes a token, what an English tokenizer comes to.
            input: self.asked.div_ceil(4),
            output: self.pieces,
        };
        let usage = self.reported.unwrap_or(counted);
        Usage {
            input: usage.input.min(self.asked),
            output: usage.output.min(self.text),
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.line.len().saturating_add(bytes.len()) > MAX_LINE {
            self.overlong = true;
            self.line.clear();
        }
        if !self.overlong {
            self.line.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        if !std::mem::take(&mut self.overlong) {
            self.read(&line);
        }
        line.clear();
        // The buffer is used again: a stream has thousands of lines.
        self.line = line;
    }

    fn read(&mut self, line: &[u8]) {
        let json = match self.form {
            Form::Document => line,
            Form::Events => match line.strip_prefix(b"data:") {
                Some(data) => data,
                None => return,
            },
            Form::Opaque => return,
        };
        let Ok(chunk) = serde_json::from_slice::<Chunk>(json) else {
            return;
        };
        self.failed |= chunk.error.is_some();
        for choice in &chunk.choices {
            let bytes = choice.bytes();
            if bytes > 0 {
                self.pieces = self.pieces.saturating_add(1);
                self.text = self.text.saturating_add(bytes);
            }
        }
        if let Some(usage) = chunk.usage {
            if chunk.choices.is_empty() && self.text == 0 {
                // Embeddings have no text; their output is the document.
                self.text = usage.completion_tokens.min(self.bytes);
            }
            self.reported = Some(Usage {
                input: usage.prompt_tokens,
                output: usage.completion_tokens,
            });
        }
    }
}

impl Choice {
    fn bytes(&self) -> u64 {
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

    fn measured(body: &str, content_type: Option<&str>) -> Usage {
        let mut meter = Meter::new(content_type, 40);
        meter.update(body.as_bytes());
        meter.usage()
    }

    #[test]
    fn a_report_is_taken_and_a_claim_of_more_than_there_is_text_is_not() {
        let body = stream(&["ab", "cd"], Some((7, 3)));
        assert_eq!(measured(&body, EVENTS), Usage { input: 7, output: 3 });
        let body = stream(&["ab", "cd"], Some((7_000, 3_000)));
        assert_eq!(measured(&body, EVENTS), Usage { input: 40, output: 4 });
        let silent = stream(&["ab", "cd"], None);
        assert_eq!(measured(&silent, EVENTS), Usage { input: 10, output: 2 });
    }

    #[test]
    fn a_document_is_read_as_a_whole() {
        let body = r#"{"choices":[{"message":{"content":"abc"}}],"usage":{"prompt_tokens":5,"completion_tokens":2}}"#;
        assert_eq!(
            measured(body, Some("application/json")),
            Usage { input: 5, output: 2 }
        );
        assert_eq!(measured(body, Some("image/png")), Usage { input: 10, output: 0 });
        let embedding = r#"{"data":[{"embedding":[1]}],"usage":{"prompt_tokens":5,"total_tokens":5}}"#;
        assert_eq!(
            measured(embedding, Some("application/json")),
            Usage { input: 5, output: 0 }
        );
    }

    #[test]
    fn what_is_too_long_to_be_read_is_not_kept() {
        let mut meter = Meter::new(EVENTS, 4);
        let long = vec![b'x'; MAX_LINE / 2 + 1];
        for _ in 0..8 {
            meter.update(&long);
            assert!(meter.line.capacity() <= MAX_LINE, "memory is bounded");
        }
        meter.update(b"\ndata: {\"choices\":[{\"text\":\"a\"}]}\n");
        assert_eq!(meter.usage().output, 1, "after an overlong line it goes on");
    }

    #[test]
    fn an_error_in_the_stream_is_seen() {
        let mut meter = Meter::new(EVENTS, 4);
        meter.update(b"data: {\"error\":{\"message\":\"no\"}}\n\n");
        assert!(meter.saw_error());
    }

    #[test]
    fn a_cost_is_rounded_up_and_never_overflows() {
        let price = Price {
            input: 1,
            output: 2_000_000,
        };
        assert_eq!(Usage { input: 1, output: 0 }.cost(price), 1);
        assert_eq!(Usage { input: 0, output: 3 }.cost(price), 6);
        let most = Usage {
            input: u64::MAX,
            output: u64::MAX,
        };
        assert_eq!(
            most.cost(Price {
                input: u64::MAX,
                output: 0
            }),
            u64::MAX
        );
    }

    proptest! {
        /// However a network cuts it.
        #[test]
        fn cuts_change_nothing(
            words in proptest::collection::vec("[a-z]{1,9}", 0..20),
            usage in proptest::option::of((0_u64..50, 0_u64..50)),
            cuts in proptest::collection::vec(1_usize..40, 0..60),
        ) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let body = stream(&words, usage);
            let mut meter = Meter::new(EVENTS, 40);
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
            let mut meter = Meter::new(kind, 4);
            meter.update(&body);
            prop_assert!(meter.usage().output <= meter.bytes());
        }
    }
}
