//! Jobs that a facilitator signs for its accounts: whose are taken, and how many.

use muster_identity::Keypair;
use muster_protocol::wire::facilitator::{JobStatusUpdate, UserJobRequest};
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::{JobRejectionReason, JobStatus, UserKey};

use crate::sockets::support::World;
use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::Miner;

const SIGNER: &str = "//Signer";

fn key(uri: &str) -> UserKey {
    UserKey(Keypair::from_uri(uri).unwrap().hotkey())
}

/// A job that the facilitator signs for an account.
fn signed_for(account: &str, timestamp_ns: i64) -> UserJobRequest {
    let mut job = job(SIGNER, timestamp_ns);
    job.muster = Some(Box::new(JobExtension {
        account: Some(account.to_owned()),
        ..JobExtension::default()
    }));
    job
}

/// Submits a job, and returns the first status that is reported of it.
async fn submit(world: &mut World, job: &UserJobRequest) -> JobStatusUpdate {
    world.facilitator.submit(job).await;
    loop {
        let update = world.facilitator.take().await;
        if update.uuid == job.uuid {
            return update;
        }
    }
}

fn refusal(update: JobStatusUpdate) -> (JobRejectionReason, String) {
    assert_eq!(update.status, JobStatus::Rejected, "{update:?}");
    let details = update.metadata.unwrap().job_rejection_details.unwrap();
    (details.reason, details.message)
}

/// A validator that takes jobs of `//Friend`, and those that `//Signer` signs for accounts.
async fn world(miner: &Miner) -> World {
    let mut world = World::in_real_time(&[miner]).await;
    let users = &mut world.config.users;
    users.allow_any = false;
    users.allow = [key("//Friend")].into();
    users.facilitators = [key(SIGNER)].into();
    world
}

#[tokio::test]
async fn a_facilitator_signs_no_hotkey_past_the_list_of_users() {
    let miner = Miner::open("//Miner").await;
    let mut world = world(&miner).await;
    world.start();
    world.facilitator.accept().await;
    let stranger = key("//Stranger").to_string();
    for (job, words) in [
        (signed_for(&stranger, 1), "does not take jobs of the account"),
        (job(SIGNER, 2), "without naming its account"),
        (job("//Stranger", 3), "does not take jobs of this user"),
    ] {
        let (reason, message) = refusal(submit(&mut world, &job).await);
        assert_eq!(reason, JobRejectionReason::InvalidSignature);
        assert!(message.contains(words), "{message}");
    }
    let friend = key("//Friend").to_string();
    for (n, account) in ["alice", &friend].into_iter().enumerate() {
        let taken = submit(&mut world, &signed_for(account, 10 + i64::try_from(n).unwrap())).await;
        assert_eq!(taken.status, JobStatus::Received, "{account}");
    }
}

#[tokio::test]
async fn an_account_behind_a_facilitator_has_a_budget_and_so_has_the_facilitator() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = world(&miner).await;
    world.config.users.budget.account_open_jobs = 1;
    world.config.users.budget.facilitator_open_jobs = 2;
    world.start();
    world.facilitator.accept().await;
    let first = signed_for("alice", 1);
    assert_eq!(submit(&mut world, &first).await.status, JobStatus::Received);
    let mut session = miner.accept().await;
    let attempt = session.begin().await;

    let (reason, message) = refusal(submit(&mut world, &signed_for("alice", 2)).await);
    assert_eq!(reason, JobRejectionReason::NoMinerForJob);
    assert!(message.contains("the account has 1 open jobs"), "{message}");
    // A job that is known is repeated, whatever the budget says.
    assert_ne!(submit(&mut world, &first).await.status, JobStatus::Rejected);
    let bobs = signed_for("bob", 3);
    assert_eq!(submit(&mut world, &bobs).await.status, JobStatus::Received);
    let (_, message) = refusal(submit(&mut world, &signed_for("carol", 4)).await);
    assert!(
        message.contains("the facilitator's accounts have 2 open jobs"),
        "{message}"
    );
    // A user who signs has no part in it.
    let own = submit(&mut world, &job("//Friend", 5)).await;
    assert_eq!(own.status, JobStatus::Received);

    session.complete(attempt).await;
    loop {
        let update = world.facilitator.take().await;
        if update.uuid == first.uuid && update.status.is_terminal() {
            break;
        }
    }
    let next = submit(&mut world, &signed_for("alice", 6)).await;
    assert_eq!(next.status, JobStatus::Received);
}

#[tokio::test]
async fn jobs_of_one_account_that_come_at_once_do_not_slip_past_its_budget() {
    let miner = Miner::open("//Miner").await;
    let mut world = world(&miner).await;
    world.config.users.budget.account_daily_jobs = 5;
    world.start();
    world.facilitator.accept().await;
    let jobs: Vec<_> = (1..=30).map(|n| signed_for("alice", n)).collect();
    for job in &jobs {
        world.facilitator.submit(job).await;
    }
    let mut first = std::collections::BTreeMap::new();
    while first.len() < jobs.len() {
        let update = world.facilitator.take().await;
        first.entry(update.uuid).or_insert(update.status);
    }
    let taken = first
        .values()
        .filter(|status| **status == JobStatus::Received)
        .count();
    assert_eq!(taken, 5, "{first:?}");
}
