//! The step that takes the checkpoints of a running job.

use std::sync::Arc;

use futures_util::FutureExt as _;
use muster_checkpoint_transfer::{CheckpointKeeper, FollowedPlace, KeeperHandle, KeeperSetup};
use muster_containers::owned_folders::ClaimedFolder;
use muster_job_metrics::ProgramFollower;
use muster_protocol::wire::checkpoints::{CheckpointNotice, CheckpointOrder};
use muster_protocol::wire::executor_socket::ExecutorToMiner;

use super::checkpoint_blocks::open_blocks;
use super::job::PlacedJob;
use crate::context::AttemptContext;
use crate::job_sandbox::checkpoint_order;
use crate::miner_link::MinerOutlet;
use crate::output_capture::OutputCapture;

/// Takes the checkpoints of a running job until its program is over. Nothing of it ends the job.
pub(crate) fn keep_checkpoints(
    job: &PlacedJob,
    context: &AttemptContext,
    follower: ProgramFollower,
    capture: OutputCapture,
    miner: MinerOutlet,
) -> Option<(KeeperHandle, impl Future<Output = ()> + Send + use<>)> {
    let order = checkpoint_order(&job.request.job)?.clone();
    let limits = job.request.layout.checkpoint;
    let (folder, resumed) = (job.workspace.folders().checkpoint.clone(), job.resumed.clone());
    let (handle, pending) = CheckpointKeeper::prepare();
    let context = context.clone();
    let keeping = async move {
        let CheckpointOrder { blocks, metric, .. } = order;
        let config = Arc::clone(context.config());
        let opened = open_blocks(&context, &blocks).await;
        let (work_dir, attempt) = (config.work_dir.clone(), context.attempt());
        let scratch = tokio::task::spawn_blocking(move || ClaimedFolder::new(&work_dir, attempt)).await;
        let (store, scratch) = match (opened, scratch) {
            (Ok(store), Ok(Ok(scratch))) => (store, scratch),
            (Err(reason), _) => return capture.note(&format!("checkpoints are not kept: {reason}")),
            (_, Ok(Err(error))) => return capture.note(&format!("checkpoints are not kept: {error}")),
            (_, Err(_)) => return,
        };
        let followed = follower.clone();
        let announce = Arc::new(move |notice: CheckpointNotice| {
            followed.note_checkpoint(notice.number.into());
            let miner = miner.clone();
            async move {
                let message = ExecutorToMiner::MusterCheckpoint(Box::new(notice));
                miner.try_send(&message).await;
            }
            .boxed()
        });
        let output = capture.clone();
        let setup = KeeperSetup {
            attempt,
            folder,
            scratch: scratch.path().to_owned(),
            reserve: config.disk_reserve(),
            limits,
            store,
            place: Arc::new(FollowedPlace { follower, metric }),
            announce,
            explain: Arc::new(move |reason| {
                tracing::info!(reason, "a checkpoint was not kept");
                output.note(&reason);
            }),
            clock: Arc::clone(context.clock()),
        };
        let mut keeper = pending.start(setup);
        if let Some(name) = resumed {
            keeper.skip(&name).await;
        }
        keeper.run().await;
        drop(scratch);
    };
    Some((handle, keeping))
}
