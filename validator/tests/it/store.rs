//! The validator's store: the same tests on every database at hand.

#[cfg(test)]
mod audits;
#[cfg(test)]
mod chains;
#[cfg(test)]
mod collateral;
#[cfg(test)]
mod cycles;
#[cfg(test)]
mod epochs;
#[cfg(test)]
mod gathered;
#[cfg(test)]
mod grading;
#[cfg(test)]
mod lease;
#[cfg(test)]
mod one_writer;
#[cfg(test)]
mod outbox;
#[cfg(test)]
mod pay;
#[cfg(test)]
mod retention;
#[cfg(test)]
mod session_work;
#[cfg(test)]
mod soak;
#[cfg(test)]
mod trials;

use muster_chain::{BlockNumber, Uid};
use muster_protocol::job::{Attempt, AttemptPlan, Event, Outcome};
use muster_protocol::receipt::{FinishedReceipt, FinishedTag, OfferedReceipt, StartedReceipt, StartedTag};
use muster_protocol::status::{HordeFailureReason, JobRejectionReason, JobStage, ParticipantType};
use muster_protocol::wire::facilitator::{HordeFailureDetails, RejectionDetails, UserJobRequest};
use muster_protocol::wire::miner::ExecutorTiming;
use muster_protocol::{
    AttemptId, Digest, ExecutorClass, Hotkey, JobId, JobStatus, MinerKey, ReceiptPayload, Signature,
    Timestamp, ValidatorKey,
};
use muster_routing::admission::PriorRequest;
use muster_routing::{AttemptMark, RouteDecision};
use muster_store::StoreError;
use muster_store::testing::{TestStore, stores};
use muster_validator::store::{
    AttemptChange, IssuedReceipt, JobAdmission, MIGRATIONS, NewAttempt, OwnJobRestart, Store, StoredAttempt,
};
use serde_json::json;
use sqlx::{AnyPool, Row as _};
use uuid::Uuid;

const NOW: fn(i64) -> Timestamp = Timestamp::from_secs;

fn hotkey(seed: u8) -> Hotkey {
    Hotkey::from_bytes([seed; 32])
}

fn miner(seed: u8) -> MinerKey {
    MinerKey(hotkey(seed))
}

fn job(seed: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(seed))
}

fn finished(attempt: u128, of: u8, score: &str) -> FinishedReceipt {
    FinishedReceipt {
        job_uuid: AttemptId::first_of(job(attempt)),
        miner_hotkey: miner(of),
        validator_hotkey: ValidatorKey(hotkey(255)),
        timestamp: NOW(11),
        receipt_type: FinishedTag,
        time_started: NOW(10),
        time_took_us: 1,
        score_str: score.to_owned(),
        block_numbers: vec![],
    }
}

/// The whole text of a snapshot; `None` if there is none with this digest.
async fn snapshot_text(store: &Store, digest: Digest) -> Option<String> {
    let mut text = store.snapshot_piece(digest, 0).await.unwrap()?;
    for piece in 1.. {
        match store.snapshot_piece(digest, piece).await.unwrap() {
            Some(piece) => text.push_str(&piece),
            None => break,
        }
    }
    Some(text)
}

/// Makes the engine refuse every further row of a table as too long a value.
pub(crate) async fn refuse_rows(pool: &AnyPool, engine: &str, table: &'static str) {
    let statements = match engine {
        "sqlite" => vec![format!(
            "CREATE TRIGGER too_long BEFORE INSERT ON {table} BEGIN SELECT LENGTH(zeroblob(2000000000)); END"
        )],
        _ => vec![
            "CREATE FUNCTION too_long() RETURNS trigger AS \
             'BEGIN RAISE EXCEPTION ''too long'' USING ERRCODE = ''54000''; END' LANGUAGE plpgsql"
                .to_owned(),
            format!(
                "CREATE TRIGGER too_long BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION too_long()"
            ),
        ],
    };
    for statement in statements {
        // The statement has no text from outside this crate.
        let made = sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(pool);
        made.await.unwrap();
    }
}

