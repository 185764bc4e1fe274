//! The gateway: its models and its newest sessions.

use maud::html;
use muster_page_layout::text::{number, plain};
use muster_status_views::validator::SessionsStatus;

use super::{ValidatorVisit, validator_page};
use crate::CallAnswer;
use crate::frame::{Column, key, part, section, table, verdict, when, words};

/// `/sessions`: the gateway.
pub fn sessions(visit: &ValidatorVisit<'_>, sessions: &CallAnswer<SessionsStatus>) -> String {
    let show = |status: &SessionsStatus| {
        let models: Vec<_> = status
            .models
            .iter()
            .map(|model| {
                [
                    words(&model.model),
                    html! { (number(model.live)) },
                    html! { (number(model.starting)) },
                    html! { (number(model.waiting)) },
                    html! { (number(model.serving)) },
                    words(if model.trouble.is_empty() {
                        "—"
                    } else {
                        &model.trouble
                    }),
                ]
            })
            .collect();
        let columns = [
            Column::Text("Model"),
            Column::Number("Live"),
            Column::Number("Starting"),
            Column::Number("Waiting"),
            Column::Number("Served"),
            Column::Text("Last trouble"),
        ];
        let rows: Vec<_> = status
            .sessions
            .iter()
            .map(|session| {
                let end = session.fault.as_deref().or(session.closed_because.as_deref());
                [
                    key(&session.session),
                    words(&session.model),
                    html! { a href=(format!("/miners/{}", plain(&session.miner))) { (key(&session.miner)) } },
                    when(session.opened_at, visit.now),
                    when(session.closed_at, visit.now),
                    end.map_or_else(|| html! { "—" }, |end| verdict(end, session.fault.is_none())),
                ]
            })
            .collect();
        let session_columns = [
            Column::Text("Session"),
            Column::Text("Model"),
            Column::Text("Miner"),
            Column::Text("Opened"),
            Column::Text("Closed"),
            Column::Text("Why"),
        ];
        html! {
            (section("models", "Models", &table("Models", columns, &models, "The gateway serves no model.")))
            (section("newest", "Newest sessions", &table("Sessions", session_columns, &rows, "No session has been open yet.")))
        }
    };
    let body = html! { h1 { "Sessions" } (part(sessions, show)) };
    validator_page("Sessions", "/sessions", visit, &body)
}
