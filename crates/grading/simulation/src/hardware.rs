//! The hardware of miners: what of it is there at a probe, and what it costs.

use muster_scoring::{Neuron, ObservationKind, WHOLE_EXECUTOR};

use crate::numbers::Numbers;
use crate::strategy::Strategy;
use crate::subnet::EPOCH_MS;

/// The chance that a miner is out of reach at a probe, and that one of its executors restarts then, in thousandths.
const FAILURE: u16 = 10;
/// A card that is rented for five minutes an epoch, at one and a half times the price: thousandths of a card's price.
const RENTAL: u64 = 5 * 60 * 1_500 * 1_000 / EPOCH_MS;
/// Rare rentals happen for one announced batch in as many epochs as batches are remembered.
pub(crate) const RARELY: u32 = 8;
/// The part of a card's cost that an answer by a cheaper model saves, in thousandths: an assumption.
pub(crate) const SAVED_BY_CHEAPER: u64 = 500;

/// One miner's part of the hardware, under one hotkey.
pub(crate) struct SimulatedMiner {
    pub(crate) neuron: Neuron,
    /// Whether it follows the strategy.
    pub(crate) cheats: bool,
    /// The cards of an honest miner that stand behind this hotkey: the first, and the one after the last.
    pub(crate) cards: (u16, u16),
    /// The agreed capacity in whole executors, at the begin of the epoch.
    pub(crate) proven: u32,
}

/// The bad luck of a miner at one probe, the same for a strategy and its twin.
pub(crate) struct Luck {
    out: bool,
    restarts: Vec<bool>,
    /// Whether a strategy that is away without notice is away.
    pub(crate) away: bool,
}

impl Luck {
    pub(crate) fn draw(numbers: &mut Numbers, cards: u16, absent: u16) -> Self {
        Self {
            out: numbers.happens(FAILURE),
            restarts: (0..cards).map(|_| numbers.happens(FAILURE)).collect(),
            away: numbers.happens(absent),
        }
    }
}

/// The part of a miner's executors that is there at a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Presence {
    /// Executors that prove their class in full.
    pub(crate) proving: u32,
    /// Executors that answer in live sessions, several of them on a card.
    pub(crate) serving: u32,
    /// The sessions of each of these cards, which share its rate.
    pub(crate) sessions_each: u32,
    /// Whether the miner can be reached at all.
    pub(crate) reachable: bool,
}

impl SimulatedMiner {
    /// The number of the cards of an honest miner that stand behind this hotkey.
    pub(crate) fn all(&self) -> u64 {
        u64::from(self.cards.1.saturating_sub(self.cards.0))
    }

    /// The executors that it can run jobs on.
    pub(crate) fn slots(&self, strategy: &Strategy) -> u64 {
        if !self.cheats {
            return self.all();
        }
        owned(self.all(), strategy).saturating_mul(u64::from(strategy.passes_as).saturating_add(1))
    }

    /// The executors that it announces.
    pub(crate) fn announced(&self, strategy: &Strategy, planned: bool) -> u32 {
        if !self.cheats {
            return u32::try_from(self.all()).unwrap_or(u32::MAX);
        }
        if planned {
            return 0;
        }
        let each = u64::from(strategy.on_paper)
            .saturating_add(strategy.fronted.into())
            .saturating_add(strategy.passes_as.into())
            .saturating_add(1);
        u32::try_from(self.all().saturating_mul(each)).unwrap_or(u32::MAX)
    }

    /// The part of its executors that is there at a probe.
    pub(crate) fn presence(
        &self,
        strategy: &Strategy,
        kind: ObservationKind,
        epoch: u32,
        luck: &Luck,
    ) -> Presence {
        if luck.out {
            return Presence::default();
        }
        let is_up = |card: &u16| !luck.restarts.get(usize::from(*card)).copied().unwrap_or(false);
        let up = (self.cards.0..self.cards.1).filter(is_up).count();
        let up = u64::try_from(up).unwrap_or(0);
        let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        if !self.cheats {
            return Presence {
                proving: count(up),
                reachable: true,
                ..Presence::default()
            };
        }
        let of = |share: u64| up.saturating_mul(share) / 1_000;
        let rents = kind == ObservationKind::Announced && epoch.is_multiple_of(RARELY);
        let rented = match kind {
            ObservationKind::Announced if rents => {
                of(strategy.rented.into()).saturating_add(of(strategy.rented_rarely.into()))
            }
            ObservationKind::Announced => of(strategy.rented.into()),
            ObservationKind::Unannounced => 0,
        };
        let cards = if luck.away {
            0
        } else {
            owned(up, strategy).saturating_add(rented)
        };
        let fronts = u64::from(strategy.fronted).saturating_add(1);
        let (proving, serving) = if fronts > 1 && !rents {
            (0, cards.saturating_mul(fronts))
        } else {
            let each = u64::from(strategy.passes_as).saturating_add(1);
            (cards.saturating_mul(each), 0)
        };
        Presence {
            proving: count(proving),
            serving: count(serving),
            sessions_each: count(fronts),
            reachable: true,
        }
    }

    /// The money that its hardware costs in an epoch, in millionths of the price of the class's card. `there` is the
    /// number of the epoch's `probes` at which it was not away.
    pub(crate) fn cost(&self, strategy: &Strategy, planned: bool, there: u64, probes: u64) -> u128 {
        let cards = u128::from(self.all());
        if !self.cheats {
            return cards.saturating_mul(1_000_000);
        }
        if planned {
            return 0;
        }
        let lacking = strategy.missing.saturating_add(strategy.excused);
        let owned = u64::from(1_000_u16.saturating_sub(lacking)).saturating_mul(1_000);
        let rarely = u64::from(strategy.rented_rarely).saturating_mul(RENTAL) / u64::from(RARELY);
        let rented = u64::from(strategy.rented)
            .saturating_mul(RENTAL)
            .saturating_add(rarely);
        let saved = u64::from(strategy.cheaper).saturating_mul(SAVED_BY_CHEAPER) / WHOLE_EXECUTOR;
        let price = owned
            .saturating_mul(1_000_u64.saturating_sub(saved))
            .saturating_mul(strategy.price())
            / 1_000_000;
        let each = price.saturating_add(rented).saturating_mul(there) / probes.max(1);
        cards.saturating_mul(each.into())
    }
}

/// Those of `cards` of its twin that the strategy owns.
fn owned(cards: u64, strategy: &Strategy) -> u64 {
    let lacking = u64::from(strategy.missing).saturating_add(strategy.excused.into());
    cards.saturating_mul(1_000_u64.saturating_sub(lacking)) / 1_000
}
