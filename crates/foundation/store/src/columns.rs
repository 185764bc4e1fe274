//! Columns of rows as values. A column that does not hold the value it should is [`StoreError::Corrupt`] with its name.

use muster_protocol::Timestamp;
use serde::de::DeserializeOwned;
use sqlx::any::AnyRow;
use sqlx::{Any, Decode, Row as _, Type};

use crate::StoreError;

type Result<T> = std::result::Result<T, StoreError>;

/// Reads a column of one of the types that both engines know.
///
/// # Errors
/// There is no such column, or it is of another type.
pub fn read_column<'r, T>(row: &'r AnyRow, name: &'static str) -> Result<T>
where
    T: Decode<'r, Any> + Type<Any>,
{
    row.try_get(name)
        .map_err(|error| StoreError::corrupt(name, error))
}

/// Reads a value through its text form.
///
/// # Errors
/// The column is no text, or its text does not parse.
pub fn parse_column<T>(row: &AnyRow, name: &'static str) -> Result<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text: String = read_column(row, name)?;
    parse_text(name, &text)
}

/// Reads a value through its text form; `None` for NULL.
///
/// # Errors
/// The column is no text, or its text does not parse.
pub fn parse_column_option<T>(row: &AnyRow, name: &'static str) -> Result<Option<T>>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text: Option<String> = read_column(row, name)?;
    text.map(|text| parse_text(name, &text)).transpose()
}

fn parse_text<T>(name: &'static str, text: &str) -> Result<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse()
        .map_err(|error: T::Err| StoreError::corrupt(name, error.to_string()))
}

/// Reads a value that was stored as JSON.
///
/// # Errors
/// The column is no text, or not the JSON of such a value.
pub fn json_column<T: DeserializeOwned>(row: &AnyRow, name: &'static str) -> Result<T> {
    let text: String = read_column(row, name)?;
    crate::json::decode(name, &text)
}

/// Reads a number that is never negative. A negative one, which none of our writers stores, is 0.
///
/// # Errors
/// The column is no number.
pub fn unsigned_column(row: &AnyRow, name: &'static str) -> Result<u64> {
    read_column(row, name).map(to_unsigned)
}

/// Reads a time, which is stored in microseconds since 1970.
///
/// # Errors
/// The column is no number.
pub fn time_column(row: &AnyRow, name: &'static str) -> Result<Timestamp> {
    read_column(row, name).map(Timestamp::from_micros)
}

/// Reads a time; `None` for NULL.
///
/// # Errors
/// The column is no number.
pub fn time_column_option(row: &AnyRow, name: &'static str) -> Result<Option<Timestamp>> {
    let micros: Option<i64> = read_column(row, name)?;
    Ok(micros.map(Timestamp::from_micros))
}

/// A text as both engines store it: U+0000, which a `TEXT` column of PostgreSQL refuses, becomes U+FFFD. A text that a
/// peer chose is stored through this, so that nobody but us decides whether a write succeeds. A [`Script`] does it by
/// itself.
///
/// [`Script`]: crate::Script
pub fn storable_text(text: impl Into<String>) -> String {
    let text = text.into();
    if text.contains('\0') {
        text.replace('\0', "\u{fffd}")
    } else {
        text
    }
}

/// A number as both engines store it. Numbers beyond `i64::MAX` are stored as `i64::MAX`.
pub fn to_signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A stored number as it was before [`to_signed`]. A negative one is 0.
pub fn to_unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open;

    #[tokio::test]
    async fn a_column_is_read_or_named() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("columns.db").display());
        let pool = open(&url).await.unwrap();
        let row = sqlx::query(
            "SELECT CAST(7 AS BIGINT) AS number, CAST(-7 AS BIGINT) AS negative, CAST('12' AS TEXT) AS text, \
             CAST('[1]' AS TEXT) AS list, CAST(NULL AS TEXT) AS missing",
        )
        .fetch_one(&pool)
        .await
        .unwrap();
        assert_eq!(unsigned_column(&row, "number").unwrap(), 7);
        assert_eq!(unsigned_column(&row, "negative").unwrap(), 0);
        assert_eq!(time_column(&row, "number").unwrap(), Timestamp::from_micros(7));
        assert_eq!(parse_column::<u16>(&row, "text").unwrap(), 12);
        assert_eq!(parse_column_option::<u16>(&row, "missing").unwrap(), None);
        assert_eq!(json_column::<Vec<u8>>(&row, "list").unwrap(), [1]);
        let error = parse_column::<u16>(&row, "list").unwrap_err().to_string();
        assert!(error.contains("list"), "{error}");
        let error = read_column::<i64>(&row, "absent").unwrap_err().to_string();
        assert!(error.contains("absent"), "{error}");
        assert_eq!(to_signed(u64::MAX), i64::MAX);
    }

    #[test]
    fn only_a_text_with_u0000_is_changed_before_it_is_stored() {
        assert_eq!(storable_text("\0a\0\0"), "\u{fffd}a\u{fffd}\u{fffd}");
        assert_eq!(storable_text("\u{1}\u{fffd}\n"), "\u{1}\u{fffd}\n");
    }
}
