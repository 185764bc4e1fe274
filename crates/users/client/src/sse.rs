//! Server-sent events, as the HTML standard defines them: bytes in, events out. Pure.

/// An event without an end is not collected beyond this.
const MAX_EVENT: usize = 8 * 1024 * 1024;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Its kind; `message` where the server gives none.
    pub kind: String,
    /// Its data; lines are joined by line feeds.
    pub data: String,
    /// The last id that the server gave, from which a stream can be resumed; empty if none.
    pub id: String,
}

/// An event that does not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {MAX_EVENT} bytes")]
pub struct TooLong;

/// What has come so far and is no event yet.
#[derive(Clone, Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    /// The last line ended with a carriage return: a line feed that follows belongs to it.
    returned: bool,
    kind: String,
    data: String,
    has_data: bool,
    id: String,
}

// === impl Parser ===

impl Parser {
    /// Takes the next bytes of a stream, wherever they were cut, and returns the events that they complete.
    ///
    /// # Errors
    /// See [`TooLong`].
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, TooLong> {
        let mut events = Vec::new();
        for &byte in bytes {
            let returned = std::mem::take(&mut self.returned);
            match byte {
                b'\n' if returned => {}
                b'\n' | b'\r' => {
                    self.returned = byte == b'\r';
                    let line = std::mem::take(&mut self.line);
                    events.extend(self.line(&String::from_utf8_lossy(&line)));
                }
                byte => self.line.push(byte),
            }
        }
        if self.line.len() + self.data.len() > MAX_EVENT {
            return Err(TooLong);
        }
        Ok(events)
    }

    fn line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let kind = std::mem::take(&mut self.kind);
            let data = std::mem::take(&mut self.data);
            if !std::mem::take(&mut self.has_data) {
                return None;
            }
            let kind = if kind.is_empty() {
                "message".to_owned()
            } else {
                kind
            };
            let id = self.id.clone();
            return Some(Event { kind, data, id });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.kind),
            "data" => {
                if self.has_data {
                    self.data.push('\n');
                }
                self.data.push_str(value);
                self.has_data = true;
            }
            "id" if !value.contains('\0') => value.clone_into(&mut self.id),
            // Comments, times to reconnect, and whatever a newer server says.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAM: &str = ": hello\n\nevent: log\ndata: {\"a\":1}\nid: 7\n\ndata: two\r\ndata:lines\r\n\r\nretry: 5\n\n\
                          event: status\rdata: x\r\r";

    fn event(kind: &str, data: &str, id: &str) -> Event {
        Event {
            kind: kind.to_owned(),
            data: data.to_owned(),
            id: id.to_owned(),
        }
    }

    #[test]
    fn events_are_read_as_the_standard_says() {
        let events = Parser::default().push(STREAM.as_bytes()).unwrap();
        assert_eq!(
            events,
            [
                event("log", "{\"a\":1}", "7"),
                event("message", "two\nlines", "7"),
                event("status", "x", "7"),
            ]
        );
    }

    #[test]
    fn an_event_that_does_not_end_is_not_collected() {
        let mut parser = Parser::default();
        let block = vec![b'x'; MAX_EVENT / 2];
        assert!(parser.push(b"data:").is_ok() && parser.push(&block).is_ok());
        assert_eq!(
            parser.push(&block).and_then(|_| parser.push(&block)),
            Err(TooLong)
        );
    }

    proptest! {
        /// It does not matter where the network cuts.
        #[test]
        fn cuts_change_nothing(cuts in proptest::collection::vec(0..STREAM.len(), 0..8)) {
            let whole = Parser::default().push(STREAM.as_bytes()).unwrap();
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut parser = Parser::default();
            let mut events = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([STREAM.len()]) {
                events.extend(parser.push(&STREAM.as_bytes()[from..cut]).unwrap());
                from = cut;
            }
            prop_assert_eq!(events, whole);
        }
    }
}
