//! Whole grading batches over real sockets: a validator, its connections to miners, and sealed endpoints with provers
//! behind them.

use std::collections::BTreeMap;

use muster_gateway::Settings;
use muster_grading::ObservationKind;
use muster_grading::batch_file::BatchFile;
use muster_grading::judgement::{Judgement, Why};
use muster_grading::replay::replay;
use muster_grading_runner::GraderImage;
use muster_hardware_proof::InstructionSet;
use muster_identity::{Keypair, countersign, offer_receipt, sign_terms};
use muster_process::Clock as _;
use muster_process::operator_token::OperatorToken;
use muster_protocol::job::JobTerms;
use muster_protocol::receipt::{StartedReceipt, StartedTag};
use muster_protocol::status::JobStatus;
use muster_protocol::wire::facilitator::{ToFacilitator, UserJobRequest};
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::{
    AttemptId, Digest, ExecutorClass, ImageId, MinerKey, ReceiptPayload, Timestamp, ValidatorKey,
};
use muster_session_pool::Service;
use serde_json::json;
use uuid::Uuid;

use crate::sockets::support::facilitator::job;
use crate::sockets::support::fleet::{Behaviour, Fleet};
use crate::sockets::support::miner::Miner;
use crate::sockets::support::{World, within};

/// The seconds for which a batch waits for executors at work by default.
const AT_WORK_S: u64 = 24;

/// A validator that runs a grading batch only on request.
async fn grading(miners: &[&Miner]) -> World {
    let mut world = World::in_real_time(miners).await;
    world.config.grading.every_blocks = 0;
    world.config.grading.probe_every_blocks = 0;
    world.config.grading.full_course_one_in = 0;
    let (class, args) = (ExecutorClass::AlwaysOnTest, vec![]);
    let grader = GraderImage {
        image: ImageId(Digest::of(b"grader")),
        reference: None,
        args,
    };
    world.config.grading.images.insert(class, grader);
    world
}

async fn begin(world: &mut World) {
    world.chain.seal_to(3);
    world.start();
    world.facilitator.accept().await;
    world.seen(3).await;
}

/// Runs a batch with the next block; returns its file as anybody can fetch it. The evidence in it is checked, with all
/// signatures.
async fn batch(world: &World) -> BatchFile {
    batch_of(world, "announced").await
}

/// The same for a batch of this kind.
async fn batch_of(world: &World, kind: &str) -> BatchFile {
    let path = format!("/v0/batches?kind={kind}");
    let began = within("a batch", world.ask(reqwest::Method::POST, &path)).await;
    let batch = began["batch"]
        .as_str()
        .unwrap_or_else(|| panic!("no batch: {began}"));
    let file = world.get(&format!("/v0/batches/{batch}")).await;
    let file: BatchFile = serde_json::from_value(file).unwrap();
    let replayed = replay(&file, InstructionSet::best(), &muster_identity::verify).unwrap();
    assert_eq!(replayed.differences, Vec::<String>::new());
    assert_eq!(replayed.judgements.len(), file.judgements.len());
    file
}

#[tokio::test]
async fn a_batch_is_run_for_the_operator_and_for_nobody_else() {
    let miner = Miner::open("//Idle").await;
    let mut world = grading(&[&miner]).await;
    begin(&mut world).await;
    let url = world.status_url("/v0/batches").await;
    for wrong in [None, Some("Bearer 00"), Some("Bearer ")] {
        let mut request = reqwest::Client::new().post(&url);
        if let Some(wrong) = wrong {
            request = request.header("authorization", wrong);
        }
        assert_eq!(request.send().await.unwrap().status().as_u16(), 401, "{wrong:?}");
    }
    // Reading needs none.
    let batches: serde_json::Value = reqwest::get(&url).await.unwrap().json().await.unwrap();
    assert_eq!(batches["batches"], json!([]));
}

