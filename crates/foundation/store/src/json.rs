//! JSON in `TEXT` columns.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::StoreError;

/// The text of `value` for a column; `what` names the table and column.
///
/// # Errors
/// A map whose keys are not text, which none of our types has.
pub fn encode<T: Serialize>(what: &'static str, value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::corrupt(what, error))
}

/// Reads the text of a column.
///
/// # Errors
/// The text was not written by [`encode`] for this type.
pub fn decode<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::corrupt(what, error))
}

/// Reads a column that holds the text form of an id or a key.
///
/// # Errors
/// The text does not parse.
pub fn parse<T>(what: &'static str, text: &str) -> Result<T, StoreError>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse()
        .map_err(|error: T::Err| StoreError::corrupt(what, error))
}
