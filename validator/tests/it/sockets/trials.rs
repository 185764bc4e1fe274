//! Trials: after failures that users' jobs may have provoked the validator runs its known image at the miner, and only
//! what the miner does with that keeps it from jobs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_process::Tasks;
use muster_protocol::status::{HordeFailureReason, JobStatus};
use muster_protocol::wire::validator_socket::ValidatorToMiner;
use muster_protocol::{ReceiptPayload, wire::facilitator::StatusMetadata};
use muster_validator::TrialConfig;
use tokio::sync::mpsc;

use crate::sockets::faults::{Stage, bring_to};
use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::Miner;
use crate::sockets::support::{World, while_time_passes, within};

/// The known image.
const KNOWN: &str = "known@sha256:1";

/// The executors of the miner: a trial takes one beside the users' jobs.
const EXECUTORS: u32 = 4;

/// An end at the miner: its image, and whether its receipt said that it was organic, and its pay.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    image: String,
    is_organic: bool,
    pay: String,
}

/// A miner that takes every job. Its executor fails those of users if `fails_users`, and every one if `is_broken`.
#[derive(Clone, Default)]
struct Engine {
    fails_users: Arc<AtomicBool>,
    is_broken: Arc<AtomicBool>,
}

impl Engine {
    async fn serve(self, mut miner: Miner, ends: mpsc::UnboundedSender<Ended>) {
        loop {
            let mut session = miner.accept_whenever(EXECUTORS).await;
            let mut offers = BTreeMap::new();
            while let Some(message) = session.listen().await {
                match message {
                    ValidatorToMiner::V0InitialJobRequest(offer) => {
                        session.take_up(&offer).await;
                        let id = offer.job_uuid;
                        let is_organic = offer.job_started_receipt_payload.is_organic;
                        offers.insert(id, (offer.docker_image.unwrap(), is_organic));
                        session.accept_job(id).await;
                    }
                    ValidatorToMiner::V0JobAcceptedReceiptRequest(request) => {
                        let id = request.payload.job_uuid;
                        session
                            .countersign(ReceiptPayload::Accepted(request.payload), request.signature)
                            .await;
                        session.executor_ready(id).await;
                    }
                    ValidatorToMiner::V0JobRequest(job) => {
                        let fails_users =
                            self.fails_users.load(Ordering::SeqCst) && offers[&job.job_uuid].0 != KNOWN;
                        if fails_users || self.is_broken.load(Ordering::SeqCst) {
                            let reason = HordeFailureReason::ExecutorSpinupFailed;
                            session.horde_failed_by(job.job_uuid, reason, None).await;
                        } else {
                            session.complete(job.job_uuid).await;
                        }
                    }
                    ValidatorToMiner::V0JobFinishedReceiptRequest(request) => {
                        let (image, is_organic) = offers[&request.payload.job_uuid].clone();
                        let ended = Ended {
                            image,
                            is_organic,
                            pay: request.payload.score_str.clone(),
                        };
                        session
                            .countersign(ReceiptPayload::Finished(request.payload), request.signature)
                            .await;
                        // The test may be over.
                        let _ = ends.send(ended);
                    }
                    other @ (ValidatorToMiner::ValidatorAuthForMiner(_)
                    | ValidatorToMiner::V0MainHotkeyMessage(_)
                    | ValidatorToMiner::GenericError(_)
                    | ValidatorToMiner::MusterCancelJob(_)
                    | ValidatorToMiner::MusterWhitelist(_)
                    | ValidatorToMiner::MusterAudit(_)
                    | ValidatorToMiner::MusterCheckpointKept(_)
                    | ValidatorToMiner::MusterDrain(_)) => panic!("not about a job: {other:?}"),
                }
            }
        }
    }
}

/// The end at the miner that comes next.
async fn ended(ends: &mut mpsc::UnboundedReceiver<Ended>) -> Ended {
    within("an end at the miner", ends.recv()).await.unwrap()
}

fn of_trial() -> Ended {
    Ended {
        image: KNOWN.to_owned(),
        is_organic: true,
        pay: "0.000000".to_owned(),
    }
}

/// Submits a user's job that does not wait; returns its last status.
async fn submit(world: &mut World, at: i64) -> (JobStatus, StatusMetadata) {
    world.facilitator.submit(&job("//User", at)).await;
    // A job that may not wait is looked at again when the clock has moved.
    let to_the_end = world.facilitator.updates_to_the_end();
    let (statuses, end) = while_time_passes(&world.test_clock, "the end of a job", to_the_end).await;
    (*statuses.last().unwrap(), end.metadata.unwrap())
}

