//! One session from its job to its end: it is started, checked, watched and closed.

use std::sync::Arc;
use std::time::Duration;

use muster_store::StoreError;

use muster_session_pool::Event;
use tokio::sync::{mpsc, oneshot};

use crate::backend::JobNews;
use crate::scheduler::{SchedulerCommand, SessionEnd, SessionStart, ShortenedSession};
use crate::session_opening::{OpeningFailure, SessionOpening};
use crate::state::GatewayState;
use crate::store::SessionRow;
use muster_sealed_client::{AddressPermit, SealedSession};

/// Sessions of one model that are shortened in a row, each at once after the one before: miners' offers may differ.
const MAX_SHORTENED: u32 = 3;

/// Brings a session up and watches it until it has died or the scheduler has closed it.
pub(crate) async fn run(state: Arc<GatewayState>, start: SessionStart, closed: oneshot::Receiver<()>) {
    tokio::select! {
        _ = closed => {}
        event = live(&state, &start) => state.scheduler.report(start.pool, event),
    }
}

/// Brings a session up and watches it. Returns the event that ended it.
async fn live(state: &GatewayState, start: &SessionStart) -> Event {
    let mut times = state.settings.session_times();
    if let Some(shortened) = start.shortened {
        times.lifetime = shortened.lifetime;
    }
    let opening = SessionOpening {
        backend: &*state.backend,
        job: start.job,
        service: &start.service,
        miner: None,
        times,
        permits: AddressPermit(&|host, address| state.backend.permits_address(host, address)),
        skew: state.settings.skew(),
        clock: &state.clock,
        tasks: &state.tasks,
    };
    let (line, mut news) = match opening.open().await {
        Ok((line, news)) => (Arc::new(line), news),
        Err(failure) => return explain_failure(state, start, times.lifetime, failure),
    };
    if let Err(error) = record_opening(state, &line).await {
        let reason = format!("the store does not accept it: {error}");
        state.fail(error);
        return Event::Unusable(start.session, reason);
    }
    tracing::info!(session = %line.id(), model = start.service.model, miner = %line.miner(), job = %start.job,
        attempt = %line.attempt(), address = line.address(), "a session serves");
    let command = SchedulerCommand::AddSession(start.pool, start.session, Arc::clone(&line));
    state.scheduler.send(command);
    watch(state, start, &line, &mut news).await
}

/// The event of a session that did not open. If an executor is free for a shorter one, the next one is that much
/// shorter.
fn explain_failure(
    state: &GatewayState,
    start: &SessionStart,
    lifetime: Duration,
    failure: OpeningFailure,
) -> Event {
    let OpeningFailure { why, no_room } = failure;
    let session = start.session;
    let Some(no_room) = no_room else {
        return Event::Unusable(session, why);
    };
    let times = start.shortened.map_or(0, |shortened| shortened.times);
    let shorter = no_room
        .shorter_by
        .filter(|_| times < MAX_SHORTENED)
        .and_then(|by| state.settings.shorten(lifetime, by));
    if let Some(lifetime) = shorter {
        let seconds = lifetime.as_secs();
        tracing::info!(
            session = session.0,
            model = start.service.model,
            seconds,
            why,
            "the next session is shorter"
        );
        let shortened = ShortenedSession {
            lifetime,
            times: times.saturating_add(1),
        };
        state
            .scheduler
            .send(SchedulerCommand::ShortenNext(start.pool, shortened));
        return Event::TooLong(session);
    }
    let expected = no_room.expected.map(|time| state.clock.now().plus(time));
    Event::NoRoom {
        session,
        why,
        expected,
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
                // A session that does not answer its health check shows no proofs either, and is no withholder yet.
                if health.is_ok() && line.fetch_missing().await {
                    tracing::warn!(session = %line.id(), miner = %line.miner(),
                        "a session withholds a proof: it takes no more requests");
                    state.scheduler.drain_session(start.job);
                }
            }
        }
    }
}

/// Stores the proofs that the session gave of other exchanges than answers. Its numbers have no gaps, and an audit
/// shows all of them.
pub(crate) async fn keep_other_proofs(state: &GatewayState, line: &SealedSession) {
    let others = line.other_proofs();
    if others.is_empty() {
        return;
    }
    let kept = state
        .store
        .put_other_proofs(line.id(), &others, state.clock.now())
        .await;
    // They are forgotten once they are stored: this may end in between.
    match kept {
        Ok(()) => line.forget_other_proofs(&others),
        Err(error) => state.fail(error),
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
