//! The shell around the lease table of a simulated miner: it carries the table's effects out in the order of the real
//! one.

use std::time::Duration;

use futures_util::FutureExt as _;
use muster_miner::lease_table::{ConnectionId, Effect, LeaseWrite};
use muster_protocol::AttemptId;
use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::miner::GenericError;
use muster_protocol::wire::muster::{CancelJob, ReceiptCountersigned};
use muster_protocol::wire::validator_socket::MinerToValidator;

use crate::executor_link::Alarm;
use crate::faults::{Fault, Mutation};
use crate::invariants::{Invariant, Milestone};
use crate::miner::Miner;
use crate::network::Line;
use crate::world::{Frame, Happening, Node, World};

/// How long an executor may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(10); // paused time

impl World {
    /// Writes first, then speaks; killed in between if it is its time.
    pub(crate) fn carry_out(&mut self, index: usize, effects: Vec<Effect>) {
        let (writes, rest): (Vec<_>, Vec<_>) = effects
            .into_iter()
            .partition(|effect| matches!(effect, Effect::Write(_)));
        let writes: Vec<LeaseWrite> = writes
            .into_iter()
            .filter_map(|effect| {
                if let Effect::Write(write) = effect {
                    Some(write)
                } else {
                    None
                }
            })
            .collect();
        let away = self.weather.contains_key(&Fault::LoseDatabase);
        if away && !writes.is_empty() && !self.mutated(Mutation::MinerSpeaksFirst) {
            self.weather.remove(&Fault::LoseDatabase);
            return self.kill(Node::Miner(index));
        }
        if self.mutated(Mutation::MinerSpeaksFirst) {
            for effect in rest {
                self.outward(index, effect);
            }
            if !self.may_die_here(Node::Miner(index)) {
                self.write(index, &writes);
            }
            return;
        }
        self.write(index, &writes);
        if !writes.is_empty() && self.may_die_here(Node::Miner(index)) {
            return;
        }
        for effect in rest {
            self.outward(index, effect);
        }
    }

    fn write(&mut self, index: usize, writes: &[LeaseWrite]) {
        let Some(miner) = self.miners.get(index) else {
            return;
        };
        let written = miner.store.commit(writes, 0).now_or_never();
        if let Some(Err(error)) = written {
            self.violate(
                Invariant::RunOnce,
                format!("miner {index} cannot write {writes:?}: {error}"),
            );
        }
        for write in writes {
            if let LeaseWrite::Held { attempt, .. } = write {
                self.ledger.fences.entry(*attempt).or_default().admit();
            }
        }
    }

