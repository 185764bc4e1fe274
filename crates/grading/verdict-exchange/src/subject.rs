//! Whether a bundle is about this subnet, and about the owner that the chain states.

use std::collections::BTreeMap;

use muster_audit::AuditBundle;
use muster_chain::Metagraph;
use muster_protocol::{Hotkey, MinerKey};

/// The reason why a bundle is about nobody that this validator scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// The bundle is about another chain or subnet.
    #[error("the bundle is about another chain or subnet")]
    OtherSubnet,
    /// No miner of the bundle is registered, so the chain does not confirm the owner.
    #[error("no miner of the bundle is registered in the subnet now: the chain confirms no owner")]
    NotRegistered,
    /// The chain states another owner.
    #[error("{miner} belongs to another coldkey than the bundle says")]
    OtherOwner {
        /// The miner's hotkey.
        miner: MinerKey,
    },
}

/// Checks that a bundle is about this subnet, and about the owner that the chain states. `genesis` is the chain's
/// genesis hash with its prefix `0x`.
///
/// # Errors
/// The bundle is about another subnet, or the chain does not confirm its owner.
pub fn check_subject(bundle: &AuditBundle, genesis: &str, metagraph: &Metagraph) -> Result<(), SubjectError> {
    let stated = format!("0x{}", bundle.genesis.hex());
    if stated != genesis || bundle.netuid != metagraph.netuid.0 {
        return Err(SubjectError::OtherSubnet);
    }
    let owners: BTreeMap<Hotkey, Hotkey> = metagraph
        .neurons
        .iter()
        .map(|neuron| (neuron.hotkey, neuron.coldkey))
        .collect();
    let mut is_confirmed = false;
    for miner in &bundle.miners {
        match owners.get(&miner.0) {
            Some(owner) if *owner == bundle.coldkey => is_confirmed = true,
            Some(_) => return Err(SubjectError::OtherOwner { miner: *miner }),
            // A hotkey that was deregistered or swapped has no owner to compare.
            None => {}
        }
    }
    if is_confirmed {
        Ok(())
    } else {
        Err(SubjectError::NotRegistered)
    }
}

#[cfg(test)]
mod tests {
    use muster_chain::{BlockNumber, Netuid, Neuron, Uid};

    use super::*;

    const BUNDLE: &str = include_str!("../../../../tests/vectors/audit-bundle.json");

    fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    fn metagraph(neurons: &[(Hotkey, Hotkey)]) -> Metagraph {
        let neuron = |(uid, (hotkey, coldkey)): (u16, &(Hotkey, Hotkey))| Neuron {
            uid: Uid(uid),
            hotkey: *hotkey,
            coldkey: *coldkey,
            axon: None,
            stake: 0,
            permit: false,
            active: true,
            registered: BlockNumber(0),
            last_update: BlockNumber(0),
            incentive: 0,
        };
        Metagraph {
            block: BlockNumber(1),
            netuid: Netuid(1),
            tempo: 10,
            last_epoch: BlockNumber(0),
            neurons: (0..).zip(neurons).map(neuron).collect(),
        }
    }

    #[test]
    fn a_bundle_is_about_this_subnet_and_the_owner_that_the_chain_states() {
        let bundle: AuditBundle = serde_json::from_str(BUNDLE).unwrap();
        let (miner, owner) = (bundle.miners[0], bundle.coldkey);
        let genesis = format!("0x{}", "ab".repeat(32));
        let checked = |genesis: &str, neurons: &[(Hotkey, Hotkey)]| {
            check_subject(&bundle, genesis, &metagraph(neurons))
        };
        assert_eq!(checked(&genesis, &[(key(1), key(2)), (miner.0, owner)]), Ok(()));
        assert_eq!(
            checked("0x00", &[(miner.0, owner)]),
            Err(SubjectError::OtherSubnet)
        );
        assert_eq!(
            checked(&genesis, &[(miner.0, key(2))]),
            Err(SubjectError::OtherOwner { miner })
        );
        assert_eq!(
            checked(&genesis, &[(key(1), owner)]),
            Err(SubjectError::NotRegistered)
        );
    }
}
