//! The other validators of the subnet: where they serve their pages, and what they state about miners' capacity; and
//! the router of this validator's own pages.
//!
//! A validator that serves pages states their address in its commitment on the chain. Its receipts are read there by
//! [`ReceiptGatherer`](crate::receipt_gatherer::ReceiptGatherer), its statements by [`PeerValidators`],
//! which also compares what others were shown with what this validator was shown.

pub(crate) mod announcement;
mod comparison;
mod gather_statements;
mod page_admission;
mod page_texts;
pub(crate) mod pages_router;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use muster_chain::{ChainError, Epoch, Metagraph};
use muster_process::error::Causes;
use muster_protocol::ValidatorKey;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::validator_state::ValidatorState;
use crate::weights::ScoringGate;

/// Commitments, or statements, that are read at a time.
const READ_AT_ONCE: usize = 8;

/// Finds the other validators and gathers what they state.
pub(crate) struct PeerValidators {
    state: Arc<ValidatorState>,
    gate: Arc<ScoringGate>,
    /// The addresses as they were read last.
    addresses: watch::Sender<BTreeMap<ValidatorKey, SocketAddr>>,
    known: Mutex<KnownPeers>,
}

#[derive(Default)]
struct KnownPeers {
    /// The cycle in which the addresses were read.
    cycle: Option<Epoch>,
    /// The validators that showed a forged statement, and the cycle in which they did.
    liars: (Option<Epoch>, BTreeSet<ValidatorKey>),
}

impl PeerValidators {
    /// Knows no validator yet.
    pub(crate) fn new(state: Arc<ValidatorState>, gate: Arc<ScoringGate>) -> Self {
        Self {
            state,
            gate,
            addresses: watch::Sender::default(),
            known: Mutex::default(),
        }
    }

    /// The validators that serve pages.
    pub(crate) fn addresses(&self) -> BTreeMap<ValidatorKey, SocketAddr> {
        self.addresses.borrow().clone()
    }

    /// The validators that serve pages, from now on.
    pub(crate) fn subscribe_addresses(&self) -> watch::Receiver<BTreeMap<ValidatorKey, SocketAddr>> {
        self.addresses.subscribe()
    }

    async fn read_address(
        &self,
        validator: ValidatorKey,
    ) -> (ValidatorKey, Result<Option<SocketAddr>, ChainError>) {
        let read = self.state.subnet.chain().pages_of(&validator.0).await;
        (validator, read)
    }

    /// Reads the addresses of all validators with a permit, once in each cycle.
    pub(crate) async fn refresh(&self, metagraph: &Metagraph) {
        let cycle = self.gate.cycle();
        if cycle.is_none() || self.known.lock().cycle == cycle {
            return;
        }
        let me = self.state.key();
        let permitted = metagraph.neurons.iter().filter(|neuron| neuron.permit);
        let others = permitted
            .map(|neuron| ValidatorKey(neuron.hotkey))
            .filter(|other| *other != me);
        let readings: Vec<_> = others
            .map(|validator| self.read_address(validator).boxed())
            .collect();
        let readings: Vec<_> = stream::iter(readings)
            .buffer_unordered(READ_AT_ONCE)
            .collect()
            .await;
        let (before, mut addresses) = (self.addresses.borrow().clone(), BTreeMap::new());
        for (validator, read) in readings {
            let address = match read {
                Ok(address) => address,
                Err(error) => {
                    tracing::debug!(%validator, error = %Causes(&error), "a validator's commitment cannot be read");
                    before.get(&validator).copied()
                }
            };
            // A validator must not make this one connect to its own network.
            if let Some(address) = address.filter(|at| self.state.rules.permit("", at.ip(), at.port())) {
                addresses.insert(validator, address);
            }
        }
        self.addresses.send_replace(addresses);
        self.known.lock().cycle = cycle;
    }
}
