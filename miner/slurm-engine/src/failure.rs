//! The failures of Slurm's programs, and their meaning for a pool.

use std::io;
use std::time::Duration;

use muster_provisioning::EngineError;

/// Texts of failures after which nobody knows the state: the controller did not answer, or not to the end.
const NO_ANSWER: &[&str] = &[
    "unable to contact slurm controller",
    "socket timed out",
    "zero bytes were transmitted",
    "communication connection failure",
    "communication shutdown failure",
    "unexpected message",
    "header lengths are longer",
    "incomplete message",
    "connection refused",
    "connection reset",
    "connection timed out",
    "no route to host",
    "broken pipe",
    "transport endpoint is not connected",
    "standby mode",
    "authentication error",
    "munge",
    "temporarily unable to accept job",
    "resource temporarily unavailable",
    "too many open files",
    "unable to establish configuration source",
    "could not establish a configuration source",
];

/// Refusals that Slurm's text shows, each with advice for the operator of the pool.
const ADVICE: &[(&str, &str)] = &[
    (
        "requested node configuration is not available",
        "no node of the partition has so many GPUs, CPUs or so much memory: compare `gpus`, `gres`, `cpus`, \
         `memory_mib` and `args` of the pool with `sinfo --Node --format='%N %c %m %G %f'`; nodes that the \
         operator has excluded get no executor",
    ),
    (
        "invalid generic resource",
        "compare `gpus` and `gres` of the pool with `sinfo --format=%G`",
    ),
    (
        "memory specification can not be satisfied",
        "lower `memory_mib` of the pool, or name another partition",
    ),
    (
        "invalid feature specification",
        "no node has that feature: compare `args` of the pool with `sinfo --format=%f`",
    ),
    (
        "invalid node name",
        "compare the nodes in `args` of the pool with `sinfo --Node`",
    ),
    (
        "invalid license",
        "compare the licenses in `args` of the pool with `scontrol show licenses`",
    ),
    ("invalid --", "correct that option in `args` of the pool"),
    (
        "invalid partition",
        "compare `partition` of the pool with `sinfo --format=%P`",
    ),
    (
        "no partition specified",
        "the cluster has no default partition: name one in `partition` of the pool",
    ),
    (
        "invalid qos",
        "compare `qos` of the pool with `sacctmgr show qos`",
    ),
    (
        "invalid account",
        "compare `account` and `partition` of the pool with `sacctmgr show associations user=$USER`",
    ),
    (
        "job violates accounting/qos policy",
        "a limit of the account or of its quality of service is reached: ask the cluster's administrator, or lower \
         `count` or the request of the pool",
    ),
    (
        "time limit is invalid",
        "leases last longer than the partition's MaxTime: name another partition, or lower the \
         waits and limits of leases",
    ),
    (
        "not permitted to use this partition",
        "ask the cluster's administrator, or name another partition",
    ),
    (
        "reservation",
        "compare the reservation in `args` of the pool with `scontrol show reservation`",
    ),
    (
        "unrecognized option",
        "this release of sbatch does not know an option in `args` of the pool",
    ),
    (
        "unknown option",
        "this release does not know an option; the engine needs Slurm 20.02 or newer",
    ),
    (
        "permission denied",
        "the miner's user may not do this on the cluster: ask its administrator",
    ),
    (
        "invalid user",
        "the nodes and the controller must know the miner's user",
    ),
];

/// The way in which a program of Slurm failed.
#[derive(Debug)]
pub(crate) enum CallFailure {
    /// It does not start.
    Start {
        /// The program, with its folder.
        program: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// It took too long, and was killed.
    TooLong {
        /// The program's name.
        program: &'static str,
        /// The time that it had.
        limit: Duration,
        /// The text that it had written until then.
        words: String,
    },
    /// It ended with a failure of its own.
    Ended {
        /// The program's name.
        program: &'static str,
        /// Whether it ended by itself, with an exit code.
        exited: bool,
        /// Its text on standard error, in one line.
        words: String,
    },
    /// Its answer cannot be read.
    Odd {
        /// The program's name.
        program: &'static str,
        /// The fault of the answer.
        fault: String,
    },
}

// === impl CallFailure ===

impl CallFailure {
    /// The meaning for a submission: a program that ended with a text of its own has submitted nothing.
    pub(crate) fn of_submission(self) -> EngineError {
        self.judge(true)
    }

    /// The meaning for a question or a cancellation, which can be tried again.
    pub(crate) fn of_question(self) -> EngineError {
        self.judge(false)
    }

