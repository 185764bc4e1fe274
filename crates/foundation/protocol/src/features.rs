//! The features by which two Muster peers report to one another, beside the version, which additions each of
//! them knows.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The request and response header of a websocket upgrade that lists the sender's features, as [`FeatureSet`] writes
/// them.
pub const MUSTER_FEATURES_HEADER: &str = "muster-features";

/// The most bytes of a header's value, and the most names of a list, that are read. The rest of a longer one is
/// ignored.
const MAX_READ: usize = 1024;

/// An addition to the wire that not every Muster peer knows. Messages and fields of a feature are sent only to peers
/// that showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// `terms`: the key `muster` of a job with its terms and its account.
    Terms,
    /// `fetching`: the message by which an executor reports that it is there and fetches the image.
    Fetching,
    /// `private-images`: images from an archive of the user's, or from a registry that wants the user's credentials.
    PrivateImages,
    /// `queue`: the message that reports the place of a waiting job.
    Queue,
    /// `capacity`: the message that reports what a validator's miners offer. A facilitator with the feature shows it to
    /// users, and lists their jobs by status.
    Capacity,
    /// `reattach`: an executor comes back to its lease after a lost connection, and a miner keeps the lease meanwhile.
    /// A validator waits longer for a miner with this feature.
    Reattach,
    /// `results`: the last status of a job names the image that ran and holds the results that a failed job left.
    Results,
    /// `webhooks`: a facilitator sends a message about a job's end to a URL of the user's.
    Webhooks,
    /// `machines`: the messages that describe miners' machines, from miner to validator and from validator to
    /// facilitator.
    Machines,
    /// `metrics`: rules for metrics in a job's terms, and the messages that carry what a running program reports.
    Metrics,
    /// `trace`: the context of a job's trace goes with the job, and the times of its stages come back with its end.
    Trace,
    /// `cross-checks`: a job's terms may declare it deterministic, and the messages that report what running it again
    /// showed, and which answers are refunded.
    CrossChecks,
    /// `audits`: the messages by which a validator shows miners its spot checks, and by which executors report to their
    /// miners what they have signed.
    Audits,
    /// `checkpoints`: a job's terms may say where it leaves checkpoints, and the messages by which they are kept and
    /// another attempt goes on from them.
    Checkpoints,
    /// `completion`: the last status of a job, and a user's view of it, hold what its program left and used.
    Completion,
    /// `attempt-urls`: the URLs of a job's blocks can be narrowed to one attempt, and the list of a job's checkpoints
    /// reports which attempts have ended.
    AttemptUrls,
    /// `output`: a URL of the job takes its printed streams whole, and the job's end names their lengths and digests.
    Output,
    /// `non-finite-metrics`: a program's report holds the metrics whose value is no finite number.
    NonFiniteMetrics,
    /// `folders`: an output may be a folder or lie behind a link, as its upload's `kind` says, and the listing of
    /// outputs has their modes.
    Folders,
    /// `output-patterns`: an output may be all files whose paths match a pattern.
    OutputPatterns,
    /// `program-start`: a job's terms may set the working directory, the entry point and the standard input of its
    /// program.
    ProgramStart,
}

impl Feature {
    /// Every feature, in the order in which a set is written.
    pub const ALL: [Self; 21] = [
        Self::Terms,
        Self::Fetching,
        Self::PrivateImages,
        Self::Queue,
        Self::Capacity,
        Self::Reattach,
        Self::Results,
        Self::Webhooks,
        Self::Machines,
        Self::Metrics,
        Self::Trace,
        Self::CrossChecks,
        Self::Audits,
        Self::Checkpoints,
        Self::Completion,
        Self::AttemptUrls,
        Self::Output,
        Self::NonFiniteMetrics,
        Self::Folders,
        Self::OutputPatterns,
        Self::ProgramStart,
    ];

