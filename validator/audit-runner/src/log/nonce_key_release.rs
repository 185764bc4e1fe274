//! The release of the key behind a period's nonces: everybody may know it once no nonce is made by it any more.

use std::sync::atomic::Ordering;

use muster_audit::{NoncePeriod, RevealedNonceKey};
use muster_store::StoreError;

use crate::evidence::inputs::AuditorFacts;
use crate::runner_state::RunnerState;

/// A key of nonces with all that is needed to check it.
#[derive(Clone, Copy)]
pub(crate) struct RevealedKey {
    pub(crate) key: [u8; 32],
    pub(crate) revealed: RevealedNonceKey,
    pub(crate) auditor: AuditorFacts,
}

/// Why a key of nonces is not revealed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HiddenKey {
    /// Nonces may still be made by it.
    #[error("the key of these nonces is told from block {0} on")]
    NotYet(u64),
    /// The validator made no nonces by this key, or has forgotten it.
    #[error("this validator made no nonces in that period, or it is too long ago")]
    NotUsed,
    /// The chain has not answered yet.
    #[error("the chain has not answered yet")]
    NoChain,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RunnerState {
    /// The key of a period's nonces, which everybody may know.
    pub(crate) async fn reveal_nonce_key(&self, period: NoncePeriod) -> Result<RevealedKey, HiddenKey> {
        let auditor = self.auditor().ok_or(HiddenKey::NoChain)?;
        if self.seen_block.load(Ordering::Acquire) < period.reveal_block() {
            return Err(HiddenKey::NotYet(period.reveal_block()));
        }
        let hash = self.store.nonce_period(period).await?;
        let hash = hash.ok_or(HiddenKey::NotUsed)?;
        let (key, revealed) =
            RevealedNonceKey::prove(&self.keypair, &auditor.genesis, auditor.netuid, period, hash);
        Ok(RevealedKey {
            key,
            revealed,
            auditor,
        })
    }
}
