//! The store without an engine: gone with the process. It passes the tests of the others and serves simulations, which
//! a database's sockets and threads would not let run in one thread and in their own time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use muster_protocol::wire::encode;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{AttemptId, Receipt, ReceiptKind, Signature, Timestamp, ValidatorKey};
use muster_store::StoreError;
use parking_lot::{Mutex, MutexGuard};

use super::page_line::PageLine;
use crate::lease::LeaseSnapshot;
use crate::lease_table::{HeldLease, LeaseRecord, LeaseStatus, LeaseWrite};

/// The tables. Clones are one.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryStore(Arc<Mutex<Tables>>);

#[derive(Clone, Debug, Default)]
struct Tables {
    leases: BTreeMap<AttemptId, Lease>,
    /// In the order in which the pages list them.
    receipts: Vec<(i64, Receipt)>,
    greetings: HashMap<Signature, Timestamp>,
    greeted: BTreeMap<ValidatorKey, Timestamp>,
}

#[derive(Clone, Debug)]
struct Lease {
    validator: ValidatorKey,
    status: LeaseStatus,
    at: Timestamp,
    history: Vec<MinerToValidator>,
    held: Option<Box<LeaseSnapshot>>,
}

impl MemoryStore {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        // Every change is made on a copy that replaces the whole, so a panic elsewhere cannot have spoilt it.
        self.0.lock()
    }

    pub(super) fn records(&self) -> Vec<LeaseRecord> {
        let tables = self.tables();
        let receipt_of = |attempt: &AttemptId, kind| {
            let mut receipts = tables.receipts.iter().map(|(_, receipt)| receipt);
            receipts
                .find(|receipt| receipt.payload.attempt() == *attempt && receipt.payload.kind() == kind)
                .cloned()
        };
        let held = |attempt: &AttemptId, lease: &Lease| {
            Some(HeldLease {
                snapshot: lease.held.clone()?,
                started: receipt_of(attempt, ReceiptKind::Started)?,
                accepted: receipt_of(attempt, ReceiptKind::Accepted),
            })
        };
        let record = |(attempt, lease): (&AttemptId, &Lease)| LeaseRecord {
            held: held(attempt, lease),
            attempt: *attempt,
            validator: lease.validator,
            status: lease.status,
            receipts: tables
                .receipts
                .iter()
                .filter(|(_, receipt)| receipt.payload.attempt() == *attempt)
                .map(|(_, receipt)| receipt.payload.kind())
                .collect(),
            at: lease.at,
        };
        tables.leases.iter().map(record).collect()
    }

    pub(super) fn commit(&self, writes: &[LeaseWrite], page: i64) -> Result<Vec<PageLine>, StoreError> {
        let mut tables = self.tables();
        let mut changed = tables.clone();
        let mut lines = Vec::new();
        for write in writes {
            lines.extend(changed.apply(write, page)?);
        }
        *tables = changed;
        Ok(lines)
    }

    pub(super) fn history(&self, attempt: AttemptId) -> Vec<String> {
        let tables = self.tables();
        let history = tables
            .leases
            .get(&attempt)
            .map(|lease| lease.history.iter().map(encode).collect());
        history.unwrap_or_default()
    }

    pub(super) fn receipt(&self, attempt: AttemptId, kind: ReceiptKind) -> Option<Receipt> {
        let tables = self.tables();
        let mut receipts = tables.receipts.iter().map(|(_, receipt)| receipt);
        receipts
            .find(|receipt| receipt.payload.attempt() == attempt && receipt.payload.kind() == kind)
            .cloned()
    }

    pub(super) fn lines_since(&self, first: i64) -> Vec<PageLine> {
        let mut lines: Vec<_> = self
            .tables()
            .receipts
            .iter()
            .filter(|(page, _)| *page >= first)
            .map(|(page, receipt)| PageLine {
                page: *page,
                line: encode(receipt),
            })
            .collect();
        lines.sort_by_key(|line| line.page);
        lines
    }

    pub(super) fn first_use(&self, greeting: &Signature, expires: Timestamp) -> bool {
        let mut tables = self.tables();
        let first = !tables.greetings.contains_key(greeting);
        if first {
            tables.greetings.insert(*greeting, expires);
        }
        first
    }

    pub(super) fn note_greeted(&self, validator: ValidatorKey, now: Timestamp) {
        self.tables().greeted.insert(validator, now);
    }

    pub(super) fn greeted_validators(&self) -> Vec<(ValidatorKey, Timestamp)> {
        let tables = self.tables();
        tables.greeted.iter().map(|(key, at)| (*key, *at)).collect()
    }

    pub(super) fn forget_greetings(&self, now: Timestamp) {
        self.tables().greetings.retain(|_, expires| *expires > now);
    }
}

impl Tables {
    fn apply(&mut self, write: &LeaseWrite, page: i64) -> Result<Option<PageLine>, StoreError> {
        match write {
            LeaseWrite::Opened {
                attempt,
                validator,
                at,
            } => {
                let lease = Lease {
                    validator: *validator,
                    status: LeaseStatus::Open,
                    at: *at,
                    history: vec![],
                    held: None,
                };
                if self.leases.insert(*attempt, lease).is_some() {
                    return Err(StoreError::corrupt(
                        "leases.attempt",
                        format!("{attempt} is opened twice"),
                    ));
                }
                Ok(None)
            }
            LeaseWrite::Held { attempt, snapshot } => {
                if let Some(lease) = self.leases.get_mut(attempt) {
                    lease.held = Some(snapshot.clone());
                }
                Ok(None)
            }
            LeaseWrite::Ended {
                attempt,
                status,
                history,
                at,
            } => {
                if let Some(lease) = self.leases.get_mut(attempt) {
                    lease.status = *status;
                    lease.history.clone_from(history);
                    lease.at = *at;
                    lease.held = None;
                }
                Ok(None)
            }
            LeaseWrite::Settled(attempt) => {
                if let Some(lease) = self.leases.get_mut(attempt) {
                    lease.status = LeaseStatus::Settled;
                }
                Ok(None)
            }
            LeaseWrite::Receipt(receipt) => {
                let (attempt, kind) = (receipt.payload.attempt(), receipt.payload.kind());
                let same = |held: &Receipt| held.payload.attempt() == attempt && held.payload.kind() == kind;
                if self.receipts.iter().any(|(_, held)| same(held)) {
                    return Ok(None);
                }
                self.receipts.push((page, (**receipt).clone()));
                let line = encode(&**receipt);
                Ok(Some(PageLine { page, line }))
            }
            LeaseWrite::Forgotten(attempts) => {
                for attempt in attempts {
                    self.leases.remove(attempt);
                }
                Ok(None)
            }
        }
    }
}
