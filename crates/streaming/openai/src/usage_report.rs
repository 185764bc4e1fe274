//! The engine's report of its tokens in a stream whose client did not ask for one.
//!
//! Engines report the tokens of a document always, and those of a stream only if `stream_options.include_usage` asks
//! for it. So that both have one price, the seal asks in its client's place: [`with_usage`] changes the request on the
//! way to the engine, and [`UsageFilter`] takes the event with the report out of the response. A comment line carries
//! the report on; clients ignore it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::request_body::without_mark;

/// The beginning of the comment line with the engine's report; the `usage` object follows, as JSON.
pub const USAGE_COMMENT: &[u8] = b": muster-usage ";
/// Bytes of the longest event that may be one with a report. A longer one passes.
const MAX_EVENT: usize = 16 * 1024;
const DATA: &[u8] = b"data:";

/// The request that asks the engine for the tokens of its stream; `None` if it asks already, wants no stream, or cannot
/// be read.
pub fn with_usage(body: &[u8]) -> Option<Vec<u8>> {
    let mut asked: BTreeMap<String, &RawValue> = serde_json::from_slice(without_mark(body)).ok()?;
    if asked.get("stream")?.get() != "true" {
        return None;
    }
    let options = asked
        .get("stream_options")
        .map_or("null", |options| options.get());
    let mut options: BTreeMap<String, &RawValue> = match options {
        "null" => BTreeMap::new(),
        given => serde_json::from_str(given).ok()?,
    };
    let yes: &RawValue = serde_json::from_str("true").ok()?;
    match options.insert("include_usage".to_owned(), yes).map(RawValue::get) {
        None | Some("false" | "null") => {}
        // A wrong value is the engine's to refuse.
        Some(_) => return None,
    }
    let options = serde_json::value::to_raw_value(&options).ok()?;
    asked.insert("stream_options".to_owned(), &options);
    serde_json::to_vec(&asked).ok()
}

