//! The validator's own deterministic jobs, and what users' jobs look like that they imitate.

use std::time::Duration;

use futures_util::TryStreamExt as _;
use muster_identity::ProvenOutput;
use muster_protocol::wire::checks::CheckState;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{Digest, Hotkey, JobId, MinerKey, Timestamp};
use muster_store::columns::{
    json_column, parse_column, parse_column_option, read_column, storable_text, time_column, to_signed,
    unsigned_column,
};
use muster_store::{During as _, json};
use sqlx::any::AnyRow;

use super::{CheckStore, PAGE, StoreResult};
use crate::coldkey_test::{OwnResult, WINDOW_DAYS};
use crate::job_form::{JobForm, MAX_INPUT_BYTES};
use crate::outputs::JobOutputs;
use crate::own_draw::{DrawnJob, UsersJobs};
use crate::verdict::CheckVerdict;

/// Jobs whose forms are imitated, at most: the newest ones.
const MAX_FORMS: i64 = 512;

/// Miners of users' jobs that are read, at most.
const MAX_MINERS: i64 = 100_000;

/// Own jobs that a result rests on, at most: the newest ones.
const MAX_RESULTS: i64 = 100_000;

/// An own job that has no verdict yet.
#[derive(Clone, Debug)]
pub(crate) struct OpenOwnCheck {
    pub(crate) job: JobId,
    pub(crate) coldkey: Hotkey,
    pub(crate) draw_block: u64,
    pub(crate) block_hash: Digest,
    pub(crate) outputs: Option<JobOutputs>,
    pub(crate) runs: Vec<JobOutputs>,
    /// The job at a third coldkey, until it has ended.
    pub(crate) witness_job: Option<JobId>,
    /// The coldkeys that were asked as the third one.
    pub(crate) asked: Vec<Hotkey>,
    pub(crate) witness_outputs: Option<JobOutputs>,
    pub(crate) tries: u64,
    pub(crate) began_at: Timestamp,
}

/// The draw of a block, as it is stored with a job.
pub(crate) struct StoredDraw<'a> {
    pub(crate) block: u64,
    pub(crate) hash: &'a Digest,
    pub(crate) proof: &'a ProvenOutput,
}

impl CheckStore {
    /// The facts about users' jobs since a time.
    pub(crate) async fn users_jobs(&self, since: Timestamp) -> StoreResult<UsersJobs> {
        const OPERATION: &str = "read what users' jobs look like";
        let mut users = UsersJobs::default();
        let mut rows = sqlx::query(
            "SELECT request FROM jobs WHERE own = 0 AND created_at >= $1 AND LENGTH(request) <= $2 \
             ORDER BY created_at DESC LIMIT $3",
        )
        .bind(since.micros())
        .bind(i64::try_from(MAX_INPUT_BYTES.saturating_mul(2)).unwrap_or(i64::MAX))
        .bind(MAX_FORMS)
        .fetch(&self.pool);
        // One at a time: each may hold a megabyte of inputs, and its form is small.
        while let Some(row) = rows.try_next().await.during(OPERATION)? {
            let request: UserJobRequest = json_column(&row, "request")?;
            users.forms.extend(JobForm::of(&request));
        }
        drop(rows);
        let hours = sqlx::query(
            "SELECT (created_at / 3600000000) % 24 AS hour, COUNT(*) AS many FROM jobs \
             WHERE own = 0 AND created_at >= $1 GROUP BY (created_at / 3600000000) % 24",
        )
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during(OPERATION)?;
        for row in &hours {
            let hour = usize::try_from(unsigned_column(row, "hour")?).unwrap_or(usize::MAX);
            if let Some(number) = users.by_hour.get_mut(hour) {
                *number = unsigned_column(row, "many")?;
            }
        }
        let miners = sqlx::query(
            "SELECT DISTINCT a.miner, a.class FROM attempts a JOIN jobs j ON j.job_id = a.job_id \
             WHERE j.own = 0 AND a.started_at >= $1 LIMIT $2",
        )
        .bind(since.micros())
        .bind(MAX_MINERS)
        .fetch_all(&self.pool)
        .await
        .during(OPERATION)?;
        for row in &miners {
            let miner: MinerKey = parse_column(row, "miner")?;
            users
                .miners
                .entry(parse_column(row, "class")?)
                .or_default()
                .insert(miner);
        }
        Ok(users)
    }

