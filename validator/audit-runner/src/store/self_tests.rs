//! The tests of the validator's own spot checks in its database.

use muster_protocol::{Digest, Timestamp};
use muster_store::columns::{
    read_column, storable_text, time_column, time_column_option, to_signed, unsigned_column,
};
use muster_store::{During as _, StoreError};
use serde::Serialize;
use sqlx::any::AnyRow;

use crate::audits::run_record::RESTARTED;
use crate::store::audit_store::AuditStore;

type Result<T> = std::result::Result<T, StoreError>;

/// A test of the validator's own spot checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SelfTest {
    /// The id of the test.
    pub test: String,
    /// The model by its name in the whitelist.
    pub model: String,
    /// How far it is.
    pub state: SelfTestState,
    /// The answers that were given.
    pub answers: u64,
    /// The answers of them that the cheaper engine gave.
    pub cheated: u64,
    /// When it began.
    pub began_at: Timestamp,
    /// When it ended, if it has.
    pub ended_at: Option<Timestamp>,
    /// The verdict by its name. A pipeline that works reports `convicted`.
    pub verdict: Option<String>,
    /// Why there is no verdict.
    pub reason: Option<String>,
    /// The bundle from which the verdict follows.
    pub bundle: Option<Digest>,
}

/// The state of such a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SelfTestState {
    /// The two engines are started and asked.
    Asking,
    /// The answers wait for their draw.
    Asked,
    /// The references score.
    Scoring,
    /// There is a verdict.
    Judged,
    /// It ended without a verdict.
    Ended,
}

impl SelfTestState {
    const ALL: [Self; 5] = [
        Self::Asking,
        Self::Asked,
        Self::Scoring,
        Self::Judged,
        Self::Ended,
    ];

    /// The name in the database and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Asking => "asking",
            Self::Asked => "asked",
            Self::Scoring => "scoring",
            Self::Judged => "judged",
            Self::Ended => "ended",
        }
    }
}

impl AuditStore {
    /// Stores a test that begins.
    pub(crate) async fn insert_self_test(&self, test: &SelfTest) -> Result<()> {
        let statement = sqlx::query(
            "INSERT INTO self_tests (test_id, model, state, answers, cheated, began_at) VALUES ($1, $2, $3, 0, 0, $4)",
        )
        .bind(test.test.clone())
        .bind(test.model.clone())
        .bind(test.state.name())
        .bind(test.began_at.micros());
        self.writer.execute("store a self-test", statement).await?;
        Ok(())
    }

    /// Stores the progress of a test or its end, with the text of its bundle once there is one.
    pub(crate) async fn update_self_test(&self, test: &SelfTest, evidence: Option<&str>) -> Result<()> {
        let statement = sqlx::query(
            "UPDATE self_tests SET state = $1, answers = $2, cheated = $3, ended_at = $4, verdict = $5, reason = $6, \
             bundle = $7, evidence = $8 WHERE test_id = $9",
        )
        .bind(test.state.name())
        .bind(to_signed(test.answers))
        .bind(to_signed(test.cheated))
        .bind(test.ended_at.map(Timestamp::micros))
        .bind(test.verdict.clone())
        .bind(test.reason.clone().map(storable_text))
        .bind(test.bundle.map(|digest| digest.to_string()))
        .bind(evidence.map(str::to_owned))
        .bind(test.test.clone());
        self.writer
            .execute("store the progress of a self-test", statement)
            .await?;
        Ok(())
    }

    /// Ends the tests that an earlier process began: the text of their answers went with it.
    pub(crate) async fn end_orphaned_self_tests(&self, now: Timestamp) -> Result<()> {
        let statement = sqlx::query(
            "UPDATE self_tests SET state = $1, ended_at = $2, reason = $3 WHERE ended_at IS NULL",
        )
        .bind(SelfTestState::Ended.name())
        .bind(now.micros())
        .bind(RESTARTED);
        self.writer
            .execute("end the self-tests of an earlier process", statement)
            .await?;
        Ok(())
    }

    /// The newest tests, newest first, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list_self_tests(&self, limit: u32) -> Result<Vec<SelfTest>> {
        let rows = sqlx::query("SELECT * FROM self_tests ORDER BY began_at DESC, test_id LIMIT $1")
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .during("list self-tests")?;
        rows.iter().map(self_test_from).collect()
    }

    /// The newest test of each model.
    pub(crate) async fn newest_self_tests(&self) -> Result<Vec<SelfTest>> {
        let rows = sqlx::query(
            "SELECT * FROM self_tests AS t WHERE NOT EXISTS \
             (SELECT 1 FROM self_tests AS n WHERE n.model = t.model AND n.began_at > t.began_at)",
        )
        .fetch_all(&self.pool)
        .await
        .during("read the newest self-tests")?;
        rows.iter().map(self_test_from).collect()
    }

    /// The text of the bundle of a test; `None` if there is no such test, or no bundle.
    ///
    /// # Errors
    /// The database fails.
    pub async fn self_test_evidence(&self, test: &str) -> Result<Option<String>> {
        let row = sqlx::query("SELECT evidence FROM self_tests WHERE test_id = $1")
            .bind(test.to_owned())
            .fetch_optional(&self.pool)
            .await
            .during("read the bundle of a self-test")?;
        row.map_or(Ok(None), |row| read_column(&row, "evidence"))
    }
}

fn self_test_from(row: &AnyRow) -> Result<SelfTest> {
    let state: String = read_column(row, "state")?;
    let state = SelfTestState::ALL.into_iter().find(|one| one.name() == state);
    let bundle: Option<String> = read_column(row, "bundle")?;
    let bundle = bundle.map(|text| {
        text.parse()
            .map_err(|_| StoreError::corrupt("bundle", "no digest".to_owned()))
    });
    Ok(SelfTest {
        test: read_column(row, "test_id")?,
        model: read_column(row, "model")?,
        state: state.ok_or_else(|| StoreError::corrupt("state", "no state of a self-test".to_owned()))?,
        answers: unsigned_column(row, "answers")?,
        cheated: unsigned_column(row, "cheated")?,
        began_at: time_column(row, "began_at")?,
        ended_at: time_column_option(row, "ended_at")?,
        verdict: read_column(row, "verdict")?,
        reason: read_column(row, "reason")?,
        bundle: bundle.transpose()?,
    })
}
