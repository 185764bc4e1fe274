//! The collateral on the status page: what miners have deposited, the slashes, and the operator's order to slash.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use muster_collateral::SlashOrder;
use muster_protocol::{Digest, MinerKey, Rao, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::slashing::{SlashRefusal, preview, slash as carry_out};
use crate::status::{StatusSources, StoreUnreadable, admit_operator};
use crate::store::StoredSlash;

/// Slashes that are listed.
const MAX_SLASHES: u32 = 100;

/// One slash of `GET /v0/collateral`. The plan stays inside: it is a signed transaction.
#[derive(Debug, Serialize)]
struct SlashView {
    miner: MinerKey,
    account: String,
    amount: Rao,
    evidence: Digest,
    md5: String,
    url: String,
    source: String,
    state: &'static str,
    reference: String,
    created_at: Timestamp,
    ended_at: Option<Timestamp>,
}

impl From<StoredSlash> for SlashView {
    fn from(slash: StoredSlash) -> Self {
        Self {
            miner: slash.miner,
            account: slash.account,
            amount: slash.amount,
            evidence: slash.evidence,
            md5: slash.md5,
            url: slash.url,
            source: slash.source,
            state: slash.state.as_str(),
            reference: slash.reference,
            created_at: slash.created_at,
            ended_at: slash.ended_at,
        }
    }
}

/// The body of `POST /v0/collateral/slashes`.
#[derive(Debug, Deserialize)]
pub(crate) struct SlashRequest {
    #[serde(flatten)]
    order: SlashOrder,
    /// Whether to tell only what would happen.
    #[serde(default)]
    preview: bool,
}

/// The source, the miners and the newest slashes.
pub(crate) async fn list(State(sources): State<StatusSources>) -> Result<Response, StoreUnreadable> {
    let state = &sources.state;
    let metagraph = state.subnet.last_metagraph();
    let miners = metagraph.map(|metagraph| state.collateral.miners(&metagraph));
    let slashes = state.store.slashes(MAX_SLASHES).await?;
    let slashes: Vec<_> = slashes.into_iter().map(SlashView::from).collect();
    Ok(Json(json!({
        "validator": state.key(),
        "time": state.clock.now(),
        "collateral": state.collateral.status(),
        "miners": miners.unwrap_or_default(),
        "slashes": slashes,
    }))
    .into_response())
}

/// Slashes a miner, or tells what that would do. Only the operator may.
pub(crate) async fn slash(
    State(sources): State<StatusSources>,
    headers: HeaderMap,
    Json(request): Json<SlashRequest>,
) -> Response {
    if let Err(refused) = admit_operator(&sources, &headers) {
        return refused;
    }
    let SlashRequest {
        order,
        preview: is_preview,
    } = request;
    let answer = if is_preview {
        preview(&sources.state, &order).await
    } else {
        carry_out(&sources.state, &order).await
    };
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(SlashRefusal::Store(error)) => StoreUnreadable::from(error).into_response(),
        Err(refused) => {
            let error = json!({ "error": refused.to_string() });
            (StatusCode::CONFLICT, Json(error)).into_response()
        }
    }
}