    /// Stores an own job that was drawn, before it begins. Returns whether it is new.
    pub(crate) async fn insert_own_check(
        &self,
        drawn: &DrawnJob,
        coldkey: &Hotkey,
        draw: &StoredDraw<'_>,
        now: Timestamp,
    ) -> StoreResult<bool> {
        let statement = sqlx::query(
            "INSERT INTO own_checks (job_id, coldkey, miner, program, draw_block, block_hash, draw, state, next_try_at, \
             began_at, changed_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $9) ON CONFLICT (job_id) DO NOTHING",
        )
        .bind(drawn.id.to_string())
        .bind(coldkey.to_string())
        .bind(drawn.miner.to_string())
        .bind(drawn.program.clone())
        .bind(to_signed(draw.block))
        .bind(draw.hash.to_string())
        .bind(draw.proof.to_string())
        .bind(CheckState::Pending.as_str())
        .bind(now.micros());
        let done = self.writer.execute("store a job of one's own", statement).await?;
        Ok(done > 0)
    }

    /// The own jobs without a verdict that are due now.
    pub(crate) async fn open_own_checks(&self, now: Timestamp) -> StoreResult<Vec<OpenOwnCheck>> {
        let rows = sqlx::query(
            "SELECT * FROM own_checks WHERE state = 'pending' AND next_try_at <= $1 ORDER BY next_try_at, job_id LIMIT $2",
        )
        .bind(now.micros())
        .bind(PAGE)
        .fetch_all(&self.pool)
        .await
        .during("list the open jobs of one's own")?;
        rows.iter().map(read_open).collect()
    }

    /// Stores how far an own job is, and when it is looked at again.
    pub(crate) async fn put_own_check(
        &self,
        check: &OpenOwnCheck,
        next: Timestamp,
        now: Timestamp,
    ) -> StoreResult<()> {
        let outputs = |outputs: &Option<JobOutputs>| outputs.as_ref().map(encode);
        let statement = sqlx::query(
            "UPDATE own_checks SET outputs = $1, runs = $2, witness_job = $3, asked = $4, witness_outputs = $5, \
             tries = $6, next_try_at = $7, changed_at = $8 WHERE job_id = $9",
        )
        .bind(outputs(&check.outputs))
        .bind(encode(&check.runs))
        .bind(check.witness_job.map(|job| job.to_string()))
        .bind(encode(&check.asked))
        .bind(outputs(&check.witness_outputs))
        .bind(to_signed(check.tries))
        .bind(next.micros())
        .bind(now.micros())
        .bind(check.job.to_string());
        self.writer
            .execute("store how far a job of one's own is", statement)
            .await?;
        Ok(())
    }

    /// Stores the verdict about an own job.
    pub(crate) async fn put_own_verdict(
        &self,
        job: JobId,
        verdict: &CheckVerdict,
        now: Timestamp,
    ) -> StoreResult<()> {
        let statement = sqlx::query(
            "UPDATE own_checks SET state = $1, reason = $2, changed_at = $3 WHERE job_id = $4 AND state = 'pending'",
        )
        .bind(verdict.state.as_str())
        .bind(storable_text(&*verdict.reason))
        .bind(now.micros())
        .bind(job.to_string());
        self.writer
            .execute("store the verdict about a job of one's own", statement)
            .await?;
        Ok(())
    }

    /// The own jobs with a verdict of the last thirty days, in the order of their times.
    ///
    /// # Errors
    /// The database fails.
    pub async fn own_results(&self, now: Timestamp) -> StoreResult<Vec<OwnResult>> {
        let since = now.minus(Duration::from_secs(WINDOW_DAYS * 86_400));
        let rows = sqlx::query(
            "SELECT coldkey, program, state, began_at FROM own_checks \
             WHERE state IN ('agrees', 'differs') AND began_at >= $1 ORDER BY began_at DESC, job_id DESC LIMIT $2",
        )
        .bind(since.micros())
        .bind(MAX_RESULTS)
        .fetch_all(&self.pool)
        .await
        .during("read the results of one's own jobs")?;
        let result = |row: &AnyRow| {
            let state: String = read_column(row, "state")?;
            Ok(OwnResult {
                coldkey: parse_column(row, "coldkey")?,
                program: read_column(row, "program")?,
                differs: state == CheckState::Differs.as_str(),
                at: time_column(row, "began_at")?,
            })
        };
        rows.iter().rev().map(result).collect()
    }

    /// Deletes own jobs that count no more, and marks that stand no more.
    pub(crate) async fn forget_own(&self, before: Timestamp) -> StoreResult<()> {
        let statement = sqlx::query("DELETE FROM own_checks WHERE began_at < $1 AND state <> 'pending'")
            .bind(before.micros());
        self.writer
            .execute("delete old jobs of one's own", statement)
            .await?;
        let statement =
            sqlx::query("DELETE FROM machine_dependent_images WHERE marked_at < $1").bind(before.micros());
        self.writer
            .execute("delete old marks of images", statement)
            .await?;
        Ok(())
    }
}

