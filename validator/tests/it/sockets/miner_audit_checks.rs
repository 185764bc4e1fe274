//! The view of an audited miner: headers, outcomes, verdicts with their evidence, and its appeals. The audit check is
//! the miner's own code with a store of its own; the validator is real.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit_check::appeal;
use muster_audit_check::store::NotifiedVerdict;
use muster_identity::Keypair;
use muster_protocol::wire::audits::{AuditMessage, AuditNotice, HeaderNotice};
use muster_protocol::{MinerKey, Timestamp};
use serde_json::{Value, json};

use crate::sockets::audit_runs::{Audited, OWN_PROMPTS, sealing_until, with_fleets};
use crate::sockets::support::model::{misjudging_reference, model, reference};

use crate::sockets::support::audit_check::TestAuditCheck;
use crate::sockets::support::within;

/// Own prompts after each closed bucket.
const OWN: u64 = OWN_PROMPTS as u64;

fn miner_key() -> Keypair {
    Keypair::from_uri("//Miner").unwrap()
}

async fn audit_check() -> Arc<TestAuditCheck> {
    Arc::new(TestAuditCheck::open(MinerKey(miner_key().hotkey())).await)
}

/// Changes the headers that a message shows.
fn of_header(message: &mut AuditMessage, change: impl FnOnce(&mut HeaderNotice)) {
    if let AuditNotice::Header(notice) = &mut message.notice {
        change(notice);
    }
}

/// Polls between two blocks of [`until`], and the most blocks: fewer than end the bucket.
const LOOKS: u64 = 100;
const BLOCKS: u64 = 8;

/// Seals another block now and again, as a chain does, and looks until there is something to see.
async fn until<T>(audited: &Audited, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let block = audited.world.chain.height();
    let mut looks = 0;
    within(what, async {
        loop {
            if looks % LOOKS == 0 && looks / LOOKS < BLOCKS {
                audited.world.chain.seal_to(block + 1 + looks / LOOKS);
            }
            if let Some(seen) = look().await {
                return seen;
            }
            looks += 1;
            crate::sockets::support::look_again().await;
        }
    })
    .await
}

/// The newest appeal once it has ended: its session is opened, the next header commits to its prompts, and they are
/// asked after the draw block.
async fn ended(audited: &Audited) -> Value {
    sealing_until(&audited.world, "the end of the appeal", async || {
        let appeals = audited.world.get("/v0/audits/appeals").await;
        let appeal = appeals["appeals"][0].clone();
        (!appeal["ended_at"].is_null()).then_some(appeal)
    })
    .await
}

/// Closes a bucket once `answers` answers are proven, and draws from it.
async fn draw(audited: &Audited, bucket: u64, answers: u64) {
    audited.answered(answers).await;
    audited.world.chain.seal_to((bucket + 1) * 25);
    audited
        .until_bucket(bucket, |bucket| !bucket["header"].is_null())
        .await;
    audited.world.chain.seal_to((bucket + 1) * 25 + 12);
    audited
        .until_bucket(bucket, |bucket| !bucket["draw"].is_null())
        .await;
}

/// The newest verdict that the audit check received.
async fn told(audit_check: &TestAuditCheck, verdict: &str) -> Option<NotifiedVerdict> {
    let verdicts = audit_check.audit_check.store().verdicts().await.unwrap();
    verdicts.into_iter().find(|told| told.verdict == verdict)
}

/// The headers and the revealed draws that the audit check has.
async fn log(audit_check: &TestAuditCheck) -> (u64, u64) {
    let counts = audit_check.audit_check.store().log_counts().await.unwrap();
    counts.first().map_or((0, 0), |log| (log.headers, log.revealed))
}

#[tokio::test]
async fn headers_outcomes_and_the_evidence_reach_the_miner_and_its_appeal_by_the_link_fails_if_it_cheats() {
    let audit_check = audit_check().await;
    let hears = Arc::clone(&audit_check);
    with_fleets(
        (model(true, None), reference()),
        Some(hears),
        false,
        async |audited| {
            audited.gather().await;
            until(audited, "two headers", async || {
                (log(&audit_check).await.0 == 2).then_some(())
            })
            .await;
            assert_eq!(log(&audit_check).await.1, 0, "no verdict, no outcome");
            let bucket = audited.bucket(1).await;
            assert_eq!(bucket["leaves"][0]["outcome"], Value::Null, "{bucket}");
            let run = audited.audit().await;
            assert_eq!(run["verdict"], "convicted", "{run}");
            let verdict = until(audited, "the verdict", async || {
                told(&audit_check, "convicted").await
            })
            .await;
            assert_eq!(
                (verdict.opinion.as_str(), verdict.has_bundle),
                ("agrees", true),
                "{verdict:?}"
            );
            assert_eq!(Some(verdict.bundle.to_string().as_str()), run["bundle"].as_str());
            until(audited, "the outcomes", async || {
                (log(&audit_check).await.1 == 2).then_some(())
            })
            .await;
            let scored = &audited.bucket(1).await["leaves"][3]["outcome"]["scored"];
            assert!(scored["tokens"].as_u64() > Some(0), "{scored}");
            assert_eq!(audit_check.found().await, [], "an honest validator");

            // The next conversation takes the appeal along: that of the next header.
            let now = Timestamp::from_secs(verdict.since.secs() + 1);
            let store = audit_check.audit_check.store();
            appeal(
                store,
                &miner_key(),
                verdict.bundle,
                "it is the whitelisted image",
                now,
            )
            .await
            .unwrap();
            audited.ask().await;
            // A user asked twice, and every closed bucket is followed by own prompts.
            draw(audited, 2, 2 + 2 * OWN).await;
            let answered = async || told(&audit_check, "convicted").await?.answer;
            let answer = until(audited, "the answer", answered).await;
            assert!(answer.contains("fresh answers are audited"), "{answer}");
            let appeals = audited.world.get("/v0/audits/appeals").await;
            assert_eq!(appeals["appeals"][0]["reason"], "it is the whitelisted image");
            let ended = ended(audited).await;
            assert_eq!(ended["ended"], "upheld", "{ended}");
            let listed = audited.world.get("/v0/audits").await;
            assert_eq!(listed["audits"][0]["verdict"], "convicted");
            assert_eq!(listed["audits"][0]["digest"], ended["fresh_bundle"]);
        },
    )
    .await;
}

