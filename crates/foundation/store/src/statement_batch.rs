//! Statements whose results are not needed, run together.
//!
//! A statement on SQLite is handed to the connection's thread and back, which costs more than most statements. A
//! [`Script`] is handed over once for all its statements. PostgreSQL takes one statement with parameters at a time.

use std::fmt::Write as _;

use futures_util::TryStreamExt as _;
use sqlx::any::Any;
use sqlx::query::Query;
use sqlx::{AnyConnection, AssertSqlSafe, Executor as _};

use crate::columns::storable_text;

/// Statements in order, with their parameters.
#[derive(Clone, Debug, Default)]
pub struct Script {
    statements: Vec<(&'static str, usize)>,
    values: Vec<Value>,
}

/// A parameter: columns are `TEXT` and `BIGINT` only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// For a `TEXT` column; `None` is NULL.
    Text(Option<String>),
    /// For a `BIGINT` column; `None` is NULL.
    Number(Option<i64>),
}

impl Script {
    /// Adds a statement; its parameters are `$1`, `$2`, … as in any other.
    pub fn add(&mut self, statement: &'static str, values: impl IntoIterator<Item = Value>) {
        let before = self.values.len();
        self.values.extend(values);
        self.statements.push((statement, self.values.len() - before));
    }

    /// Whether it has no statement.
    pub fn is_empty(&self) -> bool {
        self.statements.is_empty()
    }

    /// The number of statements.
    pub fn statements(&self) -> u64 {
        u64::try_from(self.statements.len()).unwrap_or(u64::MAX)
    }

    /// Runs all statements and empties the script; returns the number of rows written.
    ///
    /// # Errors
    /// The engine's, about the first statement that fails; those behind it are not run.
    pub async fn run(&mut self, connection: &mut AnyConnection) -> Result<u64, sqlx::Error> {
        let (_, rows) = self.run_behind(&[], &Self::default(), connection).await?;
        Ok(rows)
    }

    /// Runs `first`, which write no rows, then the script `other`, then this one, all handed over together. Returns the
    /// rows that `other` wrote, and those of this script.
    pub(super) async fn run_behind(
        &mut self,
        first: &[&'static str],
        other: &Self,
        connection: &mut AnyConnection,
    ) -> Result<(u64, u64), sqlx::Error> {
        let own = std::mem::take(self);
        let behind = first.len().saturating_add(other.statements.len());
        if behind == 0 && own.is_empty() {
            return Ok((0, 0));
        }
        let statements = other.statements.iter().chain(&own.statements);
        let mut values = other.values.iter().cloned().chain(own.values);
        if connection.backend_name() == "SQLite" {
            let text = text(first, statements.copied());
            let written = execute(sqlx::query(AssertSqlSafe(text)), values, connection).await?;
            // For a statement that writes no rows SQLite repeats the count of the one before it.
            let sum = |part: Option<&[u64]>| part.unwrap_or_default().iter().sum();
            return Ok((sum(written.get(first.len()..behind)), sum(written.get(behind..))));
        }
        for statement in first {
            connection.execute(*statement).await?;
        }
        let mut rows = (0, 0);
        for (place, (statement, count)) in statements.enumerate() {
            let own: Vec<_> = values.by_ref().take(*count).collect();
            let written: u64 = execute(sqlx::query(*statement), own, connection)
                .await?
                .iter()
                .sum();
            if place < other.statements.len() {
                rows.0 += written;
            } else {
                rows.1 += written;
            }
        }
        Ok(rows)
    }
}

/// All statements as one text, with their parameters renumbered.
fn text(first: &[&str], statements: impl Iterator<Item = (&'static str, usize)>) -> String {
    let mut text = String::new();
    for statement in first {
        text.push_str(statement);
        text.push_str(";\n");
    }
    let mut before = 0;
    for (statement, count) in statements {
        let mut pieces = statement.split('$');
        text.push_str(pieces.next().unwrap_or_default());
        for piece in pieces {
            let digits = piece.len() - piece.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, rest) = piece.split_at(digits);
            let number: usize = number.parse().unwrap_or_default();
            // Writing into a string does not fail.
            let _ = write!(text, "${}{rest}", number + before);
        }
        text.push_str(";\n");
        before += count;
    }
    text
}

/// A query with its parameters, as both engines store them.
pub(super) fn bind(
    mut query: Query<'_, Any, sqlx::any::AnyArguments>,
    values: impl IntoIterator<Item = Value>,
) -> Query<'_, Any, sqlx::any::AnyArguments> {
    for value in values {
        query = match value {
            Value::Text(text) => query.bind(text.map(storable_text)),
            Value::Number(number) => query.bind(number),
        };
    }
    query
}

/// The number of rows that each statement of a query wrote.
async fn execute(
    query: Query<'_, Any, sqlx::any::AnyArguments>,
    values: impl IntoIterator<Item = Value>,
    connection: &mut AnyConnection,
) -> Result<Vec<u64>, sqlx::Error> {
    let done = connection.fetch_many(bind(query, values));
    done.try_filter_map(async |next| Ok(next.left().map(|done| done.rows_affected())))
        .try_collect()
        .await
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<Option<String>> for Value {
    fn from(text: Option<String>) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(Some(number))
    }
}

impl From<Option<i64>> for Value {
    fn from(number: Option<i64>) -> Self {
        Self::Number(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_renumbered() {
        let mut script = Script::default();
        script.add("INSERT INTO a VALUES ($1, $2)", ["x".into(), 1.into()]);
        script.add("DELETE FROM b", []);
        script.add(
            "UPDATE c SET d = $2 WHERE e = $1 AND d < $2",
            ["y".into(), 2.into()],
        );
        assert_eq!(
            text(&["BEGIN"], script.statements.iter().copied()),
            "BEGIN;\nINSERT INTO a VALUES ($1, $2);\nDELETE FROM b;\nUPDATE c SET d = $4 WHERE e = $3 AND d < $4;\n"
        );
    }
}
