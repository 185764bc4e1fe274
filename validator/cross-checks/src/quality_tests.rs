//! The pure rules put together: the quality of miners against users, cheats and images.
//!
//! A machine has a kind, and a program is a function of it: one that tells machines apart has another output on each
//! kind. Every user chooses the program; the validator's list has programs whose outputs do not depend on the kind.

use std::collections::{BTreeMap, BTreeSet};

use muster_audit::{SeededNumbers, WHOLE_QUALITY};
use muster_protocol::wire::checks::CheckState;
use muster_protocol::wire::facilitator::MinerResponse;
use muster_protocol::{Hotkey, JobId, MinerKey, Timestamp};
use muster_scoring::QualityFactor;
use proptest::prelude::*;
use uuid::Uuid;

use crate::coldkey_test::{OwnResult, add_quality, open_differences, test_results};
use crate::image_marks::{ImageMark, effect_of};
use crate::outputs::JobOutputs;
use crate::own_check::{MinerRun, OwnCheckFacts, OwnCheckStep, next_check_step};
use crate::own_draw::DrawnSubject;
use crate::own_draw::tests::{draw, key, programs, users};
use crate::verdict::{CheckStep, next_step};

/// The kind of the validator's own miner.
const TRUSTED: u8 = 0;
/// The coldkeys of three miners.
const OWNERS: [u8; 3] = [1, 2, 3];
const BLOCK_SECS: i64 = 12;
const BLOCKS_IN_A_MONTH: i64 = 30 * 86_400 / BLOCK_SECS;
/// The own jobs of a coldkey in a day by default.
const PER_DAY: u32 = 4;

fn outputs(value: u8) -> JobOutputs {
    JobOutputs::of(&MinerResponse {
        docker_process_stdout: value.to_string(),
        ..MinerResponse::default()
    })
}

/// A user's job: the program's output on each kind of machine, the image, and the miner that runs it.
#[derive(Clone, Debug)]
struct UsersJob {
    program: [u8; 4],
    image: u8,
    owner: u8,
    day: i64,
}

fn any_users_job() -> impl Strategy<Value = UsersJob> {
    (any::<[u8; 4]>(), 0_u8..3, 0_usize..3, 0_i64..30).prop_map(|(program, image, at, day)| UsersJob {
        program,
        image,
        owner: OWNERS[at],
        day,
    })
}

/// The checks of users' jobs, all of which are drawn; returns the jobs that are refunded, and the images with a mark.
fn check_users_jobs(jobs: &[UsersJob], kinds: [u8; 3]) -> (usize, BTreeMap<u8, ImageMark>) {
    let (mut refunded, mut marks) = (0, BTreeMap::new());
    for (number, job) in jobs.iter().enumerate() {
        let now = Timestamp::from_secs(job.day * 86_400);
        let kind = kinds[usize::from(job.owner) - 1];
        let of = |kind: u8| outputs(job.program[usize::from(kind)]);
        let runs = vec![of(TRUSTED); 2];
        let CheckStep::Done(verdict) = next_step(&of(kind), &runs) else {
            panic!("two runs are enough")
        };
        let effect = effect_of(verdict, marks.get(&job.image), now);
        if effect.refunds {
            refunded += 1;
            let job_id = JobId::from_uuid(Uuid::from_u128(number as u128));
            marks.insert(job.image, ImageMark { job: job_id, at: now });
        }
    }
    (refunded, marks)
}

/// The result of one own job whose honest output is 0, if it has one. The witness is honest.
fn own_result(coldkey: Hotkey, program: &str, subject: u8, at: Timestamp) -> OwnResult {
    let facts = OwnCheckFacts {
        subject: MinerRun::Completed(outputs(subject)),
        runs: vec![outputs(0); 2],
        witness: MinerRun::Completed(outputs(0)),
        witnesses: 1,
    };
    let OwnCheckStep::Done(verdict) = next_check_step(&facts) else {
        panic!("nothing is missing")
    };
    assert_ne!(verdict.state, CheckState::Unproven);
    OwnResult {
        coldkey,
        program: program.to_owned(),
        differs: verdict.state == CheckState::Differs,
        at,
    }
}

/// The own jobs of a coldkey in thirty days, as they are drawn, at a miner that returns false outputs where `cheats` is
/// true of the number of the job and its inputs.
fn thirty_days(seed: u64, owner: u8, mut cheats: impl FnMut(usize, [u8; 32]) -> bool) -> Vec<OwnResult> {
    let (programs, users) = (programs(), users(&OWNERS));
    let miners = BTreeSet::from([MinerKey(key(owner))]);
    let (mut results, mut open) = (Vec::new(), None);
    for block in 0..BLOCKS_IN_A_MONTH {
        let at = Timestamp::from_secs(block * BLOCK_SECS);
        let subject = DrawnSubject {
            coldkey: key(owner),
            miners: &miners,
            open: open.as_deref(),
        };
        let bytes = [seed.to_le_bytes(), block.to_le_bytes()].concat();
        if let Some(drawn) = draw(&bytes).draw(at, subject, &programs, &users, PER_DAY) {
            let output = u8::from(cheats(results.len(), drawn.inputs));
            results.push(own_result(key(owner), &drawn.program, output, at));
            open = open_differences(&results).remove(&key(owner));
        }
    }
    results
}

