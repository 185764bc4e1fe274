//! The facilitator is notified of the subnet's offers. Jobs with private images pass over miners and executors that do
//! not know them.

use std::time::Duration;

use muster_identity::{Keypair, seal_credentials, sign_job};
use muster_process::Clock as _;
use muster_protocol::job::RegistryCredentials;
use muster_protocol::status::{JobRejectionReason, JobStatus};
use muster_protocol::wire::facilitator::{ToFacilitator, UserJobRequest};
use muster_protocol::wire::machines::{MAX_MACHINE_TEXT, MAX_MACHINES, MachineLoad, MachinesNotice};
use muster_protocol::wire::muster::{CapacityNotice, JobExtension, OfferedClass};
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{AttemptId, ExecutorClass, Feature, FeatureSet, Manifest, MinerKey, Timestamp};

use crate::sockets::support::miner::Miner;
use crate::sockets::support::{World, while_time_passes};

const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

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

/// A job whose image comes with the user's login at its registry.
fn private_job(world: &World, user: &str, at: i64) -> UserJobRequest {
    let mut job = job(user, at);
    let login = RegistryCredentials {
        username: "me".to_owned(),
        password: "secret".to_owned(),
    };
    let sealed = seal_credentials(world.keypair.hotkey(), &job.docker_image, &login).unwrap();
    job.muster = Some(Box::new(JobExtension {
        registry: Some(sealed),
        ..JobExtension::default()
    }));
    job.signature = sign_job(&Keypair::from_uri(user).unwrap(), &job.signed_fields(), at);
    job
}

fn offer(notice: &CapacityNotice) -> &OfferedClass {
    let [offer] = notice.classes.as_slice() else {
        panic!("one class: {notice:?}")
    };
    assert_eq!(offer.class, CLASS);
    offer
}

/// A world whose sessions with miners last.
async fn lasting(miners: &[&Miner]) -> World {
    let mut world = World::new(miners).await;
    world.config.timing.linger_s = 600;
    world
}

/// Runs a job to its end, so that the miner's manifest and features are known.
async fn run_one(
    world: &mut World,
    miner: &mut Miner,
    executors: u32,
) -> crate::sockets::support::miner::Session {
    world.facilitator.submit(&job("//Scout", 1)).await;
    let mut session = miner.accept_with(executors).await;
    let id = session.begin().await;
    session.complete(id).await;
    session.paid().await;
    world.facilitator.updates_to_the_end().await;
    session
}

