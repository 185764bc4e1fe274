//! Stages of jobs in OpenTelemetry's form.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_protocol::Timestamp;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::span_queue::SpanBatch;
use crate::stage_span::{StageSpan, is_root};

/// The most characters of a failure's text that are exported: a peer may have written it.
const MAX_FAILURE: usize = 300;

/// The spans of a batch, in its order.
pub(crate) fn to_span_data(batch: &SpanBatch, scope: &InstrumentationScope) -> Vec<SpanData> {
    let labels: Vec<_> = batch
        .labels
        .iter()
        .map(|(key, value)| KeyValue::new(*key, value.clone()))
        .collect();
    let spans = batch.spans.iter();
    spans
        .map(|span| {
            let root = is_root(&span.time);
            let status = match &batch.failed {
                Some(failure) if root => Status::error(failure.chars().take(MAX_FAILURE).collect::<String>()),
                Some(_) | None => Status::Unset,
            };
            let mut attributes = labels.clone();
            if let Some(attempt) = span.time.attempt {
                attributes.push(KeyValue::new("muster.attempt", attempt.to_string()));
            }
            SpanData {
                span_context: SpanContext::new(
                    TraceId::from_bytes(*span.trace.as_bytes()),
                    SpanId::from_bytes(*span.id.as_bytes()),
                    TraceFlags::SAMPLED,
                    false,
                    TraceState::default(),
                ),
                parent_span_id: span
                    .parent
                    .map_or(SpanId::INVALID, |parent| SpanId::from_bytes(*parent.as_bytes())),
                parent_span_is_remote: root && span.parent.is_some(),
                span_kind: if root {
                    SpanKind::Server
                } else {
                    SpanKind::Internal
                },
                name: name_of(span).into(),
                start_time: to_system(span.time.began()),
                end_time: to_system(span.time.ended()),
                attributes,
                dropped_attributes_count: 0,
                events: SpanEvents::default(),
                links: SpanLinks::default(),
                status,
                instrumentation_scope: scope.clone(),
            }
        })
        .collect()
}

/// `executor run`: the role and the stage.
fn name_of(span: &StageSpan) -> String {
    format!("{} {}", span.time.role, span.time.stage)
}

fn to_system(at: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(at.micros()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use muster_protocol::{JobId, JobTrace, ParticipantType, StageTime, TraceStage, context_for_validator};

    use super::*;
    use crate::spans_of;

    #[test]
    fn a_failure_marks_the_root_and_every_span_names_the_job() {
        let job: JobId = "11111111-2222-4333-8444-555555555555".parse().unwrap();
        let parent = context_for_validator(None, job);
        let at = Timestamp::from_secs;
        let stage = |stage| StageTime::new(ParticipantType::Validator, stage, at(10), at(12));
        let mut trace = JobTrace::new(parent);
        trace.stages = vec![stage(TraceStage::Job), stage(TraceStage::Queue)];
        let batch = SpanBatch {
            spans: spans_of(
                &trace,
                ParticipantType::Validator,
                job.as_uuid(),
                Some(parent.span),
            ),
            sampled: true,
            failed: Some("rejected: busy".to_owned()),
            labels: vec![("muster.job", job.to_string())],
        };
        let made = to_span_data(&batch, &InstrumentationScope::builder("muster").build());
        let names: Vec<_> = made.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["validator job", "validator queue"]);
        assert_eq!(made[0].status, Status::error("rejected: busy"));
        assert_eq!(made[1].status, Status::Unset);
        let long = SpanBatch {
            failed: Some("e".repeat(MAX_FAILURE + 1)),
            ..batch
        };
        let made = to_span_data(&long, &InstrumentationScope::builder("muster").build());
        assert_eq!(made[0].status, Status::error("e".repeat(MAX_FAILURE)));
        assert_eq!(made[1].parent_span_id, made[0].span_context.span_id());
        assert_eq!(
            made[0].span_context.trace_id().to_string(),
            job.to_string().replace('-', "")
        );
        let took = made[1].end_time.duration_since(made[1].start_time).unwrap();
        assert_eq!(took, Duration::from_secs(2));
        let job_label = KeyValue::new("muster.job", job.to_string());
        assert!(made.iter().all(|span| span.attributes.contains(&job_label)));
    }
}
