//! Carries out spot checks for a validator. All that is judged is judged in `muster-audit`; this crate does what a
//! judgement needs.
//!
//! A validator opens an [`AuditRunner`] beside its gateway. Reading order: `log` (buckets are closed and drawn from,
//! block by block), `own_prompts` (what the validator asks itself), `audits` (when one begins, its answers and its
//! verdict), `reference` (a machine that scores), `evidence` (the bundle), `notices` (what miners receive), `appeals`,
//! `self_test` (a cheat that is planted), `phases` (in which a validator may be killed), `http_calls` (the status
//! page), `store`.

mod answer_text;
mod appeals;
mod audits;
mod evidence;
mod http_calls;
mod log;
mod notices;
mod own_prompts;
mod phases;
mod reference;
mod reports;
mod runner;
mod runner_state;
mod self_test;
mod settings;
mod store;
#[cfg(test)]
mod testing;

pub use appeals::stored_appeal::StoredAppeal;
pub use audits::adoption::consequences;
pub use audits::run_record::{AuditRun, RunState};
pub use http_calls::AuditCalls;
pub use phases::{AuditPhase, PhaseObserver};
pub use reference::scoring_engine::{ReferenceEngine, SamplerSettings};
pub use runner::{AuditDeps, AuditRunner, OrderRefusal};
pub use runner_state::BarredMiners;
pub use settings::{PlantedCheat, SecondEngine, SelfTestSettings, Settings};
pub use store::audit_store::AuditStore;
pub use store::self_tests::{SelfTest, SelfTestState};
