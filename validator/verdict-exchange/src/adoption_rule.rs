//! When another validator's verdict is adopted. Pure: all that is asked of a chain, a store or a reference comes in.

use std::collections::BTreeSet;

use muster_audit::{OwnJudgement, PositionTally, Verdict, WHOLE_QUALITY};
use muster_chain::Metagraph;
use muster_protocol::{Digest, Hotkey, ValidatorKey};
use muster_response_proof::BucketNumber;
use muster_validator_store::{AdoptedAudit, AuditOrigin, OfferedVerdict};

use crate::conviction_life::{is_over, is_renewal};
use crate::self_test::SelfTestState;
use crate::statements::AuditEndorsement;

/// Further validators whose statements suffice.
pub const LEAST_ENDORSERS: usize = 2;
/// Cycles within which a bundle is adopted, or shown as one that was not.
const CYCLES_IN_TIME: u64 = 2;

/// The parts of the rule that an operator chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdoptionRule {
    /// Whether the author has to show a self-test that convicts.
    pub requires_self_test: bool,
}

/// The change that a verdict would make in this validator's scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictEffect {
    /// Nothing: no miner's quality would differ, or newer evidence of the same author counts.
    Nothing,
    /// It convicts the miners of the coldkey.
    Convicts,
    /// It halves the quality of miners, by users' answers that nobody else may score.
    Halves,
    /// Its author takes an earlier verdict back that counts here by others' statements.
    Lifts,
}

/// How far this validator's own reference is with a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rescoring {
    /// Its answers can be scored again.
    Due,
    /// This validator has no reference that could score its answers, for this reason.
    Unavailable(String),
    /// The own reference scores its answers later or not at all, for this reason. Others' statements do not take its
    /// place, or an author could have them count by whatever keeps the reference from scoring.
    Later(String),
    /// The own scores were tested.
    Scored(OwnJudgement),
    /// Not even the author's scores convict by this validator's calibration.
    TooWeak(PositionTally),
    /// They do not without lists of own prompts that count for nothing here, for this reason.
    Unwitnessed(String),
}

/// Everything that the decision about one bundle rests on. The bundle replays, and is about this subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferFacts {
    /// The change that the verdict would make.
    pub effect: VerdictEffect,
    /// The worth of the author's newest self-test.
    pub self_test: SelfTestState,
    /// How far the own reference is.
    pub rescoring: Rescoring,
    /// Further validators that signed: see [`count_endorsers`].
    pub endorsers: usize,
    /// A bucket of which the author signed two headers; `None` if none is known.
    pub signed_twice: Option<u64>,
    /// The newest block.
    pub block: u64,
    /// The block at which the bundle is no longer adopted: see [`deadline_of`].
    pub deadline: u64,
}

/// The next step with a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It waits, for this reason.
    Wait(WaitReason),
    /// The own reference scores answers again.
    Rescore,
    /// The verdict counts from now on.
    Adopt(AuditOrigin),
    /// It never will.
    Refuse(String),
    /// The own scores do not bear it out. Its author is trusted less.
    Contradict(String),
    /// It was not adopted in time.
    Expire(WaitReason),
    /// It changes nothing.
    SetAside,
}

/// The reason why a bundle waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// Its author shows no self-test that counts.
    SelfTest(SelfTestState),
    /// The scores of the own reference, for this reason.
    OwnScores(String),
    /// Further validators' statements, since its text is not open to anybody, or the reason states why there is no
    /// reference.
    Endorsers {
        /// The statements that there are.
        found: usize,
        /// Why the own reference does not score it.
        why: String,
    },
}

