//! The messages that a session sends on its own: jobs, cheat reports and cancellations.

use muster_facilitator_core::traces::set_context;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{
    FromFacilitator, JobStatusUpdate, RejectionDetails, StatusMetadata, UserJobRequest,
};
use muster_protocol::wire::muster::{CancelRequest, JobExtension};
use muster_protocol::{Feature, JobId, JobRejectionReason, JobStatus, ParticipantType};

use super::services::LIMITS;
use super::session::{SessionEnd, ValidatorSession};
use crate::change_notices::Notice;

/// The longest frame, in bytes, that ComputeHorde's validators accept. They break the connection at a longer one, and
/// would do so again after every reconnection.
const COMPUTEHORDE_MAX_FRAME: usize = 1024 * 1024;

/// The reason in a cancellation.
const CANCELLED_BY_USER: &str = "its user no longer wants it";

impl ValidatorSession {
    /// Sends everything that is stored for the validator and due over this connection.
    pub(super) async fn send_due(&mut self) -> Result<(), SessionEnd> {
        let validator = self.validator();
        let unanswered = self.services.store.unanswered_jobs(validator).await?;
        let now = self.services.clock.now();
        for job in self.registration.take_due(&unanswered, now) {
            self.deliver(job).await?;
        }
        for (job, report) in self.services.store.due_reports(validator).await? {
            self.session
                .send(&FromFacilitator::Cheated(Box::new(report)))
                .await?;
            let now = self.services.clock.now();
            self.services.store.mark_report_delivered(job, now).await?;
        }
        for due in self.services.store.due_answer_reports(validator).await? {
            let report = Box::new(due.report.clone());
            self.session.send(&FromFacilitator::Cheated(report)).await?;
            let now = self.services.clock.now();
            self.services
                .store
                .mark_answer_report_delivered(&due, now)
                .await?;
        }
        let running = self.services.store.jobs_to_cancel(validator).await?;
        self.stopping.retain(|job| running.contains(job));
        for job in running {
            if self.stopping.insert(job) {
                self.send_cancel(job).await?;
            }
        }
        Ok(())
    }

    /// Asks a Muster validator to stop a job. ComputeHorde's validators know no such message, so they get none.
    pub(super) async fn send_cancel(&self, job: JobId) -> Result<(), SessionEnd> {
        if self.session.is_muster() {
            let cancel = CancelRequest::new(job, CANCELLED_BY_USER);
            self.session.send(&FromFacilitator::Cancel(cancel)).await?;
        }
        Ok(())
    }

    /// Sends one job, unless it has ended or been answered since it was announced.
    pub(super) async fn deliver(&mut self, job: JobId) -> Result<(), SessionEnd> {
        let Some(stored) = self.services.store.job(job).await? else {
            return Ok(());
        };
        if stored.validator != self.validator() || stored.history.len() > 1 {
            return Ok(());
        }
        let mut request = stored.request;
        let features = self.session.features();
        if let Some(feature) = features.lacks(request.needed_features()) {
            // The validator was exchanged for an older one since the job was taken.
            let message = format!(
                "the validator does not know {:?}, which the job's terms or outputs need; submit the job without them, or \
                 to another validator",
                feature.name()
            );
            return self.reject(&request, message).await;
        }
        if !features.has(Feature::Terms) {
            request.muster = None;
        }
        if let Some(extension) = &mut request.muster {
            extension.fit_to(features);
        }
        request.muster = request
            .muster
            .filter(|extension| **extension != JobExtension::default());
        set_context(&mut request, features, self.services.trace_all);
        let size = encode(&request).len();
        let limit = self.max_frame();
        if size > limit {
            let message = format!(
                "the job is {size} bytes long, and its validator takes {limit}; give large inputs by URL instead of inline"
            );
            return self.reject(&request, message).await;
        }
        tracing::info!(%job, size, "delivering a job");
        let frame = FromFacilitator::Job(Box::new(request));
        Ok(self.session.send(&frame).await?)
    }

    fn max_frame(&self) -> usize {
        if self.session.is_muster() {
            LIMITS.max_frame
        } else {
            COMPUTEHORDE_MAX_FRAME
        }
    }

    /// Ends a job that this validator cannot be given.
    async fn reject(&self, request: &UserJobRequest, message: String) -> Result<(), SessionEnd> {
        tracing::warn!(job = %request.uuid, message, "a job cannot be handed to its validator");
        let details = RejectionDetails {
            rejected_by: ParticipantType::Facilitator,
            reason: JobRejectionReason::Unknown,
            message,
            context: None,
        };
        let update = JobStatusUpdate {
            uuid: request.uuid,
            status: JobStatus::Rejected,
            metadata: Some(StatusMetadata {
                job_rejection_details: Some(details),
                ..StatusMetadata::default()
            }),
        };
        let now = self.services.clock.now();
        self.services.store.record(self.validator(), &update, now).await?;
        self.services.notifier.publish(Notice::Changed(request.uuid));
        Ok(())
    }
}
