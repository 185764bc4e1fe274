//! The life of one own deterministic job: from the miner that gets it, by runs on the validator's own miner, to a third
//! coldkey that confirms a difference. Pure.

use muster_protocol::wire::checks::CheckState;

use crate::outputs::JobOutputs;
use crate::verdict::{CheckStep, CheckVerdict, next_step};

/// Coldkeys that are asked to run a job again of which the outputs differ, at most.
pub const MOST_WITNESSES: u64 = 3;

/// A job at a miner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MinerRun {
    /// It was not begun.
    NotAsked,
    /// It has not ended.
    Pending,
    /// It has completed.
    Completed(JobOutputs),
    /// It has ended without outputs; the reason as text.
    Nothing(String),
}

/// The facts about one own job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnCheckFacts {
    /// The job at the miner that is checked.
    pub subject: MinerRun,
    /// The outputs of the runs on the validator's own miner.
    pub runs: Vec<JobOutputs>,
    /// The job at a third coldkey.
    pub witness: MinerRun,
    /// The coldkeys that were asked as the third one.
    pub witnesses: u64,
}

/// The step that follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnCheckStep {
    /// A miner has the job.
    Wait,
    /// The job runs on the validator's own miner.
    RunOnOwnMiner,
    /// A third coldkey gets the job.
    AskWitness,
    /// The check is over.
    Done(CheckVerdict),
}

/// Decides what follows. A difference speaks against the miner only if two runs on the validator's own miner agree with
/// each other, and a third coldkey with machines of the same class agrees with them.
pub fn next_check_step(facts: &OwnCheckFacts) -> OwnCheckStep {
    let subject = match &facts.subject {
        MinerRun::NotAsked | MinerRun::Pending => return OwnCheckStep::Wait,
        MinerRun::Nothing(reason) => return unproven(format!("the miner gave no outputs: {reason}")),
        MinerRun::Completed(outputs) => outputs,
    };
    let verdict = match next_step(subject, &facts.runs) {
        CheckStep::RunAgain => return OwnCheckStep::RunOnOwnMiner,
        CheckStep::Done(verdict) if verdict.state != CheckState::Differs => {
            return OwnCheckStep::Done(verdict);
        }
        CheckStep::Done(verdict) => verdict,
    };
    match &facts.witness {
        MinerRun::NotAsked | MinerRun::Nothing(_) if facts.witnesses < MOST_WITNESSES => {
            OwnCheckStep::AskWitness
        }
        MinerRun::NotAsked | MinerRun::Nothing(_) => {
            unproven(format!("none of {MOST_WITNESSES} other coldkeys ran the job"))
        }
        MinerRun::Pending => OwnCheckStep::Wait,
        MinerRun::Completed(witness) => {
            let agrees = facts.runs.iter().all(|run| run.compare(witness).agrees());
            if agrees {
                OwnCheckStep::Done(CheckVerdict {
                    reason: format!("{}, and a third coldkey agrees with them", verdict.reason),
                    ..verdict
                })
            } else {
                unproven("a third coldkey's outputs differ from those of the validator's own miner, too")
            }
        }
    }
}

fn unproven(reason: impl Into<String>) -> OwnCheckStep {
    OwnCheckStep::Done(CheckVerdict::unproven(reason))
}

#[cfg(test)]
mod tests {
    use muster_protocol::wire::facilitator::MinerResponse;
    use proptest::prelude::*;

    use super::*;

    fn printed(stdout: &str) -> JobOutputs {
        JobOutputs::of(&MinerResponse {
            docker_process_stdout: stdout.to_owned(),
            ..MinerResponse::default()
        })
    }

    fn step(subject: &str, runs: &[&str], witness: MinerRun, witnesses: u64) -> OwnCheckStep {
        next_check_step(&OwnCheckFacts {
            subject: MinerRun::Completed(printed(subject)),
            runs: runs.iter().map(|run| printed(run)).collect(),
            witness,
            witnesses,
        })
    }

    fn state(step: OwnCheckStep) -> Option<CheckState> {
        match step {
            OwnCheckStep::Done(verdict) => Some(verdict.state),
            OwnCheckStep::Wait | OwnCheckStep::RunOnOwnMiner | OwnCheckStep::AskWitness => None,
        }
    }

    #[test]
    fn a_difference_needs_two_equal_runs_and_a_third_coldkey_that_agrees_with_them() {
        let witness = |text: &str| MinerRun::Completed(printed(text));
        assert_eq!(step("b", &[], MinerRun::NotAsked, 0), OwnCheckStep::RunOnOwnMiner);
        assert_eq!(
            step("b", &["a"], MinerRun::NotAsked, 0),
            OwnCheckStep::RunOnOwnMiner
        );
        assert_eq!(
            step("b", &["a", "a"], MinerRun::NotAsked, 0),
            OwnCheckStep::AskWitness
        );
        assert_eq!(step("b", &["a", "a"], MinerRun::Pending, 1), OwnCheckStep::Wait);
        assert_eq!(
            state(step("b", &["a", "a"], witness("a"), 1)),
            Some(CheckState::Differs)
        );
        for other in ["b", "c"] {
            let verdict = state(step("b", &["a", "a"], witness(other), 1));
            assert_eq!(verdict, Some(CheckState::Unproven), "machines may differ");
        }
    }

    #[test]
    fn another_coldkey_is_asked_if_one_does_not_run_the_job_and_the_third_is_the_last() {
        let nothing = || MinerRun::Nothing("busy".to_owned());
        assert_eq!(step("b", &["a", "a"], nothing(), 1), OwnCheckStep::AskWitness);
        assert_eq!(
            state(step("b", &["a", "a"], nothing(), MOST_WITNESSES)),
            Some(CheckState::Unproven)
        );
    }

    fn any_run() -> impl Strategy<Value = MinerRun> {
        prop_oneof![
            Just(MinerRun::NotAsked),
            Just(MinerRun::Pending),
            "[abc]".prop_map(|text| MinerRun::Completed(printed(&text))),
            Just(MinerRun::Nothing("busy".to_owned())),
        ]
    }

    proptest! {
        #[test]
        fn only_a_miner_whose_outputs_two_others_contradict_is_blamed(
            subject in any_run(), witness in any_run(), witnesses in 0_u64..5,
            runs in prop::collection::vec("[abc]", 0..3),
        ) {
            let facts = OwnCheckFacts {
                subject: subject.clone(),
                runs: runs.iter().map(|run| printed(run)).collect(),
                witness: witness.clone(),
                witnesses,
            };
            if let OwnCheckStep::Done(verdict) = next_check_step(&facts)
                && verdict.state == CheckState::Differs
            {
                prop_assert!(runs.len() == 2 && runs[0] == runs[1]);
                prop_assert_eq!(witness, MinerRun::Completed(printed(&runs[0])));
                prop_assert!(matches!(subject, MinerRun::Completed(outputs) if outputs != printed(&runs[0])));
            }
        }
    }
}