impl std::fmt::Display for WaitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SelfTest(SelfTestState::Missing) => f.write_str("its author shows no self-test"),
            Self::SelfTest(SelfTestState::OutOfDate) => {
                f.write_str("the newest self-test of its author is older than 14 days")
            }
            Self::SelfTest(SelfTestState::NotConvicted) => {
                f.write_str("its author's pipeline does not convict the cheat that it planted itself")
            }
            Self::SelfTest(SelfTestState::Convicted) => f.write_str("the self-test of its author counts"),
            Self::OwnScores(why) => write!(f, "the own reference has not scored it: {why}"),
            Self::Endorsers { found, why } => {
                write!(f, "{found} of {LEAST_ENDORSERS} further validators signed; {why}")
            }
        }
    }
}

impl AdoptionRule {
    /// Decides about a bundle. The own scores go before others' statements.
    pub fn decide(&self, facts: &OfferFacts) -> Decision {
        if facts.effect == VerdictEffect::Nothing {
            return Decision::SetAside;
        }
        let accuses = matches!(facts.effect, VerdictEffect::Convicts | VerdictEffect::Halves);
        if let Some(bucket) = facts.signed_twice.filter(|_| accuses) {
            return Decision::Refuse(format!("its author signed two headers of bucket {bucket}"));
        }
        if let (VerdictEffect::Convicts, Rescoring::Scored(judged)) = (facts.effect, &facts.rescoring)
            && !judged.convicts
        {
            return Decision::Contradict(format!("the own scores do not bear it out: {judged}"));
        }
        if self.requires_self_test && facts.self_test != SelfTestState::Convicted {
            return facts.wait(WaitReason::SelfTest(facts.self_test));
        }
        match (facts.effect, &facts.rescoring) {
            (VerdictEffect::Nothing, _) => Decision::SetAside,
            (VerdictEffect::Lifts, _) => Decision::Adopt(AuditOrigin::Withdrawn),
            (VerdictEffect::Halves, _) => facts.follow_others("users' answers cannot be scored again"),
            (VerdictEffect::Convicts, Rescoring::Scored(_)) => Decision::Adopt(AuditOrigin::Rescored),
            (VerdictEffect::Convicts, Rescoring::Unwitnessed(why)) => Decision::Refuse(why.clone()),
            (VerdictEffect::Convicts, Rescoring::TooWeak(tally)) => Decision::Refuse(format!(
                "by this validator's calibration not even its author's scores convict: {tally}"
            )),
            (VerdictEffect::Convicts, Rescoring::Due) if facts.block < facts.deadline => Decision::Rescore,
            (VerdictEffect::Convicts, Rescoring::Due) => {
                facts.wait(WaitReason::OwnScores("its time is over".to_owned()))
            }
            (VerdictEffect::Convicts, Rescoring::Later(why)) => {
                facts.wait(WaitReason::OwnScores(why.clone()))
            }
            (VerdictEffect::Convicts, Rescoring::Unavailable(why)) => facts.follow_others(why),
        }
    }
}

impl OfferFacts {
    /// Adopts if further validators signed, and else waits for them. `why` states why there are no own scores.
    fn follow_others(&self, why: &str) -> Decision {
        if self.endorsers >= LEAST_ENDORSERS {
            return Decision::Adopt(AuditOrigin::Endorsed);
        }
        self.wait(WaitReason::Endorsers {
            found: self.endorsers,
            why: why.to_owned(),
        })
    }

    fn wait(&self, reason: WaitReason) -> Decision {
        if self.block >= self.deadline {
            Decision::Expire(reason)
        } else {
            Decision::Wait(reason)
        }
    }
}

/// The block at which a bundle that was read at `seen` is no longer adopted: two cycles later. A cycle has one block
/// more than the subnet's tempo.
pub fn deadline_of(seen: u64, tempo: u16) -> u64 {
    let cycle = u64::from(tempo) + 1;
    seen.saturating_add(CYCLES_IN_TIME * cycle)
}

