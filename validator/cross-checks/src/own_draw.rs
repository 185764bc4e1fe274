//! The draw of the validator's own jobs: which coldkey gets one at a block, with which program, form and inputs. Pure.
//!
//! Everything follows from the validator's verifiable function of a block, so nobody, the validator included, could
//! choose inputs or times before that block existed, and a miner cannot foresee them afterwards. The share of blocks
//! that draw a coldkey follows the hours at which users send jobs.

use std::collections::{BTreeMap, BTreeSet};

use muster_audit::{DrawBlock, SeededNumbers};
use muster_identity::{Keypair, ProvenOutput, VrfInput};
use muster_protocol::{ExecutorClass, Hotkey, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_subnet_view::BlockTimes;
use uuid::Builder;

use crate::job_form::JobForm;
use crate::settings::OwnProgram;

/// The domain of the verifiable function. It is not that of the draw of users' jobs, whose proofs are public.
const DRAW_DOMAIN: &str = "muster/own-job-draw/1";
/// The tag of the numbers of one coldkey's job.
const JOB_TAG: &str = "muster/own-job/1";
/// The tag of the numbers by which a third coldkey is drawn.
const WITNESS_TAG: &str = "muster/own-job-witness/1";

const HOUR_MICROS: i64 = 3_600_000_000;
const HOURS: usize = 24;
/// The denominator of the odds of one block.
const BILLION: u64 = 1_000_000_000;
const BLOCKS_A_DAY: u64 = 86_400_000 / BlockTimes::USUAL_BLOCK_MS;

/// The validator's draw at one block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OwnDraw([u8; 32]);

impl std::fmt::Debug for OwnDraw {
    /// The bytes stay secret: inputs and times of jobs follow from them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnDraw")
    }
}

/// The facts about users' jobs of the last days that own jobs imitate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsersJobs {
    /// The forms of the newest jobs that can be imitated.
    pub forms: Vec<JobForm>,
    /// The number of jobs that arrived in each hour of the day (UTC).
    pub by_hour: [u64; HOURS],
    /// The miners that ran users' jobs, by the class of executor.
    pub miners: BTreeMap<ExecutorClass, BTreeSet<MinerKey>>,
}

/// A coldkey that may get a job.
#[derive(Clone, Copy, Debug)]
pub struct DrawnSubject<'a> {
    /// The coldkey, by which the draw goes.
    pub coldkey: Hotkey,
    /// The hotkeys of the coldkey's miners, as the chain states them now.
    pub miners: &'a BTreeSet<MinerKey>,
    /// The program of a difference that waits for its repeat.
    pub open: Option<&'a str>,
}

/// A job that was drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrawnJob {
    /// The id of the job.
    pub id: JobId,
    /// The miner that gets it.
    pub miner: MinerKey,
    /// The name of its program.
    pub program: String,
    /// The form of a user's job that it has.
    pub form: JobForm,
    /// The seed from which its inputs follow.
    pub inputs: [u8; 32],
}

impl OwnDraw {
    /// The validator's draw at a block, and the proof of it.
    pub fn prove(validator: &Keypair, block: &DrawBlock) -> (Self, ProvenOutput) {
        let message = block.message();
        let (output, proof) = validator.prove_output(&VrfInput {
            domain: DRAW_DOMAIN,
            message: &message,
        });
        (Self(output), proof)
    }

    /// Checks a draw; `None` if it is another validator's, or of another block.
    pub fn check(validator: &ValidatorKey, block: &DrawBlock, proof: &ProvenOutput) -> Option<Self> {
        let message = block.message();
        let input = VrfInput {
            domain: DRAW_DOMAIN,
            message: &message,
        };
        proof.check(&validator.0, &input).map(Self)
    }

    /// The job that a coldkey gets at this block; `None` at most blocks, and for a coldkey none of whose miners has run
    /// users' jobs of a class of the list. Half of the jobs of a coldkey whose difference waits for its repeat have the
    /// program of that difference, always with inputs of their own.
    pub fn draw(
        &self,
        at: Timestamp,
        subject: DrawnSubject<'_>,
        programs: &BTreeMap<String, OwnProgram>,
        users: &UsersJobs,
        per_day: u32,
    ) -> Option<DrawnJob> {
        let mut numbers = self.numbers(JOB_TAG, &subject.coldkey);
        if numbers.draw() % BILLION >= odds(at, &users.by_hour, per_day) {
            return None;
        }
        let fitting: Vec<_> = programs
            .iter()
            .filter(|(_, program)| !users.of_class(program.class, subject.miners).is_empty())
            .collect();
        let repeated = fitting
            .iter()
            .find(|(name, _)| subject.open == Some(name.as_str()));
        let repeats = numbers.below(2) == 0;
        let (name, program) = match repeated.filter(|_| repeats) {
            Some(repeated) => repeated,
            None => pick(&fitting, &mut numbers)?,
        };
        let miner = **pick(&users.of_class(program.class, subject.miners), &mut numbers)?;
        let forms: Vec<_> = users.forms.iter().filter(|form| form.fits(program)).collect();
        let form = match pick(&forms, &mut numbers) {
            Some(form) => (*form).clone(),
            None => JobForm {
                output: users.forms.iter().find_map(|form| form.output.clone()),
                ..JobForm::usual(program, &mut numbers)
            },
        };
        let (mut id, mut inputs) = ([0; 16], [0; 32]);
        fill(&mut numbers, &mut id);
        fill(&mut numbers, &mut inputs);
        Some(DrawnJob {
            id: JobId::from_uuid(Builder::from_random_bytes(id).into_uuid()),
            miner,
            program: (*name).clone(),
            form,
            inputs,
        })
    }

