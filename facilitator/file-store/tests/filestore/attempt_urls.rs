//! URLs of one attempt of a job, on every database engine: when they end, how much they may write, and those of peers
//! that do not know them.

use axum::http::StatusCode;
use muster_checkpoints::attempt_url;
use muster_protocol::job::{CheckpointTerms, ResumeSource};

use crate::checkpoint_blocks::{BASE, Bench, JOB, OTHER, USER, checkpoint, id, validator};

impl Bench {
    /// The URL of an attempt, as the job's validator makes it.
    async fn attempt(&self, attempt: u32) -> String {
        attempt_url(&self.grant(JOB).await, attempt).unwrap()
    }

    async fn end_job(&self, job: &str) {
        self.run(&format!("UPDATE jobs SET ended_at = 5 WHERE uuid = '{job}'"))
            .await;
    }
}

#[tokio::test]
async fn a_url_of_an_attempt_ends_with_it() {
    for bench in Bench::all().await {
        let (first, second) = (bench.attempt(1).await, bench.attempt(2).await);
        assert_eq!(bench.put(&first, b"one").await, StatusCode::CREATED);
        assert_eq!(bench.get(&first, b"one").await, StatusCode::OK);
        bench
            .service
            .record_kept(validator(), id(JOB), &[], 1)
            .await
            .unwrap();
        assert_eq!(bench.put(&first, b"more").await, StatusCode::GONE);
        assert_eq!(bench.get(&first, b"one").await, StatusCode::GONE);
        assert_eq!(bench.put(&second, b"two").await, StatusCode::CREATED);
        assert_eq!(bench.missing(&second, &[b"one", b"more"]).await.len(), 1);
        // An older report that comes late opens nothing again.
        bench
            .service
            .record_kept(validator(), id(JOB), &[], 0)
            .await
            .unwrap();
        assert_eq!(bench.put(&first, b"more").await, StatusCode::GONE);
        bench.end_job(JOB).await;
        assert_eq!(bench.put(&second, b"three").await, StatusCode::GONE);
    }
}

#[tokio::test]
async fn a_url_of_an_attempt_ends_where_a_later_one_is_used_and_its_report_is_lost() {
    for bench in Bench::all().await {
        let (first, third) = (bench.attempt(1).await, bench.attempt(3).await);
        assert_eq!(bench.put(&first, b"one").await, StatusCode::CREATED);
        assert_eq!(bench.missing(&third, &[b"one"]).await, []);
        assert_eq!(bench.put(&first, b"more").await, StatusCode::GONE);
        assert_eq!(bench.put(&third, b"three").await, StatusCode::CREATED);
        let shown = bench.service.view(id(JOB), BASE).await.unwrap();
        assert_eq!(shown.checkpoints, [], "no list has come yet");
        assert_eq!(bench.service.sweep().await.unwrap(), 0);
    }
}

#[tokio::test]
async fn an_attempt_fills_its_own_bound_and_leaves_room_for_the_next() {
    for bench in Bench::all().await {
        // The account has one MiB, an attempt half of it.
        let (first, second) = (bench.attempt(1).await, bench.attempt(2).await);
        assert_eq!(bench.put(&first, &[1; 300_000]).await, StatusCode::CREATED);
        assert_eq!(
            bench.put(&first, &[1; 300_000]).await,
            StatusCode::CREATED,
            "again"
        );
        assert_eq!(
            bench.put(&first, &[2; 300_000]).await,
            StatusCode::PAYLOAD_TOO_LARGE
        );
        assert_eq!(bench.put(&first, &[3; 200_000]).await, StatusCode::CREATED);
        assert_eq!(bench.put(&second, &[2; 300_000]).await, StatusCode::CREATED);
        // The validator keeps nothing of either: their blocks go, and the room is free again.
        bench.pass(2);
        let service = &bench.service;
        service.record_kept(validator(), id(JOB), &[], 2).await.unwrap();
        assert_eq!(service.sweep().await.unwrap(), 3);
        let third = bench.attempt(3).await;
        assert_eq!(bench.put(&third, &[4; 500_000]).await, StatusCode::CREATED);
        let left: Vec<(i64, i64)> = sqlx::query_as("SELECT attempt, bytes FROM attempt_bytes")
            .fetch_all(&bench.pool())
            .await
            .unwrap();
        assert_eq!(left, [(3, 500_000)]);
    }
}

#[tokio::test]
async fn a_url_of_the_whole_job_has_the_bound_of_its_account_and_ends_with_the_job() {
    for bench in Bench::all().await {
        let whole = bench.grant(JOB).await;
        assert_eq!(bench.put(&whole, &[1; 700_000]).await, StatusCode::CREATED);
        bench
            .service
            .record_kept(validator(), id(JOB), &[], 1)
            .await
            .unwrap();
        assert_eq!(bench.put(&whole, &[2; 100_000]).await, StatusCode::CREATED);
        bench.end_job(JOB).await;
        assert_eq!(bench.put(&whole, b"more").await, StatusCode::GONE);
    }
}

#[tokio::test]
async fn a_grant_to_read_another_jobs_checkpoint_ends_with_the_job_that_reads() {
    for bench in Bench::all().await {
        let (kept, manifest) = checkpoint(3, b"content");
        let url = bench.grant(JOB).await;
        assert_eq!(bench.put(&url, &manifest).await, StatusCode::CREATED);
        bench
            .service
            .record_kept(validator(), id(JOB), &[kept], 0)
            .await
            .unwrap();
        bench.end_job(JOB).await;
        let terms = CheckpointTerms {
            resume_from: Some(ResumeSource {
                job: id(JOB),
                ordinal: 3,
            }),
            ..CheckpointTerms::default()
        };
        let granted = bench.service.grant(USER, id(OTHER), &terms, BASE).await.unwrap();
        assert!(granted.attempt_urls);
        let whole = granted.resume.unwrap().blocks;
        let (first, second) = (attempt_url(&whole, 1).unwrap(), attempt_url(&whole, 2).unwrap());
        for url in [&whole, &first, &second] {
            assert_eq!(bench.get(url, &manifest).await, StatusCode::OK, "{url}");
            assert_eq!(bench.put(url, b"more").await, StatusCode::FORBIDDEN, "{url}");
        }
        // The second attempt of the reading job has used its URL.
        assert_eq!(bench.get(&first, &manifest).await, StatusCode::GONE);
        let other = whole.replace(OTHER, "11111111-2222-4333-8444-555555555558");
        assert_eq!(bench.get(&other, &manifest).await, StatusCode::FORBIDDEN);
        bench.end_job(OTHER).await;
        for url in [&whole, &second] {
            assert_eq!(bench.get(url, &manifest).await, StatusCode::GONE, "{url}");
        }
    }
}
