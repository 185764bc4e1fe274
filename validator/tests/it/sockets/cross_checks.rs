//! Jobs that run again on the validator's own miner: users' drawn and reported ones, and the validator's own.

use std::collections::BTreeSet;
use std::convert::Infallible;

use muster_cross_checks::OwnProgram;
use muster_identity::{Keypair, sign_job, sign_request, sign_terms};
use muster_protocol::job::JobTerms;
use muster_protocol::wire::checks::{CheckOrigin, CheckState};
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{CheatReport, CheatReportTag, JobCheatedTag, UserJobRequest};
use muster_protocol::wire::miner::{InitialJobRequest, JobRequest};
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::wire::validator_socket::ValidatorToMiner;
use muster_protocol::{AttemptId, ExecutorClass, JobId, JobStatus, MinerKey};
use muster_scoring::ScoringSnapshot;
use muster_validator::TrustedMinerConfig;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::{Miner, Session};
use crate::sockets::support::{World, within};

const RIGHT: &str = "cmlnaHQ=";
const WRONG: &str = "d3Jvbmc=";

/// A world whose validator runs every deterministic job again on a miner of its own.
async fn world_of(ordinary: &Miner, trusted: &Miner) -> World {
    let mut world = World::in_real_time(&[ordinary]).await;
    world.config.trusted_miner = TrustedMinerConfig {
        hotkey: Some(trusted.key()),
        address: Some(trusted.server.address),
        certificate: None,
    };
    world.config.cross_checks.share_ppm = 1_000_000;
    world
}

/// A job that declares itself deterministic.
fn deterministic(user: &str, at: i64) -> UserJobRequest {
    let mut request = job(user, at);
    let terms = JobTerms {
        deterministic: true,
        ..JobTerms::default()
    };
    let pair = Keypair::from_uri(user).unwrap();
    request.muster = Some(Box::new(JobExtension {
        signature: Some(sign_terms(&pair, &terms, &request.signed_digest())),
        terms: Some(terms),
        ..JobExtension::default()
    }));
    request
}

/// The same job with what the test changed in it, signed again.
fn sign_again(user: &str, mut request: UserJobRequest, at: i64) -> UserJobRequest {
    let pair = Keypair::from_uri(user).unwrap();
    request.signature = sign_job(&pair, &request.signed_fields(), at);
    let (terms, digest) = (request.terms(), request.signed_digest());
    if let Some(extension) = &mut request.muster {
        extension.signature = Some(sign_terms(&pair, &terms, &digest));
    }
    request
}

/// Runs one attempt to its end with this artifact; returns the offer and the job that the miner got.
async fn run_on(miner: &mut Miner, artifact: &str) -> (InitialJobRequest, JobRequest) {
    let mut session = miner.accept().await;
    let (offer, job) = begin(&mut session).await;
    end(&mut session, offer.job_uuid, artifact).await;
    (offer, job)
}

async fn begin(session: &mut Session) -> (InitialJobRequest, JobRequest) {
    let offer = session.offer().await;
    let id = offer.job_uuid;
    session.accept_job(id).await;
    session.accepted_receipt().await;
    session.executor_ready(id).await;
    let job = session.job().await;
    (offer, job)
}

async fn end(session: &mut Session, id: AttemptId, artifact: &str) -> String {
    session.volumes_ready(id).await;
    session.execution_done(id).await;
    session.finished_with(id, "took some time\n", artifact).await;
    session.paid().await
}

/// Runs a user's job on the subnet with this artifact.
async fn run_job(
    world: &mut World,
    miner: &mut Miner,
    job: &UserJobRequest,
    artifact: &str,
) -> (InitialJobRequest, JobRequest) {
    world.facilitator.submit(job).await;
    let ran = run_on(miner, artifact).await;
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::Completed));
    ran
}

