//! Spot checks from the client's question to the verdict: the log, the draw, own prompts, references and their bundle.

use std::path::PathBuf;
use std::sync::Arc;

use muster_audit::{RevealedNonceKey, Verdict, replay};
use muster_audit_runner::PlantedCheat;
use muster_gateway::Settings as GatewaySettings;
use muster_identity::Keypair;
use muster_process::Tasks;
use muster_process::operator_token::OperatorToken;
use muster_protocol::wire::checks::CheckState;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::{Digest, ImageId, JobId, ValidatorKey};
use muster_session_pool::Service;
use muster_validator::config::TrustedMinerConfig;
use muster_verdict_exchange::{Forgery, try_forgeries};
use serde_json::{Value, json};

use crate::sockets::audit_kills::hold_audits;
use crate::sockets::cross_checks::report;
use crate::sockets::support::audit_check::TestAuditCheck;
use crate::sockets::support::fleet::Fleet;
use crate::sockets::support::miner::Miner;
use crate::sockets::support::model::{calibration, model, reference, whole_engine};
use crate::sockets::support::{World, within};

/// Looks before another block is sealed.
const LOOKS: u32 = 4;

/// Own prompts of each bucket: more than a miner that always cheats needs to be convicted.
pub(crate) const OWN_PROMPTS: u32 = 16;

pub(crate) fn service() -> Service {
    let entry = json!({
        "model": "tiny", "image": ImageId(Digest::of(b"image")), "class": "always_on.test", "output_price": 7,
        "input_tokens_per_s": 1_000, "output_tokens_per_s": 1, "listen": {"port": 8000},
    });
    serde_json::from_value(entry).unwrap()
}

/// A validator with one miner in its subnet and one of its own, and the address of its gateway.
pub(crate) struct Audited {
    pub(crate) world: World,
    gateway: String,
    folder: tempfile::TempDir,
}

impl Audited {
    /// A validator in a world whose first miner serves the model.
    pub(crate) async fn start_in(world: World, trusted: &Miner, is_mortal: bool) -> Self {
        Self::start_with(world, trusted, is_mortal, |_| {}).await
    }

    /// The same, with a change of its configuration.
    pub(crate) async fn start_with(
        mut world: World,
        trusted: &Miner,
        is_mortal: bool,
        configure: impl FnOnce(&mut muster_validator::Config),
    ) -> Self {
        muster_process::tls::install_provider();
        let folder = tempfile::tempdir().unwrap();
        let mut measured = calibration();
        measured.engine = service().image.0;
        let file = folder.path().join("calibration.json");
        std::fs::write(&file, measured.to_text()).unwrap();
        world.chain.own(1, Keypair::from_uri("//Owner").unwrap().hotkey());
        world.config.gateway = GatewaySettings {
            bind: Some(([127, 0, 0, 1], 0).into()),
            keys: [("me".to_owned(), Digest::of(b"key"))].into(),
            services: vec![service()],
            max_sessions: 1,
            ..GatewaySettings::default()
        };
        world.config.trusted_miner = TrustedMinerConfig {
            hotkey: Some(trusted.key()),
            address: Some(trusted.server.address),
            certificate: None,
        };
        world.config.audit.share_ppm = Some(1_000_000);
        world.config.audit.own_prompts = OWN_PROMPTS;
        world.config.audit.own_spread_s = 0;
        world.config.audit.gather_answers = 1_000;
        world.config.audit.appeal_answers = 16;
        world.config.audit.calibrations = [("tiny".to_owned(), PathBuf::from(&file))].into();
        configure(&mut world.config);
        if is_mortal {
            world.start_mortal();
        } else {
            world.start();
        }
        world.facilitator.accept().await;
        let ToFacilitator::MusterGateway(notice) = world.facilitator.receive().await else {
            panic!("the gateway was to be announced first")
        };
        Self {
            world,
            gateway: notice.url.unwrap(),
            folder,
        }
    }

