//! Adopted verdicts about streamed answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_audit::Verdict;
use muster_chain::{BlockNumber, Metagraph, Netuid, Neuron, Uid};
use muster_identity::Keypair;
use muster_process::{SharedClock, SystemClock};
use muster_protocol::{Digest, Hotkey, MinerKey, ValidatorKey};
use muster_validator::store::retention::ValidatorRetentionConfig;
use muster_validator::store::{
    AdoptedAudit, AuditOffer, AuditOrigin, OfferState, OfferedVerdict, Store, StoredEndorsement,
    StoredSelfTest,
};
use muster_verdict_exchange::statements::{AuditEndorsement, sign_text};
use muster_verdict_exchange::{ConvictionEnd, end_of_new, review_convictions};

use super::retention::sweep_with;
use super::{NOW, each};

fn audit(name: &str, coldkey: u8, model: &str, quality_per_mille: u16, at: i64) -> AdoptedAudit {
    AdoptedAudit {
        digest: Digest::of(name.as_bytes()),
        coldkey: Hotkey::from_bytes([coldkey; 32]),
        miners: vec![MinerKey(Hotkey::from_bytes([coldkey + 100; 32]))],
        model: model.to_owned(),
        verdict: if quality_per_mille == 0 {
            "convicted"
        } else {
            "consistent"
        }
        .to_owned(),
        quality_per_mille,
        adopted_at: NOW(at),
        origin: AuditOrigin::Own,
        author: Some(ValidatorKey(Hotkey::from_bytes([1; 32]))),
        through_bucket: u64::try_from(at).unwrap(),
        newest_answer: 0,
        scored: 0,
    }
}

#[tokio::test]
async fn the_newest_verdict_about_a_coldkey_and_a_model_counts_on_its_chain() {
    for (_test, store) in each().await {
        store.note_chain("0xa", BlockNumber(9), NOW(1)).await.unwrap();
        let convicted = audit("convicted", 1, "tiny", 0, 1);
        let cleared = audit("cleared", 1, "tiny", 1_000, 2);
        let other_model = audit("other model", 1, "large", 0, 1);
        for one in [&convicted, &cleared, &other_model] {
            store.put_audit(one, "{}").await.unwrap();
        }
        let counting = store.counting_audits().await.unwrap();
        assert_eq!(counting, [other_model.clone(), cleared.clone()]);
        // The conviction is adopted anew: it becomes the newest.
        let again = AdoptedAudit {
            adopted_at: NOW(3),
            ..convicted
        };
        store.put_audit(&again, "{}").await.unwrap();
        assert_eq!(
            store.counting_audits().await.unwrap(),
            [other_model, again.clone()]
        );
        assert_eq!(store.audits(2).await.unwrap(), [again.clone(), cleared]);
        assert_eq!(store.audits(9).await.unwrap().len(), 3);
        assert_eq!(
            store.audit_bundle(again.digest).await.unwrap().as_deref(),
            Some("{}")
        );
        assert_eq!(store.audit_bundle(Digest::of(b"none")).await.unwrap(), None);
        store.note_chain("0xb", BlockNumber(1), NOW(4)).await.unwrap();
        assert_eq!(store.counting_audits().await.unwrap(), [], "another chain");
    }
}

#[tokio::test]
async fn an_authors_verdict_is_lifted_by_its_own_later_one_and_by_the_operators_only() {
    for (_test, store) in each().await {
        store.note_chain("0xa", BlockNumber(9), NOW(1)).await.unwrap();
        let by = |name: &str, author: u8, origin, quality, at| AdoptedAudit {
            author: Some(ValidatorKey(Hotkey::from_bytes([author; 32]))),
            origin,
            ..audit(name, 1, "tiny", quality, at)
        };
        let convicted = by("convicted", 1, AuditOrigin::Rescored, 0, 1);
        let own = by("own", 2, AuditOrigin::Own, 1_000, 2);
        for one in [&convicted, &own] {
            store.put_audit(one, "{}").await.unwrap();
        }
        let counting = store.counting_audits().await.unwrap();
        assert_eq!(
            counting,
            [convicted.clone(), own.clone()],
            "another validator's view"
        );
        let appeal = by("appeal", 1, AuditOrigin::Rescored, 1_000, 3);
        store.put_audit(&appeal, "{}").await.unwrap();
        assert_eq!(store.counting_audits().await.unwrap(), [appeal, own]);
        let operators = by("operator's", 3, AuditOrigin::Operator, 0, 4);
        store.put_audit(&operators, "{}").await.unwrap();
        assert_eq!(store.counting_audits().await.unwrap(), [operators]);
    }
}

