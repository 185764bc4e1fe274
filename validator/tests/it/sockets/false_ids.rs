//! A miner states the ids of an honest engine beside another text: its answers count against it.

use muster_audit::{AuditBundle, AuditOutcome, FalseIds, replay};
use serde_json::json;

use crate::sockets::audit_runs::{Audited, OWN_PROMPTS, with_fleets};
use crate::sockets::support::model::{model_of_other_text, reference};

#[tokio::test]
async fn a_miner_that_states_ids_of_another_text_is_convicted_with_its_responses_as_evidence() {
    let story = async |audited: &mut Audited| {
        audited.gather().await;
        let run = audited.audit().await;
        assert_eq!(run["verdict"], "convicted", "{run}");
        assert_eq!((&run["answers"], &run["scored"]), (&json!(17), &json!(17)));
        let digest = run["bundle"].as_str().unwrap();
        let url = audited.world.status_url(&format!("/v0/audits/{digest}")).await;
        let text = reqwest::get(url).await.unwrap().text().await.unwrap();
        let replayed = replay(&text).unwrap();
        // Half of the prompts ask for ids.
        let false_ids = usize::try_from(OWN_PROMPTS / 2).unwrap();
        assert_eq!(replayed.counts.false_ids, false_ids, "{replayed:?}");
        let bundle: AuditBundle = serde_json::from_str(&text).unwrap();
        let answers = bundle.sessions.iter().flat_map(|session| &session.answers);
        let outcome = AuditOutcome::FalseIds(vec![Some(FalseIds::Text); 2]);
        let accused = answers.filter(|answer| answer.outcome.as_ref() == Some(&outcome));
        let has_response = |answer: &&muster_audit::AnswerEvidence| {
            let words = answer.words.as_ref().unwrap();
            words.response.is_some() && words.output.is_empty()
        };
        assert_eq!(accused.filter(has_response).count(), false_ids);
        // The miner sees the reason, too.
        let bucket = audited.bucket(1).await;
        let leaves = bucket["leaves"].as_array().unwrap();
        let told = |leaf: &&serde_json::Value| leaf["outcome"] == json!({"unusable": "false_ids_text"});
        assert_eq!(leaves.iter().filter(told).count(), false_ids, "{bucket}");
    };
    with_fleets((model_of_other_text(), reference()), None, false, story).await;
}