fn read_open(row: &AnyRow) -> StoreResult<OpenOwnCheck> {
    let outputs = |name: &'static str| {
        let text: Option<String> = read_column(row, name)?;
        text.map(|text| json::decode(name, &text)).transpose()
    };
    Ok(OpenOwnCheck {
        job: parse_column(row, "job_id")?,
        coldkey: parse_column(row, "coldkey")?,
        draw_block: unsigned_column(row, "draw_block")?,
        block_hash: parse_column(row, "block_hash")?,
        outputs: outputs("outputs")?,
        runs: json_column(row, "runs")?,
        witness_job: parse_column_option(row, "witness_job")?,
        asked: json_column(row, "asked")?,
        witness_outputs: outputs("witness_outputs")?,
        tries: unsigned_column(row, "tries")?,
        began_at: time_column(row, "began_at")?,
    })
}

#[cfg(test)]
mod tests {
    use muster_audit::SeededNumbers;
    use muster_identity::Keypair;
    use muster_protocol::ExecutorClass;
    use muster_scoring::{Neuron, QualityFactor};
    use muster_store::testing::stores;
    use muster_validator_store::{MIGRATIONS, OwnJobRestart, Store};
    use sqlx::AnyPool;
    use uuid::Uuid;

    use super::*;
    use crate::own_draw::tests::{key, programs};
    use crate::own_job::write_own_job;
    use crate::quality_factors;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn job(number: u128) -> JobId {
        JobId::from_uuid(Uuid::from_u128(number))
    }

    fn drawn(number: u128) -> DrawnJob {
        let program = &programs()["first"];
        DrawnJob {
            id: job(number),
            miner: MinerKey(key(11)),
            program: "first".to_owned(),
            form: JobForm::usual(program, &mut SeededNumbers::new("test", b"")),
            inputs: [3; 32],
        }
    }

    /// Stores an own job of coldkey 1 that began at this time and differs from the validator's own miner.
    async fn put_difference(store: &CheckStore, number: u128, began: Timestamp) {
        let (hash, proof) = (Digest::of(b"block"), ProvenOutput::from_bytes([7; 96]));
        let draw = StoredDraw {
            block: 5,
            hash: &hash,
            proof: &proof,
        };
        for is_new in [true, false] {
            let inserted = store
                .insert_own_check(&drawn(number), &key(1), &draw, began)
                .await
                .unwrap();
            assert_eq!(inserted, is_new, "a block draws a job once");
        }
        let differs = CheckVerdict {
            state: CheckState::Differs,
            ..CheckVerdict::unproven("")
        };
        store.put_own_verdict(job(number), &differs, began).await.unwrap();
        let other = CheckVerdict::unproven("later");
        store.put_own_verdict(job(number), &other, began).await.unwrap();
    }

    async fn quality_at(store: &Store, now: Timestamp) -> Vec<QualityFactor> {
        let neuron = Neuron {
            uid: muster_chain::Uid(3),
            hotkey: key(11),
            coldkey: key(1),
            registered: 0,
        };
        quality_factors(store, Vec::new(), &[neuron], now).await.unwrap()
    }

    /// A row of a user's drawn job that differs, at coldkey 1.
    async fn put_users_difference(pool: &AnyPool, number: u128, account: &str) {
        sqlx::query(
            "INSERT INTO cross_checks (job_id, origin, state, account, miner, coldkey, next_try_at, ended_at, created_at, \
             changed_at) VALUES ($1, 'drawn', 'differs', $2, $3, $4, $5, $5, $5, $5)",
        )
        .bind(job(number).to_string())
        .bind(account.to_owned())
        .bind(key(11).to_string())
        .bind(key(1).to_string())
        .bind(at(1_000 + i64::try_from(number).unwrap() * 7_200).micros())
        .execute(pool)
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn differences_of_users_jobs_lower_no_quality_and_those_of_own_jobs_do_for_thirty_days() {
        const HOUR: i64 = 3_600;
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = Store::with_pool(test.pool.clone()).await.unwrap();
            let checks = CheckStore::new(store.pool(), store.writer());
            for (number, account) in (0..30).zip(["a", "b", "c"].into_iter().cycle()) {
                put_users_difference(&test.pool, number, account).await;
            }
            assert_eq!(quality_at(&store, at(100 * HOUR)).await, [], "{}", test.engine);
            for number in 0..6 {
                put_difference(&checks, 100 + u128::try_from(number).unwrap(), at(number * HOUR)).await;
            }
            let factor = QualityFactor {
                miner: MinerKey(key(11)),
                per_mille: 0,
            };
            assert_eq!(quality_at(&store, at(100 * HOUR)).await, [factor]);
            let days = i64::try_from(WINDOW_DAYS).unwrap() * 24 * HOUR;
            assert_eq!(quality_at(&store, at(days)).await, [factor]);
            assert_eq!(
                quality_at(&store, at(days + 1)).await,
                [],
                "the first one is too old"
            );
            checks.forget_own(at(2 * HOUR)).await.unwrap();
            assert_eq!(checks.own_results(at(100 * HOUR)).await.unwrap().len(), 4);
        }
    }

