//! A job until it ends: by events where the facilitator has them, by asking where it has not.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use muster_protocol::rest::{
    JobView, LogEvent, ProgressEvent, QueueEvent, ReportedState, StatusEntry, events,
};
use muster_protocol::{FeatureSet, JobId, JobStatus, MUSTER_FEATURES_HEADER, Timestamp};
use reqwest::{Method, RequestBuilder, StatusCode};

use crate::client::Client;
use crate::error::ClientError;
use crate::event_source::{StreamFailure, read_events};

/// Between two questions, where there are no events, and before a broken stream is opened again.
const PAUSE: Duration = Duration::from_millis(100);

/// Something new about a job.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// It came further.
    Status(Box<StatusEntry>),
    /// It printed something. Only while it runs, and pieces may be missing.
    Log(LogEvent),
    /// Something that takes long came further.
    Progress(ProgressEvent),
    /// The place of a job that waits.
    Queued(QueueEvent),
    /// The program reported its state.
    Metrics(Box<ReportedState>),
}

/// How a stream of events ended.
enum StreamEnd {
    /// With a terminal status.
    Done,
    /// In any other way; it can be opened again.
    Broken,
    /// The facilitator has no events.
    NoEvents,
}

/// The statuses that were reported already.
#[derive(Default)]
struct SeenStatuses {
    statuses: Vec<(JobStatus, Timestamp)>,
    /// From which the events go on.
    last_id: String,
}

impl SeenStatuses {
    /// Whether this status is reported for the first time.
    fn first(&mut self, entry: &StatusEntry) -> bool {
        let key = (entry.status, entry.created_at);
        let first = !self.statuses.contains(&key);
        if first {
            self.statuses.push(key);
        }
        first
    }
}

impl Client {
    /// Follows a job to its end, or until `deadline`; `tell` receives everything new, each status once.
    ///
    /// A facilitator that restarts meanwhile is waited for, and a token that has expired is renewed: jobs take hours.
    ///
    /// # Errors
    /// The deadline passed, the facilitator refuses, or it does not come back in time.
    pub async fn follow(
        &self,
        id: JobId,
        deadline: Timestamp,
        mut tell: impl FnMut(News),
    ) -> Result<JobView, ClientError> {
        let mut seen = SeenStatuses::default();
        let mut events = true;
        loop {
            if events {
                match self.stream(id, deadline, &mut seen, &mut tell).await {
                    Ok(StreamEnd::Done | StreamEnd::Broken) => {}
                    Ok(StreamEnd::NoEvents) => events = false,
                    Err(failed) if failed.is_passing() => {}
                    Err(failed) => return Err(failed),
                }
            }
            // Also after a stream: what it has not reported is reported now.
            let failed = match self.job(id).await {
                Ok(view) => {
                    for entry in &view.status_history {
                        if seen.first(entry) {
                            tell(News::Status(Box::new(entry.clone())));
                        }
                    }
                    if view.last_status().is_terminal() {
                        return Ok(view);
                    }
                    None
                }
                Err(failed) if failed.is_passing() => Some(failed),
                Err(failed) => return Err(failed),
            };
            if self.clock.now() >= deadline {
                return Err(failed.unwrap_or(ClientError::TooLate { job: id }));
            }
            self.clock.sleep(PAUSE).await;
        }
    }

    fn ask_for_events(&self, id: JobId, last_id: &str) -> RequestBuilder {
        let request = self
            .open(Method::GET, &format!("/api/v1/jobs/{id}/events/"))
            .header("accept", "text/event-stream")
            .header(MUSTER_FEATURES_HEADER, FeatureSet::ours().to_string());
        match last_id.is_empty() {
            true => request,
            false => request.header("last-event-id", last_id),
        }
    }

    /// Follows a job's events until they end.
    async fn stream(
        &self,
        id: JobId,
        deadline: Timestamp,
        seen: &mut SeenStatuses,
        tell: &mut impl FnMut(News),
    ) -> Result<StreamEnd, ClientError> {
        let request = || self.ask_for_events(id, &seen.last_id);
        let answer = match self.once(request()).await {
            Err(ClientError::Unauthorised { .. }) => {
                self.renew().await?;
                self.once(request()).await
            }
            answer => answer,
        };
        if let Err(ClientError::Refused { status, .. }) = &answer
            && matches!(
                *status,
                StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_ACCEPTABLE
            )
        {
            // Whether it is the job or the address that is unknown, the job's own page shows.
            return Ok(StreamEnd::NoEvents);
        }
        let mut stream = pin!(read_events(answer?, deadline, self.clock.clone()));
        loop {
            let event = match stream.next().await {
                Some(Ok(event)) => event,
                Some(Err(StreamFailure::TooLong)) => return Ok(StreamEnd::NoEvents),
                Some(Err(StreamFailure::Broken)) | None => return Ok(StreamEnd::Broken),
            };
            seen.last_id.clone_from(&event.id);
            match event.event.as_str() {
                events::STATUS => {
                    let Ok(entry) = serde_json::from_str::<StatusEntry>(&event.data) else {
                        continue;
                    };
                    let done = entry.status.is_terminal();
                    if seen.first(&entry) {
                        tell(News::Status(Box::new(entry)));
                    }
                    if done {
                        return Ok(StreamEnd::Done);
                    }
                }
                events::LOG => {
                    if let Ok(log) = serde_json::from_str(&event.data) {
                        tell(News::Log(log));
                    }
                }
                events::PROGRESS => {
                    if let Ok(progress) = serde_json::from_str(&event.data) {
                        tell(News::Progress(progress));
                    }
                }
                events::QUEUED => {
                    if let Ok(place) = serde_json::from_str(&event.data) {
                        tell(News::Queued(place));
                    }
                }
                events::METRICS => {
                    if let Ok(state) = serde_json::from_str(&event.data) {
                        tell(News::Metrics(Box::new(state)));
                    }
                }
                // Kinds of events that a newer facilitator adds.
                _ => {}
            }
        }
    }
}
