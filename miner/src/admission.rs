//! Admission: whether the miner takes an attempt it is offered. A pure function of the offer and of what is leased.

use std::time::Duration;

use muster_protocol::{AttemptId, ExecutorClass, ImageId, JobRejectionReason, Manifest, ValidatorKey};

use crate::validator_shares::shares::{ShareRefusal, ValidatorShare};

/// The part of a validator's offer that the decision needs.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionRequest {
    /// The offered attempt.
    pub attempt: AttemptId,
    /// The kind of executor wanted.
    pub class: ExecutorClass,
    /// The validator that makes the offer.
    pub validator: ValidatorKey,
    /// Whether the job's image comes from an archive or with a login.
    pub private_image: bool,
    /// The longest that the program may run, if it cannot go on elsewhere.
    pub runs_unbroken: Option<Duration>,
}

/// The miner's record of an attempt, by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptHistory {
    /// Not known to this miner.
    New,
    /// It has a lease, or had one, for this validator.
    Leased(ValidatorKey),
    /// It was stopped at this validator's own wish.
    Cancelled(ValidatorKey),
}

/// A defect of an offer, found while its signatures were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfferFlaw {
    /// `validator_signature` is wrong, or missing where the configuration asks for it.
    Signature(String),
    /// The started receipt is not signed by the validator, names others, or lies outside the limits.
    Receipt(String),
}

/// The miner's side of the decision.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionInputs<'a> {
    /// The executors that the miner has, by class.
    pub manifest: &'a Manifest,
    /// Leases of the wanted class that have not ended.
    pub leased: u32,
    /// Executors of the wanted class that take images from archives or with a login.
    pub takers: u32,
    /// Those of the leases that need such an executor.
    pub leased_takers: u32,
    /// The miner's record of this attempt.
    pub known: AttemptHistory,
    /// Whether the miner still serves this validator; its connection may be older than the metagraph.
    pub served: bool,
    /// The miner is about to stop.
    pub draining: bool,
    /// The longest that an executor is lent to one program, if that is bounded.
    pub lend: Option<Duration>,
    /// The validator's share of the executors.
    pub share: ValidatorShare,
    /// The image of a sealed session that is not on the whitelist that its validator has published.
    pub unlisted: Option<ImageId>,
    /// Why the operator's limit on machine time admits no further machine.
    pub unaffordable: Option<&'a str>,
    /// The defect of the offer, if its check found one.
    pub flaw: Option<&'a OfferFlaw>,
}

/// The miner's answer to an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionDecision {
    /// Lease an executor.
    Accept,
    /// The attempt is leased already: report again how far it is, start nothing.
    Repeat,
    /// Decline the offer.
    Decline {
        /// The reason on the wire.
        reason: JobRejectionReason,
        /// The reason as text.
        message: String,
        /// By how much shorter the job would be accepted; `None` if its length is not the reason.
        shorter_by: Option<Duration>,
    },
}

/// Answers an offer.
///
/// Defects of the offer are reported before a lack of executors, so that a forged offer learns nothing about the
/// miner's load. A repetition comes before both limits, because a lost answer must be repeatable when the miner is full
/// or about to stop.
pub fn decide(offer: &AdmissionRequest, facts: &AdmissionInputs<'_>) -> AdmissionDecision {
    let decline = |reason, message: String| AdmissionDecision::Decline {
        reason,
        message,
        shorter_by: None,
    };
    if !facts.served {
        return decline(
            JobRejectionReason::ValidatorBlacklisted,
            format!("this miner does not serve validator {}", offer.validator),
        );
    }
    match facts.flaw {
        Some(OfferFlaw::Signature(why)) => {
            return decline(JobRejectionReason::InvalidSignature, why.clone());
        }
        Some(OfferFlaw::Receipt(why)) => return decline(JobRejectionReason::InvalidReceipt, why.clone()),
        None => {}
    }
    match facts.known {
        AttemptHistory::Leased(validator) if validator == offer.validator => {
            return AdmissionDecision::Repeat;
        }
        AttemptHistory::Cancelled(validator) if validator == offer.validator => {
            return decline(
                JobRejectionReason::Unknown,
                "this attempt was cancelled; a further try needs an attempt id of its own".to_owned(),
            );
        }
        AttemptHistory::Leased(_) | AttemptHistory::Cancelled(_) => {
            return decline(
                JobRejectionReason::Unknown,
                "this attempt id belongs to another validator's job".to_owned(),
            );
        }
        AttemptHistory::New => {}
    }
    if let Some(image) = facts.unlisted {
        return decline(
            JobRejectionReason::NoMinerForJob,
            format!(
                "the image {image} is not on the whitelist that its validator has published, so it may not serve"
            ),
        );
    }
    if let Some(message) = find_misfit(offer, facts) {
        return decline(JobRejectionReason::NoMinerForJob, message);
    }
    if facts.draining {
        return decline(JobRejectionReason::Busy, "the miner is shutting down".to_owned());
    }
    let count = facts.manifest.count(offer.class);
    if facts.leased >= count {
        let message = format!("all {count} executors of class {} are at work", offer.class);
        return decline(JobRejectionReason::Busy, message);
    }
    if offer.private_image && facts.leased_takers >= facts.takers {
        let message = format!(
            "all {} executors of class {} that take private images are at work",
            facts.takers, offer.class
        );
        return decline(JobRejectionReason::Busy, message);
    }
    if let Some(message) = facts.unaffordable {
        return decline(JobRejectionReason::Busy, message.to_owned());
    }
    match facts.share.admit(offer.class) {
        Ok(()) => AdmissionDecision::Accept,
        Err(ShareRefusal { message, shorter_by }) => AdmissionDecision::Decline {
            reason: JobRejectionReason::Busy,
            message,
            shorter_by,
        },
    }
}