#[tokio::test]
async fn a_conviction_counts_until_its_author_finds_the_coldkey_consistent() {
    for (_test, store) in each().await {
        store.note_chain("0xa", BlockNumber(9), NOW(1)).await.unwrap();
        let later = |verdict: &str, at| AdoptedAudit {
            verdict: verdict.to_owned(),
            ..audit(verdict, 1, "tiny", 1_000, at)
        };
        let convicted = audit("convicted", 1, "tiny", 0, 1);
        let author = convicted.author.unwrap();
        store.put_audit(&convicted, "{}").await.unwrap();
        let says_less = [
            "unproven(no scored answers)",
            "unproven(no calibration)",
            "weak",
            "suspect",
        ];
        for (verdict, at) in says_less.into_iter().zip(2..) {
            store.put_audit(&later(verdict, at), "{}").await.unwrap();
            let counting = store.counting_audits().await.unwrap();
            assert!(counting.contains(&convicted), "{verdict}: {counting:?}");
            let shown = store.shown_audits(author, 9).await.unwrap();
            assert!(
                shown.iter().any(|(audit, _)| *audit == convicted),
                "{verdict}: {shown:?}"
            );
        }
        sweep_with(&store, &ValidatorRetentionConfig::default(), 400 * 86_400).await;
        assert!(
            store.counting_audits().await.unwrap().contains(&convicted),
            "however old"
        );
        let lifted = later("consistent", 400 * 86_400);
        store.put_audit(&lifted, "{}").await.unwrap();
        assert_eq!(
            store.counting_audits().await.unwrap(),
            std::slice::from_ref(&lifted)
        );
        // A verdict that proves nothing takes no `consistent` one away either.
        let unproven = AdoptedAudit {
            digest: Digest::of(b"nothing"),
            ..later("unproven(no scored answers)", 401 * 86_400)
        };
        store.put_audit(&unproven, "{}").await.unwrap();
        assert_eq!(store.counting_audits().await.unwrap(), [lifted]);
    }
}

#[tokio::test]
async fn an_ended_conviction_counts_no_longer_and_its_coldkey_is_watched_until_it_is_consistent() {
    for (_test, store) in each().await {
        store.note_chain("0xa", BlockNumber(9), NOW(1)).await.unwrap();
        let convicted = audit("convicted", 1, "tiny", 0, 1);
        let author = convicted.author.unwrap();
        store.put_audit(&convicted, "{}").await.unwrap();
        store.note_support(convicted.digest, Some(7)).await.unwrap();
        let standing = store.standing_convictions().await.unwrap();
        assert_eq!(
            (&standing[0].audit, standing[0].unsupported_since),
            (&convicted, Some(7))
        );
        let consistent = |name: &str, scored, at| AdoptedAudit {
            digest: Digest::of(name.as_bytes()),
            verdict: "consistent".to_owned(),
            scored,
            ..audit(name, 1, "tiny", 1_000, at)
        };
        let ordinary = consistent("ordinary", 90, 2);
        store
            .set_audit_aside(&ordinary, "{}", "a conviction stands")
            .await
            .unwrap();
        let counting = store.counting_audits().await.unwrap();
        assert_eq!(counting, std::slice::from_ref(&convicted), "it lifts nothing");
        store
            .end_conviction(convicted.digest, "thirty days", NOW(3))
            .await
            .unwrap();
        assert_eq!(store.counting_audits().await.unwrap(), []);
        assert_eq!(store.standing_convictions().await.unwrap(), []);
        assert_eq!(store.shown_audits(author, 9).await.unwrap(), []);
        let audits = store.audits(9).await.unwrap();
        assert_eq!(
            audits,
            std::slice::from_ref(&convicted),
            "refunds go on: nothing lifted it"
        );
        let consistent_since = async || {
            let ended = store.ended_convictions().await.unwrap();
            let since: Vec<u64> = ended
                .iter()
                .map(|conviction| conviction.consistent_since)
                .collect();
            since
        };
        assert_eq!(consistent_since().await, [0], "one from before says nothing");
        store.put_audit(&consistent("few", 63, 4), "{}").await.unwrap();
        assert_eq!(consistent_since().await, [63]);
        store.put_audit(&consistent("enough", 64, 5), "{}").await.unwrap();
        assert_eq!(consistent_since().await, [64]);
        store.settle_conviction(convicted.digest, NOW(6)).await.unwrap();
        assert_eq!(consistent_since().await, [0_u64; 0]);
        // The same bundle counts again if it is adopted anew.
        let again = AdoptedAudit {
            adopted_at: NOW(7),
            ..convicted
        };
        store.put_audit(&again, "{}").await.unwrap();
        assert_eq!(store.standing_convictions().await.unwrap()[0].audit, again);
    }
}

