//! The board that is written for the operator: open leases, the newest ends and declines, the earnings, and the grades.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{Receipt, Timestamp};
use muster_status_views::miner::{DeclinedOffer, EndedLease, LeaseView, MAX_LISTED};
use muster_status_views::miner_earnings::EarningsTally;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::lease::{Lease, LeaseState};
use crate::lease_table::{Effect, LeaseWrite};
use crate::metrics::end_of;
use crate::published_grades::GradeBoard;

/// The most characters of a reason that are kept.
const MAX_WORDS: usize = 500;

/// The board. The dispatcher writes it, and the reader of grades its part; the operator's pages read it.
#[derive(Debug, Default)]
pub struct OperatorBoard {
    /// Whether somebody waits for the leases.
    asked: AtomicBool,
    leases: watch::Sender<LeaseList>,
    past: Mutex<PastEvents>,
    grades: GradeBoard,
}

/// The open leases as they were last asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseList {
    pub(crate) leases: Vec<LeaseView>,
    /// Leases beyond those.
    pub(crate) more: u64,
}

/// The newest events since the process began, and the earnings of the receipts of the pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct PastEvents {
    /// The newest first.
    pub(crate) ended: VecDeque<EndedLease>,
    /// The newest first.
    pub(crate) declines: VecDeque<DeclinedOffer>,
    pub(crate) earnings: EarningsTally,
}

// === impl OperatorBoard ===

impl OperatorBoard {
    /// Counts receipts of an earlier process: the lines of the pages.
    pub fn add_receipts<'a>(&self, lines: impl IntoIterator<Item = &'a str>) {
        let mut past = self.past.lock();
        for line in lines {
            if let Ok(receipt) = serde_json::from_str::<Receipt>(line) {
                past.earnings.add(&receipt);
            }
        }
    }

    /// Notes what the lease table has decided.
    pub(crate) fn note_effects(&self, effects: &[Effect], now: Timestamp) {
        // Most batches have nothing for the board.
        let is_told = |effect: &&Effect| matches!(effect, Effect::Write(_) | Effect::Tell { .. });
        if !effects.iter().any(|effect| is_told(&effect)) {
            return;
        }
        let mut past = self.past.lock();
        for effect in effects.iter().filter(is_told) {
            past.note(effect, now);
        }
    }

    /// Asks the dispatcher for the open leases. It answers after its next event.
    pub(crate) fn ask_leases(&self) -> watch::Receiver<LeaseList> {
        let answers = self.leases.subscribe();
        self.asked.store(true, Ordering::Release);
        answers
    }

    /// Shows the open leases, if somebody has asked.
    pub(crate) fn answer<'a>(&self, list: impl FnOnce() -> Vec<&'a Lease>) {
        if !self.asked.swap(false, Ordering::AcqRel) {
            return;
        }
        let open = list();
        let more = open.len().saturating_sub(MAX_LISTED);
        self.leases.send_replace(LeaseList {
            leases: open.into_iter().take(MAX_LISTED).map(view).collect(),
            more: u64::try_from(more).unwrap_or(u64::MAX),
        });
    }

    /// The grades that validators state about this miner.
    pub(crate) const fn grades(&self) -> &GradeBoard {
        &self.grades
    }

    pub(crate) fn past(&self) -> PastEvents {
        self.past.lock().clone()
    }
}

impl PastEvents {
    fn note(&mut self, effect: &Effect, now: Timestamp) {
        match effect {
            Effect::Write(LeaseWrite::Ended {
                attempt,
                status,
                history,
                at,
            }) => {
                let ended = EndedLease {
                    at: *at,
                    attempt: attempt.to_string(),
                    end: end_of(*status, history).to_owned(),
                    message: history.last().map(reason_of).unwrap_or_default(),
                };
                tracing::info!(%attempt, end = ended.end, reason = ended.message, "lease over");
                push(&mut self.ended, ended);
            }
            Effect::Write(LeaseWrite::Receipt(receipt)) => self.earnings.add(receipt),
            Effect::Tell { message, .. } => {
                if let MinerToValidator::V0DeclineJobRequest(decline) = &**message {
                    let declined = DeclinedOffer {
                        at: now,
                        attempt: decline.job_uuid.to_string(),
                        reason: decline.reason.to_string(),
                        message: short(&decline.message),
                    };
                    push(&mut self.declines, declined);
                }
            }
            Effect::Write(
                LeaseWrite::Opened { .. }
                | LeaseWrite::Held { .. }
                | LeaseWrite::Settled(_)
                | LeaseWrite::Forgotten(_),
            )
            | Effect::Live { .. }
            | Effect::Retell { .. }
            | Effect::RepeatReceipt { .. }
            | Effect::Start { .. }
            | Effect::Resume { .. }
            | Effect::Admit { .. }
            | Effect::Dismiss { .. }
            | Effect::Order { .. }
            | Effect::Shelve(_)
            | Effect::StopExecutor { .. } => {}
        }
    }
}

