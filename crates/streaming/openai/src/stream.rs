//! Cuts a response body into JSON documents: one for each `data:` line of an event stream, or the body as a whole.
//!
//! Each line that begins with `data:` is an event of its own, as the engines write it. A line ends with `\n`, `\r` or
//! both.

use muster_http::event_stream::{self, LineSplitter, is_event_stream, media_type};

/// How the body of a response is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// An event stream, in which comment lines may be inserted.
    Events,
    /// One JSON document.
    Json,
    /// Neither; the body is not read.
    Other,
}

impl BodyKind {
    /// Decides by the value of the response's `Content-Type` header.
    pub fn of(content_type: Option<&str>) -> Self {
        let is_json = |value| media_type(value).eq_ignore_ascii_case("application/json");
        if is_event_stream(content_type) {
            Self::Events
        } else if content_type.is_some_and(is_json) {
            Self::Json
        } else {
            Self::Other
        }
    }
}

/// Finds the JSON documents in a body while it passes. It holds one unfinished line or document, of at most `max`
/// bytes; a longer one is skipped.
#[derive(Debug)]
pub struct JsonReader {
    unfinished: UnfinishedJson,
}

#[derive(Debug)]
enum UnfinishedJson {
    Events(LineSplitter),
    Document(UnfinishedDocument),
}

/// The part of a document that has arrived.
#[derive(Debug)]
struct UnfinishedDocument {
    max: usize,
    bytes: Vec<u8>,
    is_too_long: bool,
}

impl JsonReader {
    /// `None` for a body that is not read.
    pub fn new(kind: BodyKind, max: usize) -> Option<Self> {
        let unfinished = match kind {
            BodyKind::Events => UnfinishedJson::Events(LineSplitter::new(max)),
            BodyKind::Json => UnfinishedJson::Document(UnfinishedDocument {
                max,
                bytes: Vec::new(),
                is_too_long: false,
            }),
            BodyKind::Other => return None,
        };
        Some(Self { unfinished })
    }

    /// Takes the next bytes of the body, which may end anywhere, and calls `read` with each document that is complete.
    pub fn update(&mut self, bytes: &[u8], read: impl FnMut(&[u8])) {
        match &mut self.unfinished {
            UnfinishedJson::Events(lines) => lines.push(bytes, read_data_of(read)),
            UnfinishedJson::Document(document) => document.update(bytes),
        }
    }

    /// Takes the unfinished line or document as complete: the body has ended, or its state until now is asked for.
    pub fn end(&mut self, mut read: impl FnMut(&[u8])) {
        match &mut self.unfinished {
            UnfinishedJson::Events(lines) => lines.finish(read_data_of(read)),
            UnfinishedJson::Document(document) => {
                let bytes = std::mem::take(&mut document.bytes);
                if !std::mem::take(&mut document.is_too_long) {
                    read(&bytes);
                }
            }
        }
    }
}

/// Calls `read` with the data of each line that has some.
fn read_data_of(mut read: impl FnMut(&[u8])) -> impl FnMut(&[u8]) {
    move |line| {
        if let Some(data) = event_stream::data(line) {
            read(data);
        }
    }
}

impl UnfinishedDocument {
    fn update(&mut self, bytes: &[u8]) {
        if self.bytes.len().saturating_add(bytes.len()) > self.max {
            self.is_too_long = true;
            self.bytes = Vec::new();
        } else if !self.is_too_long {
            self.bytes.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(kind: BodyKind, max: usize, pieces: &[&[u8]]) -> Vec<String> {
        let mut found = Vec::new();
        let mut read = |json: &[u8]| found.push(String::from_utf8_lossy(json).into_owned());
        let mut reader = JsonReader::new(kind, max).unwrap();
        for piece in pieces {
            reader.update(piece, &mut read);
        }
        reader.end(&mut read);
        found
    }

    #[test]
    fn the_content_type_decides_how_a_body_is_read() {
        let kind = |value| BodyKind::of(Some(value));
        assert_eq!(kind("text/event-stream"), BodyKind::Events);
        assert_eq!(kind(" Text/Event-Stream ; charset=utf-8"), BodyKind::Events);
        assert_eq!(kind("text/event-streamX"), BodyKind::Other);
        assert_eq!(kind("application/json"), BodyKind::Json);
        assert_eq!(kind("application/jsonl"), BodyKind::Other);
        assert_eq!(BodyKind::of(None), BodyKind::Other);
        assert!(JsonReader::new(BodyKind::Other, 10).is_none());
    }

    #[test]
    fn each_data_line_is_a_document_whatever_ends_it() {
        let body = b": ping\n\ndata: 1\r\n\r\ndata:2\rid: 3\ndata: 4";
        assert_eq!(documents(BodyKind::Events, 100, &[body]), [" 1", "2", " 4"]);
        let pieces: Vec<&[u8]> = body.chunks(3).collect();
        assert_eq!(documents(BodyKind::Events, 100, &pieces), [" 1", "2", " 4"]);
        assert_eq!(documents(BodyKind::Json, 100, &[b"{\n", b"}"]), ["{\n}"]);
    }

    #[test]
    fn a_line_or_document_that_is_too_long_is_skipped() {
        const MAX: usize = 1024;
        let long = vec![b'x'; MAX / 2 + 1];
        let body = [b"data:".as_slice(), &long, &long, b"\ndata:1\n"].concat();
        assert_eq!(documents(BodyKind::Events, MAX, &[&body])[0], "1");
        let pieces: Vec<&[u8]> = body.chunks(100).collect();
        assert_eq!(documents(BodyKind::Events, MAX, &pieces)[0], "1");
        assert_eq!(documents(BodyKind::Json, MAX, &pieces), Vec::<String>::new());
    }

    #[test]
    fn a_document_that_is_too_long_is_not_held_in_memory() {
        const MAX: usize = 1024 * 1024;
        let mut document = UnfinishedDocument {
            max: MAX,
            bytes: Vec::new(),
            is_too_long: false,
        };
        for _ in 0..8 {
            document.update(&vec![b'x'; MAX / 2 + 1]);
            assert!(document.bytes.capacity() <= MAX, "memory is bounded");
        }
        assert!(document.is_too_long);
    }
}
