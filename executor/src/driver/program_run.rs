//! The program of an attempt: the steps that start it, watch it, follow its reports, and stop it.

use std::sync::Arc;
use std::time::Duration;

use muster_checkpoint_transfer::{KeeperHandle, LastLook};
use muster_containers::disk::{DiskEnd, watch, watch_root};
use muster_containers::sandbox::Root;
use muster_job_metrics::{MetricRules, ProgramFollower, ProgramWatch};
use muster_process::error::Causes;
use muster_protocol::wire::executor::ProgressOf;
use muster_protocol::{JobFailureReason, JobStage, Timestamp};
use uuid::Uuid;

use super::attempt_stages::PlacedStage;
use super::runner::{StepResult, StepRunner};
use crate::attempt_state::{AttemptFailure, ProgramExit};
use crate::collector::OutputPlace;
use crate::container::{self, EnginePresence, NewContainer};
use crate::job_sandbox::{JobContainer, PROGRESS_FILE, checkpoint_order, image_label};
use crate::journal::JournaledJob;
use crate::output_capture::CapturedBefore;
use crate::steps::{self, PlacedJob};
use crate::warm_containers::encode_program;

/// The pause between two reports of the time that the program has run.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

impl StepRunner {
    /// Starts the job's program, watches its use of the disk, and reports how long it has run.
    pub(super) fn run(&self, placed: &mut PlacedStage) {
        match self.start_container(&mut placed.job) {
            Ok(()) => {
                self.watch_disk(&placed.job);
                self.report_running_time(&placed.job, self.context.clock().now());
                self.follow_program(placed, self.context.clock().now());
                self.measure_program(&placed.job, self.context.clock().now());
                self.send_output(placed);
            }
            Err(failure) => self.begin(async move { StepResult::Failed(failure) }),
        }
    }

    fn start_container(&self, job: &mut PlacedJob) -> Result<(), AttemptFailure> {
        let refused =
            |message: String| AttemptFailure::job(JobFailureReason::Unknown, JobStage::Execution, message);
        let request = Arc::clone(&job.request);
        let image = &request.image.resolved.image;
        let spec = JobContainer {
            job: &request.job,
            start: request.start(),
            image,
            image_folders: &job.image_folders,
            policy: request.layout.policy,
            gpus: job.gpu_uuids(),
            folders: job.workspace.folders(),
            runtime: &self.context.config().runtime,
            streaming: request.layout.streaming.is_some(),
            resumed: job.resumed.as_deref(),
        };
        let body = spec.body().map_err(|error| refused(error.to_string()))?;
        let container = job.container.clone();
        tracing::info!(
            image = image_label(&request.image.name, image.id),
            container,
            "running"
        );
        let (engine, capture) = (request.engine.clone(), self.capture.clone());
        let (clock, place) = (Arc::clone(self.context.clock()), self.output_place(job));
        if let Some(warm) = job.warm.take() {
            let mark = Uuid::new_v4().to_string();
            let program = encode_program(image, &body, &mark)
                .ok_or_else(|| refused("neither the job nor its image names a program".to_owned()))?;
            let running = container::run_in_warm(engine, warm, (program, mark), capture, place, clock);
            self.begin_program(running);
        } else {
            let called_off = self.context.called_off.clone();
            let new = NewContainer {
                name: container,
                body,
                input: job.input.take(),
            };
            let running = container::run(engine, new, capture, place, clock, called_off);
            self.begin_program(running);
        }
        Ok(())
    }

    /// The place of what the job's container prints, and the time after which the container ends without an executor.
    fn output_place(&self, job: &PlacedJob) -> OutputPlace {
        let (layout, config) = (&job.request.layout, self.context.config());
        OutputPlace {
            longest: Some(layout.limits.longest_run(config.stop_grace())),
            ..OutputPlace::of(config, &job.workspace.folders().logs, layout.policy.output)
        }
    }

    fn begin_program(
        &self,
        running: impl Future<Output = Result<ProgramExit, AttemptFailure>> + Send + 'static,
    ) {
        self.begin(async move { running.await.map_or_else(StepResult::Failed, StepResult::Exited) });
    }

