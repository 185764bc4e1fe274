//! The audits that an earlier process began and did not end. An audit whose verdict was stored is judged; any other one
//! ends without a verdict, and its subject is audited again: with the scores that are stored, and the answers without
//! one.

use muster_protocol::Timestamp;
use muster_store::StoreError;
use muster_validator_store::Store;

use crate::audits::run_record::{RESTARTED, RunState};
use crate::store::audit_store::AuditStore;

/// Ends the audits of an earlier process.
pub(crate) async fn recover_runs(
    store: &AuditStore,
    verdicts: &Store,
    now: Timestamp,
) -> Result<(), StoreError> {
    for mut run in store.unended_runs().await? {
        run.ended_at = Some(now);
        // One audit of a coldkey and model runs at a time.
        let verdict = verdicts.own_audit_since(&run.coldkey, &run.model, run.began_at);
        match verdict.await? {
            Some(verdict) => {
                // The verdict rests on what was scored before it was stored.
                for miner in &verdict.miners {
                    store
                        .reveal_scored(miner, &run.model, verdict.adopted_at, now)
                        .await?;
                }
                run.state = RunState::Judged;
                run.bundle = Some(verdict.digest);
                run.verdict = Some(verdict.verdict);
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