/// The verdict on the executor of each job.
fn by_job(file: &BatchFile) -> BTreeMap<String, Judgement> {
    let leased = file.participants.iter().filter_map(|(place, seat)| {
        let job = seat.job.clone()?;
        Some((job, file.judgements[*place].clone()))
    });
    leased.collect()
}

fn why(judgement: &Judgement) -> &Why {
    match judgement {
        Judgement::Zero { reasons } => &reasons[0],
        other @ (Judgement::Proven { .. }
        | Judgement::Serving { .. }
        | Judgement::Excused { .. }
        | Judgement::Void { .. }) => panic!("no zero: {other}"),
    }
}

#[tokio::test]
async fn a_miner_that_does_not_say_what_it_has_gets_a_zero_with_its_reason_and_nobody_waits_for_it() {
    let (mut talking, silent, mut leaving) = (
        Miner::open("//Talking").await,
        Miner::open("//Silent").await,
        Miner::open("//Leaving").await,
    );
    let mut world = grading(&[&talking, &silent, &leaving]).await;
    // A miner that is there answers in far less even on a busy machine.
    world.config.timing.dial_s = 5;
    begin(&mut world).await;
    // The miner answers that it has no executor of any class; it is not silent.
    let (talks, leaving_key) = (Fleet::new(&talking.keypair), leaving.key());
    let leaves = async {
        loop {
            drop(leaving.server.next().await);
        }
    };
    let file = tokio::select! {
        () = talks.stand(&mut talking, 0) => panic!("it is there"),
        () = leaves => panic!("it is there for a moment each time"),
        file = batch(&world) => file,
    };
    let named: Vec<_> = file.head.silent.iter().map(|silent| silent.miner).collect();
    let mut due = [silent.key(), leaving_key];
    due.sort_unstable();
    assert_eq!((named, file.judgements.len()), (due.to_vec(), 2));
    for (miner, saying) in [(silent.key(), "within 5 s"), (leaving_key, "at 127.0.0.1:")] {
        let grades = rows(&world, miner).await;
        let [grade] = grades.as_slice() else {
            panic!("one row was due: {grades:?}")
        };
        assert_eq!(grade["class"], json!(null));
        let judgement: Judgement = serde_json::from_value(grade["judgement"].clone()).unwrap();
        assert!(
            matches!(why(&judgement), Why::NeverAnnounced { said } if said.contains(saying)),
            "{judgement}"
        );
    }
    assert!(rows(&world, talking.key()).await.is_empty());
}

#[tokio::test]
async fn a_job_that_may_not_wait_waits_while_its_validator_grades() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = grading(&[&miner]).await;
    begin(&mut world).await;
    let fleet = Fleet::new(&miner.keypair);
    fleet.expect(&[Behaviour::Honest, Behaviour::Last]);
    let token = OperatorToken::read(&world.config.operator_token).unwrap();
    let url = world.status_url("/v0/batches?kind=announced").await;
    let request = reqwest::Client::new()
        .post(url)
        .header("authorization", token.authorization());
    let hasty = hasty_job();
    let submitted = async {
        world
            .until_queue("both executors in the batch", |queue| {
                queue["lines"][0]["at_work"] == 2
            })
            .await;
        world.facilitator.submit(&hasty).await;
        world.facilitator.expect(JobStatus::Received).await;
        let queue = world
            .until_queue("the job in the queue", |queue| {
                queue["jobs"][0]["job"].is_string()
            })
            .await;
        let time = |name: &str| {
            let time: Timestamp = serde_json::from_value(queue["jobs"][0][name].clone()).unwrap();
            time
        };
        assert_eq!(time("deadline").since(time("since")).as_secs(), 60, "{queue}");
        world.facilitator.cancel(hasty.uuid, "seen").await;
        world.facilitator.expect(JobStatus::Failed).await;
        fleet.let_the_last_one_come();
    };
    let began = tokio::select! {
        () = fleet.stand(&mut miner, 2) => panic!("it is there"),
        (began, ()) = async { tokio::join!(within("a batch", request.send()), submitted) } => began.unwrap(),
    };
    assert!(began.status().is_success(), "{began:?}");
}

