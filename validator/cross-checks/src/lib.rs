//! Cross-checks: jobs that run again on the validator's own miner, whose outputs are compared. Users' jobs are refunded
//! by them; only the validator's own deterministic jobs lower a miner's quality.
//!
//! Everything that is judged is pure: [`outputs`] (what is compared), [`verdict`] (what the runs of one job show),
//! [`job_draw`] (which users' jobs run again), [`rerun_job`] (the job that runs), [`image_marks`] (images that may tell
//! machines apart), [`refund_rule`] (which answers are refunded), `report_verdict` (the results of reports). Of the own
//! jobs: [`own_draw`] (who gets one, and when), [`job_form`] (what a miner sees of it), [`own_job`] (the job),
//! [`own_check`] (what its runs show), [`coldkey_test`] (what the jobs of a coldkey show). The shell around it:
//! `check_tasks` (the tasks of a validator), `own_check_tasks`, `reports` (users' reports of cheating), `refunds`,
//! `http_call` (the status page), [`store`].

mod check_tasks;
pub mod coldkey_test;
mod http_call;
pub mod image_marks;
pub mod job_draw;
pub mod job_form;
pub mod outputs;
pub mod own_check;
mod own_check_tasks;
pub mod own_draw;
pub mod own_job;
#[cfg(test)]
mod quality_tests;
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
pub use settings::{CrossCheckSettings, OwnProgram};
pub use store::CheckStore;
