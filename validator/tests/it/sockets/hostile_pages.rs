//! Hostile receipt pages: receipts of validators that do not exist, more receipts than work, and what a store keeps of
//! them. The cycle is scored, its weights are set, and the validator goes on.

use std::net::SocketAddr;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response};
use axum::routing::get;
use futures_util::stream;
use muster_chain::BlockNumber;
use muster_identity::{Keypair, verify_receipts};
use muster_process::{Clock as _, Tasks};
use muster_protocol::receipt::parse_page_name;
use muster_protocol::{Receipt, ReceiptPayload, Timestamp};
use muster_receipts::{PageCursor, PageSource};
use muster_validator::store::{GatheredPage, PlacedReceipt, Store};
use serde_json::Value;

use super::gathering::{about, gathered, signed, start, world, write};
use crate::sockets::support::miner::Miner;
use crate::sockets::support::{World, while_time_passes};
use crate::store::refuse_rows;

/// The size of each of the hostile miner's pages: the most that is read of one.
const PAGE_BYTES: usize = 64 << 20;

/// A server whose every page repeats one block of lines up to the largest size of a page. It makes the bytes as they
/// are sent, so its own memory does not grow.
async fn serve_endless_pages(tasks: &Tasks, block: Bytes) -> SocketAddr {
    async fn page(
        State(block): State<Bytes>,
        Path(name): Path<String>,
        headers: HeaderMap,
    ) -> Response<Body> {
        if parse_page_name(&name).is_none() {
            return Response::builder().status(404).body(Body::empty()).unwrap();
        }
        let range = headers.get("range").and_then(|range| range.to_str().ok());
        let first = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        let first: usize = first.unwrap_or(0);
        if first >= PAGE_BYTES {
            return Response::builder().status(416).body(Body::empty()).unwrap();
        }
        let chunks = stream::unfold(first, move |place| {
            let block = block.clone();
            async move {
                let begin = place % block.len();
                let end = block
                    .len()
                    .min(begin + (64 << 10))
                    .min(begin + PAGE_BYTES - place);
                (place < PAGE_BYTES).then(|| {
                    (
                        Ok::<_, std::io::Error>(block.slice(begin..end)),
                        place + end - begin,
                    )
                })
            }
        });
        Response::builder()
            .status(206)
            .header(
                "content-range",
                format!("bytes {first}-{}/{PAGE_BYTES}", PAGE_BYTES - 1),
            )
            .body(Body::from_stream(chunks))
            .unwrap()
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/receipts/{name}", get(page))
        .with_state(block);
    let stop = tasks.token();
    drop(tasks.spawn("hostile pages", async move {
        tokio::select! {
            served = async { axum::serve(listener, router).await } => served.unwrap(),
            () = stop.cancelled() => {}
        }
    }));
    address
}

fn lines(receipts: &[Receipt]) -> Bytes {
    let mut lines = Vec::new();
    for receipt in receipts {
        serde_json::to_writer(&mut lines, receipt).unwrap();
        lines.push(b'\n');
    }
    lines.into()
}

/// The peak of this process's memory in KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn refused(state: &Value, reason: &str) -> u64 {
    let views = state["refused"].as_array().unwrap();
    let view = views.iter().find(|view| view["reason"] == reason);
    view.map_or(0, |view| view["refused"].as_u64().unwrap())
}

/// The state once the cycle that ends with this block has weights on the chain.
async fn weights_set(world: &World, last_block: u64) -> Value {
    let set = world.until("weights", |state| {
        state["cycles"][0]["last_block"] == last_block && state["cycles"][0]["state"] == "set"
    });
    while_time_passes(&world.test_clock, "weights", set).await
}

