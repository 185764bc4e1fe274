//! Executors as batch jobs of Slurm. The engine calls `sbatch`, `squeue`, `scancel` and `sinfo`, as a person would; the
//! jobs themselves are the only record of what was started.

mod failure;
mod gres;
mod jobs;
mod nodes;
mod program;
mod settings;
mod submission;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use muster_process::SharedClock;
use muster_protocol::AttemptId;
use muster_provisioning::{EngineError, ExecutorEngine, Order, Survey};
use parking_lot::Mutex;

use crate::failure::CallFailure;
use crate::jobs::{SlurmJob, job_name};
use crate::nodes::NodeRequest;
use crate::program::SlurmPrograms;
pub use crate::settings::SlurmSettings;

/// So often a cancelled job is looked at before the caller has to come again.
const CANCEL_LOOKS: u32 = 6;
/// The pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The pause after which a submission that had no answer must have been carried out, if it ever is.
const LATE_SUBMISSION: Duration = Duration::from_secs(3);

/// Starts executors as batch jobs of one pool.
#[derive(Debug)]
pub struct SlurmEngine {
    settings: SlurmSettings,
    programs: SlurmPrograms,
    script: String,
    label: String,
    clock: SharedClock,
    attempts: Mutex<AttemptLocks>,
}

/// The locks of attempts that are being started or ended, and the attempts whose submission had no answer.
#[derive(Debug, Default)]
struct AttemptLocks {
    locks: BTreeMap<AttemptId, Weak<tokio::sync::Mutex<()>>>,
    unanswered: BTreeSet<AttemptId>,
}

impl SlurmEngine {
    /// Starts `command`, program first, in a job for each executor. The label distinguishes this pool's jobs from those
    /// of other pools of the same user; it holds neither `|` nor control characters.
    pub fn new(settings: SlurmSettings, command: &[String], label: String, clock: SharedClock) -> Self {
        Self {
            programs: SlurmPrograms::new(&settings, clock.clone()),
            settings,
            script: submission::script(command),
            label,
            clock,
            attempts: Mutex::default(),
        }
    }

    /// The lock of an attempt: names are not unique in Slurm, so looking and submitting must not be interrupted.
    fn lock_of(&self, attempt: AttemptId) -> Arc<tokio::sync::Mutex<()>> {
        let locks = &mut self.attempts.lock().locks;
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(&attempt).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        locks.insert(attempt, Arc::downgrade(&lock));
        lock
    }

    async fn submit(&self, order: &Order, excluded_hosts: &BTreeSet<String>) -> Result<(), EngineError> {
        let attempt = order.token.attempt();
        if self.jobs_of(attempt).await?.iter().any(SlurmJob::was_accepted) {
            return Ok(());
        }
        let excluded = self.known_hosts(excluded_hosts).await?;
        let arguments = submission::arguments(&self.settings, &self.label, order, &excluded);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let variables = [
            (submission::ADDRESS, order.miner_address.clone()),
            (submission::TOKEN, order.token.to_string()),
        ];
        self.attempts.lock().unanswered.insert(attempt);
        let submitted = self.programs.call("sbatch", &arguments, &variables, &self.script);
        let submitted = submitted.await.map_err(CallFailure::of_submission);
        if !matches!(submitted, Err(EngineError::Unreachable(_))) {
            self.attempts.lock().unanswered.remove(&attempt);
        }
        let answer = submitted?;
        let job = String::from_utf8_lossy(&answer);
        tracing::info!(%attempt, job = job.trim(), "Slurm has taken the job of an executor");
        Ok(())
    }

    /// The nodes among these that the cluster has: sbatch refuses to exclude one that it does not know.
    async fn known_hosts(&self, hosts: &BTreeSet<String>) -> Result<BTreeSet<String>, EngineError> {
        if hosts.is_empty() {
            return Ok(BTreeSet::new());
        }
        let arguments = ["--Node", "--all", "--noheader", "--format=%N"];
        let answer = self
            .programs
            .ask("sinfo", &arguments)
            .await
            .map_err(CallFailure::of_question)?;
        let text = String::from_utf8_lossy(&answer);
        Ok(text
            .lines()
            .map(str::trim)
            .filter(|name| hosts.contains(*name))
            .map(str::to_owned)
            .collect())
    }

    /// Every job of this user that has the name of an attempt.
    async fn jobs_of(&self, attempt: AttemptId) -> Result<Vec<SlurmJob>, EngineError> {
        self.list_jobs(&[&format!("--name={}", job_name(attempt))]).await
    }

