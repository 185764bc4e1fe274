//! The HTTP side: routes with their description, and answers for everything that is not one.

mod access;
pub(crate) mod body;
pub(crate) mod caller;
mod events;
mod jobs;
mod openai;
pub(crate) mod refusal;
mod reports;

use std::any::Any;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use muster_protocol::rest::Detail;
use serde_json::{Value, json};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::refusal::Refusal;
use crate::door::Door;
use crate::{files, socket};

/// The scheme by which the document names a token or an API key.
const BEARER: &str = "bearer";

/// Every address that the facilitator answers.
pub(crate) fn router(door: Arc<Door>) -> Router {
    let signed = muster_file_store::http::router(Arc::clone(&door.files));
    let (documented, document) = documented();
    let document: Arc<str> = document.to_json().unwrap_or_default().into();
    Router::new()
        .merge(documented)
        .route("/ws/v0/", any(socket::upgrade))
        .merge(openai::routes())
        .route("/api/schema", get(move || schema(Arc::clone(&document))))
        .fallback(async || Refusal::not_found())
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(door)
        .merge(signed)
        .layer(CatchPanicLayer::custom(after_panic))
}

/// The routes and the OpenAPI document: what is answered is described by the functions that answer.
fn documented() -> (Router<Arc<Door>>, OpenApi) {
    let (router, mut document) = OpenApiRouter::with_openapi(about())
        .routes(routes!(health))
        .routes(routes!(access::nonce))
        .routes(routes!(access::login))
        .routes(routes!(jobs::create))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::show))
        .routes(routes!(jobs::cancel))
        .routes(routes!(events::events))
        .routes(routes!(reports::feedback, reports::give_feedback))
        .routes(routes!(reports::cheated))
        .routes(routes!(access::list, access::create))
        .routes(routes!(access::revoke))
        .routes(routes!(access::audit))
        .routes(routes!(openai::usage))
        .routes(routes!(files::list, files::create))
        .routes(routes!(files::show, files::remove))
        .split_for_parts();
    let components = document.components.get_or_insert_default();
    // The refusals name it, and they are not derived.
    let detail = <Detail as utoipa::PartialSchema>::schema();
    components
        .schemas
        .insert(<Detail as utoipa::ToSchema>::name().into_owned(), detail);
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    components.security_schemes.insert(BEARER.to_owned(), bearer);
    (router, document)
}

fn about() -> OpenApi {
    let info = InfoBuilder::new()
        .title("Muster facilitator")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "The users' door of a compute subnet: jobs, what becomes of them, and what they say while they run. \
             Calls want a token of /auth/login or an API key in `Authorization: Bearer`. With a token, what is posted is \
             signed in the headers X-CH-*; with an API key the facilitator signs.",
        ))
        .build();
    OpenApiBuilder::new().info(info).build()
}

/// Whether the store answers, how many validators are connected, and the hotkey that signs for who has none.
#[utoipa::path(get, path = "/health", tag = "about", responses((status = 200, body = Value), Refusal))]
async fn health(State(door): State<Arc<Door>>) -> Result<Json<Value>, Refusal> {
    door.store.ping().await?;
    Ok(Json(json!({
        "status": "ok",
        "validators": door.hub.validators(),
        "hotkey": door.keypair.hotkey(),
    })))
}

async fn schema(document: Arc<str>) -> impl IntoResponse {
    let kind = (header::CONTENT_TYPE, "application/json");
    ([kind], document.to_string())
}

async fn method_not_allowed(method: Method) -> Refusal {
    Refusal::detail(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("Method \"{method}\" not allowed."),
    )
}

/// A defect of ours costs one request, not the connection.
fn after_panic(_: Box<dyn Any + Send>) -> Response {
    tracing::error!("a request's handler panicked");
    Refusal::detail(
        StatusCode::INTERNAL_SERVER_ERROR,
        "The facilitator has a defect; its operator finds it in the log.",
    )
    .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `docs/openapi.json` is what clients are generated from: a change of the API is seen in a review.
    #[test]
    fn the_document_in_the_repository_is_the_one_that_is_served() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
        let served = documented().1.to_pretty_json().unwrap() + "\n";
        if std::env::var_os("MUSTER_WRITE_OPENAPI").is_some() {
            std::fs::write(path, &served).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap();
        assert!(
            kept == served,
            "the API has changed: run this test with MUSTER_WRITE_OPENAPI=1 and look at the difference"
        );
    }

    #[test]
    fn every_call_but_the_login_wants_a_bearer_and_says_how_it_is_refused() {
        let document = serde_json::to_value(documented().1).unwrap();
        for (path, calls) in document["paths"].as_object().unwrap() {
            for (method, call) in calls.as_object().unwrap() {
                let open = path.starts_with("/auth/") || path == "/health";
                assert_eq!(call["security"].is_array(), !open, "{method} {path}");
                assert!(call["responses"]["503"].is_object(), "{method} {path}");
                assert!(call["summary"].is_string(), "{method} {path}");
            }
        }
    }
}
