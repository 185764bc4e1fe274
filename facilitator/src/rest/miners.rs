//! `/api/v1/miners/`: a miner's machines, as validators proved them and as the miner claims them.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use muster_protocol::MinerKey;
use muster_protocol::rest::{MinerReport, MinerView};

use super::authentication::Caller;
use super::jobs::JobService;
use super::rights::ReadRight;
use crate::rest::rejection::ApiRejection;

/// Shows a miner's machines: the facts that each validator proved, and apart from them the miner's claims, which nobody
/// has checked.
///
/// 404 if no validator that takes jobs has told of the miner within a day.
#[utoipa::path(get, path = "/api/v1/miners/{miner}/", tag = "subnet", security(("bearer" = [])),
    params(("miner" = String, Path, description = "The ss58 address of the miner's hotkey")),
    responses((status = 200, body = MinerView), ApiRejection))]
pub(super) async fn show(
    State(service): State<Arc<JobService>>,
    _caller: Caller<ReadRight>,
    miner: Result<Path<String>, PathRejection>,
) -> Result<Json<MinerView>, ApiRejection> {
    let Path(miner) = miner.map_err(|_| ApiRejection::not_found())?;
    let miner: MinerKey = miner.parse().map_err(|_| ApiRejection::not_found())?;
    let mut results = Vec::new();
    for stored in service.store.miner_reports(miner).await? {
        if !service.selection.is_selectable(stored.validator).await? {
            continue;
        }
        results.push(MinerReport {
            validator: stored.validator,
            told_at: stored.told_at,
            proven: stored.notice.proven,
            claims: stored.notice.claims,
        });
    }
    if results.is_empty() {
        return Err(ApiRejection::not_found());
    }
    Ok(Json(MinerView { miner, results }))
}