/// The factors of the three coldkeys' miners, whose hotkeys have the same numbers.
fn quality(results: &[OwnResult]) -> Vec<QualityFactor> {
    let owners = OWNERS.map(|owner| (MinerKey(key(owner)), key(owner)));
    add_quality(Vec::new(), &test_results(results), &owners.into())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Three colluding user keys and any programs, on machines of any kinds: each image costs one refund.
    #[test]
    fn colluding_users_with_any_programs_move_no_miners_quality(
        mut jobs in prop::collection::vec(any_users_job(), 0..60), kinds in any::<[u8; 3]>(),
    ) {
        jobs.sort_by_key(|job| job.day);
        let kinds = kinds.map(|kind| kind % 4);
        let (refunded, marks) = check_users_jobs(&jobs, kinds);
        prop_assert_eq!(refunded, marks.len(), "each image is refunded once in thirty days");
        // Honest machines of any kind give the own jobs' outputs.
        let results: Vec<_> = OWNERS
            .iter()
            .flat_map(|owner| (0..9).map(|number| {
                own_result(key(*owner), "first", 0, Timestamp::from_secs(number * 7_200))
            }))
            .collect();
        prop_assert_eq!(quality(&results), Vec::new());
    }

    /// A cheat's friend has images marked that tell machines apart, those of the list among them.
    #[test]
    fn an_image_that_tells_machines_apart_shields_nobody(
        mut jobs in prop::collection::vec(any_users_job(), 1..30), honest in 0_i64..20,
    ) {
        jobs.sort_by_key(|job| job.day);
        let (_, marks) = check_users_jobs(&jobs, [1, 2, 3]);
        // An image that no job has used is judged as if no mark stood.
        let untouched = UsersJob { program: [0, 1, 1, 1], image: 9, owner: 1, day: 30 };
        let (refunded, _) = check_users_jobs(&[jobs.as_slice(), &[untouched]].concat(), [1, 2, 3]);
        prop_assert_eq!(refunded, marks.len() + 1);
        // The result of an own job knows no mark, whatever its image is.
        let results: Vec<_> = (0..6)
            .map(|number| (1, number))
            .chain((6..6 + honest).map(|number| (0, number)))
            .map(|(output, number)| own_result(key(1), "first", output, Timestamp::from_secs(number * 7_200)))
            .collect();
        let share = u16::try_from(1_000 * honest / (6 + honest)).unwrap();
        let expected = QualityFactor { miner: MinerKey(key(1)), per_mille: share };
        prop_assert_eq!(quality(&results), vec![expected]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]

    #[test]
    fn a_miner_that_cheats_in_one_own_job_of_five_loses_quality_within_thirty_days(seed in any::<u64>()) {
        let mut numbers = SeededNumbers::new("a cheat", &seed.to_le_bytes());
        let by_chance = thirty_days(seed, 1, |_, _| numbers.below(5) == 0);
        let by_inputs = thirty_days(seed, 1, |_, inputs| inputs[0] % 5 == 0);
        for results in [by_chance, by_inputs] {
            let factors = quality(&results);
            prop_assert_eq!(factors.len(), 1, "{:?}", test_results(&results));
            prop_assert!((600..920).contains(&factors[0].per_mille), "{:?}", factors);
        }
    }

    /// Faults of an honest machine: one wrong output in a hundred, ten times what a machine is expected to have.
    #[test]
    fn a_machine_with_a_wrong_output_in_a_hundred_keeps_its_quality(seed in any::<u64>()) {
        let results = thirty_days(seed, 2, |number, _| number % 100 == 99);
        prop_assert_eq!(quality(&results), Vec::new());
        prop_assert!((80..170).contains(&results.len()), "{}", results.len());
    }
}

#[test]
fn a_cheat_that_is_honest_right_after_each_false_output_is_found_all_the_same() {
    // After each false output the next four are right, so the repeat that follows at once agrees.
    let mut last = None;
    let results = thirty_days(7, 3, |number, _| {
        let is_due = last.is_none_or(|last| number - last >= 5);
        if is_due {
            last = Some(number);
        }
        is_due
    });
    let factors = quality(&results);
    assert_eq!(factors.len(), 1, "{:?}", test_results(&results));
    assert!(factors[0].per_mille < WHOLE_QUALITY);
}
