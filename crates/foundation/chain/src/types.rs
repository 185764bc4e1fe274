//! Numbers with a role.

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
    /// A subnet.
    Netuid(u16)
);
number!(
    /// A neuron's place in its subnet. It passes to another hotkey when its owner is deregistered.
    Uid(u16)
);
number!(
    /// A block's height.
    BlockNumber(u64)
);
number!(
    /// A cycle of weights, named by its first block. See [`crate::window`].
    Epoch(u64)
);
