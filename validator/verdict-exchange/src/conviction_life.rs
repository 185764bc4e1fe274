//! How long a conviction counts: a pure function of what it rests on, its newest answer, and who has a permit.

use muster_subnet_view::BlockTimes;
use muster_validator_store::AuditOrigin;

use crate::adoption_rule::LEAST_ENDORSERS;

/// The blocks for which a conviction counts after its newest answer: thirty days.
const STANDS_FOR: u64 = 30 * 86_400_000 / BlockTimes::USUAL_BLOCK_MS;
/// The cycles for which a conviction may lack the permits of those whose word it rests on.
const CYCLES_WITHOUT_SUPPORT: u64 = 8;
/// The scored answers of a `consistent` verdict that ends the audit in full which follows a conviction.
pub const CONSISTENT_ANSWERS: u64 = 64;

/// The evidence that a conviction rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvictionGround {
    /// The scores of this validator's own references.
    OwnScores,
    /// The word of its author, and of the validators that endorsed it.
    Statements,
    /// An order of this validator's operator.
    Order,
}

impl ConvictionGround {
    /// The ground of a conviction that came to count in this way.
    pub const fn of(origin: AuditOrigin) -> Self {
        match origin {
            AuditOrigin::Own | AuditOrigin::Rescored => Self::OwnScores,
            AuditOrigin::Endorsed | AuditOrigin::Withdrawn | AuditOrigin::Earlier => Self::Statements,
            AuditOrigin::Operator => Self::Order,
        }
    }
}

/// The validators whose word a conviction rests on, as far as they have a permit now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supporters {
    /// Whether its author has a permit.
    pub author: bool,
    /// The number of endorsers with a permit that count.
    pub endorsers: usize,
}

impl Supporters {
    const fn suffice(self) -> bool {
        self.author && self.endorsers >= LEAST_ENDORSERS
    }
}

/// Everything that the life of a conviction rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvictionFacts {
    /// The evidence that it rests on.
    pub ground: ConvictionGround,
    /// The last block of the bucket of the newest answer that speaks against the miner.
    pub newest_answer: u64,
    /// Its author and its endorsers, as far as they have a permit now.
    pub supporters: Supporters,
    /// The block since which too few did; `None` if enough did when it was looked at last.
    pub unsupported_since: Option<u64>,
    /// The newest block.
    pub block: u64,
    /// The blocks of one cycle.
    pub cycle: u64,
}

/// The next state of a conviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvictionStep {
    /// It counts. `unsupported_since` is noted.
    Count {
        /// The block since which too few support it.
        unsupported_since: Option<u64>,
    },
    /// It stops to count.
    End(ConvictionEnd),
}

/// Why a conviction stops to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvictionEnd {
    /// Thirty days have passed since its newest answer.
    Age,
    /// Its author, or all but one of its endorsers, have had no permit for eight cycles.
    Unsupported,
}

impl ConvictionEnd {
    /// The reason as text.
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::Age => "thirty days have passed since the newest answer that it rests on",
            Self::Unsupported => {
                "its author, or all but one of its endorsers, have had no permit for eight cycles"
            }
        }
    }
}