#[tokio::test]
async fn pages_of_made_up_validators_stop_no_weights_and_need_no_memory() {
    let (miner, hostile) = (Miner::open("//Miner").await, Miner::open("//Hostile").await);
    let other = Miner::open("//Other").await;
    let mut world = world(&miner, &other).await;
    // The hostile miner is registered, and serves nothing yet.
    world.chain.move_axon(2, None);
    let mut attempt = 0;
    let mut honest = |at: Timestamp| -> Vec<Receipt> {
        let attempts = attempt..attempt + 300;
        attempt += 300;
        attempts
            .flat_map(|attempt| about(&other.keypair, &miner.keypair, attempt, "5.000000", at))
            .collect()
    };
    let made_up: Vec<Receipt> = (0..1_500_u128)
        .flat_map(|attempt| {
            let validator = Keypair::from_uri(&format!("//MadeUp{}", attempt % 50)).unwrap();
            about(
                &validator,
                &other.keypair,
                1_000_000 + attempt,
                "9.000000",
                start(),
            )
        })
        .collect();
    let tasks = Tasks::new();
    let address = serve_endless_pages(&tasks, lines(&made_up)).await;
    drop((made_up, hostile));

    // A cycle without the hostile miner.
    let now = world.test_clock.now();
    write(&miner, now, &honest(now));
    world.start();
    world.facilitator.accept().await;
    gathered(&world, 600).await;
    world.chain.seal_to(16);
    weights_set(&world, 10).await;
    let before = peak_memory();

    // A cycle beside it.
    world.chain.move_axon(2, Some(address));
    let now = world.test_clock.now();
    write(&miner, now, &honest(now));
    let flooded = world.until("the flood", |state| {
        state["gathered"] == 1_200 && refused(state, "no_permit") > 20_000
    });
    while_time_passes(&world.test_clock, "the flood", flooded).await;
    world.chain.seal_to(27);
    let state = weights_set(&world, 21).await;
    let (cycle, after) = (&state["cycles"][0], peak_memory());
    assert_eq!(cycle["scores"][0]["micros"], 1_500_000_000, "{cycle}");
    assert_eq!(state["gathered"], 1_200, "nothing of the hostile miner is kept");
    assert!(
        after * 10 <= before * 12,
        "the peak of memory was {before} KiB, and is {after} KiB beside the hostile miner"
    );
    tasks.shutdown();
}

/// A finished receipt that names as many blocks as it may, with its started one.
fn of_long_jobs(validator: &Keypair, miner: &Keypair, attempt: u128, at: Timestamp) -> [Receipt; 2] {
    let [started, finished] = about(validator, miner, attempt, "5.000000", at);
    let ReceiptPayload::Finished(mut finished) = finished.payload else {
        panic!("the second one is finished: {finished:?}");
    };
    finished.block_numbers = vec![1 << 32; 10_000];
    [
        started,
        signed(validator, miner, ReceiptPayload::Finished(finished)),
    ]
}

#[tokio::test]
async fn a_pair_keeps_no_more_than_its_quota_also_across_a_restart_and_the_others_are_paid() {
    let (miner, other) = (Miner::open("//Miner").await, Miner::open("//Other").await);
    let hostile = Miner::open("//Hostile").await;
    let mut world = World::new(&[&miner, &other, &hostile]).await;
    world.chain.permit(2);
    world.config.receipts.gather = true;
    world.config.receipts.interval_s = 1;
    world.test_clock.advance_to(start());
    let now = world.test_clock.now();
    for attempt in 0..120 {
        write(
            &hostile,
            now,
            &of_long_jobs(&other.keypair, &hostile.keypair, attempt, now),
        );
    }
    write(
        &miner,
        now,
        &about(&other.keypair, &miner.keypair, 1_000, "5.000000", now),
    );
    world.start();
    world.facilitator.accept().await;
    let read = |state: &Value| state["gathered"].as_u64().unwrap() + refused(state, "over_quota") == 242;
    let state = world.until("the pages", read);
    let state = while_time_passes(&world.test_clock, "the pages", state).await;
    let over = refused(&state, "over_quota");
    assert!(
        (20..60).contains(&over),
        "{over} of 240 receipts are beyond the quota"
    );

    // The next process counts on from there.
    world.stop().await;
    let later = world.test_clock.now();
    // Signed in the same cycle as those before.
    let more = of_long_jobs(&other.keypair, &hostile.keypair, 500, now);
    write(&hostile, now, &more[1..]);
    let paid = about(&other.keypair, &miner.keypair, 1_001, "5.000000", later);
    write(&miner, later, &paid);
    world.start();
    world.facilitator.accept().await;
    let again = world.until("the later receipts", |state| {
        state["gathered"] == 244 - over && refused(state, "over_quota") == over + 1
    });
    while_time_passes(&world.test_clock, "the later receipts", again).await;
    world.chain.seal_to(16);
    let state = weights_set(&world, 10).await;
    let scores = state["cycles"][0]["scores"].as_array().unwrap();
    let honest = scores
        .iter()
        .find(|score| score["miner"] == miner.key().to_string());
    assert_eq!(honest.unwrap()["micros"], 10_000_000, "{state}");
}