    /// Starts the validator again, on the same store and with the gateway at another address.
    pub(crate) async fn restart(&mut self) {
        self.world.start_mortal();
        self.world.facilitator.accept().await;
        loop {
            if let ToFacilitator::MusterGateway(notice) = self.world.facilitator.receive().await {
                self.gateway = notice.url.unwrap();
                return;
            }
        }
    }

    /// The address of the gateway.
    pub(crate) fn gateway(&self) -> &str {
        &self.gateway
    }

    pub(crate) async fn ask(&self) {
        let request = reqwest::Client::new()
            .post(format!("{}/v1/chat/completions", self.gateway))
            .bearer_auth("key")
            .body(r#"{"model":"tiny","messages":[{"role":"user","content":"well?"}]}"#);
        let answer = within("an answer", request.send()).await.unwrap();
        assert_eq!(answer.status(), 200);
        let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        answer.bytes().await.unwrap();
        self.stored_proof(&id).await;
    }

    /// The proof of an answer. A client that knows the length of a body may have read it before the answer is stored.
    pub(crate) async fn stored_proof(&self, id: &str) -> Value {
        within("a stored answer", async {
            loop {
                let request = reqwest::Client::new().get(format!("{}/v1/proofs/{id}", self.gateway));
                let answer = request.bearer_auth("key").send().await.unwrap();
                if answer.status() == 200 {
                    return answer.json().await.unwrap();
                }
                crate::sockets::support::look_again().await;
            }
        })
        .await
    }

    pub(crate) async fn bucket(&self, number: u64) -> Value {
        self.world.get(&format!("/v0/audits/buckets/{number}")).await
    }

    /// Ends a bucket and waits for its header, its draw included.
    pub(crate) async fn draw(&self, number: u64, answers: u64) -> Value {
        self.world.chain.seal_to((number + 1) * 25);
        let is_closed = |bucket: &Value| {
            bucket["leaves"]
                .as_array()
                .is_some_and(|leaves| !leaves.is_empty())
        };
        let closed = self.until_bucket(number, is_closed).await;
        assert_eq!(
            closed["leaves"].as_array().unwrap().len() as u64,
            answers,
            "{closed}"
        );
        assert!(
            closed["draw"].is_null(),
            "the draw block does not exist: {closed}"
        );
        self.world.chain.seal_to((number + 1) * 25 + 12);
        self.until_bucket(number, |bucket| !bucket["draw"].is_null())
            .await
    }

    pub(crate) async fn until_bucket(&self, number: u64, is: impl Fn(&Value) -> bool) -> Value {
        within("a bucket", async {
            loop {
                let bucket = self.bucket(number).await;
                if is(&bucket) {
                    return bucket;
                }
                crate::sockets::support::look_again().await;
            }
        })
        .await
    }

    /// Waits until `count` answers of the model are proven.
    pub(crate) async fn answered(&self, count: u64) {
        within("answers", async {
            loop {
                let sessions = self.world.get("/v0/sessions").await;
                let earned = sessions["earned"].as_array().cloned().unwrap_or_default();
                if earned
                    .iter()
                    .map(|one| one["proven"].as_u64().unwrap())
                    .sum::<u64>()
                    >= count
                {
                    return;
                }
                crate::sockets::support::look_again().await;
            }
        })
        .await;
    }

    /// A user's answer and own prompts after the first bucket, all of them drawn.
    pub(crate) async fn gather(&self) {
        self.ask().await;
        let first = self.draw(0, 1).await;
        assert_eq!(first["leaves"][0]["drawn"], true, "all are drawn");
        self.answered(1 + u64::from(OWN_PROMPTS)).await;
        self.draw(1, OWN_PROMPTS.into()).await;
    }

    /// The bundle of an audit, byte for byte.
    pub(crate) async fn bundle(&self, run: &Value) -> String {
        let path = format!("/v0/audits/{}", run["bundle"].as_str().unwrap());
        let url = self.world.status_url(&path).await;
        reqwest::get(url).await.unwrap().text().await.unwrap()
    }

    /// The audit of what has gathered.
    pub(crate) async fn audit(&self) -> Value {
        let run = self.world.ask(reqwest::Method::POST, "/v0/audits/runs");
        let ended = within("the audit", run).await;
        let [run] = ended["runs"].as_array().unwrap().as_slice() else {
            panic!("{ended}")
        };
        run.clone()
    }
}

impl Audited {
    /// The newest audit once it has ended. Answers that wait are audited now, unless the validator has begun by itself.
    pub(crate) async fn next_audit(&self) -> Value {
        self.audit_again().await;
        let listed = self.world.get("/v0/audits/runs").await;
        let newest = listed["runs"][0].clone();
        assert!(
            !newest["ended_at"].is_null(),
            "an order waits for the audits before it: {listed}"
        );
        newest
    }

