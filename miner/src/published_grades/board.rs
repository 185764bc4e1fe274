//! The grades as they were read last, for a miner's operator.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use muster_process::error::Causes;
use muster_protocol::{Timestamp, ValidatorKey};
use muster_receipts::FetchError;
use muster_scoring::capacity_statements::StatementError;
use muster_status_views::miner::{PublishedGrade, ValidatorGrades};
use parking_lot::Mutex;

/// The most characters of a reason that are kept.
const MAX_WORDS: usize = 300;

/// The statements as they were read last, by validator.
#[derive(Debug, Default)]
pub(crate) struct GradeBoard(Mutex<BTreeMap<ValidatorKey, ValidatorGrades>>);

/// The reason for which a validator's grades are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoGrades {
    #[error("the validator serves no pages, so it states no grades")]
    NoPages,
    #[error("the address of its pages, {0}, is not public and not in operator.dial_allow")]
    Address(SocketAddr),
    #[error("the validator has stated nothing for this cycle")]
    Nothing,
    #[error("the validator's statement does not name this miner")]
    NotNamed,
    #[error("the chain does not tell where it serves its pages")]
    Chain,
    #[error("the validator's statement cannot be read")]
    Fetch(#[from] FetchError),
    #[error("the validator's statement does not hold")]
    Statement(#[from] StatementError),
    #[error("the evidence of its statement is not served")]
    NoEvidence,
}

impl GradeBoard {
    /// The grades, by validator.
    pub(crate) fn list(&self) -> Vec<ValidatorGrades> {
        self.0.lock().values().cloned().collect()
    }

    /// Whether the statement of a validator for this cycle is there.
    pub(crate) fn has(&self, validator: ValidatorKey, cycle: u64) -> bool {
        let known = self.0.lock();
        known
            .get(&validator)
            .is_some_and(|grades| grades.cycle == Some(cycle))
    }

    /// Notes what was found. A statement that was read stays until there is a newer one.
    pub(crate) fn note(
        &self,
        validator: ValidatorKey,
        cycle: u64,
        found: Result<Vec<PublishedGrade>, NoGrades>,
        now: Timestamp,
    ) {
        let mut known = self.0.lock();
        let has_statement = known.get(&validator).is_some_and(|grades| grades.cycle.is_some());
        let (cycle, reason, grades) = match found {
            Ok(grades) => (Some(cycle), String::new(), grades),
            Err(error @ NoGrades::NotNamed) => (Some(cycle), error.to_string(), Vec::new()),
            Err(_) if has_statement => return,
            Err(error) => {
                let reason = Causes(&error).to_string().chars().take(MAX_WORDS).collect();
                (None, reason, Vec::new())
            }
        };
        let found = ValidatorGrades {
            validator: validator.to_string(),
            cycle,
            read_at: now,
            reason,
            grades,
        };
        known.insert(validator, found);
    }

    /// Forgets the validators that are not served any more.
    pub(crate) fn retain(&self, served: &[ValidatorKey]) {
        self.0.lock().retain(|validator, _| served.contains(validator));
    }
}