#[tokio::test]
async fn a_facilitator_is_told_what_is_free_when_that_changes_and_once_a_minute() {
    let mut miner = Miner::open("//Miner").await;
    miner.private_images = Some(Manifest::new([(CLASS, 1)]));
    let mut world = lasting(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    let mut session = run_one(&mut world, &mut miner, 2).await;
    let clock = world.test_clock.clone();
    let told = async |world: &mut World, is: &dyn Fn(&OfferedClass) -> bool| {
        let looking = async {
            loop {
                let notice = world.facilitator.capacity().await;
                if notice.classes.iter().any(is) {
                    return notice;
                }
            }
        };
        while_time_passes(&clock, "a capacity", looking).await
    };
    let notice = told(&mut world, &|offer| offer.free == 2).await;
    let first = offer(&notice);
    assert_eq!((first.miners, first.executors, first.running), (1, 2, 0));
    assert_eq!((first.private_images, first.waiting), (1, 0));
    assert_eq!(first.hardware.as_deref(), Some("8 cores"));
    assert_eq!((first.next[0].ahead, first.next[0].estimate_s), (0, Some(0)));
    assert_eq!(notice.limits.queue_default_s, 3_600);

    // Both executors take jobs, and two of one user's wait.
    for at in 2..=5 {
        world.facilitator.submit(&job("//Alice", at)).await;
        if at <= 3 {
            session.begin().await;
        }
    }
    let notice = told(&mut world, &|offer| offer.waiting == 2 && offer.running == 2).await;
    let busy = offer(&notice);
    assert_eq!((busy.free, busy.why.as_str()), (0, "all 2 executors are at work"));
    // Another user is behind the first of them, the same one behind both.
    let ahead: Vec<_> = busy.next.iter().map(|place| place.ahead).collect();
    assert_eq!(ahead, [1, 2, 2]);
    assert!(
        busy.next.iter().all(|place| place.estimate_s.is_some()),
        "{busy:?}"
    );

    // Nothing changes, and it is notified again after a minute.
    let before = clock.now();
    let again = while_time_passes(&clock, "the same capacity again", world.facilitator.capacity()).await;
    assert_eq!(again, notice);
    let waited = clock.now().since(before);
    assert!(waited >= Duration::from_secs(50), "told again after {waited:?}");
}

#[tokio::test]
async fn the_facilitator_and_the_operator_are_told_of_the_miners_machines() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = lasting(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    let mut session = run_one(&mut world, &mut miner, 2).await;
    let load = MachineLoad {
        name: "box\u{1b}[2J".repeat(1_000),
        class: CLASS,
        at: Timestamp::from_secs(1),
        cpu_permille: 250,
        memory_total: 4,
        memory_used: 3,
        disk_total: 2,
        disk_used: 1,
        gpus: 0,
        gpu_percent: 0,
        gpu_memory_total: 0,
        gpu_memory_used: 0,
    };
    let machines = vec![load; 1_000];
    session
        .send(MinerToValidator::MusterMachines(Box::new(MachinesNotice {
            machines,
        })))
        .await;
    let clock = world.test_clock.clone();
    let looking = async {
        loop {
            let notice = world.facilitator.miner().await;
            if !notice.claims.machines.is_empty() && !notice.claims.specs.is_empty() {
                return notice;
            }
        }
    };
    let notice = while_time_passes(&clock, "a notice about the miner", looking).await;
    assert_eq!(
        notice.miner,
        MinerKey(Keypair::from_uri("//Miner").unwrap().hotkey())
    );
    assert!(notice.proven.is_empty(), "nothing was graded: {notice:?}");
    let claims = &notice.claims;
    assert_eq!((claims.specs[0].cores, claims.offers[0].executors), (8, 2));
    assert_eq!(
        (claims.machines.len(), claims.machines[0].name.len()),
        (MAX_MACHINES, MAX_MACHINE_TEXT)
    );
    let listed = world.get("/v0/miners").await;
    assert_eq!(listed["miners"][0]["claims"], serde_json::json!(claims));
    assert_eq!(listed["miners"][0]["proven"], serde_json::json!([]));
}

#[tokio::test]
async fn a_facilitator_without_the_feature_is_told_nothing() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = lasting(&[&miner]).await;
    let old = [Feature::Terms, Feature::Queue]
        .into_iter()
        .collect::<FeatureSet>();
    world.facilitator.show_features(old);
    world.start();
    world.facilitator.accept().await;
    let _session = run_one(&mut world, &mut miner, 1).await;
    let clock = world.test_clock.clone();
    // Two heartbeats, far longer than between two capacities.
    for _ in 0..2 {
        let next = while_time_passes(&clock, "a heartbeat", world.facilitator.receive()).await;
        assert!(matches!(next, ToFacilitator::V0Heartbeat(_)), "{next:?}");
    }
}

#[tokio::test]
async fn a_private_image_goes_to_the_miner_that_knows_it_and_an_old_miner_is_passed_over_by_name() {
    let (mut old, mut new) = (Miner::open("//Old").await, Miner::open("//New").await);
    old.server.show_features([Feature::Terms].into_iter().collect());
    let mut world = lasting(&[&old, &new]).await;
    world.start();
    world.facilitator.accept().await;
    // Each runs a job, so that their features are known.
    let mut sessions = Vec::new();
    for at in 1..=2 {
        world.facilitator.submit(&job("//Scout", at)).await;
    }
    for miner in [&mut old, &mut new] {
        let mut session = miner.accept().await;
        let id = session.begin().await;
        session.complete(id).await;
        session.paid().await;
        sessions.push(session);
    }
    for _ in 0..2 {
        world.facilitator.updates_to_the_end().await;
    }
    let private = private_job(&world, "//Alice", 9);
    world.facilitator.submit(&private).await;
    let offered = sessions[1].offer().await;
    assert_eq!(offered.job_uuid, AttemptId::first_of(private.uuid));
    assert!(offered.muster.unwrap().registry.is_some());
    let routes = world.get(&format!("/v0/jobs/{}/route", private.uuid)).await;
    let excluded = routes["routes"][0]["excluded"].to_string();
    assert!(excluded.contains("no_private_images"), "{routes}");
}

