//! Requests over connections of HTTP/1.1: one at a time to a connection, answers as they arrive, connections kept for the next.
//!
//! There is no task and no channel between a connection and whoever reads its answer, and no buffer while nothing comes: the
//! reader's poll reads, and gets all that one read brought as one piece. So what an engine says in one go is passed on in one
//! go, what it says alone is passed on at once, and nothing is read before it is asked for.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::buf::Chain;
use bytes::{Buf, Bytes, BytesMut};
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use muster_process::Tasks;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep};
use tokio_util::io::poll_write_buf;
use tokio_util::sync::CancellationToken;

use crate::framing::{Framing, Head, Heads, Malformed, write_head};

/// How many connections without a request are kept.
const IDLE_CONNECTIONS: usize = 64;
/// What one read takes at most: a little less than a record of TLS, so that it fits into one again with what frames it.
const READ: usize = 16 * 1024 - 64;

/// One connection, whatever it goes through.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Io for T {}

/// One connection.
pub(crate) type Line = Box<dyn Io>;

/// Why an answer did not come, or not whole.
#[derive(Debug, thiserror::Error)]
pub enum BrokenOff {
    /// The connection broke.
    #[error("the connection broke")]
    Io(#[from] io::Error),
    /// The other side hung up before its answer was whole.
    #[error("the answer is cut off")]
    Cut,
    /// What came is no answer.
    #[error("what came is no answer")]
    Malformed(#[from] Malformed),
}

/// Whoever makes connections to one peer.
pub(crate) trait Dial: Sync {
    /// Why there is none.
    type Error: Send;

    /// One more.
    fn dial(&self) -> impl Future<Output = Result<Line, Self::Error>> + Send;
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Unsent<E> {
    /// There is no connection.
    Connect(E),
    /// There was one.
    Broken(BrokenOff),
}

/// Connections to one peer.
pub(crate) struct Pool {
    idle: Mutex<Idle>,
    /// How long a connection may stay without a request.
    limit: Duration,
    tasks: Tasks,
    dropped: CancellationToken,
}

#[derive(Default)]
struct Idle {
    /// Each with the time when it was given back.
    lines: VecDeque<(Line, Instant)>,
    /// Whether a task closes those that are too old.
    watched: bool,
}

/// A request on its way and what comes back.
struct Exchange {
    line: Line,
    unsent: Chain<Bytes, Bytes>,
    /// Something has been written that is not flushed.
    flushing: bool,
    /// Nothing more can be written; an answer may still come.
    deaf: Option<io::Error>,
}

/// What one read brought.
struct Taken {
    data: Bytes,
    /// Whether all that came was the body's.
    clean: Result<bool, Malformed>,
}

/// An answer's body as it arrives.
pub struct Arriving {
    /// While more may come.
    exchange: Option<Exchange>,
    framing: Framing,
    /// What is here already.
    here: Bytes,
    /// It broke behind that.
    broken: Option<BrokenOff>,
    /// Where the connection goes when it is over, if it can be asked again.
    pool: Option<Weak<Pool>>,
    upgrade: Option<Line>,
}

// === impl Pool ===

impl Pool {
    pub(crate) fn new(limit: Duration, tasks: &Tasks) -> Arc<Self> {
        Arc::new(Self {
            idle: Mutex::default(),
            limit,
            tasks: tasks.clone(),
            dropped: CancellationToken::new(),
        })
    }

    /// Asks, over a connection that is there or a new one. Dropping this hangs up.
    pub(crate) async fn send<D: Dial>(
        self: &Arc<Self>,
        request: Request<Full<Bytes>>,
        dial: &D,
    ) -> Result<Response<Arriving>, Unsent<D::Error>> {
        let (head, mut body) = request.into_parts();
        let body = match body.frame().await {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(never)) => match never {},
            None => Bytes::new(),
        };
        let mut written = Vec::with_capacity(1024);
        write_head(&head, body.len(), &mut written);
        let written = Bytes::from(written);
        let method = head.method;
        loop {
            let (line, used) = match self.take() {
                Some(line) => (line, true),
                None => (dial.dial().await.map_err(Unsent::Connect)?, false),
            };
            let mut exchange = Exchange::new(line, written.clone(), body.clone());
            let answered = exchange.head(&method).await;
            // The other side may hang up on an idle connection at any time. Of what it did not take it has seen nothing.
            let untouched = exchange.unsent.remaining() == written.len() + body.len();
            match answered {
                Err(_) if used && untouched => {}
                Err(broken) => return Err(Unsent::Broken(broken)),
                Ok((head, rest)) => return Ok(exchange.answer(head, &rest, Arc::downgrade(self))),
            }
        }
    }

    /// A connection that nobody uses, the last one first.
    fn take(&self) -> Option<Line> {
        let mut idle = self.idle();
        while let Some((mut line, _)) = idle.lines.pop_back() {
            if is_quiet(&mut line) {
                return Some(line);
            }
        }
        None
    }

    fn give_back(self: &Arc<Self>, line: Line) {
        let mut idle = self.idle();
        if idle.lines.len() == IDLE_CONNECTIONS {
            idle.lines.pop_front();
        }
        idle.lines.push_back((line, Instant::now()));
        if !std::mem::replace(&mut idle.watched, true) {
            let (pool, dropped) = (Arc::downgrade(self), self.dropped.clone());
            let stopping = self.tasks.token();
            self.tasks.spawn("idle connections", async move {
                tokio::select! {
                    () = close_idle(pool) => {}
                    () = dropped.cancelled() => {}
                    () = stopping.cancelled() => {}
                }
            });
        }
    }

    /// Closes what has been idle for too long. How long until there may be more of it; `None` if nothing is left.
    fn prune(&self) -> Option<Duration> {
        let (mut idle, now) = (self.idle(), Instant::now());
        while let Some((_, since)) = idle.lines.front() {
            let age = now.saturating_duration_since(*since);
            if age < self.limit {
                return Some(self.limit.saturating_sub(age));
            }
            idle.lines.pop_front();
        }
        idle.watched = false;
        None
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        // It is whole between any two statements.
        self.idle.lock()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.dropped.cancel();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} idle)", self.idle().lines.len())
    }
}

