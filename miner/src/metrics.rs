//! The miner's metrics: counted from the effects of the lease table, and measured every few seconds.

use std::sync::Arc;
use std::time::Duration;

use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{JobRejectionReason, ReceiptKind};

use crate::lease_table::{Effect, LeaseStatus, LeaseWrite};
use crate::miner_state::MinerState;
use crate::persistent::ExecutorPool;

/// How often the gauges are set.
const MEASURE_EVERY: Duration = Duration::from_secs(5);

/// An event of a lease's life that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    Opened,
    Ended(&'static str),
    Declined(JobRejectionReason),
    Receipt(ReceiptKind),
}

/// Counts what the lease table has decided.
pub(crate) fn count_effects(effects: &[Effect]) {
    for counted in effects.iter().filter_map(counted) {
        match counted {
            Counted::Opened => metrics::counter!("muster_miner_leases_opened_total").increment(1),
            Counted::Ended(end) => {
                metrics::counter!("muster_miner_leases_ended_total", "end" => end).increment(1);
            }
            Counted::Declined(reason) => {
                let reason = reason.as_str();
                metrics::counter!("muster_miner_offers_declined_total", "reason" => reason).increment(1);
            }
            Counted::Receipt(kind) => {
                let kind = match kind {
                    ReceiptKind::Started => "started",
                    ReceiptKind::Accepted => "accepted",
                    ReceiptKind::Finished => "finished",
                };
                metrics::counter!("muster_miner_receipts_total", "kind" => kind).increment(1);
            }
        }
    }
}

fn counted(effect: &Effect) -> Option<Counted> {
    match effect {
        Effect::Write(LeaseWrite::Opened { .. }) => Some(Counted::Opened),
        Effect::Write(LeaseWrite::Ended { status, history, .. }) => {
            Some(Counted::Ended(end_of(*status, history)))
        }
        Effect::Write(LeaseWrite::Receipt(receipt)) => Some(Counted::Receipt(receipt.payload.kind())),
        Effect::Write(LeaseWrite::Held { .. } | LeaseWrite::Settled(_) | LeaseWrite::Forgotten(_)) => None,
        Effect::Tell { message, .. } => {
            let MinerToValidator::V0DeclineJobRequest(decline) = &**message else {
                return None;
            };
            Some(Counted::Declined(decline.reason))
        }
        Effect::Live { .. }
        | Effect::Retell { .. }
        | Effect::RepeatReceipt { .. }
        | Effect::Start { .. }
        | Effect::Resume { .. }
        | Effect::Admit { .. }
        | Effect::Dismiss { .. }
        | Effect::Order { .. }
        | Effect::Shelve(_)
        | Effect::StopExecutor { .. } => None,
    }
}

/// How a lease ended, from the last message of its history.
pub(crate) fn end_of(status: LeaseStatus, history: &[MinerToValidator]) -> &'static str {
    let last = history.last();
    if status == LeaseStatus::Cancelled {
        "cancelled"
    } else if matches!(last, Some(MinerToValidator::V0JobFinishedRequest(_))) {
        "finished"
    } else if matches!(last, Some(MinerToValidator::V0JobFailedRequest(_))) {
        "failed"
    } else {
        "horde_failed"
    }
}

/// Sets the gauges until its task is dropped.
pub(crate) async fn measure(state: Arc<MinerState>, pool: ExecutorPool) {
    loop {
        set_gauges(&state, &pool);
        set_pool_gauges(&state);
        state.clock.sleep(MEASURE_EVERY).await;
    }
}

fn set_gauges(state: &MinerState, pool: &ExecutorPool) {
    let own = state.pools.places();
    let to_u32 = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let sessions = state.seats.count();
    metrics::gauge!("muster_miner_validator_sessions").set(to_u32(sessions.sessions));
    let served = to_u32(state.served.all().len());
    metrics::gauge!("muster_miner_validators", "state" => "served").set(served);
    metrics::gauge!("muster_miner_validators", "state" => "connected").set(to_u32(sessions.validators));
    let (open, working) = (to_u32(state.gauge.open()), to_u32(state.gauge.working()));
    metrics::gauge!("muster_miner_leases", "state" => "waiting").set(open.saturating_sub(working));
    metrics::gauge!("muster_miner_leases", "state" => "working").set(working);
    let draining = u32::from(state.gauge.is_draining());
    metrics::gauge!("muster_miner_draining").set(draining);
    let lent = pool.usage();
    let own_busy = working.saturating_sub(lent.busy).min(own);
    for (kind, busy, free) in [
        ("persistent", lent.busy, lent.places.saturating_sub(lent.busy)),
        ("started", own_busy, own.saturating_sub(own_busy)),
    ] {
        metrics::gauge!("muster_miner_executors", "kind" => kind, "state" => "busy").set(busy);
        metrics::gauge!("muster_miner_executors", "kind" => kind, "state" => "free").set(free);
    }
}

fn set_pool_gauges(state: &MinerState) {
    for pool in state.pools.status() {
        let waiting = u32::try_from(pool.waiting.len()).unwrap_or(u32::MAX);
        let (name, is_faulty) = (pool.name, u32::from(pool.fault.is_some()));
        metrics::gauge!("muster_miner_pool_places", "pool" => name.clone()).set(pool.places);
        metrics::gauge!("muster_miner_pool_executors", "pool" => name.clone()).set(pool.used);
        metrics::gauge!("muster_miner_pool_waiting", "pool" => name.clone()).set(waiting);
        metrics::gauge!("muster_miner_pool_faulty", "pool" => name).set(is_faulty);
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::wire::miner::{AttemptNotice, DeclineJob};
    use muster_protocol::{AttemptId, Timestamp};

    use super::*;

    fn attempt() -> AttemptId {
        "11111111-2222-4333-8444-555555555555".parse().unwrap()
    }

    #[test]
    fn a_decline_is_counted_by_the_reason_that_the_validator_is_told() {
        let decline = MinerToValidator::V0DeclineJobRequest(DeclineJob {
            job_uuid: attempt(),
            message: "all at work".to_owned(),
            reason: JobRejectionReason::Busy,
            receipts: vec![],
            context: None,
        });
        let tell = |message| Effect::Tell {
            to: vec![],
            message: Box::new(message),
        };
        assert_eq!(
            counted(&tell(decline)),
            Some(Counted::Declined(JobRejectionReason::Busy))
        );
        let accepted = MinerToValidator::V0AcceptJobRequest(AttemptNotice { job_uuid: attempt() });
        assert_eq!(counted(&tell(accepted)), None);
    }

    #[test]
    fn the_end_of_a_lease_is_that_of_its_last_message() {
        let notice = AttemptNotice { job_uuid: attempt() };
        let accepted = MinerToValidator::V0AcceptJobRequest(notice);
        let lost = crate::lease::horde_failed(
            attempt(),
            muster_protocol::ParticipantType::Miner,
            muster_protocol::HordeFailureReason::ExecutorDisconnected,
            "gone".to_owned(),
        );
        let ended = |status, history| {
            counted(&Effect::Write(LeaseWrite::Ended {
                attempt: attempt(),
                status,
                history,
                at: Timestamp::from_secs(1),
            }))
        };
        assert_eq!(
            ended(LeaseStatus::Owed, vec![accepted.clone(), lost]),
            Some(Counted::Ended("horde_failed"))
        );
        assert_eq!(
            ended(LeaseStatus::Cancelled, vec![accepted]),
            Some(Counted::Ended("cancelled"))
        );
    }
}
