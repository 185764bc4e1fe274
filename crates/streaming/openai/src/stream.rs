//! Cuts a response body into JSON documents: one for each `data:` line of an event stream, or the body as a whole.
//!
//! Each line that begins with `data:` is an event of its own, as the engines write it. A line ends with `\n`, `\r` or both.

use memchr::memchr2;

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
        let essence = content_type
            .and_then(|value| value.split(';').next())
            .map(str::trim);
        match essence {
            Some(essence) if essence.eq_ignore_ascii_case("text/event-stream") => Self::Events,
            Some(essence) if essence.eq_ignore_ascii_case("application/json") => Self::Json,
            Some(_) | None => Self::Other,
        }
    }
}

/// Finds the JSON documents in a body while it passes. It holds one unfinished line or document, of at most `max` bytes.
#[derive(Debug)]
pub struct JsonReader {
    events: bool,
    /// Bytes of the longest line or document that is read. A longer one is skipped.
    max: usize,
    unfinished: Vec<u8>,
    /// The unfinished line or document has more than `max` bytes.
    too_long: bool,
}

impl JsonReader {
    /// `None` for a body that is not read.
    pub fn new(kind: BodyKind, max: usize) -> Option<Self> {
        let events = match kind {
            BodyKind::Events => true,
            BodyKind::Json => false,
            BodyKind::Other => return None,
        };
        Some(Self {
            events,
            max,
            unfinished: Vec::new(),
            too_long: false,
        })
    }

    /// Takes the next bytes of the body, which may end anywhere, and calls `read` with each document that is complete.
    pub fn update(&mut self, mut bytes: &[u8], mut read: impl FnMut(&[u8])) {
        while self.events {
            let Some(end) = memchr2(b'\n', b'\r', bytes) else {
                break;
            };
            let (line, rest) = bytes.split_at(end);
            if self.unfinished.is_empty() && !self.too_long {
                // The whole line is in `bytes`, so it is not copied.
                self.read_line(line, &mut read);
            } else {
                self.keep(line);
                self.end(&mut read);
            }
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.keep(bytes);
    }

    /// Takes the unfinished line or document as complete: the body has ended, or its state until now is asked for.
    pub fn end(&mut self, mut read: impl FnMut(&[u8])) {
        let mut unfinished = std::mem::take(&mut self.unfinished);
        if !std::mem::take(&mut self.too_long) {
            self.read_line(&unfinished, &mut read);
        }
        if self.events {
            // The buffer is used again: a stream has thousands of lines.
            unfinished.clear();
            self.unfinished = unfinished;
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.unfinished.len().saturating_add(bytes.len()) > self.max {
            self.too_long = true;
            self.unfinished = Vec::new();
        } else if !self.too_long {
            self.unfinished.extend_from_slice(bytes);
        }
    }

    fn read_line(&self, line: &[u8], read: &mut impl FnMut(&[u8])) {
        if line.len() > self.max {
            return;
        }
        if !self.events {
            read(line);
        } else if let Some(data) = line.strip_prefix(b"data:") {
            read(data);
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
    fn a_line_that_is_too_long_is_skipped_and_not_held_in_memory() {
        const MAX: usize = 1024 * 1024;
        let mut reader = JsonReader::new(BodyKind::Events, MAX).unwrap();
        let mut found = 0;
        let long = vec![b'x'; MAX / 2 + 1];
        for _ in 0..8 {
            reader.update(&long, |_| found += 1);
            assert!(reader.unfinished.capacity() <= MAX, "memory is bounded");
        }
        reader.update(b"\ndata: {}\n", |_| found += 1);
        assert_eq!(found, 1, "only the line after the long one is read");
        let whole = [b"data:".as_slice(), &long, &long, b"\ndata:1\n"].concat();
        assert_eq!(documents(BodyKind::Events, MAX, &[&whole])[0], "1");
    }
}