#[tokio::test]
async fn a_validator_that_lost_its_permit_counts_for_one_more_epoch_also_after_a_restart() {
    let (miner, other) = (Miner::open("//Miner").await, Miner::open("//Other").await);
    let mut world = world(&miner, &other).await;
    world.chain.remember();
    world.start();
    world.facilitator.accept().await;
    let seal = async |world: &World, block: u64| {
        world.chain.seal_to(block);
        world.seen(block).await;
        let then = Timestamp::from_micros(1_770_000_000_000_000 + i64::try_from(block).unwrap() * 12_000_000);
        world.test_clock.advance_to(then.max(world.test_clock.now()));
    };
    // The permit is seen at the begin of the epoch of block 11, and is lost in it.
    seal(&world, 12).await;
    world.chain.revoke(2);
    seal(&world, 23).await;
    world.stop().await;
    let now = world.test_clock.now();
    write(
        &miner,
        now,
        &about(&other.keypair, &miner.keypair, 1, "5.000000", now),
    );
    world.start();
    world.facilitator.accept().await;
    let state = gathered(&world, 2).await;
    assert_eq!(refused(&state, "no_permit"), 0, "{state}");

    seal(&world, 34).await;
    let now = world.test_clock.now();
    write(
        &miner,
        now,
        &about(&other.keypair, &miner.keypair, 2, "5.000000", now),
    );
    let late = world.until("the refusal", |state| refused(state, "no_permit") == 2);
    let state = while_time_passes(&world.test_clock, "the refusal", late).await;
    assert_eq!(state["gathered"], 2, "{state}");
}

#[tokio::test]
async fn a_cycle_is_scored_without_what_an_earlier_release_stored_of_made_up_validators() {
    let (miner, other) = (Miner::open("//Miner").await, Miner::open("//Other").await);
    let mut world = world(&miner, &other).await;
    let now = world.test_clock.now();
    write(
        &miner,
        now,
        &about(&other.keypair, &miner.keypair, 1, "5.000000", now),
    );
    world.start();
    world.facilitator.accept().await;
    gathered(&world, 2).await;
    world.stop().await;

    let stranger = Keypair::from_uri("//Stranger").unwrap();
    let flood: Vec<_> = (0..50)
        .flat_map(|attempt| about(&stranger, &miner.keypair, attempt, "900.000000", now))
        .collect();
    let store = Store::open(&world.config.store).await.unwrap();
    let placed = verify_receipts(flood, now)
        .into_iter()
        .map(|receipt| PlacedReceipt {
            receipt: receipt.unwrap(),
            block: BlockNumber(1),
            cycle: 0,
        });
    let page = GatheredPage {
        source: PageSource::Miner(miner.key()),
        page: 1,
        cursor: PageCursor::default(),
        good: placed.collect(),
        refused: vec![],
        own_page: None,
    };
    let me = muster_protocol::ValidatorKey(world.keypair.hotkey());
    store.store_gathered(me, &page, now).await.unwrap();
    store.close().await;

    world.start();
    world.facilitator.accept().await;
    world.chain.seal_to(16);
    let state = weights_set(&world, 10).await;
    let cycle = &state["cycles"][0];
    assert_eq!(cycle["scores"][0]["micros"], 5_000_000, "{cycle}");
    assert_eq!(cycle["dropped"].as_array().unwrap().len(), 0, "{cycle}");
    assert_eq!(
        refused(&state, "no_permit"),
        50,
        "the operator sees what was left out"
    );
}

#[tokio::test]
async fn a_value_that_the_store_refuses_ends_a_cycles_write_and_not_the_validator() {
    let (miner, other) = (Miner::open("//Miner").await, Miner::open("//Other").await);
    let mut world = world(&miner, &other).await;
    let now = world.test_clock.now();
    write(
        &miner,
        now,
        &about(&other.keypair, &miner.keypair, 1, "5.000000", now),
    );
    world.start();
    world.facilitator.accept().await;
    gathered(&world, 2).await;
    world.stop().await;
    let pool = muster_store::open(&world.config.store).await.unwrap();
    refuse_rows(&pool, "sqlite", "cycles").await;
    pool.close().await;

    world.start();
    world.facilitator.accept().await;
    for block in 16..19 {
        world.chain.seal_to(block);
        let state = world.seen(block).await;
        assert_eq!(state["cycles"].as_array().unwrap().len(), 0, "{state}");
    }
    assert!(world.chain.weights().is_empty());
    world.stop().await;
    let pool = muster_store::open(&world.config.store).await.unwrap();
    sqlx::raw_sql("DROP TRIGGER too_long")
        .execute(&pool)
        .await
        .unwrap();
    pool.close().await;

    // The next try succeeds in the same window.
    world.start();
    world.facilitator.accept().await;
    world.chain.seal_to(19);
    weights_set(&world, 10).await;
}
