//! A validator that is killed in each phase of an audit. Its next process finds what was committed: no verdict or one
//! whole verdict, and no machine of a reference stays up.

use muster_audit::replay;
use muster_audit_runner::{AuditPhase, PhaseObserver};
use muster_identity::Keypair;
use muster_process::{Clock as _, SystemClock};
use muster_protocol::MinerKey;
use muster_response_proof::{AuditAppeal, Text, seal};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::sockets::audit_runs::{Audited, OWN_PROMPTS, with_configured};
use crate::sockets::support::fleet::Fleet;
use crate::sockets::support::model::{model, reference};
use crate::sockets::support::within;

/// Looks at an appeal between two buckets: its audit begins with the block after the draw.
const LOOKS: u32 = 20;

/// An observer that lets nothing go on in a phase once it is entered, and reports that it was.
fn halt_in(phase: AuditPhase) -> (PhaseObserver, watch::Receiver<bool>) {
    let (reached, seen) = watch::channel(false);
    let observer = PhaseObserver::new(move |entered| {
        let is_it = entered == phase;
        if is_it {
            reached.send_replace(true);
        }
        Box::pin(async move {
            if is_it {
                std::future::pending::<()>().await;
            }
        })
    });
    (observer, seen)
}

/// An observer that lets no audit begin before the flag is set: what a process has left is looked at before the next
/// one goes on by itself.
pub(crate) fn hold_audits() -> (PhaseObserver, watch::Sender<bool>) {
    let (go, gate) = watch::channel(false);
    let observer = PhaseObserver::new(move |entered| {
        let mut gate = gate.clone();
        Box::pin(async move {
            if entered == AuditPhase::Gathering {
                // A test that has ended needs no audit.
                let _ = gate.wait_for(|go| *go).await;
            }
        })
    });
    (observer, go)
}

/// Ends the bucket that is open now, and draws from it. It is closed at any block before its draw block, so the
/// validator sees each of them.
async fn pass_bucket(audited: &Audited) {
    let end = (audited.world.chain.height() / 25 + 1) * 25;
    for block in end..=end + 12 {
        audited.world.chain.seal_to(block);
        audited.world.seen(block).await;
    }
}

/// A user's answer, and own prompts after the next bucket, all of them drawn: whatever was gathered before.
async fn gather_again(audited: &Audited) {
    let proven = async || {
        let sessions = audited.world.get("/v0/sessions").await;
        let earned = sessions["earned"].as_array().cloned().unwrap_or_default();
        earned
            .iter()
            .map(|one| one["proven"].as_u64().unwrap())
            .sum::<u64>()
    };
    let before = proven().await;
    audited.ask().await;
    pass_bucket(audited).await;
    audited.answered(before + 1 + u64::from(OWN_PROMPTS)).await;
    pass_bucket(audited).await;
}

/// The verdicts that are stored, each of which has a whole bundle that replays to it.
async fn verdicts(audited: &Audited) -> Vec<Value> {
    let listed = audited.world.get("/v0/audits").await;
    let verdicts = listed["audits"].as_array().unwrap().clone();
    for verdict in &verdicts {
        let bundle = audited.bundle(&json!({ "bundle": verdict["digest"] })).await;
        let replayed = replay(&bundle).unwrap();
        assert_eq!(verdict["verdict"], replayed.verdict.name(), "{verdict}");
        assert_eq!(verdict["digest"], replayed.bundle.to_string());
    }
    verdicts
}

/// The newest audit.
async fn newest_run(audited: &Audited) -> Value {
    audited.world.get("/v0/audits/runs").await["runs"][0].clone()
}

/// Appeals against a verdict, as the miner does.
async fn appeal(audited: &Audited, digest: &Value) {
    let bundle = audited.bundle(&json!({ "bundle": digest })).await;
    let bundle: Value = serde_json::from_str(&bundle).unwrap();
    let miner = Keypair::from_uri("//Miner").unwrap();
    let statement = AuditAppeal {
        genesis: serde_json::from_value(bundle["genesis"].clone()).unwrap(),
        netuid: serde_json::from_value(bundle["netuid"].clone()).unwrap(),
        bundle: serde_json::from_value(digest.clone()).unwrap(),
        miner: MinerKey(miner.hotkey()),
        at: SystemClock::new().now(),
        reason: Text::new("").unwrap(),
    };
    let text = seal(&statement, &miner).to_text();
    let path = format!("/v0/audits/{}/appeals", digest.as_str().unwrap());
    let url = audited.world.status_url(&path).await;
    let answer = reqwest::Client::new().post(url).body(text).send().await.unwrap();
    assert_eq!(answer.status(), 202, "{}", answer.text().await.unwrap());
}

