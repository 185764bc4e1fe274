//! Receipts of all validators, as miners serve them: pages of five minutes that grow, fetched in pieces.
//!
//! [`pages`] decides what to ask for, [`fetch`] asks, [`lines`] cuts what came into receipts, [`mod@judge`] checks them in a
//! batch. All but `fetch` are pure. Whoever calls keeps the cursors and the receipts, in one transaction.
//!
//! A miner that serves is a stranger: everything that comes from it is bounded, and what is not a receipt of its own with
//! two good signatures is refused with a reason and counted.

pub mod fetch;
pub mod judge;
pub mod lines;
pub mod pages;

pub use fetch::{FetchError, Fetcher, Piece};
pub use judge::{Judged, Key, Refusal, Refused, judge, key_of, read};
pub use lines::{Cut, MAX_LINE, cut};
pub use pages::{Ask, Cursor, Form, MAX_PAGE, active, after, plan};
