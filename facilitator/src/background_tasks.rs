//! Starts the facilitator's background work: loops that end when the process is asked to stop.

use muster_process::Tasks;

/// Runs `work` under `name` until it ends or `tasks` is asked to stop.
pub(crate) fn spawn_until_stopped(
    tasks: &Tasks,
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) {
    let stop = tasks.token();
    tasks.spawn(name, async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
    });
}