/// Passes buckets until the appeal has ended, and returns how.
async fn end_of_appeal(audited: &Audited) -> Value {
    within("the end of the appeal", async {
        loop {
            pass_bucket(audited).await;
            for _ in 0..LOOKS {
                let appeals = audited.world.get("/v0/audits/appeals").await;
                if !appeals["appeals"][0]["ended"].is_null() {
                    return appeals["appeals"][0].clone();
                }
                crate::sockets::support::look_again().await;
            }
        }
    })
    .await
}

/// Everything from the first answer to the end of an appeal, as far as it comes.
async fn go_on(audited: &Audited) {
    audited.gather().await;
    audited.audit().await;
    let verdicts = verdicts(audited).await;
    appeal(audited, &verdicts[0]["digest"]).await;
    end_of_appeal(audited).await;
}

/// The verdicts that a process leaves that is killed in this phase, and what its next process has to do.
struct Left {
    verdicts: usize,
    /// Whether the words of the gathered answers went with the process, so that others have to be gathered.
    gathers: bool,
    appeals: bool,
    /// Whether an audit had begun.
    has_run: bool,
}

fn left_by(phase: AuditPhase) -> Left {
    let left = |verdicts, gathers, appeals| Left {
        verdicts,
        gathers,
        appeals,
        has_run: true,
    };
    match phase {
        // The words of a bucket are sealed by a key in memory.
        AuditPhase::ClosingBucket | AuditPhase::Drawing => Left {
            has_run: false,
            ..left(0, true, false)
        },
        AuditPhase::Gathering => Left {
            has_run: false,
            ..left(0, false, false)
        },
        AuditPhase::AskingForMachine
        | AuditPhase::StartingReference
        | AuditPhase::TestingReference
        | AuditPhase::Scoring
        | AuditPhase::Confirming
        | AuditPhase::AssemblingBundle
        | AuditPhase::StoringVerdict => left(0, false, false),
        AuditPhase::RevealingOutcomes | AuditPhase::EndingAudit | AuditPhase::ReleasingMachines => {
            left(1, false, false)
        }
        AuditPhase::AskingFreshAnswers => left(1, false, true),
        // The verdict about the fresh answers is stored before the appeal ends.
        AuditPhase::EndingAppeal => left(2, false, true),
    }
}

async fn kill_in(phase: AuditPhase) {
    let name = phase.name();
    let (observer, mut reached) = halt_in(phase);
    let configure = move |config: &mut muster_validator::Config| config.audit.observer = observer;
    let programs = (model(true, None), reference());
    with_configured(programs, None, true, configure, async |audited, own| {
        tokio::select! {
            biased;
            seen = reached.wait_for(|reached| *reached) => drop(seen.unwrap()),
            () = go_on(audited) => panic!("no audit and no appeal ever came to {name}"),
        }
        if phase == AuditPhase::StartingReference {
            within("a machine", async {
                while own.count_machines().1 == 0 {
                    crate::sockets::support::look_again().await;
                }
            })
            .await;
        }
        audited.world.kill();
        let (held, go) = hold_audits();
        audited.world.config.audit.observer = held;
        audited.restart().await;
        let left = left_by(phase);
        let found = verdicts(audited).await;
        assert_eq!(found.len(), left.verdicts, "killed while {name}: {found:?}");
        assert!(found.iter().all(|one| one["verdict"] == "convicted"), "{found:?}");
        check_run(audited, &found, left.has_run, name).await;
        check_machines(own, name).await;
        go.send_replace(true);
        if left.gathers {
            gather_again(audited).await;
        } else {
            let height = audited.world.chain.height();
            audited.world.seen(height).await;
        }
        if left.verdicts == 0 {
            let run = within("the audit", audited.next_audit()).await;
            assert_eq!(run["verdict"], "convicted", "killed while {name}: {run}");
            assert_eq!(verdicts(audited).await.len(), 1, "killed while {name}");
        } else if left.appeals {
            let ended = end_of_appeal(audited).await;
            assert_eq!(ended["ended"], "upheld", "killed while {name}: {ended}");
            let counted = verdicts(audited).await;
            assert_eq!(counted.len(), 2, "killed while {name}: {counted:?}");
            assert_eq!(ended["fresh_bundle"], counted[0]["digest"], "killed while {name}");
        } else {
            let again = audited.audit_again().await;
            assert_eq!(again, json!([]), "killed while {name}: nothing waits");
        }
        check_machines(own, name).await;
    })
    .await;
}

