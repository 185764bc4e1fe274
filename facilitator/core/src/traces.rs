//! The facilitator's part of a job's trace: the user's context from a request's header, the context for the validator,
//! and the facilitator's own stages.

use http::HeaderMap;
use muster_protocol::trace::{TRACEPARENT_HEADER, TraceParent, context_for_validator};
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::{Feature, FeatureSet, JobStatus, JobTrace, ParticipantType};
use muster_span_export::{SpanBatch, facilitator_stages, spans_of};

use crate::history::JobHistory;

/// Reads the user's context from its header. One that cannot be read is none, and so are two: W3C says to
/// begin a trace of one's own then.
pub fn read_context(headers: &HeaderMap) -> Option<TraceParent> {
    let mut values = headers.get_all(TRACEPARENT_HEADER).iter();
    let (first, second) = (values.next()?, values.next());
    first.to_str().ok().filter(|_| second.is_none())?.parse().ok()
}

/// Notes the user's context in a job that is to be stored.
pub fn note_context(extension: &mut Option<Box<JobExtension>>, user: Option<TraceParent>) {
    if user.is_some() {
        extension.get_or_insert_default().traceparent = user;
    }
}

/// The context that the user of a stored job gave.
pub fn user_context(request: &UserJobRequest) -> Option<TraceParent> {
    request
        .muster
        .as_ref()
        .and_then(|extension| extension.traceparent)
}

/// Sets the context under which the job's validator works. A validator without the feature `trace` gets none, and
/// neither does a job whose user gave none, unless the stages of all jobs are wanted.
pub fn set_context(request: &mut UserJobRequest, validator: FeatureSet, wants_all: bool) {
    let user = user_context(request);
    if validator.has(Feature::Trace) && (wants_all || user.is_some()) {
        let context = context_for_validator(user, request.uuid);
        request.muster.get_or_insert_default().traceparent = Some(context);
    } else if let Some(extension) = &mut request.muster {
        extension.traceparent = None;
        if **extension == JobExtension::default() {
            request.muster = None;
        }
    }
}

/// Exports the facilitator's spans of a job that has ended, if this process exports spans.
pub fn export_ended(request: &UserJobRequest, history: &JobHistory) {
    muster_span_export::export(|| {
        let trace = trace_request(request, history);
        let status = history.visible_status();
        let (job, above) = (request.uuid, user_context(request).map(|user| user.span));
        SpanBatch {
            spans: spans_of(&trace, ParticipantType::Facilitator, job.as_uuid(), above),
            sampled: trace.traceparent.sampled,
            failed: (status != JobStatus::Completed).then(|| status.to_string()),
            labels: vec![("muster.job", job.to_string())],
        }
    });
}

/// The facilitator's stages of a stored job, by the times at which it recorded the statuses.
fn trace_request(request: &UserJobRequest, history: &JobHistory) -> JobTrace {
    let mut trace = JobTrace::new(context_for_validator(user_context(request), request.uuid));
    let times: Vec<_> = history.entries().iter().map(|entry| entry.at).collect();
    trace.stages = facilitator_stages(&times);
    trace
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const EXAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn one_whole_header_is_a_context_and_anything_else_is_none() {
        let read = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(TRACEPARENT_HEADER, HeaderValue::from_bytes(value).unwrap());
            }
            read_context(&headers)
        };
        let example = EXAMPLE.as_bytes();
        assert_eq!(read(&[example]), EXAMPLE.parse().ok());
        let hostile: [&[&[u8]]; 4] = [&[], &[example, example], &[b"\xff\xfe"], &[b"00-<img src=x>-01"]];
        for values in hostile {
            assert_eq!(read(values), None, "{values:?}");
        }
    }

    #[test]
    fn a_validator_gets_the_context_of_a_job_whose_stages_are_wanted() {
        let told = |user: Option<&str>, knows: bool, wants_all: bool| {
            let mut request = request();
            note_context(&mut request.muster, user.and_then(|text| text.parse().ok()));
            let features = match knows {
                true => [Feature::Trace].into_iter().collect(),
                false => FeatureSet::NONE,
            };
            set_context(&mut request, features, wants_all);
            request.traceparent()
        };
        assert_eq!(told(None, true, false), None);
        assert!(told(None, true, true).is_some());
        let own: TraceParent = EXAMPLE.parse().unwrap();
        assert_eq!(
            told(Some(EXAMPLE), true, false).map(|told| told.trace),
            Some(own.trace)
        );
        assert_eq!(told(Some(EXAMPLE), false, true), None);
    }

    /// A job as it is stored.
    fn request() -> UserJobRequest {
        let key = muster_identity::Keypair::from_uri("//User").unwrap();
        let mut request: UserJobRequest = serde_json::from_value(serde_json::json!({
            "message_type": "V2JobRequest", "uuid": "11111111-2222-4333-8444-555555555555",
            "signature": {
                "signature_type": "bittensor", "signatory": key.hotkey(), "timestamp_ns": 0,
                "signature": muster_protocol::Signature::from_bytes([1; 64]).to_base64(), "signature_scope": "SignedFields",
            },
            "executor_class": "always_on.test", "docker_image": "hello@sha256:1", "args": [], "env": {},
            "use_gpu": false, "download_time_limit": 2, "execution_time_limit": 3, "upload_time_limit": 4,
            "streaming_start_time_limit": 1,
        }))
        .unwrap();
        request.muster = None;
        request
    }

    #[test]
    fn a_job_without_a_context_is_stored_as_it_came() {
        let mut extension = None;
        note_context(&mut extension, None);
        assert_eq!(extension, None);
        note_context(&mut extension, EXAMPLE.parse().ok());
        assert_eq!(extension.unwrap().traceparent, EXAMPLE.parse().ok());
    }
}