fn push<T>(events: &mut VecDeque<T>, event: T) {
    events.push_front(event);
    events.truncate(MAX_LISTED);
}

/// The failure that a last message reports; `None` for a result.
pub(crate) fn failure_of(last: &MinerToValidator) -> Option<String> {
    let failed = matches!(
        last,
        MinerToValidator::V0JobFailedRequest(_) | MinerToValidator::V0HordeFailedRequest(_)
    );
    failed.then(|| reason_of(last))
}

/// The reason in a last message.
fn reason_of(message: &MinerToValidator) -> String {
    if let MinerToValidator::V0JobFailedRequest(failed) = message {
        short(&failed.message)
    } else if let MinerToValidator::V0HordeFailedRequest(failed) = message {
        short(&failed.message)
    } else {
        String::new()
    }
}

fn short(words: &str) -> String {
    words.chars().take(MAX_WORDS).collect()
}

fn view(lease: &Lease) -> LeaseView {
    let state = match lease.state() {
        LeaseState::WaitingForExecutor => "waits for its executor",
        LeaseState::Preparing => "prepares",
        LeaseState::Fetching(_) => "fetches its image",
        LeaseState::WaitingForPayload => "waits for the job",
        LeaseState::Running(_) => "runs",
        LeaseState::Ended(_) => "ended",
    };
    LeaseView {
        attempt: lease.attempt().to_string(),
        validator: lease.validator().to_string(),
        class: lease.class().to_string(),
        state: state.to_owned(),
        deadline: lease.deadline(),
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::wire::miner::DeclineJob;
    use muster_protocol::{AttemptId, HordeFailureReason, JobRejectionReason, ParticipantType};

    use super::*;
    use crate::lease_table::LeaseStatus;

    fn attempt() -> AttemptId {
        "11111111-2222-4333-8444-555555555555".parse().unwrap()
    }

    #[test]
    fn declines_and_ends_are_listed_with_their_reasons_the_newest_first() {
        let board = OperatorBoard::default();
        let decline = |message: &str| Effect::Tell {
            to: vec![],
            message: Box::new(MinerToValidator::V0DeclineJobRequest(DeclineJob {
                job_uuid: attempt(),
                message: message.to_owned(),
                reason: JobRejectionReason::Busy,
                receipts: vec![],
                context: None,
            })),
        };
        for number in 0..300 {
            board.note_effects(&[decline(&format!("no {number}"))], Timestamp::from_secs(number));
        }
        let lost = crate::lease::horde_failed(
            attempt(),
            ParticipantType::Miner,
            HordeFailureReason::ExecutorDisconnected,
            "x".repeat(2_000),
        );
        let ended = Effect::Write(LeaseWrite::Ended {
            attempt: attempt(),
            status: LeaseStatus::Owed,
            history: vec![lost],
            at: Timestamp::from_secs(7),
        });
        board.note_effects(&[ended], Timestamp::from_secs(8));
        let past = board.past();
        assert_eq!(
            (past.declines.len(), past.declines[0].message.as_str()),
            (MAX_LISTED, "no 299")
        );
        assert_eq!(
            (past.ended[0].end.as_str(), past.ended[0].message.len()),
            ("horde_failed", MAX_WORDS)
        );
    }

    #[test]
    fn leases_are_listed_only_when_somebody_asks() {
        let board = OperatorBoard::default();
        let mut listed = 0;
        board.answer(|| {
            listed += 1;
            vec![]
        });
        assert_eq!(listed, 0);
        let answers = board.ask_leases();
        for _ in 0..2 {
            board.answer(|| {
                listed += 1;
                vec![]
            });
        }
        assert_eq!(listed, 1);
        assert!(answers.has_changed().unwrap());
    }
}