    /// The miner of another coldkey that runs a job again of which the outputs differ; `None` if no other coldkey has
    /// run users' jobs of the class. `owners` has the coldkeys of all miners, and `asked` those that cannot be asked:
    /// the one whose outputs differ, and those that did not run it.
    pub fn draw_witness(
        &self,
        job: JobId,
        class: ExecutorClass,
        users: &UsersJobs,
        owners: &BTreeMap<MinerKey, Hotkey>,
        asked: &BTreeSet<Hotkey>,
    ) -> Option<(Hotkey, MinerKey)> {
        let mut by_owner: BTreeMap<Hotkey, Vec<MinerKey>> = BTreeMap::new();
        for miner in users.miners.get(&class).into_iter().flatten() {
            if let Some(owner) = owners.get(miner).filter(|owner| !asked.contains(owner)) {
                by_owner.entry(*owner).or_default().push(*miner);
            }
        }
        let bytes = [
            self.0.as_slice(),
            job.as_uuid().as_bytes(),
            &asked.len().to_le_bytes(),
        ];
        let mut numbers = SeededNumbers::new(WITNESS_TAG, &bytes.concat());
        let by_owner: Vec<_> = by_owner.into_iter().collect();
        // A coldkey is drawn before its miner, so that many hotkeys of one owner are no likelier.
        let (owner, miners) = pick(&by_owner, &mut numbers)?;
        Some((*owner, *pick(miners, &mut numbers)?))
    }

    fn numbers(&self, tag: &str, coldkey: &Hotkey) -> SeededNumbers {
        SeededNumbers::new(tag, &[self.0.as_slice(), coldkey.as_bytes()].concat())
    }
}

impl UsersJobs {
    /// Those of these miners that have run users' jobs of a class.
    fn of_class<'a>(&self, class: ExecutorClass, miners: &'a BTreeSet<MinerKey>) -> Vec<&'a MinerKey> {
        let known = self.miners.get(&class);
        let is_known = |miner: &&MinerKey| known.is_some_and(|known| known.contains(miner));
        miners.iter().filter(is_known).collect()
    }
}

fn pick<'a, T>(among: &'a [T], numbers: &mut SeededNumbers) -> Option<&'a T> {
    let at = numbers.below(among.len());
    among.get(at)
}

/// Fills a slice with drawn bytes.
pub(crate) fn fill(numbers: &mut SeededNumbers, bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(8) {
        let drawn = numbers.draw().to_le_bytes();
        for (byte, drawn) in chunk.iter_mut().zip(drawn) {
            *byte = drawn;
        }
    }
}

