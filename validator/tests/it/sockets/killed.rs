//! A validator that is killed, not stopped: its tasks end wherever they are, and the next process finds what was
//! committed.

use std::pin::pin;

use crate::sockets::support::World;
use crate::sockets::support::facilitator::{Facilitator, job};
use crate::sockets::support::miner::{Miner, MinerMemory, Session};
use muster_protocol::JobStatus;
use muster_protocol::wire::facilitator::{JobStatusUpdate, Response, ToFacilitator, UserJobRequest};
use muster_store::StoreError;
use muster_store::testing::stores;
use muster_testbed::{Cut, DatabaseRelay};
use muster_validator::Error;
use sqlx::migrate::Migrator;
use tokio::task::yield_now;

/// The validator is killed after this many frames between it and the others; a job has some fifteen.
const KILLED_AFTER: std::ops::Range<u32> = 1..15;

/// The frames that the facilitator and the miner have seen.
#[derive(Default)]
struct ObservedJob {
    frames: u32,
    statuses: Vec<JobStatus>,
    end: Option<JobStatusUpdate>,
}

impl ObservedJob {
    /// Goes on until the job has ended for its user or `frames` have passed.
    async fn go_on(
        &mut self,
        facilitator: &mut Facilitator,
        miner: &mut Miner,
        session: &mut Option<Session>,
        memory: &mut MinerMemory,
        frames: u32,
    ) {
        while self.end.is_none() && self.frames < frames {
            let message = {
                let mut miners = pin!(async {
                    match session {
                        Some(session) => session.next_message().await,
                        None => {
                            let mut greeted = miner.accept().await;
                            greeted.remind(memory).await;
                            session.insert(greeted).next_message().await
                        }
                    }
                });
                // A session that is being accepted is not dropped because the facilitator receives something meanwhile.
                loop {
                    tokio::select! {
                        biased;
                        update = facilitator.next_message() => {
                            // A validator that has ended says no more.
                            let Some(update) = update else {
                                return;
                            };
                            self.told(update, facilitator).await;
                            if self.end.is_some() || self.frames >= frames {
                                return;
                            }
                        }
                        message = &mut miners => break message,
                    }
                }
            };
            match (message, session.as_mut()) {
                (Some(message), Some(there)) => {
                    self.frames += 1;
                    there.follow(message, memory).await;
                }
                (None, _) | (Some(_), None) => *session = None,
            }
        }
    }

    async fn told(&mut self, message: ToFacilitator, facilitator: &mut Facilitator) {
        match message {
            ToFacilitator::V0JobStatusUpdate(update) => {
                self.frames += 1;
                self.statuses.push(update.status);
                facilitator.answer(&Response::success()).await;
                if update.status.is_terminal() {
                    self.end = Some(*update);
                }
            }
            ToFacilitator::V0Heartbeat(_)
            | ToFacilitator::MusterJobQueued(_)
            | ToFacilitator::MusterCapacity(_)
            | ToFacilitator::MusterMiner(_) => {}
            other @ (ToFacilitator::V0AuthenticationRequest(_)
            | ToFacilitator::V0MachineSpecsUpdate(_)
            | ToFacilitator::MusterChallengeResponse(_)
            | ToFacilitator::MusterJobLog(_)
            | ToFacilitator::MusterJobProgress(_)
            | ToFacilitator::MusterJobMetrics(_)
            | ToFacilitator::MusterJobCheckpoints(_)
            | ToFacilitator::MusterJobCheck(_)
            | ToFacilitator::MusterRefund(_)
            | ToFacilitator::MusterGateway(_)) => panic!("not expected here: {other:?}"),
        }
    }
}

async fn one_job_and_one_death(frames: u32, yields: u32) {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    let (mut observed, mut memory, mut session) = (ObservedJob::default(), MinerMemory::default(), None);
    let job: UserJobRequest = job("//User", 1);

    world.start_mortal();
    world.facilitator.accept().await;
    world.facilitator.submit(&job).await;
    observed
        .go_on(
            &mut world.facilitator,
            &mut miner,
            &mut session,
            &mut memory,
            frames,
        )
        .await;
    // Let the tasks run a little further before the kill.
    for _ in 0..yields {
        yield_now().await;
    }
    world.kill();
    let what = format!("killed after {frames} frames and {yields} turns");
    goes_on_after_its_end(&what, &job, &mut world, &mut miner, observed, memory).await;
}

