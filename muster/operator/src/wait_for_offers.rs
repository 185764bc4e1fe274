//! The wait for miners' offers, which a validator receives once its miners are connected.

use std::net::SocketAddr;
use std::time::Duration;

use muster_process::SharedClock;
use muster_protocol::Timestamp;
use muster_protocol::wire::machines::MinerNotice;
use serde::Deserialize;

use crate::validator_calls::{OperatorToolError, call};

/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Deserialize)]
struct ListedMiners {
    miners: Vec<MinerNotice>,
}

/// Waits until the miners of the validator at this address offer `wanted` executors together, or until the time is
/// over.
///
/// # Errors
/// The validator does not answer, or is of another version.
pub async fn wait_for_offers(
    at: SocketAddr,
    wanted: u32,
    until: Timestamp,
    clock: &SharedClock,
) -> Result<(), OperatorToolError> {
    loop {
        let listed = call(at, "/v0/miners", None).await?;
        let listed: ListedMiners =
            serde_json::from_value(listed).map_err(|_| OperatorToolError::OtherVersion(at))?;
        let offers = listed.miners.iter().flat_map(|miner| &miner.claims.offers);
        if offers.map(|offer| offer.executors).sum::<u32>() >= wanted || clock.now() >= until {
            return Ok(());
        }
        clock.sleep(PAUSE).await;
    }
}
