//! Properties of the queue, against a model that knows nothing but lists.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "helpers of tests fail as tests do"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_job_queue::{
    AGE_STEP, ExecutorLine, JobQueue, QueueAccount, QueueFull, QueueLimits, QueueTicket, WaitingJob,
    most_starts_before,
};
use muster_protocol::job::Priority;
use muster_protocol::{ExecutorClass, JobId, Timestamp};
use proptest::prelude::*;
use uuid::Uuid;

/// Two lines for the same class of executor.
const LINES: [ExecutorLine; 2] = [
    ExecutorLine {
        class: ExecutorClass::AlwaysOnTest,
        on_trusted_miner: false,
    },
    ExecutorLine {
        class: ExecutorClass::AlwaysOnTest,
        on_trusted_miner: true,
    },
];
const LIMITS: QueueLimits = QueueLimits {
    jobs: 12,
    per_account: 5,
};
const WIDE: QueueLimits = QueueLimits {
    jobs: 1_000,
    per_account: 1_000,
};

/// One thing that happens to the queue; time passes by some seconds before it.
#[derive(Clone, Debug)]
enum Step {
    Arrive {
        account: u8,
        line: usize,
        priority: u8,
        patience: u64,
    },
    Pop {
        line: usize,
    },
    /// Removes the waiting job with this number among all that wait, in the order of their ids.
    Cancel {
        nth: usize,
    },
    Expire,
    Restart,
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let step = prop_oneof![
        6 => (0u8..4, 0usize..2, 1u8..=10, 1u64..20_000)
            .prop_map(|(account, line, priority, patience)| Step::Arrive { account, line, priority, patience }),
        4 => (0usize..2).prop_map(|line| Step::Pop { line }),
        1 => (0usize..20).prop_map(|nth| Step::Cancel { nth }),
        1 => Just(Step::Expire),
        1 => Just(Step::Restart),
    ];
    (0u64..900, step)
}

fn account(number: u8) -> QueueAccount {
    QueueAccount::new(&format!("account {number}"))
}

fn job(number: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(number))
}

/// The queue as a list, in which every answer is found by looking at everything.
#[derive(Default)]
struct Model {
    waiting: Vec<WaitingJob>,
    turns: BTreeMap<(ExecutorLine, QueueAccount), QueueTicket>,
}

impl Model {
    fn of(&self, line: ExecutorLine, account: &QueueAccount) -> Vec<&WaitingJob> {
        let mut jobs: Vec<_> = self
            .waiting
            .iter()
            .filter(|job| job.line == line && job.account == *account)
            .collect();
        let step = i64::try_from(AGE_STEP.as_micros()).unwrap();
        jobs.sort_by_key(|job| {
            (
                job.since.micros() - step * i64::from(job.priority.get()),
                job.ticket,
            )
        });
        jobs
    }

    fn place(&self, line: ExecutorLine, account: &QueueAccount) -> QueueTicket {
        let first = self.of(line, account).iter().map(|job| job.ticket).min().unwrap();
        let turn = self.turns.get(&(line, account.clone())).copied();
        turn.map_or(first, |turn| turn.max(first))
    }

    fn next(&self, line: ExecutorLine) -> Option<WaitingJob> {
        let accounts: BTreeSet<_> = self
            .waiting
            .iter()
            .filter(|job| job.line == line)
            .map(|job| job.account.clone())
            .collect();
        let first = accounts
            .into_iter()
            .min_by_key(|account| self.place(line, account))?;
        Some(self.of(line, &first)[0].clone())
    }

    /// Starts jobs of a line until none is left.
    fn order(&self, line: ExecutorLine) -> Vec<JobId> {
        let mut model = Self {
            waiting: self.waiting.clone(),
            turns: self.turns.clone(),
        };
        let mut ticket = i64::MAX / 2;
        let mut order = Vec::new();
        while let Some(next) = model.next(line) {
            ticket += 1;
            model
                .turns
                .insert((line, next.account.clone()), QueueTicket(ticket));
            model.waiting.retain(|job| job.job != next.job);
            order.push(next.job);
        }
        order
    }
}

