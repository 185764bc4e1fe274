//! The body of what the seal answers.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use crate::exchange::Arriving;
use crate::relay::Relay;

/// Held back until it was signed, or passing.
pub struct Answer(Kind);

enum Kind {
    Whole(Full<Bytes>),
    // A stream lives long and is polled often; it lies still in a place of its own.
    Passing(Box<Relay<Arriving>>),
}

impl Answer {
    pub(crate) fn passing(relay: Relay<Arriving>) -> Self {
        Self(Kind::Passing(Box::new(relay)))
    }
}

impl From<Full<Bytes>> for Answer {
    fn from(whole: Full<Bytes>) -> Self {
        Self(Kind::Whole(whole))
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Whole(_) => "Answer(whole)",
            Kind::Passing(_) => "Answer(passing)",
        })
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.get_mut().0 {
            Kind::Whole(whole) => Pin::new(whole).poll_frame(cx),
            Kind::Passing(relay) => Pin::new(&mut **relay).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(whole) => whole.is_end_stream(),
            Kind::Passing(relay) => relay.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(whole) => whole.size_hint(),
            Kind::Passing(relay) => relay.size_hint(),
        }
    }
}
