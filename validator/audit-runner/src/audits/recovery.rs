//! The audits that an earlier process began and did not end. An audit whose verdict was stored is judged; any other one
//! ends without a verdict, and its subject is audited again: with the scores that are stored, and the answers without
//! one.

use muster_protocol::Timestamp;
use muster_store::StoreError;
use muster_validator_store::{AdoptedAudit, AuditOrigin, Store};

use crate::audits::run_record::{AuditRun, RESTARTED, RunState};
use crate::store::audit_store::AuditStore;

/// Verdicts among which those of unended audits are looked for.
const MAX_VERDICTS: u32 = 1_000;

/// Ends the audits of an earlier process.
pub(crate) async fn recover_runs(
    store: &AuditStore,
    verdicts: &Store,
    now: Timestamp,
) -> Result<(), StoreError> {
    let unended = store.unended_runs().await?;
    if unended.is_empty() {
        return Ok(());
    }
    let verdicts = verdicts.audits(MAX_VERDICTS).await?;
    for mut run in unended {
        run.ended_at = Some(now);
        match verdict_of(&run, &verdicts) {
            Some(verdict) => {
                // The verdict rests on what was scored before it was stored.
                for miner in &verdict.miners {
                    store
                        .reveal_scored(miner, &run.model, verdict.adopted_at, now)
                        .await?;
                }
                run.state = RunState::Judged;
                run.bundle = Some(verdict.digest);
                run.verdict = Some(verdict.verdict.clone());
            }
            None => {
                run.state = RunState::Interrupted;
                run.reason = Some(RESTARTED.to_owned());
            }
        }
        store.update_run(&run).await?;
    }
    Ok(())
}

/// The verdict that an audit came to before its process ended: one audit of a coldkey and model runs at a time.
fn verdict_of<'a>(run: &AuditRun, verdicts: &'a [AdoptedAudit]) -> Option<&'a AdoptedAudit> {
    verdicts.iter().find(|verdict| {
        verdict.origin == AuditOrigin::Own
            && verdict.coldkey == run.coldkey
            && verdict.model == run.model
            && verdict.adopted_at >= run.began_at
    })
}

#[cfg(test)]
mod tests {
    use muster_protocol::{Digest, MinerKey};

    use super::*;
    use crate::testing::key;

    #[test]
    fn an_audit_is_judged_by_its_own_verdict_and_no_other() {
        let run = AuditRun {
            run: "run".to_owned(),
            coldkey: key(1),
            model: "tiny".to_owned(),
            state: RunState::Scoring,
            answers: 3,
            scored: 3,
            began_at: Timestamp::from_secs(100),
            ended_at: None,
            bundle: None,
            verdict: None,
            reason: None,
        };
        let stored = AdoptedAudit {
            digest: Digest::of(b"bundle"),
            coldkey: key(1),
            miners: vec![MinerKey(key(2))],
            model: "tiny".to_owned(),
            verdict: "convicted".to_owned(),
            quality_per_mille: 0,
            adopted_at: Timestamp::from_secs(100),
            origin: AuditOrigin::Own,
            author: None,
            through_bucket: 0,
            newest_answer: 0,
            scored: 0,
        };
        let is_found = |verdict: AdoptedAudit| verdict_of(&run, &[verdict]).is_some();
        assert!(is_found(stored.clone()));
        let earlier = Timestamp::from_secs(99);
        assert!(!is_found(AdoptedAudit {
            adopted_at: earlier,
            ..stored.clone()
        }));
        assert!(!is_found(AdoptedAudit {
            coldkey: key(3),
            ..stored.clone()
        }));
        assert!(!is_found(AdoptedAudit {
            model: "other".to_owned(),
            ..stored.clone()
        }));
        assert!(!is_found(AdoptedAudit {
            origin: AuditOrigin::Rescored,
            ..stored
        }));
    }
}
