//! The census: asks every miner of the subnet which executors it has.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use muster_grading::Announcement;
use muster_grading::batch_plan::SilentMiner;
use muster_grading::judgement::sanitize_words;
use muster_grading_runner::Announcements;
use muster_protocol::MinerKey;
use tokio::time::timeout;

use crate::driver::JobDrivers;
use crate::state::ValidatorState;

/// Miners that are asked at a time.
const MINERS_AT_ONCE: usize = 64;

/// Dials every miner of the subnet and collects the manifests, which the ledger learns too. A miner that does not
/// answer within `timing.dial_s` is listed as silent.
pub(super) async fn take_census(state: &Arc<ValidatorState>, drivers: &JobDrivers) -> Announcements {
    let metagraph = state.subnet.metagraph().await;
    let own_key = state.keypair.hotkey();
    let blacklist = &state.config.routing.blacklist;
    let mut miners = Vec::new();
    for neuron in &metagraph.neurons {
        let miner = MinerKey(neuron.hotkey);
        if let Some(address) = neuron.axon
            && !address.ip().is_unspecified()
            && neuron.hotkey != own_key
            && !blacklist.contains(&miner)
        {
            miners.push((miner, address));
        }
    }
    let limit = Duration::from_secs(state.config.timing.dial_s);
    let asking = stream::iter(miners).map(|(miner, address)| {
        let state = Arc::clone(state);
        async move {
            let manifest = muster_miner_link::fetch_manifest(&state.keypair, &state.clock, miner, address);
            let seconds = limit.as_secs();
            let manifest = match timeout(limit, manifest).await {
                Ok(manifest) => manifest.map_err(|error| sanitize_words(&format!("at {address}: {error}"))),
                Err(_) => Err(format!("no manifest came from {address} within {seconds} s")),
            };
            (miner, manifest)
        }
    });
    let answers: Vec<_> = asking.buffer_unordered(MINERS_AT_ONCE).collect().await;
    let (mut announced, mut silent) = (Vec::new(), Vec::new());
    for (miner, manifest) in answers {
        let (shown, features) = match manifest {
            Ok(found) => found,
            Err(said) => {
                silent.push(SilentMiner { miner, said });
                continue;
            }
        };
        announced.extend(
            shown
                .manifest
                .iter()
                .map(|(class, count)| Announcement { miner, class, count }),
        );
        drivers.record_features(miner, features);
        drivers.record_manifest(miner, shown);
    }
    announced.sort_unstable();
    Announcements { announced, silent }
}
