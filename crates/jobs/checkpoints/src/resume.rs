//! The consequence of the end of an attempt at a job with checkpoints: whether another one goes on, and from where.
//!
//! The decision is a function of all attempts so far and of the checkpoints that are kept. It holds for a restarted
//! validator as for the one that saw the attempts.

use std::collections::BTreeSet;

use muster_protocol::job::SAVED_EXIT_CODE;

/// The most attempts of a job that go on from an earlier one.
pub const MAX_RESUMES: usize = 50;

/// How often the batch is halved after a program ran out of memory.
pub const MAX_HALVINGS: u32 = 3;

/// A program that dies within this many seconds of its start blames the checkpoint that it started from.
pub const EARLY_DEATH_SECS: u64 = 60;

/// Early deaths that spoil a checkpoint.
const DEATHS_PER_CHECKPOINT: usize = 2;

/// Checkpoints that programs died from, which spoil the job: its program is at fault.
const SPOILT_CHECKPOINTS: usize = 2;

/// The exit code of a program that has saved its state and asks to be run again.
pub const EXIT_SAVED: i64 = SAVED_EXIT_CODE as i64;

/// How an attempt ended, as far as it matters for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptFate {
    /// The program has done its work.
    Done,
    /// The program ended with exit code 85.
    Saved,
    /// The program ran out of memory.
    OutOfMemory,
    /// The program made no progress for as long as the job allows, and was stopped.
    Stalled,
    /// The program ended with another exit code.
    Exit(i64),
    /// The data that it was to resume from was not what its manifest says.
    DamagedData,
    /// The job failed in another way that its user must mend.
    UsersFault,
    /// Another party than the user is at fault.
    Lost,
}

/// One attempt at a job, over or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptFacts {
    /// The checkpoint that it began from; `None` for one that began anew.
    pub from: Option<u32>,
    /// The checkpoints of it that are durable, by ordinal, whether or not they are still kept.
    pub kept: Vec<u32>,
    /// How often its batch was halved.
    pub halvings: u32,
    /// For how many seconds its program ran.
    pub ran_secs: u64,
    /// How it ended.
    pub fate: AttemptFate,
}

/// The consequence of the last of the attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeDecision {
    /// Another attempt may go on.
    GoOn {
        /// The checkpoint that it begins from; `None` to begin anew.
        from: Option<u32>,
        /// How often its batch is halved.
        halvings: u32,
        /// Whether the last attempt counts towards the most that a job may have.
        counts: bool,
    },
    /// No further attempt helps.
    Stop(StopReason),
}

/// The reason why a job does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    /// The job is done.
    #[error("the job is done")]
    Done,
    /// The program failed by itself.
    #[error("the program failed by itself, and would fail again")]
    ProgramFailed,
    /// The exit code is among those that the user called fatal.
    #[error("the program ended with an exit code that the job calls fatal")]
    FatalExit,
    /// The program ran out of memory with the smallest batch, too.
    #[error("the program ran out of memory, also with an eighth of its batch")]
    OutOfMemory,
    /// The checkpoint of another job that this one was to begin from is damaged or gone.
    #[error("the checkpoint of the other job that this one was to begin from is damaged or gone")]
    DamagedSource,
    /// Programs that began from two checkpoints died soon.
    #[error("the program died soon after it had resumed, from more than one checkpoint")]
    Spoilt,
    /// The job has been resumed as often as a job may be.
    #[error("the job was resumed {MAX_RESUMES} times, as often as a job may be")]
    TooOften,
}

