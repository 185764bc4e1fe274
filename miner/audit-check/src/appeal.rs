//! A miner's appeals.

use muster_audit::Verdict;
use muster_identity::Keypair;
use muster_protocol::{Digest, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::audit_limits::MAX_APPEAL_REASON;
use muster_response_proof::{AuditAppeal, Text, seal};
use muster_store::StoreError;

use crate::store::{AuditCheckStore, NotifiedVerdict};

/// Why there is no appeal.
#[derive(Debug, thiserror::Error)]
pub enum AppealError {
    /// No validator has sent a notice of the bundle.
    #[error("no validator has told this miner of a verdict with that bundle")]
    Unknown,
    /// The verdict accuses nobody.
    #[error("the verdict accuses nobody")]
    NoAccusation,
    /// The bundle could not be replayed, so the chain and the subnet of the appeal are not known.
    #[error("this miner could not replay the bundle, so it does not know the subnet that the appeal names")]
    NotReplayed,
    /// The reason is too long.
    #[error("the reason has more than {MAX_APPEAL_REASON} bytes")]
    LongReason,
    /// The database fails.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Signs appeals against the verdict of a bundle, one for each validator that sent a notice of it, and stores them.
/// They are sent once their validators connect. Returns the validators with the appeal that each gets.
///
/// # Errors
/// There is no such verdict, or nothing to appeal against.
pub async fn appeal(
    store: &AuditCheckStore,
    key: &Keypair,
    bundle: Digest,
    reason: &str,
    now: Timestamp,
) -> Result<Vec<(ValidatorKey, String)>, AppealError> {
    let told: Vec<NotifiedVerdict> = store
        .verdicts()
        .await?
        .into_iter()
        .filter(|verdict| verdict.bundle == bundle)
        .collect();
    let first = told.first().ok_or(AppealError::Unknown)?;
    if !Verdict::is_accusation(&first.verdict) {
        return Err(AppealError::NoAccusation);
    }
    let (genesis, netuid) = first.subnet.ok_or(AppealError::NotReplayed)?;
    if reason.len() > MAX_APPEAL_REASON {
        return Err(AppealError::LongReason);
    }
    let statement = AuditAppeal {
        genesis,
        netuid,
        bundle,
        miner: MinerKey(key.hotkey()),
        at: now,
        reason: Text::new(reason).map_err(|_| AppealError::LongReason)?,
    };
    let signed = seal(&statement, key).to_text();
    let mut appeals = Vec::new();
    for verdict in told {
        if store.put_appeal(verdict.validator, bundle, &signed, now).await? {
            appeals.push((verdict.validator, signed.clone()));
        }
    }
    Ok(appeals)
}
