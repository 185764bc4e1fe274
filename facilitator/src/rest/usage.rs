//! `/api/v1/usage/`: an account's use of models.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::authentication::Caller;
use super::model_service::ModelService;
use super::rights::ReadRight;
use muster_facilitator_store::{DayUsage, RefundedUsage};

use crate::rest::rejection::ApiRejection;

/// The most rows of usage in an answer.
const USAGE_ROWS: i64 = 1_000;

/// An account's use of models.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct UsageList {
    /// One entry a day and model, the newest days first.
    results: Vec<DayUsage>,
    /// The answers whose miner was convicted: one entry a day, model and bundle, the newest days first.
    refunded: Vec<RefundedUsage>,
}

/// Lists the tokens and requests that the account has used, by day and model.
#[utoipa::path(get, path = "/api/v1/usage/", tag = "models", security(("bearer" = [])),
    responses((status = 200, body = UsageList), ApiRejection))]
pub(super) async fn usage(
    State(service): State<Arc<ModelService>>,
    caller: Caller<ReadRight>,
) -> Result<Json<UsageList>, ApiRejection> {
    let (store, client) = (&service.usage.store, service.gateway_name(caller.account()));
    Ok(Json(UsageList {
        results: store.list_usage(caller.account(), USAGE_ROWS).await?,
        refunded: store.list_refunds(&client, USAGE_ROWS).await?,
    }))
}
