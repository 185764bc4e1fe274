//! The pages at which a validator shows its bundles, its statements about others' bundles, and its self-test. All of it
//! is signed or content-addressed, and meant to be checked by others.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use muster_process::error::Causes;
use muster_protocol::{Digest, ValidatorKey};
use muster_store::StoreError;
use muster_validator_store::Store;

use crate::shown_list::{ShownBundle, ShownList};

/// Bundles, and statements, of a list at most.
const MOST_SHOWN: u32 = 256;

/// The parts of a validator that its pages show.
#[derive(Clone, Debug)]
pub struct ExchangePages {
    /// The validator that shows them.
    pub validator: ValidatorKey,
    /// The validator's store.
    pub store: Arc<Store>,
}

/// The pages `/audits` and `/audits/{digest}`.
pub fn page_routes<S: Clone + Send + Sync + 'static>(pages: ExchangePages) -> Router<S> {
    Router::new()
        .route("/audits", get(list))
        .route("/audits/{digest}", get(bundle))
        .with_state(pages)
}

async fn list(State(pages): State<ExchangePages>) -> Response {
    match shown(&pages).await {
        Ok(list) => json(list.to_text()),
        Err(error) => unreadable(&error),
    }
}

async fn shown(pages: &ExchangePages) -> Result<ShownList, StoreError> {
    let (store, me) = (&pages.store, pages.validator);
    let bundles = store.shown_audits(me, MOST_SHOWN).await?;
    let endorsements = store.endorsements_by(me, MOST_SHOWN).await?;
    let tests = store.newest_self_tests().await?;
    Ok(ShownList {
        bundles: bundles
            .into_iter()
            .map(|(audit, bytes)| ShownBundle {
                digest: audit.digest,
                coldkey: audit.coldkey,
                model: audit.model,
                through_bucket: audit.through_bucket,
                bytes,
            })
            .collect(),
        endorsements: endorsements.into_iter().map(|one| one.statement).collect(),
        self_test: tests
            .into_iter()
            .find(|test| test.validator == me)
            .map(|test| test.statement),
    })
}

/// The text of a bundle whose verdict counts here: the digest is that of the answer's bytes.
async fn bundle(State(pages): State<ExchangePages>, Path(digest): Path<Digest>) -> Response {
    match pages.store.audit_bundle(digest).await {
        Ok(Some(text)) => json(text),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => unreadable(&error),
    }
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn unreadable(error: &StoreError) -> Response {
    tracing::error!(error = %Causes(error), "a page about audits could not be read from the store");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}
