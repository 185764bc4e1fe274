//! The commands of a validator's operator: `muster validator collateral`, `muster validator slash`, `muster validator
//! adopt`, `muster validator check-trusted-miner`, `muster audit run`, `muster audit self-test`, and the text of
//! `muster route explain`; and the wait for miners' offers.
//!
//! [`score`] has the commands about scores and spot checks that need no validator: they read files. Each of the others
//! asks the running validator at the address of its status page. The validator's operator token admits a slash,
//! an adoption, a check, an audit and a self-test.

mod adopt_command;
mod amount;
mod audit_commands;
mod check;
mod collateral_list;
mod cross_checks;
mod printed_verdicts;
mod route_text;
pub mod score;
mod self_tests;
mod slash_command;
mod validator_calls;
mod wait_for_offers;

pub use adopt_command::{AdoptArguments, adopt_audit};
pub use amount::parse_tao;
pub use audit_commands::{
    AuditOrderArguments, ExplainAuditArguments, ShowAuditArguments, fetch_bundle, list_audits, run_audits,
    show_audit,
};
pub use check::{CheckArguments, check_trusted_miner};
pub use collateral_list::list_collateral;
pub use cross_checks::list_cross_checks;
pub use route_text::describe_routes;
pub use self_tests::{SelfTestArguments, self_test};
pub use slash_command::{SlashArguments, slash_miner};
pub use validator_calls::OperatorToolError;
pub use wait_for_offers::wait_for_offers;
