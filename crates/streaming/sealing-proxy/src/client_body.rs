//! The body of a response to the session's client.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use muster_http::http1::ResponseBody;
use muster_process::Tasks;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::response_relay::Relay;

/// The client has taken nothing of a response for longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client takes nothing of its response")]
pub struct ClientStalled;

/// A body that was held back until it was signed, or one that is streamed.
pub struct SealedBody(Kind);

enum Kind {
    Whole(Full<Bytes>),
    // Boxed, as a stream lives long and is moved often.
    Streamed(Box<Relay<ResponseBody>>),
    Multiplexed {
        shared: SharedRelay,
        /// Ends the watch for a stalled client.
        _watch: DropGuard,
    },
}

/// A streamed body that its watch can end.
#[derive(Clone)]
struct SharedRelay(Arc<Mutex<WatchedRelay>>);

struct WatchedRelay {
    /// `None` once the watch has ended it.
    relay: Option<Box<Relay<ResponseBody>>>,
    /// The time since which the client has not asked for more; `None` while the engine is awaited.
    idle_since: Option<Instant>,
}

impl SealedBody {
    /// A streamed body with a connection of its own, which is closed if the client takes nothing.
    pub(crate) fn streamed(relay: Relay<ResponseBody>) -> Self {
        Self(Kind::Streamed(Box::new(relay)))
    }

    /// Whether the body is [`Self::streamed`].
    pub(crate) fn is_streamed(&self) -> bool {
        matches!(self.0, Kind::Streamed(_))
    }

    /// A streamed body on one of several streams of a connection. If its client takes nothing for as long as `stall`,
    /// it ends as if the client had gone.
    pub(crate) fn multiplexed(relay: Relay<ResponseBody>, stall: Duration, tasks: &Tasks) -> Self {
        let watched = WatchedRelay {
            relay: Some(Box::new(relay)),
            idle_since: Some(Instant::now()),
        };
        let shared = SharedRelay(Arc::new(Mutex::new(watched)));
        let (over, watched) = (CancellationToken::new(), Arc::downgrade(&shared.0));
        let ending = over.clone();
        drop(tasks.spawn("sealed stream's watch", async move {
            // A response that is over needs no watch.
            let _ = ending.run_until_cancelled(watch(watched, stall)).await;
        }));
        Self(Kind::Multiplexed {
            shared,
            _watch: over.drop_guard(),
        })
    }
}

/// Ends a response whose client takes nothing for too long.
async fn watch(watched: Weak<Mutex<WatchedRelay>>, stall: Duration) {
    while let Some(shared) = watched.upgrade().map(SharedRelay) {
        let due = shared.0.lock().idle_since.unwrap_or_else(Instant::now) + stall;
        if due <= Instant::now() {
            // Dropping the relay signs what was sent.
            let stalled = shared.0.lock().relay.take();
            drop(stalled);
            return;
        }
        drop(shared);
        sleep_until(due).await;
    }
}

impl WatchedRelay {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ClientStalled>>> {
        let Some(relay) = &mut self.relay else {
            return Poll::Ready(Some(Err(ClientStalled)));
        };
        let polled = Pin::new(&mut **relay).poll_frame(cx);
        self.idle_since = polled.is_ready().then(Instant::now);
        polled.map_err(|never| match never {})
    }
}

impl From<Full<Bytes>> for SealedBody {
    fn from(whole: Full<Bytes>) -> Self {
        Self(Kind::Whole(whole))
    }
}

impl fmt::Debug for SealedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Whole(_) => "SealedBody(whole)",
            Kind::Streamed(_) | Kind::Multiplexed { .. } => "SealedBody(streamed)",
        })
    }
}

impl Body for SealedBody {
    type Data = Bytes;
    type Error = ClientStalled;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientStalled>>> {
        match &mut self.get_mut().0 {
            Kind::Whole(whole) => Pin::new(whole).poll_frame(cx).map_err(|never| match never {}),
            Kind::Streamed(relay) => Pin::new(&mut **relay)
                .poll_frame(cx)
                .map_err(|never| match never {}),
            Kind::Multiplexed { shared, .. } => shared.0.lock().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(whole) => whole.is_end_stream(),
            Kind::Streamed(relay) => relay.is_end_stream(),
            Kind::Multiplexed { shared, .. } => {
                let watched = shared.0.lock();
                watched.relay.as_ref().is_some_and(|relay| relay.is_end_stream())
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(whole) => whole.size_hint(),
            // The proof is added, and Muster's comment lines are removed.
            Kind::Streamed(_) | Kind::Multiplexed { .. } => SizeHint::default(),
        }
    }
}
