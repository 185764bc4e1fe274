//! Sends the stages of jobs as spans to an OpenTelemetry collector. Off unless a process is given the address of one.
//!
//! A role calls [`export`] when it knows all times of a job or of an attempt. Without [`start`] that is a load and a
//! branch. Spans wait in a bounded queue: a collector that is slow or away costs spans, never a job.

mod exporter;
mod job_timeline;
mod span_data;
mod span_queue;
mod stage_span;

pub use exporter::{ExportError, start};
pub use job_timeline::{order_stages, trace_of};
pub use span_queue::{SpanBatch, export, is_on};
pub use stage_span::{StageSpan, facilitator_stages, is_root, spans_of};