#[tokio::test]
async fn an_honest_miner_that_a_miscalibrated_reference_convicted_is_lifted_by_its_appeal() {
    let (audit_check, is_wrong) = (audit_check().await, Arc::new(AtomicBool::new(true)));
    let hears = Arc::clone(&audit_check);
    let programs = (model(false, None), misjudging_reference(&is_wrong));
    with_fleets(programs, Some(hears), false, async |audited| {
        audited.gather().await;
        let run = audited.audit().await;
        assert_eq!(run["verdict"], "convicted", "{run}");
        let verdict = until(audited, "the verdict", async || {
            told(&audit_check, "convicted").await
        })
        .await;
        is_wrong.store(false, Ordering::SeqCst);
        let now = Timestamp::from_secs(verdict.since.secs() + 1);
        let store = audit_check.audit_check.store();
        let signed = appeal(store, &miner_key(), verdict.bundle, "", now)
            .await
            .unwrap();
        let path = format!("/v0/audits/{}/appeals", verdict.bundle);
        let post = async |text: String| {
            let url = audited.world.status_url(&path).await;
            let answer = reqwest::Client::new().post(url).body(text).send().await.unwrap();
            (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
        };
        // Signed by nobody.
        let mut bytes = STANDARD.decode(&signed[0].1).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(post(STANDARD.encode(bytes)).await.0, 401);
        assert_eq!(post("nothing".to_owned()).await.0, 400);
        let (status, heard) = post(signed[0].1.clone()).await;
        assert_eq!(status, 202, "{heard}");
        let (status, again) = post(signed[0].1.clone()).await;
        assert_eq!((status, again), (202, heard), "its answer was lost");
        let ended = ended(audited).await;
        assert_eq!(ended["ended"], "lifted", "{ended}");
        let listed = audited.world.get("/v0/audits").await;
        assert_eq!(listed["audits"][0]["verdict"], "consistent", "the newest counts");
        // Only the answers after the appeal are judged.
        let digest = listed["audits"][0]["digest"].as_str().unwrap();
        let bundle = audited.world.get(&format!("/v0/audits/{digest}")).await;
        let sessions = bundle["sessions"].as_array().unwrap();
        assert_eq!(sessions.len(), 1, "the session of the appeal");
        assert_eq!(sessions[0]["answers"].as_array().unwrap().len(), 16);
        let lifted = until(audited, "the lifting", async || {
            told(&audit_check, "consistent").await
        })
        .await;
        assert_eq!(lifted.opinion, "agrees");
        let again = audited.audit_again().await;
        assert_eq!(
            again,
            json!([]),
            "the answers before the appeal are not judged again"
        );
    })
    .await;
}

#[tokio::test]
async fn a_withheld_leaf_a_forged_header_and_a_gap_in_the_chain_are_found() {
    let audit_check = audit_check().await;
    let hears = Arc::clone(&audit_check);
    with_fleets(
        (model(false, None), reference()),
        Some(hears),
        false,
        async |audited| {
            // The first header arrives with another root: its signature is of other bytes.
            audit_check.tamper(|message| {
                of_header(message, |notice| {
                    let mut bytes = STANDARD.decode(&notice.header).unwrap();
                    bytes[120] ^= 1;
                    notice.header = STANDARD.encode(bytes);
                });
            });
            audited.gather().await;
            let forged = async || {
                let found = audit_check.found().await;
                found
                    .iter()
                    .any(|(kind, _)| kind == "forged_header")
                    .then_some(found)
            };
            let found = until(audited, "the forged header", forged).await;
            assert!(found.iter().all(|(kind, _)| kind == "forged_header"), "{found:?}");
            assert_eq!(log(&audit_check).await.0, 0, "nothing of it is taken");

            // The next headers arrive without one of their leaves.
            audit_check.tamper(|message| {
                of_header(message, |notice| {
                    if notice.own > 1 {
                        notice.leaves.remove(0);
                    }
                });
            });
            draw(audited, 2, 1 + 2 * OWN).await;
            until(audited, "a header", async || {
                (log(&audit_check).await.0 >= 1).then_some(())
            })
            .await;
            draw(audited, 3, 1 + 3 * OWN).await;
            let withheld = async || {
                let found = audit_check.found().await;
                found.into_iter().find(|(kind, _)| kind == "withheld")
            };
            let (_, about) = until(audited, "the withheld answer", withheld).await;
            assert!(about.starts_with("answer "), "{about}");
            let is_broken = async || {
                let found = audit_check.found().await;
                found.iter().any(|(kind, _)| kind == "broken_chain").then_some(())
            };
            assert_eq!(is_broken().await, None);

            // One header is kept from the miner.
            let mut is_hidden = false;
            audit_check.tamper(move |message| {
                if matches!(message.notice, AuditNotice::Header(_))
                    && !std::mem::replace(&mut is_hidden, true)
                {
                    message.notice = AuditNotice::Done;
                }
            });
            draw(audited, 4, 1 + 4 * OWN).await;
            until(audited, "the draw", async || Some(())).await;
            draw(audited, 5, 1 + 5 * OWN).await;
            until(audited, "the gap", is_broken).await;
        },
    )
    .await;
}
