//! Runs the steps of an attempt side by side and returns what each came to.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use muster_containers::docker_engine::ContainerEngine;
use muster_job_data::Uploaded;
use muster_protocol::job::PrintedStreams;
use muster_protocol::wire::executor::ProgressOf;
use muster_protocol::wire::muster::OfferExtension;
use muster_protocol::{HordeFailureReason, JobStage};
use tokio_util::sync::CancellationToken;

use crate::attempt_state::{AttemptFailure, ProgramExit};
use crate::context::AttemptContext;
use crate::miner_link::MinerOutlet;
use crate::output_capture::OutputCapture;
use crate::program_usage::UsageRecord;
use crate::session::OpenSession;
use crate::steps::{self, CollectedOutputs, PlacedJob, PreparedImage, RequestedJob, SoughtImage};

/// The pause between two reports of the progress of the image, whether it has moved or not.
const IMAGE_PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// The result of a step.
#[derive(Debug)]
pub(super) enum StepResult {
    /// The engine answers; the image is there, if one was named.
    ImageReady(ContainerEngine, Option<Box<PreparedImage>>),
    /// The engine answers; the image has to be fetched from this registry.
    ImageMissing(ContainerEngine, String),
    /// Inputs are in place.
    Placed(Box<PlacedJob>),
    /// The program has ended.
    Exited(ProgramExit),
    /// The job wrote more than this many bytes.
    DiskFull(u64),
    /// The program made no progress for this many seconds.
    Stalled(u32),
    /// The program answers, and its session is open.
    SessionOpened(Box<OpenSession>),
    /// The session is over; its signed close.
    SessionClosed(String),
    /// No more checkpoints are taken.
    CheckpointsKept,
    /// The streams that the program printed are sent, as far as that was possible.
    OutputSent(Box<PrintedStreams>),
    /// The step was called off, or its end changes nothing.
    Nothing,
    /// Artifacts are collected.
    Collected(Box<CollectedOutputs>),
    /// The uploads have ended: those that succeeded, and the failure of the first that did not.
    Uploaded(Uploaded, Option<AttemptFailure>),
    /// The step failed.
    Failed(AttemptFailure),
}

/// The steps of one attempt that are under way.
pub(super) struct StepRunner {
    pub(super) context: AttemptContext,
    pub(super) capture: OutputCapture,
    /// The use of the machine by the program.
    pub(super) usage: UsageRecord,
    /// Cancelled when the session must close.
    pub(super) end_session: CancellationToken,
    /// Cancelled when the progress of the image matters no longer.
    image_over: CancellationToken,
    /// Cancelled when the program has ended.
    pub(super) program_over: CancellationToken,
    /// Cancelled when everything is read that the program reported of its progress.
    pub(super) report_read_out: CancellationToken,
    /// Sends to a Muster miner; `None` for another miner, which understands none of Muster's own messages.
    pub(super) muster: Option<MinerOutlet>,
    steps: FuturesUnordered<BoxFuture<'static, StepResult>>,
}

impl StepRunner {
    pub(super) fn new(context: AttemptContext, capture: OutputCapture, muster: Option<MinerOutlet>) -> Self {
        Self {
            context,
            capture,
            usage: UsageRecord::default(),
            end_session: CancellationToken::new(),
            image_over: CancellationToken::new(),
            program_over: CancellationToken::new(),
            report_read_out: CancellationToken::new(),
            muster,
            steps: FuturesUnordered::new(),
        }
    }

