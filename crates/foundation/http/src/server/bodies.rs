//! Bodies of a server: a request's must make progress, and a response's keeps its connection in use.

use std::error::Error;
use std::fmt;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use muster_process::connections::ConnectionPermit;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

/// The bytes that are progress. A body that brings less within [`super::ServerLimits::body`] is given up.
const PROGRESS: u64 = 1024;

/// A request's body that fails if its client sends less than a KiB within a time.
#[derive(Debug)]
pub struct PacedBody<B> {
    inner: B,
    limit: Duration,
    /// Bytes since the last progress.
    received: u64,
    /// Runs since the body was first waited for after the last progress.
    timer: Option<Pin<Box<Sleep>>>,
}

/// A request's body that did not arrive.
#[derive(Debug)]
pub enum BodyError<E> {
    /// The connection broke, or the client sent something that is no body.
    Broken(E),
    /// The client sent too little within this time.
    Stalled(Duration),
}

impl<E> fmt::Display for BodyError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(_) => f.write_str("the connection broke before the request's body was complete"),
            Self::Stalled(limit) => {
                let seconds = limit.as_secs();
                write!(
                    f,
                    "the client sent less than {PROGRESS} bytes of its body in {seconds} seconds"
                )
            }
        }
    }
}

impl<E: Error + 'static> Error for BodyError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Broken(error) => Some(error),
            Self::Stalled(_) => None,
        }
    }
}

// === impl PacedBody ===

impl<B> PacedBody<B> {
    pub(super) fn new(inner: B, limit: Duration) -> Self {
        Self {
            inner,
            limit,
            received: 0,
            timer: None,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for PacedBody<B> {
    type Data = Bytes;
    type Error = BodyError<B::Error>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            this.received = this
                .received
                .saturating_add(data.map_or(0, |data| data.len() as u64));
            if this.received >= PROGRESS {
                this.received = 0;
                this.timer = None;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Broken)));
        }
        let limit = this.limit;
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Some(Err(BodyError::Stalled(limit))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// One request that its connection carries, until its response has been sent.
#[derive(Debug)]
pub(super) struct InFlight {
    requests: watch::Sender<usize>,
    /// The place of a client behind a proxy.
    _permit: Option<Arc<ConnectionPermit>>,
}

impl InFlight {
    pub(super) fn begin(requests: &watch::Sender<usize>, permit: Option<Arc<ConnectionPermit>>) -> Self {
        requests.send_modify(|open| *open += 1);
        Self {
            requests: requests.clone(),
            _permit: permit,
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.requests.send_modify(|open| *open = open.saturating_sub(1));
    }
}

pin_project_lite::pin_project! {
    /// A response's body, or the server's own refusal. Its request is in flight until this is dropped.
    #[derive(Debug)]
    pub struct ResponseInFlight<B> {
        #[pin]
        inner: Either<B, Full<Bytes>>,
        in_flight: Option<InFlight>,
    }
}

// === impl ResponseInFlight ===

impl<B> ResponseInFlight<B> {
    pub(super) fn new(inner: Either<B, Full<Bytes>>, in_flight: Option<InFlight>) -> Self {
        Self { inner, in_flight }
    }
}

impl<B> Body for ResponseInFlight<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.project().inner.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::BodyExt as _;
    use tokio::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A body whose pieces of `size` bytes come `pause` apart, for ever.
    struct TickingBody {
        size: usize,
        pause: Duration,
        next: Pin<Box<Sleep>>,
    }

    impl Body for TickingBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            ready!(self.next.as_mut().poll(cx));
            self.next = Box::pin(sleep(self.pause)); // paused time
            Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; self.size])))))
        }
    }

    fn body(size: usize, pause: Duration) -> PacedBody<TickingBody> {
        let next = Box::pin(sleep(pause)); // paused time
        PacedBody::new(TickingBody { size, pause, next }, LIMIT)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_given_up() {
        for (size, pause) in [(1, 1), (1023, 29), (4096, 31)] {
            let mut body = body(size, Duration::from_secs(pause));
            let started = Instant::now();
            let error = loop {
                if let Err(error) = body.frame().await.unwrap() {
                    break error;
                }
            };
            assert!(matches!(error, BodyError::Stalled(_)), "{error}");
            assert_eq!(started.elapsed(), LIMIT);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_that_makes_progress_goes_on() {
        for (size, pause) in [(1024, 29), (50, 1)] {
            let mut body = body(size, Duration::from_secs(pause));
            for _ in 0..1000 {
                body.frame().await.unwrap().unwrap();
            }
        }
    }
}
