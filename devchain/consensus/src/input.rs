//! The input of an epoch.

/// A row of weights or bonds: (uid, value). A weight's value is relative to the rest of its row, a bond's to its
/// column.
pub type Row = Vec<(u16, u16)>;

/// One neuron before the epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Neuron {
    /// Its stake on the subnet, in the token's 10⁻⁹ units.
    pub stake: u64,
    /// Whether it could set weights for others until now.
    pub permit: bool,
    /// The block in which it last set or committed weights.
    pub last_update: u64,
    /// The block in which its uid was registered.
    pub registered: u64,
    /// The block of its oldest commit that is neither revealed nor expired.
    pub committed: Option<u64>,
}

/// A subnet's parameters, with the public chain's meanings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// The block of this epoch.
    pub block: u64,
    /// Bonds on neurons that were registered in this block or after it are void: the block after the last epoch.
    pub bonds_since: u64,
    /// Blocks without weights after which a validator's stake does not count.
    pub activity_cutoff: u64,
    /// The majority that a weight needs, of 65535.
    pub kappa: u16,
    /// The share of the last bonds in the next, of 10⁶.
    pub bonds_moving_average: u64,
    /// How far bonds follow the clipped weights instead of the weights as they were set, of 65535.
    pub bonds_penalty: u16,
    /// How many neurons may hold a permit.
    pub max_validators: u16,
    /// Stake below this does not count.
    pub stake_threshold: u64,
}

/// A subnet, or one mechanism of it, at the beginning of an epoch. Rows that are missing are empty; entries for uids
/// that do not exist are ignored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Epoch {
    /// The neurons, by uid.
    pub neurons: Vec<Neuron>,
    /// By uid of the validator.
    pub weights: Vec<Row>,
    /// By uid of the validator, as the last epoch left them.
    pub bonds: Vec<Row>,
    /// The subnet's parameters.
    pub rules: Rules,
}
