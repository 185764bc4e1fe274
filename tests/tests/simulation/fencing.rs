//! The reports and the returns of executors at a simulated miner, held against a model of the fence of each lease.

use std::time::Duration;

use muster_miner::lease::{ExecutorReport, ReturningExecutor};
use muster_miner::lease_table::{DialId, Effect, Event, LeaseStatus};
use muster_protocol::AttemptId;
use muster_protocol::wire::executor::{OneTimeSecret, Reattach};

use crate::faults::Mutation;
use crate::invariants::{Invariant, Milestone};
use crate::network::Line;
use crate::world::World;

/// Which secrets of a lease admit an executor: the newest, and the one before until the newest is shown.
#[derive(Debug, Default)]
pub(crate) struct FenceModel {
    valid: Vec<OneTimeSecret>,
    /// The secrets that are valid once the miner has written the admission down.
    asked: Vec<OneTimeSecret>,
}

impl FenceModel {
    /// An executor shows its token.
    pub(crate) fn offer(&mut self, secret: &OneTimeSecret) {
        self.asked = vec![secret.clone()];
    }

    /// An executor shows a secret.
    pub(crate) fn ask(&mut self, shown: &OneTimeSecret, next: &OneTimeSecret) {
        self.asked = vec![shown.clone(), next.clone()];
    }

    /// It is admitted.
    pub(crate) fn admit(&mut self) {
        self.valid = std::mem::take(&mut self.asked);
    }

    pub(crate) fn admits(&self, shown: &OneTimeSecret) -> bool {
        self.valid.contains(shown)
    }

    pub(crate) fn newest(&self) -> Option<OneTimeSecret> {
        self.valid.last().cloned()
    }
}

impl World {
    /// A report counts only on the connection that was admitted last.
    pub(crate) fn executor_reports(
        &mut self,
        index: usize,
        line: Line,
        attempt: AttemptId,
        report: ExecutorReport,
    ) {
        let serving = self.ledger.serving.get(&attempt).copied();
        let mut dial = line;
        if self.mutated(Mutation::MinerIgnoresFence) {
            dial = serving.unwrap_or(line);
        }
        let said = Event::Said {
            dial: DialId(dial),
            attempt,
            report: Box::new(report),
        };
        let effects = self.ask(index, said);
        let refused = matches!(effects.first(), Some(Effect::Dismiss { dial, .. }) if dial.0 == line);
        if refused {
            self.ledger.reached.insert(Milestone::FencedOff);
        }
        if serving != Some(line) && !refused {
            let how =
                format!("a report on attempt {attempt} counted, of a connection that does not serve it");
            self.violate(Invariant::Fenced, how);
        }
        self.settle(index, effects);
    }

    /// An executor shows the secret of its lease. Only the two that the model knows admit it.
    pub(crate) fn executor_returns(&mut self, index: usize, line: Line, back: Reattach) {
        let attempt = back.job_uuid;
        let Some(miner) = self.miners.get_mut(index) else {
            return;
        };
        let known = miner.executors.values().any(|other| *other == line);
        if known || miner.dialling.insert(line, (attempt, true)).is_some() {
            return;
        }
        let next = self.draw_secret();
        let fence = self.ledger.fences.entry(attempt).or_default();
        let admits = fence.admits(&back.secret);
        let mut shown = back.secret;
        if self.mutation == Some(Mutation::MinerTakesAnySecret) {
            shown = fence.newest().unwrap_or(shown);
        }
        fence.ask(&shown, &next);
        let event = Event::Reattached {
            dial: DialId(line),
            attempt,
            back: ReturningExecutor {
                shown,
                next,
                job_age: back.job_ms.map(Duration::from_millis),
            },
        };
        let effects = self.ask(index, event);
        let admitted = matches!(effects.first(), Some(Effect::Admit { .. }));
        if !admitted && admits {
            self.ledger.reached.insert(Milestone::TurnedAway);
        }
        if admitted && !admits {
            let how = format!("attempt {attempt} took an executor back that shows no secret of it");
            self.violate(Invariant::Fenced, how);
        }
        self.settle(index, effects);
    }

    /// Somebody who knows an attempt and no secret tries to serve it.
    pub(crate) fn intrude(&mut self) {
        let records = self.miners.iter().enumerate().flat_map(|(index, miner)| {
            let open = miner.records().into_iter();
            let open = open.filter(|record| record.status == LeaseStatus::Open);
            open.map(move |record| (index, record.attempt))
        });
        let mut open: Vec<_> = records.collect();
        open.sort_unstable();
        let chosen = usize::try_from(self.dice.below(open.len() as u64)).unwrap_or_default();
        let Some((index, attempt)) = open.get(chosen).copied() else {
            return;
        };
        let line = self.next_line;
        self.next_line += 1;
        let back = Reattach {
            job_uuid: attempt,
            epoch: 1,
            secret: self.draw_secret(),
            job_ms: None,
        };
        self.executor_returns(index, line, back);
    }

    pub(crate) fn draw_secret(&mut self) -> OneTimeSecret {
        let mut bytes = [0; 32];
        for (byte, drawn) in bytes.iter_mut().zip(self.dice.draw().to_be_bytes()) {
            *byte = drawn;
        }
        OneTimeSecret::from_bytes(bytes)
    }
}
