//! The outbox of notices to miners. The content of a notice follows from the other
//! tables, so only its subject is stored, and an outbox that lost rows is made again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_protocol::{Digest, MinerKey, Timestamp};
use muster_store::columns::{parse_column, read_column};
use muster_store::{During as _, StoreError};

use crate::store::audit_store::{AuditStore, Result};

/// How long a header is offered to a miner that cannot be reached.
pub(crate) const HEADERS_OFFERED: Duration = Duration::from_secs(86_400);
/// How long outcomes and verdicts are offered.
pub(crate) const OTHERS_OFFERED: Duration = Duration::from_secs(7 * 86_400);
/// How long after its draw a bucket may wait for the outcomes of its drawn answers.
pub(crate) const LATEST_REVEAL: Duration = Duration::from_secs(7 * 86_400);
/// The age of a bucket after which its outcomes are not made into notices any more.
const OUTCOMES_MADE: Duration = Duration::from_secs(9 * 86_400);
/// Notices of one miner that are offered on one connection.
const MAX_DUE: i64 = 64;
/// Miners that one query asks about.
const MINERS_AT_ONCE: usize = 500;

/// The subject of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NoticeSubject {
    /// The header of this bucket with the miner's leaves.
    Header(u64),
    /// The outcomes of the miner's drawn answers of this bucket.
    Outcomes(u64),
    /// The verdict of the bundle with this digest.
    Verdict(Digest),
}

impl NoticeSubject {
    const fn kind(self) -> &'static str {
        match self {
            Self::Header(_) => "header",
            Self::Outcomes(_) => "outcomes",
            Self::Verdict(_) => "verdict",
        }
    }

    fn about(self) -> String {
        match self {
            Self::Header(bucket) | Self::Outcomes(bucket) => bucket.to_string(),
            Self::Verdict(bundle) => bundle.to_string(),
        }
    }

    fn read(kind: &str, about: &str) -> Option<Self> {
        match kind {
            "header" => about.parse().ok().map(Self::Header),
            "outcomes" => about.parse().ok().map(Self::Outcomes),
            "verdict" => about.parse().ok().map(Self::Verdict),
            _ => None,
        }
    }
}

impl AuditStore {
    /// Puts the headers of buckets that were closed within a day into the outbox of their miners. All notices of a
    /// bucket are made together.
    pub(crate) async fn make_header_notices(&self, now: Timestamp) -> Result<()> {
        let statement = sqlx::query(
            "INSERT INTO audit_notices (miner, kind, about, made_at) \
             SELECT DISTINCT s.miner, 'header', CAST(b.bucket AS TEXT), b.closed_at FROM answer_buckets b \
             JOIN responses r ON r.bucket = b.bucket JOIN sessions s ON s.session_id = r.session_id \
             WHERE b.closed_at >= $1 AND NOT EXISTS (SELECT 1 FROM audit_notices n \
             WHERE n.kind = 'header' AND n.about = CAST(b.bucket AS TEXT)) ON CONFLICT DO NOTHING",
        )
        .bind(now.minus(HEADERS_OFFERED).micros());
        self.writer.execute("make notices of headers", statement).await?;
        Ok(())
    }

    /// Puts outcomes into the outbox of those miners whose drawn answers of a bucket all have an outcome that the miner
    /// may see, or had seven days for it.
    pub(crate) async fn make_outcome_notices(&self, now: Timestamp) -> Result<()> {
        let statement = sqlx::query(
            "INSERT INTO audit_notices (miner, kind, about, made_at) \
             SELECT h.miner, 'outcomes', h.about, CAST($1 AS BIGINT) FROM audit_notices h \
             JOIN answer_buckets b ON CAST(b.bucket AS TEXT) = h.about \
             WHERE h.kind = 'header' AND h.made_at >= $2 AND b.draw IS NOT NULL \
             AND NOT EXISTS (SELECT 1 FROM audit_notices n \
             WHERE n.miner = h.miner AND n.kind = 'outcomes' AND n.about = h.about) \
             AND (b.drawn_at < $3 OR NOT EXISTS (SELECT 1 FROM responses d \
             JOIN sessions o ON o.session_id = d.session_id WHERE d.bucket = b.bucket AND d.drawn = 1 \
             AND o.miner = h.miner AND NOT EXISTS (SELECT 1 FROM answer_scores a \
             WHERE a.response_id = d.response_id AND a.revealed_at IS NOT NULL))) ON CONFLICT DO NOTHING",
        )
        .bind(now.micros())
        .bind(now.minus(OUTCOMES_MADE).micros())
        .bind(now.minus(LATEST_REVEAL).micros());
        self.writer.execute("make notices of outcomes", statement).await?;
        Ok(())
    }

