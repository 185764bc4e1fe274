//! The upload of a file: beginning it, adding segments, and finishing or discarding it.

use muster_protocol::Timestamp;
use muster_store::columns::{to_signed, to_unsigned};
use muster_store::{During as _, StoreError, begin};
use uuid::Uuid;

use super::{AppendOutcome, ExceededBound, FileBounds, FileCatalogue, FileContent, Segment, StoredFile};
use crate::signed_urls::FileId;

muster_store::row! {
    struct SegmentRow {
        object: String,
        start_at: i64,
        length: i64,
    }
}

// === impl FileCatalogue ===

impl FileCatalogue {
    /// Makes the empty `upload` the file's unfinished one, in place of any other. Returns `false` if the file is gone.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn begin_upload(&self, id: FileId, upload: Uuid) -> Result<bool, StoreError> {
        let done = sqlx::query("UPDATE files SET uploading = $2, received = 0 WHERE id = $1")
            .bind(id.to_string())
            .bind(upload.to_string())
            .execute(&self.pool)
            .await
            .during("begin an upload")?;
        Ok(done.rows_affected() == 1)
    }

    /// Makes a durable object the next segment of an upload, unless another request has written this offset.
    ///
    /// The bounds of a file with a declared size were checked at its announcement. Any other file is checked here.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn append(
        &self,
        file: &StoredFile,
        upload: Uuid,
        segment: &Segment,
        bounds: FileBounds,
    ) -> Result<AppendOutcome, StoreError> {
        let mut transaction = begin(&self.pool).await?;
        let statement = "UPDATE files SET received = received + $4, \
                         held = CASE WHEN received + $4 > held THEN received + $4 ELSE held END \
                         WHERE id = $1 AND uploading = $2 AND received = $3";
        let done = sqlx::query(statement)
            .bind(file.id.to_string())
            .bind(upload.to_string())
            .bind(to_signed(segment.start))
            .bind(to_signed(segment.len))
            .execute(&mut *transaction)
            .await
            .during("add a segment")?;
        if done.rows_affected() != 1 {
            return Ok(AppendOutcome::Overtaken);
        }
        if file.declared.is_none() {
            let statement = "SELECT COALESCE(CAST(SUM(CASE WHEN account = $1 THEN bytes ELSE 0 END) AS BIGINT), 0), \
                             COALESCE(CAST(SUM(bytes) AS BIGINT), 0) FROM used_bytes";
            let (own, all): (i64, i64) = sqlx::query_as(statement)
                .bind(file.account.as_str())
                .fetch_one(&mut *transaction)
                .await
                .during("sum up the used bytes")?;
            if to_unsigned(own) > bounds.account {
                return Ok(AppendOutcome::Exceeds(ExceededBound::Account));
            }
            if to_unsigned(all) > bounds.all {
                return Ok(AppendOutcome::Exceeds(ExceededBound::All));
            }
        }
        sqlx::query("UPDATE file_segments SET durable = 1, length = $2 WHERE object = $1")
            .bind(segment.object.as_str())
            .bind(to_signed(segment.len))
            .execute(&mut *transaction)
            .await
            .during("add a segment")?;
        transaction.commit().await.during("add a segment")?;
        Ok(AppendOutcome::Appended)
    }

    /// Makes a finished upload the file's content. Returns `false` if another upload has replaced it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn publish(
        &self,
        id: FileId,
        content: FileContent,
        expires_at: Timestamp,
    ) -> Result<bool, StoreError> {
        let statement = "UPDATE files SET content = uploading, size = received, sha256 = $4, uploading = '', received = 0, \
                         held = $3, expires_at = $5 WHERE id = $1 AND uploading = $2 AND received = $3";
        let done = sqlx::query(statement)
            .bind(id.to_string())
            .bind(content.upload.to_string())
            .bind(to_signed(content.size))
            .bind(content.sha256.hex())
            .bind(expires_at.micros())
            .execute(&self.pool)
            .await
            .during("finish an upload")?;
        Ok(done.rows_affected() == 1)
    }

    /// Discards an unfinished upload.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn abandon(&self, id: FileId, upload: Uuid) -> Result<(), StoreError> {
        let statement = "UPDATE files SET uploading = '', received = 0, held = CASE WHEN declared > 0 AND declared > size \
                         THEN declared WHEN size > 0 THEN size ELSE 0 END WHERE id = $1 AND uploading = $2";
        sqlx::query(statement)
            .bind(id.to_string())
            .bind(upload.to_string())
            .execute(&self.pool)
            .await
            .during("discard an upload")?;
        Ok(())
    }

    /// The durable segments of an upload, in order.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn segments(&self, upload: Uuid) -> Result<Vec<Segment>, StoreError> {
        let statement = "SELECT object, start_at, length FROM file_segments WHERE upload = $1 AND durable = 1 \
                         ORDER BY start_at";
        let rows: Vec<SegmentRow> = sqlx::query_as(statement)
            .bind(upload.to_string())
            .fetch_all(&self.pool)
            .await
            .during("read a file's segments")?;
        let segment = |row: SegmentRow| Segment {
            object: row.object,
            start: to_unsigned(row.start_at),
            len: to_unsigned(row.length),
        };
        Ok(rows.into_iter().map(segment).collect())
    }
}