    async fn list_jobs(&self, filters: &[&str]) -> Result<Vec<SlurmJob>, EngineError> {
        let format = format!("--format={}", jobs::FORMAT);
        let mut arguments = vec!["--me", "--all", "--noheader", "--states=all", &format];
        arguments.extend(filters);
        let answer = self
            .programs
            .ask("squeue", &arguments)
            .await
            .map_err(CallFailure::of_question)?;
        let odd = |line| {
            CallFailure::Odd {
                program: "squeue",
                fault: format!("{line:?}"),
            }
            .of_question()
        };
        jobs::parse(&answer).map_err(odd)
    }

    /// Cancels the live jobs of an attempt until there is none.
    async fn cancel(&self, attempt: AttemptId) -> Result<(), EngineError> {
        let mut failure = None;
        for _ in 0..CANCEL_LOOKS {
            let jobs = self.jobs_of(attempt).await?;
            let mut live: Vec<&str> = jobs
                .iter()
                .filter(|job| job.is_live())
                .map(|job| job.id.as_str())
                .collect();
            if live.is_empty() {
                return Ok(());
            }
            live.insert(0, "--quiet");
            match self
                .programs
                .ask("scancel", &live)
                .await
                .map_err(CallFailure::of_question)
            {
                Ok(_) => {}
                Err(refused @ EngineError::Refused(_)) => return Err(refused),
                // A job may have ended meanwhile, which the next look shows.
                Err(unreachable) => failure = Some(unreachable),
            }
            self.clock.sleep(LOOK_AGAIN).await;
        }
        Err(failure.unwrap_or_else(|| {
            let name = job_name(attempt);
            EngineError::Unreachable(format!(
                "Slurm still shows the cancelled job {name}; it is cancelled again"
            ))
        }))
    }

    fn request(&self) -> NodeRequest {
        let SlurmSettings { gpus, gres, .. } = &self.settings;
        let gres = if *gpus > 0 {
            format!("gpu:{gpus}")
        } else {
            gres.clone()
        };
        NodeRequest {
            cpus: u64::from(self.settings.cpus),
            memory_mib: self.settings.memory_mib,
            gres: gres::parse_request(&gres).unwrap_or_default(),
            whole_node: self.settings.has_argument("--exclusive"),
            in_reservation: self.settings.has_argument("--reservation"),
            only_default: self.settings.partition.is_empty(),
        }
    }

    async fn count_places(&self, excluded_hosts: &BTreeSet<String>) -> Result<u32, EngineError> {
        let format = format!("--format={}", nodes::FORMAT);
        let partition = format!("--partition={}", self.settings.partition);
        // A named partition is shown even if it is hidden, and sinfo does not take both options.
        let which = if self.settings.partition.is_empty() {
            "--all"
        } else {
            &partition
        };
        let arguments = ["--Node", "--noheader", which, &format];
        let answer = self
            .programs
            .ask("sinfo", &arguments)
            .await
            .map_err(CallFailure::of_question)?;
        Ok(nodes::places(
            &nodes::parse(&answer),
            &self.request(),
            excluded_hosts,
        ))
    }
}

impl ExecutorEngine for SlurmEngine {
    fn kind(&self) -> &'static str {
        "slurm"
    }

    async fn create(&self, order: &Order, excluded_hosts: &BTreeSet<String>) -> Result<(), EngineError> {
        let lock = self.lock_of(order.token.attempt());
        let _held = lock.lock().await;
        self.submit(order, excluded_hosts).await
    }

    async fn delete(&self, attempt: AttemptId) -> Result<(), EngineError> {
        let lock = self.lock_of(attempt);
        let _held = lock.lock().await;
        self.cancel(attempt).await?;
        let unanswered = self.attempts.lock().unanswered.contains(&attempt);
        if unanswered {
            // The controller may have had the submission in its queue, and the job shows only now.
            self.clock.sleep(LATE_SUBMISSION).await;
            self.cancel(attempt).await?;
            self.attempts.lock().unanswered.remove(&attempt);
        }
        Ok(())
    }

    async fn survey(&self, excluded_hosts: &BTreeSet<String>) -> Result<Survey, EngineError> {
        let (jobs, places) = tokio::join!(self.list_jobs(&[]), self.count_places(excluded_hosts));
        Ok(Survey {
            executors: jobs::executors(&jobs?, &self.label),
            places: places?,
        })
    }
}
