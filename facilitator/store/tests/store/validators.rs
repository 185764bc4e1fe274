//! Validators' heartbeats, and which replica holds a validator.

use muster_protocol::wire::muster::GatewayNotice;

use super::*;

#[tokio::test]
async fn signs_of_life_are_the_last_ones() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        assert_eq!(store.validator(validator).await.unwrap(), None);
        assert!(
            store
                .claim_validator(validator, Trust::Proven, true, at(0))
                .await
                .unwrap()
        );
        assert!(
            store
                .claim_validator(validator, Trust::Claimed, false, at(60))
                .await
                .unwrap()
        );
        let known = store.validator(validator).await.unwrap().unwrap();
        assert_eq!(
            (known.seen, known.trust, known.proven),
            (at(60), Trust::Claimed, Some(at(0)))
        );
        assert_eq!(store.validator(validator_key("Other")).await.unwrap(), None);
    }
}

#[tokio::test]
async fn one_facilitator_at_a_time_holds_a_validator() {
    for (test, a) in engines().await {
        let b = Store::open(&test.url).await.unwrap();
        let v = validator_key("Validator");
        a.record_alive(at(0)).await.unwrap();
        b.record_alive(at(0)).await.unwrap();
        assert!(a.claim_validator(v, Trust::Claimed, true, at(0)).await.unwrap());
        // A claimed connection to another replica takes nothing over from a live one, and may not report on jobs.
        let job = job("User", 1);
        create(&a, v, &job, at(0)).await;
        assert!(!b.claim_validator(v, Trust::Claimed, true, at(1)).await.unwrap());
        let received = update(job.uuid, JobStatus::Received);
        assert_eq!(
            b.record(v, &received, at(1)).await.unwrap(),
            UpdateOutcome::HeldElsewhere
        );
        assert!(b.is_held_elsewhere(v).await.unwrap() && !a.is_held_elsewhere(v).await.unwrap());
        // A proven connection takes over, at its first heartbeat only.
        assert!(b.claim_validator(v, Trust::Proven, true, at(2)).await.unwrap());
        assert!(!a.claim_validator(v, Trust::Claimed, false, at(3)).await.unwrap());
        assert_eq!(
            a.record(v, &received, at(3)).await.unwrap(),
            UpdateOutcome::HeldElsewhere
        );
        assert_eq!(
            b.record(v, &received, at(3)).await.unwrap(),
            UpdateOutcome::Recorded
        );
        assert!(a.claim_validator(v, Trust::Proven, true, at(4)).await.unwrap());
        assert!(!b.claim_validator(v, Trust::Proven, false, at(5)).await.unwrap());
        // A replica holds nothing after it has released, stopped recording that it lives, or received nothing for long.
        a.release(v).await.unwrap();
        assert!(b.claim_validator(v, Trust::Proven, false, at(6)).await.unwrap());
        a.record_alive(at(20)).await.unwrap();
        assert!(
            a.claim_validator(v, Trust::Claimed, false, at(20)).await.unwrap(),
            "{}",
            test.engine
        );
        b.record_alive(at(30)).await.unwrap();
        a.record_alive(at(110)).await.unwrap();
        b.record_alive(at(110)).await.unwrap();
        assert!(
            b.claim_validator(v, Trust::Claimed, false, at(111))
                .await
                .unwrap()
        );
        b.release_all().await.unwrap();
        assert!(!a.is_held_elsewhere(v).await.unwrap());
    }
}

#[tokio::test]
async fn each_announcement_of_a_gateway_has_a_later_time_and_none_takes_it_back() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        store
            .claim_validator(validator, Trust::Proven, true, at(0))
            .await
            .unwrap();
        assert_eq!(store.gateways().await.unwrap(), []);
        let mut notice = GatewayNotice {
            url: Some("https://gateway.example.org".to_owned()),
            models: Vec::new(),
        };
        let mut last = None;
        // The second and third come within one reading of the clock, and the clock steps back before the fourth.
        for (n, secs) in [5, 9, 9, 3].into_iter().enumerate() {
            notice.url = Some(format!("https://gateway{n}.example.org"));
            store
                .announce_gateway(validator, Some(&notice), at(secs))
                .await
                .unwrap();
            let listed = store.gateways().await.unwrap();
            let (announced_at, read) = store.gateway_notice(validator).await.unwrap().unwrap();
            assert_eq!((listed[0].announced_at, listed[0].seen), (announced_at, at(0)));
            assert_eq!(read, notice);
            assert!(last < Some(announced_at), "{n}");
            last = Some(announced_at);
        }
        store.announce_gateway(validator, None, at(10)).await.unwrap();
        assert_eq!(store.gateways().await.unwrap(), []);
        assert_eq!(store.gateway_notice(validator).await.unwrap(), None);
    }
}