async fn each() -> Vec<(TestStore, Store)> {
    let mut all = Vec::new();
    for test in stores(&MIGRATIONS).await.unwrap() {
        let store = Store::with_pool(test.pool.clone()).await.unwrap();
        store.note_chain("chain", BlockNumber(1), NOW(1)).await.unwrap();
        all.push((test, store));
    }
    all
}

fn request(id: JobId, timestamp_ns: i64) -> (UserJobRequest, String) {
    let frame = json!({
        "signature": {
            "signature_type": "bittensor", "signatory": hotkey(7), "timestamp_ns": timestamp_ns,
            "signature": Signature::from_bytes([1; 64]).to_base64(), "signature_scope": "SignedFields",
        },
        "uuid": id, "executor_class": "always_on.test", "docker_image": "x", "args": [], "env": {"B": "1", "A": "2"},
        "use_gpu": false, "download_time_limit": 1, "execution_time_limit": 1, "upload_time_limit": 1,
        "streaming_start_time_limit": 1,
    })
    .to_string();
    (serde_json::from_str(&frame).unwrap(), frame)
}

fn attempt(id: u128, ordinal: u32) -> StoredAttempt {
    let timing = ExecutorTiming {
        allowed_leeway: 1,
        download_time_limit: 1,
        execution_time_limit: 1,
        upload_time_limit: 1,
        streaming_start_time_limit: 1,
    };
    let second = std::time::Duration::from_secs(1);
    let plan = AttemptPlan {
        dial: second,
        class: ExecutorClass::AlwaysOnTest,
        streaming: false,
        timing,
        reservation: second,
        startup: second,
        reconnect: second,
        image: None,
    };
    StoredAttempt {
        id: AttemptId::first_of(job(id)),
        ordinal,
        miner: miner(2),
        uid: Uid(2),
        address: "127.0.0.1:5".parse().unwrap(),
        machine: Attempt::new(plan, NOW(10)),
        started_at: NOW(10),
        has_checkpoint: false,
    }
}

fn decision() -> RouteDecision {
    RouteDecision {
        block: 7,
        class: ExecutorClass::AlwaysOnTest,
        chosen: Some(miner(2)),
        candidates: vec![],
        more: 0,
        excluded: vec![],
    }
}

/// An attempt of a job that is about to begin on its miner.
fn beginning(attempt: StoredAttempt) -> NewAttempt {
    let receipt = StartedReceipt {
        job_uuid: attempt.id,
        miner_hotkey: attempt.miner,
        validator_hotkey: ValidatorKey(hotkey(255)),
        timestamp: attempt.started_at,
        receipt_type: StartedTag,
        executor_class: ExecutorClass::AlwaysOnTest,
        is_organic: true,
        ttl: 1,
    };
    NewAttempt {
        receipt: IssuedReceipt {
            offered: OfferedReceipt {
                payload: ReceiptPayload::Started(receipt),
                validator_signature: Signature::from_bytes([9; 64]),
            },
            miner_signature: None,
        },
        attempt,
        decision: decision(),
        block: Some(BlockNumber(7)),
    }
}

fn rejected() -> Outcome {
    Outcome::Rejected(RejectionDetails {
        rejected_by: ParticipantType::Validator,
        reason: JobRejectionReason::NoMinerForJob,
        message: "none".to_owned(),
        context: None,
    })
}

