//! The session of a streaming job: the steps that open it and serve it.

use std::sync::Arc;

use muster_protocol::wire::miner::{GraderTerms, StreamingDetails};
use tokio::sync::oneshot;

use super::attempt_stages::{PlacedStage, SessionStage};
use super::runner::{StepResult, StepRunner};
use crate::co_grader::{CoGrader, CoGraderSpec};
use crate::session::{self, OpenSession, SessionSetup};
use crate::steps::PlacedJob;

impl StepRunner {
    /// Opens the session of a streaming job. Returns whether the job has one that is not open yet.
    #[must_use]
    pub(super) fn open_session(&self, placed: &mut PlacedStage) -> bool {
        let SessionStage::Unopened(details) = &placed.session else {
            return false;
        };
        let (attested, answer) = oneshot::channel();
        let attester = self.muster.clone().map(|miner| (miner, answer));
        let setup = self.session_setup(&placed.job, StreamingDetails::clone(details), attester);
        placed.session = SessionStage::Opening(Some(attested));
        let end = self.end_session.clone();
        self.begin_until_called_off(async move {
            tokio::select! {
                () = end.cancelled() => StepResult::Nothing,
                opened = session::open(setup) => match opened {
                    Ok(open) => StepResult::SessionOpened(Box::new(open)),
                    Err(failure) => StepResult::Failed(failure),
                },
            }
        });
        true
    }

    fn session_setup(
        &self,
        job: &PlacedJob,
        details: StreamingDetails,
        attester: Option<session::Attester>,
    ) -> SessionSetup {
        let offer = &job.request.offer;
        let grader = details.muster.as_ref().and_then(|terms| terms.grader.clone());
        SessionSetup {
            engine: job.request.engine.clone(),
            container: job.container.clone(),
            folder: job.workspace.folders().sockets.clone(),
            attempt: self.context.attempt(),
            details,
            image: job.request.image.resolved.image.id,
            miner: offer.job_started_receipt_payload.miner_hotkey,
            validator: offer.job_started_receipt_payload.validator_hotkey,
            lifetime: job.request.layout.limits.execution,
            settings: self.context.config().streaming.clone(),
            attester,
            co_grader: grader.map(|terms| self.co_grader(job, terms)),
            clock: Arc::clone(self.context.clock()),
            tasks: self.context.process.tasks.clone(),
        }
    }

    fn co_grader(&self, job: &PlacedJob, terms: GraderTerms) -> CoGrader {
        CoGrader::new(CoGraderSpec {
            engine: job.request.engine.clone(),
            config: Arc::clone(self.context.config()),
            terms,
            attempt: self.context.attempt(),
            class: job.request.offer.executor_class,
            container: job.container.clone(),
            folders: job.workspace.folders().clone(),
            policy: job.request.layout.policy,
            gpus: job.gpu_uuids().to_vec(),
            clock: Arc::clone(self.context.clock()),
            tasks: self.context.process.tasks.clone(),
        })
    }

    /// Serves a session until it is over.
    pub(super) fn serve(&self, open: OpenSession) {
        let (end, called_off) = (self.end_session.clone(), self.context.called_off.clone());
        let (miner, clock) = (self.muster.clone(), Arc::clone(self.context.clock()));
        let serving = session::serve(open, end, called_off, miner, clock);
        self.begin(async move { StepResult::SessionClosed(serving.await) });
    }
}
