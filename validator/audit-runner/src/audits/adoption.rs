//! Verdicts that count: a bundle is replayed, and its verdict about a coldkey and a model is stored.
//!
//! Adoption replays the bundle: a verdict that does not follow from its signed parts is refused. The coldkey is the one
//! that the chain states for the miners, so no bundle accuses another owner. `muster-verdict-exchange` gathers and
//! adopts others' bundles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::FutureExt as _;
use muster_audit::{AuditBundle, ReplayError, ReplayedBundle, Verdict, WHOLE_QUALITY, replay_with_bundle};
use muster_process::SharedClock;
use muster_protocol::{Hotkey, MinerKey, Timestamp};
use muster_scoring::{Conviction, QualityFactor};
use muster_store::StoreError;
use muster_subnet_view::SubnetView;
use muster_validator_store::{AdoptedAudit, AuditOrigin, Store};
use muster_verdict_exchange::{
    BlockFault, ConvictionEnd, SubjectError, check_blocks, check_subject, end_of_new, last_bucket,
};

use crate::appeals::appeal_end::FreshAudit;

/// The reason why an ordinary audit lifts no conviction of its validator.
const STANDS: &str =
    "a conviction stands for thirty days from its newest answer, and only an appeal lifts it before";

/// The reason why a bundle is not adopted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdoptionRefusal {
    /// The bundle proves nothing.
    #[error("the bundle proves nothing")]
    Bundle(#[from] ReplayError),
    /// The bundle is about nobody that this validator scores.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The blocks of the bundle are not the chain's, or the chain does not return them.
    #[error(transparent)]
    Blocks(#[from] BlockFault),
    /// The chain has not answered yet.
    #[error("the chain has not answered yet: try again")]
    NoChain,
    /// The bundle has fewer scored answers than its verdict needs to count.
    #[error("references scored {scored} of the answers, and {needed} are needed")]
    TooFewScored {
        /// The verdict that they would give.
        verdict: Verdict,
        /// The tested answers that a reference scored.
        scored: u64,
        /// The least number.
        needed: u64,
    },
    /// The replay ended early.
    #[error("the replay ended early: try again")]
    Ended,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AdoptionRefusal {
    /// The audit of fresh answers that was refused because references scored too few of them.
    pub(crate) const fn too_few(&self) -> Option<FreshAudit> {
        if let Self::TooFewScored { verdict, scored, .. } = self {
            return Some(FreshAudit {
                verdict: *verdict,
                scored: *scored,
            });
        }
        None
    }
}

/// Adopts bundles for a validator.
#[derive(Clone)]
pub(crate) struct Adopter {
    pub(crate) subnet: Arc<SubnetView>,
    pub(crate) store: Arc<Store>,
    pub(crate) clock: SharedClock,
}

/// A verdict that was adopted, and the number of answers that it rests on.
#[derive(Clone, Debug)]
pub(crate) struct Adoption {
    pub(crate) audit: AdoptedAudit,
    pub(crate) verdict: Verdict,
    /// The tested answers that a reference scored.
    pub(crate) scored: u64,
}

impl Adopter {
    /// Replays a bundle and lets its verdict count, if references scored at least `least_scored` answers of it.
    pub(crate) async fn adopt(
        &self,
        text: String,
        origin: AuditOrigin,
        least_scored: u64,
    ) -> Result<Adoption, AdoptionRefusal> {
        let metagraph = self.subnet.last_metagraph().ok_or(AdoptionRefusal::NoChain)?;
        let genesis = self.store.genesis();
        // Signatures, resampling and up to 64 MiB of text take seconds.
        let judging = tokio::task::spawn_blocking(move || {
            let (replayed, bundle) = replay_with_bundle(&text)?;
            check_subject(&bundle, &genesis, &metagraph)?;
            Ok::<_, AdoptionRefusal>((replayed, bundle, text))
        });
        let (replayed, bundle, text) = judging.await.map_err(|_| AdoptionRefusal::Ended)??;
        // The hashes in this validator's own bundles are those that its chain returned when it drew.
        if origin != AuditOrigin::Own {
            check_blocks(&bundle, |block| self.subnet.block_hash(block).boxed()).await?;
        }
        let (verdict, scored) = (
            replayed.verdict,
            u64::try_from(replayed.counts.scored).unwrap_or(u64::MAX),
        );
        if scored < least_scored {
            return Err(AdoptionRefusal::TooFewScored {
                verdict,
                scored,
                needed: least_scored,
            });
        }
        let mut audit = adopted(&replayed, bundle, origin, self.clock.now());
        let earlier = self.earlier_conviction(&audit).await?;
        if let Some(earlier) = &earlier {
            audit.keep_newest(earlier);
        }
        let end = match verdict {
            Verdict::Convicted => self.end_of(&audit)?,
            Verdict::Consistent | Verdict::Weak | Verdict::Suspect | Verdict::Unproven(_) => None,
        };
        let is_ordinary = origin == AuditOrigin::Own && least_scored == 0;
        let would_lift = is_ordinary && verdict == Verdict::Consistent && earlier.is_some();
        match end.or(would_lift.then_some(STANDS)) {
            Some(reason) => self.store.set_audit_aside(&audit, &text, reason).await?,
            None => self.store.put_audit(&audit, &text).await?,
        }
        Ok(Adoption {
            audit,
            verdict,
            scored,
        })
    }
}

impl Adopter {
    /// The conviction of the same author about the same subject that counts.
    async fn earlier_conviction(&self, audit: &AdoptedAudit) -> Result<Option<AdoptedAudit>, StoreError> {
        let subject = |audit: &AdoptedAudit| (audit.author, audit.coldkey, audit.model.clone());
        let standing = self.store.standing_convictions().await?;
        let mut of_subject = standing.into_iter().map(|standing| standing.audit);
        Ok(of_subject.find(|earlier| subject(earlier) == subject(audit)))
    }

    /// Why a conviction by answers that are too old does not count.
    fn end_of(&self, audit: &AdoptedAudit) -> Result<Option<&'static str>, AdoptionRefusal> {
        let metagraph = self.subnet.last_metagraph().ok_or(AdoptionRefusal::NoChain)?;
        Ok(end_of_new(audit, &metagraph).map(ConvictionEnd::explanation))
    }
}

fn adopted(
    replayed: &ReplayedBundle,
    bundle: AuditBundle,
    origin: AuditOrigin,
    adopted_at: Timestamp,
) -> AdoptedAudit {
    AdoptedAudit {
        origin,
        author: Some(bundle.validator),
        through_bucket: last_bucket(&bundle),
        newest_answer: replayed.newest_answer.unwrap_or_default(),
        scored: u64::try_from(replayed.counts.scored).unwrap_or(u64::MAX),
        digest: replayed.bundle,
        coldkey: replayed.coldkey,
        miners: bundle.miners,
        model: replayed.model.clone(),
        verdict: replayed.verdict.name().to_owned(),
        quality_per_mille: replayed.quality_per_mille,
        adopted_at,
    }
}

/// The convictions and the quality factors that follow from the verdicts that count.
pub fn consequences(audits: &[AdoptedAudit]) -> (Vec<Conviction>, Vec<QualityFactor>) {
    let mut convictions: BTreeSet<(Hotkey, Hotkey)> = BTreeSet::new();
    let mut factors: BTreeMap<MinerKey, u16> = BTreeMap::new();
    for audit in audits {
        for miner in &audit.miners {
            match audit.quality_per_mille {
                0 => drop(convictions.insert((audit.coldkey, miner.0))),
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
    let convictions = convictions
        .into_iter()
        .map(|(coldkey, hotkey)| Conviction { coldkey, hotkey });
    (convictions.collect(), quality.collect())
}

#[cfg(test)]
mod tests {
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
            origin: AuditOrigin::Own,
            author: None,
            through_bucket: 0,
            newest_answer: 0,
            scored: 0,
        }
    }

    #[test]
    fn a_conviction_names_every_hotkey_and_the_lowest_quality_of_several_models_counts() {
        let audits = [
            audit(1, &[11, 12], 0),
            // Two validators convict it.
            audit(1, &[12], 0),
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
