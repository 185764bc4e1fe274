//! The miners' announcements of their executors, and what stays of them while a miner is silent.

use std::collections::BTreeSet;

use muster_grading::batch_plan::{Announcement, SilentMiner};

/// The answers of the subnet's miners about their executors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcements {
    /// The announcements that arrived in time.
    pub announced: Vec<Announcement>,
    /// The miners that announced nothing in time.
    pub silent: Vec<SilentMiner>,
}

impl Announcements {
    /// The executors of the subnet by a newer poll. Of a miner that did not answer, the older announcements stand: a
    /// probe finds out whether it is there.
    #[must_use]
    pub(crate) fn renewed(&self, newer: &Self) -> Self {
        let silent: BTreeSet<_> = newer.silent.iter().map(|silent| silent.miner).collect();
        let kept = self
            .announced
            .iter()
            .filter(|older| silent.contains(&older.miner));
        let mut announced: Vec<_> = newer.announced.iter().chain(kept).copied().collect();
        announced.sort_unstable();
        Self {
            announced,
            silent: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::{ExecutorClass, Hotkey, MinerKey};

    use super::*;

    #[test]
    fn a_silent_miner_is_probed_by_its_last_announcements() {
        let miner = |seed| MinerKey(Hotkey::from_bytes([seed; 32]));
        let announced = |seed, count| Announcement {
            miner: miner(seed),
            class: ExecutorClass::AlwaysOnTest,
            count,
        };
        let older = Announcements {
            announced: vec![announced(1, 4), announced(2, 5), announced(3, 6)],
            silent: vec![],
        };
        let newer = Announcements {
            announced: vec![announced(1, 2)],
            silent: vec![SilentMiner {
                miner: miner(3),
                said: "no answer".to_owned(),
            }],
        };
        let renewed = older.renewed(&newer);
        assert_eq!(
            renewed.announced,
            [announced(1, 2), announced(3, 6)],
            "the second has left the subnet"
        );
        assert_eq!(renewed.silent, []);
    }
}
