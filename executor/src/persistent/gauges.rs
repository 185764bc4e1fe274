//! The gauges of a persistent executor: its engine, its connection and its leases.

use std::sync::Arc;
use std::time::Duration;

use muster_containers::ContainerEngine;

use super::connection::PersistentExecutor;

/// How often a persistent executor is measured.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// The time that the engine has for its answer.
const ENGINE_LIMIT: Duration = Duration::from_secs(3);

/// Sets the gauges of a persistent executor until its task is dropped.
pub(crate) async fn measure(executor: Arc<PersistentExecutor>) {
    loop {
        let reachable = is_engine_reachable(&executor).await;
        metrics::gauge!("muster_executor_engine_reachable").set(u32::from(reachable));
        metrics::gauge!("muster_executor_miner_connected").set(u32::from(executor.is_connected()));
        metrics::gauge!("muster_executor_leases").set(executor.count_leases());
        metrics::gauge!("muster_executor_draining").set(u32::from(executor.is_draining()));
        executor.process.clock.sleep(MEASURE_EVERY).await;
    }
}

async fn is_engine_reachable(executor: &PersistentExecutor) -> bool {
    let asking = async {
        match executor.process.cache.last_engine() {
            Some(engine) => engine.ping().await.is_ok(),
            None => ContainerEngine::connect(&executor.process.config.engine)
                .await
                .is_ok(),
        }
    };
    tokio::time::timeout(ENGINE_LIMIT, asking).await.unwrap_or(false)
}