#[tokio::test]
async fn a_conviction_that_has_ended_is_kept_until_it_is_settled_and_a_verdict_that_was_set_aside_goes_by_age()
 {
    for (_test, store) in each().await {
        store.note_chain("0xa", BlockNumber(9), NOW(1)).await.unwrap();
        let [before, convicted, later] = [
            audit("before", 1, "tiny", 0, 1),
            audit("convicted", 1, "tiny", 0, 2),
            audit("few", 1, "tiny", 1_000, 6),
        ];
        let aside = audit("aside", 1, "tiny", 1_000, 3);
        for one in [&before, &convicted] {
            store.put_audit(one, "{}").await.unwrap();
        }
        store
            .set_audit_aside(&aside, "{}", "it lifts nothing")
            .await
            .unwrap();
        store
            .end_conviction(convicted.digest, "thirty days", NOW(5))
            .await
            .unwrap();
        store.put_audit(&later, "{}").await.unwrap();
        let kept = async |days: i64| {
            sweep_with(&store, &ValidatorRetentionConfig::default(), days * 86_400).await;
            let mut kept = Vec::new();
            for one in [&before, &aside, &convicted, &later] {
                kept.push(store.audit_bundle(one.digest).await.unwrap().is_some());
            }
            kept
        };
        assert_eq!(
            kept(400).await,
            [false, false, true, true],
            "its coldkey is watched"
        );
        assert_eq!(store.ended_convictions().await.unwrap().len(), 1);
        store.settle_conviction(convicted.digest, NOW(7)).await.unwrap();
        assert_eq!(kept(400).await, [false, false, false, true]);
        assert_eq!(store.counting_audits().await.unwrap(), [later]);
    }
}

#[tokio::test]
async fn a_settled_conviction_goes_by_age_with_those_whose_place_it_took() {
    for (_test, store) in each().await {
        store.note_chain("0xa", BlockNumber(9), NOW(1)).await.unwrap();
        let [before, convicted] = [("before", 1), ("convicted", 2)].map(|(name, at)| AdoptedAudit {
            origin: AuditOrigin::Endorsed,
            ..audit(name, 1, "tiny", 0, at)
        });
        for one in [&before, &convicted] {
            store.put_audit(one, "{}").await.unwrap();
        }
        store
            .end_conviction(convicted.digest, "thirty days", NOW(5))
            .await
            .unwrap();
        store.settle_conviction(convicted.digest, NOW(5)).await.unwrap();
        for _ in 0..3 {
            assert_eq!(store.counting_audits().await.unwrap(), []);
            sweep_with(&store, &ValidatorRetentionConfig::default(), 400 * 86_400).await;
        }
        assert_eq!(store.audit_bundle(convicted.digest).await.unwrap(), None);
    }
}

