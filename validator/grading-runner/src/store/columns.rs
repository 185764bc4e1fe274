//! Conversions between columns of the database and values.

use muster_scoring::{ExcuseState, ObservationKind};
use muster_store::StoreError;
use muster_store::columns::read_column;
use serde::Serialize;
use sqlx::any::AnyRow;

type Result<T> = std::result::Result<T, StoreError>;

/// The JSON text of a value. All our types can be serialised.
pub(super) fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

pub(super) fn place_to_i64(place: usize) -> i64 {
    i64::try_from(place).unwrap_or(i64::MAX)
}

/// The stored name of a kind of batch.
pub(super) const fn kind_name(kind: ObservationKind) -> &'static str {
    match kind {
        ObservationKind::Announced => "announced",
        ObservationKind::Unannounced => "unannounced",
    }
}

pub(super) fn read_kind(row: &AnyRow) -> Result<ObservationKind> {
    let name: String = read_column(row, "kind")?;
    [ObservationKind::Announced, ObservationKind::Unannounced]
        .into_iter()
        .find(|kind| kind_name(*kind) == name)
        .ok_or_else(|| StoreError::corrupt("kind", format!("there is no kind of batch {name:?}")))
}

/// The stored name of the state of an excuse.
pub(super) const fn state_name(state: ExcuseState) -> &'static str {
    match state {
        ExcuseState::Waiting => "waiting",
        ExcuseState::Covered => "covered",
        ExcuseState::Failed => "failed",
    }
}

pub(super) fn read_state(row: &AnyRow) -> Result<ExcuseState> {
    let name: String = read_column(row, "state")?;
    [ExcuseState::Waiting, ExcuseState::Covered, ExcuseState::Failed]
        .into_iter()
        .find(|state| state_name(*state) == name)
        .ok_or_else(|| StoreError::corrupt("state", format!("there is no state of an excuse {name:?}")))
}
