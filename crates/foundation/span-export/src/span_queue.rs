//! The queue of spans to the task that exports them; it is there in processes that export.

use std::sync::OnceLock;

use tokio::sync::mpsc;

use crate::stage_span::StageSpan;

/// The queue to the task that exports; empty where spans are not exported.
pub(crate) static QUEUE: OnceLock<mpsc::Sender<SpanBatch>> = OnceLock::new();

/// The batches that wait for the collector, at most.
pub(crate) const MAX_WAITING: usize = 1_024;

/// The spans of one job or of one attempt at this role.
#[derive(Clone, Debug, Default)]
pub struct SpanBatch {
    /// The spans, in any order.
    pub spans: Vec<StageSpan>,
    /// Whether the caller may have recorded the trace; the spans of another are not exported.
    pub sampled: bool,
    /// The failure of the job or of the attempt, as text, which marks the root span; `None` if all went well.
    pub failed: Option<String>,
    /// Further attributes of every span, such as `muster.job`.
    pub labels: Vec<(&'static str, String)>,
}

/// Whether this process exports spans.
pub fn is_on() -> bool {
    QUEUE.get().is_some()
}

/// Exports what `make` returns, if this process exports spans; `make` is not called otherwise.
pub fn export(make: impl FnOnce() -> SpanBatch) {
    let Some(queue) = QUEUE.get() else { return };
    let batch = make();
    if batch.sampled && !batch.spans.is_empty() && queue.try_send(batch).is_err() {
        tracing::debug!("the spans of a job are dropped: the collector is slower than the jobs");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_made_while_export_is_off() {
        assert!(!is_on());
        export(|| unreachable!("nobody takes the spans"));
    }
}
