//! `/api/v1/jobs/{uuid}/events/`: a job as it goes, over server-sent events.

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
use muster_facilitator_core::live::{Cursor, Joiner};
use muster_process::error::Causes;
use muster_process::store::StoreError;
use muster_protocol::rest::{LogEvent, ProgressEvent, StatusEntry, events};
use muster_protocol::wire::encode;
use muster_protocol::{JobId, JobStatus};

use super::caller::Caller;
use super::refusal::Refusal;
use super::reports::{named, own};
use crate::door::{Door, Watching};
use crate::hub::Watch;

/// A comment this often shows both ends that the other is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Where facilitators share a store, a watcher looks this often by itself: what another one told may have been lost.
const LOOK_ANYWAY: Duration = Duration::from_secs(20);

/// Follows a job: events `status` (as in the job's history), `log` and `progress`. Ends after the last status.
///
/// Each event has an id; `Last-Event-ID` resumes after it. A job about which there is nothing more to say answers 204, which
/// tells an event source to stop coming back.
#[utoipa::path(get, path = "/api/v1/jobs/{uuid}/events/", tag = "jobs", security(("bearer" = [])),
    params(
        ("uuid" = String, Path, format = "uuid", description = "The job"),
        ("Last-Event-ID" = Option<String>, Header, description = "Resumes after this event", pattern = "^[0-9]{1,9}-[0-9]{1,9}$"),
    ),
    responses(
        (status = 200, description = "The events", body = String, content_type = "text/event-stream"),
        (status = 204, description = "The job has ended and everything about it has been said"),
        Refusal,
    ))]
pub(super) async fn events(
    State(door): State<Arc<Door>>,
    caller: Caller,
    uuid: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let job = named(uuid)?;
    own(&door, &caller, job).await?.ok_or_else(Refusal::not_found)?;
    let cursor = match headers.get("last-event-id") {
        None => Cursor::default(),
        Some(id) => id
            .to_str()
            .ok()
            .and_then(|id| id.trim().parse().ok())
            .ok_or_else(|| {
                Refusal::detail(
                    StatusCode::BAD_REQUEST,
                    muster_facilitator_core::live::CursorError.to_string(),
                )
            })?,
    };
    let place = door.watching.enter(caller.account()).ok_or_else(|| {
        Refusal::detail(
            StatusCode::TOO_MANY_REQUESTS,
            "Too many watchers of this account at a time.",
        )
    })?;
    // From here on no change is missed.
    let watch = door.watchers.watch(job);
    let history = door.store.history(job).await?;
    if history.shown().is_terminal() && cursor.statuses >= history.len() as u64 {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let watcher = Watcher {
        door,
        job,
        cursor,
        joiner: Joiner::default(),
        shown: BTreeMap::new(),
        ready: VecDeque::new(),
        ended: false,
        looked: false,
        watch,
        _place: place,
    };
    let events = stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await?;
        Some((Ok::<_, Infallible>(event), watcher))
    });
    let mut response = Sse::new(events)
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response();
    // Proxies that gather answers would make it no stream at all.
    response
        .headers_mut()
        .insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// One client that follows a job. Between two changes it is a place to be woken at and nothing more.
struct Watcher {
    door: Arc<Door>,
    job: JobId,
    cursor: Cursor,
    joiner: Joiner,
    /// What was last said of each stage.
    shown: BTreeMap<&'static str, ProgressEvent>,
    ready: VecDeque<Event>,
    ended: bool,
    looked: bool,
    watch: Watch,
    _place: Watching,
}

// === impl Watcher ===

impl Watcher {
    async fn next(&mut self) -> Option<Event> {
        let stop = self.door.tasks.token();
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            if self.looked {
                let shared = self.door.store.is_shared();
                let clock = Arc::clone(&self.door.clock);
                tokio::select! {
                    () = stop.cancelled() => return None,
                    () = self.watch.changed() => {}
                    () = clock.sleep(LOOK_ANYWAY), if shared => {}
                }
            }
            if let Err(error) = self.look().await {
                // The client comes back with the id of the last event.
                tracing::error!(error = %Causes(&error), "a watcher's stream failed in the store");
                return None;
            }
        }
    }

    /// Everything since the cursor. The history is read first: what a job says comes before its end.
    async fn look(&mut self) -> Result<(), StoreError> {
        self.looked = true;
        let history = self.door.store.history(self.job).await?;
        loop {
            let pieces = self.door.store.pieces(self.job, self.cursor.logs).await?;
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
                self.say(events::LOG, encode(&log));
            }
        }
        for progress in self.door.store.progress(self.job).await? {
            if self.shown.insert(progress.stage.as_str(), progress) != Some(progress) {
                self.say(events::PROGRESS, encode(&progress));
            }
        }
        let done = usize::try_from(self.cursor.statuses).unwrap_or(usize::MAX);
        for step in history.steps().iter().skip(done) {
            self.cursor.statuses += 1;
            // One that the user cannot read is not shown, here as in the job.
            if step.status != JobStatus::Unknown {
                let entry = StatusEntry {
                    status: step.status,
                    metadata: step.metadata.clone(),
                    created_at: step.at,
                };
                self.say(events::STATUS, encode(&entry));
            }
        }
        self.ended = history.shown().is_terminal();
        Ok(())
    }

    fn say(&mut self, name: &'static str, data: String) {
        let event = Event::default()
            .event(name)
            .id(self.cursor.to_string())
            .data(data);
        self.ready.push_back(event);
    }
}
