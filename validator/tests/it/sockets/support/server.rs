//! A websocket server that hands each connection to the test and serves the receipt pages that the test writes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::response::Response;
use muster_process::Tasks;
use muster_protocol::{FeatureSet, MUSTER_FEATURES_HEADER, MUSTER_PROTOCOL_HEADER};
use muster_websocket::{Limits, Socket, server};
use tokio::sync::mpsc;

use super::within;

/// Listens on a port of its own until it is dropped or closed.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    sockets: mpsc::UnboundedReceiver<(String, Socket)>,
    tasks: Tasks,
    pages: Pages,
    plain: Arc<AtomicBool>,
    features: ShownFeatures,
}

/// The features that the server shows; its own if `None`.
type ShownFeatures = Arc<Mutex<Option<FeatureSet>>>;

/// Pages by the last part of their paths, and statements by their whole paths.
type Pages = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

#[derive(Clone)]
struct ServerState {
    sockets: mpsc::UnboundedSender<(String, Socket)>,
    tasks: Tasks,
    pages: Pages,
    plain: Arc<AtomicBool>,
    features: ShownFeatures,
}

/// The limits of a miner that sends frames of any size.
const LIMITS: Limits = Limits {
    max_frame: 128 << 20,
    ..Limits::miner()
};

impl TestServer {
    pub(crate) async fn open() -> Self {
        Self::open_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// A server at an address that was free a moment ago.
    pub(crate) async fn open_at(address: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, sockets) = mpsc::unbounded_channel();
        let tasks = Tasks::new();
        let (pages, plain) = (Pages::default(), Arc::<AtomicBool>::default());
        let features = ShownFeatures::default();
        let server = ServerState {
            sockets: sender,
            tasks: tasks.clone(),
            pages: Arc::clone(&pages),
            plain: Arc::clone(&plain),
            features: Arc::clone(&features),
        };
        let service = Router::new()
            .fallback(upgrade)
            .with_state(server)
            .into_make_service_with_connect_info::<SocketAddr>();
        let stop = tasks.token();
        drop(tasks.spawn("server", async move {
            tokio::select! {
                served = async { axum::serve(listener, service).await } => served.unwrap(),
                () = stop.cancelled() => {}
            }
        }));
        Self {
            address,
            sockets,
            tasks,
            pages,
            plain,
            features,
        }
    }

    /// From here on the server does not show that it is Muster.
    pub(crate) fn be_plain(&self) {
        self.plain.store(true, Ordering::Relaxed);
    }

    /// From here on the server shows these features, as an older peer does.
    pub(crate) fn show_features(&self, features: FeatureSet) {
        *self.features.lock().unwrap() = Some(features);
    }

    /// Adds to a page.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let mut pages = self.pages.lock().unwrap();
        pages.entry(name.to_owned()).or_default().extend_from_slice(bytes);
    }

    /// Puts other bytes in the place of a page.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) {
        self.pages.lock().unwrap().insert(name.to_owned(), bytes.to_vec());
    }

    /// The next connection, with the path it asked for.
    pub(crate) async fn next(&mut self) -> (String, Socket) {
        within("a connection", self.sockets.recv())
            .await
            .expect("the server is open")
    }

    /// The next connection however long it takes.
    pub(crate) async fn next_ever(&mut self) -> (String, Socket) {
        self.sockets.recv().await.expect("the server is open")
    }

    /// The connections that the test has not taken yet.
    pub(crate) fn waiting(&self) -> usize {
        self.sockets.len()
    }

    /// Refuses connections from here on.
    pub(crate) fn close(&self) {
        self.tasks.shutdown();
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.close();
    }
}

async fn upgrade(
    State(server): State<ServerState>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let path = request.uri().path().to_owned();
    if let Some(name) = path.strip_prefix("/receipts/") {
        return page(&server, name, &request);
    }
    // A validator's statements and bundles are pages under their whole paths.
    if path.starts_with("/capacity") || path.starts_with("/audits") {
        return page(&server, &path, &request);
    }
    let sockets = server.sockets.clone();
    let answer = server::upgrade(request, peer, &LIMITS, &server.tasks, move |socket| async move {
        let _ = sockets.send((path, socket));
    });
    let mut answer = answer.map(Body::new);
    if server.plain.load(Ordering::Relaxed) {
        answer.headers_mut().remove(MUSTER_PROTOCOL_HEADER);
    }
    if let Some(features) = *server.features.lock().unwrap() {
        let shown = features.to_string().parse().unwrap();
        answer.headers_mut().insert(MUSTER_FEATURES_HEADER, shown);
    }
    answer
}

/// A page from the requested byte on, as ComputeHorde's miners serve it.
fn page(server: &ServerState, name: &str, request: &Request) -> Response {
    let answer = |status: u16, range: Option<String>, bytes: Vec<u8>| {
        let mut answer = Response::builder().status(status);
        if let Some(range) = range {
            answer = answer.header("content-range", range);
        }
        answer.body(Body::from(bytes)).unwrap()
    };
    let pages = server.pages.lock().unwrap();
    let Some(bytes) = pages.get(name) else {
        return answer(404, None, vec![]);
    };
    let range = request
        .headers()
        .get("range")
        .and_then(|range| range.to_str().ok());
    let Some(first) = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok())
    else {
        return answer(200, None, bytes.clone());
    };
    match bytes.get(first..) {
        Some(rest) if !rest.is_empty() => {
            let range = format!("bytes {first}-{}/{}", bytes.len() - 1, bytes.len());
            answer(206, Some(range), rest.to_vec())
        }
        Some(_) | None => answer(416, None, vec![]),
    }
}
