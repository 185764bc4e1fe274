//! A websocket server that hands each connection to the test.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::response::Response;
use muster_kit::Tasks;
use muster_rpc::{Limits, Socket, server};
use tokio::sync::mpsc;

use super::within;

/// Listens on a port of its own until it is dropped or closed.
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    sockets: mpsc::UnboundedReceiver<(String, Socket)>,
    tasks: Tasks,
}

#[derive(Clone)]
struct Bell {
    sockets: mpsc::UnboundedSender<(String, Socket)>,
    tasks: Tasks,
}

impl Door {
    pub(crate) async fn open() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, sockets) = mpsc::unbounded_channel();
        let tasks = Tasks::new();
        let bell = Bell {
            sockets: sender,
            tasks: tasks.clone(),
        };
        let service = Router::new()
            .fallback(ring)
            .with_state(bell)
            .into_make_service_with_connect_info::<SocketAddr>();
        let stop = tasks.token();
        drop(tasks.spawn("door", async move {
            tokio::select! {
                served = async { axum::serve(listener, service).await } => served.unwrap(),
                () = stop.cancelled() => {}
            }
        }));
        Self {
            address,
            sockets,
            tasks,
        }
    }

    /// The next connection, with the path it asked for.
    pub(crate) async fn next(&mut self) -> (String, Socket) {
        within("a connection", self.sockets.recv())
            .await
            .expect("the door is open")
    }

    /// Nobody can connect from here on.
    pub(crate) fn close(&self) {
        self.tasks.shutdown();
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.close();
    }
}

async fn ring(
    State(bell): State<Bell>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let path = request.uri().path().to_owned();
    let sockets = bell.sockets.clone();
    let answer = server::upgrade(
        request,
        peer,
        &Limits::miner(),
        &bell.tasks,
        move |socket| async move {
            let _ = sockets.send((path, socket));
        },
    );
    answer.map(Body::new)
}