/// A subnet at a block, in which these validators have permits.
fn subnet_at(block: u64, permitted: &[u8]) -> Metagraph {
    let neuron = |(uid, key): (u16, u8)| Neuron {
        uid: Uid(uid),
        hotkey: Keypair::from_seed([key; 32]).hotkey(),
        coldkey: Hotkey::from_bytes([100 + key; 32]),
        axon: None,
        stake: 9,
        permit: permitted.contains(&key),
        active: true,
        registered: BlockNumber(0),
        last_update: BlockNumber(0),
        incentive: 0,
    };
    Metagraph {
        block: BlockNumber(block),
        netuid: Netuid(1),
        tempo: 360,
        last_epoch: BlockNumber(0),
        certificates: BTreeMap::new(),
        neurons: (0..).zip(1..=5).map(neuron).collect(),
    }
}

#[tokio::test]
async fn a_conviction_by_statements_ends_without_its_author_and_one_by_own_scores_does_not() {
    let genesis = format!("0x{}", "ab".repeat(32));
    let clock: SharedClock = Arc::new(SystemClock::new());
    let key = |seed: u8| ValidatorKey(Keypair::from_seed([seed; 32]).hotkey());
    for (_test, store) in each().await {
        store.note_chain(&genesis, BlockNumber(9), NOW(1)).await.unwrap();
        let convicted = |name: &str, coldkey, origin| AdoptedAudit {
            origin,
            verdict: "convicted".to_owned(),
            author: Some(key(1)),
            newest_answer: 4_000,
            ..audit(name, coldkey, "tiny", 0, 1)
        };
        let endorsed = convicted("endorsed", 1, AuditOrigin::Endorsed);
        let rescored = convicted("rescored", 2, AuditOrigin::Rescored);
        for one in [&endorsed, &rescored] {
            store.put_audit(one, "{}").await.unwrap();
        }
        for seed in [2, 3] {
            let statement = AuditEndorsement {
                genesis: Digest::from_bytes([0xab; 32]),
                netuid: 1,
                bundle: endorsed.digest,
                validator: key(seed),
                verdict: Verdict::Convicted,
                block: 3,
            };
            let stored = StoredEndorsement {
                digest: endorsed.digest,
                validator: key(seed),
                statement: sign_text(&Keypair::from_seed([seed; 32]), &statement),
                seen_at: NOW(1),
            };
            assert!(store.put_endorsement(&stored).await.unwrap());
        }
        let review = async |block, permitted: &[u8]| {
            let subnet = subnet_at(block, permitted);
            review_convictions(&store, &subnet, key(5), &clock).await.unwrap();
            let standing = store.standing_convictions().await.unwrap();
            standing
                .into_iter()
                .map(|one| one.unsupported_since)
                .collect::<Vec<_>>()
        };
        assert_eq!(review(100_100, &[1, 2, 3]).await, [None, None]);
        assert_eq!(review(100_500, &[1, 2]).await, [Some(100_500), None]);
        assert_eq!(review(103_000, &[1, 2, 3]).await, [None, None], "in time");
        assert_eq!(review(103_500, &[2, 3]).await, [Some(103_500), None]);
        assert_eq!(review(103_500 + 8 * 361 - 1, &[]).await.len(), 2);
        assert_eq!(review(103_500 + 8 * 361, &[]).await, [None]);
        assert_eq!(store.counting_audits().await.unwrap(), [rescored]);
        assert_eq!(review(100_024 + 216_000 - 1, &[]).await, [None]);
        assert_eq!(review(100_024 + 216_000, &[]).await, [], "thirty days");
        // Statements leave nothing behind, and own scores a coldkey that is watched.
        let watched = async || {
            let ended = store.ended_convictions().await.unwrap();
            ended
                .into_iter()
                .map(|conviction| conviction.audit.digest)
                .collect::<Vec<_>>()
        };
        let digest = Digest::of(b"rescored");
        assert_eq!(watched().await, [digest]);
        let consistent = AdoptedAudit {
            author: Some(key(5)),
            scored: 64,
            adopted_at: clock.now(),
            ..audit("consistent", 2, "tiny", 1_000, 1)
        };
        let few = AdoptedAudit {
            scored: 63,
            digest: Digest::of(b"few"),
            ..consistent.clone()
        };
        for (verdict, is_watched) in [(few, true), (consistent, false)] {
            store.put_audit(&verdict, "{}").await.unwrap();
            review(400_000, &[]).await;
            assert_eq!(watched().await.is_empty(), !is_watched, "{verdict:?}");
        }
    }
}

