//! The world outside of the subnet: inputs that come when they are let, outputs that are counted, and a gate before the
//! facilitator's blocks of checkpoints.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{any, get, put};
use muster_process::Tasks;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The effects of one cell's job outside.
#[derive(Clone, Debug)]
struct Cell {
    input: watch::Sender<bool>,
    output: watch::Sender<bool>,
    /// The uploads, each once for each time that it came.
    marks: Vec<String>,
}

type Cells = Arc<Mutex<HashMap<String, Cell>>>;

/// The most bytes of a request about blocks: one block and a little.
const MAX_BLOCK_REQUEST: usize = 9 << 20;

/// The gate before the blocks of checkpoints.
#[derive(Clone, Debug)]
struct BlockGate {
    /// The facilitator, once it is known.
    facilitator: Arc<OnceLock<SocketAddr>>,
    open: watch::Sender<bool>,
    /// Requests that have found the gate closed since it was closed last.
    held: Arc<AtomicUsize>,
    http: reqwest::Client,
}

/// A server of files that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Outside {
    address: SocketAddr,
    cells: Cells,
    gate: BlockGate,
    tasks: Tasks,
}

impl Outside {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cells = Cells::default();
        let gate = BlockGate {
            facilitator: Arc::default(),
            open: watch::Sender::new(true),
            held: Arc::default(),
            http: reqwest::Client::new(),
        };
        let blocks = Router::new()
            .route("/blocks/{*rest}", any(pass))
            .with_state(gate.clone());
        let router = Router::new()
            .route("/input/{cell}", get(input))
            .route("/output/{cell}", put(output))
            .with_state(Arc::clone(&cells))
            .merge(blocks);
        let tasks = Tasks::new();
        let stop = tasks.token();
        tasks.spawn("outside", async move {
            axum::serve(listener, router)
                .with_graceful_shutdown(stop.cancelled_owned())
                .await
                .unwrap();
        });
        Self {
            address,
            cells,
            gate,
            tasks,
        }
    }

    /// The URL of the gate before the blocks of this facilitator.
    pub(crate) fn gate_of_blocks(&self, facilitator: SocketAddr) -> String {
        self.gate.facilitator.set(facilitator).unwrap();
        format!("http://{}", self.address)
    }

    /// Holds back what comes to the gate, or lets all of it through.
    pub(crate) fn hold_blocks(&self, held: bool) {
        if held {
            self.gate.held.store(0, Ordering::SeqCst);
        }
        self.gate.open.send_replace(!held);
    }

    /// How many requests have found the gate closed.
    pub(crate) fn held_blocks(&self) -> usize {
        self.gate.held.load(Ordering::SeqCst)
    }

    pub(crate) fn url(&self, what: &str, cell: &str) -> String {
        format!("http://{}/{what}/{cell}", self.address)
    }

    /// A cell begins, with its input and its output let through or held.
    pub(crate) fn begin(&self, cell: &str, input: bool, output: bool) {
        let made = Cell {
            input: watch::Sender::new(input),
            output: watch::Sender::new(output),
            marks: vec![],
        };
        self.cells.lock().unwrap().insert(cell.to_owned(), made);
    }

    /// Nothing is held any more.
    pub(crate) fn release(&self, cell: &str) {
        let cells = self.cells.lock().unwrap();
        cells[cell].input.send_replace(true);
        cells[cell].output.send_replace(true);
    }

    pub(crate) fn marks(&self, cell: &str) -> Vec<String> {
        self.cells.lock().unwrap()[cell].marks.clone()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.tasks.shutdown();
    }
}

async fn let_through(mut gate: watch::Receiver<bool>) {
    let _ = gate.wait_for(|open| *open).await;
}

/// Passes a request about blocks on to the facilitator once the gate is open.
async fn pass(State(gate): State<BlockGate>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, MAX_BLOCK_REQUEST).await.unwrap_or_default();
    let open = gate.open.subscribe();
    if !*open.borrow() {
        gate.held.fetch_add(1, Ordering::SeqCst);
    }
    let_through(open).await;
    let url = format!("http://{}{}", gate.facilitator.get().unwrap(), parts.uri);
    let mut asked = gate.http.request(parts.method, url).body(body);
    if let Some(kind) = parts.headers.get("content-type") {
        asked = asked.header("content-type", kind);
    }
    let answered = Response::builder();
    // While the facilitator is away its proxy reports that.
    let answer = match asked.send().await {
        Ok(answer) => answered
            .status(answer.status())
            .body(Body::from(answer.bytes().await.unwrap_or_default())),
        Err(_) => answered.status(StatusCode::BAD_GATEWAY).body(Body::empty()),
    };
    answer.unwrap()
}

async fn input(State(cells): State<Cells>, Path(cell): Path<String>) -> &'static str {
    let gate = cells.lock().unwrap()[&cell].input.subscribe();
    let_through(gate).await;
    "an input\n"
}

/// The mark is made when the upload has arrived; the answer may take longer.
async fn output(State(cells): State<Cells>, Path(cell): Path<String>, body: String) {
    let gate = {
        let mut cells = cells.lock().unwrap();
        let cell = cells.get_mut(&cell).unwrap();
        cell.marks.push(body.trim().to_owned());
        cell.output.subscribe()
    };
    let_through(gate).await;
}
