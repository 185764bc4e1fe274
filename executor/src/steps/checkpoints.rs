//! The checkpoints of a job: laid out before its program starts, and taken while it runs.

use std::sync::Arc;

use futures_util::FutureExt as _;
use muster_checkpoint_transfer::{
    BlockClient, CheckpointKeeper, FollowedPlace, KeeperHandle, KeeperSetup, RestoreError, RestoreReader,
    restore,
};
use muster_checkpoints::TreeLimits;
use muster_containers::owned_folders::ClaimedFolder;
use muster_job_data::Fetcher;
use muster_job_metrics::ProgramFollower;
use muster_process::error::Causes;
use muster_protocol::job::Fault;
use muster_protocol::wire::checkpoints::{CheckpointNotice, CheckpointOrder};
use muster_protocol::wire::executor_socket::ExecutorToMiner;
use muster_protocol::{HordeFailureReason, JobStage};

use super::{PlacedJob, RequestedJob};
use crate::attempt_state::AttemptFailure;
use crate::context::AttemptContext;
use crate::job_sandbox::checkpoint_order;
use crate::miner_link::MinerOutlet;
use crate::output_capture::OutputCapture;
use crate::workspace::Workspace;

/// The blocks below a signed URL, reached by the rules for the addresses of jobs' data.
async fn open_blocks(context: &AttemptContext, url: &str) -> Result<BlockClient, String> {
    let transfer = context.config().transfer.clone();
    let clock = Arc::clone(context.clock());
    let fetcher = Fetcher::new(transfer, Arc::clone(&clock)).map_err(|error| Causes(&error).to_string())?;
    let opened = fetcher.open_client(url).await;
    let (client, base) = opened.map_err(|error| Causes(&error).to_string())?;
    let blocks = BlockClient::new(client, base, clock).map_err(|error| error.to_string())?;
    // The client reaches one address. A job may outlive it, so its name is looked up again after a failure.
    let (fetcher, url) = (Arc::new(fetcher), url.to_owned());
    Ok(blocks.with_renewal(Arc::new(move || {
        let (fetcher, url) = (Arc::clone(&fetcher), url.clone());
        async move { fetcher.open_client(&url).await.ok().map(|(client, _)| client) }.boxed()
    })))
}

/// The bounds on a checkpoint of a job: it fits on the job's own disk.
fn limits_of(disk: u64) -> TreeLimits {
    TreeLimits {
        bytes: disk,
        ..TreeLimits::default()
    }
}

/// Lays out the checkpoint that a job begins from. Returns its name; `None` for a job that begins anew.
pub(super) async fn place_resume_data(
    request: &RequestedJob,
    context: &AttemptContext,
    workspace: &Workspace,
) -> Result<Option<String>, AttemptFailure> {
    let resume = checkpoint_order(&request.job).and_then(|order| order.resume.as_ref());
    let Some(resume) = resume.filter(|_| request.streaming().is_none()) else {
        return Ok(None);
    };
    let failed = |message: String| {
        let (reason, stage) = (HordeFailureReason::GenericError, JobStage::VolumeDownload);
        AttemptFailure::horde(reason, stage, message)
    };
    let blocks = open_blocks(context, &resume.blocks).await.map_err(failed)?;
    let config = context.config();
    let limits = limits_of(request.policy(config).allowance.disk);
    let folder = &workspace.folders().checkpoint;
    let (reader, reserve) = (RestoreReader::Job, config.disk_reserve());
    let laying = restore(&blocks, resume.manifest, reader, folder, limits, reserve);
    let restored = tokio::select! {
        () = context.called_off.cancelled() => return Ok(None),
        restored = laying => restored,
    };
    match restored {
        Ok(restored) => {
            tracing::info!(
                checkpoint = restored.name,
                bytes = restored.bytes,
                "the job resumes"
            );
            Ok(Some(restored.name))
        }
        Err(error) => {
            let failure = failed(format!("the job cannot be resumed: {}", Causes(&error)));
            Err(match (&error, error.is_damaged_data()) {
                (_, true) => failure.with_damaged_checkpoint(),
                (RestoreError::Store(_), false) => failure.blame(Fault::Network),
                (_, false) => failure,
            })
        }
    }
}

/// Takes the checkpoints of a running job until its program is over. Nothing of it ends the job.
pub(crate) fn keep_checkpoints(
    job: &PlacedJob,
    context: &AttemptContext,
    follower: ProgramFollower,
    capture: OutputCapture,
    miner: MinerOutlet,
) -> Option<(KeeperHandle, impl Future<Output = ()> + Send + use<>)> {
    let order = checkpoint_order(&job.request.job)?.clone();
    let disk = job.policy.allowance.disk;
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
        let told = capture.clone();
        let setup = KeeperSetup {
            attempt,
            folder,
            scratch: scratch.path().to_owned(),
            reserve: config.disk_reserve(),
            limits: limits_of(disk),
            store,
            place: Arc::new(FollowedPlace { follower, metric }),
            announce,
            explain: Arc::new(move |reason| {
                tracing::info!(reason, "a checkpoint was not kept");
                told.note(&reason);
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
