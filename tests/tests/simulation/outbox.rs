//! The validator's status updates: the rows that its store has, by the store's rules, and the real window over each
//! connection to the facilitator.

use std::collections::BTreeMap;

use muster_protocol::wire::facilitator::JobStatusUpdate;
use muster_protocol::{JobId, JobStatus};

use crate::world::{Frame, Node, World};

/// The update of one row.
#[derive(Clone, Copy, Debug)]
struct Row {
    job: JobId,
    status: JobStatus,
    acknowledged: bool,
}

/// The rows by their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox {
    rows: BTreeMap<i64, Row>,
    next: i64,
}

impl Outbox {
    fn last_of(&self, job: JobId) -> Option<(i64, Row)> {
        let row = self.rows.iter().rev().find(|(_, row)| row.job == job);
        row.map(|(sequence, row)| (*sequence, *row))
    }

    fn insert(&mut self, job: JobId, status: JobStatus) {
        let row = Row {
            job,
            status,
            acknowledged: false,
        };
        self.rows.insert(self.next, row);
        self.next += 1;
    }

    /// Adds a status, unless it may not follow the job's present one.
    pub(crate) fn add(&mut self, job: JobId, status: JobStatus) {
        let follows = |(_, last): (i64, Row)| status.may_follow(last.status);
        if self.last_of(job).is_none_or(follows) {
            self.insert(job, status);
        }
    }

    /// Sends the last status of a job again, as the newest update, unless it still waits for its answer.
    pub(crate) fn repeat(&mut self, job: JobId) {
        if let Some((sequence, last)) = self.last_of(job).filter(|(_, last)| last.acknowledged) {
            self.rows.remove(&sequence);
            self.insert(job, last.status);
        }
    }

    fn next_updates(&self, after: Option<i64>, most: usize) -> Vec<(i64, Row)> {
        let behind = |sequence: &i64| after.is_none_or(|after| *sequence > after);
        self.rows
            .iter()
            .filter(|(sequence, row)| !row.acknowledged && behind(sequence))
            .take(most)
            .map(|(sequence, row)| (*sequence, *row))
            .collect()
    }
}

impl World {
    /// Sends the updates for which there is room on the connection to the facilitator. Something may have been added.
    pub(crate) fn report_next(&mut self) {
        let Some((line, mut window)) = self.validator.facilitator_line.take() else {
            return;
        };
        window.note_write();
        while let Some((after, room)) = window.wanted() {
            let updates = self.validator.outbox.next_updates(after, room);
            window.read(updates.len());
            for (sequence, row) in updates {
                window.sent(sequence);
                let update = JobStatusUpdate {
                    uuid: row.job,
                    status: row.status,
                    metadata: None,
                };
                self.send(line, 0, Frame::Status(Box::new(update)));
            }
        }
        self.validator.facilitator_line = Some((line, window));
    }

    /// The facilitator answered the oldest update that it has not answered.
    pub(crate) fn update_answered(&mut self) {
        let Some((_, window)) = &mut self.validator.facilitator_line else {
            return;
        };
        let sequence = window.answered();
        // The answer is stored later, with others: without it, the next process sends the update again.
        if self.may_die_here(Node::Validator) {
            return;
        }
        let row = sequence.and_then(|sequence| self.validator.outbox.rows.get_mut(&sequence));
        if let Some(row) = row {
            row.acknowledged = true;
        }
        self.report_next();
    }
}
