//! A miner's side of spot checks.
//!
//! A validator shows each miner the headers of its log with the miner's own leaves, later the draw and the outcomes of
//! drawn answers, and the verdicts that it scores with. A [`AuditCheck`] receives these notices, compares them with the
//! proofs of the miner's executors, replays bundles, and keeps faults as [`Finding`]s.
//!
//! Reading order: [`header_check`], [`omissions`], [`outcome_check`], [`evidence`] and [`fetch`] decide, purely;
//! [`store`] keeps; [`AuditCheck`] talks; [`appeal()`] signs.

mod appeal;
mod audit_check;
pub mod evidence;
pub mod fetch;
mod finding;
pub mod header_check;
pub mod omissions;
pub mod outcome_check;
pub mod store;

pub use appeal::{AppealError, appeal};
pub use audit_check::{AuditCheck, AuditCheckConversation};
pub use finding::{Finding, FindingKind};
pub use store::AuditCheckStore;