    /// Puts verdicts into the outbox of their miners that are not there yet. All of them are from `oldest` or later.
    pub(crate) async fn put_verdict_notices(
        &self,
        told: &[(MinerKey, Digest, Timestamp)],
        oldest: Timestamp,
    ) -> Result<()> {
        if told.is_empty() {
            return Ok(());
        }
        let rows =
            sqlx::query("SELECT miner, about FROM audit_notices WHERE kind = 'verdict' AND made_at >= $1")
                .bind(oldest.micros())
                .fetch_all(&self.pool)
                .await
                .during("read the notices of verdicts")?;
        let known: Result<BTreeSet<(MinerKey, Digest)>> = rows
            .iter()
            .map(|row| Ok((parse_column(row, "miner")?, parse_column(row, "about")?)))
            .collect();
        let known = known?;
        for (miner, bundle, since) in told {
            if known.contains(&(*miner, *bundle)) {
                continue;
            }
            let statement = sqlx::query(
                "INSERT INTO audit_notices (miner, kind, about, made_at) VALUES ($1, 'verdict', $2, $3) \
                 ON CONFLICT DO NOTHING",
            )
            .bind(miner.to_string())
            .bind(bundle.to_string())
            .bind(since.micros());
            self.writer
                .execute("make a notice of a verdict", statement)
                .await?;
        }
        Ok(())
    }

    /// The oldest notices that these miners have not taken, of each miner as many as are sent on one connection, in the
    /// order in which they are sent. The notices of other miners do not count.
    pub(crate) async fn due_notices(
        &self,
        miners: &BTreeSet<MinerKey>,
        now: Timestamp,
    ) -> Result<BTreeMap<MinerKey, Vec<NoticeSubject>>> {
        let miners: Vec<String> = miners.iter().map(ToString::to_string).collect();
        let mut due: BTreeMap<MinerKey, Vec<NoticeSubject>> = BTreeMap::new();
        for some in miners.chunks(MINERS_AT_ONCE) {
            let places: Vec<String> = (4..4 + some.len()).map(|place| format!("${place}")).collect();
            // The text has nothing but numbers of parameters from outside.
            let statement = sqlx::AssertSqlSafe(format!(
                "SELECT miner, kind, about FROM (SELECT miner, kind, about, \
                 ROW_NUMBER() OVER (PARTITION BY miner ORDER BY made_at, kind, about) AS place FROM audit_notices \
                 WHERE delivered_at IS NULL AND (made_at >= $1 OR (kind <> 'header' AND made_at >= $2)) \
                 AND miner IN ({})) AS waiting WHERE place <= $3",
                places.join(", ")
            ));
            let mut query = sqlx::query(statement)
                .bind(now.minus(HEADERS_OFFERED).micros())
                .bind(now.minus(OTHERS_OFFERED).micros())
                .bind(MAX_DUE);
            for miner in some {
                query = query.bind(miner.clone());
            }
            for row in &query.fetch_all(&self.pool).await.during("read notices")? {
                let (kind, about): (String, String) = (read_column(row, "kind")?, read_column(row, "about")?);
                let subject = NoticeSubject::read(&kind, &about)
                    .ok_or_else(|| StoreError::corrupt("kind", "no notice".to_owned()))?;
                due.entry(parse_column(row, "miner")?).or_default().push(subject);
            }
        }
        for of_miner in due.values_mut() {
            of_miner.sort_unstable();
        }
        Ok(due)
    }

    /// Notes that a miner has taken a notice.
    pub(crate) async fn note_delivered(
        &self,
        miner: &MinerKey,
        subject: NoticeSubject,
        now: Timestamp,
    ) -> Result<()> {
        let statement = sqlx::query(
            "UPDATE audit_notices SET delivered_at = $1 WHERE miner = $2 AND kind = $3 AND about = $4",
        )
        .bind(now.micros())
        .bind(miner.to_string())
        .bind(subject.kind())
        .bind(subject.about());
        self.writer
            .execute("note that a miner has taken a notice", statement)
            .await?;
        Ok(())
    }