/// The audit that the killed process had begun is judged if its verdict is stored, and has none otherwise.
async fn check_run(audited: &Audited, found: &[Value], has_run: bool, name: &str) {
    let run = newest_run(audited).await;
    assert_eq!(!run.is_null(), has_run, "killed while {name}: {run}");
    match found.first() {
        None if !has_run => {}
        None => {
            assert_eq!(
                (&run["state"], &run["reason"]),
                (&json!("interrupted"), &json!("the validator was restarted")),
                "killed while {name}: {run}"
            );
            assert_eq!(
                (&run["verdict"], &run["bundle"]),
                (&Value::Null, &Value::Null),
                "{run}"
            );
        }
        Some(verdict) => {
            assert_eq!(
                (&run["state"], &run["verdict"], &run["bundle"]),
                (&json!("judged"), &verdict["verdict"], &verdict["digest"]),
                "killed while {name}: {run}"
            );
            let bucket = audited.bucket(1).await;
            let outcome = &bucket["leaves"][0]["outcome"]["scored"];
            assert!(
                outcome["tokens"].as_u64() > Some(0),
                "killed while {name}: {bucket}"
            );
        }
    }
}

/// Every machine that was brought up for a reference is released.
async fn check_machines(own: &Fleet, name: &str) {
    let what = format!("killed while {name}: every machine that was up is released");
    muster_testbed::until(&what, async || (own.count_machines().1 == 0).then_some(())).await;
}

/// A test for each phase: the two lists are compared below, so none is without its kill.
macro_rules! kills {
    ($($test:ident: $phase:ident,)*) => {
        const KILLED_IN: &[AuditPhase] = &[$(AuditPhase::$phase,)*];

        $(
            #[tokio::test]
            async fn $test() {
                kill_in(AuditPhase::$phase).await;
            }
        )*
    };
}

kills! {
    a_validator_that_is_killed_while_it_closes_a_bucket_goes_on: ClosingBucket,
    a_validator_that_is_killed_while_it_draws_goes_on: Drawing,
    a_validator_that_is_killed_while_it_gathers_goes_on: Gathering,
    a_validator_that_is_killed_before_it_asks_for_a_machine_goes_on: AskingForMachine,
    a_validator_that_is_killed_while_a_reference_starts_goes_on_and_releases_its_machine: StartingReference,
    a_validator_that_is_killed_while_a_reference_is_tested_goes_on_and_releases_its_machine: TestingReference,
    a_validator_that_is_killed_while_a_reference_scores_goes_on_and_releases_its_machine: Scoring,
    a_validator_that_is_killed_while_the_second_reference_confirms_goes_on: Confirming,
    a_validator_that_is_killed_before_the_bundle_is_assembled_goes_on: AssemblingBundle,
    a_validator_that_is_killed_before_the_verdict_is_stored_has_none_and_goes_on: StoringVerdict,
    a_validator_that_is_killed_once_the_verdict_is_stored_has_it_whole: RevealingOutcomes,
    a_validator_that_is_killed_before_the_audit_ends_has_its_verdict: EndingAudit,
    a_validator_that_is_killed_before_it_releases_the_machines_releases_them: ReleasingMachines,
    a_validator_that_is_killed_before_it_asks_for_fresh_answers_hears_the_appeal: AskingFreshAnswers,
    a_validator_that_is_killed_before_an_appeal_ends_ends_it_by_the_same_verdict: EndingAppeal,
}

#[test]
fn every_phase_of_an_audit_has_its_kill() {
    assert_eq!(KILLED_IN, AuditPhase::ALL);
}
