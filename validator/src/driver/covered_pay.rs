//! The blocks that cover the pay of an attempt.

use std::time::Duration;

use muster_job_messages::outgoing::AttemptPay;
use muster_protocol::Timestamp;
use muster_protocol::receipt::MINIMUM_CHARGE_US;
use muster_scoring::PayableAttempt;

use crate::store::StoredAttempt;
use crate::validator_state::ValidatorState;

/// Names the blocks that cover a pay of this attempt. No receipt counts for more than the time that its attempt took.
pub(super) fn cover_pay(
    state: &ValidatorState,
    attempt: &StoredAttempt,
    micros: u64,
    started: Timestamp,
    now: Timestamp,
) -> AttemptPay {
    let took = u64::try_from(now.since(started).as_micros()).unwrap_or(u64::MAX);
    let counted = micros.min(took.max(MINIMUM_CHARGE_US));
    let head = state.subnet.head().filter(|_| counted > 0);
    let blocks = head.map(|head| {
        let payable = PayableAttempt {
            miner: attempt.miner,
            class: attempt.machine.plan().class,
            began: started,
            ended: started.plus(Duration::from_micros(counted)),
            micros: counted,
        };
        state.allowance.lock().name_blocks(&payable, head.0)
    });
    AttemptPay {
        micros,
        blocks: blocks.unwrap_or_default(),
    }
}
