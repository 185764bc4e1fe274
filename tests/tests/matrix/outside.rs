//! The world outside of the subnet: inputs that come when they are let, and outputs that are counted.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, put};
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

/// A server of files that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Outside {
    address: SocketAddr,
    cells: Cells,
    tasks: Tasks,
}

impl Outside {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cells = Cells::default();
        let router = Router::new()
            .route("/input/{cell}", get(input))
            .route("/output/{cell}", put(output))
            .with_state(Arc::clone(&cells));
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
            tasks,
        }
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