#[tokio::test]
async fn a_job_and_a_signature_are_taken_once() {
    for (test, store) in each().await {
        let (one, frame) = request(job(1), 5);
        assert_eq!(
            store.find_prior(one.uuid, &one.signature).await.unwrap(),
            None,
            "{}",
            test.engine
        );
        assert_eq!(
            store.admit(&one, &frame, NOW(1), None).await.unwrap(),
            JobAdmission::New
        );
        assert_eq!(
            store.admit(&one, &frame, NOW(2), None).await.unwrap(),
            JobAdmission::Known(PriorRequest::Job)
        );
        let (two, frame_two) = request(job(2), 5);
        assert_eq!(
            store.find_prior(one.uuid, &one.signature).await.unwrap(),
            Some(PriorRequest::Job)
        );
        assert_eq!(
            store.find_prior(two.uuid, &two.signature).await.unwrap(),
            Some(PriorRequest::Signature)
        );
        assert_eq!(
            store.admit(&two, &frame_two, NOW(3), None).await.unwrap(),
            JobAdmission::Known(PriorRequest::Signature),
            "the same signature under another id"
        );
        assert_eq!(store.open_jobs().await.unwrap(), [one.uuid]);
        let read = store.job(one.uuid).await.unwrap().unwrap();
        assert_eq!(read.request, one);
        assert_eq!(
            read.request.env.keys().collect::<Vec<_>>(),
            ["B", "A"],
            "the order of keys is signed"
        );
        assert!(store.job(two.uuid).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_refused_job_is_closed_and_told() {
    for (_test, store) in each().await {
        store.refuse(job(1), "{}", &rejected(), NOW(1)).await.unwrap();
        store.refuse(job(1), "{}", &rejected(), NOW(2)).await.unwrap();
        assert_eq!(store.updates_waiting().await.unwrap(), 1);
        assert!(store.open_jobs().await.unwrap().is_empty());
        let views = store.jobs(10).await.unwrap();
        assert_eq!(
            (views.len(), views[0].status, views[0].closed_at),
            (1, JobStatus::Rejected, Some(NOW(1)))
        );
    }
}

#[tokio::test]
async fn a_step_is_written_whole_and_counts_towards_what_is_known_of_the_miner() {
    for (_test, store) in each().await {
        let (one, frame) = request(job(1), 5);
        store.admit(&one, &frame, NOW(1), None).await.unwrap();
        let begun = attempt(1, 1);
        let begins = beginning(begun.clone());
        store.begin_attempt(one.uuid, &begins).await.unwrap();
        let found = async |text: &str| store.routed_jobs(&text.parse().unwrap(), 5).await.unwrap();
        assert_eq!(found(&one.uuid.to_string()).await, [one.uuid]);
        assert_eq!(found(&one.uuid.to_string()[..3]).await, [one.uuid]);
        assert!(found("f00d").await.is_empty());
        assert_eq!(store.routes_of(one.uuid).await.unwrap()[0].decision, decision());
        let history = async |since| store.history(NOW(since), NOW(since)).await.unwrap();
        let open = history(99).await;
        assert_eq!((open.len(), open[0].miner, open[0].ended), (1, miner(2), None));

        let (machine, _) = begun.machine.clone().apply(Event::Connected, NOW(11)).unwrap();
        let (machine, _) = machine.apply(Event::Accepted, NOW(11)).unwrap();
        let payload = ReceiptPayload::Finished(finished(1, 2, "3.000000"));
        let offered = OfferedReceipt {
            payload,
            validator_signature: Signature::from_bytes([3; 64]),
        };
        let receipt = IssuedReceipt {
            offered,
            miner_signature: None,
        };
        let mut step = AttemptChange {
            worked: None,
            job: one.uuid,
            attempt: begun.id,
            machine,
            mark: None,
            receipts: vec![receipt.clone()],
            reports: vec![(JobStatus::Accepted, None)],
            block: Some(BlockNumber(17)),
            now: NOW(11),
        };
        store.save(&step).await.unwrap();
        assert_eq!(
            store.job(one.uuid).await.unwrap().unwrap().attempts[0].machine,
            step.machine
        );
        assert_eq!(
            store.attempt(begun.id).await.unwrap().unwrap().machine,
            step.machine
        );
        assert_eq!(
            store.receipts_of(begun.id).await.unwrap(),
            [begins.receipt, receipt.clone()]
        );
        assert_eq!(store.updates_waiting().await.unwrap(), 2);

        let whole = receipt
            .offered
            .clone()
            .with_countersignature(Signature::from_bytes([4; 64]));
        assert!(store.countersign(&whole, Some(9)).await.unwrap());
        assert_eq!(
            store.receipts_of(begun.id).await.unwrap()[1].complete(),
            Some(whole.clone())
        );
        let mut other = whole.clone();
        other.payload = ReceiptPayload::Finished(finished(1, 2, "9.000000"));
        assert!(
            !store.countersign(&other, Some(9)).await.unwrap(),
            "another content is another receipt"
        );
        // The miner signs it once more: its page has it once.
        assert!(store.countersign(&whole, Some(9)).await.unwrap());
        let line = format!("{}\n", serde_json::to_string(&whole).unwrap());
        let page = store.receipt_page(9, 0, 10).await.unwrap().unwrap();
        assert_eq!(
            (page.size, page.first, &page.lines),
            (line.len() as u64, 0, &line)
        );
        let rest = store.receipt_page(9, page.size, 10).await.unwrap().unwrap();
        assert_eq!((rest.size, rest.lines.as_str()), (page.size, ""));
        assert_eq!(store.receipt_page(8, 0, 10).await.unwrap(), None);

        let between = async |first, last| {
            store
                .finished_between(BlockNumber(first), BlockNumber(last), &mut |_| true)
                .await
                .unwrap()
                .len()
        };
        assert_eq!(
            (between(0, 16).await, between(17, 17).await, between(18, 99).await),
            (0, 1, 0)
        );

        let lost = HordeFailureDetails {
            reported_by: ParticipantType::Miner,
            reason: HordeFailureReason::ExecutorDisconnected,
            message: String::new(),
            context: None,
        };
        (step.machine, _) = step.machine.apply(Event::HordeFailed(lost), NOW(12)).unwrap();
        step.now = NOW(12);
        step.mark = Some(AttemptMark::Incident);
        store.save(&step).await.unwrap();
        assert_eq!(history(12).await[0].ended, Some((NOW(12), AttemptMark::Incident)));
        assert!(history(13).await.is_empty(), "incidents are forgotten");
        assert_eq!(
            store.receipts_of(begun.id).await.unwrap().len(),
            2,
            "a receipt is written once"
        );
    }
}

#[tokio::test]
async fn a_report_of_cheating_is_kept_once() {
    for (test, store) in each().await {
        let (one, _) = request(job(1), 5);
        let report = serde_json::from_value(json!({
            "signature": one.signature, "job_uuid": "a", "trusted_job_uuid": "b", "details": {"why": "x"},
        }));
        let report = report.unwrap();
        store.keep_cheat_report(&report, NOW(1)).await.unwrap();
        store.keep_cheat_report(&report, NOW(2)).await.unwrap();
        let row = sqlx::query("SELECT COUNT(*) AS kept FROM cheat_reports")
            .fetch_one(&test.pool)
            .await
            .unwrap();
        assert_eq!(row.get::<i64, _>("kept"), 1);
    }
}

#[tokio::test]
async fn opening_the_store_takes_it_over_and_its_earlier_owner_writes_no_more() {
    for (test, store) in each().await {
        let (one, frame) = request(job(1), 5);
        assert_eq!(
            store.admit(&one, &frame, NOW(1), None).await.unwrap(),
            JobAdmission::New
        );
        let next = Store::open(&test.url).await.unwrap();
        let (two, frame) = request(job(2), 6);
        let refused = store.admit(&two, &frame, NOW(2), None).await;
        assert!(
            matches!(refused, Err(StoreError::Superseded)),
            "{}: {refused:?}",
            test.engine
        );
        assert_eq!(
            next.admit(&two, &frame, NOW(3), None).await.unwrap(),
            JobAdmission::New
        );
        assert_eq!(next.updates_waiting().await.unwrap(), 2);
        next.close().await;
    }
}

#[tokio::test]
async fn thousands_of_open_jobs_are_read_in_order_with_all_that_their_drivers_need() {
    for (test, store) in each().await {
        let count = 1_203_u128;
        for n in 1..=count {
            let (one, frame) = request(job(n), i64::try_from(n).unwrap());
            // Many jobs have the same time and are ordered by their ids.
            let at = NOW(i64::try_from(n / 100).unwrap());
            store.admit(&one, &frame, at, None).await.unwrap();
            if n % 100 == 0 {
                let mut first = attempt(n, 1);
                first.id = AttemptId::from_uuid(Uuid::from_u128(n + 1_000_000));
                store
                    .begin_attempt(one.uuid, &beginning(first.clone()))
                    .await
                    .unwrap();
                store
                    .begin_attempt(one.uuid, &beginning(attempt(n, 2)))
                    .await
                    .unwrap();
                for of in [first.id, attempt(n, 2).id] {
                    let mut payload = finished(1, 2, "3.000000");
                    payload.job_uuid = of;
                    let offered = OfferedReceipt {
                        payload: ReceiptPayload::Finished(payload),
                        validator_signature: Signature::from_bytes([3; 64]),
                    };
                    let receipt = IssuedReceipt {
                        offered,
                        miner_signature: None,
                    };
                    store.keep_receipt(&receipt, Some(BlockNumber(1))).await.unwrap();
                }
            }
        }
        assert!(store.cancel(job(7), "never mind").await.unwrap());
        assert!(!store.cancel(job(7), "again").await.unwrap());
        let outcome = rejected();
        store
            .close_job(job(8), &outcome, &outcome.metadata(), NOW(9))
            .await
            .unwrap();
        assert!(!store.cancel(job(8), "too late").await.unwrap());

        let (mut after, mut open) = (None, Vec::new());
        loop {
            let page = store.open_after(after).await.unwrap();
            after = page.last().unwrap();
            if after.is_none() {
                break;
            }
            let jobs = page.read().unwrap();
            assert!((1..=1_000).contains(&jobs.len()));
            open.extend(jobs);
        }
        let expected: Vec<_> = (1..=count).filter(|n| *n != 8).map(job).collect();
        let read: Vec<_> = open.iter().map(|open| open.request.uuid).collect();
        assert_eq!(read, expected, "{}", test.engine);
        for open in &open {
            let n = open.request.uuid.as_uuid().as_u128();
            assert_eq!(open.cancelled.as_deref(), (n == 7).then_some("never mind"));
            if n % 100 == 0 {
                let ordinals: Vec<_> = open.attempts.iter().map(|attempt| attempt.ordinal).collect();
                assert_eq!(ordinals, [1, 2]);
                assert_eq!(
                    open.receipts.len(),
                    2,
                    "those of the last attempt, in their order"
                );
                let of_last = |receipt: &IssuedReceipt| receipt.offered.payload.attempt() == attempt(n, 2).id;
                assert!(open.receipts.iter().all(of_last));
                assert!(open.receipts[0].kind() < open.receipts[1].kind());
            } else {
                assert!(open.attempts.is_empty() && open.receipts.is_empty());
            }
        }
    }
}

#[tokio::test]
async fn a_job_of_the_validators_own_gets_no_update() {
    for (_test, store) in each().await {
        let (request, frame) = request(job(1), 5);
        assert!(
            store
                .admit_own(&request, &frame, OwnJobRestart::CalledOff, NOW(10))
                .await
                .unwrap()
        );
        assert!(
            !store
                .admit_own(&request, &frame, OwnJobRestart::CalledOff, NOW(11))
                .await
                .unwrap()
        );
        assert_eq!(store.open_own_jobs().await.unwrap(), [job(1)]);
        let end = Outcome::cancelled(JobStage::Execution, "nobody used it");
        store
            .close_job(job(1), &end, &end.metadata(), NOW(12))
            .await
            .unwrap();
        assert_eq!(store.open_own_jobs().await.unwrap(), []);
        assert_eq!(store.last_status(job(1)).await.unwrap(), Some(end.status()));
        assert!(store.next_updates(None, 1).await.unwrap().is_empty());
        assert_eq!(store.updates_waiting().await.unwrap(), 0);
    }
}