/// Reserves and adds a job as a validator does.
fn arrive(queue: &mut JobQueue, number: u128, step: &Step, now: Timestamp) -> Result<WaitingJob, QueueFull> {
    let Step::Arrive {
        account: by,
        line,
        priority,
        patience,
    } = step
    else {
        panic!("not an arrival")
    };
    let (line, account) = (LINES[*line], account(*by));
    let ticket = queue.reserve(line, &account)?;
    assert!(!queue.is_free_for_all(line), "a reserved place counts");
    let waiting = WaitingJob {
        job: job(number),
        account,
        line,
        priority: Priority::try_from(*priority).unwrap(),
        ticket,
        since: now,
        deadline: now.plus(Duration::from_secs(*patience)),
    };
    queue.add_reserved(waiting.clone());
    Ok(waiting)
}

/// The queue that a store restores: the waiting jobs in any order, and the last turns.
fn restarted(model: &Model) -> JobQueue {
    let mut queue = JobQueue::new(LIMITS);
    for job in model.waiting.iter().rev() {
        queue.restore(job.clone());
    }
    for ((line, account), turn) in &model.turns {
        queue.restore_turn(*line, account, *turn);
    }
    queue
}

proptest! {
    #[test]
    fn the_queue_does_what_a_list_does(steps in proptest::collection::vec(step(), 1..60)) {
        let mut queue = JobQueue::new(LIMITS);
        let mut model = Model::default();
        let mut now = Timestamp::from_secs(1_000_000);
        let mut left = BTreeSet::new();
        for (number, (passed, step)) in steps.iter().enumerate() {
            now = now.plus(Duration::from_secs(*passed));
            match step {
                Step::Arrive { account: by, .. } => {
                    let of_account = model.waiting.iter().filter(|job| job.account == account(*by)).count();
                    let expected = match (model.waiting.len() >= LIMITS.jobs, of_account >= LIMITS.per_account) {
                        (true, _) => Some(QueueFull::All(LIMITS.jobs)),
                        (false, true) => Some(QueueFull::Account(LIMITS.per_account)),
                        (false, false) => None,
                    };
                    match arrive(&mut queue, number as u128, step, now) {
                        Ok(job) => {
                            prop_assert_eq!(expected, None);
                            model.waiting.push(job);
                        }
                        Err(full) => prop_assert_eq!(expected, Some(full)),
                    }
                }
                Step::Pop { line } => {
                    let expected = model.next(LINES[*line]);
                    let popped = queue.pop(LINES[*line]);
                    prop_assert_eq!(popped.as_ref().map(|(job, _)| job), expected.as_ref());
                    if let Some((job, turn)) = popped {
                        prop_assert!(left.insert(job.job), "it has left once");
                        model.waiting.retain(|other| other.job != job.job);
                        model.turns.insert((job.line, job.account), turn);
                    }
                }
                Step::Cancel { nth } => {
                    model.waiting.sort_by_key(|job| job.job);
                    let chosen = model.waiting.get(*nth).cloned();
                    if let Some(job) = chosen {
                        prop_assert_eq!(queue.remove(job.job), Some(job.clone()));
                        prop_assert_eq!(queue.remove(job.job), None);
                        prop_assert!(left.insert(job.job));
                        model.waiting.retain(|other| other.job != job.job);
                    }
                }
                Step::Expire => {
                    let mut expected: Vec<_> =
                        model.waiting.iter().filter(|job| job.deadline <= now).cloned().collect();
                    expected.sort_by_key(|job| (job.deadline, job.job));
                    prop_assert_eq!(&queue.expire(now), &expected);
                    model.waiting.retain(|job| job.deadline > now);
                    for job in expected { prop_assert!(left.insert(job.job)); }
                }
                Step::Restart => queue = restarted(&model),
            }
            prop_assert_eq!(queue.len(), model.waiting.len());
            prop_assert_eq!(queue.is_empty(), model.waiting.is_empty());
            prop_assert_eq!(queue.next_deadline(), model.waiting.iter().map(|job| job.deadline).min());
            for line in LINES {
                let order = model.order(line);
                let ours: Vec<_> = queue.in_order(line).map(|job| job.job).collect();
                prop_assert_eq!(&ours, &order);
                prop_assert_eq!(queue.next(line).map(|job| job.job), order.first().copied());
                prop_assert_eq!(queue.is_free_for_all(line), order.is_empty());
                for (ahead, job) in order.iter().enumerate() {
                    let position = queue.position(*job).unwrap();
                    prop_assert_eq!((position.line, position.ahead, position.waiting), (line, ahead, order.len()));
                    prop_assert!(queue.get(*job).is_some());
                }
            }
        }
    }

    #[test]
    fn no_job_starves_whatever_comes_after_it(
        before in proptest::collection::vec((0u8..5, 1u8..=10), 0..20),
        priority in 1u8..=10,
        after in proptest::collection::vec(proptest::collection::vec((0u8..5, 1u8..=10), 0..4), 60..61),
    ) {
        let mut queue = JobQueue::new(WIDE);
        let mut now = Timestamp::from_secs(1_000_000);
        let mut number = 0;
        let mut come = |queue: &mut JobQueue, by, priority, now| {
            number += 1;
            let step = Step::Arrive { account: by, line: 0, priority, patience: 10_000_000 };
            arrive(queue, number, &step, now).unwrap()
        };
        for (by, priority) in before {
            come(&mut queue, by, priority, now);
        }
        let watched = come(&mut queue, 0, priority, now);
        let others = |queue: &JobQueue| {
            let accounts: BTreeSet<_> = queue.jobs().map(|job| job.account.clone()).collect();
            accounts.len() - 1
        };
        let (mut starts, mut own, mut most_others) = (0, 0, others(&queue));
        // Newcomers of every account and priority keep coming while executors become free one by one.
        for newcomers in &after {
            now = now.plus(Duration::from_secs(60));
            for (by, priority) in newcomers {
                come(&mut queue, *by, *priority, now);
            }
            most_others = most_others.max(others(&queue));
            let (popped, _) = queue.pop(LINES[0]).unwrap();
            if popped.job == watched.job {
                break;
            }
            starts += 1;
            own += usize::from(popped.account == watched.account);
            let most = AGE_STEP * u32::from(10 - priority);
            prop_assert!(
                popped.account != watched.account || popped.since.since(watched.since) <= most,
                "a job of its account that comes so late does not overtake it"
            );
        }
        prop_assert!(starts <= most_starts_before(own, most_others), "{starts} starts, {own} of its own account");
    }
}

