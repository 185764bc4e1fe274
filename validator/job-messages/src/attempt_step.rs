//! The step that one event means for an attempt: what is stored, and what is sent once that is durable. Pure.

use muster_protocol::job::{Attempt, Effect, Event, IllegalEvent, JobState};
use muster_protocol::wire::facilitator::StatusMetadata;
use muster_protocol::{JobStatus, ReceiptKind, Timestamp};

/// A message to the miner that a step calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepMessage {
    /// The receipt of this kind, which is issued unless the attempt has one. A started receipt is the offer.
    Receipt {
        /// The receipt's kind.
        kind: ReceiptKind,
        /// Whether a finished receipt pays.
        paid: bool,
    },
    /// The job itself.
    Job,
    /// The job is called off.
    Cancellation,
}

/// The messages that the connected miner understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinerAbilities {
    /// Whether the miner knows every feature that the job's offer needs.
    pub offer: bool,
    /// Whether the miner knows cancellations.
    pub cancellation: bool,
}

/// The step that an event means for an attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptStep {
    /// The attempt after the event.
    pub machine: Attempt,
    /// The statuses that are sent to the job's user, in order. The end is not among them: the driver reports it once it
    /// knows that there is no further attempt.
    pub reports: Vec<(JobStatus, Option<StatusMetadata>)>,
    /// The messages to the miner, in order.
    pub messages: Vec<StepMessage>,
    /// Whether the miner is dialled again.
    pub reconnects: bool,
}

impl AttemptStep {
    /// Applies an event to an attempt. The result is `None` if the event changes nothing.
    ///
    /// # Errors
    /// The attempt's state does not know the event: the peer that caused it broke the protocol.
    pub fn take(
        before: &Attempt,
        event: Event,
        now: Timestamp,
        miner: MinerAbilities,
    ) -> Result<Option<Self>, IllegalEvent> {
        let (machine, effects) = before.clone().apply(event, now)?;
        if machine == *before && effects.is_empty() {
            return Ok(None);
        }
        let mut step = Self {
            machine,
            reports: Vec::new(),
            messages: Vec::new(),
            reconnects: false,
        };
        for effect in effects {
            step.add(effect, miner);
        }
        Ok(Some(step))
    }

    fn add(&mut self, effect: Effect, miner: MinerAbilities) {
        let receipt = |kind, paid| StepMessage::Receipt { kind, paid };
        let message = match effect {
            Effect::SendOffer => miner.offer.then(|| receipt(ReceiptKind::Started, false)),
            Effect::SendAcceptedReceipt => Some(receipt(ReceiptKind::Accepted, false)),
            Effect::SendFinishedReceipt { paid } => Some(receipt(ReceiptKind::Finished, paid)),
            Effect::SendJob => Some(StepMessage::Job),
            Effect::SendCancel => miner.cancellation.then_some(StepMessage::Cancellation),
            Effect::Reconnect => {
                self.reconnects = true;
                None
            }
            Effect::Report(status, _) if status.is_terminal() => None,
            Effect::Report(status, metadata) => {
                self.reports.push((status, metadata.map(|metadata| *metadata)));
                None
            }
        };
        self.messages.extend(message);
    }

    /// Whether the step must be durable before anything follows from it; `issues` if it issues a receipt. A connection
    /// that came or went is not stored, since a resumed attempt begins without one. That the offer is sent was stored
    /// when the attempt began.
    pub fn is_stored(&self, before: &Attempt, issues: bool) -> bool {
        let already_stored = matches!(self.machine.state(), JobState::Offered);
        let moved = !already_stored && self.machine.state() != before.state();
        moved || issues || !self.reports.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plan;

    const MUSTER: MinerAbilities = MinerAbilities {
        offer: true,
        cancellation: true,
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn after(events: Vec<Event>, miner: MinerAbilities) -> (Attempt, AttemptStep) {
        let mut before = Attempt::new(plan(), at(0));
        let mut last: Option<AttemptStep> = None;
        for event in events {
            before = last.map_or(before, |step| step.machine);
            last = AttemptStep::take(&before, event, at(1), miner).unwrap();
        }
        (before, last.unwrap())
    }

    #[test]
    fn an_offer_is_sent_to_a_miner_that_understands_it_and_is_stored_already() {
        let (before, step) = after(vec![Event::Connected], MUSTER);
        let started = StepMessage::Receipt {
            kind: ReceiptKind::Started,
            paid: false,
        };
        assert_eq!(step.messages, [started]);
        assert!(!step.is_stored(&before, false));
        assert!(step.is_stored(&before, true));
        let older = MinerAbilities {
            offer: false,
            ..MUSTER
        };
        assert_eq!(after(vec![Event::Connected], older).1.messages, []);
    }

    #[test]
    fn an_acceptance_is_stored_and_told_before_its_receipt_leaves() {
        let (before, step) = after(vec![Event::Connected, Event::Accepted], MUSTER);
        assert!(step.is_stored(&before, false));
        let statuses: Vec<_> = step.reports.iter().map(|(status, _)| *status).collect();
        assert_eq!(statuses, [JobStatus::Accepted]);
        assert!(step.messages.contains(&StepMessage::Receipt {
            kind: ReceiptKind::Accepted,
            paid: false
        }));
    }

    #[test]
    fn a_job_that_is_called_off_is_over_for_every_miner_and_told_to_those_that_understand() {
        let events = || {
            vec![
                Event::Connected,
                Event::Accepted,
                Event::Cancelled("enough".to_owned()),
            ]
        };
        let (_, told) = after(events(), MUSTER);
        assert!(told.messages.contains(&StepMessage::Cancellation));
        assert!(told.machine.outcome().is_some());
        assert_eq!(told.reports, [], "the driver reports the end");
        let compute_horde = MinerAbilities {
            cancellation: false,
            ..MUSTER
        };
        let (_, untold) = after(events(), compute_horde);
        assert!(!untold.messages.contains(&StepMessage::Cancellation));
        assert!(untold.machine.outcome().is_some());
    }

    #[test]
    fn a_lost_connection_is_dialled_again_and_not_stored() {
        let (before, step) = after(
            vec![Event::Connected, Event::Accepted, Event::Disconnected],
            MUSTER,
        );
        assert!(step.reconnects);
        assert!(!step.is_stored(&before, false));
    }
}