    /// The newest bucket whose header a miner has taken.
    pub(crate) async fn last_told_bucket(&self, miner: &MinerKey) -> Result<Option<u64>> {
        let row = sqlx::query(
            "SELECT MAX(CAST(about AS BIGINT)) AS bucket FROM audit_notices \
             WHERE miner = $1 AND kind = 'header' AND delivered_at IS NOT NULL",
        )
        .bind(miner.to_string())
        .fetch_one(&self.pool)
        .await
        .during("look for the newest header that a miner has")?;
        let bucket: Option<i64> = read_column(&row, "bucket")?;
        Ok(bucket.and_then(|bucket| u64::try_from(bucket).ok()))
    }
}

#[cfg(test)]
mod tests {
    use muster_store::testing::stores;
    use muster_validator_store::MIGRATIONS;

    use super::*;
    use crate::testing::key;

    async fn put(store: &AuditStore, miner: u8, kind: &str, about: &str, made_at: i64) {
        sqlx::query("INSERT INTO audit_notices (miner, kind, about, made_at) VALUES ($1, $2, $3, $4)")
            .bind(MinerKey(key(miner)).to_string())
            .bind(kind.to_owned())
            .bind(about.to_owned())
            .bind(Timestamp::from_secs(made_at).micros())
            .execute(&store.pool)
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn miners_that_cannot_be_reached_take_no_place_of_others() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = AuditStore::new(test.pool.clone(), test.writer());
            // Before the fix the 10,000 oldest notices were read, whoever they were for.
            sqlx::query(
                "INSERT INTO audit_notices (miner, kind, about, made_at) \
                 WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers \
                 WHERE number < 10001) SELECT $1, 'outcomes', CAST(number AS TEXT), CAST($2 AS BIGINT) FROM numbers",
            )
            .bind(MinerKey(key(1)).to_string())
            .bind(Timestamp::from_secs(1_000).micros())
            .execute(&store.pool)
            .await
            .unwrap();
            for number in 0..70 {
                put(&store, 2, "header", &number.to_string(), 2_000 + number).await;
            }
            put(&store, 2, "outcomes", "5", 2_500).await;
            let now = Timestamp::from_secs(3_000);
            let due = async |miners: &[u8]| {
                let miners = miners.iter().map(|miner| MinerKey(key(*miner))).collect();
                store.due_notices(&miners, now).await.unwrap()
            };
            let both = due(&[1, 2, 3]).await;
            let counts: Vec<usize> = both.values().map(Vec::len).collect();
            assert_eq!(counts, [64, 64], "{}", test.engine);
            let reachable = due(&[2]).await;
            let oldest: Vec<_> = (0..64).map(NoticeSubject::Header).collect();
            assert_eq!(reachable.get(&MinerKey(key(2))), Some(&oldest), "{}", test.engine);
            assert_eq!(due(&[]).await, BTreeMap::new());
        }
    }

    #[tokio::test]
    async fn a_verdict_is_told_each_miner_once() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = AuditStore::new(test.pool.clone(), test.writer());
            let (bundle, since) = (Digest::of(b"bundle"), Timestamp::from_secs(1_000));
            let told = [1, 2].map(|miner| (MinerKey(key(miner)), bundle, since));
            let oldest = Timestamp::from_secs(500);
            store.put_verdict_notices(&told[..1], oldest).await.unwrap();
            store
                .note_delivered(&MinerKey(key(1)), NoticeSubject::Verdict(bundle), since)
                .await
                .unwrap();
            store.put_verdict_notices(&told, oldest).await.unwrap();
            store.put_verdict_notices(&told, oldest).await.unwrap();
            let miners = told.iter().map(|(miner, _, _)| *miner).collect();
            let due = store.due_notices(&miners, since).await.unwrap();
            let expected = BTreeMap::from([(MinerKey(key(2)), vec![NoticeSubject::Verdict(bundle)])]);
            assert_eq!(due, expected, "{}", test.engine);
        }
    }
}
