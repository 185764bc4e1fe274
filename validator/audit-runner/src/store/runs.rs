//! The audits that were begun.

use std::collections::BTreeMap;

use muster_protocol::Timestamp;
use muster_store::columns::{
    parse_column, parse_column_option, read_column, storable_text, time_column, time_column_option,
    to_signed, unsigned_column,
};
use muster_store::{During as _, StoreError};
use sqlx::any::AnyRow;

use crate::audits::run_record::{AuditRun, RESTARTED, RunState};
use crate::audits::subject::Subject;
use crate::store::audit_store::{AuditStore, Result};

impl AuditStore {
    /// The subjects whose newest audit since a time had scores and was not ended by its process.
    pub(crate) async fn interrupted(&self, since: Timestamp) -> Result<Vec<Subject>> {
        // Earlier releases stored such an audit as one that has ended for this reason.
        let rows = sqlx::query(
            "SELECT a.coldkey, a.model FROM audit_runs a \
             WHERE (a.state = $1 OR (a.state = $2 AND a.reason = $3)) AND a.scored > 0 AND a.began_at >= $4 \
             AND NOT EXISTS (SELECT 1 FROM audit_runs b WHERE b.coldkey = a.coldkey AND b.model = a.model \
             AND b.began_at > a.began_at)",
        )
        .bind(RunState::Interrupted.name())
        .bind(RunState::Ended.name())
        .bind(RESTARTED)
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("look for audits that were not ended")?;
        rows.iter().map(subject_from).collect()
    }

    /// Whether the newest audit of a subject since a time had scores and was not ended by its process.
    pub(crate) async fn is_interrupted(&self, subject: &Subject, since: Timestamp) -> Result<bool> {
        Ok(self.interrupted(since).await?.contains(subject))
    }

    /// When the newest audit of each subject began that came to a verdict.
    pub(crate) async fn newest_judged(&self) -> Result<BTreeMap<Subject, Timestamp>> {
        let rows = sqlx::query(
            "SELECT coldkey, model, MAX(began_at) AS began FROM audit_runs WHERE verdict IS NOT NULL \
             GROUP BY coldkey, model",
        )
        .fetch_all(&self.pool)
        .await
        .during("look for the newest audits with a verdict")?;
        rows.iter()
            .map(|row| Ok((subject_from(row)?, time_column(row, "began")?)))
            .collect()
    }

    /// Stores an audit that begins.
    pub(crate) async fn insert_run(&self, run: &AuditRun) -> Result<()> {
        let statement = sqlx::query(
            "INSERT INTO audit_runs (run_id, coldkey, model, state, answers, scored, began_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(run.run.clone())
        .bind(run.coldkey.to_string())
        .bind(run.model.clone())
        .bind(run.state.name())
        .bind(to_signed(run.answers))
        .bind(to_signed(run.scored))
        .bind(run.began_at.micros());
        self.writer.execute("store an audit", statement).await?;
        Ok(())
    }

    /// Stores the progress of an audit, or its end.
    pub(crate) async fn update_run(&self, run: &AuditRun) -> Result<()> {
        let statement = sqlx::query(
            "UPDATE audit_runs SET state = $1, answers = $2, scored = $3, ended_at = $4, bundle = $5, verdict = $6, \
             reason = $7 WHERE run_id = $8",
        )
        .bind(run.state.name())
        .bind(to_signed(run.answers))
        .bind(to_signed(run.scored))
        .bind(run.ended_at.map(Timestamp::micros))
        .bind(run.bundle.map(|digest| digest.to_string()))
        .bind(run.verdict.clone())
        .bind(run.reason.clone().map(storable_text))
        .bind(run.run.clone());
        self.writer
            .execute("store the progress of an audit", statement)
            .await?;
        Ok(())
    }

    /// The audits that have not ended: after a start, those of an earlier process.
    pub(crate) async fn unended_runs(&self) -> Result<Vec<AuditRun>> {
        let rows = sqlx::query("SELECT * FROM audit_runs WHERE ended_at IS NULL ORDER BY began_at, run_id")
            .fetch_all(&self.pool)
            .await
            .during("list the audits of an earlier process")?;
        rows.iter().map(run_from).collect()
    }

    /// The first audit of a subject since a time that came to a verdict.
    pub(crate) async fn judged_run(&self, subject: &Subject, since: Timestamp) -> Result<Option<AuditRun>> {
        let row = sqlx::query(
            "SELECT * FROM audit_runs WHERE coldkey = $1 AND model = $2 AND began_at >= $3 AND verdict IS NOT NULL \
             ORDER BY began_at, run_id LIMIT 1",
        )
        .bind(subject.coldkey.to_string())
        .bind(subject.model.clone())
        .bind(since.micros())
        .fetch_optional(&self.pool)
        .await
        .during("look for the audit of an appeal")?;
        row.as_ref().map(run_from).transpose()
    }

    /// The newest audits, newest first, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list_runs(&self, limit: u32) -> Result<Vec<AuditRun>> {
        let rows = sqlx::query("SELECT * FROM audit_runs ORDER BY began_at DESC, run_id LIMIT $1")
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .during("list audits")?;
        rows.iter().map(run_from).collect()
    }
}

fn subject_from(row: &AnyRow) -> Result<Subject> {
    Ok(Subject {
        coldkey: parse_column(row, "coldkey")?,
        model: read_column(row, "model")?,
    })
}

fn run_from(row: &AnyRow) -> Result<AuditRun> {
    let state: String = read_column(row, "state")?;
    let state = RunState::ALL.into_iter().find(|one| one.name() == state);
    Ok(AuditRun {
        run: read_column(row, "run_id")?,
        coldkey: parse_column(row, "coldkey")?,
        model: read_column(row, "model")?,
        state: state.ok_or_else(|| StoreError::corrupt("state", "no state of an audit".to_owned()))?,
        answers: unsigned_column(row, "answers")?,
        scored: unsigned_column(row, "scored")?,
        began_at: time_column(row, "began_at")?,
        ended_at: time_column_option(row, "ended_at")?,
        bundle: parse_column_option(row, "bundle")?,
        verdict: read_column(row, "verdict")?,
        reason: read_column(row, "reason")?,
    })
}

#[cfg(test)]
mod tests {
    use muster_store::testing::stores;
    use muster_validator_store::{MIGRATIONS, Store};

    use super::*;
    use crate::testing::{put_run as put, run};

    #[tokio::test]
    async fn an_interrupted_audit_is_known_by_its_state_and_one_of_an_earlier_release_by_its_reason() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            drop(Store::with_pool(test.pool.clone()).await.unwrap());
            let store = AuditStore::new(test.pool.clone(), test.writer());
            let is_interrupted = async || {
                let subject = run("", 0, RunState::Ended, None).subject();
                let since = Timestamp::from_micros(1);
                store.is_interrupted(&subject, since).await.unwrap()
            };
            assert!(!is_interrupted().await, "{}", test.engine);
            for (begun, (state, reason, expected)) in (2_i64..).zip([
                (RunState::Interrupted, None, true),
                (RunState::Ended, Some("the reference died"), false),
                (RunState::Ended, Some(RESTARTED), true),
                (RunState::Judged, Some(RESTARTED), false),
            ]) {
                put(&store, &run(&begun.to_string(), begun, state, reason)).await;
                assert_eq!(is_interrupted().await, expected, "{state:?}: {reason:?}");
            }
            let listed = store.list_runs(9).await.unwrap();
            assert_eq!(listed.last().unwrap().state, RunState::Interrupted);
        }
    }
}
