//! The book's answers to executors.

use muster_protocol::{AttemptId, ExecutorToken, Timestamp};

use super::validators::executor_complaint;
use super::{Book, DialId, Effect};
use crate::lease::{self, LeaseState, Report};

impl Book {
    /// A token opens the door once: to the lease it was made for, while that lease waits for its executor.
    pub(super) fn on_dialled(
        &mut self,
        dial: DialId,
        token: &ExecutorToken,
        executor_ip: Option<String>,
        now: Timestamp,
    ) -> Vec<Effect> {
        let attempt = token.attempt();
        match self.active_by_token(token).map(|active| active.lease.state()) {
            None => vec![Effect::Dismiss {
                dial,
                details: format!("No job waiting for token {token}"),
            }],
            Some(LeaseState::WaitingForExecutor) => {
                if let Some(active) = self.active.get_mut(&attempt) {
                    active.executor = Some(dial);
                }
                let mut effects = vec![Effect::Admit { dial, attempt }];
                let event = lease::Event::Dialled { executor_ip };
                effects.extend(self.drive(attempt, event, now).unwrap_or_default());
                effects
            }
            Some(
                LeaseState::Preparing
                | LeaseState::WaitingForPayload
                | LeaseState::Running(_)
                | LeaseState::Ended(_),
            ) => {
                let details = format!("Job with token {token} is not waiting for an executor");
                vec![Effect::Dismiss { dial, details }]
            }
        }
    }

    /// A report counts only on the connection that was admitted to the lease: the fence.
    pub(super) fn on_said(
        &mut self,
        dial: DialId,
        attempt: AttemptId,
        report: Report,
        now: Timestamp,
    ) -> Vec<Effect> {
        if !self.serves(dial, attempt) {
            let details = format!("attempt {attempt} has ended, or is served by another executor");
            return vec![Effect::Dismiss { dial, details }];
        }
        match self.drive(attempt, lease::Event::Said(report), now) {
            Ok(effects) => effects,
            Err(refused) => vec![Effect::Order {
                attempt,
                message: executor_complaint(refused.to_string()),
            }],
        }
    }

    pub(super) fn on_executor_gone(
        &mut self,
        dial: DialId,
        attempt: AttemptId,
        now: Timestamp,
    ) -> Vec<Effect> {
        if !self.serves(dial, attempt) {
            return vec![];
        }
        self.drive(attempt, lease::Event::ExecutorGone, now)
            .unwrap_or_default()
    }

    fn serves(&self, dial: DialId, attempt: AttemptId) -> bool {
        self.active
            .get(&attempt)
            .is_some_and(|active| active.executor == Some(dial))
    }
}
