//! Adopted verdicts about streamed answers.

use muster_chain::BlockNumber;
use muster_protocol::{Digest, Hotkey, MinerKey};
use muster_validator::store::AdoptedAudit;

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
