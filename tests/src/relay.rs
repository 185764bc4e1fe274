//! A relay between two roles, under a test's control: it passes websocket frames and HTTP requests on, and cuts,
//! repeats, swaps or delays them on request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_RANGE, CONTENT_TYPE, RANGE, UPGRADE};
use axum::response::{IntoResponse as _, Response};
use muster_process::Tasks;
use muster_websocket::server::upgrade;
use muster_websocket::{CloseCode, Limits, Socket, connect};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The treatment of the frames that pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weather {
    /// Frames pass unchanged.
    #[default]
    Fair,
    /// Every connection ends, and none comes about.
    Cut,
    /// Every frame comes twice.
    Duplicated,
    /// The next two frames of each way change places, unless the second does not come soon.
    Reordered,
    /// Every frame is late by this much.
    Delayed(Duration),
}

/// Frames that are swapped wait no longer than this for the one after them.
const SWAP: Duration = Duration::from_millis(300);

/// A relay that runs until it is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    open: Arc<AtomicUsize>,
    weather: watch::Sender<Weather>,
    tasks: Tasks,
}

#[derive(Clone)]
struct Passing {
    to: SocketAddr,
    open: Arc<AtomicUsize>,
    weather: watch::Receiver<Weather>,
    tasks: Tasks,
}

impl Relay {
    /// Passes on to `to`.
    ///
    /// # Errors
    /// There is no port.
    pub async fn start(to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (weather, watching) = watch::channel(Weather::Fair);
        let tasks = Tasks::new();
        let open = Arc::new(AtomicUsize::new(0));
        let passing = Arc::new(Passing {
            to,
            open: Arc::clone(&open),
            weather: watching,
            tasks: tasks.clone(),
        });
        let router = Router::new().fallback(pass).with_state(passing);
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let stop = tasks.token();
        tasks.spawn("relay", async move {
            let _ = axum::serve(listener, service)
                .with_graceful_shutdown(stop.cancelled_owned())
                .await;
        });
        Ok(Self {
            address,
            open,
            weather,
            tasks,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections that pass through it now.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Sets the treatment from now on.
    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.tasks.shutdown();
    }
}

async fn pass(
    State(passing): State<Arc<Passing>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    if *passing.weather.borrow() == Weather::Cut {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    let path = request
        .uri()
        .path_and_query()
        .map(|path| path.as_str().to_owned())
        .unwrap_or_default();
    if request.headers().contains_key(UPGRADE) {
        let tasks = passing.tasks.clone();
        let limits = Limits::miner();
        let url = format!("ws://{}{path}", passing.to);
        let weather = passing.weather.clone();
        let open = Arc::clone(&passing.open);
        let on_socket = move |socket| async move {
            open.fetch_add(1, Ordering::SeqCst);
            both_ways(socket, url, weather).await;
            open.fetch_sub(1, Ordering::SeqCst);
        };
        return upgrade(request, peer, &limits, &tasks, on_socket).map(Body::new);
    }
    fetch(&passing, &path, request)
        .await
        .unwrap_or_else(|_| StatusCode::BAD_GATEWAY.into_response())
}

/// A `GET`, with its range.
async fn fetch(passing: &Passing, path: &str, request: Request) -> Result<Response> {
    let mut asked = reqwest::Client::new().get(format!("http://{}{path}", passing.to));
    if let Some(range) = request.headers().get(RANGE) {
        asked = asked.header(RANGE, range);
    }
    let answer = asked.send().await?;
    let mut response = Response::builder().status(answer.status());
    for name in [CONTENT_TYPE, CONTENT_RANGE] {
        if let Some(value) = answer.headers().get(&name) {
            response = response.header(name, value);
        }
    }
    Ok(response.body(Body::from(answer.bytes().await?))?)
}

async fn both_ways(near: Socket, url: String, weather: watch::Receiver<Weather>) {
    let Ok(far) = connect(&url, &Limits::miner()).await else {
        return;
    };
    let (mut near_in, mut near_out) = near.split();
    let (mut far_in, mut far_out) = far.split();
    let mut cut = weather.clone();
    tokio::select! {
        () = one_way(&mut near_in, &mut far_out, weather.clone()) => {}
        () = one_way(&mut far_in, &mut near_out, weather) => {}
        _ = cut.wait_for(|weather| *weather == Weather::Cut) => return,
    }
    near_out.close(CloseCode::Normal, "").await;
    far_out.close(CloseCode::Normal, "").await;
}

async fn one_way(
    from: &mut muster_websocket::SocketReader,
    to: &mut muster_websocket::SocketWriter,
    weather: watch::Receiver<Weather>,
) {
    let mut swapped = false;
    while let Ok(Some(frame)) = from.recv().await {
        let now = *weather.borrow();
        let frames = match now {
            Weather::Fair | Weather::Cut => vec![frame],
            Weather::Duplicated => vec![frame.clone(), frame],
            Weather::Reordered if swapped => vec![frame],
            Weather::Reordered => {
                let next = tokio::time::timeout(SWAP, from.recv()); // bounds: there may be no frame to overtake it
                match next.await {
                    Ok(Ok(Some(next))) => {
                        swapped = true;
                        vec![next, frame]
                    }
                    Ok(Ok(None) | Err(_)) | Err(_) => vec![frame],
                }
            }
            Weather::Delayed(span) => {
                // Nothing comes of it but the time that passes, which is the fault.
                let _ = tokio::time::timeout(span, std::future::pending::<()>()).await;
                vec![frame]
            }
        };
        for frame in frames {
            if to.send(frame).await.is_err() {
                return;
            }
        }
    }
}
