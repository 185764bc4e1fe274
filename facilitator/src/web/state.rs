//! The services behind the pages, and the state of the pages' handlers.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::FromRef;
use muster_facilitator_core::web_cookies::CookieRules;
use muster_facilitator_core::web_session::FormKey;
use muster_facilitator_store::Store;
use muster_process::SharedClock;

use crate::change_notices::Notifier;
use crate::job_watchers::SessionWatchers;
use crate::rest::authentication::Admission;
use crate::rest::events::EventService;

/// The services behind the pages.
pub(crate) struct WebService {
    pub(crate) store: Store,
    pub(crate) admission: Arc<Admission>,
    /// Limits and wakes the streams of events.
    pub(crate) events: Arc<EventService>,
    /// Wakes the streams of an account's browsers when its sessions may have ended.
    pub(crate) browsers: Arc<SessionWatchers>,
    pub(crate) notifier: Notifier,
    pub(crate) form_key: FormKey,
    /// Whether browsers reach the facilitator over TLS only.
    pub(crate) over_tls: bool,
    /// The time from a sign-in to the end of its session.
    pub(crate) session_lifetime: Duration,
    pub(crate) clock: SharedClock,
}

/// The state of the handlers of pages.
#[derive(Clone)]
pub(crate) struct WebState {
    pub(super) service: Arc<WebService>,
    /// The REST API of this process.
    pub(super) api: Router,
}

impl FromRef<WebState> for Arc<Admission> {
    fn from_ref(state: &WebState) -> Self {
        Arc::clone(&state.service.admission)
    }
}

impl WebState {
    pub(super) fn cookies(&self) -> CookieRules {
        CookieRules {
            over_tls: self.service.over_tls,
        }
    }
}