/// Decides what follows the last of `attempts`, which are in order, oldest first. `kept` are the checkpoints that a job
/// may begin from, by ordinal; `fatal` are the exit codes after which it never goes on.
///
/// With no attempts it returns where the first one begins.
pub fn decide_resume(attempts: &[AttemptFacts], kept: &[u32], fatal: &[u8]) -> ResumeDecision {
    let spoilt = find_spoilt(attempts);
    let from = kept
        .iter()
        .copied()
        .filter(|ordinal| !spoilt.contains(&Some(*ordinal)))
        .max();
    let Some(last) = attempts.last() else {
        return ResumeDecision::GoOn {
            from,
            halvings: 0,
            counts: false,
        };
    };
    let stop = ResumeDecision::Stop;
    let mut halvings = last.halvings;
    match last.fate {
        AttemptFate::Done => return stop(StopReason::Done),
        AttemptFate::UsersFault => return stop(StopReason::ProgramFailed),
        AttemptFate::Exit(code) if fatal.iter().any(|fatal| i64::from(*fatal) == code) => {
            return stop(StopReason::FatalExit);
        }
        AttemptFate::OutOfMemory if halvings >= MAX_HALVINGS => return stop(StopReason::OutOfMemory),
        AttemptFate::OutOfMemory => halvings = halvings.saturating_add(1),
        AttemptFate::Exit(_) if !is_early_death(last) => return stop(StopReason::ProgramFailed),
        AttemptFate::Exit(_)
        | AttemptFate::DamagedData
        | AttemptFate::Saved
        | AttemptFate::Stalled
        | AttemptFate::Lost => {}
    }
    let damaged_sources = attempts
        .iter()
        .filter(|attempt| attempt.from.is_none() && attempt.fate == AttemptFate::DamagedData);
    if damaged_sources.count() >= DEATHS_PER_CHECKPOINT {
        return stop(StopReason::DamagedSource);
    }
    // Damaged data is no fault of the program's.
    let is_death = |ordinal: &&Option<u32>| {
        let mut begun = attempts.iter().filter(|attempt| attempt.from == **ordinal);
        begun.any(|attempt| is_early_death(attempt) && attempt.fate != AttemptFate::DamagedData)
    };
    if spoilt.iter().filter(is_death).count() >= SPOILT_CHECKPOINTS {
        return stop(StopReason::Spoilt);
    }
    if attempts.len() > MAX_RESUMES {
        return stop(StopReason::TooOften);
    }
    let counts = match last.fate {
        // The bounds of their own on halvings and on deaths are enough.
        AttemptFate::OutOfMemory | AttemptFate::Exit(_) | AttemptFate::DamagedData => false,
        AttemptFate::Saved
        | AttemptFate::Stalled
        | AttemptFate::Lost
        | AttemptFate::Done
        | AttemptFate::UsersFault => last.kept.is_empty(),
    };
    ResumeDecision::GoOn {
        from,
        halvings,
        counts,
    }
}

/// Whether the end of an attempt blames the checkpoint that it began from.
fn is_early_death(attempt: &AttemptFacts) -> bool {
    let blames = match attempt.fate {
        AttemptFate::Exit(_) => attempt.ran_secs < EARLY_DEATH_SECS,
        AttemptFate::DamagedData => true,
        AttemptFate::Done
        | AttemptFate::Saved
        | AttemptFate::OutOfMemory
        | AttemptFate::Stalled
        | AttemptFate::UsersFault
        | AttemptFate::Lost => false,
    };
    blames && attempt.from.is_some() && attempt.kept.is_empty()
}

/// The beginnings from which programs have died too often, or whose data was damaged as often.
fn find_spoilt(attempts: &[AttemptFacts]) -> BTreeSet<Option<u32>> {
    let begun: BTreeSet<_> = attempts.iter().map(|attempt| attempt.from).collect();
    let deaths = |from: &Option<u32>| {
        let early = attempts
            .iter()
            .filter(|attempt| attempt.from == *from && is_early_death(attempt));
        early.count() >= DEATHS_PER_CHECKPOINT
    };
    begun.into_iter().filter(deaths).collect()
}

