//! Lists of an account's jobs, a page at a time.

use std::collections::HashMap;

use muster_facilitator_core::credentials::Account;
use muster_facilitator_core::history::JobHistory;
use muster_facilitator_core::list_page::JobFilter;
use muster_protocol::JobId;
use muster_protocol::volume::{Volume, VolumePart};
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_store::{During as _, StoreError, json};
use sqlx::AssertSqlSafe;

use super::{JOB_COLUMNS, JobRow, StatusRow, StoredJob};
use crate::Store;
use crate::queue_places::IS_WAITING;

/// One page of a user's jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredJobPage {
    /// The number of the account's jobs that match the filter.
    pub count: u64,
    /// The jobs of this page, newest first, without the contents of inline volumes.
    pub jobs: Vec<StoredJob>,
}

/// A page of jobs, unless it is too long.
#[derive(Clone, Debug, PartialEq)]
pub enum JobListing {
    /// The requested page.
    Page(StoredJobPage),
    /// The page would be longer than [`MAX_PAGE_BYTES`].
    TooLong,
}

/// The most bytes of a page: requests without inline contents, and results.
pub const MAX_PAGE_BYTES: usize = 64 * 1024 * 1024;

/// Requests longer than this, in bytes, are read one at a time, so that a page never holds the inline inputs of all
/// its jobs in memory.
const MAX_LISTED_REQUEST: i64 = 64 * 1024;

// === impl Store ===

impl Store {
    /// The jobs of `account` that match `filter`, newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn list_jobs(
        &self,
        account: &Account,
        filter: &JobFilter,
        limit: u32,
        offset: u64,
    ) -> Result<JobListing, StoreError> {
        let (count, uuids) = self.page_uuids(account, filter, limit, offset).await?;
        if uuids.is_empty() {
            return Ok(JobListing::Page(StoredJobPage {
                count,
                jobs: Vec::new(),
            }));
        }
        // The page's jobs are selected by id, because the whole list may be long.
        let names = placeholders(1, uuids.len());
        let statement = format!(
            "SELECT COALESCE(CAST(SUM(LENGTH(metadata)) AS BIGINT), 0) FROM statuses WHERE job IN ({names})"
        );
        let mut query = sqlx::query_as(AssertSqlSafe(statement));
        for uuid in &uuids {
            query = query.bind(uuid.as_str());
        }
        let (results,): (i64,) = query.fetch_one(&self.pool).await.during("measure statuses")?;
        let mut left = MAX_PAGE_BYTES.checked_sub(usize::try_from(results).unwrap_or(usize::MAX));
        let names = placeholders(2, uuids.len());
        let statement = format!(
            "SELECT {JOB_COLUMNS}, CASE WHEN LENGTH(request) <= $1 THEN request ELSE '' END AS request \
             FROM jobs WHERE uuid IN ({names}) ORDER BY created_at DESC, uuid DESC"
        );
        let mut query = sqlx::query_as(AssertSqlSafe(statement)).bind(MAX_LISTED_REQUEST);
        for uuid in &uuids {
            query = query.bind(uuid.as_str());
        }
        let mut rows: Vec<JobRow> = query.fetch_all(&self.pool).await.during("list jobs")?;
        let mut requests = Vec::new();
        for row in &mut rows {
            if row.request.is_empty() {
                row.request = self.request(&row.uuid).await?;
            }
            let request =
                without_inline_contents(json::decode("jobs.request", &std::mem::take(&mut row.request))?);
            left = left.and_then(|left| left.checked_sub(encode(&request).len()));
            if left.is_none() {
                return Ok(JobListing::TooLong);
            }
            requests.push(request);
        }
        let mut histories = self.histories(&uuids).await?;
        let jobs = rows
            .into_iter()
            .zip(requests)
            .map(|(row, request)| {
                let history = histories.remove(&row.uuid).unwrap_or_default();
                row.with_request(request, history)
            })
            .collect::<Result<_, _>>()?;
        Ok(JobListing::Page(StoredJobPage { count, jobs }))
    }

    /// The number of jobs that match, and the ids of those on one page, newest first.
    async fn page_uuids(
        &self,
        account: &Account,
        filter: &JobFilter,
        limit: u32,
        offset: u64,
    ) -> Result<(u64, Vec<String>), StoreError> {
        let (mut which, named) = name_condition(filter);
        which.push_str(&status_condition(filter));
        // Both statements use the first three parameters, so that the others have the same numbers.
        let counting = format!(
            "SELECT COUNT(*) FROM jobs WHERE account = $1 AND CAST($2 AS BIGINT) >= 0 AND CAST($3 AS BIGINT) >= 0 {which}"
        );
        let listing = format!(
            "SELECT uuid FROM jobs WHERE account = $1 {which} ORDER BY created_at DESC, uuid DESC LIMIT $2 OFFSET $3"
        );
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        let mut count = sqlx::query_as(AssertSqlSafe(counting))
            .bind(account.to_string())
            .bind(i64::from(limit))
            .bind(offset);
        let mut page = sqlx::query_as(AssertSqlSafe(listing))
            .bind(account.to_string())
            .bind(i64::from(limit))
            .bind(offset);
        for text in &named {
            count = count.bind(text.as_str());
            page = page.bind(text.as_str());
        }
        let (count,): (i64,) = count.fetch_one(&self.pool).await.during("count jobs")?;
        let uuids: Vec<(String,)> = page.fetch_all(&self.pool).await.during("list jobs")?;
        let uuids = uuids.into_iter().map(|(uuid,)| uuid).collect();
        Ok((u64::try_from(count).unwrap_or_default(), uuids))
    }

    async fn histories(&self, uuids: &[String]) -> Result<HashMap<String, JobHistory>, StoreError> {
        let names = placeholders(1, uuids.len());
        let statement = format!(
            "SELECT job, status, metadata, created_at FROM statuses WHERE job IN ({names}) ORDER BY job, position"
        );
        let mut query = sqlx::query_as(AssertSqlSafe(statement));
        for uuid in uuids {
            query = query.bind(uuid.as_str());
        }
        let statuses: Vec<StatusRow> = query.fetch_all(&self.pool).await.during("list statuses")?;
        let mut histories: HashMap<String, JobHistory> = HashMap::new();
        for row in statuses {
            let (job, entry) = row.into_entry()?;
            histories.entry(job).or_default().push(entry);
        }
        Ok(histories)
    }

    /// The stored text of one job's request.
    async fn request(&self, uuid: &str) -> Result<String, StoreError> {
        let (request,) = sqlx::query_as("SELECT request FROM jobs WHERE uuid = $1")
            .bind(uuid)
            .fetch_one(&self.pool)
            .await
            .during("read a job's request")?;
        Ok(request)
    }
}

