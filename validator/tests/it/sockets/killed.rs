//! A validator that is killed, not stopped: its tasks end wherever they are, and the next process finds what was
//! committed.

use std::pin::pin;

use crate::sockets::support::World;
use crate::sockets::support::facilitator::{Facilitator, job};
use crate::sockets::support::miner::{Miner, MinerMemory, Session};
use muster_protocol::JobStatus;
use muster_protocol::wire::facilitator::{JobStatusUpdate, Response, ToFacilitator, UserJobRequest};
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
                            self.told(update.expect("the validator is there"), facilitator).await;
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
    session = None;

    world.start_mortal();
    world.facilitator.accept().await;
    if observed.end.is_none() {
        // A facilitator that has seen no end submits the job again.
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
    }
    let what = format!(
        "killed after {frames} frames and {yields} turns: {:?}",
        observed.statuses
    );
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
