//! Limits of the messages about spot checks, which both sides keep.

/// The most leaves of one notice of a header; a bucket with more of a miner's answers is told in parts.
pub const MAX_NOTICE_LEAVES: usize = 512;
/// The most headers between two that a miner gets: a day of buckets.
pub const MAX_BETWEEN: usize = 288;
/// The longest part of a bundle, in bytes before base64.
pub const MAX_PART_BYTES: usize = 512 * 1024;
/// The longest reason of an appeal, in bytes.
pub const MAX_APPEAL_REASON: usize = 1_000;
/// The most proofs that an executor tells of at once.
pub const MAX_SESSION_PROOFS: usize = 512;
