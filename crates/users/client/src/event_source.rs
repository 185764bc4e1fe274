//! The events of a response, read by the crate `eventsource-stream` with two bounds: the silence between two pieces and
//! the size of one event.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use eventsource_stream::{Event, EventStreamError, Eventsource as _};
use futures_util::{Stream, StreamExt as _, stream};
use muster_process::SharedClock;
use muster_protocol::Timestamp;
use reqwest::Response;

/// An event that is longer ends the stream.
const MAX_EVENT: usize = 8 * 1024 * 1024;
/// A stream without a byte for so long is dead: the facilitator sends a comment more often.
const SILENCE: Duration = Duration::from_secs(60);

/// Why a stream of events cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFailure {
    /// It ended, fell silent, holds no text, or the deadline passed. It can be opened again.
    Broken,
    /// An event is longer than [`MAX_EVENT`]: this is no facilitator's stream.
    TooLong,
}

/// The events of a response until `deadline`.
pub(crate) fn read_events(
    response: Response,
    deadline: Timestamp,
    clock: SharedClock,
) -> impl Stream<Item = Result<Event, StreamFailure>> {
    let pieces = stream::unfold(response, move |mut response| {
        let clock = SharedClock::clone(&clock);
        async move {
            let left = deadline.since(clock.now()).min(SILENCE);
            let piece = tokio::select! {
                piece = response.chunk() => piece,
                () = clock.sleep(left) => Ok(None),
            };
            Some((piece.ok()??, response))
        }
    });
    parse_events(pieces)
}

fn parse_events(pieces: impl Stream<Item = Bytes>) -> impl Stream<Item = Result<Event, StreamFailure>> {
    // Bytes that came since the last event.
    let unread = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&unread);
    let bounded = pieces.map(move |piece| {
        let before = counted.fetch_add(piece.len(), Ordering::Relaxed);
        if before.saturating_add(piece.len()) > MAX_EVENT {
            return Err(StreamFailure::TooLong);
        }
        Ok(piece)
    });
    bounded.eventsource().map(move |event| match event {
        Ok(event) => {
            unread.store(0, Ordering::Relaxed);
            Ok(event)
        }
        Err(EventStreamError::Transport(failure)) => Err(failure),
        Err(EventStreamError::Utf8(_) | EventStreamError::Parser(_)) => Err(StreamFailure::Broken),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &str = ": hello\n\nevent: log\ndata: {\"a\":1}\nid: 7\n\ndata: two\r\ndata:lines\r\n\r\nretry: 5\n\n\
                          event: status\ndata: é\n\n";

    fn events(pieces: Vec<Bytes>) -> Vec<Result<(String, String, String), StreamFailure>> {
        let parsed = parse_events(stream::iter(pieces));
        let parts = |event: Event| (event.event, event.data, event.id);
        futures_util::FutureExt::now_or_never(parsed.map(|event| event.map(parts)).collect()).unwrap()
    }

    fn expected() -> Vec<Result<(String, String, String), StreamFailure>> {
        [
            ("log", "{\"a\":1}", "7"),
            ("message", "two\nlines", "7"),
            ("status", "é", "7"),
        ]
        .map(|(kind, data, id)| Ok((kind.to_owned(), data.to_owned(), id.to_owned())))
        .to_vec()
    }

    #[test]
    fn events_are_read_as_the_standard_says() {
        assert_eq!(events(vec![Bytes::from_static(STREAM.as_bytes())]), expected());
    }

    #[test]
    fn an_event_that_does_not_end_is_not_collected() {
        let block = Bytes::from(vec![b'x'; MAX_EVENT / 2]);
        let pieces = vec![Bytes::from_static(b"data:"), block.clone(), block];
        assert_eq!(events(pieces).first(), Some(&Err(StreamFailure::TooLong)));
    }

    #[test]
    fn many_events_are_longer_than_one_may_be() {
        let event = Bytes::from(format!("data: {}\n\n", "x".repeat(MAX_EVENT / 4)));
        let read = events(vec![event; 8]);
        assert!(read.len() == 8 && read.iter().all(Result::is_ok));
    }

    proptest! {
        /// It does not matter where the network cuts.
        #[test]
        fn cuts_change_nothing(cuts in proptest::collection::vec(0..STREAM.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([STREAM.len()]) {
                pieces.push(Bytes::copy_from_slice(&STREAM.as_bytes()[from..cut]));
                from = cut;
            }
            prop_assert_eq!(events(pieces), expected());
        }
    }
}