/// The change that a verdict of this author would make at this block, given the verdicts that count. Only its own
/// author's later evidence lifts a verdict: a miner may serve one validator honestly and another one not. An author
/// takes back only its word, and not others' own scores. A conviction renews the one that counts once a week.
pub fn effect_of(
    says: &OfferedVerdict,
    author: ValidatorKey,
    counting: &[AdoptedAudit],
    block: u64,
) -> VerdictEffect {
    let through = BucketNumber(says.through_bucket);
    if says.quality_per_mille == 0 && is_over(through, block) {
        return VerdictEffect::Nothing;
    }
    let of_subject = counting.iter().filter(|audit| {
        audit.author == Some(author) && audit.coldkey == says.coldkey && audit.model == says.model
    });
    // A suspicion beside a conviction changes nothing.
    let earlier = of_subject.min_by_key(|audit| audit.quality_per_mille);
    let is_newer = earlier.is_none_or(|earlier| says.through_bucket > earlier.through_bucket);
    let counts_already = earlier.is_some_and(|earlier| earlier.quality_per_mille == says.quality_per_mille);
    // Only `consistent` lifts a conviction, so a later suspicion of the same author leaves it as it is.
    let keeps_conviction = earlier.is_some_and(|earlier| earlier.quality_per_mille == 0)
        && Verdict::of_name(&says.verdict) != Some(Verdict::Consistent);
    let renews = says.quality_per_mille == 0
        && earlier.is_some_and(|earlier| is_renewal(through, BucketNumber(earlier.through_bucket)));
    if !is_newer || ((counts_already || keeps_conviction) && !renews) {
        return VerdictEffect::Nothing;
    }
    match says.quality_per_mille {
        0 => VerdictEffect::Convicts,
        WHOLE_QUALITY.. => {
            let is_its_word = |earlier: &AdoptedAudit| {
                earlier.quality_per_mille < WHOLE_QUALITY && earlier.origin != AuditOrigin::Rescored
            };
            let lifts = earlier.is_some_and(is_its_word)
                && Verdict::of_name(&says.verdict) == Some(Verdict::Consistent);
            if lifts {
                VerdictEffect::Lifts
            } else {
                VerdictEffect::Nothing
            }
        }
        1.. => VerdictEffect::Halves,
    }
}

/// The validators whose statements about a bundle count: they state this verdict, have a permit and stake, are neither
/// the author nor this validator, and no two of them, and none of them and the author, belong to one coldkey.
pub fn count_endorsers(
    statements: &[AuditEndorsement],
    bundle: Digest,
    verdict: &str,
    (author, me): (ValidatorKey, ValidatorKey),
    metagraph: &Metagraph,
) -> BTreeSet<ValidatorKey> {
    let say_so = statements
        .iter()
        .filter(|statement| statement.bundle == bundle && statement.verdict.name() == verdict);
    count_independent(
        say_so.map(|statement| statement.validator),
        (author, me),
        metagraph,
    )
}

