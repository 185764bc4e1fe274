//! The strategies of miners, and what each may win at most.

use muster_scoring::MULTIPLIER;
use serde::{Deserialize, Serialize};

use crate::Settings;

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
    /// The share of probes at which its hardware is away without notice, and costs nothing.
    pub absent: u16,
    /// The share of epochs in which it announces nothing, and its hardware costs nothing.
    pub planned: u16,
    /// The hotkeys, each with a coldkey of its own, over which it spreads its executors, beyond the one.
    pub more_hotkeys: u8,
    /// The executors that each card answers for at once in live sessions, beyond the one.
    pub fronted: u8,
    /// The stake of a validator that pays it for no work, as a share of all stake.
    pub colluder: u16,
    /// How much longer than needed its jobs take, as a share of the time needed.
    pub stalls: u32,
    /// The share of offers that it refuses.
    pub refuses: u16,
    /// The most that it may win in thousandths, if that is not the known formula.
    pub bound: Option<u64>,
}

/// The most that absence may win, planned or at a probe that is forgiven, in thousandths (`docs/adr/0064`).
const PLANNED: u64 = 5;

impl Strategy {
    /// The most pay per unit of money relative to an honest miner, in thousandths: `1 + x / (1 − f·x)`. `x` is the
    /// premium of a worked second times the share of time that the strategy adds: what it stalls, or what a colluding
    /// validator of stake share S can pay, `min(1 − ρ, μ·S)`. `f` is its share of the class's capacity, which its own
    /// premium dilutes.
    ///
    /// Several hotkeys are forgiven one failure in eight each, so spreading hardware wins at most `1 / κ` of that: `κ`
    /// is the share of its capacity that the honest twin kept in spite of its failures, `kept` in thousandths.
    pub fn bound(&self, settings: &Settings, kept: u64) -> u64 {
        if let Some(bound) = self.bound {
            return bound;
        }
        let idle = 1_000_u64.saturating_sub(settings.organic.into());
        let washed = u64::from(self.colluder).saturating_mul(MULTIPLIER);
        let stalled = u64::from(settings.organic).saturating_mul(self.stalls.into()) / 1_000;
        let added = idle.min(washed.saturating_add(stalled));
        let won = Settings::PREMIUM.saturating_mul(added);
        let miners = u64::from(settings.miners).saturating_add(1);
        // In millionths, rounded up.
        let rest = 1_000_000_u64.saturating_sub(won / miners).max(1);
        let won = won.saturating_mul(1_000).div_ceil(rest);
        let planned = if self.planned > 0 || self.absent > 0 {
            PLANNED
        } else {
            0
        };
        let bound = 1_000_u64.saturating_add(won).saturating_add(planned);
        match self.more_hotkeys {
            0 => bound,
            _ => bound.saturating_mul(1_000).div_ceil(kept.clamp(1, 1_000)),
        }
    }
}

/// The strategies that the rules were made against, with the honest one first.
pub fn known_strategies() -> Vec<Strategy> {
    let named = |name: &str| Strategy {
        name: name.to_owned(),
        ..Strategy::default()
    };
    vec![
        named("honest"),
        Strategy {
            missing: 500,
            ..named("half of the GPUs that it announces")
        },
        Strategy {
            on_paper: 1_000_000,
            ..named("a million executors on paper")
        },
        Strategy {
            missing: 900,
            rented: 900,
            ..named("rents for announced batches")
        },
        Strategy {
            missing: 900,
            rented: 900,
            on_paper: 9,
            ..named("rents for batches, announces more")
        },
        Strategy {
            absent: 60,
            ..named("away at one probe in sixteen")
        },
        Strategy {
            absent: 250,
            ..named("away at one probe in four")
        },
        Strategy {
            planned: 250,
            ..named("planned absence in a quarter of epochs")
        },
        Strategy {
            more_hotkeys: 3,
            ..named("one hardware, four hotkeys")
        },
        Strategy {
            fronted: 9,
            ..named("fronting: ten sessions a card")
        },
        Strategy {
            fronted: 9,
            colluder: 100,
            ..named("fronting and washing, 10 % of stake")
        },
        Strategy {
            colluder: 20,
            ..named("washing, 2 % of stake")
        },
        Strategy {
            colluder: 100,
            ..named("washing, 10 % of stake")
        },
        Strategy {
            colluder: 300,
            ..named("washing, 30 % of stake")
        },
        Strategy {
            stalls: 1_000_000,
            ..named("stalling every job")
        },
        Strategy {
            refuses: 300,
            ..named("refusing three offers in ten")
        },
    ]
}
