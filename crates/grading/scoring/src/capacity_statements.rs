//! The statements by which validators agree on miners' capacity: `muster/capacity/1`.
//!
//! A validator states for every cycle what its probes proved of each miner, signs it, and serves it. The statement
//! names the digest of its evidence: the observations from which its rows follow. A validator that copies the rows
//! of another one has no evidence for them. A validator that signs two different statements for one cycle contradicts
//! itself; validators find that by the lists of what others have read ([`SeenList`]). `docs/scoring-snapshot.md`
//! describes the texts for other programs.

mod evidence;
mod seen_list;
mod statement;

pub use evidence::{CapacityEvidence, MAX_EVIDENCE_BYTES, MinerObservations, ObservedMiner, evidence_digest};
pub use seen_list::{MAX_SEEN_BYTES, SeenDigest, SeenDigests, SeenList};
pub use statement::{
    MAX_STATEMENT_BYTES, SignedStatement, StatementContext, StatementError, check_statement, sign_statement,
};