proptest! {
    #[test]
    fn a_new_job_gets_no_worse_place_than_its_account_was_told(
        steps in proptest::collection::vec((0u8..4, 1u8..=10, 0usize..5), 0..40), newcomer in 0u8..6,
    ) {
        let mut queue = JobQueue::new(WIDE);
        let now = Timestamp::from_secs(1_000_000);
        let from = |by, priority| Step::Arrive { account: by, line: 0, priority, patience: 3_600 };
        for (number, (by, priority, pops)) in steps.iter().enumerate() {
            arrive(&mut queue, number as u128, &from(*by, *priority), now).unwrap();
            // Most arrivals find nobody starting.
            if *pops == 0 { queue.pop(LINES[0]); }
        }
        let own = queue.jobs().filter(|job| job.account == account(newcomer)).count();
        let told = queue.ahead_of_next(LINES[0], usize::MAX);
        let short = queue.ahead_of_next(LINES[0], 2);
        prop_assert_eq!(&short[..], &told[..told.len().min(2)]);
        prop_assert_eq!(told.last().copied(), Some(queue.len()), "behind all that wait");
        // The least priority, so that it is the last of its account.
        let job = arrive(&mut queue, 1_000, &from(newcomer, 1), now).unwrap();
        let ahead = queue.position(job.job).unwrap().ahead;
        let most = told[own.min(told.len() - 1)];
        prop_assert!(ahead <= most, "{ahead} of {told:?} with {own}");
        prop_assert!(own > 0 || ahead == most, "{ahead} of {told:?}");
    }
}

