//! Validators' messages with texts and lists within their bounds. Pure.

use std::collections::BTreeSet;

use muster_protocol::wire::checks::{JobCheck, MAX_CHECKED_OUTPUTS, RefundNotice};
use muster_protocol::wire::muster::{CapacityNotice, MAX_NEXT_PLACES};

/// The most characters of a text; the rest is cut off.
const MAX_CAPACITY_TEXT: usize = 500;

/// A capacity with each class once, and with texts and lists within their bounds.
pub fn bound_capacity(mut notice: CapacityNotice) -> CapacityNotice {
    let mut seen = BTreeSet::new();
    notice.classes.retain(|offer| seen.insert(offer.class));
    for offer in &mut notice.classes {
        offer.next.truncate(MAX_NEXT_PLACES);
        offer.why = offer.why.chars().take(MAX_CAPACITY_TEXT).collect();
        if let Some(hardware) = &mut offer.hardware {
            *hardware = hardware.chars().take(MAX_CAPACITY_TEXT).collect();
        }
    }
    notice
}

/// The finding by running a job again, with its outputs and texts within their bounds.
pub fn bound_check(mut check: JobCheck) -> JobCheck {
    check.outputs.truncate(MAX_CHECKED_OUTPUTS);
    check.reason = cut(&check.reason);
    for output in &mut check.outputs {
        output.name = cut(&output.name);
    }
    check
}

/// A refund with its texts within their bounds.
pub fn bound_refund(mut refund: RefundNotice) -> RefundNotice {
    refund.response = cut(&refund.response);
    refund.model = cut(&refund.model);
    refund
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_CAPACITY_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use muster_protocol::wire::checks::{CheckOrigin, CheckState, CheckedOutput};
    use muster_protocol::{JobId, Timestamp};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_validators_reports_of_a_job_are_bounded() {
        let output = CheckedOutput {
            name: "x".repeat(600),
            job: None,
            trusted: None,
        };
        let check = bound_check(JobCheck {
            uuid: JobId::from_uuid(Uuid::nil()),
            origin: CheckOrigin::Drawn,
            state: CheckState::Differs,
            reason: "\u{17c}".repeat(600),
            outputs: vec![output; 100],
            at: Timestamp::from_secs(1),
        });
        assert_eq!((check.outputs.len(), check.reason.chars().count()), (64, 500));
        assert!(check.outputs.iter().all(|output| output.name.len() == 500));
    }
}
