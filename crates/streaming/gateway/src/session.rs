//! One session from its job to its end: it is started, checked, watched and closed.

use std::sync::Arc;
use std::time::Duration;

use muster_process::certificate;
use muster_protocol::MinerKey;
use muster_store::StoreError;

use muster_session_pool::Event;
use tokio::sync::{mpsc, oneshot};

use crate::backend::{JobNews, StreamingJobOrder};
use crate::scheduler::{SchedulerCommand, SessionEnd, SessionStart};
use crate::state::GatewayState;
use crate::store::SessionRow;
use muster_sealed_client::{AddressPermit, SealedSession, SessionParameters};

/// News of one job that may wait to be received.
const NEWS_CAPACITY: usize = 8;

/// Brings a session up and watches it until it has died or the scheduler has closed it.
pub(crate) async fn run(state: Arc<GatewayState>, start: SessionStart, closed: oneshot::Receiver<()>) {
    tokio::select! {
        _ = closed => {}
        event = live(&state, &start) => state.scheduler.report(start.pool, event),
    }
}

/// Brings a session up and watches it. Returns the event that ended it.
async fn live(state: &GatewayState, start: &SessionStart) -> Event {
    let (sender, mut news) = mpsc::channel(NEWS_CAPACITY);
    let limit = Duration::from_secs(state.settings.start_s);
    let started = tokio::select! {
        started = bring_up(state, start, None, sender, &mut news) => started,
        () = state.clock.sleep(limit) => Err(format!("it did not come up within {} s", limit.as_secs())),
    };
    let line = match started {
        Ok(line) => Arc::new(line),
        Err(reason) => return Event::Unusable(start.session, reason),
    };
    if let Err(error) = record_opening(state, &line).await {
        let reason = format!("the store does not accept it: {error}");
        return Event::Unusable(start.session, reason);
    }
    tracing::info!(session = %line.id(), model = start.service.model, miner = %line.miner(), job = %start.job,
        attempt = %line.attempt(), address = line.address(), "a session serves");
    let command = SchedulerCommand::AddSession(start.pool, start.session, Arc::clone(&line));
    state.scheduler.send(command);
    watch(state, start, &line, &mut news).await
}

/// Orders the job of a session, from `miner` if it names one, and opens the session once the miner attests it.
pub(crate) async fn bring_up(
    state: &GatewayState,
    start: &SessionStart,
    miner: Option<MinerKey>,
    sender: mpsc::Sender<JobNews>,
    news: &mut mpsc::Receiver<JobNews>,
) -> Result<SealedSession, String> {
    let names = ["muster-gateway".to_owned()];
    let made = certificate::make_self_signed(&names).map_err(|error| error.to_string())?;
    let lifetime = Duration::from_secs(state.settings.session_s);
    let order = StreamingJobOrder {
        job: start.job,
        service: start.service.clone(),
        certificate: made.pem,
        lifetime,
        start_limit: Duration::from_secs(state.settings.start_s),
        miner,
        news: sender,
    };
    state.backend.start_job(order).await?;
    match news.recv().await {
        None => Err("its job was forgotten".to_owned()),
        Some(JobNews::Ended { why, .. }) => Err(why),
        Some(JobNews::Closed(_)) => Err("its session was closed before it served".to_owned()),
        Some(JobNews::Ready { miner, ready }) => {
            let opening = SessionParameters {
                me: state.backend.validator(),
                job: start.job,
                service: &start.service,
                identity: &made.identity,
                until: state.clock.now().plus(lifetime),
                skew: state.settings.skew(),
                permits: AddressPermit(&|host, address| state.backend.permits_address(host, address)),
                clock: &state.clock,
                tasks: &state.tasks,
            };
            SealedSession::open(&opening, miner, *ready).await
        }
    }
}

/// Stores a session before it answers anything.
pub(crate) async fn record_opening(state: &GatewayState, line: &SealedSession) -> Result<(), StoreError> {
    let row = SessionRow {
        session: line.id(),
        job: line.job(),
        miner: line.miner(),
        model: line.service().model.clone(),
        address: line.address().to_owned(),
        attestation: line.attestation().to_owned(),
        opened_at: state.clock.now(),
        closed_at: None,
        closed_because: None,
        close: None,
        fault: None,
    };
    state.store.insert_session(&row).await
}

/// Reports the health of a session that serves, until its job has ended.
async fn watch(
    state: &GatewayState,
    start: &SessionStart,
    line: &SealedSession,
    news: &mut mpsc::Receiver<JobNews>,
) -> Event {
    let interval = Duration::from_secs(state.settings.health_s);
    let mut healthy = line.healthy_answers();
    loop {
        keep_other_proofs(state, line).await;
        tokio::select! {
            received = news.recv() => match received {
                // The session closed without being asked: its time is over, or its program ended. The end of its job
                // follows.
                Some(JobNews::Closed(statement)) => line.set_close_from_miner(statement),
                // A second `Ready` means that the job moved: the session that was attested is no longer at its address.
                None | Some(JobNews::Ended { .. } | JobNews::Ready { .. }) => return Event::Died(start.session),
            },
            () = state.clock.sleep(interval) => {
                // An answer that was proven since the last look shows the session's health, too, unless it is an error
                // of the engine's.
                let before = std::mem::replace(&mut healthy, line.healthy_answers());
                let health = if before < healthy { Ok(()) } else { line.check_health().await };
                if let Err(reason) = &health {
                    tracing::warn!(session = %line.id(), reason, "a session failed a health check");
                }
                state.scheduler.report(start.pool, Event::Health(start.session, health.is_ok()));
            }
        }
    }
}

/// Stores the proofs that the session gave of other exchanges than answers. Its numbers have no gaps, and an audit
/// shows all of them.
pub(crate) async fn keep_other_proofs(state: &GatewayState, line: &SealedSession) {
    let others = line.take_other_proofs();
    if others.is_empty() {
        return;
    }
    let kept = state
        .store
        .put_other_proofs(line.id(), &others, state.clock.now())
        .await;
    if let Err(error) = kept {
        state.fail(error);
    }
}

/// Closes a session once none of its answers is under way, or its time is over. Its close statement is stored, then its
/// job ends.
pub(crate) async fn close(state: &GatewayState, end: SessionEnd) {
    let mut is_closed = false;
    if let Some(line) = end.line {
        // A session that is presumed dead may be alive, and closing it would cut the answers that still arrive.
        tokio::select! {
            () = line.wait_idle() => {}
            () = state.clock.sleep_until(line.not_after()) => {}
            () = state.tasks.token().cancelled_owned() => {}
        }
        let (statement, fault) = line.close().await;
        state.nonces.forget(line.id());
        keep_other_proofs(state, &line).await;
        is_closed = statement.is_some();
        if let Some(fault) = &fault {
            tracing::warn!(session = %line.id(), miner = %line.miner(), fault, "a session did not close correctly");
        }
        let stored = state
            .store
            .close_session(
                line.id(),
                end.reason.text(),
                statement.as_deref(),
                fault.as_deref(),
                state.clock.now(),
            )
            .await;
        if let Err(error) = stored {
            state.fail(error);
        }
    }
    state.backend.end_job(end.job, end.reason.text(), is_closed).await;
}