async fn view_of(world: &World, job: JobId) -> Value {
    let view = world.get("/v0/audits/cross-checks").await;
    let checks = view["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["job"] == job.to_string());
    found.unwrap_or_else(|| panic!("{job} is not in {view}")).clone()
}

#[tokio::test]
async fn a_drawn_job_whose_outputs_agree_ends_after_one_run_and_the_miner_is_not_told() {
    let (mut ordinary, mut trusted) = (Miner::open("//Miner").await, Miner::open("//Trusted").await);
    let mut world = world_of(&ordinary, &trusted).await;
    world.start();
    world.facilitator.accept().await;
    let job = deterministic("//User", 1);
    let (offer, told) = run_job(&mut world, &mut ordinary, &job, RIGHT).await;
    for text in [encode(&offer), encode(&told)] {
        assert!(!text.contains("deterministic"), "{text}");
    }
    world.chain.seal_to(40);
    let pending = world.facilitator.check_of(job.uuid).await;
    assert_eq!(
        (pending.state, pending.origin),
        (CheckState::Pending, CheckOrigin::Drawn)
    );
    let (again, rerun) = run_on(&mut trusted, RIGHT).await;
    assert_eq!(
        (&again.volume, &rerun.docker_run_cmd),
        (&offer.volume, &told.docker_run_cmd)
    );
    let verdict = world.facilitator.verdict_of(job.uuid).await;
    assert_eq!(verdict.state, CheckState::Agrees, "{verdict:?}");
    assert_eq!(
        verdict.outputs.len(),
        1,
        "standard output may differ: {verdict:?}"
    );
    let view = view_of(&world, job.uuid).await;
    assert_eq!(
        (&view["state"], &view["runs"]),
        (&json!("agrees"), &json!(1)),
        "{view}"
    );
    assert_eq!(
        view["draw"].as_str().unwrap().len(),
        192,
        "the proof of the draw: {view}"
    );
    assert_eq!(view["miner"], ordinary.key().to_string());
    // The run is no job of the user's.
    world.updates_waiting(0).await;
    world.stop().await;
}

/// Three users collude: their program tells machines apart, so an honest miner's outputs differ from those of the
/// validator's own miner.
#[tokio::test]
async fn three_users_with_a_program_that_tells_machines_apart_lower_nobodys_quality() {
    let (mut honest, mut trusted) = (Miner::open("//Miner").await, Miner::open("//Trusted").await);
    let mut world = world_of(&honest, &trusted).await;
    world.start();
    world.facilitator.accept().await;
    world.chain.seal_to(12);
    world.seen(12).await;
    for (user, number) in ["//A", "//B", "//C"].into_iter().zip(1_i64..) {
        let job = deterministic(user, number);
        run_job(&mut world, &mut honest, &job, WRONG).await;
        world.chain.seal_to(12 + 15 * u64::try_from(number).unwrap());
        run_on(&mut trusted, RIGHT).await;
        if number == 1 {
            run_on(&mut trusted, RIGHT).await;
        }
        let verdict = world.facilitator.verdict_of(job.uuid).await;
        let expected = if number == 1 {
            CheckState::Differs
        } else {
            assert!(verdict.reason.contains("tell machines apart"), "{verdict:?}");
            CheckState::Unproven
        };
        assert_eq!(verdict.state, expected, "{verdict:?}");
    }
    // Another image is checked as before.
    let mut other = deterministic("//A", 4);
    other.docker_image = "another@sha256:2".to_owned();
    let other = sign_again("//A", other, 4);
    run_job(&mut world, &mut honest, &other, WRONG).await;
    world.chain.seal_to(72);
    run_on(&mut trusted, RIGHT).await;
    run_on(&mut trusted, RIGHT).await;
    let verdict = world.facilitator.verdict_of(other.uuid).await;
    assert_eq!(verdict.state, CheckState::Differs, "{verdict:?}");
    let results = world.get("/v0/audits/cross-checks").await["coldkeys"].clone();
    assert_eq!(results, json!([]), "users' jobs are no evidence");
    assert_eq!(snapshot_of(&world).await.quality, []);
    world.stop().await;
}

/// The snapshot of the newest cycle that was scored after block 60.
async fn snapshot_of(world: &World) -> ScoringSnapshot {
    world.chain.seal_to(90);
    let state = world
        .until("a scored cycle", |state| {
            let cycles = state["cycles"].as_array().cloned().unwrap_or_default();
            cycles.iter().any(|row| row["last_block"].as_u64() >= Some(60))
        })
        .await;
    let newest = state["cycles"]
        .as_array()
        .unwrap()
        .iter()
        .max_by_key(|row| row["number"].as_u64())
        .unwrap();
    let digest = newest["snapshot"].as_str().unwrap();
    let served = world.get(&format!("/v0/scoring-snapshots/{digest}")).await;
    ScoringSnapshot::parse(&served.to_string()).unwrap()
}

/// An attempt that a miner has completed: what it was sent, and its pay.
struct Completed {
    miner: MinerKey,
    offer: InitialJobRequest,
    job: JobRequest,
    paid: String,
}

/// Completes every attempt at this miner with this artifact, one after the other.
async fn serve(mut miner: Miner, artifact: &str, completed: mpsc::UnboundedSender<Completed>) -> Infallible {
    loop {
        let mut session = miner.accept_whenever(1).await;
        let (offer, job) = begin(&mut session).await;
        let paid = end(&mut session, offer.job_uuid, artifact).await;
        let miner = miner.key();
        let attempt = Completed {
            miner,
            offer,
            job,
            paid,
        };
        completed.send(attempt).unwrap();
    }
}

/// Seals a block, and waits until the validator has seen it.
async fn seal_one(world: &World) {
    let block = world.chain.height() + 1;
    world.chain.seal_to(block);
    world.seen(block).await;
}

/// The messages of an attempt that a miner is sent, without what two jobs of one user differ in.
fn seen_form(offer: &InitialJobRequest, job: &JobRequest) -> (Value, Value) {
    let (mut offer, mut job) = (json!(offer), json!(job));
    let kept = offer["volume"]["volumes"][0]["relative_path"].clone();
    assert_eq!(
        kept,
        json!(null),
        "inputs stand in a list of one archive: {offer}"
    );
    for own in [
        "job_uuid",
        "volume",
        "job_started_receipt_signature",
        "docker_image",
    ] {
        offer.as_object_mut().unwrap().remove(own);
    }
    let receipt = offer["job_started_receipt_payload"].as_object_mut().unwrap();
    for own in ["job_uuid", "miner_hotkey", "timestamp"] {
        receipt.remove(own);
    }
    for own in ["job_uuid", "docker_image", "docker_run_cmd", "env"] {
        job.as_object_mut().unwrap().remove(own);
    }
    (offer, job)
}

#[tokio::test]
async fn an_own_job_looks_like_a_users_and_a_third_coldkey_confirms_its_difference() {
    let (cheat, honest) = (Miner::open("//Cheat").await, Miner::open("//Honest").await);
    let trusted = Miner::open("//Trusted").await;
    let mut world = world_of_own_jobs(&[&cheat, &honest], &trusted).await;
    world.start();
    world.facilitator.accept().await;
    let keys = [cheat.key(), honest.key()];
    let (completed, attempts) = mpsc::unbounded_channel();
    let serving = async {
        tokio::join!(
            serve(cheat, WRONG, completed.clone()),
            serve(honest, RIGHT, completed.clone()),
            serve(trusted, RIGHT, completed.clone())
        )
    };
    tokio::select! {
        _ = serving => unreachable!("miners serve without an end"),
        () = cheat_until_it_shows(&mut world, keys, attempts) => {}
    }
    // No facilitator hears of the validator's own jobs, and no list of users' checks shows them.
    world.updates_waiting(0).await;
    assert_eq!(world.get("/v0/audits/cross-checks").await["checks"], json!([]));
    world.stop().await;
}

/// A world whose validator makes deterministic jobs of its own, and runs none of users' again.
async fn world_of_own_jobs(miners: &[&Miner], trusted: &Miner) -> World {
    let mut world = World::in_real_time(miners).await;
    world.config.trusted_miner = TrustedMinerConfig {
        hotkey: Some(trusted.key()),
        address: Some(trusted.server.address),
        certificate: None,
    };
    world.config.cross_checks.share_ppm = 0;
    world.config.cross_checks.own_jobs_per_day = 96;
    let program = OwnProgram {
        class: ExecutorClass::AlwaysOnTest,
        image: "own@sha256:3".to_owned(),
        args: vec!["--seed={number}".to_owned()],
        env: [("A".to_owned(), "2".to_owned())].into_iter().collect(),
        artifacts_dir: None,
        input_file: Some("data".to_owned()),
        seconds: 3,
    };
    world.config.cross_checks.programs = [("sum".to_owned(), program)].into();
    world
}

/// Has both miners run users' jobs, and seals blocks until an own job at the first one has a verdict.
async fn cheat_until_it_shows(
    world: &mut World,
    [cheat, honest]: [MinerKey; 2],
    mut attempts: mpsc::UnboundedReceiver<Completed>,
) {
    let (mut served, mut of_user) = (BTreeSet::new(), None);
    for number in 1..30 {
        world.facilitator.submit(&job("//User", number)).await;
        world.facilitator.updates_to_the_end().await;
        let attempt = within("a user's job", attempts.recv()).await.unwrap();
        served.insert(attempt.miner);
        of_user = Some((seen_form(&attempt.offer, &attempt.job), attempt.paid));
        if served.len() == 2 {
            break;
        }
    }
    let of_user = of_user.unwrap();
    let mut result = Value::Null;
    within("a difference", async {
        while result.is_null() {
            seal_one(world).await;
            let shown = world.get("/v0/audits/cross-checks").await["coldkeys"].clone();
            let results = shown.as_array().unwrap().iter();
            let of_cheat = results
                .filter(|one| one["coldkey"] == cheat.to_string())
                .find(|one| one["differing"] != 0);
            result = of_cheat.cloned().unwrap_or_default();
        }
    })
    .await;
    assert_eq!(
        (&result["confirmed"], &result["quality_per_mille"]),
        (&json!(0), &json!(1_000)),
        "it waits for its repeat: {result}"
    );
    let mut own = Vec::new();
    while let Ok(attempt) = attempts.try_recv() {
        own.push(attempt);
    }
    let subnets = own.iter().filter(|one| [cheat, honest].contains(&one.miner));
    for attempt in subnets {
        assert_eq!(attempt.offer.docker_image.as_deref(), Some("own@sha256:3"));
        let form = seen_form(&attempt.offer, &attempt.job);
        assert_eq!((form, attempt.paid.clone()), of_user);
    }
    // The honest miner was the third coldkey: it got the inputs of a job of the cheat's, later.
    let inputs = |one: &Completed| (one.offer.volume.clone(), one.job.docker_run_cmd.clone());
    let first = |miner: MinerKey, of: &Completed| {
        own.iter()
            .position(|one| one.miner == miner && inputs(one) == inputs(of))
    };
    let confirmed = own.iter().filter(|one| one.miner == cheat).any(|one| {
        first(honest, one).is_some_and(|witness| first(cheat, one).is_some_and(|subject| subject < witness))
    });
    assert!(confirmed, "no third coldkey ran the job");
}

#[tokio::test]
async fn a_job_that_differs_from_itself_is_no_fault_of_the_miner() {
    let (mut ordinary, mut trusted) = (Miner::open("//Miner").await, Miner::open("//Trusted").await);
    let mut world = world_of(&ordinary, &trusted).await;
    world.start();
    world.facilitator.accept().await;
    let job = deterministic("//User", 1);
    run_job(&mut world, &mut ordinary, &job, WRONG).await;
    world.chain.seal_to(40);
    run_on(&mut trusted, RIGHT).await;
    run_on(&mut trusted, WRONG).await;
    let verdict = world.facilitator.verdict_of(job.uuid).await;
    assert_eq!(verdict.state, CheckState::Unproven);
    assert!(verdict.reason.contains("not deterministic"), "{verdict:?}");
    let standings = world.get("/v0/audits/cross-checks").await["coldkeys"].clone();
    assert_eq!(standings, json!([]), "it is no evidence");
    world.stop().await;
}

#[tokio::test]
async fn a_run_goes_on_after_the_validator_was_killed_and_is_told_to_the_next_facilitator() {
    let (mut ordinary, mut trusted) = (Miner::open("//Miner").await, Miner::open("//Trusted").await);
    let mut world = world_of(&ordinary, &trusted).await;
    world.start_mortal();
    world.facilitator.accept().await;
    let job = deterministic("//User", 1);
    run_job(&mut world, &mut ordinary, &job, RIGHT).await;
    world.chain.seal_to(40);
    let mut session = trusted.accept().await;
    let (first, _) = begin(&mut session).await;
    world.kill();
    drop(session);
    world.start_mortal();
    world.facilitator.accept().await;
    // The run that was under way is called off, and the job runs anew.
    let mut session = trusted.accept().await;
    let offer = loop {
        match session.next_message().await {
            Some(ValidatorToMiner::V0InitialJobRequest(offer)) if offer.job_uuid != first.job_uuid => {
                break offer;
            }
            Some(_) => {}
            None => session = trusted.accept().await,
        }
    };
    session.take_up(&offer).await;
    let id = offer.job_uuid;
    session.accept_job(id).await;
    session.accepted_receipt_at_last().await;
    session.executor_ready(id).await;
    session.job().await;
    end(&mut session, id, RIGHT).await;
    let verdict = world.facilitator.verdict_of(job.uuid).await;
    assert_eq!(verdict.state, CheckState::Agrees, "{verdict:?}");
    // A facilitator that connects later is notified, too.
    world.facilitator.hang_up();
    world.facilitator.accept().await;
    let again = world.facilitator.verdict_of(job.uuid).await;
    assert_eq!(again, verdict);
}

/// A report that this user signed.
pub(crate) fn report(user: &str, job: JobId, details: Option<Value>, at: i64) -> CheatReport {
    let trusted = Uuid::from_u128(7).to_string();
    let mut body = json!({"job_uuid": job.to_string(), "trusted_job_uuid": trusted});
    if let Some(details) = &details {
        body["details"] = details.clone();
    }
    CheatReport {
        signature: sign_request(&Keypair::from_uri(user).unwrap(), &body, at),
        r#type: JobCheatedTag,
        message_type: CheatReportTag,
        job_uuid: job.to_string(),
        trusted_job_uuid: trusted,
        details,
    }
}

#[tokio::test]
async fn a_reported_job_runs_again_once_and_its_difference_is_no_evidence_of_a_rate() {
    for details in [Some(json!("the sum is wrong")), None] {
        let (mut ordinary, mut trusted) = (Miner::open("//Miner").await, Miner::open("//Trusted").await);
        let mut world = world_of(&ordinary, &trusted).await;
        world.config.cross_checks.reports_per_day = 1;
        world.start();
        world.facilitator.accept().await;
        // The job declares nothing, so it is not drawn.
        let (first, second) = (job("//User", 1), job("//User", 2));
        run_job(&mut world, &mut ordinary, &first, WRONG).await;
        run_job(&mut world, &mut ordinary, &second, WRONG).await;
        // Only the key that signed the job may report it.
        world
            .facilitator
            .send(encode(&report("//Other", first.uuid, None, 3)))
            .await;
        world
            .facilitator
            .send(encode(&report("//User", second.uuid, details.clone(), 4)))
            .await;
        run_on(&mut trusted, RIGHT).await;
        run_on(&mut trusted, RIGHT).await;
        let verdict = world.facilitator.verdict_of(second.uuid).await;
        assert_eq!(
            (verdict.state, verdict.origin),
            (CheckState::Differs, CheckOrigin::Reported),
            "{verdict:?}"
        );
        // A repeated report changes nothing; a further one is over the account's bound.
        world
            .facilitator
            .send(encode(&report("//User", second.uuid, details, 5)))
            .await;
        let third = job("//User", 6);
        run_job(&mut world, &mut ordinary, &third, WRONG).await;
        world
            .facilitator
            .send(encode(&report("//User", third.uuid, None, 7)))
            .await;
        let bounded = world.facilitator.verdict_of(third.uuid).await;
        assert_eq!(bounded.state, CheckState::Unproven);
        assert!(bounded.reason.contains("within a day"), "{bounded:?}");
        let standings = world.get("/v0/audits/cross-checks").await["coldkeys"].clone();
        assert_eq!(standings, json!([]), "users choose what they report");
        assert_eq!(view_of(&world, second.uuid).await["runs"], 2);
        let checks = world.get("/v0/audits/cross-checks").await["checks"].clone();
        assert_eq!(
            checks.as_array().unwrap().len(),
            1,
            "another's report starts nothing: {checks}"
        );
        world.stop().await;
    }
}

#[tokio::test]
async fn without_a_miner_of_its_own_a_validator_says_why_nothing_runs_again() {
    let mut ordinary = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&ordinary]).await;
    world.start();
    world.facilitator.accept().await;
    let job = deterministic("//User", 1);
    run_job(&mut world, &mut ordinary, &job, RIGHT).await;
    world
        .facilitator
        .send(encode(&report("//User", job.uuid, None, 2)))
        .await;
    let verdict = world.facilitator.verdict_of(job.uuid).await;
    assert_eq!(verdict.state, CheckState::Unproven);
    assert!(
        verdict.reason.contains("keeps no miner of its own"),
        "{verdict:?}"
    );
    world.stop().await;
}