    /// Goes on with a program that another process started.
    pub(super) fn take_over(
        &self,
        placed: &mut PlacedStage,
        journaled: &JournaledJob,
        before: CapturedBefore,
    ) {
        let since_start = match journaled.is_of_an_earlier_boot() {
            true => EnginePresence::MachineRestarted,
            false => EnginePresence::Unbroken,
        };
        let job = &placed.job;
        let (engine, container) = (job.request.engine.clone(), job.container.clone());
        let clock = Arc::clone(self.context.clock());
        let running = container::take_over(
            engine,
            container,
            since_start,
            before,
            self.capture.clone(),
            self.output_place(job),
            clock,
        );
        self.begin_program(running);
        self.watch_disk(job);
        self.report_running_time(job, journaled.started);
        self.follow_program(placed, journaled.started);
        self.measure_program(&placed.job, journaled.started);
        self.send_output(placed);
    }

    /// Sends what the program prints to the place that the job names, for a Muster miner, whose result has room for it.
    fn send_output(&self, placed: &mut PlacedStage) {
        let is_batch = placed.job.request.layout.streaming.is_none();
        if self.muster.is_none() || !is_batch {
            return;
        }
        let sending = steps::send_output(&placed.job, &self.context, self.capture.clone());
        if let Some((handle, sending)) = sending {
            placed.output = Some(handle);
            self.begin_until_called_off(async move { StepResult::OutputSent(Box::new(sending.await)) });
        }
    }

    fn watch_disk(&self, job: &PlacedJob) {
        let policy = job.request.layout.policy;
        let limit = policy.allowance.disk;
        let folders = job.workspace.folders();
        // The files of the image count, too, although they were laid out before.
        let (folder, counted) = (folders.root.clone(), folders.image_files.clone());
        let config = Arc::clone(self.context.config());
        let watching = watch(
            folder,
            counted,
            limit,
            config.disk_reserve(),
            Arc::clone(self.context.clock()),
        );
        self.begin_until_called_off(async move {
            match watching.await {
                DiskEnd::Limit => StepResult::DiskFull(limit),
                DiskEnd::Reserve => StepResult::Failed(steps::reserve_lacking(&config)),
            }
        });
        if policy.root == Root::Writable {
            let (engine, container) = (job.request.engine.clone(), job.container.clone());
            let watching = watch_root(engine, container, limit, Arc::clone(self.context.clock()));
            self.begin_until_called_off(async move {
                watching.await;
                StepResult::DiskFull(limit)
            });
        }
    }

    fn report_running_time(&self, job: &PlacedJob, since: Timestamp) {
        if self.muster.is_none() {
            return;
        }
        let (live, clock) = (self.context.live.clone(), Arc::clone(self.context.clock()));
        let limit = job.request.layout.limits.execution.as_secs();
        self.begin_until_called_off(async move {
            loop {
                let run = clock.now().since(since).as_secs();
                live.set_progress(ProgressOf::Execution, run, Some(limit));
                clock.sleep(PROGRESS_EVERY).await;
            }
        });
    }

