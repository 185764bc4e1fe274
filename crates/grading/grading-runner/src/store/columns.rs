//! Conversions between columns of the database and values.

use muster_scoring::{ExcuseState, ObservationKind};
use muster_store::StoreError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::any::AnyRow;
use sqlx::{Any, Decode, Row as _, Type};

type Result<T> = std::result::Result<T, StoreError>;

pub(super) fn read_column<'r, T>(row: &'r AnyRow, name: &'static str) -> Result<T>
where
    T: Decode<'r, Any> + Type<Any>,
{
    row.try_get(name)
        .map_err(|error| StoreError::corrupt(name, error))
}

pub(super) fn parse_column<T>(row: &AnyRow, name: &'static str) -> Result<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text: String = read_column(row, name)?;
    text.parse()
        .map_err(|error: T::Err| StoreError::corrupt(name, error.to_string()))
}

pub(super) fn parse_json<T: DeserializeOwned>(row: &AnyRow, name: &'static str) -> Result<T> {
    let text: String = read_column(row, name)?;
    serde_json::from_str(&text).map_err(|error| StoreError::corrupt(name, error.to_string()))
}

/// The JSON text of a value. All our types can be serialised.
pub(super) fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

pub(super) fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn to_u64(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
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
