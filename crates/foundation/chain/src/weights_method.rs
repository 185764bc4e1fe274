//! A chain's rules for weights, and the method of setting them that the rules demand. Pure.

use muster_protocol::Hotkey;
use serde::{Deserialize, Serialize};

use crate::epoch_schedule::Schedule;
use crate::hyperparameters::Hyperparameters;
use crate::timelock::Beacon;
use crate::weights_commit::TIMELOCKED_VERSION;

/// The way in which a subnet accepts weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightsMethod {
    /// At once and in public.
    Plain,
    /// First a hash; in a later epoch the validator reveals the weights and the salt.
    Salted,
    /// Encrypted to a beacon's round; the chain reveals the weights by itself in a later epoch.
    Timelocked,
}

/// The method that a subnet's rules demand.
///
/// Where weights must be committed, timelocked commits are used if the chain reads their format and states the epochs
/// and the beacon by which it opens them: then nothing depends on this validator running in the right epoch. Otherwise
/// salted commits are used.
pub(crate) fn method(
    rules: &Hyperparameters,
    schedule: Option<&Schedule>,
    beacon: Option<&Beacon>,
) -> WeightsMethod {
    if !rules.commit_reveal {
        return WeightsMethod::Plain;
    }
    let opens = schedule.and_then(Schedule::foresee).is_some() && beacon.is_some();
    if opens && rules.commit_reveal_version == Some(TIMELOCKED_VERSION) {
        WeightsMethod::Timelocked
    } else {
        WeightsMethod::Salted
    }
}

/// A chain's rules for weights, all read at one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightRules {
    /// The subnet's hyperparameters.
    pub hyperparameters: Hyperparameters,
    /// The subnet's epochs, where the chain records them.
    pub schedule: Option<Schedule>,
    /// The beacon that opens timelocked weights, where the chain has one.
    pub beacon: Option<Beacon>,
    /// The last round of the beacon that the chain has seen.
    pub last_round: Option<u64>,
    /// The hotkey of the subnet's owner, where the chain states one.
    pub owner: Option<Hotkey>,
}

impl WeightRules {
    /// The method that these rules demand.
    pub fn method(&self) -> WeightsMethod {
        method(
            &self.hyperparameters,
            self.schedule.as_ref(),
            self.beacon.as_ref(),
        )
    }

    /// The beacon's round for a commit that is sent now. A round that the chain has seen would open the commit at once,
    /// and the chain refuses it. Where epochs are shorter than the beacon's rounds, as on a development chain, the next
    /// round is used.
    pub fn round(&self) -> Option<u64> {
        let round = self.schedule.as_ref()?.round(self.beacon.as_ref()?)?;
        let unseen = self.last_round.map_or(0, |last| last.saturating_add(1));
        Some(round.max(unseen))
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::BlockNumber;

    use super::*;

    fn rules(commit_reveal: bool, version: Option<u16>) -> Hyperparameters {
        Hyperparameters {
            tempo: 20,
            commit_reveal,
            commit_reveal_version: version,
            reveal_period: 1,
            weights_rate_limit: 0,
            weights_version_key: 0,
            min_allowed_weights: 1,
        }
    }

    fn schedule(tempo: u16) -> Schedule {
        Schedule {
            block: BlockNumber(10),
            time_ms: 0,
            block_ms: 12_000,
            tempo,
            last: BlockNumber(0),
            pending: None,
            index: 3,
            reveal_period: 1,
        }
    }

    #[test]
    fn the_rules_choose_the_way() {
        let (beacon, epochs, none) = (Beacon::quicknet(), schedule(20), schedule(0));
        let way = |rules, epochs, beacon| method(&rules, epochs, beacon);
        let all = (Some(&epochs), Some(&beacon));
        assert_eq!(way(rules(false, Some(4)), all.0, all.1), WeightsMethod::Plain);
        assert_eq!(way(rules(false, None), None, None), WeightsMethod::Plain);
        assert_eq!(way(rules(true, Some(4)), all.0, all.1), WeightsMethod::Timelocked);
        assert_eq!(way(rules(true, Some(4)), None, all.1), WeightsMethod::Salted);
        assert_eq!(way(rules(true, Some(4)), all.0, None), WeightsMethod::Salted);
        assert_eq!(
            way(rules(true, Some(4)), Some(&none), all.1),
            WeightsMethod::Salted
        );
        for version in [None, Some(0), Some(3), Some(5)] {
            assert_eq!(way(rules(true, version), all.0, all.1), WeightsMethod::Salted);
        }
    }
}