    /// Follows what the program of a batch job reports of its progress, until the program is over, and takes the
    /// checkpoints that it leaves.
    fn follow_program(&self, placed: &mut PlacedStage, since: Timestamp) {
        let job = &placed.job;
        let Some(miner) = self
            .muster
            .clone()
            .filter(|_| job.request.layout.streaming.is_none())
        else {
            return;
        };
        let extension = job.request.offer.muster.as_deref();
        let rules = extension.map_or(&[][..], |extension| &extension.metrics);
        let rules = MetricRules::compile(rules).unwrap_or_else(|error| {
            // A facilitator refuses such a rule.
            tracing::warn!(error = %Causes(&error), "the job's output is not searched for metrics");
            MetricRules::default()
        });
        let follower =
            ProgramFollower::new(ProgramWatch::new(rules, since), Arc::clone(self.context.clock()));
        self.capture.feed(follower.clone());
        let file = job.workspace.folders().report.join(PROGRESS_FILE);
        let (live, over) = (self.context.live.clone(), self.program_over.clone());
        let (capture, usage) = (self.capture.clone(), self.usage.clone());
        let keeping = steps::keep_checkpoints(job, &self.context, follower.clone(), capture, miner);
        if let Some((handle, keeping)) = keeping {
            placed.keeper = Some(handle);
            self.begin_until_called_off(async move {
                keeping.await;
                StepResult::CheckpointsKept
            });
        }
        if let Some(seconds) = checkpoint_order(&job.request.job).and_then(|order| order.stall_s) {
            let stalling = follower
                .clone()
                .wait_for_stall(Duration::from_secs(u64::from(seconds)));
            let over = self.program_over.clone();
            self.begin_until_called_off(async move {
                match over.run_until_cancelled(stalling).await {
                    Some(()) => StepResult::Stalled(seconds),
                    None => StepResult::Nothing,
                }
            });
        }
        // It ends with the program, after its last look.
        let read_out = self.report_read_out.clone();
        self.begin(async move {
            let report_to = |at, report| {
                live.set_report(at, usage.note_report(at, report));
            };
            follower.follow(file, over, report_to).await;
            read_out.cancel();
            StepResult::Nothing
        });
    }

    /// The program is over: once everything that it reported is read, the keeper of its checkpoints takes what is left.
    /// The report's last lines may name a checkpoint.
    pub(super) fn end_keeper(&self, keeper: KeeperHandle, last: LastLook) {
        let read_out = self.report_read_out.clone();
        self.begin_until_called_off(async move {
            read_out.cancelled().await;
            keeper.end(last);
            StepResult::Nothing
        });
    }

    /// Samples what the program uses until it is over, for a Muster miner, which alone receives it.
    fn measure_program(&self, job: &PlacedJob, since: Timestamp) {
        let gpus = job.gpu_uuids().to_vec();
        self.usage.begin(since, gpus.len());
        if self.muster.is_none() {
            return;
        }
        let (engine, container) = (job.request.engine.clone(), job.container.clone());
        let (usage, clock) = (self.usage.clone(), Arc::clone(self.context.clock()));
        let over = self.program_over.clone();
        let (live, is_batch) = (self.context.live.clone(), job.request.layout.streaming.is_none());
        let report_to = is_batch.then_some(move |at, report| live.set_report(at, report));
        self.begin_until_called_off(async move {
            let watching = usage.watch(engine, container, gpus, clock, report_to);
            over.run_until_cancelled(watching).await;
            StepResult::Nothing
        });
    }

    /// The program is over: the step that follows it looks a last time, and ends.
    pub(super) fn end_program(&self) {
        self.usage.end(self.context.clock().now());
        self.program_over.cancel();
    }

    /// Asks the program to save its state and to end within `lead_s` seconds, and notes the reason in its output.
    pub(super) fn ask_to_save(&self, job: &PlacedJob, lead_s: u64) {
        let Some(order) = checkpoint_order(&job.request.job) else {
            return;
        };
        let (engine, name, signal) = (job.request.engine.clone(), job.container.clone(), order.signal);
        tracing::info!(container = name, %signal, lead_s, "the program is asked to save its state");
        self.capture.note(&format!(
            "this machine leaves in {lead_s} s: the program was asked to save its state and to end ({signal})"
        ));
        self.begin_until_called_off(async move {
            if let Err(error) = engine.signal(&name, signal.name()).await {
                tracing::warn!(error = %Causes(&error), "the program could not be asked to save its state");
            }
            StepResult::Nothing
        });
    }

    pub(super) fn stop(&self, job: &PlacedJob) {
        let (engine, name) = (job.request.engine.clone(), job.container.clone());
        let grace = self.context.config().stop_grace();
        self.begin(async move {
            if let Err(error) = engine.stop(&name, grace).await {
                // It is removed by force when the attempt ends.
                tracing::warn!(error = %Causes(&error), "the container could not be asked to stop");
            }
            StepResult::Nothing
        });
    }
}