/// The value of `MUSTER_BATCH_SCALE` after this many halvings: `1`, `0.5`, `0.25`, `0.125`.
pub const fn batch_scale(halvings: u32) -> &'static str {
    match halvings {
        0 => "1",
        1 => "0.5",
        2 => "0.25",
        _ => "0.125",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attempt(from: Option<u32>, kept: &[u32], ran_secs: u64, fate: AttemptFate) -> AttemptFacts {
        AttemptFacts {
            from,
            kept: kept.to_vec(),
            halvings: 0,
            ran_secs,
            fate,
        }
    }

    const fn go_on(from: Option<u32>, halvings: u32, counts: bool) -> ResumeDecision {
        ResumeDecision::GoOn {
            from,
            halvings,
            counts,
        }
    }

    #[test]
    fn the_next_attempt_begins_from_the_newest_checkpoint_and_counts_only_if_it_kept_nothing() {
        assert_eq!(decide_resume(&[], &[], &[]), go_on(None, 0, false));
        let lost = attempt(None, &[1, 2], 500, AttemptFate::Lost);
        assert_eq!(
            decide_resume(std::slice::from_ref(&lost), &[1, 2], &[]),
            go_on(Some(2), 0, false)
        );
        let idle = attempt(Some(2), &[], 500, AttemptFate::Lost);
        assert_eq!(
            decide_resume(&[lost.clone(), idle], &[1, 2], &[]),
            go_on(Some(2), 0, true)
        );
        let saved = attempt(Some(2), &[3], 5, AttemptFate::Saved);
        assert_eq!(
            decide_resume(&[lost, saved], &[1, 2, 3], &[]),
            go_on(Some(3), 0, false)
        );
    }

    #[test]
    fn a_program_that_stalls_goes_on_and_counts_only_if_it_kept_nothing() {
        let stalled = |kept: &[u32]| attempt(None, kept, 5, AttemptFate::Stalled);
        assert_eq!(
            decide_resume(&[stalled(&[1])], &[1], &[]),
            go_on(Some(1), 0, false)
        );
        assert_eq!(decide_resume(&[stalled(&[])], &[], &[]), go_on(None, 0, true));
    }

    #[test]
    fn a_failing_program_fails_at_every_miner() {
        let stop = |fate, fatal: &[u8]| decide_resume(&[attempt(None, &[1], 500, fate)], &[1], fatal);
        assert_eq!(
            stop(AttemptFate::Exit(1), &[]),
            ResumeDecision::Stop(StopReason::ProgramFailed)
        );
        assert_eq!(
            stop(AttemptFate::UsersFault, &[]),
            ResumeDecision::Stop(StopReason::ProgramFailed)
        );
        assert_eq!(
            stop(AttemptFate::Done, &[]),
            ResumeDecision::Stop(StopReason::Done)
        );
        let early = attempt(Some(1), &[], 5, AttemptFate::Exit(7));
        assert_eq!(
            decide_resume(std::slice::from_ref(&early), &[1], &[7]),
            ResumeDecision::Stop(StopReason::FatalExit)
        );
        assert_eq!(decide_resume(&[early], &[1], &[8]), go_on(Some(1), 0, false));
        let anew = attempt(None, &[], 5, AttemptFate::Exit(7));
        assert_eq!(
            decide_resume(&[anew], &[], &[]),
            ResumeDecision::Stop(StopReason::ProgramFailed),
            "there is no checkpoint to blame"
        );
    }

    #[test]
    fn a_poisoned_checkpoint_steps_back_and_two_of_them_are_the_programs_fault() {
        let died = |from| attempt(Some(from), &[], 5, AttemptFate::Exit(1));
        let first = attempt(None, &[1, 2, 3], 900, AttemptFate::Lost);
        let mut attempts = vec![first, died(3)];
        assert_eq!(
            decide_resume(&attempts, &[1, 2, 3], &[]),
            go_on(Some(3), 0, false)
        );
        attempts.push(died(3));
        assert_eq!(
            decide_resume(&attempts, &[1, 2, 3], &[]),
            go_on(Some(2), 0, false)
        );
        attempts.push(died(2));
        assert_eq!(
            decide_resume(&attempts, &[1, 2, 3], &[]),
            go_on(Some(2), 0, false)
        );
        attempts.push(died(2));
        assert_eq!(
            decide_resume(&attempts, &[1, 2, 3], &[]),
            ResumeDecision::Stop(StopReason::Spoilt)
        );
        let damaged = attempt(Some(1), &[], 0, AttemptFate::DamagedData);
        assert_eq!(
            decide_resume(&[damaged.clone(), damaged], &[1], &[]),
            go_on(None, 0, false),
            "with no earlier one it begins anew"
        );
    }

    #[test]
    fn a_damaged_source_of_the_job_ends_it_after_a_second_machine_has_seen_it() {
        let damaged = attempt(None, &[], 0, AttemptFate::DamagedData);
        assert_eq!(
            decide_resume(std::slice::from_ref(&damaged), &[], &[]),
            go_on(None, 0, false),
            "one machine may lie"
        );
        assert_eq!(
            decide_resume(&[damaged.clone(), damaged], &[], &[]),
            ResumeDecision::Stop(StopReason::DamagedSource)
        );
    }

    #[test]
    fn checkpoints_that_were_only_claimed_do_not_end_the_job_before_an_honest_one_is_reached() {
        let honest = attempt(None, &[1], 900, AttemptFate::Lost);
        let liar = attempt(Some(1), &[2, 3, 4], 900, AttemptFate::Lost);
        let mut attempts = vec![honest, liar];
        for claimed in [4, 3, 2] {
            for _ in 0..2 {
                assert_eq!(
                    decide_resume(&attempts, &[1, 2, 3, 4], &[]),
                    go_on(Some(claimed), 0, false)
                );
                attempts.push(attempt(Some(claimed), &[], 0, AttemptFate::DamagedData));
            }
        }
        assert_eq!(
            decide_resume(&attempts, &[1, 2, 3, 4], &[]),
            go_on(Some(1), 0, false)
        );
    }

    #[test]
    fn the_batch_is_halved_three_times() {
        let mut attempts = Vec::new();
        for halvings in 0..=MAX_HALVINGS {
            attempts.push(AttemptFacts {
                halvings,
                ..attempt(None, &[], 5, AttemptFate::OutOfMemory)
            });
            let expected = match halvings {
                MAX_HALVINGS => ResumeDecision::Stop(StopReason::OutOfMemory),
                fewer => go_on(None, fewer + 1, false),
            };
            assert_eq!(decide_resume(&attempts, &[], &[]), expected);
        }
        assert_eq!([0, 1, 2, 3].map(batch_scale), ["1", "0.5", "0.25", "0.125"]);
    }

    #[test]
    fn a_job_is_resumed_fifty_times_at_most() {
        let saved: Vec<_> = (0..)
            .map(|number| attempt(Some(number), &[number + 1], 900, AttemptFate::Saved))
            .take(MAX_RESUMES + 1)
            .collect();
        assert_eq!(
            decide_resume(&saved[..MAX_RESUMES], &[50], &[]),
            go_on(Some(50), 0, false)
        );
        assert_eq!(
            decide_resume(&saved, &[51], &[]),
            ResumeDecision::Stop(StopReason::TooOften)
        );
    }

    fn any_fate() -> impl Strategy<Value = AttemptFate> {
        prop_oneof![
            Just(AttemptFate::Saved),
            Just(AttemptFate::OutOfMemory),
            (0..4_i64).prop_map(AttemptFate::Exit),
            Just(AttemptFate::DamagedData),
            Just(AttemptFate::Lost),
        ]
    }

    proptest! {
        /// Every job ends, with any fates of its attempts: a bounded number of attempts follow one another if those
        /// that count are bounded, and a damaged beginning is tried twice at most.
        #[test]
        fn every_job_ends_and_begins_only_from_what_is_kept(
            steps in prop::collection::vec((any_fate(), any::<bool>(), 0..200_u64), 1..200),
        ) {
            let (mut attempts, mut kept, mut next) = (Vec::<AttemptFacts>::new(), Vec::new(), 1);
            let mut counted = 0;
            for (fate, keeps, ran_secs) in steps {
                let ResumeDecision::GoOn { from, halvings, counts } = decide_resume(&attempts, &kept, &[3]) else {
                    break;
                };
                counted += u32::from(counts);
                if counted >= 3 { break; }
                prop_assert!(from.is_none_or(|from| kept.contains(&from)));
                prop_assert!(halvings <= MAX_HALVINGS);
                let mut own = Vec::new();
                if keeps { own.push(next); kept.push(next); next += 1; }
                attempts.push(AttemptFacts { from, kept: own, halvings, ran_secs, fate });
            }
            prop_assert!(attempts.len() <= MAX_RESUMES + 1);
            let damaged = attempts.iter().filter(|attempt| attempt.fate == AttemptFate::DamagedData);
            let mut tries = std::collections::BTreeMap::<_, usize>::new();
            for attempt in damaged.filter(|attempt| attempt.kept.is_empty()) {
                *tries.entry(attempt.from).or_default() += 1;
            }
            prop_assert!(tries.values().all(|tries| *tries <= DEATHS_PER_CHECKPOINT), "{:?}", tries);
        }
    }
}
