//! The connections to miners, as attempts share them.

use std::net::SocketAddr;
use std::sync::Arc;

use muster_miner_link::{MinerChannel, MinerEndpoint, MinerLink};
use muster_protocol::{AttemptId, MinerKey};

use crate::store::StoredAttempt;
use crate::validator_state::ValidatorState;

/// Opens channels to miners.
#[derive(Debug)]
pub(crate) struct MinerChannels {
    pub(super) state: Arc<ValidatorState>,
    pub(super) link: MinerLink,
}

impl MinerChannels {
    /// A channel to a miner for one attempt. Does not dial yet.
    pub(crate) fn open(&self, attempt: AttemptId, miner: MinerKey, address: SocketAddr) -> MinerChannel {
        let own = &self.state.config.trusted_miner;
        let metagraph = self.state.subnet.last_metagraph();
        let certificate = own.certificate_of(miner, metagraph.as_deref());
        self.link
            .open_channel(attempt, MinerEndpoint::new(miner, address, certificate))
    }

    /// The channel of an attempt to its miner. Does not dial yet.
    pub(super) fn open_for(&self, attempt: &StoredAttempt) -> MinerChannel {
        self.open(attempt.id, attempt.miner, attempt.address)
    }
}
