//! The checks of a column: one end of each job on which everybody agrees, the receipts, and nothing that is left.

use std::collections::HashSet;

use muster_miner::lease_table::LeaseStatus;
use muster_miner::store::Store;
use muster_protocol::wire::decode;
use muster_protocol::{AttemptId, JobId, JobStatus, Receipt, ReceiptKind, ReceiptPayload};
use muster_testbed::wait_for;
use muster_tests::Role;
use serde_json::Value;

use super::cells::{Hold, Party, Strike};
use super::column::{Column, MINERS, Program, StruckJob};

impl Column {
    /// The one end that facilitator and validator agree on.
    pub(crate) fn agreed(&mut self, job: JobId, history: &[String]) -> JobStatus {
        let statuses: Vec<_> = history.iter().map(|word| JobStatus::from_wire(word)).collect();
        for pair in statuses.windows(2) {
            assert!(pair[1].may_follow(pair[0]), "job {job} went back: {history:?}");
        }
        let end = *statuses.last().unwrap();
        assert!(end.is_terminal(), "{history:?}");
        let parts = &mut self.parts;
        wait_for("the validator's agreement", || {
            parts.keep_running()?;
            let Ok(state) = parts.validator_state() else {
                return anyhow::Ok(None);
            };
            let waiting = state["updates_waiting"].as_u64();
            let told = job_in(&state, job).map(|job| job["status"].as_str() == Some(end.as_str()));
            Ok((told == Some(true) && waiting == Some(0)).then_some(()))
        })
        .unwrap();
        end
    }

    /// After all cells: the subnet works on, nobody owes anything, the receipts agree, and nothing is left.
    pub(crate) fn afterwards(mut self) {
        for number in 0..2 {
            let name = format!("last-{number}");
            self.outside.begin(&name, true, true);
            let job = self.submit(&name, self.image, Program::Short);
            let history = self.end_of(job, Program::Short);
            assert_eq!(self.agreed(job, &history), JobStatus::Completed, "{history:?}");
            self.keep(job, name, JobStatus::Completed, Hold::Over);
        }
        let state = self.parts.validator_state().unwrap();
        let mut theirs: Vec<Receipt> = Vec::new();
        for miner in MINERS {
            let store = self.settled_store(miner);
            let lines = self.runtime.block_on(store.lines_since(0)).unwrap();
            theirs.extend(lines.iter().map(|line| decode::<Receipt>(&line.line).unwrap()));
        }
        let mut ended = Vec::new();
        for struck in &self.jobs {
            let StruckJob { job, state: at, .. } = struck;
            let told = job_in(&state, *job).unwrap();
            let end = JobStatus::from_wire(told["status"].as_str().unwrap());
            let attempts = attempts_in(told);
            self.one_mark(struck, end, attempts.len());
            for (index, attempt) in attempts.iter().enumerate() {
                // Another attempt was made since this one had failed.
                let is_last = index + 1 == attempts.len();
                let is_paid = end == JobStatus::Completed && is_last;
                // A lost attempt is paid for the checkpoint that another one began from.
                let is_known = is_last || struck.at != Hold::CheckpointKept;
                receipts_agree(&state, &theirs, *attempt, is_known.then_some(is_paid), *at);
                self.wait_for_no_executor(*attempt);
            }
            ended.extend(attempts);
        }
        let left = self.attempts_with_containers();
        for attempt in ended {
            assert!(
                !left.contains(&attempt.to_string()),
                "a container of attempt {attempt} is left"
            );
        }
        let left = std::fs::read_dir(self.parts.work_dir())
            .map(Iterator::count)
            .unwrap_or_default();
        assert_eq!(left, 0, "folders of jobs are left");
    }

