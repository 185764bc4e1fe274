//! The connection to the facilitator: what it is made of, and what it sends beside status updates.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use muster_cross_checks::CrossChecks;
use muster_facilitator_link::live_output::LiveOutput;
use muster_facilitator_link::{FacilitatorLink, FacilitatorOrder};
use muster_gateway::Gateway;
use muster_grading_runner::store::GradingStore;
use muster_process::error::Causes;
use tokio::sync::{mpsc, watch};

use crate::LinkState;
use crate::driver::JobDrivers;
use crate::intake::jobs::JobIntake;
use crate::intake::orders::take_orders;
use crate::validator_state::ValidatorState;

/// The parts of the validator of which the facilitator receives news.
pub(crate) struct FacilitatorNews {
    pub(crate) drivers: Arc<JobDrivers>,
    pub(crate) live_output: Arc<LiveOutput>,
    pub(crate) gateway: Option<Gateway>,
    pub(crate) grading: GradingStore,
    pub(crate) checks: CrossChecks,
}

/// Orders of the facilitator that may wait to be taken; further ones wait in the socket.
const MAX_WAITING_ORDERS: usize = 16;

/// Starts the link to the facilitator, and takes its orders. Returns the state of the connection.
pub(crate) fn start(state: &Arc<ValidatorState>, news: FacilitatorNews) -> watch::Receiver<LinkState> {
    let (orders, taken) = mpsc::channel(MAX_WAITING_ORDERS);
    let (link, shown) = watch::channel(LinkState::default());
    let intake = JobIntake::new(Arc::clone(state), Arc::clone(&news.drivers));
    let taking = take_orders(Arc::clone(state), intake, news.checks.clone(), taken);
    state.spawn("facilitator orders", taking);
    let linking = facilitator_link(state, news, orders, link).run();
    state.spawn("facilitator link", async move {
        linking.await;
        Ok(())
    });
    shown
}

/// The link to the facilitator, which is not dialled yet. Its orders go to `orders`, the connection's state to `link`.
fn facilitator_link(
    state: &Arc<ValidatorState>,
    news: FacilitatorNews,
    orders: mpsc::Sender<FacilitatorOrder>,
    link: watch::Sender<LinkState>,
) -> FacilitatorLink {
    let config = &state.config.facilitator;
    let (failing, offering, drivers) = (Arc::clone(state), Arc::clone(&news.drivers), news.drivers);
    let grading = news.grading;
    FacilitatorLink {
        url: config.url.clone(),
        heartbeat: Duration::from_secs(config.heartbeat_s),
        answer_within: Duration::from_secs(config.answer_s),
        keypair: state.keypair.clone(),
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
        live_output: news.live_output,
        store: Arc::clone(&state.store),
        checks: news.checks,
        gateway: news.gateway.as_ref().map(Gateway::notice),
        capacity: Box::new(move || offering.capacity_notice()),
        miners: Box::new(move || {
            let (drivers, grading) = (Arc::clone(&drivers), grading.clone());
            async move {
                drivers.list_miners(&grading).await.unwrap_or_else(|error| {
                    tracing::warn!(error = %Causes(&error), "the facilitator receives no notices about miners' machines");
                    Vec::new()
                })
            }
            .boxed()
        }),
        orders,
        state: link,
        on_store_failure: Box::new(move |error| failing.fail(error)),
    }
}