/// The odds, in billionths, that one block draws a coldkey at this time. An hour in which users send more jobs has more
/// of the own ones; one job counts for each hour beside those of users, so that no hour is free of them.
fn odds(at: Timestamp, by_hour: &[u64; HOURS], per_day: u32) -> u64 {
    let hour = at
        .micros()
        .div_euclid(HOUR_MICROS)
        .rem_euclid(i64::try_from(HOURS).unwrap_or(1));
    let count = |number: u64| u128::from(number).saturating_add(1);
    let of_hour = usize::try_from(hour)
        .ok()
        .and_then(|hour| by_hour.get(hour))
        .copied()
        .unwrap_or(0);
    let all: u128 = by_hour.iter().map(|number| count(*number)).sum();
    let scaled = u128::from(per_day) * u128::from(BILLION) * 24 * count(of_hour);
    let odds = scaled / (all * u128::from(BLOCKS_A_DAY)).max(1);
    u64::try_from(odds).unwrap_or(BILLION).min(BILLION)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use muster_protocol::Digest;

    pub(crate) fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    pub(crate) fn programs() -> BTreeMap<String, OwnProgram> {
        let program = |args: &str| {
            let text = format!("class = \"always_on.test\"\nimage = \"alpine\"\nargs = [\"{args}\"]");
            toml::from_str(&text).unwrap()
        };
        [("first", "{number}"), ("second", "-n{number}")]
            .map(|(name, args)| (name.to_owned(), program(args)))
            .into()
    }

    pub(crate) fn users(miners: &[u8]) -> UsersJobs {
        let miners = miners.iter().map(|seed| MinerKey(key(*seed))).collect();
        UsersJobs {
            forms: Vec::new(),
            by_hour: [0; HOURS],
            miners: BTreeMap::from([(ExecutorClass::AlwaysOnTest, miners)]),
        }
    }

    pub(crate) fn draw(seed: &[u8]) -> OwnDraw {
        OwnDraw(*Digest::of(seed).as_bytes())
    }

    fn block() -> DrawBlock {
        DrawBlock {
            genesis: Digest::of(b"genesis"),
            netuid: 1,
            number: 7,
            hash: Digest::of(b"hash"),
        }
    }

    #[test]
    fn a_draw_is_checked_and_is_no_draw_of_users_jobs() {
        let pair = Keypair::from_seed([1; 32]);
        let validator = ValidatorKey(pair.hotkey());
        let (drawn, proof) = OwnDraw::prove(&pair, &block());
        assert_eq!(OwnDraw::check(&validator, &block(), &proof), Some(drawn));
        let (_, of_users) = muster_audit::BucketDraw::prove_block(&pair, &block());
        assert_eq!(
            OwnDraw::check(&validator, &block(), &of_users),
            None,
            "a public proof of the other draw reveals nothing"
        );
    }

    #[test]
    fn a_drawn_job_is_this_one() {
        let miners = BTreeSet::from([MinerKey(key(1))]);
        let subject = DrawnSubject {
            coldkey: key(9),
            miners: &miners,
            open: None,
        };
        let at = Timestamp::from_secs(0);
        let drawn = draw(b"golden").draw(at, subject, &programs(), &users(&[1]), u32::MAX);
        let drawn = drawn.unwrap();
        assert_eq!(
            (drawn.id.to_string().as_str(), drawn.program.as_str()),
            ("579c6ec9-c229-4878-86f7-0d258facb019", "first")
        );
        // As Python's hashlib gives them.
        let inputs = "2c1a99fac301bc151059e96fc705aa1e86a4dad03c05b97a75b5128a2a61cf08";
        assert_eq!(hex::encode(drawn.inputs), inputs);
    }

    #[test]
    fn own_jobs_come_at_the_hours_of_users() {
        let mut by_hour = [0; HOURS];
        by_hour[9] = 1_000;
        let of = |hour: u64| {
            odds(
                Timestamp::from_secs(i64::try_from(hour * 3_600).unwrap()),
                &by_hour,
                4,
            )
        };
        assert!(of(9) > 900 * of(3), "{} {}", of(9), of(3));
        assert!(of(3) > 0, "no hour is free of them");
        let blocks = BLOCKS_A_DAY / 24;
        let a_day: u64 = (0..24).map(|hour| of(hour) * blocks).sum();
        assert!((3_990_000_000..=4_000_000_000).contains(&a_day), "{a_day}");
    }

    #[test]
    fn an_open_difference_draws_half_of_the_jobs_and_always_other_inputs() {
        let miners = BTreeSet::from([MinerKey(key(1))]);
        let (programs, users) = (programs(), users(&[1]));
        let drawn: Vec<_> = (0_u32..400)
            .map(|number| {
                let subject = DrawnSubject {
                    coldkey: key(9),
                    miners: &miners,
                    open: Some("second"),
                };
                draw(&number.to_le_bytes())
                    .draw(Timestamp::from_secs(0), subject, &programs, &users, u32::MAX)
                    .unwrap()
            })
            .collect();
        let repeats = drawn.iter().filter(|job| job.program == "second").count();
        assert!(
            (260..340).contains(&repeats),
            "half and half of the rest: {repeats}"
        );
        let inputs: BTreeSet<[u8; 32]> = drawn.iter().map(|job| job.inputs).collect();
        assert_eq!(inputs.len(), drawn.len());
    }

    proptest! {
        #[test]
        fn a_witness_is_of_another_coldkey_that_runs_the_class(
            owners in prop::collection::vec(0_u8..4, 1..8), subject in 0_u8..4, seed in any::<[u8; 4]>(),
        ) {
            let miners: Vec<u8> = (10..).take(owners.len()).collect();
            let of: BTreeMap<_, _> = miners
                .iter()
                .zip(&owners)
                .map(|(miner, owner)| (MinerKey(key(*miner)), key(*owner)))
                .collect();
            let users = users(&miners);
            let asked = BTreeSet::from([key(subject)]);
            let job = JobId::from_uuid(uuid::Uuid::from_u128(1));
            let found = draw(&seed).draw_witness(job, ExecutorClass::AlwaysOnTest, &users, &of, &asked);
            match found {
                Some((owner, miner)) => {
                    prop_assert!(owner != key(subject) && of.get(&miner) == Some(&owner));
                }
                None => prop_assert!(owners.iter().all(|owner| *owner == subject)),
            }
            let elsewhere = ExecutorClass::AlwaysOnGpu24Gb;
            prop_assert!(draw(&seed).draw_witness(job, elsewhere, &users, &of, &asked).is_none());
        }
    }
}
