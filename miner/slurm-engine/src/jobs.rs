//! The jobs of this user, as `squeue` shows them.
//!
//! The answer is a line for each job with fields of our choice. `--json` would be the other way: its form depends on
//! the release (numbers became objects and states lists in later ones), it needs a plugin that some builds leave out,
//! and of 500 jobs it is 1.5 MB.

use std::collections::BTreeMap;

use muster_protocol::AttemptId;
use muster_provisioning::EngineExecutor;

/// The columns that `squeue` is asked for: id, state, nodes, name, comment, reason. Only the name, the comment and the
/// reason may hold any text, and the first two of them are compared as a whole.
pub(crate) const FORMAT: &str = "%i|%T|%N|%j|%k|%r";
/// The beginning of the name of every executor's job.
const NAME_PREFIX: &str = "muster-";
/// The reason of a job that was stored although its submission was refused.
const REFUSED_AT_ONCE: &str = "|BadConstraints";

/// One job of the miner's user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlurmJob {
    /// The id by which the job is cancelled.
    pub(crate) id: String,
    /// The state in Slurm's word, such as `PENDING`.
    state: String,
    /// The nodes that it has, or had.
    nodes: String,
    /// The name, which is not unique.
    name: String,
    /// The comment, a separator and the reason.
    comment_and_reason: String,
}

/// The part of its life in which a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobPhase {
    Waits,
    Runs,
    Ended,
}

/// The name of an attempt's job.
pub(crate) fn job_name(attempt: AttemptId) -> String {
    format!("{NAME_PREFIX}{attempt}")
}

/// Reads the output of `squeue`; the line that is odd if it is none of a list of jobs.
pub(crate) fn parse(output: &[u8]) -> Result<Vec<SlurmJob>, String> {
    let text = String::from_utf8_lossy(output);
    let mut jobs = Vec::new();
    for line in text.lines() {
        match parse_line(line) {
            Some(job) => jobs.push(job),
            // A comment of another job may hold a line break, so only the first line has to be a job's.
            None if jobs.is_empty() => return Err(line.chars().take(200).collect()),
            None => {}
        }
    }
    Ok(jobs)
}

fn parse_line(line: &str) -> Option<SlurmJob> {
    let mut fields = line.splitn(5, '|');
    let mut field = || fields.next().map(str::to_owned);
    let job = SlurmJob {
        id: field()?,
        state: field()?,
        nodes: field()?,
        name: field()?,
        comment_and_reason: field()?,
    };
    let id_is_one = job.id.starts_with(|c: char| c.is_ascii_digit());
    let state_is_one = !job.state.is_empty() && job.state.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    (id_is_one && state_is_one).then_some(job)
}

/// The executors of the pool with this label.
pub(crate) fn executors(jobs: &[SlurmJob], label: &str) -> BTreeMap<AttemptId, EngineExecutor> {
    let mut phases = BTreeMap::new();
    let mut executors = BTreeMap::new();
    for job in jobs {
        let Some(reason) = job.reason_under(label) else {
            continue;
        };
        let Some(attempt) = job.attempt() else { continue };
        let phase = job.phase();
        // Names are not unique: of several jobs, the one that is furthest from its end counts.
        if phases
            .get(&attempt)
            .is_some_and(|other| rank(*other) >= rank(phase))
        {
            continue;
        }
        phases.insert(attempt, phase);
        executors.insert(attempt, job.executor(reason));
    }
    executors
}

fn rank(phase: JobPhase) -> u8 {
    match phase {
        JobPhase::Ended => 0,
        JobPhase::Waits => 1,
        JobPhase::Runs => 2,
    }
}

// === impl SlurmJob ===

impl SlurmJob {
    /// Whether the job has to be cancelled for it to end.
    pub(crate) fn is_live(&self) -> bool {
        self.phase() != JobPhase::Ended
    }

    /// Whether the job is, or was, an executor. A job that no node can ever run is stored although sbatch fails.
    pub(crate) fn was_accepted(&self) -> bool {
        self.is_live() || !self.comment_and_reason.ends_with(REFUSED_AT_ONCE)
    }

    fn attempt(&self) -> Option<AttemptId> {
        self.name.strip_prefix(NAME_PREFIX)?.parse().ok()
    }

    /// Slurm's reason, if the job bears this label.
    fn reason_under(&self, label: &str) -> Option<&str> {
        self.comment_and_reason.strip_prefix(label)?.strip_prefix('|')
    }

    fn phase(&self) -> JobPhase {
        match self.state.as_str() {
            "RUNNING" | "SUSPENDED" | "STOPPED" | "SIGNALING" | "RESIZING" | "STAGE_OUT" => JobPhase::Runs,
            // One that is completing only waits for the end of its processes.
            "BOOT_FAIL" | "CANCELLED" | "COMPLETED" | "COMPLETING" | "DEADLINE" | "FAILED"
            | "LAUNCH_FAILED" | "NODE_FAIL" | "OUT_OF_MEMORY" | "PREEMPTED" | "RECONFIG_FAIL" | "REVOKED"
            | "TIMEOUT" => JobPhase::Ended,
            // PENDING, CONFIGURING, the kinds of requeue, and states of later releases.
            _ => JobPhase::Waits,
        }
    }

