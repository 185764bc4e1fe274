//! The miners among which a job is routed: those of the subnet, one that an order names, or the validator's own.

use muster_chain::{Metagraph, Neuron};
use muster_job_queue::ExecutorLine;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{ExecutorClass, MinerKey};
use muster_routing::{CollateralVerdict, RoutableNeuron};

use crate::validator_state::ValidatorState;

/// Stands for the uid of a miner that is not in the subnet.
const NO_UID: u16 = u16::MAX;

/// The miners that a job may be offered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MinerPool {
    /// The miners of the subnet.
    Subnet,
    /// The one miner of the subnet that the validator's order names.
    Pinned(MinerKey),
    /// The one miner of the subnet that gets a check, within the bounds of users' jobs: a miner that gets no user's job
    /// now would know the check by that.
    Disguised(MinerKey),
    /// The trusted miner, which is not in the subnet.
    Trusted,
}

/// The line in which a job waits.
pub(super) fn line_of(request: &UserJobRequest) -> ExecutorLine {
    ExecutorLine {
        class: request.executor_class,
        on_trusted_miner: request.on_trusted_miner,
    }
}

impl MinerPool {
    /// The miners that a line waits for.
    pub(super) fn of_line(line: ExecutorLine) -> Self {
        if line.on_trusted_miner {
            Self::Trusted
        } else {
            Self::Subnet
        }
    }

    /// The miners as routing needs them. The allowance is looked up if a class is named.
    pub(super) fn neurons(
        self,
        state: &ValidatorState,
        metagraph: &Metagraph,
        class: Option<ExecutorClass>,
    ) -> Vec<RoutableNeuron> {
        match self {
            Self::Subnet => subnet_neurons(state, metagraph, class),
            Self::Pinned(miner) => metagraph.find(&miner.0).map(free_neuron).into_iter().collect(),
            Self::Disguised(miner) => {
                let mut neurons = subnet_neurons(state, metagraph, class);
                neurons.retain(|neuron| neuron.miner == miner);
                neurons
            }
            Self::Trusted => trusted_miner(state).into_iter().collect(),
        }
    }
}

fn subnet_neurons(
    state: &ValidatorState,
    metagraph: &Metagraph,
    class: Option<ExecutorClass>,
) -> Vec<RoutableNeuron> {
    let own = state.config.trusted_miner;
    let (allowance, head) = (state.allowance.lock(), state.subnet.head());
    // The trusted miner gets no ordinary jobs, should it be registered.
    let neurons = metagraph.neurons.iter().filter(|neuron| !own.is(neuron.hotkey));
    neurons
        .map(|neuron| {
            let miner = MinerKey(neuron.hotkey);
            let named = class.zip(head);
            RoutableNeuron {
                allowance_us: named.and_then(|(class, head)| allowance.left(miner, class, head.0)),
                collateral: state.collateral.verdict(miner),
                ..free_neuron(neuron)
            }
        })
        .collect()
}

/// A neuron without bounds. Grading leases what a miner claims, pays nothing, and asks for no deposit.
fn free_neuron(neuron: &Neuron) -> RoutableNeuron {
    RoutableNeuron {
        uid: neuron.uid.0,
        miner: MinerKey(neuron.hotkey),
        owner: neuron.coldkey,
        axon: neuron.axon,
        allowance_us: None,
        collateral: CollateralVerdict::NotRequired,
    }
}

/// The trusted miner. Its owner is the validator's operator, so it needs no deposit and is paid nothing.
fn trusted_miner(state: &ValidatorState) -> Option<RoutableNeuron> {
    let own = state.config.trusted_miner.miner()?;
    Some(RoutableNeuron {
        uid: NO_UID,
        miner: own.miner,
        owner: own.miner.0,
        axon: Some(own.address),
        allowance_us: None,
        collateral: CollateralVerdict::NotRequired,
    })
}