    /// A miner's store, once it has no open lease and owes no end.
    fn settled_store(&self, miner: Role) -> Store {
        let store = self
            .runtime
            .block_on(Store::open(self.parts.store(miner)))
            .unwrap();
        let runtime = &self.runtime;
        wait_for("a miner that owes nothing", || {
            let records = runtime.block_on(store.records())?;
            let open = records.iter().any(|record| match record.status {
                LeaseStatus::Open | LeaseStatus::Owed => true,
                LeaseStatus::Settled | LeaseStatus::Cancelled => false,
            });
            anyhow::Ok((!open).then_some(()))
        })
        .unwrap();
        store
    }

    /// A job's effect outside happened at most once in each run, and it happened for a job that succeeded.
    fn one_mark(&self, struck: &StruckJob, end: JobStatus, attempts: usize) {
        let marks = self.outside.marks(&struck.cell);
        let different: HashSet<_> = marks.iter().collect();
        // An executor that takes a job over does not know whether the output of its one run has arrived: it sends the
        // same bytes again.
        let repeats = struck.strike == Strike::Kill(Party::Executor) && struck.at == Hold::OutputHeld;
        assert!(
            repeats || different.len() == marks.len(),
            "a run left its mark twice: {marks:?}"
        );
        assert!(
            different.len() <= attempts,
            "{attempts} attempts left {} marks",
            different.len()
        );
        if end == JobStatus::Completed {
            assert!(!marks.is_empty(), "a job succeeded and left no mark");
        }
    }

    fn wait_for_no_executor(&self, attempt: AttemptId) {
        let parts = &self.parts;
        wait_for("the end of its executor", || {
            let left = parts.executors_of(&attempt.to_string())?;
            anyhow::Ok(left.is_empty().then_some(()))
        })
        .unwrap();
    }
}

/// The attempts of a job, oldest first.
fn attempts_in(job: &Value) -> Vec<AttemptId> {
    let attempts = job["attempts"].as_array().into_iter().flatten();
    attempts
        .map(|attempt| attempt["attempt"].as_str().unwrap().parse().unwrap())
        .collect()
}

fn job_in(state: &Value, job: JobId) -> Option<&Value> {
    state["jobs"]
        .as_array()?
        .iter()
        .find(|known| known["job"].as_str() == Some(job.to_string().as_str()))
}

/// Both sides hold the same receipts of an attempt, and it is paid or not as it should be, where that is known.
fn receipts_agree(
    state: &Value,
    theirs: &[Receipt],
    attempt: AttemptId,
    is_paid: Option<bool>,
    at: JobStatus,
) {
    for kind in ReceiptKind::ALL {
        let held: Vec<_> = theirs
            .iter()
            .filter(|receipt| receipt.payload.attempt() == attempt && receipt.payload.kind() == kind)
            .collect();
        assert!(held.len() <= 1, "{kind} of {attempt} is held twice");
        let own = state["receipts"].as_array().unwrap().iter().find(|receipt| {
            receipt["payload"]["job_uuid"].as_str() == Some(attempt.to_string().as_str())
                && receipt["payload"]["receipt_type"].as_str() == Some(kind.as_str())
        });
        let own = own.map(|own| serde_json::from_value::<ReceiptPayload>(own["payload"].clone()).unwrap());
        if let Some(held) = held.first() {
            assert_eq!(
                Some(&held.payload),
                own.as_ref(),
                "{kind} of {attempt}, struck at {at}"
            );
        }
        let taken = theirs.iter().any(|receipt| {
            receipt.payload.attempt() == attempt && receipt.payload.kind() == ReceiptKind::Started
        });
        // A miner owes no end of an attempt that it never accepted.
        if kind == ReceiptKind::Finished && taken {
            let held = held
                .first()
                .unwrap_or_else(|| panic!("no {kind} of {attempt}, struck at {at}"));
            let ReceiptPayload::Finished(receipt) = &held.payload else {
                panic!("{held:?}")
            };
            if let Some(is_paid) = is_paid {
                assert_eq!(receipt.score_str != "0.000000", is_paid, "{receipt:?}");
            }
        }
    }
}
