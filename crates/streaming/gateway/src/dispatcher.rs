//! The task that runs the scheduler: it receives commands, keeps the time, and carries out the scheduler's actions.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{OptionFuture, join_all};
use muster_process::SharedClock;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::scheduler::{SchedulerCommand, SessionAction, SessionScheduler};
use crate::session;
use crate::state::GatewayState;

/// How long sessions may take to give their close statements when the gateway stops.
const CLOSE_LIMIT: Duration = Duration::from_secs(4);

/// Runs the scheduler until the gateway stops.
pub(crate) async fn run(
    state: Arc<GatewayState>,
    mut scheduler: SessionScheduler,
    mut commands: mpsc::UnboundedReceiver<SchedulerCommand>,
) {
    let clock = SharedClock::clone(&state.clock);
    let stop = state.tasks.token();
    let mut room = state.backend.room_changes();
    let mut waiting = state.backend.waiting_jobs();
    carry_out(&state, scheduler.tick(clock.now()));
    loop {
        let wake = scheduler.wake(clock.now());
        let wake = OptionFuture::from(wake.map(|at| clock.sleep_until(at)));
        let actions = tokio::select! {
            () = stop.cancelled() => break,
            command = commands.recv() => match command {
                Some(command) => scheduler.handle(command, clock.now()),
                None => scheduler.tick(clock.now()),
            },
            // The validator outlives its gateway.
            Ok(()) = room.changed() => scheduler.note_room(clock.now()),
            Ok(()) = waiting.changed() => {
                let classes = waiting.borrow_and_update().clone();
                scheduler.note_waiting_jobs(&classes, clock.now())
            }
            Some(()) = wake => scheduler.tick(clock.now()),
        };
        carry_out(&state, actions);
    }
    let ends = scheduler.stop(clock.now());
    // The next process ends the jobs of sessions that take longer.
    let _ = timeout(
        CLOSE_LIMIT,
        join_all(ends.into_iter().map(|end| session::close(&state, end))),
    )
    .await;
}

fn carry_out(state: &Arc<GatewayState>, actions: Vec<SessionAction>) {
    for action in actions {
        let shared = Arc::clone(state);
        match action {
            SessionAction::Start(start, closed) => {
                drop(state.tasks.spawn("session", session::run(shared, *start, closed)));
            }
            SessionAction::Close(end) => {
                let closing = async move { session::close(&shared, end).await };
                drop(state.tasks.spawn("session's end", closing));
            }
        }
    }
}
