//! JSON in `TEXT` columns.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StoreError;

/// The text of `value` for a column; `what` names the table and column.
///
/// # Errors
/// A map with keys that are no texts, which no type of ours is.
pub fn encode<T: Serialize>(what: &'static str, value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::corrupt(what, error))
}

/// Reads the text of a column.
///
/// # Errors
/// The text is not what [`encode`] wrote for this type.
pub fn decode<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::corrupt(what, error))
}

/// Reads a column that holds the text form of an id, a key or the like.
///
/// # Errors
/// The text is no such value.
pub fn parse<T>(what: &'static str, text: &str) -> Result<T, StoreError>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse()
        .map_err(|error: T::Err| StoreError::corrupt(what, error))
}
