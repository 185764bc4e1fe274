//! The room that objects take in the store, by account: of files, of unfinished uploads, and of replaced and deleted
//! files until a sweep has deleted them.
//!
//! `files.held` is what an account's files may have. This bounds the bytes that lie there, at twice as much, so that
//! every file can be replaced while its old content is still read.

use muster_protocol::Timestamp;
use muster_store::columns::to_signed;
use muster_store::{During as _, StoreError, begin};
use sqlx::{Any, Transaction};
use uuid::Uuid;

use super::{FileBounds, FileCatalogue, Segment};

/// The least that an object counts, in bytes: small objects cost rows.
const LEAST_CHARGE: u64 = 64 * 1024;
/// The name of the row for all accounts together, which no account can have.
const ALL: &str = "*";

// === impl FileCatalogue ===

impl FileCatalogue {
    /// Records an object before it is written, so that a sweep finds it if the upload fails. Returns `false`, and
    /// records nothing, if the account or all accounts together have too much in the store.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn record_object(
        &self,
        account: &str,
        upload: Uuid,
        segment: &Segment,
        bounds: FileBounds,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let charge = segment.len.max(LEAST_CHARGE);
        let mut transaction = begin(&self.pool).await?;
        // Every transaction takes the rows in this order.
        for (row, bound) in [(account, bounds.account), (ALL, bounds.all)] {
            let most = bound.saturating_mul(2).max(LEAST_CHARGE);
            if charge > most || !charge_account(&mut transaction, row, charge, most).await? {
                return Ok(false);
            }
        }
        let statement = "INSERT INTO file_segments (object, upload, start_at, length, durable, created_at, account, \
                         charge) VALUES ($1, $2, $3, 0, 0, $4, $5, $6)";
        sqlx::query(statement)
            .bind(segment.object.as_str())
            .bind(upload.to_string())
            .bind(to_signed(segment.start))
            .bind(now.micros())
            .bind(account)
            .bind(to_signed(charge))
            .execute(&mut *transaction)
            .await
            .during("record a segment")?;
        transaction.commit().await.during("record a segment")?;
        Ok(true)
    }

    /// Deletes the row of a deleted object, and gives its room back.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn delete_object_row(&self, object: &str) -> Result<(), StoreError> {
        let mut transaction = begin(&self.pool).await?;
        let statement = "DELETE FROM file_segments WHERE object = $1 RETURNING account, charge";
        let deleted: Option<(String, i64)> = sqlx::query_as(statement)
            .bind(object)
            .fetch_optional(&mut *transaction)
            .await
            .during("delete an object's row")?;
        let Some((account, charge)) = deleted else {
            return Ok(());
        };
        for row in [account.as_str(), ALL] {
            sqlx::query("UPDATE stored_bytes SET bytes = bytes - $2 WHERE account = $1")
                .bind(row)
                .bind(charge)
                .execute(&mut *transaction)
                .await
                .during("give back an object's room")?;
        }
        // Nothing is remembered of an account without bytes.
        let statement = "DELETE FROM stored_bytes WHERE account = $1 AND account <> $2 AND bytes <= 0";
        sqlx::query(statement)
            .bind(account.as_str())
            .bind(ALL)
            .execute(&mut *transaction)
            .await
            .during("forget an account's room")?;
        transaction.commit().await.during("delete an object's row")
    }
}

/// Adds to the bytes of an account, unless they would exceed `most`.
async fn charge_account(
    transaction: &mut Transaction<'_, Any>,
    account: &str,
    charge: u64,
    most: u64,
) -> Result<bool, StoreError> {
    let statement = "INSERT INTO stored_bytes (account, bytes) VALUES ($1, $2) ON CONFLICT (account) \
                     DO UPDATE SET bytes = stored_bytes.bytes + $2 WHERE stored_bytes.bytes + $2 <= $3";
    let done = sqlx::query(statement)
        .bind(account)
        .bind(to_signed(charge))
        .bind(to_signed(most))
        .execute(&mut **transaction)
        .await
        .during("take room for a segment")?;
    Ok(done.rows_affected() == 1)
}
