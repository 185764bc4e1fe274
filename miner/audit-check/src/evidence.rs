//! The miner's opinion of a bundle of evidence about it: the replay, and whether it proves what the validator states.
//! Pure.

use muster_audit::{AuditBundle, ReplayedBundle, replay_with_bundle};
use muster_protocol::wire::audits::VerdictNotice;
use muster_protocol::{Digest, MinerKey, ValidatorKey};
use muster_response_proof::{BucketHeader, Envelope};

use crate::finding::{Finding, FindingKind, about_bucket};
use crate::header_check::KnownHeader;

/// The result of the miner's own replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleOpinion {
    /// The verdict follows from what was signed.
    Agrees,
    /// Another verdict follows.
    OtherVerdict(String),
    /// The bundle proves nothing, or is about others; the reason as text.
    ProvesNothing(String),
    /// The miner has not read it, for a reason of its own. That proves nothing about the verdict.
    NotFetched(String),
}

impl BundleOpinion {
    /// The name in the store and in lists.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::OtherVerdict(_) => "other_verdict",
            Self::ProvesNothing(_) => "proves_nothing",
            Self::NotFetched(_) => "not_fetched",
        }
    }

    /// The opinion as text.
    pub fn words(&self) -> String {
        match self {
            Self::Agrees => "the verdict follows from the bundle".to_owned(),
            Self::OtherVerdict(verdict) => format!("the verdict that follows from the bundle is {verdict}"),
            Self::ProvesNothing(why) => format!("the bundle proves nothing: {why}"),
            Self::NotFetched(why) => format!("the bundle was not read: {why}"),
        }
    }

    /// Whether it accuses the validator of a verdict that its bundle does not prove.
    pub const fn is_disagreement(&self) -> bool {
        match self {
            Self::OtherVerdict(_) | Self::ProvesNothing(_) => true,
            Self::Agrees | Self::NotFetched(_) => false,
        }
    }
}

/// A bundle as the miner has read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadBundle {
    /// The result of the replay beside the validator's statement.
    pub opinion: BundleOpinion,
    /// The chain and the subnet that the bundle is about, if it could be replayed.
    pub subnet: Option<(Digest, u16)>,
    /// The signed headers that the bundle shows, of its buckets and of its commitments; none if it could not be
    /// replayed.
    pub headers: Vec<ShownHeader>,
}

/// A header that a bundle shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownHeader {
    /// The validator that has signed it.
    pub validator: ValidatorKey,
    /// The number of the bucket.
    pub bucket: u64,
    /// The digest of the header's signed bytes.
    pub digest: Digest,
    /// The signed header, in text form: the evidence if the miner has another one.
    pub text: String,
}

/// Replays a bundle that, as a validator states, is about this miner. It takes seconds.
pub fn judge_bundle(text: &str, notice: &VerdictNotice, me: MinerKey) -> ReadBundle {
    match replay_with_bundle(text) {
        Ok((replayed, bundle)) => ReadBundle {
            opinion: opinion_of(&replayed, &bundle, notice, me),
            subnet: Some((bundle.genesis, bundle.netuid)),
            headers: shown_headers(&bundle),
        },
        Err(error) => ReadBundle {
            opinion: BundleOpinion::ProvesNothing(error.to_string()),
            subnet: None,
            headers: Vec::new(),
        },
    }
}

fn shown_headers(bundle: &AuditBundle) -> Vec<ShownHeader> {
    let of_buckets = bundle.buckets.iter().map(|bucket| &bucket.header);
    let of_lists = bundle.commitments.iter().map(|commitment| &commitment.header);
    let shown = |text: &String| {
        let envelope = Envelope::<BucketHeader>::from_text(text).ok()?;
        let header = envelope.statement().ok()?;
        Some(ShownHeader {
            validator: header.validator,
            bucket: header.bucket.0,
            digest: envelope.digest(),
            text: text.clone(),
        })
    };
    of_buckets.chain(of_lists).filter_map(shown).collect()
}

/// The finding about a header that a bundle shows, if the miner has taken another header of the same bucket: then the
/// validator has signed two, and may have searched for the one whose draw or commitment pleased.
pub fn compare_header(shown: &ShownHeader, taken: Option<&KnownHeader>) -> Option<Finding> {
    let differs = taken.is_some_and(|taken| taken.bucket == shown.bucket && taken.digest != shown.digest);
    differs.then(|| {
        let words = format!(
            "a bundle shows another header than this miner was sent: {}",
            shown.text
        );
        Finding::new(FindingKind::TwoHeaders, about_bucket(shown.bucket), words)
    })
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

    const BUNDLE: &str = include_str!("../../../tests/vectors/audit-bundle.json");

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
        let bundle: AuditBundle = serde_json::from_str(BUNDLE).unwrap();
        assert_eq!(
            agreed.headers.len(),
            bundle.buckets.len() + bundle.commitments.len()
        );
        let shown = &agreed.headers[0];
        let taken = |digest| KnownHeader {
            bucket: shown.bucket,
            digest,
        };
        assert_eq!(compare_header(shown, None), None, "it was sent none");
        assert_eq!(compare_header(shown, Some(&taken(shown.digest))), None);
        let other_header = taken(Digest::of(b"another"));
        let found = compare_header(shown, Some(&other_header)).unwrap();
        assert_eq!(found.kind, FindingKind::TwoHeaders);
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
        let cut = judge_bundle(cut, &told, cheat);
        assert_eq!((cut.opinion.name(), cut.headers.len()), ("proves_nothing", 0));
    }
}