#[tokio::test]
async fn a_private_image_that_no_executor_takes_is_refused_at_once_and_told_what_would_fit() {
    let mut miner = Miner::open("//Miner").await;
    miner.private_images = Some(Manifest::default());
    let mut world = lasting(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    let mut session = run_one(&mut world, &mut miner, 2).await;
    let refused = async |world: &mut World, at: i64| {
        let private = private_job(world, "//Alice", at);
        world.facilitator.submit(&private).await;
        world.facilitator.expect(JobStatus::Received).await;
        let end = world.facilitator.expect(JobStatus::Rejected).await;
        assert_eq!(end.uuid, private.uuid);
        end.metadata.unwrap().job_rejection_details.unwrap()
    };
    let details = refused(&mut world, 1).await;
    assert_eq!(details.reason, JobRejectionReason::NoMinerForJob);
    assert_eq!(
        details.message,
        "no miner of this subnet can take a job of class always_on.test with a private image: offered are 2 of \
         always_on.test; none of these is known to take private images; use an image that its registry gives to everybody"
    );
    let context = details.context.unwrap();
    assert_eq!(context["private_images"]["always_on.test"], 0);
    let reasons = context["excluded"].to_string();
    assert!(
        reasons.contains("no executor of this class there knows private-images"),
        "{reasons}"
    );

    // Not even while other jobs wait, since none of them is what it waits for.
    for at in 2..=4 {
        world.facilitator.submit(&job("//Bob", at)).await;
        if at <= 3 {
            session.begin().await;
        }
    }
    world
        .until_queue("a job to wait", |queue| queue["lines"][0]["waiting"] == 1)
        .await;
    let mut statuses = Vec::new();
    let private = private_job(&world, "//Alice", 9);
    world.facilitator.submit(&private).await;
    while !statuses.contains(&JobStatus::Rejected) {
        let update = world.facilitator.take().await;
        if update.uuid == private.uuid {
            statuses.push(update.status);
        }
    }
    assert_eq!(statuses, [JobStatus::Received, JobStatus::Rejected]);
}

#[tokio::test]
async fn a_private_image_waits_for_its_miner_and_others_pass_it_meanwhile() {
    let (mut old, mut new) = (Miner::open("//Old").await, Miner::open("//New").await);
    old.server.show_features(FeatureSet::NONE);
    let mut world = lasting(&[&old, &new]).await;
    world.start();
    world.facilitator.accept().await;
    for at in 1..=2 {
        world.facilitator.submit(&job("//Scout", at)).await;
    }
    let (mut on_old, mut on_new) = (old.accept().await, new.accept().await);
    let (first, held) = (on_old.begin().await, on_new.begin().await);
    let private = private_job(&world, "//Alice", 9);
    world.facilitator.submit(&private).await;
    let everybodys = job("//Bob", 9);
    world.facilitator.submit(&everybodys).await;
    world
        .until_queue("both jobs to wait", |queue| queue["lines"][0]["waiting"] == 2)
        .await;
    // The old miner is free: it gets the job behind the private one.
    on_old.complete(first).await;
    on_old.paid().await;
    assert_eq!(
        on_old.offer().await.job_uuid,
        AttemptId::first_of(everybodys.uuid)
    );
    on_new.complete(held).await;
    on_new.paid().await;
    assert_eq!(on_new.offer().await.job_uuid, AttemptId::first_of(private.uuid));
}