/// Arrivals of many accounts, some of which have far more jobs than others.
fn crowd() -> impl Strategy<Value = Vec<(u8, u8, u64)>> {
    let account = prop_oneof![3 => 0u8..2, 2 => 2u8..6, 1 => 6u8..40];
    proptest::collection::vec((account, 1u8..=10, 0u64..400), 1..160)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn positions_in_a_crowd_are_those_of_jobs_started_one_by_one(
        crowd in crowd(),
        leaving in proptest::collection::vec((any::<bool>(), 0usize..160), 0..80),
    ) {
        let mut queue = JobQueue::new(WIDE);
        let mut model = Model::default();
        let mut now = Timestamp::from_secs(1_000_000);
        let mut leaving = leaving.into_iter();
        for (number, (by, priority, passed)) in crowd.into_iter().enumerate() {
            now = now.plus(Duration::from_secs(passed));
            let step = Step::Arrive { account: by, line: 0, priority, patience: 1_000_000 };
            model.waiting.push(arrive(&mut queue, number as u128, &step, now).unwrap());
            // Every second arrival something leaves, so that accounts shrink while others grow.
            let Some((starts, nth)) = leaving.next().filter(|_| number % 2 == 1) else { continue };
            if starts {
                let (job, turn) = queue.pop(LINES[0]).unwrap();
                model.waiting.retain(|other| other.job != job.job);
                model.turns.insert((job.line, job.account), turn);
            } else {
                let job = model.waiting[nth % model.waiting.len()].job;
                queue.remove(job).unwrap();
                model.waiting.retain(|other| other.job != job);
            }
        }
        let order = model.order(LINES[0]);
        let ours: Vec<_> = queue.in_order(LINES[0]).map(|job| job.job).collect();
        prop_assert_eq!(&ours, &order);
        for (ahead, job) in order.iter().enumerate() {
            prop_assert_eq!(queue.position(*job).unwrap().ahead, ahead);
        }
    }
}

#[test]
fn a_job_that_is_passed_over_holds_up_no_other_job_of_its_account() {
    let mut queue = JobQueue::new(WIDE);
    let now = Timestamp::from_secs(1_000_000);
    let from = |by| Step::Arrive {
        account: by,
        line: 0,
        priority: 5,
        patience: 3_600,
    };
    for (number, by) in [1, 1, 2, 2, 2].into_iter().enumerate() {
        arrive(&mut queue, number as u128, &from(by), now).unwrap();
    }
    // Nobody may run job 0 now. Its account has its turns all the same.
    let mut started = Vec::new();
    while let Some(next) = queue.first_where(LINES[0], |waiting| waiting.job != job(0)) {
        let next = next.job;
        started.push(next);
        queue.take(next).unwrap();
    }
    assert_eq!(started, [1, 2, 3, 4].map(job));
    assert_eq!(queue.next(LINES[0]).unwrap().job, job(0));
}

#[test]
fn one_account_with_a_thousand_jobs_holds_up_no_other() {
    let mut queue = JobQueue::new(WIDE);
    let now = Timestamp::from_secs(1_000_000);
    let from = |by, priority| Step::Arrive {
        account: by,
        line: 0,
        priority,
        patience: 3_600,
    };
    for number in 0..900 {
        arrive(&mut queue, number, &from(1, 10), now).unwrap();
    }
    let late = arrive(&mut queue, 1_000, &from(2, 1), now).unwrap();
    assert_eq!(queue.position(late.job).unwrap().ahead, 1);
    assert_eq!(queue.pop(LINES[0]).unwrap().0.job, job(0));
    assert_eq!(queue.pop(LINES[0]).unwrap().0.job, late.job);
}

#[test]
fn a_reserved_place_counts_until_it_is_given_back() {
    let mut queue = JobQueue::new(QueueLimits {
        jobs: 2,
        per_account: 1,
    });
    let line = LINES[0];
    queue.reserve(line, &account(1)).unwrap();
    assert_eq!(queue.reserve(line, &account(1)), Err(QueueFull::Account(1)));
    queue.reserve(line, &account(2)).unwrap();
    assert_eq!(queue.reserve(line, &account(3)), Err(QueueFull::All(2)));
    queue.release(line, &account(1));
    queue.release(line, &account(2));
    assert!(queue.is_free_for_all(line));
    queue.reserve(line, &account(3)).unwrap();
}