fn with_trials(mut world: World) -> World {
    world.config.queue.default_s = 0;
    world.config.timing.linger_s = 3_600;
    world.config.routing.trial = TrialConfig {
        image: Some(KNOWN.to_owned()),
        args: Vec::new(),
    };
    world
}

/// The reason for which the only miner is left out.
fn exclusion(end: StatusMetadata) -> serde_json::Value {
    let context = end.job_rejection_details.unwrap().context.unwrap();
    context["excluded"][1]["reason"].clone()
}

#[tokio::test]
async fn the_only_miner_is_benched_by_its_failed_trials_and_by_no_job_of_a_user() {
    let miner = Miner::open("//Miner").await;
    let mut world = with_trials(World::new(&[&miner]).await);
    world.be_patient();
    let (engine, miners) = (Engine::default(), Tasks::new());
    let (report, mut ends) = mpsc::unbounded_channel();
    drop(miners.spawn("a miner", engine.clone().serve(miner, report)));
    world.start();
    world.facilitator.accept().await;
    let mut at = 0;
    let mut next = || {
        at += 1;
        at
    };

    // Images whose failures no row of the executor's table knows: the miner passes its trials and stays.
    engine.fails_users.store(true, Ordering::SeqCst);
    for _ in 0..5 {
        assert_eq!(submit(&mut world, next()).await.0, JobStatus::HordeFailed);
    }
    engine.fails_users.store(false, Ordering::SeqCst);
    assert_eq!(submit(&mut world, next()).await.0, JobStatus::Completed);
    // A trial may come before the end of the job that it follows; several jobs share one.
    let (mut trials, mut paid) = (0, 0);
    while trials == 0 || paid == 0 {
        let ended = ended(&mut ends).await;
        trials += u32::from(ended == of_trial());
        paid += u32::from(ended.pay == "9.000000");
    }

    // Every failure before is forgotten.
    world.test_clock.advance(Duration::from_secs(601));
    engine.is_broken.store(true, Ordering::SeqCst);
    while ends.try_recv().is_ok() {}
    let end = loop {
        let (status, end) = submit(&mut world, next()).await;
        if status != JobStatus::HordeFailed {
            break end;
        }
        world.test_clock.advance(Duration::from_secs(20));
    };
    assert_eq!(exclusion(end), "it failed this validator's own trials lately");
    let mut failed_trials = 0;
    while failed_trials < 2 {
        failed_trials += u32::from(ended(&mut ends).await == of_trial());
    }

    // A restart forgets neither the bench nor that the miner has to be tried again.
    world.stop().await;
    world.start();
    world.facilitator.accept().await;
    let (status, end) = submit(&mut world, next()).await;
    assert_eq!(status, JobStatus::Rejected);
    assert_eq!(exclusion(end), "it failed this validator's own trials lately");
    engine.is_broken.store(false, Ordering::SeqCst);
    let after = within("the end of the bench", async {
        loop {
            world.test_clock.advance(Duration::from_secs(60));
            let (status, _) = submit(&mut world, next()).await;
            if status != JobStatus::Rejected {
                return status;
            }
        }
    });
    assert_eq!(after.await, JobStatus::Completed);
    miners.shutdown();
}

#[tokio::test]
async fn a_miner_that_is_lost_is_benched_by_its_failed_trials() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = with_trials(World::new(&[&miner]).await);
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept_with(EXECUTORS).await;
    bring_to(Stage::VolumesReady, &mut world, &mut session).await;
    miner.server.close();
    drop(session);

    let end = while_time_passes(&world.test_clock, "the end", world.facilitator.take()).await;
    assert_eq!(end.status, JobStatus::HordeFailed);
    let mut at = 1;
    let rejected = loop {
        at += 1;
        world.facilitator.submit(&job("//User", at)).await;
        world.facilitator.expect(JobStatus::Received).await;
        let end = while_time_passes(&world.test_clock, "an end", world.facilitator.take()).await;
        if end.status == JobStatus::Rejected {
            break end;
        }
        assert_eq!(end.status, JobStatus::HordeFailed);
    };
    let reason = exclusion(rejected.metadata.unwrap());
    assert_eq!(reason, "it failed this validator's own trials lately");
}
