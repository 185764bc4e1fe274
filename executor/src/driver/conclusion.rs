//! The end of an attempt: the container goes, the miner receives the result, and the job's files and GPUs are given
//! back.

use std::time::Duration;

use muster_process::error::Causes;
use muster_protocol::job::CompletionReport;
use muster_protocol::wire::executor_socket::ExecutorToMiner;
use muster_protocol::{AttemptId, JobTrace, ParticipantType};
use muster_span_export::{SpanBatch, spans_of};
use tokio::time::timeout;

use super::Driver;
use super::attempt_stages::AttemptStage;
use super::runner::StepResult;
use crate::attempt_report::AttemptReport;
use crate::attempt_state::Conclusion;
use crate::error::Error;
use crate::job_sandbox::container_name;
use crate::metrics::count_end;
use crate::steps::PreparedImage;
use crate::workspace::Workspace;

/// How long removing the container may take before the miner receives the result all the same.
const TIDY_LIMIT: Duration = Duration::from_secs(30);

impl Driver {
    /// Ends the attempt. The container goes first: when the miner receives the result, the machine is free again.
    pub(super) async fn conclude(mut self, conclusion: Conclusion) -> Result<(), Error> {
        count_end(&conclusion);
        let mut messages = self.end_messages(&conclusion);
        if self.link.is_journaled() {
            // Durable before the container goes.
            self.link.note_end(std::mem::take(&mut messages));
        }
        let tidied = timeout(TIDY_LIMIT, self.tidy()).await.unwrap_or_default();
        if !tidied {
            tracing::error!(
                container = self.container(),
                "the container may still be there; the next executor tries again"
            );
        }
        self.send_close().await;
        self.steps.send_last_report().await;
        for message in messages {
            self.link.report(message).await;
        }
        let Self {
            context, link, stage, ..
        } = self;
        let folders = match stage {
            AttemptStage::Placed(placed) => placed.job.give_back(&context, tidied).await,
            AttemptStage::AwaitingOffer
            | AttemptStage::Offered(_)
            | AttemptStage::Prepared(_)
            | AttemptStage::Requested(_) => None,
        };
        let lost = match &conclusion {
            Conclusion::Finished | Conclusion::Failed(_) => link.finish().await.err(),
            Conclusion::Abandoned(_) => {
                link.close().await;
                None
            }
        };
        // With them goes the journal, whose end the miner has now.
        if let Some(Err(error)) = folders.map(Workspace::remove) {
            tracing::warn!(error = %Causes(&error), "files of the job are left behind");
        }
        match (conclusion, lost) {
            (Conclusion::Abandoned(reason), _) => Err(reason.into()),
            (Conclusion::Finished | Conclusion::Failed(_), Some(reason)) => Err(Error::MinerLost(reason)),
            (Conclusion::Finished, None) => Ok(()),
            (Conclusion::Failed(failure), None) => {
                tracing::info!(message = failure.message, "the job failed and was reported");
                Error::unfit(&failure).map_or(Ok(()), Err)
            }
        }
    }

    /// The last messages of the attempt.
    fn end_messages(&mut self, conclusion: &Conclusion) -> Vec<ExecutorToMiner> {
        let (outputs, printed) = match &mut self.stage {
            AttemptStage::Placed(placed) => (placed.outputs.take(), placed.printed.take()),
            AttemptStage::AwaitingOffer
            | AttemptStage::Offered(_)
            | AttemptStage::Prepared(_)
            | AttemptStage::Requested(_) => (None, None),
        };
        let (artifacts, uploaded, listing, specs) = match outputs {
            Some(outputs) => (
                outputs.artifacts,
                outputs.uploaded,
                outputs.listing,
                Some(outputs.specs),
            ),
            None => Default::default(),
        };
        let now = self.context.clock().now();
        let trace = self
            .traceparent
            .map(|context| self.stage_clock.trace(context, now));
        if let Some(trace) = &trace {
            export_trace(trace, self.attempt(), conclusion);
        }
        let report = AttemptReport {
            attempt: self.attempt(),
            image: self.image_name(),
            ran: self.stage.image().map(PreparedImage::to_job_image),
            printed: self.steps.capture.printed(),
            artifacts,
            uploaded,
            muster: self.link.is_muster(),
            specs,
            trace,
            completion: self
                .steps
                .usage
                .report(listing)
                .map(|completion| CompletionReport {
                    printed,
                    ..completion
                }),
            hidden_folders: self.context.config().own_folders(),
        };
        report.messages(conclusion)
    }

    /// Removes the container, and once more if a step was making one meanwhile. Returns whether it is gone.
    async fn tidy(&mut self) -> bool {
        self.context.called_off.cancel();
        self.steps.end_program();
        let mut gone = self.remove_container().await;
        let mut made = false;
        while let Some(result) = self.steps.next().await {
            match result {
                StepResult::Exited(_) | StepResult::Failed(_) => made = true,
                StepResult::Placed(job) => {
                    // It is too late to run, but there may be a warm container for it.
                    self.stage = AttemptStage::of_placed(*job);
                    made = true;
                }
                StepResult::SessionClosed(close) => self.unsent_close = Some(close),
                StepResult::ImageReady(..)
                | StepResult::ImageMissing(..)
                | StepResult::SessionOpened(_)
                | StepResult::DiskFull(_)
                | StepResult::Stalled(_)
                | StepResult::CheckpointsKept
                | StepResult::OutputSent(_)
                | StepResult::Nothing
                | StepResult::Collected(_)
                | StepResult::Uploaded(..) => {}
            }
        }
        if made {
            gone = self.remove_container().await;
        }
        gone
    }

    async fn remove_container(&mut self) -> bool {
        let Some(engine) = self.stage.engine().cloned() else {
            return true;
        };
        let container = self.container();
        let removed = engine.remove(&container).await;
        if let Err(error) = &removed {
            tracing::error!(error = %Causes(error), "the container could not be removed");
        }
        removed.is_ok()
    }

    /// The name of the job's container, whether or not it exists yet.
    fn container(&self) -> String {
        match &self.stage {
            AttemptStage::Placed(placed) => placed.job.container.clone(),
            AttemptStage::AwaitingOffer
            | AttemptStage::Offered(_)
            | AttemptStage::Prepared(_)
            | AttemptStage::Requested(_) => container_name(&self.context.token),
        }
    }
}

/// Exports the stages of an attempt that has ended, if this process exports spans.
fn export_trace(trace: &JobTrace, attempt: AttemptId, conclusion: &Conclusion) {
    muster_span_export::export(|| SpanBatch {
        spans: spans_of(
            trace,
            ParticipantType::Executor,
            attempt.as_uuid(),
            Some(trace.traceparent.span),
        ),
        sampled: trace.traceparent.sampled,
        failed: match conclusion {
            Conclusion::Finished => None,
            Conclusion::Failed(failure) => Some(failure.message.clone()),
            Conclusion::Abandoned(reason) => Some(Error::from(reason.clone()).to_string()),
        },
        labels: vec![("muster.attempt", attempt.to_string())],
    });
}
