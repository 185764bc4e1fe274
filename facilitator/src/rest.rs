//! The HTTP server: its routes, the OpenAPI document that describes them, and the answers to unknown requests.

pub(crate) mod account;
mod answer_reports;
pub(crate) mod authentication;
pub(crate) mod events;
pub(crate) mod files;
pub(crate) mod health;
mod job_path;
pub(crate) mod jobs;
mod json_body;
pub(crate) mod keys;
mod login;
mod miners;
pub(crate) mod model_service;
pub(crate) mod model_usage;
mod openai;
mod output;
pub(crate) mod page_caller;
pub(crate) mod rejection;
pub(crate) mod reports;
pub(crate) mod rights;
mod subnet;
mod usage;
pub(crate) mod web_links;
pub(crate) mod webhooks;

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::http::{Method, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use muster_file_store::FileService;
use muster_file_store::checkpoint_blocks::CheckpointService;
use muster_protocol::rest::{Detail, LogEvent, ProgressEvent, QueueEvent};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::ToSchema;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Components, InfoBuilder, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::metrics::count_request;
use crate::rest::rejection::ApiRejection;
use crate::socket;
use crate::state::FacilitatorState;
use crate::web;

/// The name of the security scheme of tokens and API keys in the OpenAPI document.
const BEARER: &str = "bearer";

/// All routes of the facilitator: the API, the signed URLs that `files` answers, and the pages, which ask the API.
pub(crate) fn router(
    state: FacilitatorState,
    files: Arc<FileService>,
    checkpoints: Arc<CheckpointService>,
) -> Router {
    let (documented, document) = documented_routes();
    let document: Arc<str> = document.to_json().unwrap_or_default().into();
    let api = Router::new().merge(documented).merge(openai::routes());
    let pages = web::router(Arc::clone(&state.web), api.clone().with_state(state.clone()));
    api.route("/ws/v0/", any(socket::upgrade))
        .route("/api/schema", get(move || serve_document(Arc::clone(&document))))
        .fallback(async || ApiRejection::not_found())
        .method_not_allowed_fallback(reject_method)
        .with_state(state)
        .merge(muster_file_store::file_routes::router(files))
        .merge(muster_file_store::checkpoint_blocks::block_routes::router(
            checkpoints,
        ))
        .merge(pages)
        .layer(CatchPanicLayer::custom(answer_after_panic))
        .layer(middleware::from_fn(rejection::note_method))
        .layer(middleware::from_fn(count_request))
}

/// The routes of the REST API, and the OpenAPI document that is generated from their handlers.
fn documented_routes() -> (Router<FacilitatorState>, OpenApi) {
    let (router, mut document) = OpenApiRouter::with_openapi(api_info())
        .routes(routes!(health::health))
        .routes(routes!(login::nonce))
        .routes(routes!(login::login))
        .routes(routes!(web_links::create))
        .routes(routes!(jobs::create))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::show))
        .routes(routes!(jobs::cancel))
        .routes(routes!(events::events))
        .routes(routes!(jobs::metrics))
        .routes(routes!(jobs::checkpoints))
        .routes(routes!(output::output))
        .routes(routes!(subnet::capacity))
        .routes(routes!(miners::show))
        .routes(routes!(reports::feedback, reports::give_feedback))
        .routes(routes!(reports::report_cheat))
        .routes(routes!(reports::cheat_report))
        .routes(routes!(reports::job_check))
        .routes(routes!(answer_reports::report_answer))
        .routes(routes!(answer_reports::answer_check))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::revoke))
        .routes(routes!(keys::audit))
        .routes(routes!(usage::usage))
        .routes(routes!(webhooks::show, webhooks::set, webhooks::remove))
        .routes(routes!(account::show, account::remove))
        .routes(routes!(files::list, files::create))
        .routes(routes!(files::show, files::remove))
        .split_for_parts();
    let components = document.components.get_or_insert_default();
    // Objects that no handler's signature shows: those of rejections, and those of a job's events.
    add_schema::<Detail>(components);
    add_schema::<LogEvent>(components);
    add_schema::<ProgressEvent>(components);
    add_schema::<QueueEvent>(components);
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    components.security_schemes.insert(BEARER.to_owned(), bearer);
    (router, document)
}

/// Adds the schema of an object, and of those in it.
fn add_schema<T: ToSchema>(components: &mut Components) {
    let mut schemas = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut schemas);
    components.schemas.extend(schemas);
}

fn api_info() -> OpenApi {
    let info = InfoBuilder::new()
        .title("Muster facilitator")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "The users' API of a compute subnet: submit jobs, follow their statuses and their output, and read results. \
             Calls need a token of /auth/login or an API key in `Authorization: Bearer`. With a token, the client signs \
             its POST and PUT requests in the headers X-CH-*; with an API key the facilitator signs them.",
        ))
        .build();
    OpenApiBuilder::new().info(info).build()
}

async fn serve_document(document: Arc<str>) -> impl IntoResponse {
    let kind = (header::CONTENT_TYPE, "application/json");
    ([kind], document.to_string())
}

async fn reject_method(method: Method) -> ApiRejection {
    ApiRejection::detail(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("Method \"{method}\" not allowed."),
    )
}

/// Answers a request whose handler panicked, so that the connection stays usable.
fn answer_after_panic(_: Box<dyn Any + Send>) -> Response {
    tracing::error!("a request's handler panicked");
    ApiRejection::detail(
        StatusCode::INTERNAL_SERVER_ERROR,
        "The facilitator has a defect; the operator's log describes it.",
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
        let served = documented_routes().1.to_pretty_json().unwrap() + "\n";
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
    fn every_call_but_the_login_needs_a_bearer_and_lists_its_rejections() {
        let document = serde_json::to_value(documented_routes().1).unwrap();
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
