//! The size of a store: rows and bytes of each table, measured on a connection of its own that disturbs no writer.

use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Row as _};

use crate::store_url::StoreUrl;
use crate::{During as _, StoreError, prepare};

/// The size of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// The table's name.
    pub table: String,
    /// The exact number of rows when it was measured.
    pub rows: u64,
    /// Bytes on disk, indexes included.
    pub bytes: u64,
}

const OPERATION: &str = "measure the tables";

/// SQLite's own account of its pages. Tables of SQLite itself and of the migrations are left out.
const SQLITE_BYTES: &str = "SELECT CAST(s.tbl_name AS TEXT), CAST(SUM(d.pgsize) AS BIGINT) FROM dbstat AS d \
     JOIN sqlite_schema AS s ON s.name = d.name \
     WHERE d.aggregate = TRUE AND s.tbl_name NOT LIKE 'sqlite\\_%' ESCAPE '\\' \
     AND s.tbl_name NOT LIKE '\\_sqlx%' ESCAPE '\\' GROUP BY s.tbl_name ORDER BY s.tbl_name";

const POSTGRES_BYTES: &str = "SELECT CAST(relname AS TEXT), CAST(pg_total_relation_size(oid) AS BIGINT) FROM pg_class \
     WHERE relkind = 'r' AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) \
     AND relname NOT LIKE '\\_sqlx%' ORDER BY relname";

/// The size of every table of the store at `url`, by name. A store in memory has no size.
///
/// # Errors
/// The store cannot be opened or read.
pub async fn measure_tables(url: &str) -> Result<Vec<TableSize>, StoreError> {
    let store = StoreUrl::parse(url)?;
    let statement = match store {
        StoreUrl::Sqlite { path: None } => return Ok(Vec::new()),
        StoreUrl::Sqlite { path: Some(_) } => SQLITE_BYTES,
        StoreUrl::Postgres { .. } => POSTGRES_BYTES,
    };
    let mut connection = AnyConnection::connect(&store.connection_url())
        .await
        .during(OPERATION)?;
    prepare(&mut connection).await.during(OPERATION)?;
    let rows = sqlx::query(statement)
        .fetch_all(&mut connection)
        .await
        .during(OPERATION)?;
    let mut tables = Vec::new();
    for row in rows {
        let table: String = row.try_get(0).during(OPERATION)?;
        let bytes: i64 = row.try_get(1).during(OPERATION)?;
        let count = format!("SELECT COUNT(*) FROM {table}");
        let (rows,): (i64,) = sqlx::query_as(AssertSqlSafe(count))
            .fetch_one(&mut connection)
            .await
            .during(OPERATION)?;
        tables.push(TableSize {
            table,
            rows: u64::try_from(rows).unwrap_or_default(),
            bytes: u64::try_from(bytes).unwrap_or_default(),
        });
    }
    connection.close().await.during(OPERATION)?;
    Ok(tables)
}

/// Sets the metrics `muster_store_rows` and `muster_store_bytes` of each table.
#[expect(clippy::cast_precision_loss, reason = "a metric is a float")]
pub fn report_tables(role: &'static str, tables: &[TableSize]) {
    for size in tables {
        metrics::gauge!("muster_store_rows", "role" => role, "table" => size.table.clone())
            .set(size.rows as f64);
        metrics::gauge!("muster_store_bytes", "role" => role, "table" => size.table.clone())
            .set(size.bytes as f64);
    }
}
