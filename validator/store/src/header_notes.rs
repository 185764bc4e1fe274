//! The headers of other validators' buckets, as this validator read them first, and the validators that signed two.

use std::collections::BTreeMap;

use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_store::During as _;
use muster_store::columns::{parse_column, read_column, time_column, to_signed, unsigned_column};
use serde::Serialize;
use sqlx::any::AnyRow;

use super::{Result, Store};

/// One reading of another validator's page between the end of a bucket and its draw block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderReading {
    /// The validator whose page was read.
    pub author: ValidatorKey,
    /// The number of the bucket, which had ended.
    pub bucket: u64,
    /// The bucket's header; `None` if the page showed none of this bucket.
    pub header: Option<ReadHeader>,
    /// The newest block after the page had been read.
    pub block: u64,
    /// When it was read.
    pub at: Timestamp,
}

/// A signed header of a bucket that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadHeader {
    /// The digest of its bytes.
    pub digest: Digest,
    /// The header with its signature, in text form.
    pub text: String,
}

/// Two headers of one bucket that one validator signed, in text form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SecondHeader {
    /// The validator that signed both.
    pub author: ValidatorKey,
    /// The number of the bucket.
    pub bucket: u64,
    /// The header that was read first.
    pub first: String,
    /// The other one.
    pub second: String,
    /// When the second one was found.
    pub seen_at: Timestamp,
}

impl Store {
    /// Notes a reading. The first header of a bucket that was read stays. It takes the place of a reading without one,
    /// as does a later reading without one.
    ///
    /// # Errors
    /// The database fails.
    pub async fn note_header(&self, reading: &HeaderReading) -> Result<()> {
        let of_header =
            |field: fn(&ReadHeader) -> String| reading.header.as_ref().map(field).unwrap_or_default();
        self.write("note a header of another validator", |draft| {
            draft.script.add(
                "INSERT INTO audit_header_notes (genesis, author, bucket, digest, header, seen_block, seen_at) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (genesis, author, bucket) DO UPDATE SET \
                 digest = excluded.digest, header = excluded.header, \
                 seen_block = excluded.seen_block, seen_at = excluded.seen_at \
                 WHERE audit_header_notes.digest = ''",
                [
                    draft.chain.genesis.clone().into(),
                    reading.author.to_string().into(),
                    to_signed(reading.bucket).into(),
                    of_header(|header| header.digest.to_string()).into(),
                    of_header(|header| header.text.clone()).into(),
                    to_signed(reading.block).into(),
                    reading.at.micros().into(),
                ],
            );
        })
        .await
    }

    /// The reading of an author's page in the time of this bucket; `None` if it was not read then.
    ///
    /// # Errors
    /// The database fails.
    pub async fn header_reading(&self, author: ValidatorKey, bucket: u64) -> Result<Option<HeaderReading>> {
        let row = sqlx::query(
            "SELECT bucket, digest, header, seen_block, seen_at FROM audit_header_notes \
             WHERE genesis = $1 AND author = $2 AND bucket = $3",
        )
        .bind(self.chain().genesis)
        .bind(author.to_string())
        .bind(to_signed(bucket))
        .fetch_optional(&self.pool)
        .await
        .during("look for a header of another validator")?;
        row.map(|row| reading_from(author, &row)).transpose()
    }

    /// The readings of an author's page in the times of the buckets from the first to the last of these, by bucket.
    ///
    /// # Errors
    /// The database fails.
    pub async fn header_readings(
        &self,
        author: ValidatorKey,
        first: u64,
        last: u64,
    ) -> Result<BTreeMap<u64, HeaderReading>> {
        let rows = sqlx::query(
            "SELECT bucket, digest, header, seen_block, seen_at FROM audit_header_notes \
             WHERE genesis = $1 AND author = $2 AND bucket >= $3 AND bucket <= $4",
        )
        .bind(self.chain().genesis)
        .bind(author.to_string())
        .bind(to_signed(first))
        .bind(to_signed(last))
        .fetch_all(&self.pool)
        .await
        .during("read headers of another validator")?;
        let readings = rows.iter().map(|row| reading_from(author, row));
        readings
            .map(|reading| reading.map(|reading| (reading.bucket, reading)))
            .collect()
    }

    /// Stores that a validator signed two headers of one bucket. The first pair stays.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_second_header(&self, found: &SecondHeader) -> Result<()> {
        self.write("store two headers of one bucket", |draft| {
            draft.script.add(
                "INSERT INTO audit_second_headers (genesis, author, bucket, first, second, seen_at) \
                 VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (genesis, author) DO NOTHING",
                [
                    draft.chain.genesis.clone().into(),
                    found.author.to_string().into(),
                    to_signed(found.bucket).into(),
                    found.first.clone().into(),
                    found.second.clone().into(),
                    found.seen_at.micros().into(),
                ],
            );
        })
        .await
    }

    /// The two headers of one bucket that a validator signed; `None` if none are known.
    ///
    /// # Errors
    /// The database fails.
    pub async fn second_header_of(&self, author: ValidatorKey) -> Result<Option<SecondHeader>> {
        let row = sqlx::query(
            "SELECT author, bucket, first, second, seen_at FROM audit_second_headers \
             WHERE genesis = $1 AND author = $2",
        )
        .bind(self.chain().genesis)
        .bind(author.to_string())
        .fetch_optional(&self.pool)
        .await
        .during("look for two headers of a validator")?;
        row.as_ref().map(second_from).transpose()
    }

    /// The validators that signed two headers of one bucket, the newest first, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn second_headers(&self, limit: u32) -> Result<Vec<SecondHeader>> {
        let rows = sqlx::query(
            "SELECT author, bucket, first, second, seen_at FROM audit_second_headers WHERE genesis = $1 \
             ORDER BY seen_at DESC, author LIMIT $2",
        )
        .bind(self.chain().genesis)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .during("list the validators that signed two headers")?;
        rows.iter().map(second_from).collect()
    }
}

fn reading_from(author: ValidatorKey, row: &AnyRow) -> Result<HeaderReading> {
    let digest: String = read_column(row, "digest")?;
    let header = match digest.is_empty() {
        true => None,
        false => Some(ReadHeader {
            digest: parse_column(row, "digest")?,
            text: read_column(row, "header")?,
        }),
    };
    Ok(HeaderReading {
        author,
        bucket: unsigned_column(row, "bucket")?,
        header,
        block: unsigned_column(row, "seen_block")?,
        at: time_column(row, "seen_at")?,
    })
}

fn second_from(row: &AnyRow) -> Result<SecondHeader> {
    Ok(SecondHeader {
        author: ValidatorKey(parse_column(row, "author")?),
        bucket: unsigned_column(row, "bucket")?,
        first: read_column(row, "first")?,
        second: read_column(row, "second")?,
        seen_at: time_column(row, "seen_at")?,
    })
}
