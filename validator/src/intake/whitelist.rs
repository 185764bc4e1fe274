//! The whitelist: sends every miner of the subnet the images that this validator runs in sealed sessions, so that
//! executors have them before the first session is ordered.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use muster_miner_link::ChannelEvent;
use muster_protocol::wire::encode;
use muster_protocol::wire::validator_socket::ValidatorToMiner;
use muster_protocol::{AttemptId, MinerKey, Timestamp};
use muster_session_pool::whitelist::whitelist_notice;
use muster_store::StoreError;
use uuid::Uuid;

use crate::chain::reachable_miners;
use crate::config::Config;
use crate::driver::JobDrivers;
use crate::validator_state::ValidatorState;

/// The time between two looks for miners that have not received it.
const ROUND: Duration = Duration::from_secs(30);
/// After this time it is sent to a miner again, since a miner forgets it when it restarts.
const REPEAT_AFTER: Duration = Duration::from_secs(3_600);
/// After this time a miner that could not be reached is dialled again.
const RETRY_AFTER: Duration = Duration::from_secs(120);
/// Miners that it is sent to at a time.
const MINERS_AT_ONCE: usize = 16;

/// The frame that lists the images of this validator's sealed sessions: the graders, and the services behind its
/// gateway. `None` if it opens no such sessions.
pub(crate) fn whitelist_frame(config: &Config) -> Option<String> {
    let served = config.gateway.bind.map(|_| config.gateway.services.clone());
    if served.is_none() && config.grading.images.is_empty() {
        return None;
    }
    // Graders come first, so that they stay on the list however many services follow.
    let references = config
        .audit
        .reference_services(served.as_deref().unwrap_or_default());
    let all = config.grading.services().chain(served.into_iter().flatten());
    let all = all.chain(references);
    Some(encode(&ValidatorToMiner::MusterWhitelist(whitelist_notice(all))))
}

/// Sends it to every miner of the subnet, now and again, until the validator stops. Every session with a miner begins
/// with the whitelist, so opening a session is enough.
pub(crate) async fn publish_whitelist(
    state: Arc<ValidatorState>,
    drivers: Arc<JobDrivers>,
) -> Result<(), StoreError> {
    if whitelist_frame(&state.config).is_none() {
        return Ok(());
    }
    let stop = state.tasks.token();
    tokio::select! {
        () = stop.cancelled() => {}
        () = publish_rounds(&state, &drivers) => {}
    }
    Ok(())
}

async fn publish_rounds(state: &ValidatorState, drivers: &JobDrivers) {
    let mut due_times = BTreeMap::<(MinerKey, SocketAddr), Timestamp>::new();
    loop {
        let metagraph = state.subnet.metagraph().await;
        let now = state.clock.now();
        let own = state.config.trusted_miner.miner();
        let miners: BTreeSet<_> = reachable_miners(&metagraph, state.keypair.hotkey())
            .into_iter()
            .chain(own.map(|own| (own.miner, own.address)))
            .collect();
        due_times.retain(|miner, _| miners.contains(miner));
        let due: Vec<_> = miners
            .into_iter()
            .filter(|miner| due_times.get(miner).is_none_or(|due| *due <= now))
            .collect();
        let sending = due.into_iter().map(|(miner, address)| async move {
            let reached = open_session(state, drivers, miner, address).await;
            let next = now.plus(if reached { REPEAT_AFTER } else { RETRY_AFTER });
            ((miner, address), next)
        });
        let next_times: Vec<_> = stream::iter(sending)
            .buffer_unordered(MINERS_AT_ONCE)
            .collect()
            .await;
        due_times.extend(next_times);
        state.clock.sleep(ROUND).await;
    }
}

/// Opens a session with a miner, for no attempt; returns whether that succeeded within `timing.dial_s`.
async fn open_session(
    state: &ValidatorState,
    drivers: &JobDrivers,
    miner: MinerKey,
    address: SocketAddr,
) -> bool {
    let no_attempt = AttemptId::from_uuid(Uuid::new_v4());
    let mut channel = drivers.channels.open(no_attempt, miner, address);
    channel.dial();
    let too_late = state.clock.sleep(Duration::from_secs(state.config.timing.dial_s));
    tokio::select! {
        event = channel.next() => matches!(event, ChannelEvent::Up),
        () = too_late => false,
    }
}

#[cfg(test)]
mod tests {
    use muster_grading_runner::GraderImage;
    use muster_protocol::{Digest, ExecutorClass, ImageId};

    use super::*;

    #[test]
    fn graders_are_whitelisted_with_and_without_a_gateway() {
        let mut config = Config::default();
        assert_eq!(whitelist_frame(&config), None);
        let image = ImageId(Digest::of(b"grader"));
        let (class, args) = (ExecutorClass::AlwaysOnTest, vec![]);
        let grader = GraderImage {
            image,
            reference: None,
            args,
        };
        config.grading.images.insert(class, grader);
        let alone = whitelist_frame(&config).unwrap();
        assert!(alone.contains(&image.to_string()), "{alone}");
        config.gateway.bind = Some(config.bind);
        assert_eq!(whitelist_frame(&config), Some(alone), "nothing is served");
    }
}
