//! Statements whose answers nobody needs, carried out together.
//!
//! A statement on SQLite is handed to the connection's thread and back, which costs more than most statements. A [`Script`] is
//! handed over once, however many it has. PostgreSQL takes one statement with parameters at a time, and gets them so.

use std::fmt::Write as _;

use futures_util::TryStreamExt as _;
use sqlx::any::Any;
use sqlx::query::Query;
use sqlx::{AnyConnection, AssertSqlSafe, Either, Executor as _};

/// Statements in their order, with their parameters.
#[derive(Debug, Default)]
pub struct Script {
    statements: Vec<(&'static str, usize)>,
    values: Vec<Value>,
}

/// A parameter: columns are `TEXT` and `BIGINT` only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of a `TEXT` column.
    Text(Option<String>),
    /// Of a `BIGINT` column.
    Number(Option<i64>),
}

impl Script {
    /// Adds a statement; its parameters are `$1`, `$2`, … as in any other.
    pub fn add(&mut self, statement: &'static str, values: impl IntoIterator<Item = Value>) {
        let before = self.values.len();
        self.values.extend(values);
        self.statements.push((statement, self.values.len() - before));
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.statements.is_empty()
    }

    /// How many statements there are.
    pub fn statements(&self) -> u64 {
        u64::try_from(self.statements.len()).unwrap_or(u64::MAX)
    }

    /// Carries all of it out, and leaves nothing of it; how many rows were written.
    ///
    /// # Errors
    /// The engine's, about the first statement that fails; those behind it are not carried out.
    pub async fn run(&mut self, connection: &mut AnyConnection) -> Result<u64, sqlx::Error> {
        self.run_behind(&[], connection).await
    }

    /// Likewise, behind statements without parameters that write no rows.
    pub(super) async fn run_behind(
        &mut self,
        first: &[&'static str],
        connection: &mut AnyConnection,
    ) -> Result<u64, sqlx::Error> {
        let script = std::mem::take(self);
        if script.is_empty() && first.is_empty() {
            return Ok(0);
        }
        if connection.backend_name() == "SQLite" {
            let text = script.text(first);
            return execute(
                sqlx::query(AssertSqlSafe(text)),
                script.values,
                first.len(),
                connection,
            )
            .await;
        }
        for statement in first {
            connection.execute(*statement).await?;
        }
        let mut values = script.values.into_iter();
        let mut rows = 0;
        for (statement, count) in script.statements {
            let own: Vec<_> = values.by_ref().take(count).collect();
            rows += execute(sqlx::query(statement), own, 0, connection).await?;
        }
        Ok(rows)
    }

    /// All statements as one text, their parameters counted through.
    fn text(&self, first: &[&str]) -> String {
        let length: usize = self.statements.iter().map(|(one, _)| one.len() + 16).sum();
        let mut text = String::with_capacity(length + first.iter().map(|one| one.len() + 2).sum::<usize>());
        for statement in first {
            text.push_str(statement);
            text.push_str(";\n");
        }
        let mut before = 0;
        for (statement, count) in &self.statements {
            let mut pieces = statement.split('$');
            text.push_str(pieces.next().unwrap_or_default());
            for piece in pieces {
                let digits = piece.len() - piece.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                let (number, rest) = piece.split_at(digits);
                let number: usize = number.parse().unwrap_or_default();
                // Writing into a text does not fail.
                let _ = write!(text, "${}{rest}", number + before);
            }
            text.push_str(";\n");
            before += count;
        }
        text
    }
}

/// How many rows were written by all statements of a query but the first ones.
async fn execute(
    mut query: Query<'_, Any, sqlx::any::AnyArguments>,
    values: Vec<Value>,
    first: usize,
    connection: &mut AnyConnection,
) -> Result<u64, sqlx::Error> {
    for value in values {
        query = match value {
            Value::Text(text) => query.bind(text),
            Value::Number(number) => query.bind(number),
        };
    }
    // SQLite says of a statement that writes no rows how many the one before it wrote.
    let (mut done, mut rows) = (connection.fetch_many(query), 0);
    let mut statement = 0;
    while let Some(next) = done.try_next().await? {
        if let Either::Left(result) = next {
            statement += 1;
            if statement > first {
                rows += result.rows_affected();
            }
        }
    }
    Ok(rows)
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
    fn parameters_are_counted_through() {
        let mut script = Script::default();
        script.add("INSERT INTO a VALUES ($1, $2)", ["x".into(), 1.into()]);
        script.add("DELETE FROM b", []);
        script.add(
            "UPDATE c SET d = $2 WHERE e = $1 AND d < $2",
            ["y".into(), 2.into()],
        );
        assert_eq!(
            script.text(&["SAVEPOINT write"]),
            "SAVEPOINT write;\nINSERT INTO a VALUES ($1, $2);\nDELETE FROM b;\nUPDATE c SET d = $4 WHERE e = $3 AND d < $4;\n"
        );
    }
}
