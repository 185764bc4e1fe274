//! Cross-checks: jobs of users that run again on the validator's own miner, whose outputs are compared.
//!
//! Everything that is judged is pure: [`outputs`] (what is compared), [`verdict`] (what the runs of one job show),
//! [`coldkey_test`] (what the jobs of a coldkey show), [`job_draw`] (which jobs run again), [`rerun_job`] (the job that
//! runs), [`refund_rule`] (which answers are refunded), `report_verdict` (the results of reports). The shell around it:
//! `check_tasks` (the tasks of a validator), `reports` (users' reports of cheating), `refunds`, `http_call` (the status
//! page), [`store`].

mod check_tasks;
pub mod coldkey_test;
mod http_call;
pub mod job_draw;
pub mod outputs;
pub mod refund_rule;
mod refunds;
mod report_verdict;
mod reports;
pub mod rerun_job;
pub mod settings;
pub mod store;
pub mod verdict;

pub use check_tasks::{CheckDeps, CrossChecks, quality_factors};
pub use http_call::routes;
pub use settings::CrossCheckSettings;
pub use store::CheckStore;
