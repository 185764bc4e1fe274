//! `/api/v1/subnet/`: what the miners of the validators offer now.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use muster_facilitator_core::capacity::{describe_capacity, limits_here};
use muster_protocol::Timestamp;
use muster_protocol::rest::{SubnetCapacity, ValidatorCapacity};

use super::authentication::Caller;
use super::jobs::JobService;
use super::rights::ReadRight;
use crate::rest::rejection::ApiRejection;

/// The age at which a capacity is stale. A validator reports it every minute if it has not changed.
const STALE_AFTER: Duration = Duration::from_secs(150);

/// Lists what the miners of each validator offer now, by class, and the place that the caller's next job would get.
///
/// Validators that take no jobs, or have told nothing lately, are left out.
#[utoipa::path(get, path = "/api/v1/subnet/", tag = "subnet", security(("bearer" = [])),
    responses((status = 200, body = SubnetCapacity), ApiRejection))]
pub(super) async fn capacity(
    State(service): State<Arc<JobService>>,
    caller: Caller<ReadRight>,
) -> Result<Json<SubnetCapacity>, ApiRejection> {
    let stale = i64::try_from(STALE_AFTER.as_micros()).unwrap_or(i64::MAX);
    let since = Timestamp::from_micros(service.clock.now().micros().saturating_sub(stale));
    let mut results = Vec::new();
    for announced in service.store.capacities(since).await? {
        let validator = announced.validator;
        if !service.selection.is_selectable(validator).await? {
            continue;
        }
        let waiting = service.store.count_waiting(caller.account(), validator).await?;
        results.push(ValidatorCapacity {
            validator,
            told_at: announced.told_at,
            limits: limits_here(announced.notice.limits),
            classes: describe_capacity(&announced.notice, &waiting),
        });
    }
    Ok(Json(SubnetCapacity { results }))
}