    /// The result of the step that ends next; `None` while no step is under way. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<StepResult> {
        self.steps.next().await
    }

    /// Sends progress and output to a Muster miner for as long as the attempt lives.
    pub(super) fn send_live_updates(&self) {
        let Some(miner) = self.muster.clone() else { return };
        let (live, clock) = (self.context.live.clone(), Arc::clone(self.context.clock()));
        let attempt = self.context.attempt();
        self.begin_until_called_off(async move {
            live.send_all(attempt, miner, clock).await;
            StepResult::Nothing
        });
    }

    pub(super) fn prepare_image(&self, name: Option<String>, private: Option<OfferExtension>) {
        let preparing = steps::prepare_image(self.context.clone(), name, private);
        self.begin_until_called_off(async move {
            match preparing.await {
                Ok((engine, SoughtImage::None)) => StepResult::ImageReady(engine, None),
                Ok((engine, SoughtImage::Here(image))) => StepResult::ImageReady(engine, Some(image)),
                Ok((engine, SoughtImage::AtRegistry(registry))) => StepResult::ImageMissing(engine, registry),
                Err(failure) => StepResult::Failed(failure),
            }
        });
    }

    pub(super) fn fetch_image(&self, engine: ContainerEngine, name: String, private: Option<OfferExtension>) {
        let context = self.context.clone();
        self.begin_until_called_off(async move {
            match steps::fetch_image(context, &engine, name, private).await {
                Ok(image) => StepResult::ImageReady(engine, Some(image)),
                Err(failure) => StepResult::Failed(failure),
            }
        });
    }

    /// Repeats the progress of the image until the inputs are placed, so that a miner that waits for a slow registry
    /// distinguishes it from an executor that is lost.
    pub(super) fn repeat_image_progress(&self) {
        let (live, clock) = (self.context.live.clone(), Arc::clone(self.context.clock()));
        let over = self.image_over.clone();
        self.begin_until_called_off(async move {
            let repeating = async {
                loop {
                    live.repeat_progress(ProgressOf::ImagePull);
                    clock.sleep(IMAGE_PROGRESS_EVERY).await;
                }
            };
            over.run_until_cancelled(repeating).await;
            StepResult::Nothing
        });
    }

    pub(super) fn place_inputs(&self, request: &Arc<RequestedJob>) {
        self.image_over.cancel();
        let placing = steps::place_inputs(Arc::clone(request), self.context.clone());
        self.begin(async move {
            match placing.await {
                Ok(placed) => StepResult::Placed(Box::new(placed)),
                Err(failure) => StepResult::Failed(failure),
            }
        });
    }

    /// Sends the program's last report, if it was not sent and there is a connection.
    pub(super) async fn send_last_report(&mut self) {
        if let Some(miner) = &self.muster
            && let Some(report) = self.context.live.take_report(self.context.attempt())
        {
            miner.try_send(&report).await;
        }
    }

    /// Collects the artifacts of a job.
    pub(super) fn collect(&self, job: &PlacedJob) {
        let folders = job.workspace.folders().clone();
        let lists_outputs = self.muster.is_some();
        let request = Arc::clone(&job.request);
        let collecting = steps::collect_outputs(request, folders, self.context.clone(), lists_outputs);
        self.begin(async move {
            match collecting.await {
                Ok(outputs) => StepResult::Collected(Box::new(outputs)),
                Err(failure) => StepResult::Failed(failure),
            }
        });
    }

    /// Uploads the outputs of a job whose program ended well.
    pub(super) fn upload(&self, job: &PlacedJob) {
        let folders = job.workspace.folders().clone();
        let uploading = steps::upload_outputs(Arc::clone(&job.request), folders, self.context.clone());
        self.begin(async move {
            let (uploaded, failure) = uploading.await;
            StepResult::Uploaded(uploaded, failure)
        });
    }

    /// Uploads the outputs that a failed job has left and that its user asks for. Returns whether there are any.
    #[must_use]
    pub(super) fn upload_left(&self, job: &PlacedJob) -> bool {
        if self.muster.is_none() || job.request.layout.streaming.is_some() {
            return false;
        }
        let folders = job.workspace.folders().clone();
        let Some(left) = steps::find_left_outputs(&job.request.job, &folders) else {
            return false;
        };
        let context = self.context.clone();
        self.begin(async move {
            let (uploaded, failure) = steps::upload_all(&left, &folders, &context).await;
            if let Some(failure) = failure {
                tracing::info!(
                    message = failure.message,
                    "an output of the failed job was not delivered"
                );
            }
            StepResult::Uploaded(uploaded, None)
        });
        true
    }

    /// Ends the attempt: the state machine asked for work that the attempt's data does not allow.
    pub(super) fn report_defect(&self, effect: &'static str) {
        let message = format!("the executor has nothing to {effect} at this stage");
        let failure =
            AttemptFailure::horde(HordeFailureReason::UnhandledException, JobStage::Unknown, message);
        self.begin(async move { StepResult::Failed(failure) });
    }

    pub(super) fn begin(&self, step: impl Future<Output = StepResult> + Send + 'static) {
        self.steps.push(Box::pin(step));
    }

    /// Begins a step that may be dropped in the middle.
    pub(super) fn begin_until_called_off(&self, step: impl Future<Output = StepResult> + Send + 'static) {
        let called_off = self.context.called_off.clone();
        self.begin(async move {
            tokio::select! {
                () = called_off.cancelled() => StepResult::Nothing,
                result = step => result,
            }
        });
    }
}
