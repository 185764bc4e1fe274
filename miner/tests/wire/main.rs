//! A whole miner in this process, with a scripted validator and a scripted executor on real sockets.
//!
//! The modules are marked as tests so that lints which spare tests spare their helpers too.

#[cfg(test)]
mod audits;
#[cfg(test)]
mod chain;
#[cfg(test)]
#[path = "../../../crates/foundation/chain/tests/it/support.rs"]
#[expect(dead_code, reason = "the chain client's own tests use more of it")]
mod devchain;
#[cfg(test)]
mod greeting;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod jobs;
#[cfg(test)]
mod persistent;
#[cfg(test)]
mod reattaching;
#[cfg(test)]
mod receipts;
#[cfg(test)]
mod restarts;
#[cfg(test)]
mod sessions;
mod tls;
