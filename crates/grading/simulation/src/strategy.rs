//! The strategies of miners.

use serde::{Deserialize, Serialize};

/// The differences of a miner from an honest one. All shares are in thousandths; 0 changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Strategy {
    /// The name in the table.
    pub name: String,
    /// The cards that it lacks, as a share of its twin's.
    pub missing: u16,
    /// The executors that it announces for each card, beyond the one; they exist on paper only.
    pub on_paper: u32,
    /// The cards that it rents for five minutes for each announced batch, as a share of its twin's.
    pub rented: u16,
    /// The cards that it rents for five minutes for one announced batch in eight, as a share of its twin's.
    pub rented_rarely: u16,
    /// The share of probes at which its hardware is away without notice, and costs nothing.
    pub absent: u16,
    /// The share of epochs in which it announces nothing, and its hardware costs nothing.
    pub planned: u16,
    /// The hotkeys, each with a coldkey of its own, over which it spreads its executors, beyond the one.
    pub more_hotkeys: u8,
    /// The executors that each card answers for at once in live sessions, beyond the one.
    pub fronted: u8,
    /// The executors that each card proves in full at once, beyond the one: a card of a larger class.
    pub passes_as: u8,
    /// The price of its card, in thousandths of the price of the class's; 0 is the same price.
    pub card_price: u32,
    /// The stake of a validator that pays it for no work, as a share of all stake.
    pub colluder: u16,
    /// The cards that it lacks and has excused by attempts of that validator, as a share of its twin's.
    pub excused: u16,
    /// How much longer than needed its jobs take, as a share of the time needed.
    pub stalls: u32,
    /// The share of offers that it refuses.
    pub refuses: u16,
    /// The share of its answers that a cheaper model gives. Such an answer costs half.
    pub cheaper: u16,
    /// The factor for the quality of its work that audits have found; 0 without audits.
    pub quality: u16,
    /// The share of time in which users keep an executor busy, if it is not that of the settings.
    pub organic: Option<u16>,
    /// The most that it may win in thousandths, if that is not the known formula.
    pub bound: Option<u64>,
}

impl Strategy {
    /// The price of a card, in thousandths of the price of the class's.
    pub(crate) fn price(&self) -> u64 {
        match self.card_price {
            0 => 1_000,
            price => price.into(),
        }
    }
}

/// The strategies that the rules were made against, with the honest one first.
pub fn known_strategies() -> Vec<Strategy> {
    [hardware(), collusion(), work()].concat()
}

fn named(name: &str) -> Strategy {
    Strategy {
        name: name.to_owned(),
        ..Strategy::default()
    }
}

/// Strategies about what is shown.
#[rustfmt::skip]
fn hardware() -> Vec<Strategy> {
    vec![
        named("honest"),
        Strategy { missing: 500, ..named("half of the GPUs that it announces") },
        Strategy { on_paper: 1_000_000, ..named("a million executors on paper") },
        Strategy { missing: 900, rented: 900, ..named("rents for announced batches") },
        Strategy { missing: 900, rented: 900, on_paper: 9, ..named("rents for batches, announces more") },
        Strategy { absent: 60, ..named("away at one probe in sixteen") },
        Strategy { absent: 250, ..named("away at one probe in four") },
        Strategy { planned: 250, ..named("planned absence in a quarter of epochs") },
        Strategy { more_hotkeys: 3, ..named("one hardware, four hotkeys") },
        Strategy { fronted: 9, ..named("fronting: ten sessions a card") },
        Strategy { fronted: 3, ..named("fronting: four sessions a card") },
        Strategy { fronted: 3, rented_rarely: 3_000, ..named("fronting four, rents once in eight batches") },
        Strategy { passes_as: 6, card_price: 9_000, ..named("a card of 9 times the price as seven") },
        Strategy { passes_as: 6, card_price: 6_000, ..named("a card of 6 times the price as seven") },
    ]
}

/// Strategies with a validator of one's own.
#[rustfmt::skip]
fn collusion() -> Vec<Strategy> {
    vec![
        Strategy { colluder: 20, ..named("washing, 2 % of stake") },
        Strategy { colluder: 100, ..named("washing, 10 % of stake") },
        Strategy { colluder: 300, ..named("washing, 30 % of stake") },
        Strategy { fronted: 9, colluder: 100, ..named("fronting and washing, 10 % of stake") },
        Strategy { more_hotkeys: 3, colluder: 100, ..named("four hotkeys and washing, 10 % of stake") },
        Strategy { excused: 500, colluder: 20, ..named("excused absence of half, 2 % of stake") },
        Strategy { excused: 250, rented_rarely: 250, colluder: 100, ..named("excused absence of a quarter, 10 % of stake") },
        Strategy { excused: 500, rented_rarely: 500, colluder: 100, ..named("excused absence of half, 10 % of stake") },
    ]
}

/// Strategies about work.
#[rustfmt::skip]
fn work() -> Vec<Strategy> {
    vec![
        Strategy { stalls: 1_000_000, ..named("stalling every job") },
        Strategy { stalls: 1_000_000, organic: Some(300), ..named("stalling every job, busy subnet") },
        Strategy { refuses: 300, organic: Some(100), ..named("refusing three offers in ten") },
        Strategy { refuses: 300, organic: Some(1), ..named("refusing three in ten, little traffic") },
        Strategy { refuses: 1_000, organic: Some(1), ..named("refusing everything, little traffic") },
        Strategy { cheaper: 100, ..named("cheaper model in 10 % of answers, no audits") },
        Strategy { cheaper: 100, quality: 500, ..named("cheaper model in 10 % of answers, found out") },
    ]
}
