//! Audits: when one begins, the answers of its subject, how they are scored, and the verdict that comes of it.

pub(crate) mod adoption;
pub(crate) mod audit_run;
pub(crate) mod recovery;
pub(crate) mod reference_pair;
pub(crate) mod reference_start;
pub(crate) mod run_record;
pub(crate) mod stored_evidence;
pub(crate) mod subject;
pub(crate) mod unauditable_answers;
