//! `/api/v1/jobs/{uuid}/events/`: a job's statuses, output, progress and metrics as server-sent events.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use muster_facilitator_core::event_cursor::{EventCursor, EventCursorError, LogTextJoiner};
use muster_facilitator_core::event_slots::{EventStreamSlot, EventStreamSlots};
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::rest::{LogEvent, ProgressEvent, QueueEvent, ReportedState, StatusEntry, events};
use muster_protocol::wire::encode;
use muster_protocol::{FeatureSet, JobId, JobStatus};
use muster_store::StoreError;
use tokio_util::sync::CancellationToken;

use super::authentication::Caller;
use super::job_path::{parse_job_id, validator_of_own_job};
use super::jobs::shown_features;
use super::rights::ReadRight;
use muster_facilitator_store::Store;

use crate::job_watchers::{JobWatch, JobWatchers};
use crate::rest::rejection::ApiRejection;

/// The interval of comments that show both ends that the connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The interval at which a stream checks a shared store without a notice: notices of other facilitators may be lost.
const CHECK_SHARED_STORE: Duration = Duration::from_secs(20);

/// The services behind event streams.
pub(crate) struct EventService {
    pub(crate) store: Store,
    pub(crate) watchers: Arc<JobWatchers>,
    pub(crate) slots: EventStreamSlots,
    pub(crate) clock: SharedClock,
    /// Cancelled when the process stops; streams end then.
    pub(crate) stop: CancellationToken,
}

/// Follows a job: events `status` (as in the job's history), `log`, `progress` and `metrics`.
///
/// The stream ends after the last status. Each event has an id; `Last-Event-ID` resumes after it. A job without further
/// events answers 204, which tells an event source not to reconnect.
#[utoipa::path(get, path = "/api/v1/jobs/{uuid}/events/", tag = "jobs", security(("bearer" = [])),
    params(
        ("uuid" = String, Path, format = "uuid", description = "The job"),
        ("Last-Event-ID" = Option<String>, Header, description = "Resumes after this event",
            pattern = "^[0-9]{1,9}-[0-9]{1,9}$"),
    ),
    responses(
        (status = 200, description = "The events", body = String, content_type = "text/event-stream"),
        (status = 204, description = "The job has ended and has no further events"),
        ApiRejection,
    ))]
pub(super) async fn events(
    State(service): State<Arc<EventService>>,
    caller: Caller<ReadRight>,
    uuid: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiRejection> {
    let job = parse_job_id(uuid)?;
    validator_of_own_job(&service.store, &caller, job)
        .await?
        .ok_or_else(ApiRejection::not_found)?;
    let cursor = match headers.get("last-event-id") {
        None => EventCursor::default(),
        Some(id) => id
            .to_str()
            .ok()
            .and_then(|id| id.trim().parse().ok())
            .ok_or_else(|| ApiRejection::detail(StatusCode::BAD_REQUEST, EventCursorError.to_string()))?,
    };
    let slot = service.slots.take(caller.account()).ok_or_else(|| {
        ApiRejection::detail(
            StatusCode::TOO_MANY_REQUESTS,
            "Too many event streams of this account are open.",
        )
    })?;
    // Subscribed before the history is read, so that no change is missed.
    let watch = service.watchers.watch(job);
    let history = service.store.history(job).await?;
    if history.visible_status().is_terminal() && cursor.statuses >= history.len() as u64 {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let job_events = JobEventStream {
        service,
        job,
        features: shown_features(&headers),
        cursor,
        joiner: LogTextJoiner::default(),
        progress: BTreeMap::new(),
        place: None,
        report: None,
        ready: VecDeque::new(),
        ended: false,
        checked: false,
        watch,
        _slot: slot,
    };
    let events = stream::unfold(job_events, |mut job_events| async move {
        let event = job_events.next().await?;
        Some((Ok::<_, Infallible>(event), job_events))
    });
    let mut response = Sse::new(events)
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response();
    // Asks proxies not to buffer the stream.
    response
        .headers_mut()
        .insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The events for one client that follows a job. It uses no task of its own while it waits.
struct JobEventStream {
    service: Arc<EventService>,
    job: JobId,
    /// The features that the client showed.
    features: FeatureSet,
    cursor: EventCursor,
    joiner: LogTextJoiner,
    /// The progress last sent, by stage.
    progress: BTreeMap<&'static str, ProgressEvent>,
    /// The place in the queue last sent.
    place: Option<QueueEvent>,
    /// The program's report last sent.
    report: Option<ReportedState>,
    ready: VecDeque<Event>,
    ended: bool,
    /// Whether the store has been checked once.
    checked: bool,
    watch: JobWatch,
    _slot: EventStreamSlot,
}

// === impl JobEventStream ===

impl JobEventStream {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            if self.checked {
                let shared = self.service.store.is_shared();
                tokio::select! {
                    () = self.service.stop.cancelled() => return None,
                    () = self.watch.changed() => {}
                    () = self.service.clock.sleep(CHECK_SHARED_STORE), if shared => {}
                }
            }
            if let Err(error) = self.read_store().await {
                // The client reconnects with the id of the last event.
                tracing::error!(error = %Causes(&error), "an event stream failed in the store");
                return None;
            }
        }
    }

    /// Queues every event since the cursor. The history is read first, because a job's output is stored before its end.
    async fn read_store(&mut self) -> Result<(), StoreError> {
        self.checked = true;
        let history = self.service.store.history(self.job).await?;
        loop {
            let pieces = self.service.store.log_pieces(self.job, self.cursor.logs).await?;
            if pieces.is_empty() {
                break;
            }
            for piece in pieces {
                self.cursor.logs = piece.seq;
                let (offset, text) = self.joiner.join(piece.stream, piece.offset, &piece.data);
                let log = LogEvent {
                    stream: piece.stream,
                    text,
                    at: piece.at,
                    offset,
                };
                self.queue(events::LOG, encode(&log));
            }
        }
        for progress in self.service.store.progress(self.job).await? {
            if self.progress.insert(progress.stage.as_str(), progress) != Some(progress) {
                self.queue(events::PROGRESS, encode(&progress));
            }
        }
        if let Some(place) = self.service.store.queue_place(self.job).await?
            && self.place.as_ref() != Some(&place.told)
        {
            self.queue(events::QUEUED, encode(&place.told));
            self.place = Some(place.told);
        }
        if let Some(report) = self.service.store.program_report(self.job).await?
            && self.report.as_ref() != Some(&report)
        {
            let mut known = report.clone();
            known.report.fit_to(self.features);
            self.queue(events::METRICS, encode(&known));
            self.report = Some(report);
        }
        let done = usize::try_from(self.cursor.statuses).unwrap_or(usize::MAX);
        for entry in history.entries().iter().skip(done) {
            self.cursor.statuses += 1;
            // Clients cannot read an unknown status, so it is left out, as in the job's own view.
            if entry.status != JobStatus::Unknown {
                let status = StatusEntry {
                    status: entry.status,
                    metadata: entry.metadata.clone(),
                    created_at: entry.at,
                };
                self.queue(events::STATUS, encode(&status));
            }
        }
        self.ended = history.visible_status().is_terminal();
        Ok(())
    }

    fn queue(&mut self, name: &'static str, data: String) {
        let event = Event::default()
            .event(name)
            .id(self.cursor.to_string())
            .data(data);
        self.ready.push_back(event);
    }
}