    fn judge(self, words_refuse: bool) -> EngineError {
        match self {
            Self::Start { program, source } => start_failed(&program, &source),
            Self::TooLong {
                program,
                limit,
                words,
            } => {
                let words = if words.is_empty() {
                    words
                } else {
                    format!(" It said: {words}.")
                };
                EngineError::Unreachable(format!(
                    "{program} of Slurm took longer than {} s and was stopped.{words} Look at the cluster's controller \
                     with `scontrol ping`; `call_s` of the pool is the limit",
                    limit.as_secs()
                ))
            }
            Self::Odd { program, fault } => EngineError::Unreachable(format!(
                "{program} of Slurm answered with something else than a list: {fault}. Look at the output of \
                 {program} on the miner's machine"
            )),
            Self::Ended {
                program,
                exited,
                words,
            } => ended(program, exited && words_refuse, &words),
        }
    }
}

fn start_failed(program: &str, source: &io::Error) -> EngineError {
    let text = format!("cannot start {program:?} of Slurm: {source}");
    if matches!(
        source.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    ) {
        let advice = "install Slurm's client on the miner's machine (Debian: slurm-client), or set `bin` of the pool \
            to the folder of its programs";
        return EngineError::Refused(format!("{text}; {advice}"));
    }
    EngineError::Unreachable(format!("{text}; it is tried again"))
}

fn ended(program: &str, words_refuse: bool, words: &str) -> EngineError {
    let lower = words.to_lowercase();
    if words.is_empty() || NO_ANSWER.iter().any(|text| lower.contains(text)) {
        let said = if words.is_empty() {
            "it said nothing"
        } else {
            words
        };
        let advice =
            "Look at the cluster's controller with `scontrol ping` and at munged on the miner's machine";
        return EngineError::Unreachable(format!("{program} had no answer from Slurm: {said}. {advice}"));
    }
    let advice = ADVICE
        .iter()
        .find(|(text, _)| lower.contains(text))
        .map(|(_, advice)| *advice);
    match advice {
        Some(advice) => EngineError::Refused(format!("Slurm refused: {words}; {advice}")),
        None if words_refuse => {
            EngineError::Refused(format!("Slurm refused: {words}; check the pool's Slurm settings"))
        }
        None => EngineError::Unreachable(format!("{program} of Slurm failed: {words}")),
    }
}

/// The text of a program in one line of bounded length, each line once and without the program's name before it.
pub(crate) fn words_of(program: &str, output: &[u8]) -> String {
    const LONGEST: usize = 600;
    let text = String::from_utf8_lossy(output);
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let line = line
            .strip_prefix(program)
            .and_then(|rest| rest.strip_prefix(": "))
            .unwrap_or(line);
        let line = line.strip_prefix("error: ").unwrap_or(line);
        let line = line.strip_prefix("Batch job submission failed: ").unwrap_or(line);
        let line: String = line
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let line = line.trim().trim_end_matches('.').to_owned();
        if !line.is_empty() && !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.join("; ").chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Words of the programs of Slurm 22.05.8 on their standard error, a failure in each paragraph.
    const RECORDED: &str = include_str!("../tests/recorded/failures.txt");

    fn recorded() -> Vec<(&'static str, &'static str)> {
        let paragraphs = RECORDED.split("\n\n").filter(|text| !text.trim().is_empty());
        paragraphs.map(|text| text.split_once('\n').unwrap()).collect()
    }

    fn of(words: &str) -> EngineError {
        let words = words_of("sbatch", words.as_bytes());
        CallFailure::Ended {
            program: "sbatch",
            exited: true,
            words,
        }
        .of_submission()
    }

    #[test]
    fn the_recorded_failures_of_submissions_are_told_apart() {
        let mut kinds = Vec::new();
        for (heading, words) in recorded() {
            let error = of(words);
            let refused = matches!(error, EngineError::Refused(_));
            assert_eq!(refused, heading.starts_with("refused"), "{heading}: {error}");
            // Nobody is left with Slurm's text alone.
            assert!(
                !refused || !error.to_string().ends_with("settings"),
                "{heading}: {error}"
            );
            kinds.push(refused);
        }
        assert!(kinds.contains(&true) && kinds.contains(&false), "{kinds:?}");
    }

    #[test]
    fn refusals_that_need_accounting_have_their_advice() {
        for (text, advice) in [
            ("Invalid qos specification", "sacctmgr show qos"),
            (
                "Invalid account or account/partition combination specified",
                "sacctmgr show associations",
            ),
            (
                "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
                "`count`",
            ),
            (
                "Requested time limit is invalid (missing or exceeds some limit)",
                "MaxTime",
            ),
            (
                "User's group not permitted to use this partition",
                "administrator",
            ),
        ] {
            let error = of(&format!("sbatch: error: Batch job submission failed: {text}\n"));
            let EngineError::Refused(told) = error else {
                panic!("{text} is no refusal")
            };
            assert!(told.contains(text) && told.contains(advice), "{told}");
        }
    }

    #[test]
    fn a_failure_without_words_or_of_a_question_says_nothing_about_the_state() {
        assert!(matches!(of(""), EngineError::Unreachable(_)));
        let killed = CallFailure::Ended {
            program: "sbatch",
            exited: false,
            words: "odd".to_owned(),
        };
        assert!(matches!(killed.of_submission(), EngineError::Unreachable(_)));
        let asked = CallFailure::Ended {
            program: "squeue",
            exited: true,
            words: "odd".to_owned(),
        };
        assert!(matches!(asked.of_question(), EngineError::Unreachable(_)));
    }

    #[test]
    fn a_missing_program_names_the_setting() {
        let failure = CallFailure::Start {
            program: "/opt/slurm/sbatch".to_owned(),
            source: io::Error::from(io::ErrorKind::NotFound),
        };
        let error = failure.of_question();
        assert!(
            matches!(&error, EngineError::Refused(text) if text.contains("/opt/slurm/sbatch") && text.contains("`bin`"))
        );
    }

    proptest! {
        #[test]
        fn any_words_become_one_line_of_bounded_length(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let words = words_of("sbatch", &bytes);
            prop_assert!(words.chars().count() <= 600);
            prop_assert!(!words.chars().any(char::is_control));
            let _ = of(&words);
        }
    }
}
