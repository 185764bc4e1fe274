//! The door's connections: HTTP/1.1 and HTTP/2 on one port, bounded in number, in time and in size of heads.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use muster_process::{SharedClock, Tasks};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// From the first byte of a request's head to its last.
const HEAD: Duration = Duration::from_secs(30);
/// After a failed accept, so that a lack of file descriptors does not spin.
const PAUSE: Duration = Duration::from_millis(100);
/// Streams of one HTTP/2 connection.
const STREAMS: u32 = 256;
/// What an HTTP/2 connection holds for one stream that its client does not read.
const SEND_BUFFER: usize = 64 * 1024;
/// Between two signs of life on an HTTP/2 connection.
const PING: Duration = Duration::from_secs(30);

/// Serves `router` until the token of `tasks` is cancelled, `most` connections at a time.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    tasks: Tasks,
    clock: SharedClock,
    most: usize,
) {
    let places = Arc::new(Semaphore::new(most));
    let stop = tasks.token();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection to the gateway could not be taken");
                clock.sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            tracing::warn!(
                most,
                "too many connections to the gateway; a new one is hung up on"
            );
            continue;
        };
        // A connection that refuses the option is slower, not worse.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let stop = stop.clone();
        drop(tasks.spawn("gateway connection", async move {
            let mut builder = Builder::new(TokioExecutor::new());
            builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD);
            builder
                .http2()
                .timer(TokioTimer::new())
                .keep_alive_interval(PING)
                .max_concurrent_streams(STREAMS)
                .max_send_buf_size(SEND_BUFFER);
            let serving = builder.serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                // A client that hangs up is no error of ours.
                _ = serving => {}
                () = stop.cancelled() => {}
            }
            drop(place);
        }));
    }
}
