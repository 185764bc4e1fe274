//! The weights that stand while nobody earns anything: a neuron that may not keep its weight loses it to the burn.

use muster_identity::Keypair;
use muster_process::operator_token::OperatorToken;
use muster_protocol::{Hotkey, JobStatus};
use muster_scoring::ScoringSnapshot;
use serde_json::Value;

use crate::sockets::support::World;
use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::Miner;

/// A conviction of //Cheat, which belongs to //CheatOwner.
const BUNDLE: &str = include_str!("../../../../tests/vectors/audit-bundle.json");
/// The cycle in which nothing is left to be paid of the first one's points, if nobody earned anything between.
const VESTED: u64 = 21;

fn key(uri: &str) -> Hotkey {
    Keypair::from_uri(uri).unwrap().hotkey()
}

/// A validator with three miners: the first has uid 1, the cheat uid 2, and the subnet's owner uid 3. The first two
/// have done as much work in the first cycle, for which they have their weights.
async fn worked() -> (World, [Miner; 3]) {
    let mut first = Miner::open("//Miner").await;
    let mut cheat = Miner::open("//Cheat").await;
    let owner = Miner::open("//Owner").await;
    let mut world = World::in_real_time(&[&first, &cheat, &owner]).await;
    world.chain.own(2, key("//CheatOwner"));
    world.start();
    world.facilitator.accept().await;
    world.seen(1).await;
    for (at, miner) in [(1, &mut first), (2, &mut cheat)] {
        world.chain.without_axons();
        world.chain.announce(miner);
        world.facilitator.submit(&job("//User", at)).await;
        let mut session = miner.accept().await;
        let id = session.begin().await;
        session.complete(id).await;
        session.paid().await;
        let (statuses, _) = world.facilitator.updates_to_the_end().await;
        assert_eq!(statuses.last(), Some(&JobStatus::Completed));
    }
    let set = cycle(&world, 1, "set").await;
    assert_eq!(
        set["weights"],
        serde_json::json!([[1, 65_535], [2, 65_535]]),
        "{set}"
    );
    (world, [first, cheat, owner])
}

/// The block in which the window of a cycle opens: cycles have eleven blocks.
fn window(number: u64) -> u64 {
    11 * number + 5
}

/// Lets the window of a cycle open, and waits until the cycle is in this state.
async fn cycle(world: &World, number: u64, state: &str) -> Value {
    world.chain.seal_to(window(number));
    let is = |view: &Value| {
        let newest = &view["cycles"][0];
        newest["number"] == 11 * number && newest["state"] == state
    };
    world.until(&format!("cycle {number} to be {state}"), is).await["cycles"][0].clone()
}

/// The operator adopts the conviction.
async fn convict(world: &World) {
    let url = world.status_url("/v0/audits").await;
    let token = OperatorToken::read(&world.config.operator_token).unwrap();
    let request = reqwest::Client::new().post(url).body(BUNDLE);
    let answer = request
        .header("authorization", token.authorization())
        .send()
        .await
        .unwrap();
    let adopted: Value = answer.json().await.unwrap();
    assert_eq!(adopted["verdict"], "convicted", "{adopted}");
}

#[tokio::test]
async fn a_conviction_after_the_last_vesting_burns_the_convicts_weight_and_leaves_the_others() {
    let (mut world, _miners) = worked().await;
    for number in 2..=VESTED {
        cycle(&world, number, "kept").await;
    }
    assert_eq!(world.chain.weights().len(), 1, "a quiet cycle sets nothing");
    convict(&world).await;

    // The chain states no owner, and there is no burn hotkey.
    let unburned = cycle(&world, VESTED + 1, "kept").await;
    assert!(
        unburned["error"]
            .as_str()
            .unwrap()
            .contains("uids 2 are to be burned"),
        "{unburned}"
    );
    assert_eq!(world.chain.weights().len(), 1);

    world.chain.belong_to(key("//Owner"));
    let renewed = cycle(&world, VESTED + 2, "set").await;
    assert_eq!(renewed["error"], Value::Null, "{renewed}");
    let burned = (window(VESTED + 2), vec![(1, 65_535), (3, 65_535)]);
    assert_eq!(world.chain.weights()[1..], [burned]);
    // The snapshot gives anybody the same weights.
    let path = format!("/v0/scoring-snapshots/{}", renewed["snapshot"].as_str().unwrap());
    let snapshot = ScoringSnapshot::parse(&world.get(&path).await.to_string()).unwrap();
    let (_, again) = muster_scoring::score_cycle(&snapshot);
    assert_eq!(serde_json::to_value(again).unwrap(), renewed["weights"]);

    cycle(&world, VESTED + 3, "kept").await;
    assert_eq!(world.chain.weights().len(), 2, "nothing is left to be burned");
    world.stop().await;
}

#[tokio::test]
async fn the_weight_of_a_uid_that_passed_on_is_burned_in_a_quiet_cycle_and_while_the_weights_wait() {
    let (mut world, _miners) = worked().await;
    world.chain.belong_to(key("//Owner"));
    world.chain.replace(1, key("//Successor"));
    world.chain.refuse(1);
    let pending = cycle(&world, 2, "pending").await;
    assert_eq!(
        pending["weights"],
        serde_json::json!([[2, 65_535], [3, 65_535]]),
        "{pending}"
    );
    // The second miner leaves before the chain takes them.
    world.chain.replace(2, key("//Another"));
    world.chain.seal_to(window(2) + 1);
    world
        .until("the weights", |_| world.chain.weights().len() == 2)
        .await;
    assert_eq!(world.chain.weights()[1].1, [(3, 65_535)]);
    world.stop().await;
}