/// A user's job that no queue may keep.
fn hasty_job() -> UserJobRequest {
    let mut hasty = job("//Alice", 1);
    let terms = JobTerms {
        queue_time_limit: Some(0),
        ..JobTerms::default()
    };
    let user = Keypair::from_uri("//Alice").unwrap();
    let signature = sign_terms(&user, &terms, &hasty.signed_digest());
    hasty.muster = Some(Box::new(JobExtension {
        registry: None,
        traceparent: None,
        account: None,
        terms: Some(terms),
        signature: Some(signature),
        checkpoints: None,
        output: None,
    }));
    hasty
}

/// The text that `muster grade explain` shows.
async fn rows(world: &World, miner: MinerKey) -> Vec<serde_json::Value> {
    let grades = world.get(&format!("/v0/grades/{miner}")).await;
    grades["grades"].as_array().unwrap().clone()
}

#[tokio::test]
async fn executors_that_vanish_at_the_barrier_and_after_it_are_named_and_nobody_else_is_the_worse_for_it() {
    let (mut miner, mut other) = (Miner::open("//Miner").await, Miner::open("//Other").await);
    let mut world = grading(&[&miner, &other]).await;
    begin(&mut world).await;
    let (fleet, others) = (Fleet::new(&miner.keypair), Fleet::new(&other.keypair));
    let behaviours = [
        Behaviour::Honest,
        Behaviour::LeavesBarrier,
        Behaviour::LeavesChallenged,
        Behaviour::LeavesCommitted,
        Behaviour::Smaller,
        Behaviour::Last,
    ];
    fleet.expect(&behaviours);
    let (honest, key) = (other.key(), miner.key());
    let left = async {
        let failed = |state: &serde_json::Value| {
            let mut jobs = state["jobs"].as_array().unwrap().iter();
            jobs.any(|job| job["status"] == "horde_failed")
        };
        world
            .until("the end of the job whose machine is gone", failed)
            .await;
        fleet.let_the_last_one_come();
    };
    let file = tokio::select! {
        () = fleet.stand(&mut miner, 6) => panic!("it is there"),
        () = others.stand(&mut other, 2) => panic!("it is there"),
        (file, ()) = async { tokio::join!(batch(&world), left) } => file,
    };
    assert_eq!(file.judgements.len(), 8);
    let mut came = 0;
    for (job, judgement) in by_job(&file) {
        let Some(behaviour) = fleet.behaviour(&job) else {
            assert!(matches!(judgement, Judgement::Proven { .. }), "{judgement}");
            continue;
        };
        came += 1;
        let named = match behaviour {
            Behaviour::Honest | Behaviour::Last => matches!(judgement, Judgement::Proven { .. }),
            Behaviour::LeavesBarrier => {
                matches!(why(&judgement), Why::VanishedAtBarrier { said } if said.contains("its machine is gone"))
            }
            Behaviour::LeavesChallenged => matches!(why(&judgement), Why::Gone { .. }),
            Behaviour::LeavesCommitted => *why(&judgement) == Why::VanishedAfterCommitment,
            Behaviour::Smaller => matches!(why(&judgement), Why::WrongOpening { .. }),
            Behaviour::AtWork => false,
        };
        assert!(named, "{behaviour:?}: {judgement}");
    }
    assert_eq!(came, 6);
    assert_eq!(
        (rows(&world, key).await.len(), rows(&world, honest).await.len()),
        (6, 2)
    );
}

