//! The miner poll: asks every miner of the subnet for its executors and for the main hotkey of its owner.
//!
//! Grading polls before a batch. The score needs a poll in every cycle: [`follow_cycles`] polls unless grading has.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use muster_chain::weights_window::Window;
use muster_grading::Announcement;
use muster_grading::batch_plan::SilentMiner;
use muster_grading::judgement::sanitize_words;
use muster_grading_runner::Announcements;
use muster_miner_link::{MinerEndpoint, ask_miner};
use muster_protocol::MinerKey;
use muster_scoring::NamedMain;
use muster_store::StoreError;

use crate::driver::JobDrivers;
use crate::validator_state::ValidatorState;
use crate::weights::ScoringGate;

/// Miners that are asked at a time.
const MINERS_AT_ONCE: usize = 64;

/// Polls the miners in every cycle in which grading has not, until the validator stops.
///
/// # Errors
/// The store fails.
pub(crate) async fn follow_cycles(
    state: Arc<ValidatorState>,
    drivers: Arc<JobDrivers>,
    gate: Arc<ScoringGate>,
) -> Result<(), StoreError> {
    if !state.config.scoring.ask_main_hotkeys {
        return Ok(());
    }
    let stop = state.tasks.token();
    let (mut cycles, mut asked) = (gate.subscribe_cycle(), None);
    loop {
        let next = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            next = cycles.wait_for(|cycle| cycle.is_some() && *cycle != asked) => next.map(|cycle| *cycle),
        };
        let Ok(Some(cycle)) = next else { return Ok(()) };
        if state.store.main_hotkeys_of(cycle).await?.is_empty() {
            let polling = poll_miners(&state, &drivers);
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = polling => {}
            }
        }
        asked = Some(cycle);
    }
}

/// Dials every miner of the subnet and collects the manifests, which the ledger records too, and the main hotkeys,
/// which are stored for the present cycle. A miner that does not answer within `timing.dial_s` is listed as silent.
pub(crate) async fn poll_miners(state: &Arc<ValidatorState>, drivers: &JobDrivers) -> Announcements {
    let metagraph = state.subnet.metagraph().await;
    let own_key = state.keypair.hotkey();
    let blacklist = &state.config.routing.blacklist;
    let mut miners = Vec::new();
    for neuron in &metagraph.neurons {
        let miner = MinerKey(neuron.hotkey);
        if let Some(address) = neuron.axon
            && !address.ip().is_unspecified()
            && neuron.hotkey != own_key
            && !state.config.trusted_miner.is(neuron.hotkey)
            && !blacklist.contains(&miner)
        {
            let certificate = metagraph.certificate_of(&neuron.hotkey);
            miners.push(MinerEndpoint::new(miner, address, certificate));
        }
    }
    let limit = Duration::from_secs(state.config.timing.dial_s);
    let asking = stream::iter(miners).map(|endpoint: MinerEndpoint| {
        let state = Arc::clone(state);
        async move {
            let asked = ask_miner(&state.keypair, &state.clock, endpoint, limit);
            let answers = asked.await;
            let describe = |error| sanitize_words(&format!("at {}: {error}", endpoint.address));
            (endpoint.miner, answers.map_err(describe))
        }
    });
    let answers: Vec<_> = asking.buffer_unordered(MINERS_AT_ONCE).collect().await;
    let (mut announced, mut silent, mut mains) = (Vec::new(), Vec::new(), Vec::new());
    for (miner, answers) in answers {
        let answers = match answers {
            Ok(answers) => answers,
            Err(said) => {
                silent.push(SilentMiner { miner, said });
                continue;
            }
        };
        let executors = answers.manifest.manifest.iter();
        announced.extend(executors.map(|(class, count)| Announcement { miner, class, count }));
        mains.extend(answers.main_hotkey.map(|main| NamedMain { miner, main }));
        drivers.records.record_features(miner, answers.features);
        drivers.records.record_manifest(miner, answers.manifest);
    }
    let window = Window::at(metagraph.tempo, metagraph.last_epoch, metagraph.block);
    let now = state.clock.now();
    if let Err(error) = state.store.put_main_hotkeys(window.cycle, &mains, now).await {
        state.fail(error);
    }
    announced.sort_unstable();
    Announcements { announced, silent }
}
