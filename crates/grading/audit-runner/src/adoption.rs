//! Verdicts that count: a bundle is replayed, and its verdict about a coldkey and a model is stored.
//!
//! Adoption replays the bundle: a verdict that does not follow from its signed parts is refused. The coldkey is the one
//! that the chain states for the miners, so no bundle accuses another owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_audit::{AuditBundle, ReplayError, ReplayedBundle, WHOLE_QUALITY, replay_with_bundle};
use muster_chain::Metagraph;
use muster_process::SharedClock;
use muster_protocol::{Hotkey, MinerKey, Timestamp};
use muster_scoring::{Conviction, QualityFactor};
use muster_store::StoreError;
use muster_validator_store::{AdoptedAudit, Store};

use crate::backend::AuditBackend;

/// The reason why a bundle is not adopted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdoptionRefusal {
    /// The bundle proves nothing.
    #[error("the bundle proves nothing")]
    Bundle(#[from] ReplayError),
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
    /// The chain has not answered yet.
    #[error("the chain has not answered yet: try again")]
    NoChain,
    /// The replay ended early.
    #[error("the replay ended early: try again")]
    Ended,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Adopts bundles for a validator.
#[derive(Clone)]
pub(crate) struct Adopter {
    pub(crate) backend: Arc<dyn AuditBackend>,
    pub(crate) store: Arc<Store>,
    pub(crate) clock: SharedClock,
}

impl Adopter {
    /// Replays a bundle and lets its verdict count.
    pub(crate) async fn adopt(&self, text: String) -> Result<AdoptedAudit, AdoptionRefusal> {
        let metagraph = self.backend.metagraph().ok_or(AdoptionRefusal::NoChain)?;
        let genesis = self.store.genesis();
        // Signatures, resampling and up to 64 MiB of text take seconds.
        let judging = tokio::task::spawn_blocking(move || {
            let (replayed, bundle) = replay_with_bundle(&text)?;
            check_subject(&bundle, &genesis, &metagraph)?;
            Ok::<_, AdoptionRefusal>((replayed, bundle.miners, text))
        });
        let (replayed, miners, text) = judging.await.map_err(|_| AdoptionRefusal::Ended)??;
        let audit = adopted(&replayed, miners, self.clock.now());
        self.store.put_audit(&audit, &text).await?;
        Ok(audit)
    }
}

fn adopted(replayed: &ReplayedBundle, miners: Vec<MinerKey>, adopted_at: Timestamp) -> AdoptedAudit {
    AdoptedAudit {
        digest: replayed.bundle,
        coldkey: replayed.coldkey,
        miners,
        model: replayed.model.clone(),
        verdict: replayed.verdict.name().to_owned(),
        quality_per_mille: replayed.quality_per_mille,
        adopted_at,
    }
}

/// Checks that a bundle is about this subnet, and about the owner that the chain states.
fn check_subject(bundle: &AuditBundle, genesis: &str, metagraph: &Metagraph) -> Result<(), AdoptionRefusal> {
    let stated = format!("0x{}", bundle.genesis.hex());
    if stated != genesis || bundle.netuid != metagraph.netuid.0 {
        return Err(AdoptionRefusal::OtherSubnet);
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
            Some(_) => return Err(AdoptionRefusal::OtherOwner { miner: *miner }),
            // A hotkey that was deregistered or swapped has no owner to compare.
            None => {}
        }
    }
    if is_confirmed {
        Ok(())
    } else {
        Err(AdoptionRefusal::NotRegistered)
    }
}

/// The convictions and the quality factors that follow from the verdicts that count.
pub fn consequences(audits: &[AdoptedAudit]) -> (Vec<Conviction>, Vec<QualityFactor>) {
    let mut convictions = Vec::new();
    let mut factors: BTreeMap<MinerKey, u16> = BTreeMap::new();
    for audit in audits {
        for miner in &audit.miners {
            match audit.quality_per_mille {
                0 => convictions.push(Conviction {
                    coldkey: audit.coldkey,
                    hotkey: miner.0,
                }),
                quality if quality < WHOLE_QUALITY => {
                    let factor = factors.entry(*miner).or_insert(quality);
                    *factor = quality.min(*factor);
                }
                _ => {}
            }
        }
    }
    let quality = factors
        .into_iter()
        .map(|(miner, per_mille)| QualityFactor { miner, per_mille });
    (convictions, quality.collect())
}

#[cfg(test)]
mod tests {
    use muster_chain::{BlockNumber, Netuid, Neuron, Uid};
    use muster_protocol::Digest;

    use super::*;

    fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    fn audit(coldkey: u8, miners: &[u8], quality_per_mille: u16) -> AdoptedAudit {
        AdoptedAudit {
            digest: Digest::of(&[coldkey]),
            coldkey: key(coldkey),
            miners: miners.iter().map(|miner| MinerKey(key(*miner))).collect(),
            model: "tiny".to_owned(),
            verdict: "any".to_owned(),
            quality_per_mille,
            adopted_at: Timestamp::from_secs(1),
        }
    }

    const BUNDLE: &str = include_str!("../../../../tests/vectors/audit-bundle.json");

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
        let (miner, owner) = (bundle.miners[0].0, bundle.coldkey);
        let genesis = format!("0x{}", "ab".repeat(32));
        let checked = |genesis: &str, neurons: &[(Hotkey, Hotkey)]| {
            check_subject(&bundle, genesis, &metagraph(neurons)).map_err(|refused| refused.to_string())
        };
        assert_eq!(checked(&genesis, &[(key(1), key(2)), (miner, owner)]), Ok(()));
        let refused = checked("0x00", &[(miner, owner)]).unwrap_err();
        assert!(refused.contains("another chain"), "{refused}");
        let refused = checked(&genesis, &[(miner, key(2))]).unwrap_err();
        assert!(refused.contains("another coldkey"), "{refused}");
        let refused = checked(&genesis, &[(key(1), owner)]).unwrap_err();
        assert!(refused.contains("no miner of the bundle"), "{refused}");
    }

    #[test]
    fn a_conviction_names_every_hotkey_and_the_lowest_quality_of_several_models_counts() {
        let audits = [
            audit(1, &[11, 12], 0),
            audit(2, &[21], 500),
            audit(2, &[21, 22], 700),
            audit(3, &[31], 1_000),
        ];
        let (convictions, quality) = consequences(&audits);
        let convicted: Vec<_> = convictions.iter().map(|one| (one.coldkey, one.hotkey)).collect();
        assert_eq!(convicted, [(key(1), key(11)), (key(1), key(12))]);
        let factors: Vec<_> = quality.iter().map(|one| (one.miner.0, one.per_mille)).collect();
        assert_eq!(factors, [(key(21), 500), (key(22), 700)]);
    }
}
