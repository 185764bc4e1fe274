//! Months of use in a miner's store and receipt pages whose sizes are bounded: jobs, chats, and what validators report
//! of their spot checks.

use std::time::Duration;

use muster_audit_check::evidence::{BundleOpinion, ReadBundle};
use muster_audit_check::header_check::{CheckedHeader, CheckedLeaf};
use muster_audit_check::store::KEPT;
use muster_audit_check::{AuditCheckStore, Finding, FindingKind};
use muster_process::folders::measure_folder;
use muster_process::{Clock as _, TestClock};
use muster_protocol::receipt::{
    FinishedReceipt, FinishedTag, OfferedReceipt, PAGE_SECS, SERVED_SECS, StartedReceipt, StartedTag, page_of,
};
use muster_protocol::wire::audits::{HeaderNotice, SessionProofs, SignedProof, VerdictNotice};
use muster_protocol::{
    AttemptId, Digest, ExecutorClass, MinerKey, ReceiptPayload, Signature, Timestamp, ValidatorKey,
};
use muster_response_proof::{BucketHeader, BucketNumber, SessionId};
use muster_store::retention::sweep_once;
use muster_store::testing::soak::StoreSoak;
use muster_store::testing::sqlite;
use uuid::Uuid;

use crate::lease_table::{LeaseStatus, LeaseWrite};
use crate::receipt_pages::Pages;
use crate::store::{MIGRATIONS, Store};
use crate::testing::{miner_pair, validator_pair};

const HOUR: Duration = Duration::from_secs(3_600);
/// Answers of this miner's session in an hour.
const HOUR_ANSWERS: u64 = 2;
/// The newest findings and verdicts that the miner keeps of a validator.
const FINDINGS: u64 = 1_000;
const VERDICTS: u64 = 64;

/// Longer than the ten days for which the miner keeps what validators log.
#[tokio::test]
async fn days_of_jobs_and_chats_stay_within_their_bounds() {
    run(StoreSoak {
        days: 13,
        jobs_a_day: 24,
        kept_days: 3,
    })
    .await;
}

#[tokio::test]
#[ignore = "soak: a year at 1,000 jobs a day, half an hour to two hours"]
async fn a_year_of_jobs_and_chats_stays_within_its_bounds() {
    run(StoreSoak {
        days: 365,
        jobs_a_day: 1_000,
        kept_days: 90,
    })
    .await;
}

fn attempt(n: u64) -> AttemptId {
    AttemptId::from_uuid(Uuid::from_u128(u128::from(n) + 1))
}

/// The writes of one lease from its offer to the acknowledged result, with both receipts.
fn lease(n: u64, miner: MinerKey, validator: ValidatorKey, at: Timestamp) -> Vec<LeaseWrite> {
    let attempt = attempt(n);
    let started = ReceiptPayload::Started(StartedReceipt {
        job_uuid: attempt,
        miner_hotkey: miner,
        validator_hotkey: validator,
        timestamp: at,
        receipt_type: StartedTag,
        executor_class: ExecutorClass::AlwaysOnTest,
        is_organic: true,
        ttl: 7,
    });
    let finished = ReceiptPayload::Finished(FinishedReceipt {
        job_uuid: attempt,
        miner_hotkey: miner,
        validator_hotkey: validator,
        timestamp: at,
        receipt_type: FinishedTag,
        time_started: at,
        time_took_us: 1,
        score_str: "1.000000".to_owned(),
        block_numbers: vec![],
    });
    let receipt = |payload| {
        let offered = OfferedReceipt {
            payload,
            validator_signature: Signature::from_bytes([1; 64]),
        };
        LeaseWrite::Receipt(Box::new(
            offered.with_countersignature(Signature::from_bytes([2; 64])),
        ))
    };
    vec![
        LeaseWrite::Opened {
            attempt,
            validator,
            at,
        },
        receipt(started),
        LeaseWrite::Ended {
            attempt,
            status: LeaseStatus::Owed,
            history: vec![],
            at,
        },
        receipt(finished),
        LeaseWrite::Settled(attempt),
    ]
}