/// A part of a filtered stream. The parts come in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilteredPart<'a> {
    /// Bytes that pass.
    Body(&'a [u8]),
    /// The engine's report, as JSON without line ends. It stands where a line begins.
    Usage(&'a str),
}

/// Takes the events that have a report and no choices out of a stream, wherever the network cuts it. The beginning of
/// an event that may be one is held back until its line ends.
#[derive(Debug, Default)]
pub struct UsageFilter {
    place: LinePlace,
    /// The beginning of a line that may be an event with a report.
    held: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinePlace {
    /// At the beginning of a line, or within one that is held.
    #[default]
    Start,
    /// Within a line that passes.
    Passing,
    /// Behind an event that was taken out: the empty line that ends it goes, too.
    AfterEvent,
}

/// An event with a report and no choices.
#[derive(Deserialize)]
struct UsageEvent<'a> {
    choices: [IgnoredAny; 0],
    #[serde(borrow)]
    usage: &'a RawValue,
}

// === impl UsageFilter ===

impl UsageFilter {
    /// Takes the next bytes of the stream and calls `each` with their parts.
    pub fn push(&mut self, input: &[u8], mut each: impl FnMut(FilteredPart<'_>)) {
        let mut rest = input;
        // Whole lines that pass are passed together.
        let mut passing = 0;
        while let Some(end) = rest
            .get(passing..)
            .and_then(|rest| rest.iter().position(|byte| *byte == b'\n'))
        {
            let begin = passing;
            let after = begin.saturating_add(end).saturating_add(1);
            let line = rest.get(begin..after).unwrap_or_default();
            if self.takes(line) {
                pass(rest.get(..begin).unwrap_or_default(), &mut each);
                rest = rest.get(after..).unwrap_or_default();
                passing = 0;
                self.end_taken(line, &mut each);
            } else {
                // Held bytes are of the first line, so nothing waits to be passed before them.
                self.release(&mut each);
                self.place = LinePlace::Start;
                passing = after;
            }
        }
        let (lines, tail) = rest.split_at(passing);
        pass(lines, &mut each);
        self.hold(tail, &mut each);
    }

    /// Ends the stream. Returns the bytes that were held back and pass after all.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Whether a line, of which the beginning may be held, is taken out.
    fn takes(&self, line: &[u8]) -> bool {
        match self.place {
            LinePlace::Passing => false,
            // The bound is that of held bytes, or a cut would change what is taken out.
            LinePlace::AfterEvent => {
                self.held.len().saturating_add(line.len()) <= MAX_EVENT
                    && self
                        .held
                        .iter()
                        .chain(line)
                        .all(|byte| matches!(byte, b'\r' | b'\n'))
            }
            LinePlace::Start if self.held.is_empty() => report(line).is_some(),
            LinePlace::Start => report(&[self.held.as_slice(), line].concat()).is_some(),
        }
    }

    fn end_taken(&mut self, line: &[u8], each: &mut impl FnMut(FilteredPart<'_>)) {
        let whole = [self.held.as_slice(), line].concat();
        self.held.clear();
        self.place = match self.place {
            LinePlace::Start => LinePlace::AfterEvent,
            LinePlace::AfterEvent | LinePlace::Passing => LinePlace::Start,
        };
        if let Some(usage) = report(&whole) {
            each(FilteredPart::Usage(usage));
        }
    }

    /// Passes the held beginning of a line that turned out to pass.
    fn release(&mut self, each: &mut impl FnMut(FilteredPart<'_>)) {
        pass(&std::mem::take(&mut self.held), each);
    }

    /// Takes the beginning of a line that has not ended.
    fn hold(&mut self, tail: &[u8], each: &mut impl FnMut(FilteredPart<'_>)) {
        if tail.is_empty() {
            return;
        }
        let begins =
            |line: &mut dyn Iterator<Item = &u8>, wanted: &[u8]| line.zip(wanted).all(|(a, b)| a == b);
        let is_held = self.held.len().saturating_add(tail.len()) <= MAX_EVENT
            && match self.place {
                LinePlace::Passing => false,
                LinePlace::Start => begins(&mut self.held.iter().chain(tail), DATA),
                LinePlace::AfterEvent => {
                    begins(&mut self.held.iter().chain(tail), DATA)
                        || self.held.iter().chain(tail).all(|byte| *byte == b'\r')
                }
            };
        if is_held {
            self.held.extend_from_slice(tail);
        } else {
            self.release(each);
            pass(tail, each);
            self.place = LinePlace::Passing;
        }
    }
}

fn pass(bytes: &[u8], each: &mut impl FnMut(FilteredPart<'_>)) {
    if !bytes.is_empty() {
        each(FilteredPart::Body(bytes));
    }
}

/// The report of a line that is an event with one and without choices.
fn report(line: &[u8]) -> Option<&str> {
    let json = line.strip_prefix(DATA).filter(|_| line.len() <= MAX_EVENT)?;
    let event: UsageEvent<'_> = serde_json::from_slice(json).ok()?;
    let UsageEvent { choices: [], usage } = event;
    usage.get().starts_with('{').then(|| usage.get())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const EVENT: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n";
    const REPORT: &str = "{\"prompt_tokens\":3,\"completion_tokens\":4}";

    fn filtered(pieces: &[&[u8]]) -> (String, Vec<String>) {
        let (mut body, mut reports) = (Vec::new(), Vec::new());
        let mut filter = UsageFilter::default();
        for piece in pieces {
            filter.push(piece, |part| match part {
                FilteredPart::Body(bytes) => body.extend_from_slice(bytes),
                FilteredPart::Usage(usage) => {
                    assert!(body.is_empty() || body.ends_with(b"\n"), "a line begins here");
                    reports.push(usage.to_owned());
                }
            });
        }
        body.extend(filter.finish());
        (String::from_utf8(body).unwrap(), reports)
    }

    fn asked(body: &str) -> Option<Value> {
        with_usage(body.as_bytes()).map(|body| serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn a_stream_is_asked_for_its_usage_unless_its_client_did() {
        let wanted = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true}});
        for body in [
            r#"{"model":"m","stream":true}"#,
            r#"{"model":"m","stream":true,"stream_options":null}"#,
            r#"{"model":"m","stream":true,"stream_options":{}}"#,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":false}}"#,
            "\u{feff}{\"model\":\"m\",\"stream\":true}",
        ] {
            assert_eq!(asked(body), Some(wanted.clone()), "{body}");
        }
        let more = asked(r#"{"stream":true,"stream_options":{"x":1.50}}"#).unwrap();
        assert_eq!(more["stream_options"], json!({"x": 1.5, "include_usage": true}));
        for body in [
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":"yes"}}"#,
            r#"{"stream":true,"stream_options":7}"#,
            r#"{"stream":false}"#,
            r#"{"stream":"true"}"#,
            "{}",
            "[]",
            "{",
        ] {
            assert_eq!(asked(body), None, "{body}");
        }
    }

    #[test]
    fn values_of_a_request_keep_their_bytes() {
        let body = r#"{"stream":true,"seed":12345678901234567890123,"top_p":0.10,"messages":[{"b":1,"a":"\u00e9"}]}"#;
        let changed = String::from_utf8(with_usage(body.as_bytes()).unwrap()).unwrap();
        for part in ["12345678901234567890123", "0.10", r#"[{"b":1,"a":"\u00e9"}]"#] {
            assert!(changed.contains(part), "{changed}");
        }
    }

    #[test]
    fn an_event_with_a_report_alone_is_taken_out_wherever_it_is_cut() {
        let word = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        for end in ["\n", "\r\n"] {
            let event = EVENT.replace('\n', end);
            let body = format!("{word}: ping\n\n{event}data: [DONE]\n\n");
            let wanted = (
                format!("{word}: ping\n\ndata: [DONE]\n\n"),
                vec![REPORT.to_owned()],
            );
            for cut in 0..=body.len() {
                let (head, tail) = body.as_bytes().split_at(cut);
                assert_eq!(filtered(&[head, tail]), wanted, "cut at {cut}");
            }
            let bytes: Vec<&[u8]> = body.as_bytes().chunks(1).collect();
            assert_eq!(filtered(&bytes), wanted);
        }
    }

    #[test]
    fn every_other_event_passes() {
        let long = format!(
            "data: {{\"choices\":[],\"usage\":{{\"x\":\"{}\"}}}}\n\n",
            "x".repeat(MAX_EVENT)
        );
        for body in [
            "data: {\"choices\":[{\"index\":0}],\"usage\":{\"prompt_tokens\":3}}\n\n",
            "data: {\"choices\":[],\"usage\":null}\n\n",
            "data: {\"choices\":[],\"usage\":7}\n\n",
            "data: {\"usage\":{}}\n\n",
            "data: {\"choices\":[],\"error\":{}}\n\n",
            "data: [DONE]\n\n",
            "data: {\"choices\":[],\"usage\":{",
            "id: 1\nretry: 2\n\n\n\n",
            long.as_str(),
        ] {
            let bytes: Vec<&[u8]> = body.as_bytes().chunks(1).collect();
            assert_eq!(filtered(&[body.as_bytes()]), (body.to_owned(), Vec::new()));
            assert_eq!(filtered(&bytes), (body.to_owned(), Vec::new()));
        }
    }

    #[test]
    fn whole_lines_are_never_held_back() {
        let mut filter = UsageFilter::default();
        for event in ["data: {\"choices\":[{}]}\n\n", "data: [DONE]\n\n", "event: x\n"] {
            let mut passed = Vec::new();
            filter.push(event.as_bytes(), |part| match part {
                FilteredPart::Body(bytes) => passed.extend_from_slice(bytes),
                FilteredPart::Usage(_) => {}
            });
            assert_eq!(passed, event.as_bytes());
        }
    }

    #[test]
    fn a_line_too_long_to_be_held_passes_wherever_it_is_cut() {
        for (line, passes) in [
            ("\r".repeat(MAX_EVENT - 1), false),
            ("\r".repeat(MAX_EVENT), true),
            (format!("data: {}", " ".repeat(MAX_EVENT)), true),
        ] {
            let body = format!("{}{line}\n", EVENT.trim_end_matches('\n').to_owned() + "\n");
            let whole = filtered(&[body.as_bytes()]);
            assert_eq!(whole.0.is_empty(), !passes, "{} bytes", line.len());
            for cut in [1, 100, MAX_EVENT - 1, MAX_EVENT] {
                let pieces: Vec<_> = body.as_bytes().chunks(cut).collect();
                assert!(
                    filtered(&pieces) == whole,
                    "{} bytes in pieces of {cut}",
                    line.len()
                );
            }
        }
    }

    proptest! {
        /// Lines of any kind, cut anywhere: only events with a report go.
        #[test]
        fn cuts_change_nothing(
            lines in proptest::collection::vec(prop_oneof![
                Just(EVENT.to_owned()), Just("data: {}\n\n".to_owned()), Just("\r\n".to_owned()),
                "[a-d:{}\" ]{0,9}\n", Just("data: {\"choices\":[],".to_owned()),
            ], 0..9),
            cuts in proptest::collection::vec(1_usize..30, 0..40),
        ) {
            let body = lines.concat();
            let mut pieces = Vec::new();
            let mut rest = body.as_bytes();
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                pieces.push(head);
                rest = tail;
            }
            pieces.push(rest);
            prop_assert_eq!(filtered(&pieces), filtered(&[body.as_bytes()]));
        }

        #[test]
        fn no_request_brings_it_down(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = with_usage(&body);
        }
    }
}
