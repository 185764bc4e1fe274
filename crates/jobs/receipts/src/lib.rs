//! Receipts of all validators, as miners serve them: pages of five minutes that grow, fetched in pieces.
//!
//! [`pages`] decides what to ask for, [`fetch`] asks, [`lines`] cuts what came into receipts, [`mod@check`] checks them in a
//! batch. All but `fetch` are pure. Whoever calls keeps the cursors and the receipts, in one transaction.
//!
//! A miner that serves is a stranger: everything that comes from it is bounded, and what is not a receipt of its own with
//! two good signatures is refused with a reason and counted.

pub mod check;
pub mod fetch;
pub mod lines;
pub mod pages;

pub use check::{
    CheckedBatch, ReceiptKey, ReceiptRejection, RejectionReason, check_receipts, key_of, read_lines,
};
pub use fetch::{FetchError, Fetcher, PagePiece};
pub use lines::{CutLines, MAX_LINE, cut_lines};
pub use pages::{MAX_PAGE, PageCursor, PagePart, PageRequest, advance_cursor, growing_pages, plan_requests};
