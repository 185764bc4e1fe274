//! Receipts of all validators, as miners and validators serve them: pages of five minutes that grow, fetched in pieces.
//!
//! [`page_plan`] plans the requests, [`fetch`] makes them, [`page_lines`] cuts the bytes into lines, [`page_check`]
//! checks the receipts in a batch, [`quota`] bounds the receipts of a validator and a miner in a cycle. All but `fetch`
//! are pure. The caller stores the cursors and the receipts, in one transaction.
//!
//! The serving party is not trusted: everything that it sends is bounded, and a line that is not a receipt of its own
//! with two valid signatures is rejected with a reason and counted.

pub mod fetch;
pub mod page_check;
pub mod page_lines;
pub mod page_plan;
pub mod quota;

pub use fetch::{FetchError, Fetcher, PagePiece};
pub use page_check::{
    CheckedBatch, PageSource, ReadingRules, ReceiptKey, ReceiptRejection, RejectionReason, check_receipts,
    key_of, read_lines, reject_over_quota,
};
pub use page_lines::{CutLines, MAX_LINE, cut_lines};
pub use page_plan::{
    MAX_PAGE, PageCursor, PagePart, PageRequest, advance_cursor, growing_pages, plan_requests,
};
pub use quota::{
    CycleScale, PairCycle, PairStrength, ReceiptAmount, ReceiptQuota, ReceiptTally, payload_bytes,
};
