//! The life of a conviction: it counts, then its coldkey is watched, then nothing more follows from it. A pure function
//! of what it rests on, its newest answer, who has a permit, and the answers that were consistent since.

use muster_response_proof::BucketNumber;
use muster_subnet_view::BlockTimes;
use muster_validator_store::AuditOrigin;

use crate::adoption_rule::LEAST_ENDORSERS;

/// The blocks of a day.
const DAY_BLOCKS: u64 = 86_400_000 / BlockTimes::USUAL_BLOCK_MS;
/// The blocks for which a conviction counts after its newest answer: thirty days.
const STANDS_FOR: u64 = 30 * DAY_BLOCKS;
/// The blocks of a week. In each week the first newer bundle of an author renews its conviction at the others.
const RENEWED_EVERY: u64 = 7 * DAY_BLOCKS;
/// The cycles for which a conviction may lack the permits of those whose word it rests on.
const CYCLES_WITHOUT_SUPPORT: u64 = 8;
/// The scored answers of a `consistent` verdict that ends the audit in full which follows a conviction.
const CONSISTENT_ANSWERS: u64 = 64;

/// Whether a conviction whose newest answer stands in this bucket counts no longer, whatever it rests on.
pub(crate) const fn is_over(newest_answer: BucketNumber, block: u64) -> bool {
    block >= newest_answer.last_block().saturating_add(STANDS_FOR)
}

/// The first bucket whose answers can still convict: a conviction by older ones would be over.
pub(crate) fn oldest_bucket(block: u64) -> BucketNumber {
    let mut oldest = BucketNumber::of_block(block.saturating_sub(STANDS_FOR));
    if is_over(oldest, block) {
        oldest.0 = oldest.0.saturating_add(1);
    }
    oldest
}

/// Whether an author's later bundle renews its conviction: the last buckets of the two stand in different weeks. Weeks
/// begin at the same blocks for everybody, so all validators score the same bundle again, and sign the same one.
pub(crate) const fn is_renewal(through: BucketNumber, earlier: BucketNumber) -> bool {
    through.last_block() / RENEWED_EVERY > earlier.last_block() / RENEWED_EVERY
}

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

    /// Whether all answers of the coldkey are audited after the conviction has ended. `consistent_since` is that of
    /// [`ConvictionStage::Ended`].
    pub const fn is_watched(self, consistent_since: u64) -> bool {
        match self {
            Self::OwnScores => consistent_since < CONSISTENT_ANSWERS,
            Self::Statements | Self::Order => false,
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
    /// None of them has a permit.
    pub const NOBODY: Self = Self {
        author: false,
        endorsers: 0,
    };

    const fn suffice(self) -> bool {
        self.author && self.endorsers >= LEAST_ENDORSERS
    }
}

/// Everything that the life of a conviction rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvictionFacts {
    /// The evidence that it rests on.
    pub ground: ConvictionGround,
    /// The bucket of the newest answer that it rests on.
    pub newest_answer: BucketNumber,
    /// The part of its life, with the facts that matter in it.
    pub stage: ConvictionStage,
    /// The newest block.
    pub block: u64,
    /// The blocks of one cycle.
    pub cycle: u64,
}

