//! The validator behind its connection to the facilitator: jobs go to the intake, status updates come from the store's
//! outbox.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_cross_checks::CrossChecks;
use muster_facilitator_link::live_output::LiveOutput;
use muster_facilitator_link::{Acknowledgement, FacilitatorLink, LinkBackend, StatusUpdate};
use muster_gateway::Gateway;
use muster_grading_runner::store::GradingStore;
use muster_process::error::Causes;
use muster_protocol::wire::WireError;
use muster_protocol::wire::facilitator::{CheatReport, ToFacilitator, UserJobRequest};
use muster_protocol::wire::machines::MinerNotice;
use muster_protocol::wire::muster::{CancelRequest, CapacityNotice, GatewayNotice};
use muster_store::StoreError;
use tokio::sync::watch;

use crate::LinkState;
use crate::driver::JobDrivers;
use crate::intake::jobs::JobIntake;
use crate::state::ValidatorState;

/// The intake, the outbox and the gateway, as the link uses them.
pub(crate) struct FacilitatorBackend {
    pub(crate) state: Arc<ValidatorState>,
    pub(crate) intake: JobIntake,
    pub(crate) drivers: Arc<JobDrivers>,
    pub(crate) gateway: Option<Gateway>,
    pub(crate) grading: GradingStore,
    pub(crate) checks: CrossChecks,
    /// The state of the connection, for the status page.
    pub(crate) link: Arc<watch::Sender<LinkState>>,
}

/// Keeps the connection to the facilitator up until the validator stops.
pub(crate) async fn run_link(
    backend: FacilitatorBackend,
    live_output: Arc<LiveOutput>,
) -> Result<(), StoreError> {
    let state = Arc::clone(&backend.state);
    let config = &state.config.facilitator;
    let link = FacilitatorLink {
        url: config.url.clone(),
        heartbeat: Duration::from_secs(config.heartbeat_s),
        answer_within: Duration::from_secs(config.answer_s),
        keypair: state.keypair.clone(),
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
        live_output,
        backend: Arc::new(backend),
    };
    link.run().await;
    Ok(())
}

impl LinkBackend for FacilitatorBackend {
    fn take_job(
        &self,
        request: UserJobRequest,
        frame: String,
        acknowledged: BoxFuture<'static, ()>,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { self.intake.take(request, &frame, acknowledged).await })
    }

    fn refuse_malformed<'a>(
        &'a self,
        frame: &'a str,
        error: &'a WireError,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.intake.refuse_malformed(frame, error))
    }

    fn cancel_job<'a>(&'a self, request: &'a CancelRequest) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.intake.cancel(request))
    }

    fn keep_cheat_report<'a>(&'a self, report: &'a CheatReport) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.checks.take_report(report))
    }

    fn next_updates(
        &self,
        after: Option<i64>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<StatusUpdate>, StoreError>> {
        Box::pin(self.state.store.next_updates(after, limit))
    }

    fn acknowledge<'a>(&'a self, answers: &'a [Acknowledgement]) -> BoxFuture<'a, Result<(), StoreError>> {
        let now = self.state.clock.now();
        Box::pin(self.state.store.acknowledge(answers, now))
    }

    fn outbox_writes(&self) -> watch::Receiver<u64> {
        self.state.store.outbox_writes()
    }

    fn gateway_notice(&self) -> Option<GatewayNotice> {
        self.gateway.as_ref().map(Gateway::notice)
    }

    fn capacity_notice(&self) -> Option<CapacityNotice> {
        self.drivers.capacity_notice()
    }

    fn miner_notices(&self) -> BoxFuture<'_, Vec<MinerNotice>> {
        Box::pin(async move {
            self.drivers.list_miners(&self.grading).await.unwrap_or_else(|error| {
                tracing::warn!(error = %Causes(&error), "the facilitator is not told of the miners' machines");
                Vec::new()
            })
        })
    }

    fn next_news(&self, after: i64) -> BoxFuture<'_, Result<Vec<(i64, ToFacilitator)>, StoreError>> {
        Box::pin(self.checks.news_after(after))
    }

    fn note_connecting(&self) {
        self.link.send_replace(LinkState::Connecting);
    }

    fn note_connected(&self) {
        self.link.send_replace(LinkState::Connected);
    }

    fn note_lost(&self, reason: String) {
        self.link.send_replace(LinkState::Lost { reason });
    }

    fn fail(&self, error: StoreError) {
        self.state.fail(error);
    }
}
