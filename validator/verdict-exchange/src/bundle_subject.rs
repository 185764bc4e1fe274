//! Whether a bundle is about this subnet, and about the owner that the chain states.

use std::collections::BTreeMap;

use muster_audit::AuditBundle;
use muster_chain::Metagraph;
use muster_protocol::{Hotkey, MinerKey};
use muster_response_proof::{Attestation, Envelope};

/// The reason why a bundle is about nobody that this validator scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// The bundle is about another chain or subnet.
    #[error("the bundle is about another chain or subnet")]
    OtherSubnet,
    /// A miner of the bundle is not registered, so the chain confirms no owner of its answers.
    #[error("{miner} is not registered in the subnet now: the chain confirms no owner of its answers")]
    NotRegistered {
        /// The miner's hotkey.
        miner: MinerKey,
    },
    /// A session is attested by nobody that the bundle names, or by nobody at all.
    #[error("session {place} is attested by no miner that the bundle names")]
    Unnamed {
        /// The place of the session in the bundle.
        place: usize,
    },
    /// The chain states another owner.
    #[error("{miner} belongs to another coldkey than the bundle says")]
    OtherOwner {
        /// The miner's hotkey.
        miner: MinerKey,
    },
}

/// Checks that a bundle is about this subnet, and that every answer in it is one of the owner's by the chain: each
/// miner that attested a session, and each miner that the bundle names, is registered now and belongs to the bundle's
/// coldkey. `genesis` is the chain's genesis hash with its prefix `0x`.
///
/// # Errors
/// The bundle is about another subnet, or the chain does not confirm the owner of all of its miners.
pub fn check_subject(bundle: &AuditBundle, genesis: &str, metagraph: &Metagraph) -> Result<(), SubjectError> {
    let stated = format!("0x{}", bundle.genesis.hex());
    if stated != genesis || bundle.netuid != metagraph.netuid.0 {
        return Err(SubjectError::OtherSubnet);
    }
    for (place, session) in bundle.sessions.iter().enumerate() {
        let named = attesting_miner(&session.attestation).filter(|miner| bundle.miners.contains(miner));
        named.ok_or(SubjectError::Unnamed { place })?;
    }
    let owners: BTreeMap<Hotkey, Hotkey> = metagraph
        .neurons
        .iter()
        .map(|neuron| (neuron.hotkey, neuron.coldkey))
        .collect();
    for miner in &bundle.miners {
        match owners.get(&miner.0) {
            Some(owner) if *owner == bundle.coldkey => {}
            Some(_) => return Err(SubjectError::OtherOwner { miner: *miner }),
            // The owner of a hotkey that was deregistered or swapped cannot be compared.
            None => return Err(SubjectError::NotRegistered { miner: *miner }),
        }
    }
    Ok(())
}

/// The miner that an attestation names; `None` if it cannot be read. The replay checks the signature.
fn attesting_miner(text: &str) -> Option<MinerKey> {
    let envelope = Envelope::<Attestation>::from_text(text).ok()?;
    envelope.statement().ok().map(|attestation| attestation.miner)
}

#[cfg(test)]
mod tests {
    use muster_chain::{BlockNumber, Netuid, Neuron, Uid};

    use super::*;

    const BUNDLE: &str = include_str!("../../../tests/vectors/audit-bundle.json");

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
            certificates: std::collections::BTreeMap::new(),
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
            Err(SubjectError::NotRegistered { miner })
        );
    }

    #[test]
    fn answers_of_anybody_elses_hotkey_convict_no_coldkey() {
        let bundle: AuditBundle = serde_json::from_str(BUNDLE).unwrap();
        let (cheat, victim) = (bundle.miners[0], MinerKey(key(7)));
        let genesis = format!("0x{}", "ab".repeat(32));
        let subnet = metagraph(&[(victim.0, key(8))]);
        // The victim's registered hotkey is named, and the sessions are those of an unregistered key of the author.
        let mut both = bundle.clone();
        both.coldkey = key(8);
        both.miners = vec![victim, cheat];
        let refused = |bundle: &AuditBundle| check_subject(bundle, &genesis, &subnet).unwrap_err();
        assert_eq!(refused(&both), SubjectError::NotRegistered { miner: cheat });
        both.miners = vec![victim];
        assert_eq!(refused(&both), SubjectError::Unnamed { place: 0 });
    }
}