    fn executor(&self, reason: &str) -> EngineExecutor {
        let said = !matches!(reason, "" | "None" | "(null)");
        match self.phase() {
            JobPhase::Runs => EngineExecutor::Running {
                host: Some(self.nodes.clone()).filter(|host| !host.is_empty()),
            },
            JobPhase::Waits => EngineExecutor::Pending {
                reason: if said { reason } else { &self.state }.to_owned(),
            },
            JobPhase::Ended => {
                let mut how = format!("Slurm's job {} is {}", self.id, self.state);
                if said {
                    how.push_str(" (");
                    how.push_str(reason);
                    how.push(')');
                }
                if !self.nodes.is_empty() {
                    how.push_str(" on ");
                    how.push_str(&self.nodes);
                }
                EngineExecutor::Ended { how }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LABEL: &str = "muster pool=h100";
    const RECORDED: &[u8] = include_bytes!("../tests/recorded/squeue.txt");

    fn attempt(last: u8) -> AttemptId {
        format!("11111111-2222-4333-8444-5555555555{last:02}")
            .parse()
            .unwrap()
    }

    fn pending(reason: &str) -> EngineExecutor {
        EngineExecutor::Pending {
            reason: reason.to_owned(),
        }
    }

    fn ended(how: &str) -> EngineExecutor {
        EngineExecutor::Ended { how: how.to_owned() }
    }

    fn running(host: &str) -> EngineExecutor {
        EngineExecutor::Running {
            host: Some(host.to_owned()),
        }
    }

    #[test]
    fn the_recorded_jobs_are_the_executors_of_their_pool() {
        let jobs = parse(RECORDED).unwrap();
        let found = executors(&jobs, LABEL);
        let expected = expected_of_recorded();
        assert_eq!(found, expected);
        // Another pool of the same user sees its own.
        assert_eq!(executors(&jobs, "muster pool=other").len(), 1);
        assert!(executors(&jobs, "muster pool=h10").is_empty());
    }

    fn expected_of_recorded() -> BTreeMap<AttemptId, EngineExecutor> {
        BTreeMap::from([
            // Of two jobs with its name one has ended.
            (attempt(1), running("node0")),
            (attempt(2), running("node2")),
            (
                attempt(3),
                ended("Slurm's job 3 is FAILED (NonZeroExitCode) on node0"),
            ),
            (attempt(4), ended("Slurm's job 4 is COMPLETED on node1")),
            (attempt(6), pending("Resources")),
            (attempt(7), pending("ReqNodeNotAvail, UnavailableNodes:node0")),
            (attempt(8), pending("ReqNodeNotAvail, UnavailableNodes:node3")),
            (attempt(9), pending("JobHeldUser")),
            (attempt(10), ended("Slurm's job 12 is FAILED (BadConstraints)")),
            (attempt(11), ended("Slurm's job 13 is CANCELLED (JobHeldUser)")),
            (attempt(12), ended("Slurm's job 6 is COMPLETING on node1")),
            (
                attempt(13),
                ended("Slurm's job 7 is FAILED (JobLaunchFailure) on node1"),
            ),
        ])
    }

    #[test]
    fn the_live_one_of_two_jobs_with_one_name_counts() {
        let name = job_name(attempt(1));
        let text =
            format!("1|FAILED|a|{name}|p|None\n2|RUNNING|b|{name}|p|None\n3|PENDING||{name}|p|Dependency\n");
        let found = executors(&parse(text.as_bytes()).unwrap(), "p");
        assert_eq!(found, BTreeMap::from([(attempt(1), running("b"))]));
    }

    #[test]
    fn a_comment_with_line_breaks_hides_no_executor() {
        let name = job_name(attempt(1));
        let text = format!("1|RUNNING|a|x|one\ntwo|None\n2|RUNNING|b|{name}|p|None\n");
        assert_eq!(executors(&parse(text.as_bytes()).unwrap(), "p").len(), 1);
    }

    #[test]
    fn a_job_that_no_node_can_run_was_never_accepted() {
        let jobs = parse(b"1|FAILED||x|p|BadConstraints\n2|FAILED|a|x|p|NonZeroExitCode\n").unwrap();
        let accepted: Vec<_> = jobs.iter().map(SlurmJob::was_accepted).collect();
        assert_eq!(accepted, [false, true]);
    }

    #[test]
    fn an_answer_that_begins_with_other_words_is_no_list() {
        assert_eq!(parse(b"").unwrap(), []);
        assert_eq!(
            parse(b"Welcome to the cluster\n1|RUNNING|a|x|p|None\n"),
            Err("Welcome to the cluster".to_owned())
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(jobs) = parse(&bytes) {
                let _ = executors(&jobs, "p");
            }
        }

        #[test]
        fn any_reason_and_node_are_told_as_they_are(
            state in "[A-Z_]{1,14}",
            reason in "[^\\r\\n]{0,40}",
            nodes in "[a-z0-9\\[\\],-]{0,20}",
        ) {
            let name = job_name(attempt(7));
            let jobs = parse(format!("12|{state}|{nodes}|{name}|p|{reason}\n").as_bytes()).unwrap();
            let found = executors(&jobs, "p");
            match &found[&attempt(7)] {
                EngineExecutor::Pending { reason: told } => prop_assert!(*told == reason || *told == state),
                EngineExecutor::Running { host } => prop_assert_eq!(host.clone().unwrap_or_default(), nodes),
                EngineExecutor::Ended { how } => prop_assert!(how.contains(&state)),
            }
        }
    }
}