#[test]
fn to_judge_old_answers_again_makes_a_conviction_neither_newer_nor_older() {
    let convicted = |newest_answer| AdoptedAudit {
        newest_answer,
        ..audit("convicted", 1, "tiny", 0, 1)
    };
    let after = |mut audit: AdoptedAudit, earlier: AdoptedAudit| {
        audit.keep_newest(&earlier);
        audit.newest_answer
    };
    assert_eq!(after(convicted(3), convicted(5)), 5);
    assert_eq!(after(convicted(7), convicted(5)), 7);
    let of_other = |coldkey, quality| AdoptedAudit {
        newest_answer: 5,
        ..audit("other", coldkey, "tiny", quality, 1)
    };
    assert_eq!(after(convicted(3), of_other(2, 0)), 3, "another coldkey's");
    assert_eq!(after(convicted(3), of_other(1, 1_000)), 3, "no conviction");
    // Bucket 4,000 ends with block 100,024.
    let end = |origin, block| {
        let stored = AdoptedAudit {
            origin,
            ..convicted(4_000)
        };
        end_of_new(&stored, &subnet_at(block, &[]))
    };
    for origin in [AuditOrigin::Own, AuditOrigin::Rescored, AuditOrigin::Endorsed] {
        assert_eq!(end(origin, 100_024 + 216_000 - 1), None, "{origin:?}");
        assert_eq!(
            end(origin, 100_024 + 216_000),
            Some(ConvictionEnd::Age),
            "{origin:?}"
        );
    }
    assert_eq!(end(AuditOrigin::Operator, 900_000), None);
}

#[tokio::test]
async fn a_convict_was_asked_when_any_conviction_of_its_coldkey_and_model_was_noted() {
    for (_test, store) in each().await {
        store.note_chain("0xa", BlockNumber(9), NOW(1)).await.unwrap();
        let convicted = audit("convicted", 1, "tiny", 0, 1);
        for one in [&convicted, &audit("of another model", 1, "large", 0, 1)] {
            store.put_audit(one, "{}").await.unwrap();
        }
        let asked_at = async || {
            let standing = store.standing_convictions().await.unwrap();
            let asked = standing.into_iter().map(|one| (one.audit.model, one.asked_at));
            asked.collect::<Vec<_>>()
        };
        let (large, tiny) = ("large".to_owned(), "tiny".to_owned());
        assert_eq!(asked_at().await, [(large.clone(), None), (tiny.clone(), None)]);
        store
            .note_asked(&convicted.coldkey, "tiny", NOW(2))
            .await
            .unwrap();
        let asked = [(large, None), (tiny, Some(NOW(2)))];
        assert_eq!(asked_at().await, asked);
        store
            .put_audit(&audit("renewed", 1, "tiny", 0, 3), "{}")
            .await
            .unwrap();
        assert_eq!(
            asked_at().await,
            asked,
            "the new conviction does not begin a new day"
        );
    }
}

#[tokio::test]
async fn an_audit_is_judged_by_its_own_verdict_and_no_other() {
    for (_test, store) in each().await {
        store.note_chain("0xa", BlockNumber(9), NOW(1)).await.unwrap();
        let stored = audit("own", 1, "tiny", 1_000, 5);
        let rescored = AdoptedAudit {
            origin: AuditOrigin::Rescored,
            ..audit("rescored", 1, "tiny", 0, 6)
        };
        store.put_audit(&rescored, "{}").await.unwrap();
        store
            .set_audit_aside(&stored, "{}", "it lifts nothing")
            .await
            .unwrap();
        let find = async |coldkey: Hotkey, model, since| {
            store.own_audit_since(&coldkey, model, NOW(since)).await.unwrap()
        };
        assert_eq!(find(stored.coldkey, "tiny", 5).await, Some(stored.clone()));
        assert_eq!(find(stored.coldkey, "tiny", 6).await, None, "an earlier one");
        assert_eq!(find(stored.coldkey, "large", 5).await, None);
        assert_eq!(find(Hotkey::from_bytes([99; 32]), "tiny", 5).await, None);
    }
}

