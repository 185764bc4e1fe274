//! The queue: jobs that find every executor at work wait, in order, through restarts, until they start, are called off
//! or have waited too long.

use std::time::Duration;

use muster_identity::{Keypair, sign_job, sign_terms};
use muster_process::Clock as _;
use muster_protocol::job::{JobTerms, Priority};
use muster_protocol::status::{JobRejectionReason, JobStatus};
use muster_protocol::wire::executor::ExecutorUp;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{AttemptId, ExecutorClass, JobId};
use serde_json::Value;

use crate::sockets::support::miner::{Miner, Session};
use crate::sockets::support::{World, while_time_passes};

/// A signed job with so much time for each stage that it lasts as long as its test.
fn job(user: &str, at: i64) -> UserJobRequest {
    let mut job = crate::sockets::support::facilitator::job(user, at);
    for limit in [
        &mut job.download_time_limit,
        &mut job.execution_time_limit,
        &mut job.upload_time_limit,
    ] {
        *limit = 100_000;
    }
    job.signature = sign_job(&Keypair::from_uri(user).unwrap(), &job.signed_fields(), at);
    job
}

/// A signed job with terms.
fn job_with(user: &str, at: i64, terms: JobTerms) -> UserJobRequest {
    let mut job = job(user, at);
    let signature = sign_terms(&Keypair::from_uri(user).unwrap(), &terms, &job.signed_digest());
    job.muster = Some(Box::new(JobExtension {
        registry: None,
        traceparent: None,
        account: None,
        terms: Some(terms),
        signature: Some(signature),
        checkpoints: None,
        output: None,
    }));
    job
}

fn with_priority(user: &str, at: i64, priority: u8) -> UserJobRequest {
    let priority = Priority::try_from(priority).unwrap();
    job_with(
        user,
        at,
        JobTerms {
            priority,
            ..JobTerms::default()
        },
    )
}

/// Submits a job that keeps the miner's only executor at work.
async fn hold(world: &mut World, miner: &mut Miner) -> (Session, AttemptId) {
    world.facilitator.submit(&job("//Holder", 1)).await;
    let mut session = miner.accept().await;
    let id = session.begin().await;
    for status in [JobStatus::Received, JobStatus::Accepted, JobStatus::ExecutorReady] {
        world.facilitator.expect(status).await;
    }
    (session, id)
}

async fn submit_to_wait(world: &mut World, job: &UserJobRequest) {
    world.facilitator.submit(job).await;
    world.facilitator.expect(JobStatus::Received).await;
}

/// A world whose sessions with miners last, so that each job comes on the session of the one before.
async fn lasting(miners: &[&Miner]) -> World {
    let mut world = World::in_real_time(miners).await;
    world.config.timing.linger_s = 600;
    world
}

/// Completes the job that a miner was given next; returns its id.
async fn run_next(world: &mut World, session: &mut Session) -> AttemptId {
    let id = session.begin().await;
    session.complete(id).await;
    session.paid().await;
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::Completed));
    id
}

/// The ids of the waiting jobs in the order in which they start.
async fn order(world: &World) -> Vec<String> {
    let queue = world.get("/v0/queue?limit=2000").await;
    let jobs = queue["jobs"].as_array().unwrap().iter();
    jobs.map(|job| job["job"].as_str().unwrap().to_owned()).collect()
}

fn ids(jobs: &[&UserJobRequest]) -> Vec<String> {
    jobs.iter().map(|job| job.uuid.to_string()).collect()
}

