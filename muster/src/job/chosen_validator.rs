//! The validator that routes a job whose user named none.

use muster_client::{Client, Credential};
use muster_protocol::ValidatorKey;
use muster_protocol::rest::{ClassOffer, SubnetCapacity, ValidatorCapacity};

use crate::cli::user::JobRun;
use crate::facilitator_access::{FacilitatorAccess, client_failure};
use crate::failure::{Failure, Result};

/// The validator that is named anywhere, or the one that the facilitator's offers leave or suggest.
///
/// # Errors
///
/// No validator takes jobs, or the user signs the job and several do.
pub(super) async fn validator_for(
    access: &FacilitatorAccess,
    client: &Client,
    args: &JobRun,
) -> Result<ValidatorKey> {
    if let Some(named) = access.validator {
        return Ok(named);
    }
    let capacity = client.subnet().await.map_err(client_failure)?;
    // The facilitator signs the jobs of an API key. A hotkey's owner decides who gets what they sign.
    let may_choose = matches!(access.credential, Credential::Key(_));
    let fits = |offer: &ClassOffer| match args.machine.is_given() {
        true => args.machine.choose(std::slice::from_ref(offer)).is_ok(),
        false => offer.class == args.class,
    };
    choose(&capacity, fits, may_choose).map_err(Failure::usage)
}

/// The only validator, or, where the choice is free, the one at which a job starts first on an executor that fits.
fn choose(
    capacity: &SubnetCapacity,
    fits: impl Fn(&ClassOffer) -> bool,
    may_choose: bool,
) -> std::result::Result<ValidatorKey, String> {
    match &capacity.results[..] {
        [] => Err(
            "no validator takes jobs at this facilitator now: one that has just started is there within a minute; the \
             facilitator's operator knows more"
                .to_owned(),
        ),
        [only] => Ok(only.validator),
        several if may_choose => several
            .iter()
            .filter_map(|validator| {
                let classes = validator.classes.iter();
                let fitting = classes.filter(|offer| offer.executors > 0 && fits(offer));
                Some((validator, fitting.map(start_order).min()?))
            })
            .min_by_key(|(_, order)| *order)
            .map(|(validator, _)| validator.validator)
            .ok_or_else(|| format!("no validator has an executor that the job needs; they offer:\n{}", listed(several))),
        several => Err(format!(
            "several validators take jobs here, and a job that your hotkey signs needs your choice: give --validator \
             ADDRESS, or have one remembered by `muster login --validator ADDRESS`:\n{}",
            listed(several)
        )),
    }
}

/// The order in which a job would start: a known time before an unknown one, then fewer jobs before it, then more free
/// executors.
fn start_order(offer: &ClassOffer) -> (u64, u64, u32) {
    (
        offer.estimate_s.unwrap_or(u64::MAX),
        offer.ahead,
        u32::MAX - offer.free,
    )
}

/// A line for each validator with the classes that it offers.
fn listed(validators: &[ValidatorCapacity]) -> String {
    let lines = validators.iter().map(|validator| {
        let classes = validator.classes.iter().filter(|offer| offer.executors > 0);
        let classes: Vec<String> = classes
            .map(|offer| format!("{} ({} of {} free)", offer.class, offer.free, offer.executors))
            .collect();
        let offers = if classes.is_empty() {
            "nothing now".to_owned()
        } else {
            classes.join(", ")
        };
        format!("  {}  {offers}", validator.validator)
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use muster_protocol::wire::muster::JobLimits;
    use muster_protocol::{ExecutorClass, Timestamp};

    use super::*;

    const ALICE: &str = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
    const BOB: &str = "5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty";
    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnLlmA6000;

    fn validator(address: &str, free: u32, estimate_s: Option<u64>) -> ValidatorCapacity {
        ValidatorCapacity {
            validator: address.parse().unwrap(),
            told_at: Timestamp::from_micros(0),
            limits: JobLimits::default(),
            classes: vec![ClassOffer {
                class: CLASS,
                hardware: None,
                miners: 1,
                executors: 2,
                free,
                running: 0,
                private_images: 0,
                waiting: 0,
                ahead: 0,
                estimate_s,
                why: String::new(),
            }],
        }
    }

    fn chosen(
        results: &[ValidatorCapacity],
        class: ExecutorClass,
        may_choose: bool,
    ) -> std::result::Result<String, String> {
        let capacity = SubnetCapacity {
            results: results.to_vec(),
        };
        choose(&capacity, |offer| offer.class == class, may_choose).map(|key| key.to_string())
    }

    #[test]
    fn the_only_validator_is_chosen_whoever_signs() {
        let only = [validator(ALICE, 0, None)];
        for may_choose in [false, true] {
            assert_eq!(
                chosen(&only, ExecutorClass::AlwaysOnTest, may_choose).unwrap(),
                ALICE
            );
        }
        assert!(
            chosen(&[], CLASS, true)
                .unwrap_err()
                .contains("no validator takes jobs")
        );
    }

    #[test]
    fn of_several_the_one_that_starts_the_class_first_is_chosen() {
        let both = |a, b| [validator(ALICE, 1, a), validator(BOB, 2, b)];
        assert_eq!(chosen(&both(Some(60), Some(5)), CLASS, true).unwrap(), BOB);
        assert_eq!(chosen(&both(Some(60), None), CLASS, true).unwrap(), ALICE);
        assert_eq!(
            chosen(&both(None, None), CLASS, true).unwrap(),
            BOB,
            "it has more free executors"
        );
        let other = chosen(&both(None, None), ExecutorClass::AlwaysOnTest, true).unwrap_err();
        assert!(
            other.contains("no validator has an executor") && other.contains("(1 of 2 free)"),
            "{other}"
        );
    }

    #[test]
    fn a_user_who_signs_is_shown_the_validators() {
        let told = chosen(
            &[validator(ALICE, 1, None), validator(BOB, 2, None)],
            CLASS,
            false,
        )
        .unwrap_err();
        assert!(
            told.contains(ALICE) && told.contains(BOB) && told.contains("--validator"),
            "{told}"
        );
    }
}