pub(crate) fn offer(name: &str, author: u8, through_bucket: u64, at: i64) -> AuditOffer {
    AuditOffer {
        digest: Digest::of(name.as_bytes()),
        author: ValidatorKey(Hotkey::from_bytes([author; 32])),
        says: Some(OfferedVerdict {
            coldkey: Hotkey::from_bytes([7; 32]),
            miners: vec![MinerKey(Hotkey::from_bytes([8; 32]))],
            model: "tiny".to_owned(),
            verdict: "convicted".to_owned(),
            quality_per_mille: 0,
            through_bucket,
        }),
        bytes: 2,
        state: OfferState::Offered,
        reason: None,
        seen_at: NOW(at),
        seen_block: 3,
        decided_at: None,
    }
}

#[tokio::test]
async fn an_offer_is_adopted_whole_and_a_newer_one_of_its_author_supersedes_it() {
    for (_test, store) in each().await {
        store.note_chain("0xa", BlockNumber(9), NOW(1)).await.unwrap();
        let (old, new, other) = (
            offer("old", 1, 4, 1),
            offer("new", 1, 5, 2),
            offer("other", 2, 1, 2),
        );
        for one in [&old, &new, &other] {
            store.put_offer(one, Some("{}")).await.unwrap();
        }
        assert_eq!(store.open_offers().await.unwrap(), [new.clone(), other.clone()]);
        assert_eq!(store.offer_body(old.digest).await.unwrap(), None);
        let tally = store.tally_author(new.author, NOW(2)).await.unwrap();
        assert_eq!((tally.known.len(), tally.lately, tally.stored_bytes), (2, 1, 2));
        let mut decided = new.clone();
        (decided.state, decided.decided_at) = (OfferState::Adopted, Some(NOW(3)));
        let verdict = AdoptedAudit {
            digest: new.digest,
            ..audit("new", 7, "tiny", 0, 3)
        };
        let signed = StoredEndorsement {
            digest: new.digest,
            validator: other.author,
            statement: "signed".to_owned(),
            seen_at: NOW(3),
        };
        store
            .adopt_offer(&decided, &verdict, "{}", Some(&signed))
            .await
            .unwrap();
        assert_eq!(store.open_offers().await.unwrap(), [other]);
        assert_eq!(store.counting_audits().await.unwrap(), [verdict]);
        let about_it = store.endorsements_of(new.digest).await.unwrap();
        assert_eq!(about_it, std::slice::from_ref(&signed));
        assert_eq!(
            store.offer_body(new.digest).await.unwrap(),
            None,
            "it lies with the verdict"
        );
        let stray = StoredEndorsement {
            digest: Digest::of(b"unknown"),
            ..signed.clone()
        };
        assert!(!store.put_endorsement(&stray).await.unwrap());
        assert!(store.put_endorsement(&signed).await.unwrap());
        assert_eq!(store.endorsements(9).await.unwrap(), [signed]);
    }
}

async fn count(store: &Store, table: &'static str) -> i64 {
    let statement = sqlx::AssertSqlSafe(format!("SELECT COUNT(*) AS rows_left FROM {table}"));
    let (count,): (i64,) = sqlx::query_as(statement).fetch_one(&store.pool()).await.unwrap();
    count
}

