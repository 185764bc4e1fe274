//! The result of a bench, with everything needed to doubt it.

use serde::{Deserialize, Serialize};

use crate::{Turns, median};

/// Which way a figure should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Times, bytes, processor seconds: the target is a ceiling.
    LowerIsBetter,
    /// Rates: the target is a floor.
    HigherIsBetter,
}

/// One comparison, or one figure that stands alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The measured quantity, as text.
    pub what: String,
    /// The unit of the samples.
    pub unit: String,
    /// Which way is better.
    pub direction: Direction,
    /// The peer with its version; empty where the figure stands alone.
    #[serde(default)]
    pub peer: String,
    /// Our samples, in the order they were taken.
    pub ours: Vec<f64>,
    /// The peer's samples, in the order they were taken.
    #[serde(default)]
    pub theirs: Vec<f64>,
    /// The target of the ratio or, without a peer, of the median.
    #[serde(default)]
    pub target: Option<f64>,
}

impl Row {
    /// A comparison with a peer that took turns with ours.
    pub fn against(what: &str, unit: &str, direction: Direction, peer: &str, turns: Turns) -> Self {
        Self {
            what: what.to_owned(),
            unit: unit.to_owned(),
            direction,
            peer: peer.to_owned(),
            ours: turns.ours,
            theirs: turns.peer,
            target: None,
        }
    }

    /// A figure without a peer: a count, a size, a rate to know.
    pub fn alone(what: &str, unit: &str, direction: Direction, samples: Vec<f64>) -> Self {
        Self::against(
            what,
            unit,
            direction,
            "",
            Turns {
                ours: samples,
                peer: Vec::new(),
            },
        )
    }

    /// States what is to be reached.
    #[must_use]
    pub fn target(mut self, target: f64) -> Self {
        self.target = Some(target);
        self
    }

    /// Ours over the peer's, of medians. `None` without a peer or with a peer that measured nothing.
    pub fn ratio(&self) -> Option<f64> {
        let theirs = median(&self.theirs)?;
        let ours = median(&self.ours)?;
        (theirs != 0.0).then(|| ours / theirs)
    }

    /// Whether the target is reached. `None` where there is none, or nothing to hold against it.
    pub fn reached(&self) -> Option<bool> {
        let found = if self.peer.is_empty() {
            median(&self.ours)
        } else {
            self.ratio()
        }?;
        let target = self.target?;
        Some(match self.direction {
            Direction::LowerIsBetter => found <= target,
            Direction::HigherIsBetter => found >= target,
        })
    }
}

/// Everything one bench program found. Its JSON is the last line that the program prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// In the order of the table.
    pub rows: Vec<Row>,
    /// Facts that a reader needs to judge the rows: sizes, threads, stand-ins.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl Report {
    /// Prints itself as `cargo xtask bench` reads it.
    ///
    /// # Errors
    /// A sample that is no number has no JSON form.
    pub fn print(&self) -> anyhow::Result<()> {
        let line = serde_json::to_string(self)?;
        #[expect(clippy::print_stdout, reason = "a bench speaks to whoever ran it")]
        {
            println!("{line}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(direction: Direction, ours: &[f64], theirs: &[f64]) -> Row {
        let turns = Turns {
            ours: ours.to_vec(),
            peer: theirs.to_vec(),
        };
        Row::against("start", "ms", direction, "bare engine", turns).target(1.15)
    }

    #[test]
    fn a_ratio_is_of_medians() {
        assert_eq!(
            row(Direction::LowerIsBetter, &[1.0, 50.0, 2.0], &[4.0, 4.0]).ratio(),
            Some(0.5)
        );
    }

    #[test]
    fn a_target_is_a_ceiling_or_a_floor() {
        assert_eq!(
            row(Direction::LowerIsBetter, &[1.1], &[1.0]).reached(),
            Some(true)
        );
        assert_eq!(
            row(Direction::HigherIsBetter, &[1.1], &[1.0]).reached(),
            Some(false)
        );
    }

    #[test]
    fn without_a_peer_the_figure_itself_is_held_against_the_target() {
        let row = Row::alone("checked", "1/min", Direction::HigherIsBetter, vec![25_000.0]).target(20_000.0);
        assert_eq!(row.ratio(), None);
        assert_eq!(row.reached(), Some(true));
    }

    #[test]
    fn a_peer_that_measured_nothing_proves_nothing() {
        assert_eq!(row(Direction::LowerIsBetter, &[1.0], &[]).reached(), None);
        assert_eq!(row(Direction::LowerIsBetter, &[1.0], &[0.0]).reached(), None);
    }
}
