//! `dev_*`: what only a local chain offers. Tests drive the chain with it instead of waiting for time.

use super::error;
use crate::node::Node;
use jsonrpsee::core::RpcResult;
use jsonrpsee::proc_macros::rpc;
use serde::Serialize;
use sp_core::H256;

/// The most blocks that one call seals.
const MOST: u32 = 100_000;

/// The block that was sealed last.
#[derive(Serialize, Clone)]
pub(super) struct Sealed {
    number: u32,
    hash: H256,
}

#[rpc(server)]
pub(super) trait Dev {
    /// Seals `n` blocks, one without it, and returns the last. The first takes what waits in the pool.
    #[method(name = "dev_seal", blocking)]
    fn seal(&self, n: Option<u32>) -> RpcResult<Sealed>;
}

pub(super) struct Rpc(pub(super) Node);

impl DevServer for Rpc {
    fn seal(&self, n: Option<u32>) -> RpcResult<Sealed> {
        let n = n.unwrap_or(1);
        if n == 0 || n > MOST {
            return Err(error::params(format!(
                "seal between 1 and {MOST} blocks at once, not {n}"
            )));
        }
        let mut last = self.0.head();
        for _ in 0..n {
            last = self.0.seal().map_err(|cause| error::internal(&cause))?;
        }
        Ok(Sealed {
            number: last.header.number,
            hash: last.hash,
        })
    }
}
