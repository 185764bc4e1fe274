//! The parts of the validator that lie in crates of their own, opened from what each of them needs: the gateway, the
//! checks of its answers, the cross-checks of users' jobs, and grading.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::FutureExt as _;
use muster_audit_runner::{AuditDeps, AuditRunner};
use muster_cross_checks::{CheckDeps, CrossChecks};
use muster_gateway::miner_sessions::MinerSessions;
use muster_gateway::{Gateway, GatewayDeps, GatewayError};
use muster_grading_runner::{GradingDeps, GradingRunner};
use muster_own_jobs::OwnJobs;
use muster_protocol::ValidatorKey;
use muster_store::StoreError;
use muster_verdict_exchange::{AdoptionRule, ExchangeDeps, VerdictExchange};
use tokio::sync::watch;

use crate::driver::JobDrivers;
use crate::miner_poll::poll_miners;
use crate::validator_state::ValidatorState;

/// Stops the validator; a part calls it when the store fails.
fn stop_on_failure(state: &Arc<ValidatorState>) -> Box<dyn Fn(StoreError) + Send + Sync> {
    let state = Arc::clone(state);
    Box::new(move |error| state.fail(error))
}

/// Opens the gateway; `None` if the configuration names no address for it.
pub(crate) async fn open_gateway(
    state: &Arc<ValidatorState>,
    own_jobs: OwnJobs,
) -> Result<Option<Gateway>, GatewayError> {
    let Some(bind) = state.config.gateway.bind else {
        return Ok(None);
    };
    let deps = GatewayDeps {
        http: state.config.http.clone(),
        backend: Arc::new(own_jobs),
        pool: state.store.pool(),
        writer: state.store.writer(),
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
        on_store_failure: stop_on_failure(state),
    };
    Gateway::open(bind, state.config.gateway.clone(), deps)
        .await
        .map(Some)
}

/// Sessions on the trusted miner, for the validator's own checks; `None` if the configuration names no such miner.
pub(crate) fn trusted_sessions(state: &ValidatorState, own_jobs: OwnJobs) -> Option<MinerSessions> {
    let own = state.config.trusted_miner.miner()?;
    Some(MinerSessions {
        backend: Arc::new(own_jobs),
        miner: own.miner,
        is_trusted: true,
        skew: state.config.gateway.skew(),
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
    })
}

/// Begins to log and to audit the answers of a gateway; `None` without one.
pub(crate) async fn open_audits(
    state: &Arc<ValidatorState>,
    gateway: Option<&Gateway>,
    trusted: Option<MinerSessions>,
) -> Result<Option<AuditRunner>, StoreError> {
    let Some(gateway) = gateway else {
        return Ok(None);
    };
    let deps = AuditDeps {
        gateway: gateway.clone(),
        services: state.config.gateway.services.clone(),
        trusted,
        subnet: Arc::clone(&state.subnet),
        barred: Arc::clone(&state.barred),
        store: Arc::clone(&state.store),
        keypair: state.keypair.clone(),
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
        on_store_failure: stop_on_failure(state),
    };
    AuditRunner::open(state.config.audit.clone(), deps)
        .await
        .map(Some)
}

/// The cross-checks of users' jobs, which nothing carries out yet.
pub(crate) fn cross_checks(
    state: &ValidatorState,
    own_jobs: OwnJobs,
    audits: Option<AuditRunner>,
) -> CrossChecks {
    let deps = CheckDeps {
        own_jobs: state.config.trusted_miner.miner().map(|_| own_jobs),
        subnet: Arc::clone(&state.subnet),
        audits,
        store: Arc::clone(&state.store),
        keypair: state.keypair.clone(),
        clock: Arc::clone(&state.clock),
    };
    CrossChecks::new(state.config.cross_checks.clone(), deps)
}

/// Starts grading: it waits for blocks that begin a batch, and for the operator's requests.
pub(crate) async fn open_grading(
    state: &Arc<ValidatorState>,
    drivers: &Arc<JobDrivers>,
    own_jobs: OwnJobs,
    gateway: Option<Gateway>,
) -> Result<GradingRunner, StoreError> {
    let (polling, drivers) = (Arc::clone(state), Arc::clone(drivers));
    let deps = GradingDeps {
        validator: state.key(),
        own_jobs,
        gateway,
        subnet: Arc::clone(&state.subnet),
        rules: Arc::clone(&state.rules),
        stakes: Arc::clone(&state.stakes),
        poll_miners: Box::new(move || {
            let (state, drivers) = (Arc::clone(&polling), Arc::clone(&drivers));
            async move { poll_miners(&state, &drivers).await }.boxed()
        }),
        pool: state.store.pool(),
        writer: state.store.writer(),
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
        on_store_failure: stop_on_failure(state),
    };
    GradingRunner::open(state.config.grading.clone(), deps).await
}

/// The exchange of verdicts with the validators that serve their pages at these addresses; `None` if it cannot ask
/// them. Without spot checks it scores nothing again.
pub(crate) fn verdict_exchange(
    state: &ValidatorState,
    audits: Option<AuditRunner>,
    peers: watch::Receiver<BTreeMap<ValidatorKey, SocketAddr>>,
) -> Option<VerdictExchange> {
    let calibrated = audits.clone();
    VerdictExchange::new(ExchangeDeps {
        subnet: Arc::clone(&state.subnet),
        peers,
        calibration: Box::new(move |model| calibrated.as_ref()?.calibration(model)),
        rescore: Box::new(move |model, pairs| {
            let audits = audits.clone();
            async move {
                let audits = audits.ok_or("this validator has no gateway")?;
                audits.rescore(&model, &pairs).await
            }
            .boxed()
        }),
        store: Arc::clone(&state.store),
        keypair: state.keypair.clone(),
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
        rule: AdoptionRule {
            requires_self_test: state.config.audit.require_self_test,
        },
    })
}