/// Runs while a pool has idle connections.
async fn close_idle(pool: Weak<Pool>) {
    while let Some(wait) = pool.upgrade().and_then(|pool| pool.prune()) {
        sleep(wait).await;
    }
}

/// Whether nothing has come on a connection on which nothing is to come, its end included.
fn is_quiet(line: &mut Line) -> bool {
    let mut byte = [0];
    let mut cx = Context::from_waker(Waker::noop());
    Pin::new(line)
        .poll_read(&mut cx, &mut ReadBuf::new(&mut byte))
        .is_pending()
}

// === impl Exchange ===

impl Exchange {
    fn new(line: Line, head: Bytes, body: Bytes) -> Self {
        Self {
            line,
            unsent: head.chain(body),
            flushing: true,
            deaf: None,
        }
    }

    /// The answer's head, and what came behind it.
    async fn head(&mut self, method: &Method) -> Result<(Head, Bytes), BrokenOff> {
        let mut heads = Heads::default();
        loop {
            let read = poll_fn(|cx| self.poll_read(cx, |bytes| heads.read(bytes, method)));
            match read.await? {
                None => return Err(self.cut()),
                Some(Err(malformed)) => return Err(malformed.into()),
                Some(Ok(None)) => {}
                Some(Ok(Some(found))) => return Ok(found),
            }
        }
    }

    fn answer(self, mut head: Head, rest: &[u8], pool: Weak<Pool>) -> Response<Arriving> {
        let mut response = Response::new(());
        *response.status_mut() = head.status;
        *response.headers_mut() = std::mem::take(&mut head.headers);
        let mut body = Arriving {
            exchange: Some(self),
            framing: head.body,
            here: Bytes::new(),
            broken: None,
            pool: head.keeps.then_some(pool),
            upgrade: None,
        };
        if head.status.is_informational() {
            body.here = Bytes::copy_from_slice(rest);
            body.upgrade = body.exchange.take().map(|exchange| exchange.line);
        } else {
            let taken = Taken::of(&mut body.framing, rest);
            body.take(taken);
        }
        response.map(|()| body)
    }

    /// Writes what the other side takes now. It is not waited for: an answer may come before.
    fn send(&mut self, cx: &mut Context<'_>) {
        while self.flushing && self.deaf.is_none() {
            let line = Pin::new(&mut self.line);
            let written = if self.unsent.has_remaining() {
                poll_write_buf(line, cx, &mut self.unsent).map_ok(|length| length > 0)
            } else {
                self.flushing = false;
                line.poll_flush(cx).map_ok(|()| true)
            };
            match written {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => self.deaf = Some(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Err(error)) => self.deaf = Some(error),
                Poll::Pending => {
                    self.flushing = true;
                    return;
                }
            }
        }
    }

    /// Reads once. `None` once the other side has hung up.
    fn poll_read<R>(
        &mut self,
        cx: &mut Context<'_>,
        each: impl FnOnce(&[u8]) -> R,
    ) -> Poll<io::Result<Option<R>>> {
        self.send(cx);
        // On the stack: while nothing comes there is no buffer.
        let mut room = [const { MaybeUninit::uninit() }; READ];
        let mut read = ReadBuf::uninit(&mut room);
        ready!(Pin::new(&mut self.line).poll_read(cx, &mut read))?;
        let come = read.filled();
        Poll::Ready(Ok((!come.is_empty()).then(|| each(come))))
    }

