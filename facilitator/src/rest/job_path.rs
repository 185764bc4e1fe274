//! The job that a path names, and the check that the caller owns it.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use muster_protocol::{JobId, ValidatorKey};
use muster_store::StoreError;

use super::authentication::Caller;
use muster_facilitator_store::Store;

use crate::rest::rejection::ApiRejection;

/// Parses the job's id in a path. Any other text is rejected like a job that does not exist.
pub(super) fn parse_job_id(uuid: Result<Path<String>, PathRejection>) -> Result<JobId, ApiRejection> {
    let Path(uuid) = uuid.map_err(|_| ApiRejection::not_found())?;
    uuid.parse().map_err(|_| ApiRejection::not_found())
}

/// The validator of the caller's job; `None` if there is no such job, or if it is another account's.
pub(super) async fn validator_of_own_job<R>(
    store: &Store,
    caller: &Caller<R>,
    job: JobId,
) -> Result<Option<ValidatorKey>, StoreError> {
    let owner = store.find_owner(job).await?;
    Ok(owner
        .filter(|(account, _)| account == caller.account())
        .map(|(_, validator)| validator))
}