/// Starts the validator again and lets the job come to its end.
async fn goes_on_after_its_end(
    what: &str,
    job: &UserJobRequest,
    world: &mut World,
    miner: &mut Miner,
    mut observed: ObservedJob,
    mut memory: MinerMemory,
) {
    let mut session = None;
    world.start_mortal();
    world.facilitator.accept().await;
    if observed.end.is_none() {
        // A facilitator that has seen no end submits the job again.
        world.facilitator.submit(job).await;
        observed
            .go_on(&mut world.facilitator, miner, &mut session, &mut memory, u32::MAX)
            .await;
    }
    let what = format!("{what}: {:?}", observed.statuses);
    let end = observed.end.expect("an end");
    assert_eq!(end.status, JobStatus::Completed, "{what}: {end:?}");
    assert_eq!(memory.runs, 1, "{what}");
    assert!(observed.statuses.contains(&JobStatus::Received), "{what}");
    let state = world.state().await;
    assert_eq!(state["jobs"][0]["status"], "completed", "{what}");
    assert_eq!(
        state["jobs"][0]["attempts"].as_array().map(Vec::len),
        Some(1),
        "{what}"
    );
    let finished: Vec<_> = state["receipts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|receipt| receipt["payload"]["receipt_type"] == "JobFinishedReceipt")
        .collect();
    assert_eq!(finished.len(), 1, "{what}");
    assert_eq!(finished[0]["payload"]["score_str"], "9.000000", "{what}");
}

#[tokio::test]
async fn a_validator_that_is_killed_anywhere_resumes_its_job() {
    for frames in KILLED_AFTER {
        // Seeded, so that the points differ for every number of frames and are the same in every run.
        let yields = frames.wrapping_mul(2_654_435_761) >> 22;
        one_job_and_one_death(frames, yields).await;
    }
}

/// A validator on PostgreSQL whose connection is lost at a commit. It ends, and its next process reads what was made.
async fn one_job_and_one_lost_commit(cut: Cut, pass: u32) -> u32 {
    let stores = stores(&Migrator::with_migrations(Vec::new())).await.unwrap();
    let postgres = stores.iter().find(|store| store.engine == "postgres").unwrap();
    let (relay, url) = DatabaseRelay::start(&postgres.url).unwrap();
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    world.config.store = url;
    let (mut observed, mut memory, mut session) = (ObservedJob::default(), MinerMemory::default(), None);
    let job: UserJobRequest = job("//User", 1);

    world.start_mortal();
    world.facilitator.accept().await;
    relay.cut(cut, pass);
    world.facilitator.submit(&job).await;
    observed
        .go_on(
            &mut world.facilitator,
            &mut miner,
            &mut session,
            &mut memory,
            u32::MAX,
        )
        .await;
    drop(session);
    let what = format!("{cut:?}, {pass} commits before it");
    if relay.cuts() == 0 {
        // The job has fewer commits.
        relay.spare();
        world.kill();
        return 0;
    }
    let ended = world.ended().await;
    let is_told = matches!(
        &ended,
        Err(Error::Store(
            StoreError::Unknown { .. } | StoreError::Query { .. }
        ))
    );
    assert!(is_told, "{what}: {ended:?}");
    goes_on_after_its_end(&what, &job, &mut world, &mut miner, observed, memory).await;
    relay.cuts()
}

#[tokio::test]
async fn a_leader_whose_renewal_is_answered_late_ends_itself() {
    let stores = stores(&Migrator::with_migrations(Vec::new())).await.unwrap();
    let postgres = stores.iter().find(|store| store.engine == "postgres").unwrap();
    let (relay, url) = DatabaseRelay::start(&postgres.url).unwrap();
    let mut world = World::in_real_time(&[]).await;
    world.config.store = url;
    world.start_mortal();
    world.facilitator.accept().await;
    relay.hold_answers();
    while world.facilitator.next_message().await.is_some() {}
    // The facilitator is told the reason, unless the process was gone before it could say it.
    let told = world.facilitator.close_reason();
    let is_right = told
        .as_deref()
        .is_none_or(|told| told.contains("leads the validator no longer"));
    assert!(is_right, "{told:?}");
    let ended = world.ended().await;
    assert!(
        matches!(ended, Err(Error::Store(StoreError::LeaseLost))),
        "{ended:?}"
    );
}

#[tokio::test]
async fn a_validator_whose_commit_is_not_answered_reads_what_was_made_and_repeats_nothing() {
    let mut cuts = 0;
    for pass in 0..8 {
        cuts += one_job_and_one_lost_commit(Cut::AfterCommit, pass).await;
    }
    for pass in [0, 3] {
        cuts += one_job_and_one_lost_commit(Cut::BeforeCommit, pass).await;
    }
    assert!(cuts >= 6, "{cuts} connections were cut");
}