    fn outward(&mut self, index: usize, effect: Effect) {
        match effect {
            Effect::Write(_) => {}
            Effect::Tell { to, message } | Effect::Live { to, message } => {
                self.told_once(&message);
                for ConnectionId(line) in to {
                    self.send(line, 1, Frame::FromMiner(message.clone()));
                }
            }
            Effect::Retell { to, attempt } => {
                if self.mutated(Mutation::MinerTellsOnce) {
                    return;
                }
                let history = self
                    .miners
                    .get(index)
                    .map(|miner| miner.history(attempt))
                    .unwrap_or_default();
                for message in history {
                    self.told_once(&message);
                    self.send(to.0, 1, Frame::FromMiner(Box::new(message)));
                }
            }
            Effect::RepeatReceipt { to, attempt, kind } => {
                let receipts = self.miners.get(index).map(Miner::receipts).unwrap_or_default();
                let held = receipts
                    .into_iter()
                    .find(|receipt| receipt.payload.attempt() == attempt && receipt.payload.kind() == kind);
                if let Some(receipt) = held {
                    let message =
                        MinerToValidator::MusterReceiptCountersigned(Box::new(ReceiptCountersigned {
                            receipt,
                        }));
                    self.send(to.0, 1, Frame::FromMiner(Box::new(message)));
                }
            }
            Effect::Start { token, .. } => {
                let attempt = token.attempt();
                let life = self.miners.get(index).map(|miner| miner.life).unwrap_or_default();
                let id = self.start_executor(index, life, token);
                if let Some(miner) = self.miners.get_mut(index) {
                    miner.processes.insert(attempt, id);
                }
            }
            Effect::Admit { dial, attempt } => {
                let Some(miner) = self.miners.get_mut(index) else {
                    return;
                };
                miner.dialling.remove(&dial.0);
                let before = miner.executors.insert(attempt, dial.0);
                // An executor elsewhere has one connection for all its leases, which stays.
                if let Some(line) = before.filter(|line| *line != dial.0 && !self.traits.remote) {
                    self.replace_line(line);
                }
            }
            Effect::Dismiss { dial, details } => self.dismiss(index, dial.0, details),
            Effect::Order { attempt, message } => {
                let line = self
                    .miners
                    .get(index)
                    .and_then(|miner| miner.executors.get(&attempt).copied());
                if let Some(line) = line {
                    self.send(line, 1, Frame::ToExecutor(message));
                }
            }
            // Simulated executors have every image.
            Effect::Shelve(_) => {}
            Effect::Resume { token, apart, .. } => self.resume(index, token.attempt(), apart),
            Effect::StopExecutor { attempt } => {
                let Some(miner) = self.miners.get_mut(index) else {
                    return;
                };
                let (line, process) = (
                    miner.executors.remove(&attempt),
                    miner.processes.get(&attempt).copied(),
                );
                if let Some(line) = line {
                    self.close(line, 1);
                }
                if let Some(id) = process.filter(|_| !self.traits.remote) {
                    self.after(PATIENCE, Happening::Alarm(id, Alarm::Terminate));
                }
            }
        }
    }

    fn dismiss(&mut self, index: usize, line: Line, details: String) {
        let Some(miner) = self.miners.get_mut(index) else {
            return;
        };
        let dialling = miner.dialling.remove(&line);
        let serving = miner.executors.iter().find(|(_, other)| **other == line);
        let serving = serving.map(|(attempt, _)| *attempt);
        let message = match (dialling, serving) {
            (Some((attempt, true)), _) => MinerToExecutor::MusterCancelJob(CancelJob {
                job_uuid: attempt,
                reason: details,
            }),
            (Some((_, false)), _) | (None, Some(_)) => MinerToExecutor::GenericError(GenericError {
                details: Some(details),
                job_uuid: None,
            }),
            // Another connection serves the lease, and this one is being closed.
            (None, None) => return,
        };
        if let Some(attempt) = serving {
            miner.executors.remove(&attempt);
        }
        self.send(line, 1, Frame::ToExecutor(Box::new(message)));
        self.close(line, 1);
    }

    /// Watches the process of a restored lease, if it runs on this machine.
    fn resume(&mut self, index: usize, attempt: AttemptId, apart: bool) {
        let Some(miner) = self.miners.get_mut(index) else {
            return;
        };
        miner.restored.insert(attempt);
        self.ledger.reached.insert(Milestone::LeaseRestored);
        if !apart {
            return;
        }
        let life = miner.life;
        let mut executors = self.executors.iter_mut();
        let found = executors.find(|(_, executor)| executor.attempt == attempt && executor.alive);
        match found {
            Some((id, executor)) => {
                executor.life = Some(life);
                miner.processes.insert(attempt, *id);
            }
            None => {
                let soon = self.dice.millis(1, 50);
                let exited = Happening::Exited {
                    miner: index,
                    life,
                    attempt,
                };
                self.after(soon, exited);
            }
        }
    }

    /// The end that a miner reports of an attempt stays the same.
    fn told_once(&mut self, message: &MinerToValidator) {
        let ends = matches!(
            message,
            MinerToValidator::V0JobFinishedRequest(_)
                | MinerToValidator::V0JobFailedRequest(_)
                | MinerToValidator::V0HordeFailedRequest(_)
        );
        let Some(attempt) = message.attempt().filter(|_| ends) else {
            return;
        };
        let told = self.ledger.told.entry(attempt).or_insert_with(|| message.clone());
        if told != message {
            let how =
                format!("attempt {attempt} was told to have ended with {told:?}, then with {message:?}");
            self.violate(Invariant::SameEnd, how);
        }
    }
}
