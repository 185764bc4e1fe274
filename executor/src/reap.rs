//! What killed executors of this configuration left behind: see [`muster_engine::reap`](mod@muster_engine::reap).

use muster_engine::Engine;
pub use muster_engine::reap::{ReapError, Reaped};

use crate::config::Config;

/// Removes the containers and folders of executors of this `work_dir` whose processes are gone. Safe at any time, beside
/// running executors and beside another call of itself.
///
/// # Errors
/// The engine or `work_dir` cannot be used at all; what cannot be removed is counted in [`Reaped::left`].
pub async fn reap(config: &Config) -> Result<Reaped, ReapError> {
    let engine = Engine::connect(&config.engine).await?;
    muster_engine::reap(&engine, &config.work_dir).await
}
