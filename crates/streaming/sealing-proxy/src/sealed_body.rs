//! The body of what the seal answers.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use muster_process::Tasks;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::exchange::Arriving;
use crate::relay::Relay;

/// Its client has taken nothing of it for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client takes nothing of its answer")]
pub struct Stalled;

/// Held back until it was signed, or passing.
pub struct Answer(Kind);

enum Kind {
    Whole(Full<Bytes>),
    // A stream lives long and is polled often; it lies still in a place of its own.
    Passing(Box<Relay<Arriving>>),
    OneOfMany {
        shared: Shared,
        /// Ends its watch.
        _over: DropGuard,
    },
}

/// An answer that its watch can end.
#[derive(Clone)]
struct Shared(Arc<Mutex<Place>>);

struct Place {
    /// None once it was given up.
    relay: Option<Box<Relay<Arriving>>>,
    /// Since when something waits for the client to take it.
    given: Option<Instant>,
}

impl Answer {
    /// On a connection of its own, which is hung up on where its client takes nothing.
    pub(crate) fn passing(relay: Relay<Arriving>) -> Self {
        Self(Kind::Passing(Box::new(relay)))
    }

    /// Whether it is [`Self::passing`].
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self.0, Kind::Passing(_))
    }

    /// On one stream of a connection that has others. If its client takes nothing for as long as `stall`, it ends as if that
    /// one had gone, and its place is free.
    pub(crate) fn one_of_many(relay: Relay<Arriving>, stall: Duration, tasks: &Tasks) -> Self {
        let place = Place {
            relay: Some(Box::new(relay)),
            given: Some(Instant::now()),
        };
        let shared = Shared(Arc::new(Mutex::new(place)));
        let (over, watched) = (CancellationToken::new(), Arc::downgrade(&shared.0));
        let ending = over.clone();
        drop(tasks.spawn("sealed stream's watch", async move {
            // An answer that is over needs no watch.
            let _ = ending.run_until_cancelled(watch(watched, stall)).await;
        }));
        Self(Kind::OneOfMany {
            shared,
            _over: over.drop_guard(),
        })
    }
}

/// Gives an answer up that waits for its client for too long.
async fn watch(watched: Weak<Mutex<Place>>, stall: Duration) {
    while let Some(shared) = watched.upgrade().map(Shared) {
        let due = shared.place().given.unwrap_or_else(Instant::now) + stall;
        if due <= Instant::now() {
            // Dropping it signs what was sent.
            let stalled = shared.place().relay.take();
            drop(stalled);
            return;
        }
        drop(shared);
        sleep_until(due).await;
    }
}

impl Shared {
    fn place(&self) -> MutexGuard<'_, Place> {
        // It is whole between any two statements.
        self.0.lock()
    }
}

impl Place {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Stalled>>> {
        let Some(relay) = &mut self.relay else {
            return Poll::Ready(Some(Err(Stalled)));
        };
        let polled = Pin::new(&mut **relay).poll_frame(cx);
        self.given = polled.is_ready().then(Instant::now);
        polled.map_err(|never| match never {})
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
            Kind::Passing(_) | Kind::OneOfMany { .. } => "Answer(passing)",
        })
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Stalled;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Stalled>>> {
        match &mut self.get_mut().0 {
            Kind::Whole(whole) => Pin::new(whole).poll_frame(cx).map_err(|never| match never {}),
            Kind::Passing(relay) => Pin::new(&mut **relay)
                .poll_frame(cx)
                .map_err(|never| match never {}),
            Kind::OneOfMany { shared, .. } => shared.place().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(whole) => whole.is_end_stream(),
            Kind::Passing(relay) => relay.is_end_stream(),
            Kind::OneOfMany { shared, .. } => {
                let place = shared.place();
                place.relay.as_ref().is_some_and(|relay| relay.is_end_stream())
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(whole) => whole.size_hint(),
            // Bytes come out that did not go in, and the other way round.
            Kind::Passing(_) | Kind::OneOfMany { .. } => SizeHint::default(),
        }
    }
}