#[tokio::test]
async fn an_unannounced_probe_waits_for_nobody_and_each_executor_at_work_needs_a_receipt() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = grading(&[&miner]).await;
    world.config.grading.probe_startup_s = 1;
    begin(&mut world).await;
    let fleet = Fleet::new(&miner.keypair);
    let work = |attempt| {
        let payload = ReceiptPayload::Started(StartedReceipt {
            job_uuid: AttemptId::from_uuid(Uuid::from_u128(attempt)),
            miner_hotkey: miner.key(),
            validator_hotkey: ValidatorKey(world.keypair.hotkey()),
            timestamp: muster_process::SystemClock::new().now(),
            receipt_type: StartedTag,
            executor_class: ExecutorClass::AlwaysOnTest,
            is_organic: attempt == 99,
            ttl: 60,
        });
        let offered = offer_receipt(&world.keypair, payload).unwrap();
        countersign(&miner.keypair, offered).unwrap().into_inner()
    };
    // All four executors are at work: two are leased for grading by the same validator.
    fleet.show(vec![work(96), work(97), work(98), work(99)]);
    let story = async {
        assert_eq!(batch(&world).await.judgements.len(), 4);
        // The miner declines the first two.
        fleet.expect(&[
            Behaviour::AtWork,
            Behaviour::AtWork,
            Behaviour::Honest,
            Behaviour::Last,
        ]);
        world.chain.seal_to(4);
        batch_of(&world, "unannounced").await
    };
    let file = tokio::select! {
        () = fleet.stand(&mut miner, 4) => panic!("it is there"),
        file = story => file,
    };
    assert_eq!(file.head.kind, ObservationKind::Unannounced);
    let mut names: Vec<_> = file.judgements.iter().map(ToString::to_string).collect();
    names.sort_unstable();
    let by = |judged: &Judgement| match judged {
        Judgement::Excused { by, .. } => by.map(|by| by.attempt.as_uuid().as_u128()),
        Judgement::Proven { .. }
        | Judgement::Serving { .. }
        | Judgement::Zero { .. }
        | Judgement::Void { .. } => None,
    };
    let excused: Vec<_> = file.judgements.iter().filter_map(by).collect();
    assert_eq!(excused, [99], "the user's job alone excuses: {names:?}");
    let proven = |judged: &&Judgement| matches!(judged, Judgement::Proven { .. });
    assert_eq!(file.judgements.iter().filter(proven).count(), 1, "{names:?}");
    let zero = |wanted: fn(&Why) -> bool| {
        let zeros = file
            .judgements
            .iter()
            .filter(|judged| matches!(judged, Judgement::Zero { .. }));
        zeros.filter(|judged| wanted(why(judged))).count()
    };
    assert_eq!(
        zero(|why| matches!(why, Why::NotAtBarrier { .. })),
        1,
        "{names:?}"
    );
    assert_eq!(
        zero(|why| *why == Why::ExcuseMissing { shown: 1 }),
        1,
        "{names:?}"
    );
    let batches = world.get("/v0/batches").await;
    let kinds: Vec<_> = batches["batches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|batch| &batch["kind"])
        .collect();
    assert_eq!(kinds, [&json!("unannounced"), &json!("announced")]);
}

/// A model that clients of the validator's gateway use.
fn service() -> Service {
    let entry = json!({
        "model": "tiny", "image": ImageId(Digest::of(b"image")), "class": "always_on.test",
        "input_tokens_per_s": 1_000, "output_tokens_per_s": 50,
        "scheme": "text", "listen": {"port": 8000},
    });
    serde_json::from_value(entry).unwrap()
}

