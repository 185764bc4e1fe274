//! Every neuron of the subnet: its weights, as decided and as the chain shows them, and its reliability.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use muster_chain::Metagraph;
use muster_protocol::{Hotkey, Manifest, MinerKey};
use muster_routing::MinerStats;
use serde::Serialize;

/// `GET /v0/subnet`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SubnetView {
    /// The block of the metagraph; `None` before the chain has answered.
    pub block: Option<u64>,
    /// The subnet's number.
    pub netuid: u16,
    /// The neurons by uid, without this validator.
    pub neurons: Vec<NeuronView>,
}

/// A neuron of the subnet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NeuronView {
    /// Its number in the subnet.
    pub uid: u16,
    /// Its hotkey as an address.
    pub hotkey: Hotkey,
    /// The manifest that it has committed on the chain; `None` without one, or if the chain does not answer.
    pub stated: Option<Manifest>,
    /// Its address, if it may be dialled.
    pub axon: Option<SocketAddr>,
    /// Whether it may set weights.
    pub permit: bool,
    /// The stake in rao.
    pub stake: u64,
    /// Attempts that ended well, in a thousand of those that count; `None` if there were none lately.
    pub reliability_permille: Option<u32>,
    /// The weight in the newest scored cycle.
    pub weight: Option<u16>,
    /// The weight that the chain shows; `None` also if the chain does not answer.
    pub chain_weight: Option<u16>,
}

/// The subnet as the validator `own` sees it: `decided` are the weights of its newest cycle, `shown` those on the
/// chain, both as pairs of uid and weight; `stated` are the manifests on the chain.
pub(crate) fn view_subnet(
    metagraph: &Metagraph,
    own: Hotkey,
    stats: &BTreeMap<MinerKey, MinerStats>,
    decided: &[(u16, u16)],
    shown: &[(u16, u16)],
    stated: &BTreeMap<Hotkey, Manifest>,
) -> SubnetView {
    let weight_in = |weights: &[(u16, u16)], uid: u16| {
        let found = weights.iter().find(|(of, _)| *of == uid);
        found.map(|(_, weight)| *weight)
    };
    let neurons = metagraph.neurons.iter().filter(|neuron| neuron.hotkey != own);
    let neurons = neurons.map(|neuron| NeuronView {
        uid: neuron.uid.0,
        hotkey: neuron.hotkey,
        stated: stated.get(&neuron.hotkey).cloned(),
        axon: neuron.axon.filter(|axon| axon.port() != 0),
        permit: neuron.permit,
        stake: neuron.stake,
        reliability_permille: stats.get(&MinerKey(neuron.hotkey)).and_then(reliability),
        weight: weight_in(decided, neuron.uid.0),
        chain_weight: weight_in(shown, neuron.uid.0),
    });
    SubnetView {
        block: Some(metagraph.block.0),
        netuid: metagraph.netuid.0,
        neurons: neurons.collect(),
    }
}

/// Attempts that ended well, in a thousand of those that count; `None` if there were none lately.
fn reliability(stats: &MinerStats) -> Option<u32> {
    let counted = stats.done.saturating_add(stats.incidents);
    stats.done.saturating_mul(1_000).checked_div(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_do_not_count_give_no_reliability() {
        let stats = |done, incidents| MinerStats {
            done,
            incidents,
            ..MinerStats::default()
        };
        assert_eq!(reliability(&stats(0, 0)), None);
        assert_eq!(reliability(&stats(19, 1)), Some(950));
    }
}
