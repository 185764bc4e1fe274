//! The miners among which a job is routed: those of the subnet, one that an order names, or the validator's own.

use muster_chain::Metagraph;
use muster_job_queue::ExecutorLine;
use muster_protocol::wire::facilitator::JobRequest;
use muster_protocol::{ExecutorClass, MinerKey};
use muster_routing::{CollateralVerdict, RoutableNeuron};

use crate::state::ValidatorState;

/// Stands for the uid of a miner that is not in the subnet.
const NO_UID: u16 = u16::MAX;

/// The miners that a job may be offered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MinerPool {
    /// The miners of the subnet.
    Subnet,
    /// The one miner of the subnet that the validator's order names.
    Pinned(MinerKey),
    /// The trusted miner, which is not in the subnet.
    Trusted,
}

/// The line in which a job waits.
pub(super) fn line_of(request: &JobRequest) -> ExecutorLine {
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
            Self::Pinned(miner) => pinned_neuron(metagraph, miner).into_iter().collect(),
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
        .map(|neuron| RoutableNeuron {
            uid: neuron.uid.0,
            miner: MinerKey(neuron.hotkey),
            owner: neuron.coldkey,
            axon: neuron.axon,
            allowance_us: class
                .zip(head)
                .and_then(|(class, head)| allowance.left(MinerKey(neuron.hotkey), class, head.0)),
            collateral: state.collateral.verdict(MinerKey(neuron.hotkey)),
        })
        .collect()
}

/// The miner that grading asks. Grading leases what a miner says that it has, pays nothing, and asks for no deposit.
fn pinned_neuron(metagraph: &Metagraph, miner: MinerKey) -> Option<RoutableNeuron> {
    let neuron = metagraph.find(&miner.0)?;
    Some(RoutableNeuron {
        uid: neuron.uid.0,
        miner,
        owner: neuron.coldkey,
        axon: neuron.axon,
        allowance_us: None,
        collateral: CollateralVerdict::NotRequired,
    })
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