/// A session's answers of an hour, the header of the validator's log that has them, a finding and a verdict.
async fn chat(audit_check: &AuditCheckStore, validator: ValidatorKey, hour: u64, now: Timestamp) {
    let session = SessionId(Uuid::from_u128(u128::from(hour) + 1));
    let digest = |answer: u64| Digest::of(&(hour * HOUR_ANSWERS + answer).to_be_bytes());
    let proofs = (0..HOUR_ANSWERS).map(|answer| SignedProof {
        digest: digest(answer),
        is_answer: true,
        at: now,
    });
    let told = SessionProofs {
        job_uuid: attempt(hour),
        session: session.to_string(),
        validator,
        first: 0,
        proofs: proofs.collect(),
    };
    audit_check.put_proofs(&told).await.unwrap();
    let notice = HeaderNotice {
        header: format!("header {hour}"),
        between: vec![],
        own: HOUR_ANSWERS,
        leaves: vec![],
    };
    let leaves = (0..HOUR_ANSWERS).map(|answer| CheckedLeaf {
        session,
        sequence: answer,
        proof: digest(answer),
        model: "tiny".to_owned(),
        position: answer,
    });
    let nothing = Digest::of(b"");
    let header = BucketHeader {
        genesis: nothing,
        netuid: 1,
        validator,
        bucket: BucketNumber(hour),
        answers: HOUR_ANSWERS,
        root: nothing,
        previous: nothing,
        shares: 0,
        share_root: nothing,
        canaries: nothing,
    };
    let checked = CheckedHeader {
        header,
        digest: Digest::of(notice.header.as_bytes()),
        leaves: leaves.collect(),
        findings: vec![],
    };
    audit_check
        .put_header(validator, &notice, &checked, now)
        .await
        .unwrap();
    let finding = Finding {
        kind: FindingKind::Withheld,
        about: format!("answer {hour}"),
        words: "it stands in no header".to_owned(),
    };
    audit_check
        .put_findings(validator, vec![finding], now)
        .await
        .unwrap();
    let verdict = VerdictNotice {
        bundle: Digest::of(&hour.to_be_bytes()),
        bytes: 3,
        verdict: "suspect".to_owned(),
        model: "tiny".to_owned(),
        quality_per_mille: 500,
        since: now,
    };
    let read = ReadBundle {
        opinion: BundleOpinion::Agrees,
        subnet: None,
        headers: vec![],
    };
    let body = Some("the text of a bundle".repeat(64));
    audit_check
        .put_verdict(validator, &verdict, &read, body, now)
        .await
        .unwrap();
}

async fn run(soak: StoreSoak) {
    let test = sqlite(&MIGRATIONS).await.unwrap();
    let store = Store::on(test.pool.clone());
    let clock = TestClock::default();
    let folder = tempfile::tempdir().unwrap();
    let pages = Pages::open(folder.path(), vec![], clock.now()).await.unwrap();
    let (miner, validator) = (
        MinerKey(miner_pair().hotkey()),
        ValidatorKey(validator_pair().hotkey()),
    );
    let (rules, writer) = store.retention(soak.keep()).unwrap();
    let a_day = u64::from(soak.jobs_a_day);
    let audit_check = store.audit_check().unwrap();
    // Every table has its full size once the longest of these times has passed.
    let audits_days = u32::try_from(KEPT.as_secs() / (24 * 3_600)).unwrap();
    let full_after = u64::from(soak.kept_days.max(audits_days) + 1) * 24;
    let (mut made, mut forgotten, mut full) = (0, 0, 0);
    for hour in 0..u64::from(soak.days) * 24 {
        let (now, due) = (clock.now(), a_day * (hour + 1) / 24);
        let writes: Vec<_> = (made..due)
            .flat_map(|n| lease(n, miner, validator, now))
            .collect();
        made = due;
        let lines = store.commit(&writes, page_of(now)).await.unwrap();
        pages.append(&lines).await.unwrap();
        let greeting = Signature::from_bytes([u8::try_from(hour % 251).unwrap(); 64]);
        store.first_use(&greeting, now.plus(HOUR * 2)).await.unwrap();
        store.note_greeted(validator, now).await.unwrap();
        chat(&audit_check, validator, hour, now).await;
        clock.advance(HOUR);
        // The lease table forgets leases after a day.
        let old = made.saturating_sub(a_day);
        let forget = (forgotten..old).map(attempt).collect();
        store.commit(&[LeaseWrite::Forgotten(forget)], 0).await.unwrap();
        forgotten = forgotten.max(old);
        pages.prune(clock.now()).await.unwrap();
        sweep_once(&rules, &writer, &[], StoreSoak::pace(), &clock)
            .await
            .unwrap();
        if hour == full_after {
            full = test.file_bytes();
        }
    }
    let audit_hours = u64::from(audits_days) * 24 + 1;
    let bound = |table: &str| match table {
        "receipts" => Some(2 * a_day * u64::from(soak.kept_days + 1)),
        "leases" => Some(a_day + a_day / 24 + 1),
        "greetings" => Some(2),
        "greeted_validators" => Some(1),
        "session_proofs" | "audit_leaves" => Some(audit_hours * HOUR_ANSWERS),
        "audit_headers" => Some(audit_hours),
        "audit_findings" => Some(FINDINGS),
        "audit_verdicts" => Some(VERDICTS),
        _ => None,
    };
    soak.assert_bounds(&test, bound).await.unwrap();
    test.assert_file_within(full);
    let served = u64::try_from(SERVED_SECS / PAGE_SECS).unwrap();
    let left = measure_folder(folder.path());
    assert!(left.files > 0 && left.files <= served + 1, "{left:?}");
}