#[tokio::test]
async fn old_offers_statements_and_words_go_and_what_still_counts_stays() {
    const DAY: i64 = 86_400;
    let today = 100 * DAY;
    for (test, store) in each().await {
        store.note_chain("0xa", BlockNumber(9), NOW(1)).await.unwrap();
        let words = |name: &str, at: i64| {
            let statement =
                "INSERT INTO answer_ids (response_id, prompt, output, kept_at) VALUES ($1, '[]', '[]', $2)";
            sqlx::query(statement)
                .bind(name.to_owned())
                .bind(NOW(at).micros())
        };
        for (name, at) in [("old", 1), ("new", today - DAY)] {
            store.put_offer(&offer(name, 1, 4, at), Some("{}")).await.unwrap();
            let signed = StoredEndorsement {
                digest: Digest::of(name.as_bytes()),
                validator: ValidatorKey(Hotkey::from_bytes([2; 32])),
                statement: "signed".to_owned(),
                seen_at: NOW(at),
            };
            store.put_endorsement(&signed).await.unwrap();
            words(name, at).execute(&test.pool).await.unwrap();
        }
        // A bundle that counts keeps what was signed about it; a validator keeps its newest self-test.
        let counting = audit("counts", 1, "tiny", 0, 1);
        store.put_audit(&counting, "{}").await.unwrap();
        let about_it = StoredEndorsement {
            digest: counting.digest,
            validator: ValidatorKey(Hotkey::from_bytes([2; 32])),
            statement: "signed".to_owned(),
            seen_at: NOW(1),
        };
        store.put_endorsement(&about_it).await.unwrap();
        for (validator, tested) in [(1, 1), (1, 2), (2, 1)] {
            let tested_itself = StoredSelfTest {
                validator: ValidatorKey(Hotkey::from_bytes([validator; 32])),
                tested_at: NOW(tested),
                statement: "signed".to_owned(),
                seen_at: NOW(tested),
            };
            store.put_self_test(&tested_itself).await.unwrap();
        }
        sweep_with(&store, &ValidatorRetentionConfig::default(), today).await;
        let left = [
            count(&store, "audit_offers").await,
            count(&store, "audit_endorsements").await,
            count(&store, "audit_self_tests").await,
            count(&store, "answer_ids").await,
            count(&store, "audit_verdicts").await,
        ];
        assert_eq!(left, [1, 2, 2, 1, 1], "{}", test.engine);
        let newest = store.newest_self_tests().await.unwrap();
        let newest: Vec<_> = newest.iter().map(|test| test.tested_at).collect();
        assert_eq!(newest, [NOW(2), NOW(1)]);
    }
}

#[tokio::test]
async fn a_list_of_own_prompts_goes_as_a_whole_with_the_prompts_that_were_never_sent() {
    const DAY: i64 = 86_400;
    let today = 100 * DAY;
    for (test, store) in each().await {
        let prompt = async |list: &str, position: i64, made: i64, sent: Option<i64>| {
            sqlx::query(
                "INSERT INTO canaries (list, position, salt, request, made_at, sent_at) VALUES ($1, $2, '', '', $3, $4)",
            )
            .bind(list.to_owned())
            .bind(position)
            .bind(NOW(made).micros())
            .bind(sent.map(|sent| NOW(sent).micros()))
            .execute(&test.pool)
            .await
            .unwrap();
        };
        for position in 0..4 {
            let sent = (position < 2).then_some(20 * DAY);
            prompt("old", position, 19 * DAY, sent).await;
            prompt("never used", position, 19 * DAY, None).await;
            // The first prompt is old, and its place is needed for that of the second one.
            let sent = (position < 2).then_some((20 + 70 * position) * DAY);
            prompt("with newer answers", position, 19 * DAY, sent).await;
            prompt("new", position, today - DAY, None).await;
        }
        sweep_with(&store, &ValidatorRetentionConfig::default(), today).await;
        let left: Vec<(String, i64)> =
            sqlx::query_as("SELECT list, COUNT(*) FROM canaries GROUP BY list ORDER BY list")
                .fetch_all(&test.pool)
                .await
                .unwrap();
        let whole = ["new", "with newer answers"].map(|list| (list.to_owned(), 4));
        assert_eq!(left, whole, "{}", test.engine);
    }
}
