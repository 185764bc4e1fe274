//! The folders that the executors of a machine share: measured for Prometheus, and cleared of inputs that no job has
//! used for long, also while no job comes.

use std::sync::Arc;
use std::time::Duration;

use muster_process::folders::report_folders;
use muster_process::{SharedClock, error::Causes};

use crate::config::Config;
use crate::context::ProcessContext;

/// The pause between two rounds.
const ROUND: Duration = Duration::from_secs(3_600);

/// Measures and clears the folders until the process stops.
pub(crate) async fn keep_folders(process: ProcessContext) {
    let ProcessContext {
        config,
        clock,
        shutdown,
        ..
    } = process;
    let folders = vec![
        ("work_dir", config.work_dir.clone()),
        ("images.cache_dir", config.images.cache_dir.clone()),
        ("gpus.claims_dir", config.gpus.claims_dir.clone()),
        ("transfer.cache_dir", config.transfer.cache_dir.clone()),
    ];
    let reporting = report_folders("executor", folders, ROUND, SharedClock::clone(&clock));
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = reporting => {}
        () = clear_inputs(config, clock) => {}
    }
}

async fn clear_inputs(config: Arc<Config>, clock: SharedClock) {
    loop {
        let (now, own) = (clock.now(), Arc::clone(&config));
        match tokio::task::spawn_blocking(move || own.transfer.collect_inputs(now)).await {
            Ok(Ok(done)) if done.removed > 0 => {
                tracing::info!(
                    removed = done.removed,
                    bytes = done.bytes,
                    "removed cached inputs"
                );
            }
            // The process stops, or there was nothing to do.
            Ok(Ok(_)) | Err(_) => {}
            Ok(Err(error)) => tracing::warn!(error = %Causes(&error), "old cached inputs stay"),
        }
        clock.sleep(ROUND).await;
    }
}

#[cfg(test)]
mod tests {
    use muster_process::{Clock as _, SystemClock};

    use super::*;

    #[tokio::test]
    async fn inputs_beyond_their_size_go_without_any_job() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.transfer.cache_dir = folder.path().join("inputs");
        config.transfer.cache_mib = 1;
        let clock = SystemClock::new();
        let counts = config.transfer.collect_inputs(clock.now()).unwrap();
        assert_eq!(counts.removed, 0);
        assert!(!config.transfer.cache_dir.exists(), "no job has used it");
        muster_process::private_folder::create(&config.transfer.cache_dir.join("blobs")).unwrap();
        for name in ["a", "b"] {
            let blob = config.transfer.cache_dir.join("blobs").join(name);
            std::fs::write(blob, vec![7; 700 << 10]).unwrap();
        }
        let counts = config.transfer.collect_inputs(clock.now()).unwrap();
        assert_eq!((counts.removed, counts.bytes), (1, 700 << 10));
    }
}
