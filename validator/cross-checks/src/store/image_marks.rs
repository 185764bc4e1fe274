//! Marks of images that may tell machines apart.

use muster_protocol::{JobId, Timestamp};
use muster_store::During as _;
use muster_store::columns::{parse_column, time_column};
use sqlx::AnyConnection;

use super::{CheckStore, StoreResult};
use crate::image_marks::ImageMark;

impl CheckStore {
    /// The newest mark of an image; `None` if it has none. It may be old.
    pub(crate) async fn image_mark(&self, image: &str) -> StoreResult<Option<ImageMark>> {
        let row = sqlx::query("SELECT job_id, marked_at FROM machine_dependent_images WHERE image = $1")
            .bind(image.to_owned())
            .fetch_optional(&self.pool)
            .await
            .during("read the mark of an image")?;
        row.map(|row| {
            Ok(ImageMark {
                job: parse_column(&row, "job_id")?,
                at: time_column(&row, "marked_at")?,
            })
        })
        .transpose()
    }
}

/// Marks an image. A mark that there is begins anew.
pub(super) async fn mark_image(
    connection: &mut AnyConnection,
    image: &str,
    job: JobId,
    now: Timestamp,
) -> StoreResult<()> {
    sqlx::query(
        "INSERT INTO machine_dependent_images (image, job_id, marked_at) VALUES ($1, $2, $3) \
         ON CONFLICT (image) DO UPDATE SET job_id = excluded.job_id, marked_at = excluded.marked_at",
    )
    .bind(image.to_owned())
    .bind(job.to_string())
    .bind(now.micros())
    .execute(connection)
    .await
    .during("mark an image")?;
    Ok(())
}
