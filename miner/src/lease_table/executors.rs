//! The lease table's answers to executors.

use muster_protocol::wire::miner::{ExecutorManifest, FromMiner};
use muster_protocol::{AttemptId, ExecutorToken, Manifest, Timestamp};

use super::validators::executor_complaint;
use super::{ConnectionId, DialId, Effect, LeaseTable};
use crate::lease::{self, ExecutorReport, LeaseState};

impl LeaseTable {
    /// A token is valid once: for its lease, while that lease waits for its executor.
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
        report: ExecutorReport,
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

    /// The whole capacity of the miner at this moment.
    pub(super) fn manifest(&self) -> Manifest {
        self.rules.manifest.plus(&self.standing)
    }

    /// Muster validators get the new manifest at once. Others get it when they connect, since a second one might
    /// confuse them.
    pub(super) fn on_capacity(&mut self, standing: Manifest) -> Vec<Effect> {
        if self.standing == standing {
            return vec![];
        }
        self.standing = standing;
        let mut everyone: Vec<_> = self.connections.keys().copied().collect();
        everyone.sort_unstable();
        let manifest = self.manifest();
        let message = FromMiner::V0ExecutorManifestRequest(ExecutorManifest { manifest });
        vec![Effect::Tell {
            to: self.muster_only(&everyone),
            message: Box::new(message),
        }]
    }

    /// Those of the connections whose other side is Muster.
    pub(super) fn muster_only(&self, connections: &[ConnectionId]) -> Vec<ConnectionId> {
        let muster = |id: &&ConnectionId| self.connections.get(id).is_some_and(|known| known.muster);
        connections.iter().filter(muster).copied().collect()
    }

    fn serves(&self, dial: DialId, attempt: AttemptId) -> bool {
        self.active
            .get(&attempt)
            .is_some_and(|active| active.executor == Some(dial))
    }
}
