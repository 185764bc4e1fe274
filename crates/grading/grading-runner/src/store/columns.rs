//! Conversions between columns of the database and values.

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
