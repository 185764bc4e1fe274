//! Which miners a facilitator is notified of at a moment: those with news, each at most three times a minute, a few at
//! a time.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_protocol::wire::machines::MinerNotice;
use muster_protocol::{MinerKey, Timestamp};

/// The pause between two looks for news.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The most notices after one look.
const MAX_AT_ONCE: usize = 8;
/// The shortest time between two notices about one miner.
const CHANGE_AFTER: Duration = Duration::from_secs(20);
/// The time after which a notice that has not changed is sent again.
const REPEAT_AFTER: Duration = Duration::from_secs(300);

/// The notices that one connection has brought to the facilitator.
#[derive(Debug)]
pub(crate) struct MinerReports {
    next_look: Timestamp,
    last: BTreeMap<MinerKey, (MinerNotice, Timestamp)>,
}

impl MinerReports {
    /// The reports of a connection that begins at `now`.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            next_look: now,
            last: BTreeMap::new(),
        }
    }

    /// When [`Self::take`] is due.
    pub(crate) fn next_look(&self) -> Timestamp {
        self.next_look
    }

    /// The notices to send now, the longest unsent first. Those that find no room wait for the next look.
    pub(crate) fn take(&mut self, notices: Vec<MinerNotice>, now: Timestamp) -> Vec<MinerNotice> {
        self.next_look = now.plus(LOOK_EVERY);
        self.last
            .retain(|miner, _| notices.iter().any(|notice| notice.miner == *miner));
        let mut due: Vec<(Option<Timestamp>, MinerNotice)> = notices
            .into_iter()
            .filter_map(|notice| match self.last.get(&notice.miner) {
                None => Some((None, notice)),
                Some((known, at)) => {
                    let wait = if *known == notice {
                        REPEAT_AFTER
                    } else {
                        CHANGE_AFTER
                    };
                    (now.since(*at) >= wait).then_some((Some(*at), notice))
                }
            })
            .collect();
        due.sort_by_key(|(at, _)| *at);
        due.truncate(MAX_AT_ONCE);
        let due = due.into_iter().map(|(_, notice)| notice);
        due.inspect(|notice| {
            self.last.insert(notice.miner, (notice.clone(), now));
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::wire::machines::{ClaimedOffer, MinerClaims};
    use muster_protocol::{ExecutorClass, Hotkey};

    use super::*;

    fn notice(seed: u8, executors: u32) -> MinerNotice {
        MinerNotice {
            miner: MinerKey(Hotkey::from_bytes([seed; 32])),
            proven: vec![],
            claims: MinerClaims {
                offers: vec![ClaimedOffer {
                    class: ExecutorClass::AlwaysOnTest,
                    executors,
                }],
                ..MinerClaims::default()
            },
        }
    }

    #[test]
    fn each_miner_is_told_of_three_times_a_minute_at_most_and_every_five_minutes_at_least() {
        let at = Timestamp::from_secs;
        let mut reports = MinerReports::new(at(0));
        let mut take = |executors, now| reports.take(vec![notice(1, executors)], at(now)).len();
        assert_eq!(take(1, 0), 1);
        assert_eq!(take(2, 10), 0, "a change waits");
        assert_eq!(take(2, 20), 1);
        assert_eq!(take(2, 319), 0);
        assert_eq!(take(2, 320), 1);
        assert_eq!(reports.next_look(), at(325));
    }

    #[test]
    fn many_miners_take_turns() {
        let at = Timestamp::from_secs;
        let mut reports = MinerReports::new(at(0));
        let all: Vec<_> = (0..20).map(|seed| notice(seed, 1)).collect();
        let mut seen = std::collections::BTreeSet::new();
        for (look, expected) in [(0, 8), (5, 8), (10, 4), (15, 0)] {
            let told = reports.take(all.clone(), at(look));
            assert_eq!(told.len(), expected);
            seen.extend(told.into_iter().map(|notice| notice.miner));
        }
        assert_eq!(seen.len(), 20);
        // A miner that has left the subnet is forgotten, and reported anew if it comes back.
        assert_eq!(reports.take(vec![], at(16)).len(), 0);
        assert_eq!(reports.take(all, at(17)).len(), 8);
    }
}
