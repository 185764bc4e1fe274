//! The statuses of the open jobs in a list, as server-sent events. One stream serves a whole list, because browsers
//! open few connections to one server.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::future::select_all;
use futures_util::stream;
use muster_protocol::JobId;
use muster_protocol::rest::{JobPage, JobView};
use muster_web_pages::jobs::took;
use muster_web_pages::status::{ShownStatus, of_job};
use serde::Serialize;

use super::api::{ApiFailure, SessionApi};
use super::session::SignedIn;
use super::session_end::until_session_ends;
use super::state::{WebService, WebState};
use crate::job_watchers::JobWatch;
use muster_facilitator_core::event_slots::EventStreamSlot;

/// The most jobs that one stream follows.
const MOST_JOBS: usize = 64;
/// The least time between two readings of the store for one stream: a job that prints wakes its watchers often.
const LEAST_PAUSE: Duration = Duration::from_millis(500);
/// The time after which the store is read although nothing woke the stream: notices of other facilitators may be lost.
const MOST_PAUSE: Duration = Duration::from_secs(20);

/// One change of a job in the list.
#[derive(Debug, Serialize)]
struct JobChange {
    uuid: JobId,
    kind: &'static str,
    word: String,
    shape: &'static str,
    took: String,
    ended: bool,
}

/// The stream of one list.
struct JobListStream {
    service: Arc<WebService>,
    api: SessionApi,
    /// The jobs that have not ended, with their statuses as last sent.
    open: HashMap<JobId, Option<ShownStatus>>,
    watches: Vec<JobWatch>,
    /// Whether the list was read once.
    begun: bool,
    _slot: EventStreamSlot,
}

/// Follows the named jobs, which must all be the session's own.
pub(super) async fn events(
    State(state): State<WebState>,
    signed_in: SignedIn,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let named = query.iter().filter(|(name, _)| name == "uuid");
    let ids: Result<Vec<JobId>, _> = named.map(|(_, value)| value.parse()).collect();
    let Ok(ids) = ids else {
        return signed_in.not_found();
    };
    if ids.is_empty() || ids.len() > MOST_JOBS {
        return (StatusCode::BAD_REQUEST, "Name 1 to 64 jobs.").into_response();
    }
    let service = Arc::clone(&state.service);
    let Some(slot) = service.events.slots.take(&signed_in.api.caller.actor.account) else {
        let words = "Too many event streams of this account are open.";
        return (StatusCode::TOO_MANY_REQUESTS, words).into_response();
    };
    // Subscribed before the list is read, so that no change is missed.
    let watches = ids.iter().map(|id| service.events.watchers.watch(*id)).collect();
    let open: HashMap<_, _> = ids.into_iter().map(|id| (id, None)).collect();
    let list = JobListStream {
        service,
        api: signed_in.api.clone(),
        open,
        watches,
        begun: false,
        _slot: slot,
    };
    match list.read().await {
        Ok(found) if found.len() == list.open.len() => {}
        Ok(_) => return signed_in.not_found(),
        Err(failure) => return signed_in.failure(&failure),
    }
    let changes = stream::unfold(list, |mut list| async move {
        let events = list.next().await?;
        Some((stream::iter(events.into_iter().map(Ok::<_, Infallible>)), list))
    });
    let flat = futures_util::StreamExt::flatten(changes);
    let mut response = Sse::new(flat).keep_alive(KeepAlive::new()).into_response();
    let headers = response.headers_mut();
    headers.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    until_session_ends(&state.service, &signed_in, response)
}

// === impl JobListStream ===

impl JobListStream {
    /// The events of the next change; `None` once every job has ended.
    async fn next(&mut self) -> Option<Vec<Event>> {
        loop {
            if self.open.is_empty() {
                return None;
            }
            if self.begun {
                self.wait().await?;
            }
            self.begun = true;
            // The browser connects again after a failure.
            let views = self.read().await.ok()?;
            let events: Vec<_> = views.iter().filter_map(|view| self.note(view)).collect();
            if !events.is_empty() {
                return Some(events);
            }
        }
    }

    /// Waits for a change of one of the jobs; `None` if the process stops.
    async fn wait(&mut self) -> Option<()> {
        let clock = Arc::clone(&self.service.clock);
        let changed = select_all(self.watches.iter_mut().map(|watch| Box::pin(watch.changed())));
        tokio::select! {
            () = self.service.events.stop.cancelled() => return None,
            _ = changed => {}
            () = clock.sleep(MOST_PAUSE) => {}
        }
        clock.sleep(LEAST_PAUSE).await;
        Some(())
    }

    /// The followed jobs, as the API shows them to this account.
    async fn read(&self) -> Result<Vec<JobView>, ApiFailure> {
        let mut path = format!("/api/v1/jobs/?page_size={MOST_JOBS}");
        for id in self.open.keys() {
            path.push_str(&format!("&uuid={id}"));
        }
        Ok(self.api.get::<JobPage>(&path).await?.results)
    }

    /// Notes a job's status. Returns the event if the status has changed.
    fn note(&mut self, view: &JobView) -> Option<Event> {
        let status = of_job(view);
        let sent = self.open.get_mut(&view.uuid)?;
        if sent.as_ref() == Some(&status) {
            return None;
        }
        let ended = view.last_status().is_terminal();
        *sent = Some(status.clone());
        if ended {
            self.open.remove(&view.uuid);
        }
        let change = JobChange {
            uuid: view.uuid,
            kind: status.kind.as_str(),
            shape: status.kind.outline(),
            word: status.word,
            took: took(view, self.service.clock.now()),
            ended,
        };
        let data = serde_json::to_string(&change).ok()?;
        Some(Event::default().event("job").data(data))
    }
}
