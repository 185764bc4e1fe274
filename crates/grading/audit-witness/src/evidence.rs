//! The miner's opinion of a bundle of evidence about it: the replay, and whether it says what the validator says. Pure.

use muster_audit::{AuditBundle, ReplayedBundle, replay_with_bundle};
use muster_protocol::wire::audits::VerdictNotice;
use muster_protocol::{Digest, MinerKey};

/// The result of the miner's own replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleOpinion {
    /// The verdict follows from what was signed.
    Agrees,
    /// Another verdict follows.
    OtherVerdict(String),
    /// The bundle proves nothing, or is about others; the reason in words.
    ProvesNothing(String),
}

impl BundleOpinion {
    /// The name in the store and in lists.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::OtherVerdict(_) => "other_verdict",
            Self::ProvesNothing(_) => "proves_nothing",
        }
    }

    /// The opinion in words.
    pub fn words(&self) -> String {
        match self {
            Self::Agrees => "the verdict follows from the bundle".to_owned(),
            Self::OtherVerdict(verdict) => format!("the verdict that follows from the bundle is {verdict}"),
            Self::ProvesNothing(why) => format!("the bundle proves nothing: {why}"),
        }
    }
}

/// A bundle as the miner has read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadBundle {
    /// The result of the replay beside the validator's word.
    pub opinion: BundleOpinion,
    /// The chain and the subnet that the bundle is about, if it could be replayed.
    pub subnet: Option<(Digest, u16)>,
}

/// Replays a bundle that a validator says is about this miner. It takes seconds.
pub fn judge_bundle(text: &str, notice: &VerdictNotice, me: MinerKey) -> ReadBundle {
    match replay_with_bundle(text) {
        Ok((replayed, bundle)) => ReadBundle {
            opinion: opinion_of(&replayed, &bundle, notice, me),
            subnet: Some((bundle.genesis, bundle.netuid)),
        },
        Err(error) => ReadBundle {
            opinion: BundleOpinion::ProvesNothing(error.to_string()),
            subnet: None,
        },
    }
}

fn opinion_of(
    replayed: &ReplayedBundle,
    bundle: &AuditBundle,
    notice: &VerdictNotice,
    me: MinerKey,
) -> BundleOpinion {
    if !bundle.miners.contains(&me) {
        return BundleOpinion::ProvesNothing("it is about other miners".to_owned());
    }
    if bundle.model != notice.model {
        return BundleOpinion::ProvesNothing(format!("it is about the model {}", bundle.model));
    }
    if replayed.verdict.name() != notice.verdict || replayed.quality_per_mille != notice.quality_per_mille {
        return BundleOpinion::OtherVerdict(replayed.verdict.name().to_owned());
    }
    BundleOpinion::Agrees
}

#[cfg(test)]
mod tests {
    use muster_identity::Keypair;
    use muster_protocol::Timestamp;

    use super::*;

    const BUNDLE: &str = include_str!("../../../../tests/vectors/audit-bundle.json");

    #[test]
    fn a_bundle_agrees_with_its_verdict_only_and_is_about_its_miners_only() {
        let cheat = MinerKey(Keypair::from_uri("//Cheat").unwrap().hotkey());
        let other = MinerKey(Keypair::from_uri("//Other").unwrap().hotkey());
        let told = VerdictNotice {
            bundle: Digest::of(BUNDLE.as_bytes()),
            bytes: 1,
            verdict: "convicted".to_owned(),
            model: serde_json::from_str::<AuditBundle>(BUNDLE).unwrap().model,
            quality_per_mille: 0,
            since: Timestamp::from_secs(1),
        };
        let agreed = judge_bundle(BUNDLE, &told, cheat);
        assert_eq!(agreed.opinion, BundleOpinion::Agrees);
        assert!(agreed.subnet.is_some());
        let suspect = VerdictNotice {
            verdict: "suspect".to_owned(),
            ..told.clone()
        };
        let opinion = judge_bundle(BUNDLE, &suspect, cheat).opinion;
        assert_eq!(opinion, BundleOpinion::OtherVerdict("convicted".to_owned()));
        assert_eq!(
            judge_bundle(BUNDLE, &told, other).opinion.name(),
            "proves_nothing"
        );
        let cut = BUNDLE.get(..BUNDLE.len() / 2).unwrap();
        assert_eq!(judge_bundle(cut, &told, cheat).opinion.name(), "proves_nothing");
    }
}