    /// Why the other side hung up, as far as anybody knows.
    fn cut(&mut self) -> BrokenOff {
        self.deaf.take().map_or(BrokenOff::Cut, BrokenOff::Io)
    }

    fn is_sent(&self) -> bool {
        !self.flushing && self.deaf.is_none()
    }
}

// === impl Taken ===

impl Taken {
    fn of(framing: &mut Framing, come: &[u8]) -> Self {
        let mut data = BytesMut::with_capacity(come.len());
        let own = framing.read(come, &mut data);
        Self {
            data: data.freeze(),
            clean: own.map(|own| own == come.len()),
        }
    }
}

// === impl Arriving ===

impl Arriving {
    fn take(&mut self, taken: Taken) {
        self.here = taken.data;
        match taken.clean {
            Err(malformed) => self.give_up(malformed.into()),
            Ok(clean) if self.framing.is_over() => self.let_go(clean),
            Ok(_) => {}
        }
    }

    fn give_up(&mut self, broken: BrokenOff) {
        self.exchange = None;
        self.broken = Some(broken);
    }

    /// The answer is over: its connection may be for the next. `clean` if nothing came behind it.
    fn let_go(&mut self, clean: bool) {
        let exchange = self
            .exchange
            .take()
            .filter(|exchange| clean && exchange.is_sent());
        let pool = self.pool.take().and_then(|pool| pool.upgrade());
        if let (Some(exchange), Some(pool)) = (exchange, pool) {
            pool.give_back(exchange.line);
        }
    }

    /// The connection after both sides agreed to speak something else on it, and what has already come.
    pub(crate) fn into_upgraded(self) -> Option<(Line, Bytes)> {
        Some((self.upgrade?, self.here))
    }
}

