//! The shares that are audited of each miner and model, as a header commits to them.

use std::collections::{BTreeMap, BTreeSet};

use muster_audit::{AuditedMiner, OpenedShare, unvested_answers};
use muster_gateway::store::LoggedAnswer;
use muster_protocol::{Digest, Hotkey, MinerKey};
use muster_response_proof::{AuditShare, LeafTree, MAX_SHARE_PPM, Text, root_of};
use muster_scoring::VESTING_CYCLES;
use serde::{Deserialize, Serialize};

use crate::audits::subject::Subject;
use crate::settings::Settings;

/// A share as it is stored with its bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredShare {
    /// The miner whose answers are audited.
    pub(crate) miner: MinerKey,
    /// The model by its name in the whitelist.
    pub(crate) model: String,
    /// The share in millionths.
    pub(crate) ppm: u32,
}

/// The answers a day of each coldkey and model: by the coldkey, or splitting into hotkeys would lower the share.
pub(crate) type DailyAnswers = BTreeMap<(Hotkey, String), u64>;

/// The shares of the miners and models of these answers, in rising order. A miner whose owner is not known is judged
/// alone. All answers of the `watched` are audited.
pub(crate) fn shares_of(
    answers: &[LoggedAnswer],
    owners: &BTreeMap<MinerKey, Hotkey>,
    daily: &DailyAnswers,
    watched: &BTreeSet<Subject>,
    settings: &Settings,
) -> Vec<StoredShare> {
    let served: BTreeSet<(MinerKey, &str)> = answers
        .iter()
        .map(|answer| (answer.miner, answer.model.as_str()))
        .collect();
    let share = |(miner, model): (MinerKey, &str)| {
        let owner = owners.get(&miner).copied().unwrap_or(miner.0);
        let answers_a_day = daily.get(&(owner, model.to_owned())).copied().unwrap_or(0);
        let is_watched = watched.contains(&Subject {
            coldkey: owner,
            model: model.to_owned(),
        });
        let by_policy = AuditedMiner {
            answers_a_day,
            // The pay that is still being vested is what a conviction takes.
            at_stake: unvested_answers(answers_a_day, vesting_cycles()),
            gain_per_mille: settings.gain_per_mille,
            detection: settings.detection,
        };
        StoredShare {
            miner,
            model: model.to_owned(),
            ppm: if is_watched {
                MAX_SHARE_PPM
            } else {
                settings.share_ppm.unwrap_or_else(|| by_policy.share_ppm())
            },
        }
    };
    served.into_iter().map(share).collect()
}

fn vesting_cycles() -> u64 {
    u64::try_from(VESTING_CYCLES).unwrap_or(u64::MAX)
}

/// The root of these shares. `None` if the name of a model is too long for a signed text, which the whitelist excludes.
pub(crate) fn share_root(shares: &[StoredShare]) -> Option<Digest> {
    Some(root_of(hashes(shares)?))
}

/// The share of a miner and a model.
pub(crate) fn share_ppm(shares: &[StoredShare], miner: &MinerKey, model: &str) -> u32 {
    let mut own = shares
        .iter()
        .filter(|share| share.miner == *miner && share.model == model);
    own.next().map_or(0, |share| share.ppm)
}

/// Opens the shares of these miners for a model.
pub(crate) fn open_shares(
    shares: &[StoredShare],
    miners: &BTreeSet<MinerKey>,
    model: &str,
) -> Option<Vec<OpenedShare>> {
    let tree = LeafTree::new(hashes(shares)?);
    let mut opened = Vec::new();
    for (position, share) in shares.iter().enumerate() {
        if share.model == model && miners.contains(&share.miner) {
            opened.push(OpenedShare {
                miner: share.miner,
                ppm: share.ppm,
                position: u64::try_from(position).ok()?,
                path: tree.path(position)?,
            });
        }
    }
    Some(opened)
}

fn hashes(shares: &[StoredShare]) -> Option<Vec<Digest>> {
    let hash = |share: &StoredShare| {
        let share = AuditShare {
            miner: share.miner,
            model: Text::new(share.model.as_str()).ok()?,
            ppm: share.ppm,
        };
        Some(share.hash())
    };
    shares.iter().map(hash).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{answer, key};

    #[test]
    fn hotkeys_of_one_owner_share_their_volume_and_an_order_of_the_operator_goes_first() {
        let answers = [answer(1, 0), answer(2, 0), answer(1, 1)];
        let owners = BTreeMap::from([(MinerKey(key(1)), key(9)), (MinerKey(key(2)), key(9))]);
        let daily = DailyAnswers::from([((key(9), "tiny".to_owned()), 5_000)]);
        let none = BTreeSet::new();
        let shares = shares_of(&answers, &owners, &daily, &none, &Settings::default());
        let ppm: Vec<u32> = shares.iter().map(|share| share.ppm).collect();
        assert_eq!(ppm, [14_737, 14_737], "the share of 5,000 answers a day");
        let alone = shares_of(&answers, &BTreeMap::new(), &daily, &none, &Settings::default());
        assert!(
            alone.iter().all(|share| share.ppm == 1_000_000),
            "nothing is known of it"
        );
        let ordered = Settings {
            share_ppm: Some(7),
            ..Settings::default()
        };
        let shares = shares_of(&answers, &owners, &daily, &none, &ordered);
        assert_eq!(share_ppm(&shares, &MinerKey(key(2)), "tiny"), 7);
        let subject = |model: &str| Subject {
            coldkey: key(9),
            model: model.to_owned(),
        };
        let watched = |model| BTreeSet::from([subject(model)]);
        let shares = |model| shares_of(&answers, &owners, &daily, &watched(model), &ordered);
        assert_eq!(share_ppm(&shares("tiny"), &MinerKey(key(2)), "tiny"), 1_000_000);
        assert_eq!(share_ppm(&shares("other"), &MinerKey(key(2)), "tiny"), 7);
        let shares = shares("other");
        assert_eq!(share_ppm(&shares, &MinerKey(key(3)), "tiny"), 0);
    }

    #[test]
    fn an_opened_share_leads_to_the_root() {
        let answers = [answer(1, 0), answer(2, 0), answer(3, 0)];
        let shares = shares_of(
            &answers,
            &BTreeMap::new(),
            &DailyAnswers::new(),
            &BTreeSet::new(),
            &Settings::default(),
        );
        let opened = open_shares(&shares, &BTreeSet::from([MinerKey(key(2))]), "tiny").unwrap();
        let [share] = opened.as_slice() else {
            panic!("{opened:?}")
        };
        let leaf = AuditShare {
            miner: share.miner,
            model: Text::new("tiny").unwrap(),
            ppm: share.ppm,
        };
        let root = muster_response_proof::root_by_path(leaf.hash(), share.position, 3, &share.path);
        assert_eq!(root, share_root(&shares));
    }
}