/// The validators of these whose word counts beside the author's and this validator's own: they have a permit and
/// stake, and no two of them, and none of them and the author or this validator, belong to one coldkey.
pub(crate) fn count_independent(
    validators: impl Iterator<Item = ValidatorKey>,
    (author, me): (ValidatorKey, ValidatorKey),
    metagraph: &Metagraph,
) -> BTreeSet<ValidatorKey> {
    let owner_of = |key: ValidatorKey| metagraph.find(&key.0).map(|neuron| neuron.coldkey);
    let mut owners: BTreeSet<Hotkey> = [author, me].into_iter().filter_map(owner_of).collect();
    let mut counted = BTreeSet::new();
    for validator in validators {
        let Some(neuron) = metagraph.find(&validator.0) else {
            continue;
        };
        let may = neuron.permit && neuron.stake > 0 && validator != author && validator != me;
        if may && owners.insert(neuron.coldkey) {
            counted.insert(validator);
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use muster_chain::{BlockNumber, Netuid, Neuron, Uid};
    use muster_protocol::{MinerKey, Timestamp};
    use proptest::prelude::*;

    use super::*;

    const RULE: AdoptionRule = AdoptionRule {
        requires_self_test: true,
    };
    /// The newest block.
    const NOW: u64 = 400;

    fn scored(convicts: bool) -> Rescoring {
        Rescoring::Scored(OwnJudgement {
            positions: 20,
            scored: 8,
            log2: if convicts { 41_000 } else { 12_000 },
            convicts,
            newest_answer: Some(4_000),
        })
    }

    fn too_weak() -> Rescoring {
        Rescoring::TooWeak(PositionTally {
            positions: 20,
            unanswered: 12,
            closed: 5,
        })
    }

    fn facts(rescoring: Rescoring, endorsers: usize) -> OfferFacts {
        OfferFacts {
            effect: VerdictEffect::Convicts,
            self_test: SelfTestState::Convicted,
            rescoring,
            endorsers,
            signed_twice: None,
            block: 10,
            deadline: 20,
        }
    }

    #[test]
    fn a_conviction_is_adopted_by_own_scores_or_without_a_reference_with_two_statements() {
        let decide = |rescoring, endorsers| RULE.decide(&facts(rescoring, endorsers));
        assert_eq!(decide(Rescoring::Due, 0), Decision::Rescore);
        assert_eq!(
            decide(Rescoring::Due, 5),
            Decision::Rescore,
            "own scores go first"
        );
        assert_eq!(decide(scored(true), 0), Decision::Adopt(AuditOrigin::Rescored));
        let contradicted = decide(scored(false), 5);
        assert_eq!(
            contradicted,
            Decision::Contradict(
                "the own scores do not bear it out: own scores of 8 of 20 own prompts give evidence of 2^12, 2^37 is needed"
                    .to_owned()
            ),
            "statements do not help"
        );
        assert!(matches!(decide(too_weak(), 5), Decision::Refuse(_)));
        let without = || Rescoring::Unavailable("no reference".to_owned());
        assert_eq!(decide(without(), 2), Decision::Adopt(AuditOrigin::Endorsed));
        assert!(matches!(
            decide(without(), 1),
            Decision::Wait(WaitReason::Endorsers { found: 1, .. })
        ));
    }

    #[test]
    fn a_validator_with_a_reference_follows_no_statements_whatever_keeps_it_from_scoring() {
        let later =
            || Rescoring::Later("own scores contradicted two bundles of its author lately".to_owned());
        let waits = RULE.decide(&facts(later(), 5));
        assert!(
            matches!(waits, Decision::Wait(WaitReason::OwnScores(_))),
            "{waits:?}"
        );
        for rescoring in [later(), Rescoring::Due] {
            let over = OfferFacts {
                block: 20,
                ..facts(rescoring, 5)
            };
            let expires = RULE.decide(&over);
            assert!(
                matches!(expires, Decision::Expire(WaitReason::OwnScores(_))),
                "{expires:?}"
            );
        }
    }

    #[test]
    fn an_author_takes_its_own_word_back_without_a_reference() {
        let lifts = |rescoring| OfferFacts {
            effect: VerdictEffect::Lifts,
            ..facts(rescoring, 0)
        };
        for rescoring in [Rescoring::Due, Rescoring::Unavailable("none".to_owned())] {
            assert_eq!(
                RULE.decide(&lifts(rescoring)),
                Decision::Adopt(AuditOrigin::Withdrawn)
            );
        }
    }

    #[test]
    fn an_offer_that_is_not_adopted_within_two_cycles_expires() {
        assert_eq!(deadline_of(100, 359), 820);
        let mut late = facts(Rescoring::Due, 0);
        late.block = 20;
        assert!(matches!(RULE.decide(&late), Decision::Expire(_)));
        late.rescoring = scored(true);
        assert_eq!(
            RULE.decide(&late),
            Decision::Adopt(AuditOrigin::Rescored),
            "it was begun in time"
        );
    }

    #[test]
    fn a_pipeline_that_does_not_convict_its_own_cheat_is_not_adopted_from() {
        let standings = [
            SelfTestState::Missing,
            SelfTestState::OutOfDate,
            SelfTestState::NotConvicted,
        ];
        for self_test in standings {
            let given = OfferFacts {
                self_test,
                ..facts(Rescoring::Due, 5)
            };
            let waits = Decision::Wait(WaitReason::SelfTest(self_test));
            assert_eq!(RULE.decide(&given), waits, "and no reference is started");
            let lax = AdoptionRule {
                requires_self_test: false,
            };
            assert_eq!(lax.decide(&given), Decision::Rescore);
        }
    }

    #[test]
    fn discrimination_is_told_by_users_answers_and_needs_further_validators() {
        let halves = |rescoring, endorsers| OfferFacts {
            effect: VerdictEffect::Halves,
            ..facts(rescoring, endorsers)
        };
        assert!(matches!(
            RULE.decide(&halves(Rescoring::Due, 1)),
            Decision::Wait(_)
        ));
        assert_eq!(
            RULE.decide(&halves(Rescoring::Due, 2)),
            Decision::Adopt(AuditOrigin::Endorsed)
        );
    }

    fn validator(seed: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([seed; 32]))
    }

    fn says(quality_per_mille: u16, through_bucket: u64) -> OfferedVerdict {
        OfferedVerdict {
            coldkey: Hotkey::from_bytes([9; 32]),
            miners: vec![MinerKey(Hotkey::from_bytes([8; 32]))],
            model: "tiny".to_owned(),
            verdict: if quality_per_mille == 0 {
                "convicted"
            } else {
                "consistent"
            }
            .to_owned(),
            quality_per_mille,
            through_bucket,
        }
    }

    fn counting(author: u8, said: &OfferedVerdict) -> AdoptedAudit {
        counting_by(AuditOrigin::Endorsed, author, said)
    }

    fn counting_by(origin: AuditOrigin, author: u8, said: &OfferedVerdict) -> AdoptedAudit {
        AdoptedAudit {
            digest: Digest::of(b"bundle"),
            coldkey: said.coldkey,
            miners: said.miners.clone(),
            model: said.model.clone(),
            verdict: said.verdict.clone(),
            quality_per_mille: said.quality_per_mille,
            adopted_at: Timestamp::from_secs(1),
            origin,
            author: Some(validator(author)),
            through_bucket: said.through_bucket,
            newest_answer: said.through_bucket,
            scored: 20,
        }
    }

    #[test]
    fn an_appeal_is_of_the_convicting_author_and_rests_on_later_answers() {
        let convicted = [counting(1, &says(0, 5))];
        let effect = |said: &OfferedVerdict, author| effect_of(said, validator(author), &convicted, NOW);
        assert_eq!(effect(&says(1_000, 6), 1), VerdictEffect::Lifts);
        let own = [counting_by(AuditOrigin::Rescored, 1, &says(0, 5))];
        assert_eq!(
            effect_of(&says(1_000, 6), validator(1), &own, NOW),
            VerdictEffect::Nothing,
            "own scores do not rest on its author's word"
        );
        assert_eq!(
            effect(&says(1_000, 5), 1),
            VerdictEffect::Nothing,
            "no later answers"
        );
        assert_eq!(
            effect(&says(1_000, 6), 2),
            VerdictEffect::Nothing,
            "another validator's view"
        );
        assert_eq!(
            effect(&says(0, 6), 1),
            VerdictEffect::Nothing,
            "it counts already"
        );
        assert_eq!(effect(&says(0, 1), 2), VerdictEffect::Convicts, "another author");
        assert_eq!(
            effect_of(&says(0, 1), validator(1), &[], NOW),
            VerdictEffect::Convicts
        );
        assert_eq!(
            effect_of(&says(500, 1), validator(1), &[], NOW),
            VerdictEffect::Halves
        );
        assert_eq!(
            effect_of(&says(1_000, 1), validator(1), &[], NOW),
            VerdictEffect::Nothing
        );
        let weak = OfferedVerdict {
            verdict: "weak".to_owned(),
            ..says(1_000, 6)
        };
        assert_eq!(
            effect(&weak, 1),
            VerdictEffect::Nothing,
            "only consistent answers lift"
        );
    }

    #[test]
    fn a_later_suspicion_leaves_a_conviction_of_its_author_as_it_is() {
        let convicted = [counting(1, &says(0, 5))];
        let discriminates = OfferedVerdict {
            verdict: "suspect".to_owned(),
            ..says(500, 6)
        };
        let effect = |author| effect_of(&discriminates, validator(author), &convicted, NOW);
        assert_eq!(effect(1), VerdictEffect::Nothing);
        assert_eq!(effect(2), VerdictEffect::Halves, "another author's");
    }

    #[test]
    fn a_later_conviction_of_its_author_renews_the_one_that_counts_once_a_week_and_old_answers_convict_nobody()
     {
        for origin in [AuditOrigin::Rescored, AuditOrigin::Endorsed] {
            let convicted = [counting_by(origin, 1, &says(0, 2_010))];
            let effect = |through| effect_of(&says(0, through), validator(1), &convicted, 60_000);
            assert_eq!(effect(2_015), VerdictEffect::Nothing, "in the same week");
            assert_eq!(effect(2_016), VerdictEffect::Convicts);
            assert_eq!(effect(1_999), VerdictEffect::Nothing, "an older bundle");
            let renewed = [counting_by(origin, 1, &says(0, 2_016))];
            let again = effect_of(&says(0, 2_300), validator(1), &renewed, 60_000);
            assert_eq!(again, VerdictEffect::Nothing, "once a week");
        }
        // Bucket 5 ends with block 149.
        let at = |block| effect_of(&says(0, 5), validator(1), &[], block);
        assert_eq!(at(149 + 216_000 - 1), VerdictEffect::Convicts);
        assert_eq!(at(149 + 216_000), VerdictEffect::Nothing);
        let lifts = effect_of(
            &says(1_000, 6),
            validator(1),
            &[counting(1, &says(0, 5))],
            900_000,
        );
        assert_eq!(
            lifts,
            VerdictEffect::Lifts,
            "a `consistent` verdict is never too old"
        );
    }

    fn metagraph(neurons: &[(u8, u8, bool, u64)]) -> Metagraph {
        let neuron = |(uid, (key, owner, permit, stake)): (u16, &(u8, u8, bool, u64))| Neuron {
            uid: Uid(uid),
            hotkey: validator(*key).0,
            coldkey: Hotkey::from_bytes([*owner; 32]),
            axon: None,
            stake: *stake,
            permit: *permit,
            active: true,
            registered: BlockNumber(0),
            last_update: BlockNumber(0),
            incentive: 0,
        };
        Metagraph {
            block: BlockNumber(1),
            netuid: Netuid(1),
            tempo: 10,
            last_epoch: BlockNumber(0),
            certificates: std::collections::BTreeMap::new(),
            neurons: (0..).zip(neurons).map(neuron).collect(),
        }
    }

    #[test]
    fn only_distinct_staked_validators_other_than_the_author_endorse() {
        let subnet = metagraph(&[
            (1, 101, true, 9),
            (2, 102, true, 9),
            (3, 103, true, 9),
            (4, 103, true, 9),
            (5, 105, false, 9),
            (6, 106, true, 0),
            (7, 101, true, 9),
        ]);
        let bundle = Digest::of(b"bundle");
        let statement = |by: u8| AuditEndorsement {
            genesis: Digest::of(b"genesis"),
            netuid: 1,
            bundle,
            validator: validator(by),
            verdict: Verdict::Convicted,
            block: 4,
        };
        let counted = |statements: &[AuditEndorsement], verdict: &str| {
            let keys = (validator(1), validator(2));
            count_endorsers(statements, bundle, verdict, keys, &subnet)
        };
        let all: Vec<_> = (1..9).map(statement).collect();
        assert_eq!(counted(&all, "convicted"), [validator(3)].into());
        assert_eq!(counted(&all, "consistent"), BTreeSet::new());
        let other = AuditEndorsement {
            bundle: Digest::of(b"other"),
            ..statement(3)
        };
        assert_eq!(counted(&[other], "convicted"), BTreeSet::new());
    }

    fn rescoring() -> impl Strategy<Value = Rescoring> {
        prop_oneof![
            Just(Rescoring::Due),
            Just(Rescoring::Unavailable("why".to_owned())),
            Just(Rescoring::Later("why".to_owned())),
            any::<bool>().prop_map(scored),
            Just(too_weak()),
            Just(Rescoring::Unwitnessed("why".to_owned())),
        ]
    }

    fn effect() -> impl Strategy<Value = VerdictEffect> {
        prop_oneof![
            Just(VerdictEffect::Nothing),
            Just(VerdictEffect::Convicts),
            Just(VerdictEffect::Halves),
            Just(VerdictEffect::Lifts),
        ]
    }

    fn standing() -> impl Strategy<Value = SelfTestState> {
        prop_oneof![
            Just(SelfTestState::Missing),
            Just(SelfTestState::OutOfDate),
            Just(SelfTestState::NotConvicted),
            Just(SelfTestState::Convicted),
        ]
    }

    proptest! {
        #[test]
        fn nothing_is_adopted_without_a_reference_or_two_validators(
            effect in effect(), self_test in standing(), rescoring in rescoring(), endorsers in 0usize..4,
            block in 0u64..30, requires_self_test: bool, signed_twice in proptest::option::of(0u64..9),
        ) {
            let facts =
                OfferFacts { effect, self_test, rescoring, endorsers, signed_twice, block, deadline: 20 };
            let rule = AdoptionRule { requires_self_test };
            match rule.decide(&facts) {
                Decision::Adopt(origin) => {
                    let by_own = matches!(&facts.rescoring, Rescoring::Scored(judged) if judged.convicts);
                    match origin {
                        AuditOrigin::Rescored => prop_assert!(by_own && effect == VerdictEffect::Convicts),
                        AuditOrigin::Endorsed => {
                            prop_assert!(endorsers >= LEAST_ENDORSERS);
                            prop_assert!(
                                effect == VerdictEffect::Halves || matches!(&facts.rescoring, Rescoring::Unavailable(_)),
                                "only without a reference"
                            );
                        }
                        AuditOrigin::Withdrawn => prop_assert_eq!(effect, VerdictEffect::Lifts),
                        AuditOrigin::Own | AuditOrigin::Operator | AuditOrigin::Earlier => {
                            prop_assert!(false, "nothing else is adopted by itself: {:?}", origin);
                        }
                    }
                    prop_assert!(!requires_self_test || self_test == SelfTestState::Convicted);
                    prop_assert!(signed_twice.is_none() || effect == VerdictEffect::Lifts);
                    let has_own = !matches!(
                        &facts.rescoring,
                        Rescoring::Due | Rescoring::Later(_) | Rescoring::Unavailable(_)
                    );
                    prop_assert!(
                        effect != VerdictEffect::Convicts || !has_own || by_own,
                        "own scores go before others' statements"
                    );
                }
                Decision::Rescore => {
                    prop_assert_eq!(&facts.rescoring, &Rescoring::Due);
                    prop_assert!(block < 20 && effect == VerdictEffect::Convicts);
                }
                Decision::Wait(_) => prop_assert!(block < 20),
                Decision::Expire(_) => prop_assert!(block >= 20),
                Decision::Refuse(_) => {
                    let is_unproven = matches!(&facts.rescoring, Rescoring::TooWeak(_) | Rescoring::Unwitnessed(_));
                    prop_assert!(is_unproven || signed_twice.is_some());
                }
                Decision::Contradict(_) => prop_assert_eq!(&facts.rescoring, &scored(false)),
                Decision::SetAside => prop_assert_eq!(effect, VerdictEffect::Nothing),
            }
        }
    }
}