    /// The audits of what has gathered now.
    pub(crate) async fn audit_again(&self) -> Value {
        let ended = self.world.ask(reqwest::Method::POST, "/v0/audits/runs").await;
        ended["runs"].clone()
    }
}

async fn audited(program: axum::Router, story: impl AsyncFnOnce(&Audited)) {
    let told = async |audited: &mut Audited| {
        audited.gather().await;
        story(audited).await;
    };
    with_validator(program, false, told).await;
}

pub(crate) async fn with_validator(
    program: axum::Router,
    is_mortal: bool,
    story: impl AsyncFnOnce(&mut Audited),
) {
    with_fleets((program, reference()), None, is_mortal, story).await;
}

/// A validator whose miner runs the first program and whose references run the second one.
pub(crate) async fn with_fleets(
    programs: (axum::Router, axum::Router),
    audit_check: Option<Arc<TestAuditCheck>>,
    is_mortal: bool,
    story: impl AsyncFnOnce(&mut Audited),
) {
    with_configured(
        programs,
        audit_check,
        is_mortal,
        |_: &mut muster_validator::Config| {},
        async |audited, _| {
            story(audited).await;
        },
    )
    .await;
}

/// The same, with a change of the validator's configuration.
pub(crate) async fn with_configured_fleets(
    programs: (axum::Router, axum::Router),
    configure: impl FnOnce(&mut muster_validator::Config),
    story: impl AsyncFnOnce(&mut Audited),
) {
    with_configured(programs, None, false, configure, async |audited, _| {
        story(audited).await;
    })
    .await;
}

/// The same with a change of the validator's configuration; the story is given the validator's own miner, too.
pub(crate) async fn with_configured(
    (program, reference): (axum::Router, axum::Router),
    audit_check: Option<Arc<TestAuditCheck>>,
    is_mortal: bool,
    configure: impl FnOnce(&mut muster_validator::Config),
    story: impl AsyncFnOnce(&mut Audited, &Fleet),
) {
    let (mut miner, mut trusted) = (Miner::open("//Miner").await, Miner::open("//Trusted").await);
    let world = World::in_real_time(&[&miner]).await;
    let mut audited = Audited::start_with(world, &trusted, is_mortal, configure).await;
    let fleet = Fleet::of_program(&miner.keypair, program);
    if let Some(audit_check) = audit_check {
        fleet.set_audit_check(audit_check);
    }
    let references = Fleet::of_program(&trusted.keypair, reference);
    // Each of these waits for a further connection until its time is over, which may be before the story's.
    let miners = Tasks::new();
    // One executor more than the gateway has sessions.
    drop(miners.spawn("a miner", async move { fleet.stand(&mut miner, 2).await }));
    let own = references.clone();
    // Two references, and two that an earlier process of the validator may have left.
    drop(miners.spawn("the own miner", async move {
        own.stand(&mut trusted, 4).await;
    }));
    story(&mut audited, &references).await;
    drop(audited.folder);
}

#[tokio::test]
async fn a_miner_that_answers_with_cheaper_weights_is_convicted_by_the_validators_own_prompts() {
    audited(model(true, None), async |audited| {
        let run = audited.audit().await;
        assert_eq!(run["verdict"], "convicted", "{run}");
        assert_eq!(
            (&run["answers"], &run["scored"]),
            (&json!(17), &json!(17)),
            "{run}"
        );
        let digest = run["bundle"].as_str().unwrap();
        let url = audited.world.status_url(&format!("/v0/audits/{digest}")).await;
        let bundle = reqwest::get(url).await.unwrap().text().await.unwrap();
        let replayed = replay(&bundle).unwrap();
        assert_eq!(replayed.verdict.name(), "convicted");
        // The user's answer came without ids: it counts for the miner.
        assert_eq!((replayed.counts.audited, replayed.counts.unscored), (17, 1));
        assert!(!bundle.contains("well?"), "no user's words are in a bundle");
        let listed = audited.world.get("/v0/audits").await;
        assert_eq!(
            listed["audits"][0]["digest"], digest,
            "it counts without an order: {listed}"
        );
        let runs = audited.world.get("/v0/audits/runs").await;
        assert_eq!(runs["runs"][0]["run"], run["run"]);
        let again = audited.world.ask(reqwest::Method::POST, "/v0/audits/runs").await;
        assert_eq!(again["runs"], json!([]), "nothing waits");
    })
    .await;
}

#[tokio::test]
async fn a_users_report_about_a_session_orders_an_audit_and_its_conviction_refunds_the_answers() {
    with_validator(model(true, None), false, async |audited| {
        audited.gather().await;
        let sessions = audited.world.get("/v0/sessions").await;
        let job: JobId = sessions["sessions"][0]["job"].as_str().unwrap().parse().unwrap();
        audited
            .world
            .facilitator
            .send(encode(&report("//User", job, None, 1)))
            .await;
        let verdict = audited.world.facilitator.verdict_of(job).await;
        assert_eq!(verdict.state, CheckState::Differs, "{verdict:?}");
        assert!(verdict.reason.contains("convicted"), "{verdict:?}");
        // With the next block the answers of the whole run are refunded, the user's and those to own prompts.
        audited.world.chain.seal_to(70);
        let mut refunded = Vec::new();
        while refunded.len() < 17 {
            if let ToFacilitator::MusterRefund(refund) = audited.world.facilitator.receive().await {
                refunded.push(*refund);
            }
        }
        let audits = audited.world.get("/v0/audits").await;
        let digest = audits["audits"][0]["digest"].as_str().unwrap();
        assert!(
            refunded
                .iter()
                .all(|one| one.bundle.unwrap().to_string() == digest && one.model == "tiny")
        );
        let checks = audited.world.get("/v0/audits/cross-checks").await;
        assert!(
            checks["refunded_answers"][digest].as_u64() >= Some(17),
            "{checks}"
        );
        // A report after that finds no answer that waits.
        let again = report("//User", job, Some(json!("again")), 2);
        audited.world.facilitator.send(encode(&again)).await;
        audited.world.seen(70).await;
        assert_eq!(
            audited.world.get("/v0/audits/runs").await["runs"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
    })
    .await;
}

#[tokio::test]
async fn nonces_follow_from_a_key_that_is_told_once_it_is_not_used_any_more() {
    audited(model(true, None), async |audited| {
        let url = audited.world.status_url("/v0/audits/nonce-keys/0").await;
        let early = reqwest::get(&url).await.unwrap();
        assert_eq!(early.status(), 404);
        let said = early.json::<Value>().await.unwrap().to_string();
        assert!(said.contains("from block 600 on"), "{said}");
        // In steps, since each bucket on the way has its prompts and its draw.
        for block in [200, 400, 600] {
            audited.world.chain.seal_to(block);
            audited.world.seen(block).await;
        }
        let told = within("the key", async {
            loop {
                let told: Value = reqwest::get(&url).await.unwrap().json().await.unwrap();
                if told["key"].is_string() {
                    return told;
                }
                crate::sockets::support::look_again().await;
            }
        })
        .await;
        let revealed: RevealedNonceKey = serde_json::from_value(told.clone()).unwrap();
        let read = |name: &str| -> Digest { serde_json::from_value(told[name].clone()).unwrap() };
        let validator: ValidatorKey = serde_json::from_value(told["validator"].clone()).unwrap();
        let netuid = u16::try_from(told["netuid"].as_u64().unwrap()).unwrap();
        let key = revealed.check(&validator, &read("genesis"), netuid).unwrap();
        assert_eq!(told["key"], hex::encode(key), "{told}");
        let run = audited.audit().await;
        assert_eq!(run["verdict"], "convicted", "{run}");
        let bundle = audited.bundle(&run).await;
        let nonces = replay(&bundle).unwrap().nonces.unwrap();
        // The user may have asked before the validator had its first block, and an own prompt never is.
        assert!(nonces.derived >= 16 && nonces.foreign <= 1, "{nonces:?}");
        assert!(bundle.contains(r#""format":"muster/audit-bundle/5""#));
    })
    .await;
}

#[tokio::test]
async fn no_machine_is_started_for_a_calibration_of_another_image() {
    audited(model(true, None), async |audited| {
        let mut other = calibration();
        other.engine = Digest::of(b"the image before");
        let file = audited.folder.path().join("calibration.json");
        std::fs::write(file, other.to_text()).unwrap();
        let run = audited.audit().await;
        let reason = run["reason"].as_str().unwrap();
        assert!(reason.contains("calibration is of the image"), "{run}");
        assert_eq!((&run["verdict"], &run["scored"]), (&Value::Null, &json!(0)));
    })
    .await;
}

#[tokio::test]
async fn an_honest_miner_is_consistent() {
    audited(model(false, None), async |audited| {
        let run = audited.audit().await;
        assert_eq!(run["verdict"], "consistent", "{run}");
    })
    .await;
}

#[tokio::test]
async fn answers_that_end_a_scorer_cost_the_audit_these_answers_only() {
    audited(model(true, Some(4)), async |audited| {
        let run = audited.audit().await;
        assert_eq!(run["verdict"], "convicted", "{run}");
        let digest = run["bundle"].as_str().unwrap();
        let bundle = audited
            .world
            .get(&format!("/v0/audits/{digest}"))
            .await
            .to_string();
        assert!(
            bundle.contains("reference_refused"),
            "the poisoned answers have their reason"
        );
    })
    .await;
}

#[tokio::test]
async fn a_validator_that_is_killed_while_references_score_goes_on_and_leaves_no_half_verdict() {
    with_validator(model(true, None), true, async |audited| {
        audited.gather().await;
        let url = audited.world.status_url("/v0/audits/runs").await;
        let token = OperatorToken::read(&audited.world.config.operator_token).unwrap();
        let order = reqwest::Client::new()
            .post(url)
            .header("authorization", token.authorization())
            .send();
        let tasks = Tasks::new();
        drop(tasks.spawn("an operator", order));
        within("a score", async {
            loop {
                let runs = audited.world.get("/v0/audits/runs").await;
                if runs["runs"][0]["scored"].as_u64() > Some(0) {
                    return;
                }
                crate::sockets::support::look_again().await;
            }
        })
        .await;
        audited.world.kill();
        let (held, go) = hold_audits();
        audited.world.config.audit.observer = held;
        audited.world.start_mortal();
        audited.world.facilitator.accept().await;
        let runs = audited.world.get("/v0/audits/runs").await;
        let killed = &runs["runs"][0];
        assert_eq!(killed["state"], "interrupted", "{runs}");
        assert_eq!(killed["reason"], "the validator was restarted", "{runs}");
        assert_eq!(killed["verdict"], Value::Null, "{runs}");
        assert_eq!(audited.world.get("/v0/audits").await["audits"], json!([]));
        go.send_replace(true);
        audited.world.seen(62).await;
        let run = audited.next_audit().await;
        assert_eq!(run["verdict"], "convicted", "{run}");
        let left = run["answers"].as_u64().unwrap();
        assert!(
            (1..17).contains(&left),
            "scored answers are not scored again: {run}"
        );
    })
    .await;
}

/// The argument with which the validator's own miner starts the cheaper engine of a self-test.
const CHEAPER: &str = "--cheaper";

/// The newest self-test once it is in this state.
async fn until_tested(world: &World, state: &str) -> Value {
    let listed = async {
        loop {
            let listed = world.get("/v0/audits/self-tests").await;
            let newest = &listed["self_tests"][0];
            if newest["state"] == state {
                return newest.clone();
            }
            assert_eq!(newest["reason"], Value::Null, "{newest}");
            crate::sockets::support::look_again().await;
        }
    };
    within("the end of the self-test", listed).await
}

/// Seals a block now and again until `look` finds something.
pub(crate) async fn sealing_until<T>(world: &World, what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let looking = async {
        loop {
            for _ in 0..LOOKS {
                if let Some(found) = look().await {
                    return found;
                }
                crate::sockets::support::look_again().await;
            }
            world.chain.seal_to(world.chain.height() + 1);
        }
    };
    within(what, looking).await
}

/// Has the validator plant a cheat in `share_ppm` millionths of the answers of its tests.
fn plant(share_ppm: u32) -> impl FnOnce(&mut muster_validator::Config) {
    move |config| {
        config.audit.own_prompts = 0;
        let cheat = PlantedCheat {
            args: vec![CHEAPER.to_owned()],
            share_ppm,
        };
        config.audit.self_test.cheats = [("tiny".to_owned(), cheat)].into();
    }
}

/// A validator that tests its spot checks once: its own miner gives `share_ppm` millionths of the answers with the
/// program `planted`. Returns the test once it has ended.
async fn tested(share_ppm: u32, planted: axum::Router) -> Value {
    let (mut miner, mut trusted) = (Miner::open("//Miner").await, Miner::open("//Trusted").await);
    let configure = plant(share_ppm);
    let audited = Audited::start_with(World::in_real_time(&[&miner]).await, &trusted, false, configure).await;
    let fleet = Fleet::of_program(&miner.keypair, model(false, None));
    let planted = (CHEAPER, planted);
    let own = Fleet::of_programs(&trusted.keypair, whole_engine(), planted);
    let story = async {
        audited.ask().await;
        let world = &audited.world;
        let reached = async |state: &str| {
            let listed = world.get("/v0/audits/self-tests").await;
            let newest = &listed["self_tests"][0];
            assert_eq!(newest["reason"], Value::Null, "{newest}");
            (newest["state"] == state).then(|| newest.clone())
        };
        // Both engines start, a header commits to their prompts, and its draw block lets them be asked.
        let asked = sealing_until(world, "the answers", async || {
            let waits = reached("asking").await.is_some();
            let listed = world.get("/v0/audits/self-tests").await;
            (!waits).then(|| listed["self_tests"][0].clone())
        })
        .await;
        assert_eq!(asked["answers"], 256, "{asked}");
        sealing_until(world, "the verdict", async || reached("judged").await).await
    };
    // As in `with_configured`: each of these waits for a further connection until its time is over.
    let miners = Tasks::new();
    drop(miners.spawn("a miner", async move { fleet.stand(&mut miner, 1).await }));
    drop(miners.spawn("the own miner", async move { own.stand(&mut trusted, 2).await }));
    let test = story.await;
    let id = test["test"].as_str().unwrap();
    let url = audited
        .world
        .status_url(&format!("/v0/audits/self-tests/{id}"))
        .await;
    let bundle = reqwest::get(url).await.unwrap().text().await.unwrap();
    let replayed = replay(&bundle).unwrap();
    assert_eq!(test["bundle"], replayed.bundle.to_string());
    assert_eq!(test["verdict"], replayed.verdict.name());
    if replayed.verdict == Verdict::Convicted {
        let trial = try_forgeries(&serde_json::from_str(&bundle).unwrap());
        assert_eq!(trial.unforged, None, "adopters with the same scores follow it");
        for (forgery, reason) in [
            (Forgery::Tokens, "the own scores do not bear it out"),
            (
                Forgery::ClosedWords,
                "answers to 253 of 256 own prompts cannot be scored again",
            ),
            (Forgery::SkippedPositions, "253 of 256 own prompts have no answer"),
            (Forgery::AskedTwice, "is not the first one to its own prompt"),
            (Forgery::LateHeader, "not shown before their draw blocks"),
        ] {
            let refusal = trial.refusals[&forgery].as_deref().unwrap_or_default();
            assert!(refusal.contains(reason), "{forgery}: {refusal}");
        }
    }
    let adopted = audited.world.get("/v0/audits").await;
    assert_eq!(adopted["audits"], json!([]), "no score sees a self-test");
    drop(audited.folder);
    test
}

#[tokio::test]
async fn the_validator_convicts_a_cheat_in_a_tenth_of_the_answers_that_it_has_planted_itself() {
    let test = tested(100_000, model(true, None)).await;
    assert_eq!(test["verdict"], "convicted", "{test}");
    let cheated = test["cheated"].as_u64().unwrap();
    assert!((8..60).contains(&cheated), "about a tenth of 256: {test}");
}

#[tokio::test]
async fn a_self_test_whose_validator_is_killed_while_it_asks_leaves_no_verdict() {
    let (mut miner, mut trusted) = (Miner::open("//Miner").await, Miner::open("//Trusted").await);
    let world = World::in_real_time(&[&miner]).await;
    let mut audited = Audited::start_with(world, &trusted, true, plant(100_000)).await;
    let fleet = Fleet::of_program(&miner.keypair, model(false, None));
    let own = Fleet::of_programs(&trusted.keypair, whole_engine(), (CHEAPER, model(true, None)));
    let miners = Tasks::new();
    drop(miners.spawn("a miner", async move { fleet.stand(&mut miner, 1).await }));
    drop(miners.spawn("the own miner", async move { own.stand(&mut trusted, 2).await }));
    audited.ask().await;
    audited.world.chain.seal_to(25);
    until_tested(&audited.world, "asking").await;
    audited.world.kill();
    audited.world.start_mortal();
    audited.world.facilitator.accept().await;
    let ended = until_tested_for_nothing(&audited.world).await;
    assert_eq!(ended["reason"], "the validator was restarted", "{ended}");
    assert_eq!(
        (&ended["verdict"], &ended["bundle"]),
        (&Value::Null, &Value::Null),
        "{ended}"
    );
    drop(audited.folder);
}

/// The newest self-test once it has ended without a verdict.
async fn until_tested_for_nothing(world: &World) -> Value {
    within("the end of a self-test", async {
        loop {
            let listed = world.get("/v0/audits/self-tests").await;
            if listed["self_tests"][0]["state"] == "ended" {
                return listed["self_tests"][0].clone();
            }
            crate::sockets::support::look_again().await;
        }
    })
    .await
}

#[tokio::test]
async fn a_self_test_whose_planted_engine_is_honest_fails() {
    let test = tested(1_000_000, model(false, None)).await;
    assert_eq!(test["verdict"], "consistent", "{test}");
    assert_eq!(test["cheated"], 256, "{test}");
}

#[tokio::test]
async fn without_a_miner_of_its_own_the_validator_says_what_to_do() {
    let miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    world.config.gateway = GatewaySettings {
        bind: Some(([127, 0, 0, 1], 0).into()),
        ..GatewaySettings::default()
    };
    world.start();
    world.facilitator.accept().await;
    let refused = world.ask(reqwest::Method::POST, "/v0/audits/runs").await;
    assert!(
        refused["error"].as_str().unwrap().contains("[trusted_miner]"),
        "{refused}"
    );
}
