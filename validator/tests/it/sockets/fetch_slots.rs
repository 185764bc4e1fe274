//! Leases that get no slot for the fetch of their image: what is free, and what the leases in the slots excuse.

use std::time::Duration;

use muster_protocol::job::Outcome;
use muster_protocol::status::HordeFailureReason;
use muster_protocol::wire::executor::ExecutorUp;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{AttemptId, Receipt, ReceiptPayload, Timestamp};
use muster_routing::AttemptMark;
use serde_json::{Value, json};

use crate::sockets::support::World;
use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::{Miner, Session, whole};

/// An attempt from its offer to the fetch of its image, and its started receipt. The miner has one executor, so the
/// next attempt is offered once the validator knows that this one fetches.
async fn fetching(world: &mut World, session: &mut Session, at: i64) -> (AttemptId, Receipt) {
    world.facilitator.submit(&job("//User", at)).await;
    let offer = session.offer().await;
    let started = ReceiptPayload::Started(offer.job_started_receipt_payload.clone());
    let started = whole(&session.keypair, started, offer.job_started_receipt_signature);
    session.accept_job(offer.job_uuid).await;
    session.accepted_receipt().await;
    let up = ExecutorUp {
        job_uuid: offer.job_uuid,
        registry: "slow.example.org".to_owned(),
        image_s: 600,
    };
    session.send(MinerToValidator::MusterExecutorUp(up)).await;
    (offer.job_uuid, started)
}

/// Ends an attempt for want of a slot, with this evidence.
async fn end_without_a_slot(session: &mut Session, id: AttemptId, leases: Option<Value>) {
    let mut context = json!({ "image_fetch": "no_slot" });
    if let Some(leases) = leases {
        context["slot_leases"] = leases;
    }
    session
        .horde_failed_by(id, HordeFailureReason::GenericError, Some(context))
        .await;
    assert_eq!(session.paid().await, "0.000000");
}

#[tokio::test]
async fn a_miner_without_a_slot_is_excused_by_the_leases_that_it_shows_and_by_nothing_else() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.config.timing.linger_s = 3_600;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept().await;
    // The first job opened the session, and fetches nothing.
    let first = session.begin().await;
    session.complete(first).await;
    session.paid().await;
    let mut leases = Vec::new();
    for at in 2..8 {
        leases.push(fetching(&mut world, &mut session, at).await);
    }
    let [
        (a, of_a),
        (b, of_b),
        (free, _),
        (bare, _),
        (excused, _),
        (sham, of_sham),
    ] = <[_; 6]>::try_from(leases).unwrap();
    assert_ne!(a, b);
    // A receipt is of the past where it is evidence.
    world.test_clock.advance(Duration::from_secs(1));
    end_without_a_slot(&mut session, free, None).await;
    end_without_a_slot(&mut session, bare, None).await;
    // Two of the account hold slots, which is as many as an account may have.
    end_without_a_slot(&mut session, excused, Some(json!([of_a, of_b]))).await;
    let shown = json!([of_a, of_a, of_sham, "no receipt", 7]);
    end_without_a_slot(&mut session, sham, Some(shown)).await;
    world.stop().await;

    let store = muster_validator::store::Store::open(&world.config.store)
        .await
        .unwrap();
    let long_ago = Timestamp::from_secs(0);
    let groups = store.history(long_ago, long_ago).await.unwrap();
    let count = |wanted| -> u64 {
        let ended = groups
            .iter()
            .filter_map(|group| Some((group.ended?.1, group.count)));
        let such = ended.filter(|(mark, _)| *mark == wanted);
        such.map(|(_, count)| count).sum()
    };
    let marks = [
        AttemptMark::NoSlot,
        AttemptMark::Unexcused,
        AttemptMark::Clean,
        AttemptMark::Excuse,
        AttemptMark::Incident,
    ];
    assert_eq!(marks.map(count), [1, 2, 1, 0, 0], "{groups:?}");
    let ended = store.attempt(excused).await.unwrap().unwrap();
    let Some(Outcome::HordeFailed(details)) = ended.machine.outcome() else {
        panic!("{:?}", ended.machine)
    };
    let context = details.context.as_ref().unwrap();
    assert_eq!(
        context["slot_leases"],
        Value::Null,
        "the receipts are for the validator"
    );
    store.close().await;
}
