//! Cross-checks: jobs of users that run again on the validator's own miner, whose outputs are compared.
//!
//! Everything that is judged is pure: [`outputs`] (what is compared), [`verdict`] (what the runs of one job show),
//! [`evidence`] (what the jobs of a coldkey show), [`draw`] (which jobs run again), [`rerun_job`] (the job that runs),
//! [`refund_rule`] (which answers are refunded), `report_verdict` (the results of reports). The shell around it:
//! `checker` (the tasks of a validator), `reports` (users' reports of cheating), `refunds`, `calls` (the status page),
//! [`store`].

mod calls;
mod checker;
pub mod draw;
pub mod evidence;
pub mod outputs;
pub mod refund_rule;
mod refunds;
mod report_verdict;
mod reports;
pub mod rerun_job;
pub mod settings;
pub mod store;
pub mod verdict;

pub use calls::routes;
pub use checker::{CheckDeps, CrossChecks, quality_factors};
pub use settings::CrossCheckSettings;
pub use store::CheckStore;