#[tokio::test]
async fn jobs_start_in_turns_of_their_accounts_and_by_priority_and_a_newcomer_overtakes_nobody() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = lasting(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    let (mut session, held) = hold(&mut world, &mut miner).await;
    let first = job("//Alice", 1);
    let second = job("//Alice", 2);
    let urgent = with_priority("//Alice", 3, 9);
    let other = job("//Bob", 1);
    for job in [&first, &second, &urgent, &other] {
        submit_to_wait(&mut world, job).await;
    }
    let expected = [&urgent, &other, &first, &second];
    assert_eq!(order(&world).await, ids(&expected));
    let queue = world.get("/v0/queue").await;
    assert_eq!(queue["lines"][0]["class"], "always_on.test");
    assert_eq!(queue["lines"][0]["waiting"], 4);
    assert_eq!(queue["lines"][0]["why"], "1 executor is at work");

    session.complete(held).await;
    session.paid().await;
    world.facilitator.updates_to_the_end().await;
    for job in expected {
        assert_eq!(
            run_next(&mut world, &mut session).await,
            AttemptId::first_of(job.uuid)
        );
    }
    assert_eq!(order(&world).await, Vec::<String>::new());
}

#[tokio::test]
async fn the_user_of_a_waiting_job_is_told_its_place_and_why() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = lasting(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    let (mut session, held) = hold(&mut world, &mut miner).await;
    let (one, two) = (job("//Alice", 1), job("//Alice", 2));
    submit_to_wait(&mut world, &one).await;
    world
        .until_queue("the line to be looked at", |queue| {
            queue["lines"][0]["why"].is_string()
        })
        .await;
    world.facilitator.submit(&two).await;
    let place = world.facilitator.place_of(two.uuid).await;
    assert_eq!((place.ahead, place.waiting, place.estimate_s), (1, 2, None));
    assert_eq!(place.why, "1 executor is at work");
    session.complete(held).await;
    session.paid().await;
    // The first of them starts, so the other moves up; how long programs take is known now.
    let place = world.facilitator.place_of(two.uuid).await;
    assert_eq!((place.ahead, place.waiting), (0, 1));
    assert!(place.estimate_s.is_some());
}

#[tokio::test]
async fn hundreds_of_waiting_jobs_survive_a_killed_validator_in_their_order() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = lasting(&[&miner]).await;
    world.start_mortal();
    world.facilitator.accept().await;
    let (session, held) = hold(&mut world, &mut miner).await;
    for at in 0..300_i64 {
        let user = ["//Alice", "//Bob", "//Carol"][usize::try_from(at % 7 % 3).unwrap()];
        let priority = u8::try_from(at % 10).unwrap() + 1;
        submit_to_wait(&mut world, &with_priority(user, 10 + at, priority)).await;
    }
    let before = order(&world).await;
    assert_eq!(before.len(), 300);
    world.kill();
    drop(session);

    world.start_mortal();
    world.facilitator.accept().await;
    let mut session = miner.accept().await;
    assert_eq!(order(&world).await, before);
    session.finished(held).await;
    session.paid().await;
    world.facilitator.updates_to_the_end().await;
    let id = session.begin().await;
    assert_eq!(id, AttemptId::first_of(before[0].parse::<JobId>().unwrap()));

    // The turn of an account survives too: the order of the rest is as it would have been.
    world.kill();
    drop(session);
    world.start_mortal();
    world.facilitator.accept().await;
    let mut session = miner.accept().await;
    assert_eq!(order(&world).await, before[1..]);
    session.finished(id).await;
    session.paid().await;
    world.facilitator.updates_to_the_end().await;
    let second = session.offer().await.job_uuid;
    assert_eq!(second, AttemptId::first_of(before[1].parse::<JobId>().unwrap()));
}

#[tokio::test]
async fn a_restarted_validator_gives_the_chain_time_before_it_ends_a_job_that_has_waited() {
    let mut world = World::new(&[]).await;
    world.chain.silent(true);
    world.start_mortal();
    world.facilitator.accept().await;
    submit_to_wait(&mut world, &job("//Alice", 1)).await;
    world.kill();

    world.test_clock.advance(Duration::from_secs(600));
    let restarted_at = world.test_clock.now();
    world.start_mortal();
    world.facilitator.accept().await;
    let updates = world.facilitator.updates_to_the_end();
    let (statuses, _) = while_time_passes(&world.test_clock, "the end", updates).await;
    assert_eq!(statuses.last(), Some(&JobStatus::Rejected));
    let waited = world.test_clock.now().since(restarted_at);
    assert!(
        waited >= Duration::from_secs(world.config.chain.wait_s),
        "{waited:?}"
    );
}

