//! Users' jobs that run again on the validator's own miner: drawn ones and reported ones.

use muster_identity::{Keypair, sign_request, sign_terms};
use muster_protocol::job::JobTerms;
use muster_protocol::wire::checks::{CheckOrigin, CheckState};
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{CheatReport, CheatReportTag, JobCheatedTag, UserJobRequest};
use muster_protocol::wire::miner::{InitialJobRequest, JobRequest};
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::wire::validator_socket::ValidatorToMiner;
use muster_protocol::{AttemptId, JobId, JobStatus};
use muster_scoring::ScoringSnapshot;
use muster_validator::TrustedMinerConfig;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::sockets::support::World;
use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::{Miner, Session};

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

#[tokio::test]
async fn three_users_confirmed_differences_lower_the_quality_of_the_coldkey() {
    let (mut cheat, mut trusted) = (Miner::open("//Cheat").await, Miner::open("//Trusted").await);
    let mut world = world_of(&cheat, &trusted).await;
    world.start();
    world.facilitator.accept().await;
    world.chain.seal_to(12);
    world.seen(12).await;
    for (user, number) in ["//A", "//B", "//C"].into_iter().zip(1_i64..) {
        let job = deterministic(user, number);
        run_job(&mut world, &mut cheat, &job, WRONG).await;
        world.chain.seal_to(12 + 15 * u64::try_from(number).unwrap());
        run_on(&mut trusted, RIGHT).await;
        run_on(&mut trusted, RIGHT).await;
        let verdict = world.facilitator.verdict_of(job.uuid).await;
        assert_eq!(verdict.state, CheckState::Differs, "{verdict:?}");
        assert_eq!(verdict.outputs[0].name, "/artifacts/a");
    }
    let standings = world.get("/v0/audits/cross-checks").await["coldkeys"].clone();
    assert_eq!(standings[0]["coldkey"], cheat.key().to_string(), "{standings}");
    assert_eq!(
        (&standings[0]["differing"], &standings[0]["alarmed"]),
        (&json!(3), &json!(true))
    );
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
    let snapshot = ScoringSnapshot::parse(&served.to_string()).unwrap();
    let quality: Vec<_> = snapshot
        .quality
        .iter()
        .map(|one| (one.miner, one.per_mille))
        .collect();
    assert_eq!(quality, [(cheat.key(), 500)]);
    world.stop().await;
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
