//! The operator's pages over real sockets: hostile words of miners and of jobs are text there, and an adopted verdict
//! shows its evidence.

use muster_identity::Keypair;
use muster_process::operator_token::OperatorToken;
use muster_process::tls;
use muster_protocol::wire::machines::{MachineLoad, MachinesNotice};
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{Digest, ExecutorClass, Timestamp};
use muster_testbed::free_address;

use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::{Miner, Session};
use crate::sockets::support::{World, within};

/// A conviction of //Cheat, which belongs to //CheatOwner.
const BUNDLE: &str = include_str!("../../../../tests/vectors/audit-bundle.json");

/// Markup, a sequence that clears terminals, characters that reverse text, and a word as wide as a house.
fn hostile() -> String {
    format!(
        "</td><script>alert(1)</script><img src=x onerror=alert(2)>\u{1b}[2J\u{202e}'\"{}",
        "W".repeat(4_000)
    )
}

/// A page for the operator.
async fn read_page(world: &World, path: &str) -> (u16, String) {
    tls::install_provider();
    let address = world.config.operator.bind.unwrap();
    let token = OperatorToken::read(&world.config.operator_token).unwrap();
    let asked = reqwest::Client::new()
        .get(format!("http://{address}{path}"))
        .header("accept", "text/html")
        .header("authorization", token.authorization());
    let answer = within("a page", asked.send()).await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// Checks that nothing in a page is more than text.
fn check_text(path: &str, page: &str) {
    for found in ["<script>alert", "<img", "\u{1b}", "\u{202e}"] {
        assert!(!page.contains(found), "{path} has {found:?}: {page}");
    }
    let scripts = page.matches("<script").count();
    assert_eq!(scripts, 1, "{path} has the script of all pages alone");
}

#[tokio::test]
async fn hostile_words_of_miners_and_jobs_are_text_on_the_operators_pages() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.config.operator.bind = Some(free_address().unwrap());
    world.config.operator.public = true;
    // A job that finds no miner ends at once.
    world.config.queue.default_s = 0;
    world.config.routing.max_attempts = 1;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept_with(2).await;
    let offered = session.offer().await.job_uuid;
    let machines = vec![MachineLoad {
        name: hostile(),
        class: ExecutorClass::AlwaysOnTest,
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
    }];
    session
        .send(MinerToValidator::MusterMachines(Box::new(MachinesNotice {
            machines,
        })))
        .await;
    session.send(Session::horde_failure(offered, &hostile())).await;
    world.facilitator.updates_to_the_end().await;
    let key = miner.key();
    let own = format!("/miners/{key}");
    let words = "&lt;script&gt;alert(1)";
    within("the machine on its miner's page", async {
        while !read_page(&world, &own).await.1.contains(words) {
            crate::sockets::support::look_again().await;
        }
    })
    .await;
    let (_, jobs) = read_page(&world, "/jobs").await;
    assert!(
        jobs.contains(words),
        "the words of the miner's failure are there: {jobs}"
    );
    for path in [
        "/",
        "/jobs",
        "/grading",
        "/weights",
        "/audits",
        own.as_str(),
        "/subnet",
    ] {
        let (status, page) = read_page(&world, path).await;
        assert_eq!(status, 200, "{path}: {page}");
        check_text(path, &page);
    }
    world.stop().await;
}

#[tokio::test]
async fn an_adopted_verdict_shows_its_evidence_and_the_power_of_its_calibration() {
    let cheat = Miner::open("//Cheat").await;
    let mut world = World::new(&[&cheat]).await;
    world.config.operator.bind = Some(free_address().unwrap());
    world
        .chain
        .own(1, Keypair::from_uri("//CheatOwner").unwrap().hotkey());
    world.start();
    world.facilitator.accept().await;
    world.chain.seal_to(12);
    world.seen(12).await;
    let (_, empty) = read_page(&world, "/audits").await;
    assert!(
        empty.contains("No verdict about streamed answers is adopted"),
        "{empty}"
    );
    let token = OperatorToken::read(&world.config.operator_token).unwrap();
    let adopted = reqwest::Client::new()
        .post(world.status_url("/v0/audits").await)
        .header("authorization", token.authorization())
        .body(BUNDLE);
    assert_eq!(adopted.send().await.unwrap().status(), 200);

    let digest = Digest::of(BUNDLE.as_bytes());
    let (_, list) = read_page(&world, "/audits").await;
    assert!(list.contains("<span class=\"bad\">convicted</span>"), "{list}");
    let link = format!("/audits/{digest}");
    assert!(list.contains(&format!("href=\"{link}\"")), "{list}");
    let (status, shown) = read_page(&world, &link).await;
    assert_eq!(status, 200);
    for words in [
        "convicted",
        "Evidence over the answers",
        "All answers: alarm after",
        "Answers that may be published: alarm after",
        "polyline class=\"alarm\"",
        "The power of the calibration",
        "at the alarm",
        "Median of answers",
    ] {
        assert!(shown.contains(words), "{words} is missing: {shown}");
    }
    let unknown = format!("/audits/{}", Digest::of(b"another"));
    let (_, none) = read_page(&world, &unknown).await;
    assert!(none.contains("has adopted no bundle with that digest"), "{none}");
    world.stop().await;
}