/// The condition that a row of `jobs` is one of those that the filter names, and the texts of its parameters, of which
/// the first is `$4`.
fn name_condition(filter: &JobFilter) -> (String, Vec<String>) {
    let mut condition = String::new();
    let mut texts: Vec<String> = filter.uuids.iter().map(JobId::to_string).collect();
    if !texts.is_empty() {
        condition = format!(" AND uuid IN ({})", placeholders(4, texts.len()));
    }
    if let Some(prefix) = &filter.prefix {
        // A range of whole ids is one in every collation, which the beginning of a text is not.
        let first = texts.len().saturating_add(4);
        condition = format!(
            "{condition} AND uuid BETWEEN ${first} AND ${}",
            first.saturating_add(1)
        );
        texts.extend([prefix.first().to_string(), prefix.last().to_string()]);
    }
    if let Some(tag) = &filter.tag {
        let number = texts.len().saturating_add(4);
        // The index of labels leaves out the jobs without one.
        condition = format!("{condition} AND tag <> '' AND tag = ${number}");
        texts.push(tag.to_string());
    }
    (condition, texts)
}

/// The condition that a row of `jobs` has one of the statuses of the filter; empty if each will do.
fn status_condition(filter: &JobFilter) -> String {
    let mut conditions = Vec::new();
    if !filter.statuses.is_empty() {
        // The words are the wire's own, so they need no parameters.
        let words: Vec<_> = filter.statuses.iter().map(|word| format!("'{word}'")).collect();
        conditions.push(format!(
            "(SELECT last.status FROM statuses AS last WHERE last.job = jobs.uuid AND last.status <> 'unknown' \
             ORDER BY last.position DESC LIMIT 1) IN ({})",
            words.join(", ")
        ));
    }
    if filter.queued {
        conditions.push(format!(
            "EXISTS (SELECT 1 FROM queue_places WHERE queue_places.job = jobs.uuid AND {IS_WAITING})"
        ));
    }
    if conditions.is_empty() {
        String::new()
    } else {
        format!(" AND ({})", conditions.join(" OR "))
    }
}

/// The placeholders of `count` parameters: `$first, $second, …`.
fn placeholders(first: usize, count: usize) -> String {
    let names: Vec<_> = (first..first.saturating_add(count))
        .map(|number| format!("${number}"))
        .collect();
    names.join(", ")
}

/// Removes the contents of inline volumes, up to 16 MiB a job. Only the view of a single job contains them.
fn without_inline_contents(mut request: UserJobRequest) -> UserJobRequest {
    let inline = |part: &mut VolumePart| match part {
        VolumePart::Inline(inline) => inline.contents = String::new(),
        VolumePart::ZipUrl(_) | VolumePart::SingleFile(_) | VolumePart::HuggingfaceVolume(_) => {}
    };
    match &mut request.volume {
        Some(Volume::Inline(inline)) => inline.contents = String::new(),
        Some(Volume::MultiVolume(multi)) => multi.volumes.iter_mut().for_each(inline),
        Some(Volume::ZipUrl(_) | Volume::SingleFile(_) | Volume::HuggingfaceVolume(_)) | None => {}
    }
    request
}
