//! A client of one peer: one request at a time on each connection, and connections kept for the next request.
//!
//! No task and no channel stands between a connection and the reader of its response, and there is no buffer while
//! nothing arrives; see [`super::body`].

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use muster_process::Tasks;

use super::body::{BodyError, Exchange, ResponseBody};
use super::head::write_request_head;
use super::pool::{ByteStream, ConnectionPool};

/// Makes connections to one peer.
pub trait Dial: Sync {
    /// Why a connection cannot be made.
    type Error: Send;

    /// Makes one connection.
    fn dial(&self) -> impl Future<Output = Result<ByteStream, Self::Error>> + Send;
}

/// Why there is no response.
#[derive(Debug)]
pub enum SendError<E> {
    /// No connection could be made.
    Connect(E),
    /// The connection broke before the response's head was complete.
    Broken(BodyError),
}

/// A client of one peer. Clones share their connections.
#[derive(Clone)]
pub struct Http1Client {
    pool: Arc<ConnectionPool>,
}

impl Http1Client {
    /// A client that keeps connections without a request for `max_idle_time`.
    pub fn new(max_idle_time: Duration, tasks: &Tasks) -> Self {
        Self {
            pool: ConnectionPool::new(max_idle_time, tasks),
        }
    }

    /// Sends a request over an idle connection or a new one, and waits for the response's head. Dropping the future
    /// closes the connection.
    ///
    /// # Errors
    /// No connection can be made, or it breaks before the response's head is complete.
    pub async fn send<D: Dial>(
        &self,
        request: Request<Full<Bytes>>,
        dial: &D,
    ) -> Result<Response<ResponseBody>, SendError<D::Error>> {
        let (head, mut body) = request.into_parts();
        let body = match body.frame().await {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(never)) => match never {},
            None => Bytes::new(),
        };
        let mut written = Vec::with_capacity(1024);
        write_request_head(&head, body.len(), &mut written);
        let written = Bytes::from(written);
        let method = head.method;
        loop {
            let (connection, is_reused) = match self.pool.take() {
                Some(connection) => (connection, true),
                None => (dial.dial().await.map_err(SendError::Connect)?, false),
            };
            let mut exchange = Exchange::new(connection, written.clone(), body.clone());
            let answered = exchange.read_head(&method).await;
            // The peer may close an idle connection at any time. A request of which it took no byte may be sent again.
            let is_untouched = exchange.unsent().remaining() == written.len() + body.len();
            match answered {
                Err(_) if is_reused && is_untouched => {}
                Err(broken) => return Err(SendError::Broken(broken)),
                Ok((head, rest)) => {
                    return Ok(exchange.into_response(head, &rest, Arc::downgrade(&self.pool)));
                }
            }
        }
    }
}

impl fmt::Debug for Http1Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Http1Client").field(&self.pool).finish()
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::Mutex as AsyncMutex;
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::super::header_lines::MalformedResponse;
    use super::*;

    /// Hands out the near ends of connections whose far ends a test holds.
    struct Dialled(mpsc::UnboundedSender<DuplexStream>);

    impl Dial for Dialled {
        type Error = ();

        async fn dial(&self) -> Result<ByteStream, ()> {
            let (near, far) = duplex(64 * 1024);
            self.0.send(far).map_err(|_| ())?;
            Ok(Box::new(near))
        }
    }

    struct Rig {
        client: Http1Client,
        dial: Dialled,
        dialled: AsyncMutex<mpsc::UnboundedReceiver<DuplexStream>>,
    }

    fn rig() -> Rig {
        let (dial, dialled) = mpsc::unbounded_channel();
        Rig {
            client: Http1Client::new(Duration::from_secs(60), &Tasks::new()),
            dial: Dialled(dial),
            dialled: AsyncMutex::new(dialled),
        }
    }

    const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

    impl Rig {
        async fn ask(&self) -> Result<Response<ResponseBody>, SendError<()>> {
            let request = Request::post("/x").body(Full::from("ask")).unwrap();
            self.client.send(request, &self.dial).await
        }

        /// The far end of the next connection.
        async fn far(&self) -> DuplexStream {
            self.dialled.lock().await.recv().await.unwrap()
        }

        fn idle(&self) -> usize {
            self.client.pool.idle_count()
        }

        /// Asks over a new connection, and answers with `text`.
        async fn new_connection(
            &self,
            text: &str,
        ) -> (Result<Response<ResponseBody>, SendError<()>>, DuplexStream) {
            tokio::join!(self.ask(), async {
                let mut far = self.far().await;
                receive(&mut far).await;
                far.write_all(text.as_bytes()).await.unwrap();
                far
            })
        }
    }

    /// Reads one request, whose body is `ask`.
    async fn receive(far: &mut DuplexStream) {
        let mut heard = Vec::new();
        while !heard.ends_with(b"ask") {
            let mut part = [0; 100];
            let length = far.read(&mut part).await.unwrap();
            assert!(length > 0, "hung up");
            heard.extend_from_slice(&part[..length]);
        }
    }

    async fn data(body: &mut ResponseBody) -> Bytes {
        body.frame().await.unwrap().unwrap().into_data().unwrap()
    }

    #[tokio::test]
    async fn events_read_together_are_one_piece_and_a_lone_event_does_not_wait() {
        let rig = rig();
        let (response, mut far) = rig.new_connection(HEAD).await;
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
            let (response, mut far) = rig.new_connection(text).await;
            let body = response.unwrap().into_body();
            assert_eq!(body.size_hint().exact(), Some(2), "{text}");
            assert_eq!(body.collect().await.unwrap().to_bytes(), "hi", "{text}");
            assert_eq!(rig.idle(), kept, "{text}");
            if kept == 1 {
                let (again, ()) = tokio::join!(rig.ask(), async {
                    receive(&mut far).await;
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
        let (first, far) = rig.new_connection(whole).await;
        assert!(first.is_ok());
        assert_eq!(rig.idle(), 1);
        drop(far);
        let (second, _far) = rig.new_connection(whole).await;
        assert!(second.is_ok());
        assert_eq!(rig.idle(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_nobody_asks_are_closed() {
        let rig = rig();
        let (_, mut far) = rig
            .new_connection("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .await;
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
            let (response, far) = rig.new_connection(&text).await;
            drop(far);
            let mut body = response.unwrap().into_body();
            assert_eq!(data(&mut body).await, "half", "{text}");
            let broken = body.frame().await.unwrap().unwrap_err();
            assert!(
                matches!(broken, BodyError::Cut | BodyError::Malformed(_)),
                "{text}: {broken}"
            );
            assert_eq!(rig.idle(), 0);
        }
        let rig = rig();
        let (response, far) = rig.new_connection("HTTP/1.1 200 OK\r\n\r\nall of it").await;
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
            Err(SendError::Broken(BodyError::Malformed(
                MalformedResponse::TooLong
            )))
        ));
    }
}