    /// The features that this program's roles carry out.
    const OURS: &[Self] = &Self::ALL;

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Terms => "terms",
            Self::Fetching => "fetching",
            Self::PrivateImages => "private-images",
            Self::Queue => "queue",
            Self::Capacity => "capacity",
            Self::Reattach => "reattach",
            Self::Results => "results",
            Self::Webhooks => "webhooks",
            Self::Machines => "machines",
            Self::Metrics => "metrics",
            Self::Trace => "trace",
            Self::CrossChecks => "cross-checks",
            Self::Audits => "audits",
            Self::Checkpoints => "checkpoints",
            Self::Completion => "completion",
            Self::AttemptUrls => "attempt-urls",
            Self::Output => "output",
            Self::NonFiniteMetrics => "non-finite-metrics",
            Self::Folders => "folders",
            Self::OutputPatterns => "output-patterns",
            Self::ProgramStart => "program-start",
        }
    }

    const fn bit(self) -> u32 {
        match self {
            Self::Terms => 1,
            Self::Fetching => 1 << 1,
            Self::PrivateImages => 1 << 2,
            Self::Queue => 1 << 3,
            Self::Capacity => 1 << 4,
            Self::Reattach => 1 << 5,
            Self::Results => 1 << 6,
            Self::Webhooks => 1 << 7,
            Self::Machines => 1 << 8,
            Self::Metrics => 1 << 9,
            Self::Trace => 1 << 10,
            Self::CrossChecks => 1 << 11,
            Self::Audits => 1 << 12,
            Self::Checkpoints => 1 << 13,
            Self::Completion => 1 << 14,
            Self::AttemptUrls => 1 << 15,
            Self::Output => 1 << 16,
            Self::NonFiniteMetrics => 1 << 17,
            Self::Folders => 1 << 18,
            Self::OutputPatterns => 1 << 19,
            Self::ProgramStart => 1 << 20,
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|feature| feature.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The features of one peer. Text form: their names with `, ` between them; JSON form: a list of the names.
///
/// Reading never fails: names that this version does not know are ignored.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FeatureSet(u32);

impl FeatureSet {
    /// The set of a peer that showed no feature: one of ComputeHorde, or an older Muster.
    pub const NONE: Self = Self(0);

    /// The set that this program shows to its peers.
    pub const fn ours() -> Self {
        let mut bits = 0;
        let mut rest = Feature::OURS;
        while let [feature, others @ ..] = rest {
            bits |= feature.bit();
            rest = others;
        }
        Self(bits)
    }

    /// Reads the value of [`MUSTER_FEATURES_HEADER`].
    pub fn parse(value: &[u8]) -> Self {
        value
            .get(..MAX_READ)
            .unwrap_or(value)
            .split(|byte| *byte == b',')
            .filter_map(|name| std::str::from_utf8(name.trim_ascii()).ok())
            .filter_map(Feature::from_name)
            .collect()
    }

    /// Whether the peer has shown `feature`.
    pub const fn has(self, feature: Feature) -> bool {
        self.0 & feature.bit() != 0
    }

    /// The first feature of `needed` that this set lacks.
    pub fn lacks(self, needed: Self) -> Option<Feature> {
        needed.iter().find(|feature| !self.has(*feature))
    }

    /// The features of the set, in the order in which they are written.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |feature| self.has(*feature))
    }
}

impl FromIterator<Feature> for FeatureSet {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> Self {
        Self(features.into_iter().fold(0, |bits, feature| bits | feature.bit()))
    }
}

impl fmt::Display for FeatureSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, feature) in self.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}{feature}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for FeatureSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Serialize for FeatureSet {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.iter().map(Feature::name))
    }
}

impl<'de> Deserialize<'de> for FeatureSet {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = FeatureSet;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of names of features")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<FeatureSet, A::Error> {
                let mut features = Vec::new();
                let mut read = 0_usize;
                while let Some(name) = names.next_element::<String>()? {
                    read = read.saturating_add(1);
                    if read <= MAX_READ {
                        features.extend(Feature::from_name(&name));
                    }
                }
                Ok(features.into_iter().collect())
            }
        }

        d.deserialize_seq(Names)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_set_is_written_as_names_and_read_again() {
        let all: FeatureSet = Feature::ALL.into_iter().collect();
        assert_eq!(
            all.to_string(),
            concat!(
                "terms, fetching, private-images, queue, capacity, reattach, results, webhooks, machines, metrics, ",
                "trace, cross-checks, audits, checkpoints, completion, attempt-urls, output, non-finite-metrics, folders, ",
                "output-patterns, program-start"
            )
        );
        assert_eq!(
            serde_json::to_string(&all).unwrap(),
            concat!(
                r#"["terms","fetching","private-images","queue","capacity","reattach","results","webhooks","machines","#,
                r#""metrics","trace","cross-checks","audits","checkpoints","completion","attempt-urls","output","#,
                r#""non-finite-metrics","folders","output-patterns","program-start"]"#
            )
        );
        assert_eq!(FeatureSet::parse(all.to_string().as_bytes()), all);
        assert_eq!(FeatureSet::NONE.to_string(), "");
        assert!(FeatureSet::ours().has(Feature::Terms));
    }

    #[test]
    fn the_first_missing_feature_is_named() {
        let some: FeatureSet = [Feature::Terms].into_iter().collect();
        let more: FeatureSet = [Feature::Terms, Feature::PrivateImages].into_iter().collect();
        assert_eq!(some.lacks(more), Some(Feature::PrivateImages));
        assert_eq!((more.lacks(some), some.lacks(FeatureSet::NONE)), (None, None));
    }

    #[test]
    fn names_that_are_not_known_are_ignored() {
        let only_terms: FeatureSet = [Feature::Terms].into_iter().collect();
        assert_eq!(FeatureSet::parse(b"parts,, Terms ,market,\xff,terms"), only_terms);
        assert_eq!(FeatureSet::parse(b""), FeatureSet::NONE);
        let read: FeatureSet = serde_json::from_str(r#"["later","terms"]"#).unwrap();
        assert_eq!(read, only_terms);
    }

    #[test]
    fn features_behind_the_longest_value_are_not_read() {
        let long = format!("{}terms", ",".repeat(MAX_READ));
        assert_eq!(FeatureSet::parse(long.as_bytes()), FeatureSet::NONE);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_set_that_reads_as_itself(value in prop::collection::vec(any::<u8>(), 0..2048)) {
            let set = FeatureSet::parse(&value);
            prop_assert_eq!(FeatureSet::parse(set.to_string().as_bytes()), set);
        }
    }
}
