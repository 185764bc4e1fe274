//! The offers of a validator's miners, as one account sees them. Pure.

use std::collections::BTreeMap;

use muster_protocol::ExecutorClass;
use muster_protocol::rest::ClassOffer;
use muster_protocol::wire::muster::{CapacityNotice, JobLimits};

use crate::request_bodies::MAX_STAGE_SECONDS;

/// The limits of a validator, as far as this facilitator takes such long jobs.
pub fn limits_here(limits: JobLimits) -> JobLimits {
    JobLimits {
        job_s: limits.job_s.min(MAX_STAGE_SECONDS),
        ..limits
    }
}

/// The offers of a notice, class by class, for an account with the numbers of its waiting jobs by class.
pub fn describe_capacity(
    notice: &CapacityNotice,
    waiting: &BTreeMap<ExecutorClass, usize>,
) -> Vec<ClassOffer> {
    let offers = notice.classes.iter().map(|offered| {
        let own = waiting.get(&offered.class).copied().unwrap_or(0);
        let place = offered.place_after(own);
        ClassOffer {
            class: offered.class,
            hardware: offered.hardware.clone(),
            miners: offered.miners,
            executors: offered.executors,
            free: offered.free,
            running: offered.running,
            private_images: offered.private_images,
            waiting: offered.waiting,
            ahead: place.ahead,
            estimate_s: place.estimate_s,
            why: offered.why.clone(),
        }
    });
    offers.collect()
}

#[cfg(test)]
mod tests {
    use muster_protocol::wire::muster::{NextPlace, OfferedClass};

    use super::*;

    #[test]
    fn a_limit_is_the_smaller_one_of_the_validators_and_the_facilitators() {
        let days = |days: u64| JobLimits {
            job_s: days * 86_400,
            ..JobLimits::default()
        };
        assert_eq!(limits_here(days(30)), days(7));
        assert_eq!(limits_here(days(1)), days(1));
    }

    #[test]
    fn an_account_sees_the_place_that_its_own_next_job_would_get() {
        const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
        let place = |ahead, estimate_s| NextPlace { ahead, estimate_s };
        let notice = CapacityNotice {
            classes: vec![OfferedClass {
                class: CLASS,
                hardware: None,
                miners: 1,
                executors: 2,
                free: 0,
                running: 2,
                private_images: 0,
                waiting: 9,
                next: vec![place(2, Some(60)), place(5, Some(120))],
                why: String::new(),
            }],
            limits: Default::default(),
        };
        let seen = |own: usize| {
            let offers = describe_capacity(&notice, &[(CLASS, own)].into());
            (offers[0].ahead, offers[0].estimate_s)
        };
        assert_eq!((seen(0), seen(1)), ((2, Some(60)), (5, Some(120))));
        assert_eq!(seen(2), (9, None), "behind all that wait");
        let other_class = [(ExecutorClass::AlwaysOnGpu24Gb, 7)].into();
        assert_eq!(describe_capacity(&notice, &other_class)[0].ahead, 2);
    }
}