/// The reason why no executor of this miner could ever take the job; `None` if one could.
fn find_misfit(offer: &AdmissionRequest, facts: &AdmissionInputs<'_>) -> Option<String> {
    let class = offer.class;
    if facts.manifest.count(class) == 0 {
        return Some(format!("this miner has no executor of class {class}"));
    }
    if offer.private_image && facts.takers == 0 {
        return Some(format!(
            "no executor of class {class} here knows private-images, which the job's image needs"
        ));
    }
    let (lend, runs) = facts.lend.zip(offer.runs_unbroken)?;
    (runs > lend).then(|| {
        format!(
            "this miner lends an executor to one program for {} s at most, and this one may run for {} s; a job with \
             checkpoints goes on elsewhere",
            lend.as_secs(),
            runs.as_secs()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::Hotkey;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

    fn validator(n: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([n; 32]))
    }

    struct Case {
        manifest: Manifest,
        leased: u32,
        takers: u32,
        leased_takers: u32,
        private_image: bool,
        known: AttemptHistory,
        served: bool,
        draining: bool,
        lend: Option<Duration>,
        runs_unbroken: Option<Duration>,
        share: ValidatorShare,
        unlisted: Option<ImageId>,
        unaffordable: Option<&'static str>,
        flaw: Option<OfferFlaw>,
    }

    /// Two executors, one at work; `change` makes the case.
    fn ask(change: impl FnOnce(&mut Case)) -> AdmissionDecision {
        let mut case = Case {
            manifest: Manifest::new([(CLASS, 2)]),
            leased: 1,
            takers: 1,
            leased_takers: 0,
            private_image: false,
            known: AttemptHistory::New,
            served: true,
            draining: false,
            lend: None,
            runs_unbroken: Some(Duration::from_secs(60)),
            share: ValidatorShare {
                places: 2,
                held: 1,
                is_contested: true,
                lasts: Duration::from_secs(2_592_000),
                beyond: Duration::from_secs(3_600),
                unpaid: Duration::ZERO,
                unpaid_allowance: Duration::from_secs(600),
            },
            unlisted: None,
            unaffordable: None,
            flaw: None,
        };
        change(&mut case);
        let facts = AdmissionInputs {
            manifest: &case.manifest,
            leased: case.leased,
            takers: case.takers,
            leased_takers: case.leased_takers,
            known: case.known,
            served: case.served,
            draining: case.draining,
            lend: case.lend,
            share: case.share,
            unlisted: case.unlisted,
            unaffordable: case.unaffordable,
            flaw: case.flaw.as_ref(),
        };
        let attempt = "11111111-2222-4333-8444-555555555555".parse().unwrap();
        let offer = AdmissionRequest {
            attempt,
            class: CLASS,
            validator: validator(1),
            private_image: case.private_image,
            runs_unbroken: case.runs_unbroken,
        };
        decide(&offer, &facts)
    }

    fn reason(decision: AdmissionDecision) -> JobRejectionReason {
        match decision {
            AdmissionDecision::Decline { reason, message, .. } => {
                assert!(!message.is_empty());
                reason
            }
            AdmissionDecision::Accept | AdmissionDecision::Repeat => panic!("not declined: {decision:?}"),
        }
    }

    #[test]
    fn an_offer_that_the_operator_cannot_afford_is_declined_as_busy_with_the_reason() {
        let decision = ask(|case| case.unaffordable = Some("the day's machine time is spent"));
        let AdmissionDecision::Decline { reason, message, .. } = decision else {
            panic!("{decision:?}")
        };
        assert_eq!(reason, JobRejectionReason::Busy);
        assert_eq!(message, "the day's machine time is spent");
    }

    #[test]
    fn a_free_executor_is_given_and_a_taken_one_is_not() {
        assert_eq!(ask(|_| {}), AdmissionDecision::Accept);
        assert_eq!(reason(ask(|c| c.leased = 2)), JobRejectionReason::Busy);
        assert_eq!(reason(ask(|c| c.draining = true)), JobRejectionReason::Busy);
    }

    #[test]
    fn a_program_that_may_outlast_the_lent_time_must_be_able_to_go_on_elsewhere() {
        let lent = |lend, runs_unbroken: Option<u64>| {
            ask(|case| {
                case.lend = Some(Duration::from_secs(lend));
                case.runs_unbroken = runs_unbroken.map(Duration::from_secs);
            })
        };
        assert_eq!(lent(60, Some(60)), AdmissionDecision::Accept);
        assert_eq!(reason(lent(60, Some(61))), JobRejectionReason::NoMinerForJob);
        assert_eq!(lent(60, None), AdmissionDecision::Accept);
    }

    #[test]
    fn a_validator_with_its_share_gets_short_jobs_while_nobody_else_waits() {
        let full = |is_contested, lasts| {
            ask(|case| {
                case.share.held = 2;
                case.share.is_contested = is_contested;
                case.share.lasts = Duration::from_secs(lasts);
            })
        };
        assert_eq!(full(false, 60), AdmissionDecision::Accept);
        assert_eq!(reason(full(true, 60)), JobRejectionReason::Busy);
        assert_eq!(reason(full(false, 86_400)), JobRejectionReason::Busy);
    }

    #[test]
    fn a_private_image_needs_an_executor_that_takes_it() {
        let private = |takers, leased_takers| {
            ask(|case| {
                case.private_image = true;
                case.takers = takers;
                case.leased_takers = leased_takers;
            })
        };
        assert_eq!(private(1, 0), AdmissionDecision::Accept);
        assert_eq!(reason(private(1, 1)), JobRejectionReason::Busy);
        assert_eq!(reason(private(0, 0)), JobRejectionReason::NoMinerForJob);
        let everybodys = ask(|case| case.takers = 0);
        assert_eq!(everybodys, AdmissionDecision::Accept);
    }

    #[test]
    fn an_image_that_its_validator_has_not_listed_is_declined_by_its_name() {
        let image = ImageId(muster_protocol::Digest::of(b"image"));
        let AdmissionDecision::Decline { message, .. } = ask(|c| c.unlisted = Some(image)) else {
            panic!("not declined")
        };
        assert!(
            message.starts_with(&format!("the image {image} is not on the whitelist")),
            "{message}"
        );
    }

    #[test]
    fn a_class_outside_the_manifest_is_declined() {
        let other = Manifest::new([(ExecutorClass::AlwaysOnLlmA6000, 5)]);
        assert_eq!(
            reason(ask(|c| c.manifest = other)),
            JobRejectionReason::NoMinerForJob
        );
    }

    #[test]
    fn the_same_attempt_again_gets_the_same_answer_even_when_full() {
        let again = |c: &mut Case| {
            c.known = AttemptHistory::Leased(validator(1));
            c.leased = 2;
            c.draining = true;
        };
        assert_eq!(ask(again), AdmissionDecision::Repeat);
        for known in [
            AttemptHistory::Leased(validator(2)),
            AttemptHistory::Cancelled(validator(1)),
        ] {
            assert_eq!(reason(ask(|c| c.known = known)), JobRejectionReason::Unknown);
        }
    }

    #[test]
    fn a_forged_offer_learns_nothing_of_the_load() {
        let forged = |c: &mut Case| {
            c.leased = 2;
            c.flaw = Some(OfferFlaw::Receipt("not signed by the validator".to_owned()));
        };
        assert_eq!(reason(ask(forged)), JobRejectionReason::InvalidReceipt);
        let unsigned = |c: &mut Case| c.flaw = Some(OfferFlaw::Signature("missing".to_owned()));
        assert_eq!(reason(ask(unsigned)), JobRejectionReason::InvalidSignature);
        assert_eq!(
            reason(ask(|c| c.served = false)),
            JobRejectionReason::ValidatorBlacklisted
        );
    }
}