/// The parts of a conviction's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvictionStage {
    /// From its adoption to its end: it counts in scores.
    Counts {
        /// Its author and its endorsers, as far as they have a permit now.
        supporters: Supporters,
        /// The block since which too few did; `None` if enough did when it was looked at last.
        unsupported_since: Option<u64>,
    },
    /// After its end: it counts in no scores.
    Ended {
        /// The scored answers of the coldkey and model that this validator found consistent at once since then.
        consistent_since: u64,
    },
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
    /// It counts no longer, and all answers of the coldkey are audited.
    Watch,
    /// Nothing more follows from it.
    Settle,
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
    /// Whether this is the block that is noted as the one since which too few support the conviction.
    pub(crate) fn notes(&self, since: Option<u64>) -> bool {
        matches!(self.stage, ConvictionStage::Counts { unsupported_since, .. } if unsupported_since == since)
    }

    /// The state of the conviction now. One that rests on own scores counts whatever becomes of its author.
    pub const fn step(&self) -> ConvictionStep {
        match (self.stage, self.ground) {
            (ConvictionStage::Counts { .. }, ConvictionGround::Order) => ConvictionStep::Count {
                unsupported_since: None,
            },
            (ConvictionStage::Counts { .. }, ConvictionGround::OwnScores | ConvictionGround::Statements)
                if is_over(self.newest_answer, self.block) =>
            {
                ConvictionStep::End(ConvictionEnd::Age)
            }
            (ConvictionStage::Counts { .. }, ConvictionGround::OwnScores) => ConvictionStep::Count {
                unsupported_since: None,
            },
            (
                ConvictionStage::Counts {
                    supporters,
                    unsupported_since,
                },
                ConvictionGround::Statements,
            ) => self.step_of_statements(supporters, unsupported_since),
            (ConvictionStage::Ended { consistent_since }, ground) if ground.is_watched(consistent_since) => {
                ConvictionStep::Watch
            }
            (ConvictionStage::Ended { .. }, _) => ConvictionStep::Settle,
        }
    }

    const fn step_of_statements(
        &self,
        supporters: Supporters,
        unsupported_since: Option<u64>,
    ) -> ConvictionStep {
        if supporters.suffice() {
            return ConvictionStep::Count {
                unsupported_since: None,
            };
        }
        let since = match unsupported_since {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: Supporters = Supporters {
        author: true,
        endorsers: 2,
    };
    const NOBODY: Supporters = Supporters {
        author: false,
        endorsers: 1,
    };
    const COUNTS: ConvictionStep = ConvictionStep::Count {
        unsupported_since: None,
    };
    const OLD: ConvictionStep = ConvictionStep::End(ConvictionEnd::Age);
    /// The last block of bucket 40, and thirty days later.
    const NEWEST: u64 = 1_024;
    const OVER: u64 = NEWEST + 216_000;

    fn counting(ground: ConvictionGround, supporters: Supporters, since: Option<u64>) -> ConvictionFacts {
        ConvictionFacts {
            ground,
            newest_answer: BucketNumber(40),
            stage: ConvictionStage::Counts {
                supporters,
                unsupported_since: since,
            },
            block: 2_000,
            cycle: 361,
        }
    }

    #[test]
    fn a_conviction_by_own_scores_counts_thirty_days_from_its_newest_answer_without_its_author() {
        let at = |block, newest| ConvictionFacts {
            block,
            newest_answer: BucketNumber(newest),
            ..counting(ConvictionGround::OwnScores, NOBODY, Some(0))
        };
        assert_eq!(at(OVER - 1, 40).step(), COUNTS);
        assert_eq!(at(OVER, 40).step(), OLD);
        assert_eq!(at(OVER, 41).step(), COUNTS, "a newer answer");
        let ordered = ConvictionFacts {
            block: u64::MAX,
            ..counting(ConvictionGround::Order, NOBODY, None)
        };
        assert_eq!(ordered.step(), COUNTS, "an order stands until the next one");
    }

    #[test]
    fn a_conviction_by_statements_ends_eight_cycles_after_those_whose_word_it_is() {
        let stated = |supporters, since, block| {
            let facts = ConvictionFacts {
                block,
                ..counting(ConvictionGround::Statements, supporters, since)
            };
            facts.step()
        };
        let since = ConvictionStep::Count {
            unsupported_since: Some(2_000),
        };
        let unsupported = ConvictionStep::End(ConvictionEnd::Unsupported);
        assert_eq!(stated(NOBODY, None, 2_000), since, "it is noted");
        let (last, end) = (2_000 + 8 * 361 - 1, 2_000 + 8 * 361);
        for (author, endorsers) in [(false, 1), (true, 1), (false, 2)] {
            let few = Supporters { author, endorsers };
            assert_eq!(stated(few, Some(2_000), last), since);
            assert_eq!(stated(few, Some(2_000), end), unsupported);
        }
        assert_eq!(stated(ALL, Some(2_000), last), COUNTS, "they came back in time");
        assert_eq!(stated(ALL, None, OVER - 1), COUNTS);
        assert_eq!(stated(ALL, None, OVER), OLD);
    }

    #[test]
    fn a_former_convict_by_own_scores_is_watched_until_64_answers_are_consistent() {
        let ended = |ground, consistent_since| {
            let facts = ConvictionFacts {
                stage: ConvictionStage::Ended { consistent_since },
                ..counting(ground, ALL, None)
            };
            facts.step()
        };
        assert_eq!(ended(ConvictionGround::OwnScores, 0), ConvictionStep::Watch);
        assert_eq!(ended(ConvictionGround::OwnScores, 63), ConvictionStep::Watch);
        assert_eq!(ended(ConvictionGround::OwnScores, 64), ConvictionStep::Settle);
        assert_eq!(ended(ConvictionGround::Statements, 0), ConvictionStep::Settle);
    }

    #[test]
    fn the_oldest_bucket_that_convicts_is_the_first_whose_conviction_is_not_over() {
        for block in [0, 5, 216_000, OVER - 1, OVER, OVER + 1, OVER + 24, 9_999_999] {
            let oldest = oldest_bucket(block);
            assert!(!is_over(oldest, block), "{block}");
            assert!(
                oldest.0 == 0 || is_over(BucketNumber(oldest.0 - 1), block),
                "{block}"
            );
        }
    }

    #[test]
    fn one_bundle_of_each_week_renews_a_conviction_and_all_validators_agree_on_it() {
        // A week has 50,400 blocks, which are 2,016 buckets.
        let renews = |through, earlier| is_renewal(BucketNumber(through), BucketNumber(earlier));
        assert!(!renews(2_015, 0) && renews(2_016, 2_015) && renews(2_016, 0));
        assert!(!renews(4_031, 2_016) && renews(4_032, 2_016));
        assert!(!renews(2_015, 2_016), "an older bundle");
    }

    fn grounds() -> impl Strategy<Value = ConvictionGround> {
        prop_oneof![
            Just(ConvictionGround::OwnScores),
            Just(ConvictionGround::Statements)
        ]
    }

    proptest! {
        #[test]
        fn no_conviction_outlives_thirty_days_and_none_by_own_scores_ends_before(
            ground in grounds(), newest in 0_u64..40_000, block in 0_u64..2_000_000, author: bool,
            endorsers in 0_usize..4, unsupported_since in proptest::option::of(0_u64..2_000_000), cycle in 1_u64..1_000,
        ) {
            let supporters = Supporters { author, endorsers };
            let facts = ConvictionFacts {
                ground,
                newest_answer: BucketNumber(newest),
                stage: ConvictionStage::Counts { supporters, unsupported_since },
                block,
                cycle,
            };
            let is_old = block >= newest * 25 + 24 + 216_000;
            let has_few = ground == ConvictionGround::Statements && !(author && endorsers >= 2);
            match facts.step() {
                ConvictionStep::End(ConvictionEnd::Age) => prop_assert!(is_old),
                ConvictionStep::End(ConvictionEnd::Unsupported) => prop_assert!(has_few && !is_old),
                ConvictionStep::Count { unsupported_since } => {
                    prop_assert!(!is_old);
                    prop_assert_eq!(unsupported_since.is_some(), has_few);
                }
                other @ (ConvictionStep::Watch | ConvictionStep::Settle) => {
                    prop_assert!(false, "{:?} of one that counts", other);
                }
            }
        }

        #[test]
        fn reviews_in_every_cycle_end_a_conviction_by_statements_at_the_eighth_in_a_row_without_permits(
            permits in proptest::collection::vec((any::<bool>(), 0_usize..4), 1..40), cycle in 1_u64..500,
        ) {
            let (mut unsupported_since, mut in_a_row) = (None, 0);
            for (at, (author, endorsers)) in (0..).zip(permits) {
                let supporters = Supporters { author, endorsers };
                let facts = ConvictionFacts {
                    newest_answer: BucketNumber(40),
                    block: 2_000 + at * cycle,
                    cycle,
                    ..counting(ConvictionGround::Statements, supporters, unsupported_since)
                };
                in_a_row = if author && endorsers >= 2 { 0 } else { in_a_row + 1 };
                match facts.step() {
                    ConvictionStep::Count { unsupported_since: since } => unsupported_since = since,
                    ConvictionStep::End(end) => {
                        // Eight whole cycles lie between the first review without and the ninth.
                        prop_assert_eq!((end, in_a_row), (ConvictionEnd::Unsupported, 9));
                        return Ok(());
                    }
                    ConvictionStep::Watch | ConvictionStep::Settle => prop_assert!(false, "it counts"),
                }
                prop_assert!(in_a_row < 9);
            }
        }
    }
}
