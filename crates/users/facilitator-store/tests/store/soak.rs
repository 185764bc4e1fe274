//! Months of use in a store whose size is bounded: jobs every hour of every day, and the janitor beside them.

use std::path::Path;

use futures_util::future::join_all;
use muster_facilitator_store::FacilitatorRetention;
use muster_facilitator_store::{FacilitatorRetentionConfig, TokenPair};
use muster_process::{Clock as _, TestClock};
use muster_store::retention::{Keep, Pace, PaceSettings, sweep_once};
use muster_store::size::measure_tables;
use muster_store::testing::sqlite;

use super::*;

const HOUR: std::time::Duration = std::time::Duration::from_secs(3_600);

/// How much is done for how long, and how long jobs stay.
#[derive(Clone, Copy, Debug)]
struct Soak {
    days: u32,
    jobs_a_day: u32,
    kept_days: u32,
}

#[tokio::test]
async fn ten_days_of_jobs_stay_within_their_bounds() {
    run(Soak {
        days: 10,
        jobs_a_day: 48,
        kept_days: 3,
    })
    .await;
}

#[tokio::test]
#[ignore = "soak: a year at 1,000 jobs a day, half an hour to two hours"]
async fn a_year_of_jobs_stays_within_its_bounds() {
    run(Soak {
        days: 365,
        jobs_a_day: 1_000,
        kept_days: 30,
    })
    .await;
}

/// One job from its creation to its result, with output on the way.
async fn work(store: &Store, validator: ValidatorKey, n: i64, now: Timestamp) {
    let job = job("User", n);
    create(store, validator, &job, now).await;
    for status in [JobStatus::Received, JobStatus::Accepted] {
        store
            .record(validator, &update(job.uuid, status), now)
            .await
            .unwrap();
    }
    let data = muster_protocol::wire::decode("\"cHJpbnRlZA==\"").unwrap();
    let log = LiveMessage::Log(Box::new(LiveLog {
        uuid: job.uuid,
        stream: LogStream::Stdout,
        offset: 0,
        data,
    }));
    let bounds = LiveConfig::default();
    store.store_live(&[(validator, log)], &bounds, now).await.unwrap();
    let done = update(job.uuid, JobStatus::Completed);
    store.record(validator, &done, now).await.unwrap();
    store
        .use_nonce(&format!("nonce {n}"), now.plus(HOUR))
        .await
        .unwrap();
    let whose = account("User");
    let tokens = TokenPair {
        input: 10,
        output: 20,
    };
    store
        .reserve_usage(&whose, "tiny", tokens, Some(u64::MAX), now)
        .await
        .unwrap()
        .unwrap();
}

async fn run(soak: Soak) {
    let test = sqlite(&MIGRATIONS).await.unwrap();
    let store = Store::over(test.pool.clone()).await.unwrap();
    let file = test.url.trim_start_matches("sqlite:").to_owned();
    let size = || std::fs::metadata(Path::new(&file)).unwrap().len();
    let clock = TestClock::new(at(0));
    let keep = |days| Keep {
        days,
        rows: 10_000_000,
        mib: 65_536,
    };
    let config = FacilitatorRetentionConfig {
        jobs: keep(soak.kept_days),
        audit: keep(soak.kept_days),
        usage: keep(soak.kept_days),
        ..FacilitatorRetentionConfig::default()
    };
    let rules = FacilitatorRetention::new(store.clone(), config);
    let pace = Pace {
        pause: std::time::Duration::ZERO,
        ..PaceSettings::default().pace()
    };
    let validator = validator_key("Validator");
    let (mut made, mut full) = (0_i64, 0);
    for day in 0..soak.days {
        for hour in 0..24 {
            let due = i64::from(soak.jobs_a_day) * i64::from(day * 24 + hour + 1) / 24;
            let now = clock.now();
            join_all((made..due).map(|n| work(&store, validator, n, now))).await;
            made = due;
            clock.advance(HOUR);
            sweep_once(&rules, &store.writer(), &[], pace, &clock)
                .await
                .unwrap();
        }
        if day == soak.kept_days + 1 {
            full = size();
        }
    }
    let most = u64::from(soak.jobs_a_day) * u64::from(soak.kept_days + 1);
    let hourly = u64::from(soak.jobs_a_day) / 24 + 1;
    for table in measure_tables(&test.url).await.unwrap() {
        let bound = match table.table.as_str() {
            "jobs" | "audit" => most,
            "statuses" => most * 4,
            "logs" | "progress" | "queue_places" => hourly * 2,
            "used_nonces" => hourly * 27,
            "model_usage" => u64::from(soak.kept_days) + 2,
            _ => 16,
        };
        assert!(
            table.rows <= bound,
            "{table:?}: more than {bound} rows after {soak:?}"
        );
    }
    let end = size();
    assert!(
        full > 0 && end <= full + full / 4,
        "the file grew from {full} to {end} bytes"
    );
}
