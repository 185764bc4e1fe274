//! A server on a free port that hands every socket it upgrades to the test, and peers that are not ours.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::response::IntoResponse;
use axum::routing::any;
use muster_process::Tasks;
use muster_websocket::{Limits, Socket, server};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Bounds that a test can reach.
pub(crate) const LIMITS: Limits = Limits {
    max_frame: 1024 * 1024,
    heartbeat: Duration::from_secs(20),
    idle: Duration::from_secs(60),
    handshake: Duration::from_secs(600),
    write: Duration::from_secs(600),
};

/// An axum server, as every role has one.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) tasks: Tasks,
    sockets: mpsc::UnboundedReceiver<Socket>,
}

impl Server {
    pub(crate) async fn start(limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, limits)
    }

    pub(crate) fn on(listener: TcpListener, limits: Limits) -> Self {
        let tasks = Tasks::new();
        let (tell, sockets) = mpsc::unbounded_channel();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/ws", any(upgrade))
            .with_state((tasks.clone(), limits, tell))
            .into_make_service_with_connect_info::<SocketAddr>();
        let stop = tasks.token();
        tasks.spawn("server", async move {
            let serve = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
            serve.await.unwrap();
        });
        Self {
            address,
            tasks,
            sockets,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://{}/ws", self.address)
    }

    /// The next socket that was upgraded.
    pub(crate) async fn socket(&mut self) -> Socket {
        within(self.sockets.recv()).await.unwrap()
    }

    /// Both sides of a socket between two of ours.
    pub(crate) async fn with_client(&mut self, limits: &Limits) -> (Socket, Socket) {
        let client = muster_websocket::connect(&self.url(), limits).await.unwrap();
        (client, self.socket().await)
    }
}

type Shared = (Tasks, Limits, mpsc::UnboundedSender<Socket>);

async fn upgrade(
    State((tasks, limits, tell)): State<Shared>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> impl IntoResponse {
    server::upgrade(request, peer, &limits, &tasks, |socket| async move {
        tell.send(socket).unwrap();
    })
}

/// A hang is a failure with a name.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    muster_testbed::within("a step of a socket", future).await
}
