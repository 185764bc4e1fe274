//! `muster miner show`: a miner's machines, as validators proved them and as the miner claims them.

use std::process::ExitCode;

use muster_client::ClientError;
use muster_process::SharedClock;
use muster_terminal::{miner_text, print};

use crate::cli::MinerShow;
use crate::facilitator_access::{self, client_failure};
use crate::failure::Result;

/// Runs `muster miner show`.
pub(crate) async fn show(args: MinerShow, clock: SharedClock) -> Result<ExitCode> {
    let client = facilitator_access::resolve(&args.access)?
        .connect(clock.clone())
        .await?;
    let view = match client.miner(args.miner).await {
        Ok(view) => view,
        Err(ClientError::Refused { status, .. }) if status.as_u16() == 404 => {
            let miner = args.miner;
            return Err(anyhow::anyhow!(
                "no validator of this facilitator has told of the miner {miner} within a day; check the address, or wait a \
                 minute for a new miner"
            )
            .into());
        }
        Err(error) => return Err(client_failure(error)),
    };
    if args.json {
        print::line(format_args!("{}", serde_json::to_string_pretty(&view)?));
        return Ok(ExitCode::SUCCESS);
    }
    print::raw(&miner_text::describe_miner(&view, clock.now()));
    Ok(ExitCode::SUCCESS)
}
