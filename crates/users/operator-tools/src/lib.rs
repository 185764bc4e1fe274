//! The commands of a validator's operator: `muster validator collateral`, `muster validator slash`, `muster validator
//! adopt`, `muster validator check-trusted-miner`, `muster audit run`, and the text of `muster route explain`.
//!
//! Each asks the running validator at the address of its status page. The validator's operator token admits a slash,
//! an adoption, a check and an audit.

mod adopt;
mod amount;
mod audits;
mod calls;
mod check;
mod listing;
mod route_text;
mod slash;
mod verdicts;

pub use adopt::{AdoptArguments, adopt_audit};
pub use audits::{
    AuditOrderArguments, ExplainAuditArguments, ShowAuditArguments, fetch_bundle, list_audits, run_audits,
    show_audit,
};
pub use calls::OperatorToolError;
pub use check::{CheckArguments, check_trusted_miner};
pub use listing::list_collateral;
pub use route_text::describe_routes;
pub use slash::{SlashArguments, slash_miner};
