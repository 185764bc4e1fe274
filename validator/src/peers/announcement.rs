//! States on the chain where this validator serves its pages.

use std::net::SocketAddr;
use std::sync::Arc;

use muster_process::backoff::{Backoff, random_jitter};
use muster_process::error::Causes;
use muster_store::StoreError;

use crate::validator_state::ValidatorState;

/// Announces the address once the chain answers, and tries again until the chain has it.
pub(crate) async fn announce_pages(
    state: Arc<ValidatorState>,
    address: SocketAddr,
) -> Result<(), StoreError> {
    let stop = state.tasks.token();
    tokio::select! {
        () = stop.cancelled() => {}
        () = announce(&state, address) => {}
    }
    Ok(())
}

async fn announce(state: &ValidatorState, address: SocketAddr) {
    let mut failures = 0;
    while let Err(error) = state.subnet.chain().commit_pages(address).await {
        tracing::warn!(%address, error = %Causes(&error), "the address of this validator's pages cannot be stated on the chain; trying again");
        state
            .clock
            .sleep(Backoff::PEERS.delay(failures, random_jitter()))
            .await;
        failures = failures.saturating_add(1);
    }
    tracing::info!(%address, "the address of this validator's pages is on the chain");
}
