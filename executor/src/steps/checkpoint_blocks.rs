//! The blocks of a job's checkpoints, as the steps that lay one out and that keep new ones reach them.

use std::sync::Arc;

use futures_util::FutureExt as _;
use muster_checkpoint_transfer::BlockClient;
use muster_job_data::Fetcher;
use muster_process::error::Causes;

use crate::context::AttemptContext;

/// The blocks below a signed URL, reached by the rules for the addresses of jobs' data.
pub(super) async fn open_blocks(context: &AttemptContext, url: &str) -> Result<BlockClient, String> {
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
