//! A server that sends exactly the bytes that a test wants, lies included.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_process::Tasks;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A received request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The path with its query.
    pub(crate) path: String,
    /// The headers in the order of arrival, names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A step of an answer.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Bytes(Vec<u8>),
    /// These bytes again and again, for as long as the client reads them.
    Endless(Vec<u8>),
    /// One byte, then a pause, and so on.
    Drip,
    /// Nothing, for ever.
    Hang,
}

/// An answer; the connection is closed after its last step.
pub(crate) type Reply = Vec<Step>;

/// An answer with a length.
pub(crate) fn answer(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let len = body.len().to_string();
    let all = [headers, &[("Content-Length", &len)]].concat();
    vec![Step::Bytes([head(status, &all), body.to_vec()].concat())]
}

pub(crate) fn head(status: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let lines: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    format!("HTTP/1.1 {status}\r\nConnection: close\r\n{lines}\r\n").into_bytes()
}

/// Serves a whole file, or the requested range, as honest servers do.
pub(crate) fn file(request: &Request, etag: &str, body: &[u8]) -> Reply {
    let total = body.len();
    if request.header("if-none-match") == Some(etag) {
        return vec![Step::Bytes(head("304 Not Modified", &[("ETag", etag)]))];
    }
    let first = request
        .header("range")
        .filter(|_| request.header("if-range").is_none_or(|tag| tag == etag))
        .and_then(|range| {
            range
                .strip_prefix("bytes=")?
                .strip_suffix('-')?
                .parse::<usize>()
                .ok()
        });
    match first {
        Some(first) if first < total => {
            let range = format!("bytes {first}-{}/{total}", total - 1);
            answer(
                "206 Partial Content",
                &[("ETag", etag), ("Content-Range", &range)],
                &body[first..],
            )
        }
        Some(_) => answer(
            "416 Range Not Satisfiable",
            &[("Content-Range", &format!("bytes */{total}"))],
            b"",
        ),
        None => answer("200 OK", &[("ETag", etag), ("Accept-Ranges", "bytes")], body),
    }
}

type Handler = dyn Fn(&Request, usize) -> Reply + Send + Sync;

/// A server on a free port that ends when this value is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    tasks: Tasks,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.shutdown();
    }
}

impl Server {
    /// Starts a server. `handler` gets each request and the number of earlier ones.
    pub(crate) async fn start(handler: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with(handler, "127.0.0.1", true).await
    }

    /// Starts a server that answers before it has read the body.
    pub(crate) async fn rude(handler: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with(handler, "127.0.0.1", false).await
    }

    /// Starts a server on another host name than the others: all of 127.0.0.0/8 is this machine.
    pub(crate) async fn elsewhere(
        handler: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(handler, "127.0.0.2", true).await
    }

    async fn start_with(
        handler: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
        host: &str,
        reads_bodies: bool,
    ) -> Self {
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, tasks) = (Arc::<Mutex<Vec<Request>>>::default(), Tasks::new());
        let (handler, log, inner): (Arc<Handler>, _, _) =
            (Arc::new(handler), Arc::clone(&seen), tasks.clone());
        tasks.spawn("server", async move {
            let over = inner.token();
            loop {
                let stream = tokio::select! {
                    () = over.cancelled() => return,
                    accepted = listener.accept() => accepted.unwrap().0,
                };
                let (handler, log, over) = (Arc::clone(&handler), Arc::clone(&log), over.clone());
                inner.spawn("connection", async move {
                    tokio::select! {
                        () = over.cancelled() => {}
                        // A client may close the connection at any time.
                        _ = serve(stream, &*handler, &log, reads_bodies) => {}
                    }
                });
            }
        });
        Self { address, seen, tasks }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

/// The first byte of a client that speaks TLS, to which a server without it hangs up.
const TLS_HANDSHAKE: u8 = 0x16;

async fn serve(
    mut stream: TcpStream,
    handler: &Handler,
    log: &Mutex<Vec<Request>>,
    reads_bodies: bool,
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await? == 0 || bytes.first() == Some(&TLS_HANDSHAKE) {
            return Ok(());
        }
    };
    let mut request = parse(&bytes[..end]);
    request.body = bytes.split_off(end);
    let len = request
        .header("content-length")
        .and_then(|len| len.parse().ok())
        .unwrap_or(0);
    while reads_bodies && request.body.len() < len {
        if stream.read_buf(&mut request.body).await? == 0 {
            break;
        }
    }
    let before = {
        let mut log = log.lock().unwrap();
        log.push(request.clone());
        log.len() - 1
    };
    for step in handler(&request, before) {
        match step {
            Step::Bytes(bytes) => stream.write_all(&bytes).await?,
            Step::Endless(bytes) => loop {
                stream.write_all(&bytes).await?;
            },
            Step::Drip => {
                // The slowness is the subject of the test: no test waits for its end.
                let mut drops = tokio::time::interval(Duration::from_millis(5));
                loop {
                    drops.tick().await;
                    stream.write_all(b".").await?;
                }
            }
            Step::Hang => std::future::pending().await,
        }
    }
    stream.shutdown().await
}

fn parse(head: &[u8]) -> Request {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.lines();
    let mut first = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
    let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    Request {
        method,
        path,
        headers,
        body: vec![],
    }
}
