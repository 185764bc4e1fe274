//! The task that sends spans over OTLP: HTTP with protobuf.

use std::time::Duration;

use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks, tls};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;
use tokio::sync::mpsc;
use url::Url;

use crate::span_data::to_span_data;
use crate::span_queue::{MAX_WAITING, QUEUE, SpanBatch};

/// The path of a collector that is named by its host alone.
const TRACES_PATH: &str = "/v1/traces";
/// Batches of one request, at most.
const AT_ONCE: usize = 128;
/// How long spans wait for others, so that many jobs share a request.
const GATHER: Duration = Duration::from_secs(1);
/// How long the collector may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Spans that cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The address is no `http` or `https` URL with a host.
    #[error("traces: {0} is no address of a collector; write for example http://127.0.0.1:4318")]
    Address(Url),
    /// The HTTP client could not be made.
    #[error("traces: no HTTP client can be made")]
    Client(#[source] reqwest::Error),
    /// The exporter could not be made.
    #[error("traces: the exporter cannot be made; look at the variables OTEL_EXPORTER_OTLP_*")]
    Exporter(#[source] ExporterBuildError),
    /// The process exports already.
    #[error("traces are exported already; a process does it once, in main")]
    Twice,
}

/// Exports the spans of this process from now on to the collector at `address`, by OTLP over HTTP. `/v1/traces` is
/// added to an address without a path; further headers come from `OTEL_EXPORTER_OTLP_HEADERS`. The last spans are sent
/// when the process stops.
///
/// # Errors
/// An address that is none; a second call.
pub fn start(role: &'static str, address: Url, tasks: &Tasks, clock: SharedClock) -> Result<(), ExportError> {
    let endpoint = complete(address)?;
    tls::install_provider();
    let http = reqwest::Client::builder()
        .timeout(LIMIT)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(ExportError::Client)?;
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(http)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint.as_str())
        .with_timeout(LIMIT)
        .build()
        .map_err(ExportError::Exporter)?;
    let resource = Resource::builder_empty()
        .with_service_name(format!("muster-{role}"))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("process.pid", i64::from(std::process::id())))
        .build();
    exporter.set_resource(&resource);
    let (queue, batches) = mpsc::channel(MAX_WAITING);
    QUEUE.set(queue).map_err(|_| ExportError::Twice)?;
    tracing::info!(collector = endpoint.host_str(), "spans are exported");
    tasks.spawn("export spans", run(exporter, batches, tasks.clone(), clock));
    Ok(())
}

fn complete(mut address: Url) -> Result<Url, ExportError> {
    let is_http = matches!(address.scheme(), "http" | "https") && address.has_host();
    if !is_http {
        return Err(ExportError::Address(address));
    }
    if address.path() == "/" {
        address.set_path(TRACES_PATH);
    }
    Ok(address)
}

async fn run(
    exporter: SpanExporter,
    mut batches: mpsc::Receiver<SpanBatch>,
    tasks: Tasks,
    clock: SharedClock,
) {
    let (scope, token) = (InstrumentationScope::builder("muster").build(), tasks.token());
    let mut gathered = Vec::with_capacity(AT_ONCE);
    let mut is_away = false;
    while !token.is_cancelled() {
        let first = token.run_until_cancelled(batches.recv()).await.flatten();
        gathered.extend(first);
        token.run_until_cancelled(clock.sleep(GATHER)).await;
        while gathered.len() < AT_ONCE
            && let Ok(batch) = batches.try_recv()
        {
            gathered.push(batch);
        }
        is_away = send(&exporter, &scope, &mut gathered, is_away).await;
    }
    // The process stops: the spans of jobs that have just ended are still there.
    while let Ok(batch) = batches.try_recv() {
        gathered.push(batch);
    }
    send(&exporter, &scope, &mut gathered, is_away).await;
}

/// Sends what was gathered, and returns whether the collector is away. The change is logged once.
async fn send(
    exporter: &SpanExporter,
    scope: &InstrumentationScope,
    gathered: &mut Vec<SpanBatch>,
    was_away: bool,
) -> bool {
    if gathered.is_empty() {
        return was_away;
    }
    let spans = gathered.drain(..).flat_map(|batch| to_span_data(&batch, scope));
    match exporter.export(spans.collect()).await {
        Ok(()) if was_away => {
            tracing::info!("the collector takes spans again");
            false
        }
        Ok(()) => false,
        Err(error) if was_away => {
            tracing::debug!(error = %Causes(&error), "spans were not exported");
            true
        }
        Err(error) => {
            tracing::warn!(error = %Causes(&error), "the collector takes no spans; they are dropped until it does");
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_path_gets_the_usual_one() {
        let completed = |text: &str| complete(text.parse().unwrap()).map(String::from).ok();
        assert_eq!(
            completed("http://127.0.0.1:4318").as_deref(),
            Some("http://127.0.0.1:4318/v1/traces")
        );
        assert_eq!(
            completed("https://collector/own").as_deref(),
            Some("https://collector/own")
        );
        assert_eq!(completed("unix:/run/collector"), None);
        assert_eq!(completed("mailto:a@b"), None);
    }
}