impl fmt::Debug for Arriving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Arriving").field(&self.framing).finish()
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let this = self.get_mut();
        loop {
            if !this.here.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.here)))));
            }
            if let Some(broken) = this.broken.take() {
                return Poll::Ready(Some(Err(broken)));
            }
            let Some(exchange) = &mut this.exchange else {
                let trailers = this.framing.trailers();
                return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
            };
            let framing = &mut this.framing;
            match ready!(exchange.poll_read(cx, |come| Taken::of(framing, come))) {
                Err(error) => this.give_up(error.into()),
                Ok(Some(taken)) => this.take(taken),
                Ok(None) if this.framing.hung_up() => this.let_go(false),
                Ok(None) => {
                    let cut = exchange.cut();
                    this.give_up(cut);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.here.is_empty()
            && self.broken.is_none()
            && self.framing.is_over()
            && !self.framing.has_trailers()
    }

    fn size_hint(&self) -> SizeHint {
        let here = u64::try_from(self.here.len()).unwrap_or(u64::MAX);
        let mut hint = SizeHint::new();
        match self.framing.left() {
            Some(left) => hint.set_exact(left.saturating_add(here)),
            None => hint.set_lower(here),
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::Mutex as AsyncMutex;
    use tokio::sync::mpsc;

    use super::*;

    /// Hands out the near ends of connections whose far ends a test holds.
    struct Dialled(mpsc::UnboundedSender<DuplexStream>);

    impl Dial for Dialled {
        type Error = ();

        async fn dial(&self) -> Result<Line, ()> {
            let (near, far) = duplex(64 * 1024);
            self.0.send(far).map_err(|_| ())?;
            Ok(Box::new(near))
        }
    }

    struct Rig {
        pool: Arc<Pool>,
        dial: Dialled,
        dialled: AsyncMutex<mpsc::UnboundedReceiver<DuplexStream>>,
    }

    fn rig() -> Rig {
        let (dial, dialled) = mpsc::unbounded_channel();
        Rig {
            pool: Pool::new(Duration::from_secs(60), &Tasks::new()),
            dial: Dialled(dial),
            dialled: AsyncMutex::new(dialled),
        }
    }

    const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

    impl Rig {
        async fn ask(&self) -> Result<Response<Arriving>, Unsent<()>> {
            let request = Request::post("/x").body(Full::from("ask")).unwrap();
            self.pool.send(request, &self.dial).await
        }

        /// The far end of the next connection.
        async fn far(&self) -> DuplexStream {
            self.dialled.lock().await.recv().await.unwrap()
        }

        fn idle(&self) -> usize {
            self.pool.idle().lines.len()
        }

        /// Asks over a new connection, and answers with `text`.
        async fn new_line(&self, text: &str) -> (Result<Response<Arriving>, Unsent<()>>, DuplexStream) {
            tokio::join!(self.ask(), async {
                let mut far = self.far().await;
                hear(&mut far).await;
                far.write_all(text.as_bytes()).await.unwrap();
                far
            })
        }
    }

    /// One request.
    async fn hear(far: &mut DuplexStream) {
        let mut heard = Vec::new();
        while !heard.ends_with(b"ask") {
            let mut part = [0; 100];
            let length = far.read(&mut part).await.unwrap();
            assert!(length > 0, "hung up");
            heard.extend_from_slice(&part[..length]);
        }
    }

    async fn data(body: &mut Arriving) -> Bytes {
        body.frame().await.unwrap().unwrap().into_data().unwrap()
    }

    #[tokio::test]
    async fn what_came_in_one_go_is_one_piece_and_what_came_alone_is_not_kept_waiting() {
        let rig = rig();
        let (response, mut far) = rig.new_line(HEAD).await;
        let mut body = response.unwrap().into_body();
        for event in ["data: 1\n\n", "data: 2\n\n"] {
            far.write_all(format!("9\r\n{event}\r\n").as_bytes())
                .await
                .unwrap();
            assert_eq!(data(&mut body).await, event);
        }
        let many = "9\r\ndata: 3\n\n\r\n".repeat(100) + "0\r\n\r\n";
        far.write_all(many.as_bytes()).await.unwrap();
        assert_eq!(data(&mut body).await, "data: 3\n\n".repeat(100));
        assert!(body.is_end_stream() && body.frame().await.is_none());
        assert_eq!(rig.idle(), 1);
    }

    #[tokio::test]
    async fn a_connection_is_asked_again_unless_it_may_be_out_of_step() {
        for (text, kept) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", 1),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
                1,
            ),
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi!", 0),
            (
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi",
                0,
            ),
        ] {
            let rig = rig();
            let (response, mut far) = rig.new_line(text).await;
            let body = response.unwrap().into_body();
            assert_eq!(body.size_hint().exact(), Some(2), "{text}");
            assert_eq!(body.collect().await.unwrap().to_bytes(), "hi", "{text}");
            assert_eq!(rig.idle(), kept, "{text}");
            if kept == 1 {
                let (again, ()) = tokio::join!(rig.ask(), async {
                    hear(&mut far).await;
                    far.write_all(text.as_bytes()).await.unwrap();
                });
                assert!(again.is_ok());
            }
        }
    }

    #[tokio::test]
    async fn a_connection_that_was_hung_up_on_while_idle_is_replaced() {
        let whole = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let rig = rig();
        let (first, far) = rig.new_line(whole).await;
        assert!(first.is_ok());
        assert_eq!(rig.idle(), 1);
        drop(far);
        let (second, _far) = rig.new_line(whole).await;
        assert!(second.is_ok());
        assert_eq!(rig.idle(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_nobody_asks_are_closed() {
        let rig = rig();
        let (_, mut far) = rig.new_line("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        let started = Instant::now();
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(started.elapsed(), Duration::from_secs(60));
        assert_eq!(rig.idle(), 0);
    }

    #[tokio::test]
    async fn an_answer_that_is_cut_off_is_told_apart_from_one_that_ended() {
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhalf".to_owned(),
            format!("{HEAD}5\r\nhalf"),
            format!("{HEAD}4\r\nhalf\r\n"),
            format!("{HEAD}4\r\nhalf\r\nnonsense"),
        ] {
            let rig = rig();
            let (response, far) = rig.new_line(&text).await;
            drop(far);
            let mut body = response.unwrap().into_body();
            assert_eq!(data(&mut body).await, "half", "{text}");
            let broken = body.frame().await.unwrap().unwrap_err();
            assert!(
                matches!(broken, BrokenOff::Cut | BrokenOff::Malformed(_)),
                "{text}: {broken}"
            );
            assert_eq!(rig.idle(), 0);
        }
        let rig = rig();
        let (response, far) = rig.new_line("HTTP/1.1 200 OK\r\n\r\nall of it").await;
        drop(far);
        let body = response.unwrap().into_body();
        assert_eq!(body.collect().await.unwrap().to_bytes(), "all of it");
    }

    #[tokio::test]
    async fn promises_without_end_are_no_answer() {
        let rig = rig();
        let promises = "HTTP/1.1 100 Continue\r\n\r\n".repeat(3_000);
        let asked = tokio::join!(rig.ask(), async {
            let mut far = rig.far().await;
            let _ = far.write_all(promises.as_bytes()).await;
            far
        });
        assert!(matches!(
            asked.0,
            Err(Unsent::Broken(BrokenOff::Malformed(Malformed::Long)))
        ));
    }
}