    #[tokio::test]
    async fn an_open_own_job_is_read_back_as_it_was_stored() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = CheckStore::new(test.pool.clone(), test.writer());
            let (hash, proof) = (Digest::of(b"block"), ProvenOutput::from_bytes([7; 96]));
            let draw = StoredDraw {
                block: 5,
                hash: &hash,
                proof: &proof,
            };
            store
                .insert_own_check(&drawn(1), &key(1), &draw, at(9))
                .await
                .unwrap();
            let mut check = store.open_own_checks(at(9)).await.unwrap().remove(0);
            assert_eq!(
                (check.draw_block, check.block_hash, check.runs.len()),
                (5, hash, 0)
            );
            let outputs = JobOutputs {
                stdout: hash,
                files: [("/out/a".to_owned(), hash)].into(),
                listed: None,
                image: None,
            };
            check.outputs = Some(outputs.clone());
            check.runs.push(outputs.clone());
            check.asked.push(key(2));
            check.witness_job = Some(job(2));
            store.put_own_check(&check, at(20), at(10)).await.unwrap();
            assert!(store.open_own_checks(at(19)).await.unwrap().is_empty());
            let read = store.open_own_checks(at(20)).await.unwrap().remove(0);
            assert_eq!((read.outputs, read.runs), (Some(outputs.clone()), vec![outputs]));
            assert_eq!((read.asked, read.witness_job), (vec![key(2)], Some(job(2))));
            store.forget_own(at(99)).await.unwrap();
            assert_eq!(
                store.open_own_checks(at(20)).await.unwrap().len(),
                1,
                "it is open"
            );
        }
    }

    #[tokio::test]
    async fn users_jobs_show_their_forms_their_hours_and_their_miners() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = Store::with_pool(test.pool.clone()).await.unwrap();
            let checks = CheckStore::new(store.pool(), store.writer());
            let pair = Keypair::from_uri("//User").unwrap();
            let written =
                |number| write_own_job(&drawn(number), &programs()["first"], &pair, at(9 * 3_600)).unwrap();
            let admitted = |number, own| {
                let (store, request) = (&store, written(number));
                async move {
                    let frame = encode(&request);
                    if own {
                        let restart = OwnJobRestart::GoesOn;
                        let stored = store.admit_own(&request, &frame, restart, at(9 * 3_600));
                        assert!(stored.await.unwrap());
                    } else {
                        store.admit(&request, &frame, at(9 * 3_600), None).await.unwrap();
                    }
                }
            };
            admitted(1, false).await;
            admitted(2, true).await;
            for (number, miner) in [(1, 11), (2, 12)] {
                sqlx::query(
                    "INSERT INTO attempts (attempt_id, job_id, ordinal, miner, uid, address, class, machine, started_at) \
                     VALUES ($1, $1, 1, $2, 3, '127.0.0.1:1', 'always_on.test', '{}', $3)",
                )
                .bind(job(number).to_string())
                .bind(key(miner).to_string())
                .bind(at(9 * 3_600).micros())
                .execute(&test.pool)
                .await
                .unwrap();
            }
            let users = checks.users_jobs(at(0)).await.unwrap();
            assert_eq!(
                users.forms,
                [drawn(1).form],
                "{}: own jobs are none of users'",
                test.engine
            );
            let mut by_hour = [0; 24];
            by_hour[9] = 1;
            assert_eq!(users.by_hour, by_hour);
            let miners = [(ExecutorClass::AlwaysOnTest, [MinerKey(key(11))].into())];
            assert_eq!(users.miners, miners.into());
            assert_eq!(
                checks.users_jobs(at(10 * 3_600)).await.unwrap(),
                UsersJobs::default()
            );
        }
    }
}
