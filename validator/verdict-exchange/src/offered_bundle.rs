//! A bundle that another validator shows: what it states, or why it is refused. Everything in it is a stranger's.

use muster_audit::{AuditBundle, ReplayError, Verdict, replay_with_bundle};
use muster_chain::Metagraph;
use muster_process::error::Causes;
use muster_protocol::ValidatorKey;
use muster_validator_store::OfferedVerdict;

use crate::bundle_subject::{SubjectError, check_subject};

/// The largest bundle that is read of another validator, in bytes: some thousand answers.
pub const MAX_OFFERED_BYTES: u64 = 8 * 1024 * 1024;
/// A bundle that replays.
#[derive(Clone, Debug)]
pub struct ReadBundle {
    /// Its verdict and its subject.
    pub says: OfferedVerdict,
    /// The verdict that follows from it.
    pub verdict: Verdict,
    /// The bundle as it was read.
    pub bundle: AuditBundle,
}

/// The reason why a bundle is refused.
#[derive(Debug, thiserror::Error)]
enum BundleRefusal {
    #[error("the bundle proves nothing")]
    Replay(#[from] ReplayError),
    #[error("another validator made the bundle")]
    OtherAuthor,
    #[error(transparent)]
    Subject(#[from] SubjectError),
}

/// Reads and replays a bundle that this author shows. Takes seconds. `genesis` is the chain's genesis hash with its
/// prefix `0x`.
///
/// # Errors
/// The reason why the bundle is refused, as text.
pub fn read_bundle(
    text: &str,
    author: ValidatorKey,
    genesis: &str,
    metagraph: &Metagraph,
) -> Result<ReadBundle, String> {
    let read = read(text, author, genesis, metagraph);
    read.map_err(|refusal| Causes(&refusal).to_string())
}

fn read(
    text: &str,
    author: ValidatorKey,
    genesis: &str,
    metagraph: &Metagraph,
) -> Result<ReadBundle, BundleRefusal> {
    let stated: AuditBundle = serde_json::from_str(text).map_err(ReplayError::from)?;
    if stated.validator != author {
        return Err(BundleRefusal::OtherAuthor);
    }
    check_subject(&stated, genesis, metagraph)?;
    let (replayed, bundle) = replay_with_bundle(text)?;
    Ok(ReadBundle {
        says: OfferedVerdict {
            coldkey: replayed.coldkey,
            miners: bundle.miners.clone(),
            model: replayed.model,
            verdict: replayed.verdict.name().to_owned(),
            quality_per_mille: replayed.quality_per_mille,
            through_bucket: last_bucket(&bundle),
        },
        verdict: replayed.verdict,
        bundle,
    })
}

/// The last bucket whose answers a bundle judges; 0 without answers.
pub fn last_bucket(bundle: &AuditBundle) -> u64 {
    let answers = bundle.sessions.iter().flat_map(|session| &session.answers);
    answers.map(|answer| answer.bucket).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use muster_chain::{BlockNumber, Netuid, Neuron, Uid};
    use muster_protocol::Hotkey;
    use proptest::prelude::*;

    use super::*;

    const BUNDLE: &str = include_str!("../../../tests/vectors/audit-bundle.json");

    fn stated() -> AuditBundle {
        serde_json::from_str(BUNDLE).unwrap()
    }

    fn subnet() -> Metagraph {
        let bundle = stated();
        let miner = Neuron {
            uid: Uid(1),
            hotkey: bundle.miners[0].0,
            coldkey: bundle.coldkey,
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
            neurons: vec![miner],
        }
    }

    fn read_of(text: &str, author: ValidatorKey) -> Result<ReadBundle, String> {
        read_bundle(text, author, &format!("0x{}", "ab".repeat(32)), &subnet())
    }

    #[test]
    fn a_bundle_of_its_author_says_its_verdict_and_others_are_refused() {
        let author = stated().validator;
        let read = read_of(BUNDLE, author).unwrap();
        assert_eq!(
            (read.verdict, read.says.quality_per_mille),
            (Verdict::Convicted, 0)
        );
        assert_eq!(read.says.through_bucket, 4_001);
        let refused = |text: &str, author| read_of(text, author).unwrap_err();
        let other = ValidatorKey(Hotkey::from_bytes([1; 32]));
        assert!(refused(BUNDLE, other).contains("another validator"));
        assert!(refused("{}", author).contains("proves nothing"));
        let mut forged = stated();
        forged.sessions[0].answers[0].earned += 1;
        assert!(refused(&forged.to_text(), author).contains("does not stand in the log"));
        let mut elsewhere = stated();
        elsewhere.netuid = 2;
        assert!(refused(&elsewhere.to_text(), author).contains("another chain or subnet"));
    }

    #[test]
    fn a_bundle_whose_replay_takes_hours_is_refused() {
        let mut hostile = stated();
        let alternative = hostile.calibration.alternatives[0].clone();
        hostile.calibration.alternatives = vec![alternative; 17];
        let refused = read_of(&hostile.to_text(), hostile.validator).unwrap_err();
        assert!(refused.contains("larger than a bundle may be"), "{refused}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn bytes_of_a_stranger_are_refused(at in 0usize..160_000, byte in 0x20u8..0x7f) {
            let mut bytes = BUNDLE.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            let text = String::from_utf8(bytes).unwrap();
            // A change of a score may give another verdict; nothing else may stand.
            if let Ok(read) = read_of(&text, stated().validator) {
                prop_assert_eq!(read.bundle.buckets, stated().buckets);
            }
        }
    }
}