/// Proves all three executors of a miner, lets one of them, which behaves as given, serve a session of the validator's,
/// and challenges all of them again. Returns the second batch.
async fn batch_beside_a_session(
    behaviour: Behaviour,
    full_course_one_in: u32,
    at_work_s: u64,
) -> (BatchFile, Fleet) {
    let mut miner = Miner::open("//Miner").await;
    let mut world = grading(&[&miner]).await;
    world.config.grading.full_course_one_in = full_course_one_in;
    world.config.grading.at_work_s = at_work_s;
    world.config.gateway = Settings {
        bind: Some(([127, 0, 0, 1], 0).into()),
        keys: [("me".to_owned(), Digest::of(b"key"))].into(),
        services: vec![service()],
        ..Settings::default()
    };
    begin(&mut world).await;
    let ToFacilitator::MusterGateway(notice) = world.facilitator.receive().await else {
        panic!("the gateway was to be announced first")
    };
    let fleet = Fleet::new(&miner.keypair);
    let story = async {
        let first = batch(&world).await;
        assert!(first.head.serving.is_empty());
        assert_eq!((first.judgements.len(), count_proven(&first)), (3, 3));
        fleet.expect(&[behaviour]);
        let ask = reqwest::Client::new()
            .post(format!("{}/v1/chat/completions", notice.url.unwrap()))
            .bearer_auth("key")
            .body(r#"{"model":"tiny","messages":[{"role":"user","content":"well?"}]}"#)
            .send();
        let answer = within("an answer", ask).await.unwrap();
        assert_eq!(answer.status(), 200);
        world.chain.seal_to(4);
        batch(&world).await
    };
    let file = tokio::select! {
        () = fleet.stand(&mut miner, 3) => panic!("it is there"),
        file = story => file,
    };
    assert_eq!(file.judgements.len(), 3);
    (file, fleet)
}

fn count_proven(file: &BatchFile) -> usize {
    let judged = file.judgements.iter();
    judged
        .filter(|judged| matches!(judged, Judgement::Proven { .. }))
        .count()
}

/// The same where no session is drained. Returns the second batch, and the job of the session.
async fn with_a_session(behaviour: Behaviour) -> (BatchFile, String) {
    let (file, fleet) = batch_beside_a_session(behaviour, 0, AT_WORK_S).await;
    let [serving] = file.head.serving.as_slice() else {
        panic!("one session serves: {:?}", file.head.serving)
    };
    let job = serving.job.to_string();
    assert_eq!(fleet.behaviour(&job), Some(behaviour));
    for (other, judgement) in by_job(&file) {
        assert_eq!(
            matches!(judgement, Judgement::Proven { .. }),
            other != job,
            "{judgement}"
        );
    }
    (file, job)
}

#[tokio::test]
async fn a_drawn_miners_session_ends_and_its_executor_proves_its_class_in_full() {
    let (file, _) = batch_beside_a_session(Behaviour::Honest, 1, AT_WORK_S).await;
    assert_eq!(file.head.serving, []);
    assert_eq!(count_proven(&file), 3, "{:?}", file.judgements);
}

#[tokio::test]
async fn a_batch_that_waits_for_nobody_at_work_drains_no_session() {
    let (file, _) = batch_beside_a_session(Behaviour::Honest, 1, 0).await;
    assert_eq!(file.head.serving.len(), 1, "{:?}", file.judgements);
}

#[tokio::test]
async fn an_executor_that_serves_is_challenged_in_its_session_while_the_others_are_leased() {
    let (file, job) = with_a_session(Behaviour::Honest).await;
    let judgement = &by_job(&file)[&job];
    assert!(matches!(judgement, Judgement::Serving { .. }), "{judgement}");
}

#[tokio::test]
async fn weak_hardware_behind_a_session_is_found_out() {
    let (file, job) = with_a_session(Behaviour::Smaller).await;
    let judgement = &by_job(&file)[&job];
    assert!(matches!(why(judgement), Why::WrongOpening { .. }), "{judgement}");
}

#[tokio::test]
async fn a_session_that_goes_away_when_it_is_challenged_is_a_zero() {
    let (file, job) = with_a_session(Behaviour::LeavesCommitted).await;
    let judgement = &by_job(&file)[&job];
    assert_eq!(*why(judgement), Why::VanishedAfterCommitment);
}