impl ConvictionFacts {
    /// The state of the conviction now. One that rests on own scores counts whatever becomes of its author.
    pub const fn step(&self) -> ConvictionStep {
        let is_old = self.block >= self.newest_answer.saturating_add(STANDS_FOR);
        match self.ground {
            ConvictionGround::Order => ConvictionStep::Count {
                unsupported_since: None,
            },
            ConvictionGround::OwnScores | ConvictionGround::Statements if is_old => {
                ConvictionStep::End(ConvictionEnd::Age)
            }
            ConvictionGround::OwnScores => ConvictionStep::Count {
                unsupported_since: None,
            },
            ConvictionGround::Statements if self.supporters.suffice() => ConvictionStep::Count {
                unsupported_since: None,
            },
            ConvictionGround::Statements => {
                let since = match self.unsupported_since {
                    Some(since) => since,
                    None => self.block,
                };
                if self.block.saturating_sub(since) >= CYCLES_WITHOUT_SUPPORT.saturating_mul(self.cycle) {
                    ConvictionStep::End(ConvictionEnd::Unsupported)
                } else {
                    ConvictionStep::Count {
                        unsupported_since: Some(since),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn facts(ground: ConvictionGround) -> ConvictionFacts {
        ConvictionFacts {
            ground,
            newest_answer: 1_000,
            supporters: Supporters {
                author: true,
                endorsers: 2,
            },
            unsupported_since: None,
            block: 2_000,
            cycle: 361,
        }
    }

    const NOTHING: Supporters = Supporters {
        author: false,
        endorsers: 1,
    };
    const COUNTS: ConvictionStep = ConvictionStep::Count {
        unsupported_since: None,
    };

    #[test]
    fn a_conviction_by_own_scores_counts_thirty_days_from_its_newest_answer_without_its_author() {
        assert_eq!(STANDS_FOR, 216_000);
        let mut own = facts(ConvictionGround::OwnScores);
        own.supporters = NOTHING;
        own.unsupported_since = Some(0);
        own.block = 216_999;
        assert_eq!(own.step(), COUNTS);
        own.block = 217_000;
        assert_eq!(own.step(), ConvictionStep::End(ConvictionEnd::Age));
        own.newest_answer = 1_025;
        assert_eq!(own.step(), COUNTS, "a newer answer that speaks against the miner");
        own.ground = ConvictionGround::Order;
        own.block = u64::MAX;
        assert_eq!(own.step(), COUNTS, "an order stands until the next one");
    }

    #[test]
    fn a_conviction_by_statements_ends_eight_cycles_after_those_whose_word_it_is() {
        let mut stated = facts(ConvictionGround::Statements);
        stated.supporters = NOTHING;
        let since = |since| ConvictionStep::Count {
            unsupported_since: Some(since),
        };
        assert_eq!(stated.step(), since(2_000), "it begins to count");
        stated.unsupported_since = Some(2_000);
        stated.block = 2_000 + 8 * 361 - 1;
        assert_eq!(stated.step(), since(2_000));
        stated.block += 1;
        assert_eq!(stated.step(), ConvictionStep::End(ConvictionEnd::Unsupported));
        for (author, endorsers) in [(true, 1), (false, 2)] {
            stated.supporters = Supporters { author, endorsers };
            assert_eq!(stated.step(), ConvictionStep::End(ConvictionEnd::Unsupported));
        }
        stated.supporters = Supporters {
            author: true,
            endorsers: 2,
        };
        assert_eq!(stated.step(), COUNTS, "they came back in time");
        stated.block = 217_000;
        assert_eq!(stated.step(), ConvictionStep::End(ConvictionEnd::Age));
    }

    proptest! {
        #[test]
        fn no_conviction_outlives_thirty_days_and_none_by_own_scores_ends_before(
            ground in prop_oneof![Just(ConvictionGround::OwnScores), Just(ConvictionGround::Statements)],
            newest_answer in 0_u64..1_000_000, block in 0_u64..2_000_000, author: bool, endorsers in 0_usize..4,
            unsupported_since in proptest::option::of(0_u64..2_000_000), cycle in 1_u64..1_000,
        ) {
            let supporters = Supporters { author, endorsers };
            let facts = ConvictionFacts { ground, newest_answer, supporters, unsupported_since, block, cycle };
            let is_old = block >= newest_answer + 216_000;
            match facts.step() {
                ConvictionStep::End(ConvictionEnd::Age) => prop_assert!(is_old),
                ConvictionStep::End(ConvictionEnd::Unsupported) => {
                    prop_assert!(ground == ConvictionGround::Statements && !(author && endorsers >= 2) && !is_old);
                }
                ConvictionStep::Count { unsupported_since } => {
                    prop_assert!(!is_old);
                    prop_assert_eq!(unsupported_since.is_some(),
                        ground == ConvictionGround::Statements && !(author && endorsers >= 2));
                }
            }
        }
    }
}
