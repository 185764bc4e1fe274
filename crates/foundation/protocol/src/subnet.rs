//! The numbers by which a chain names its subnets, neurons and blocks, and the unit of its money.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$meta:meta])* $name:ident($inner:ty)) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

number!(
    /// The number of a subnet on its chain.
    Netuid(u16)
);
number!(
    /// The number of a neuron in its subnet, from 0. The chain gives it to another hotkey once its owner is
    /// deregistered.
    Uid(u16)
);
number!(
    /// The height of a block; the first block has height 0.
    BlockNumber(u64)
);
number!(
    /// A cycle of weights, named by the height of its first block.
    Epoch(u64)
);

/// An amount of money in rao, of which one TAO has 1,000,000,000. Whole numbers only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rao(pub u64);

/// Rao in one TAO.
const TAO: u64 = 1_000_000_000;

impl Rao {
    /// The sum; `None` if it does not fit into 64 bits.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// The difference; `None` if `other` is larger.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }
}

impl fmt::Display for Rao {
    /// `1.500000000 TAO`: all nine digits, so that nothing is rounded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (
            self.0.checked_div(TAO).unwrap_or(0),
            self.0.checked_rem(TAO).unwrap_or(0),
        );
        write!(f, "{whole}.{part:09} TAO")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_whole_and_written_in_full() {
        assert_eq!(Rao(1_500_000_001).to_string(), "1.500000001 TAO");
        assert_eq!(Rao(7).to_string(), "0.000000007 TAO");
        assert_eq!(Rao(u64::MAX).to_string(), "18446744073.709551615 TAO");
        assert_eq!(Rao(1).checked_sub(Rao(2)), None);
        assert_eq!(Rao(u64::MAX).checked_add(Rao(1)), None);
    }
}