#[tokio::test]
async fn a_job_that_fetches_its_image_leaves_its_executor_to_the_next_in_line() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = lasting(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//Alice", 1)).await;
    let mut session = miner.accept().await;
    let first = session.offer().await;
    let terms = first.muster.as_ref().unwrap();
    assert_eq!(
        terms.image_time_limit,
        Some(1_800),
        "the default of a job without terms"
    );
    session.accept_job(first.job_uuid).await;
    session.accepted_receipt().await;
    for status in [JobStatus::Received, JobStatus::Accepted] {
        world.facilitator.expect(status).await;
    }
    let next = job("//Bob", 1);
    submit_to_wait(&mut world, &next).await;
    let up = ExecutorUp {
        job_uuid: first.job_uuid,
        registry: "slow.example.org".to_owned(),
        image_s: 600,
    };
    session.send(MinerToValidator::MusterExecutorUp(up)).await;
    // No block comes: the fetch itself makes room.
    assert_eq!(session.offer().await.job_uuid, AttemptId::first_of(next.uuid));
    assert_eq!(order(&world).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_waiting_job_that_is_called_off_ends_at_once_and_the_others_move_up() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = lasting(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    let (mut session, held) = hold(&mut world, &mut miner).await;
    let (one, two) = (job("//Alice", 1), job("//Alice", 2));
    submit_to_wait(&mut world, &one).await;
    submit_to_wait(&mut world, &two).await;
    world.facilitator.cancel(one.uuid, "changed my mind").await;
    let end = world.facilitator.expect(JobStatus::Failed).await;
    assert_eq!(end.uuid, one.uuid);
    let details = end.metadata.unwrap().job_failure_details.unwrap();
    assert_eq!(details.context.unwrap()["cancelled"], true);
    assert_eq!(order(&world).await, ids(&[&two]));
    session.complete(held).await;
    session.paid().await;
    world.facilitator.updates_to_the_end().await;
    assert_eq!(
        run_next(&mut world, &mut session).await,
        AttemptId::first_of(two.uuid)
    );
}

#[tokio::test]
async fn a_job_that_waits_too_long_ends_and_says_what_it_waited_for() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    let (_session, _) = hold(&mut world, &mut miner).await;
    let patient = job("//Alice", 1);
    let hasty = job_with(
        "//Alice",
        2,
        JobTerms {
            queue_time_limit: Some(30),
            ..JobTerms::default()
        },
    );
    submit_to_wait(&mut world, &patient).await;
    submit_to_wait(&mut world, &hasty).await;
    let rejected = world.facilitator.expect(JobStatus::Rejected);
    let end = while_time_passes(&world.test_clock, "the end of the wait", rejected).await;
    assert_eq!(end.uuid, hasty.uuid);
    let details = end.metadata.unwrap().job_rejection_details.unwrap();
    assert_eq!(details.reason, JobRejectionReason::NoMinerForJob);
    assert!(
        details.message.ends_with(
            "for an executor of class always_on.test, which is as long as it may: 1 executor is at work"
        ),
        "{}",
        details.message
    );
    let context = details.context.unwrap();
    assert!(context["waited_s"].as_u64().unwrap() >= 30, "{context}");
    assert_eq!(
        context["excluded"][1]["reason"],
        "1 of its 1 executors are at work for us"
    );
    assert_eq!(order(&world).await, ids(&[&patient]));
}

#[tokio::test]
async fn a_job_that_fits_no_manifest_is_refused_at_once_and_told_what_would_fit() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = lasting(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    let (_session, _) = hold(&mut world, &mut miner).await;
    let mut gpu = job("//Alice", 1);
    gpu.executor_class = ExecutorClass::AlwaysOnGpu24Gb;
    let user = Keypair::from_uri("//Alice").unwrap();
    gpu.signature = sign_job(&user, &gpu.signed_fields(), 1);
    submit_to_wait(&mut world, &gpu).await;
    let end = world.facilitator.expect(JobStatus::Rejected).await;
    let details = end.metadata.unwrap().job_rejection_details.unwrap();
    assert_eq!(
        details.message,
        "no miner of this subnet can take a job of class always_on.gpu-24gb: offered are 1 of always_on.test"
    );
    assert_eq!(details.context.unwrap()["offered"]["always_on.test"], 1);
}

#[tokio::test]
async fn a_job_whose_miner_fails_while_the_others_are_busy_waits_for_one_of_them() {
    let (mut one, mut two) = (Miner::open("//One").await, Miner::open("//Two").await);
    let mut world = lasting(&[&one, &two]).await;
    world.start();
    world.facilitator.accept().await;
    for at in 1..=2 {
        world.facilitator.submit(&job("//User", at)).await;
    }
    let (mut busy, mut failing) = (one.accept().await, two.accept().await);
    let (held, failed) = (busy.begin().await, failing.begin().await);
    failing.horde_failed(failed).await;
    assert_eq!(failing.paid().await, "0.000000");
    let queue = world.until_queue("the job to wait", |queue| {
        queue["jobs"].as_array().is_some_and(|jobs| jobs.len() == 1)
    });
    assert_eq!(queue.await["jobs"][0]["job"], failed.to_string());
    busy.complete(held).await;
    busy.paid().await;
    let again = busy.begin().await;
    assert!(
        again != failed && again != held,
        "another attempt of the same job"
    );
    busy.complete(again).await;
    busy.paid().await;
    world
        .until("both jobs to complete", |state: &Value| {
            let jobs = state["jobs"].as_array().unwrap();
            jobs.iter().all(|job| job["status"] == "completed")
        })
        .await;
}

#[tokio::test]
async fn a_miner_that_is_busy_for_others_is_asked_again_and_the_job_does_not_lose_its_attempts() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    submit_to_wait(&mut world, &job("//Alice", 1)).await;
    // More often than a job may have attempts.
    for _ in 0..5 {
        let mut session = while_time_passes(&world.test_clock, "an offer", miner.accept()).await;
        let id = session.offer().await.job_uuid;
        session.decline(id).await;
        session.closed().await;
    }
    let mut session = while_time_passes(&world.test_clock, "an offer", miner.accept()).await;
    let id = session.begin().await;
    session.complete(id).await;
    session.paid().await;
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::Completed));
}

#[tokio::test]
async fn no_more_jobs_wait_than_the_operator_allows() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = lasting(&[&miner]).await;
    world.config.queue.max_jobs = 3;
    world.config.queue.max_per_account = 2;
    world.start();
    world.facilitator.accept().await;
    let (_session, _) = hold(&mut world, &mut miner).await;
    let refused = async |world: &mut World, user: &str, at: i64| {
        world.facilitator.submit(&job(user, at)).await;
        let end = world.facilitator.expect(JobStatus::Rejected).await;
        end.metadata.unwrap().job_rejection_details.unwrap().message
    };
    submit_to_wait(&mut world, &job("//Alice", 1)).await;
    submit_to_wait(&mut world, &job("//Alice", 2)).await;
    let message = refused(&mut world, "//Alice", 3).await;
    assert!(
        message.starts_with("2 jobs of this account wait already"),
        "{message}"
    );
    submit_to_wait(&mut world, &job("//Bob", 1)).await;
    let message = refused(&mut world, "//Bob", 2).await;
    assert!(message.starts_with("3 jobs wait already"), "{message}");
}
