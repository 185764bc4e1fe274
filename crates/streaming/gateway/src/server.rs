//! Accepts connections: HTTP/1.1 and HTTP/2 on one port, bounded in number and in the time of a request's head.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use muster_process::{SharedClock, Tasks};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Limit for the head of a request, from its first byte.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// The pause after a failed accept, so that a lack of file descriptors does not make the loop spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Concurrent streams of one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// Bytes that an HTTP/2 connection buffers for one stream that its client does not read.
const SEND_BUFFER: usize = 64 * 1024;
/// The interval between two pings on an HTTP/2 connection.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Serves `router` until the token of `tasks` is cancelled, at most `max` connections at a time.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    tasks: Tasks,
    clock: SharedClock,
    max: usize,
) {
    let permits = Arc::new(Semaphore::new(max));
    let stop = tasks.token();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection to the gateway could not be accepted");
                clock.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            tracing::warn!(max, "too many connections to the gateway; a new one is closed");
            continue;
        };
        // Without the option a connection is slower, but it works.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let stop = stop.clone();
        drop(tasks.spawn("gateway connection", async move {
            let mut builder = Builder::new(TokioExecutor::new());
            builder
                .http1()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_LIMIT);
            builder
                .http2()
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_INTERVAL)
                .max_concurrent_streams(MAX_STREAMS)
                .max_send_buf_size(SEND_BUFFER);
            let serving = builder.serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                // A client that closes the connection early is not an error.
                _ = serving => {}
                () = stop.cancelled() => {}
            }
            drop(permit);
        }));
    }
}
