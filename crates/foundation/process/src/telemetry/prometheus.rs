//! An optional endpoint for Prometheus.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use muster_protocol::ErrorCode;
use tokio::net::{TcpListener, TcpStream};

use crate::clock::SharedClock;
use crate::connections::ConnectionBounds;
use crate::error::Coded;
use crate::listen::{self, Accepted, Acceptor, BindError};
use crate::task::Tasks;
use crate::telemetry::catalogue::{self, MetricRole};
use crate::telemetry::process_figures;

/// Text format of Prometheus.
const PROMETHEUS_TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
/// A scraper whose request head takes longer is disconnected.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections of scrapers at a time.
const BOUNDS: ConnectionBounds = ConnectionBounds {
    total: 64,
    per_address: 32,
};
/// The upper bounds of the buckets of every histogram, in seconds: all of them measure times, of requests and of jobs.
const BUCKETS: &[f64] = &[
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0,
];
/// Histograms grow between scrapes until they are folded, this often.
const UPKEEP: Duration = Duration::from_secs(5);

/// Metrics that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The address cannot be listened on.
    #[error("metrics: {0}")]
    Bind(#[from] BindError),
    /// The process has a recorder already.
    #[error("metrics are served already; a process does it once, in main")]
    Twice(#[source] BuildError),
}

impl Coded for MetricsError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Bind(error) => error.code(),
            Self::Twice(_) => None,
        }
    }
}

/// Records this process's metrics from now on and serves them at `http://ADDRESS/metrics` until shutdown. The metrics
/// of `role` in the [catalogue] are described, and its counters begin at zero.
///
/// Returns the address, which is new if the port is 0. Without this call metrics cost next to nothing.
///
/// # Errors
/// The address cannot be bound; a second call.
pub async fn serve_metrics(
    role: MetricRole,
    address: SocketAddr,
    tasks: &Tasks,
    clock: SharedClock,
) -> Result<SocketAddr, MetricsError> {
    let listener = listen::bind(address)?;
    let bound = listener
        .local_addr()
        .map_err(|source| BindError { address, source })?;
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), BUCKETS)
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(MetricsError::Twice)?;
    catalogue::register(role);
    metrics::gauge!("muster_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1);
    let (upkeep, token) = (handle.clone(), tasks.token());
    let upkeep_clock = SharedClock::clone(&clock);
    tasks.spawn("metrics-upkeep", async move {
        while token
            .run_until_cancelled(upkeep_clock.sleep(UPKEEP))
            .await
            .is_some()
        {
            upkeep.run_upkeep();
        }
    });
    tasks.spawn("metrics", accept(listener, handle, tasks.clone(), clock));
    Ok(bound)
}

async fn accept(listener: TcpListener, handle: PrometheusHandle, tasks: Tasks, clock: SharedClock) {
    let acceptor = Acceptor::new("metrics", listener, BOUNDS, clock, tasks.token());
    while let Some(Accepted { stream, permit, .. }) = acceptor.next().await {
        let serving = connection(stream, handle.clone(), tasks.clone());
        tasks.spawn("metrics-connection", async move {
            serving.await;
            drop(permit);
        });
    }
}

async fn connection(stream: TcpStream, handle: PrometheusHandle, tasks: Tasks) {
    let service = service_fn(move |request| {
        let answer = answer(&request, &handle);
        async { Ok::<_, Infallible>(answer) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Some(Err(error)) = tasks.token().run_until_cancelled(serving).await {
        tracing::debug!(%error, "metrics: a connection broke");
    }
}

fn answer<B>(request: &Request<B>, handle: &PrometheusHandle) -> Response<Full<Bytes>> {
    if request.uri().path() != "/metrics" {
        let mut missing = Response::new(Full::from("metrics are at /metrics\n"));
        *missing.status_mut() = StatusCode::NOT_FOUND;
        return missing;
    }
    process_figures::measure();
    let mut found = Response::new(Full::from(handle.render()));
    found.headers_mut().insert(CONTENT_TYPE, PROMETHEUS_TEXT);
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::clock::TestClock;

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    // One test, since a process has one recorder.
    #[tokio::test]
    async fn counters_are_served_until_shutdown() {
        let tasks = Tasks::new();
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let clock = Arc::new(TestClock::default());
        let address = serve_metrics(MetricRole::Miner, local, &tasks, clock)
            .await
            .unwrap();
        metrics::counter!("muster_test_total").increment(3);
        let page = get(address, "/metrics").await;
        assert!(page.contains("muster_test_total 3"), "{page}");
        for begins_with in [
            "muster_miner_leases_opened_total 0",
            "muster_miner_receipts_total{kind=\"finished\"} 0",
            "# HELP process_open_fds ",
            "process_resident_memory_bytes ",
            "muster_build_info{version=",
        ] {
            assert!(
                page.lines().any(|line| line.starts_with(begins_with)),
                "{begins_with}: {page}"
            );
        }
        assert!(
            !page.contains("muster_validator_"),
            "metrics of another role: {page}"
        );
        metrics::histogram!("muster_test_seconds").record(0.2);
        let page = get(address, "/metrics").await;
        assert!(
            page.contains("muster_test_seconds_bucket{le=\"0.25\"} 1"),
            "{page}"
        );
        assert!(get(address, "/").await.starts_with("HTTP/1.1 404"));
        let again = serve_metrics(MetricRole::Miner, local, &tasks, Arc::new(TestClock::default())).await;
        assert!(matches!(again, Err(MetricsError::Twice(_))), "{again:?}");
        tasks.shutdown();
        tasks.wait(muster_testbed::patience()).await.unwrap();
    }
}
