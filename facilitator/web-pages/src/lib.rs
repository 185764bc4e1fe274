//! The facilitator's web pages as HTML text. Pure: a page is a function of the answers of the REST API and of the time.
//!
//! `muster-page-layout` has the styles, the script, the policy under which browsers load nothing else, and the document
//! around a page. [`frame`] is the rest around a user's page. The other modules have one page each, and [`status`] the
//! parts that they share. Every text from a user or a job passes through [`text::plain`] where it may have several
//! lines, and through the escaping of `maud` everywhere.

pub mod chat;
pub mod checked_receipts;
pub mod files;
pub mod frame;
pub mod job;
mod job_check;
mod job_completion;
mod job_cost;
mod job_curves;
mod job_failure;
pub mod job_output;
mod job_route;
mod job_timeline;
pub mod jobs;
pub mod keys;
pub mod new_job;
pub mod notice;
pub mod overview;
pub mod proof;
pub mod sign_in_page;
pub mod status;
pub mod usage;

pub use muster_page_layout::{headers_and_assets, text};

/// A part of a page: the answer of the API, or the reason as text why there is none. One part that fails does not take
/// the others away.
pub type PagePart<T> = Result<T, String>;
