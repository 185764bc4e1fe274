//! The validator's metrics that are measured every few seconds. The ends of attempts and of jobs are counted as they
//! come, in [`outcome_counts`](crate::outcome_counts).

use std::collections::BTreeMap;
use std::time::Duration;

use muster_chain::BlockNumber;
use muster_job_queue::LineView;
use muster_process::error::Causes;
use muster_protocol::Timestamp;
use muster_store::StoreError;

use crate::LinkState;
use crate::chain::reachable_miners;
use crate::status_page::StatusSources;
use crate::store::{CycleState, StoredCycle};

/// How often the gauges are set.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// The newest cycles whose states are counted.
const CYCLES: u32 = 20;

/// Measures the validator until its task is dropped.
pub(crate) async fn measure(sources: StatusSources) {
    let mut chain = ChainWatch::new(sources.state.clock.now());
    let mut dropped = 0;
    loop {
        set_links(&sources, &mut chain);
        let now_dropped = sources.live_output.dropped();
        metrics::counter!("muster_validator_live_dropped_total")
            .increment(now_dropped.saturating_sub(dropped));
        dropped = now_dropped;
        set_queue(&sources);
        if let Err(error) = set_stored(&sources).await {
            tracing::debug!(error = %Causes(&error), "some metrics cannot be read from the store");
        }
        sources.state.clock.sleep(MEASURE_EVERY).await;
    }
}

/// When a newer block was last seen.
#[derive(Debug)]
struct ChainWatch {
    head: Option<BlockNumber>,
    since: Timestamp,
}

impl ChainWatch {
    fn new(now: Timestamp) -> Self {
        Self {
            head: None,
            since: now,
        }
    }

    /// The time since a newer block was seen, or since the start if there was none.
    fn lag(&mut self, head: Option<BlockNumber>, now: Timestamp) -> Duration {
        if head > self.head {
            (self.head, self.since) = (head, now);
        }
        now.since(self.since)
    }
}

fn set_links(sources: &StatusSources, chain: &mut ChainWatch) {
    let connected = |state: &LinkState| u32::from(*state == LinkState::Connected);
    let facilitator = connected(&sources.link.borrow());
    metrics::gauge!("muster_validator_facilitator_connected").set(facilitator);
    let subnet = &sources.state.subnet;
    metrics::gauge!("muster_validator_chain_connected").set(connected(&subnet.link_state()));
    let head = subnet.head();
    if let Some(head) = head {
        set("muster_validator_chain_block", head.0);
    }
    let lag = chain.lag(head, sources.state.clock.now());
    metrics::gauge!("muster_validator_chain_lag_seconds").set(lag.as_secs_f64());
    let key = sources.state.keypair.hotkey();
    let metagraph = subnet.last_metagraph();
    let own = metagraph.as_ref().and_then(|metagraph| metagraph.find(&key));
    if let (Some(own), Some(head)) = (own, head) {
        let age = head.0.saturating_sub(own.last_update.0);
        set("muster_validator_weights_age_blocks", age);
    }
    let known = metagraph.map_or(0, |metagraph| reachable_miners(&metagraph, key).len());
    set_miners("known", known);
}

fn set_queue(sources: &StatusSources) {
    set(
        "muster_validator_jobs_running",
        to_u64(sources.drivers.count_running()),
    );
    let view = sources.drivers.queue.view(0);
    let mut waiting_by_class = BTreeMap::<_, usize>::new();
    for LineView { class, waiting, .. } in view.lines.iter().chain(&view.trusted_lines) {
        let count = waiting_by_class.entry(*class).or_default();
        *count = count.saturating_add(*waiting);
    }
    for (class, waiting) in waiting_by_class {
        let class = class.as_str();
        metrics::gauge!("muster_validator_jobs_waiting", "class" => class).set(to_f64(to_u64(waiting)));
    }
    for line in view.lines {
        let LineView {
            class,
            executors,
            at_work,
            ..
        } = line;
        let class = class.as_str();
        metrics::gauge!("muster_validator_executors", "class" => class, "state" => "offered").set(executors);
        metrics::gauge!("muster_validator_executors", "class" => class, "state" => "at_work").set(at_work);
    }
}

async fn set_stored(sources: &StatusSources) -> Result<(), StoreError> {
    let store = &sources.state.store;
    set("muster_validator_updates_waiting", store.updates_waiting().await?);
    set(
        "muster_validator_receipts_gathered",
        store.gathered_count().await?,
    );
    let miners = sources.drivers.list_miners(sources.grading.store()).await?;
    let usable = miners.iter().filter(|miner| !miner.claims.offers.is_empty());
    set_miners("usable", usable.count());
    let proven = miners
        .iter()
        .filter(|miner| miner.proven.iter().any(|class| class.proven > 0));
    set_miners("proven", proven.count());
    let cycles = store.cycles(CYCLES).await?;
    for (state, count) in count_states(&cycles) {
        metrics::gauge!("muster_validator_cycles", "state" => state.as_str()).set(count);
    }
    let newest = cycles.iter().max_by_key(|cycle| cycle.number);
    if let Some(newest) = newest {
        set("muster_validator_cycle_scored", newest.number);
    }
    let failing = newest.is_some_and(|newest| newest.error.is_some());
    metrics::gauge!("muster_validator_weights_failing").set(u32::from(failing));
    Ok(())
}

/// The number of cycles in each state; one of each state is in the list.
fn count_states(cycles: &[StoredCycle]) -> Vec<(CycleState, u32)> {
    let count = |state: CycleState| {
        let cycles = cycles.iter().filter(|cycle| cycle.state == state).count();
        (state, u32::try_from(cycles).unwrap_or(u32::MAX))
    };
    CycleState::ALL.into_iter().map(count).collect()
}

fn set_miners(state: &'static str, count: usize) {
    metrics::gauge!("muster_validator_miners", "state" => state).set(to_f64(to_u64(count)));
}

fn set(name: &'static str, value: u64) {
    metrics::gauge!(name).set(to_f64(value));
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
fn to_f64(value: u64) -> f64 {
    value as f64
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lag_counts_from_the_newest_block_and_an_older_one_is_none() {
        let at = Timestamp::from_secs;
        let mut chain = ChainWatch::new(at(100));
        assert_eq!(
            chain.lag(None, at(103)),
            Duration::from_secs(3),
            "no block since the start"
        );
        assert_eq!(chain.lag(Some(BlockNumber(7)), at(104)), Duration::ZERO);
        assert_eq!(chain.lag(Some(BlockNumber(7)), at(110)), Duration::from_secs(6));
        assert_eq!(
            chain.lag(Some(BlockNumber(6)), at(111)),
            Duration::from_secs(7),
            "a reorganised chain"
        );
        assert_eq!(chain.lag(Some(BlockNumber(8)), at(112)), Duration::ZERO);
    }
}
