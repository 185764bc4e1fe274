//! `dev_*`: what only a local chain offers. Tests drive the chain with it instead of waiting for time, and make go
//! wrong what goes wrong on a public one.

use super::error;
use crate::block::Block;
use crate::faults::Fault;
use crate::node::{Error, Node};
use jsonrpsee::core::RpcResult;
use jsonrpsee::core::server::ConnectionId;
use jsonrpsee::proc_macros::rpc;
use jsonrpsee::types::ErrorObjectOwned;
use jsonrpsee::{Extensions, core::async_trait};
use serde::Serialize;
use sp_core::H256;
use std::time::Duration;

/// The most blocks that one call seals.
const MOST: u32 = 100_000;
/// The longest that new connections are refused, in milliseconds.
const LONGEST_REFUSAL: u64 = 3_600_000;

/// A block's name.
#[derive(Serialize, Clone)]
pub(super) struct Named {
    number: u32,
    hash: H256,
}

impl From<&Block> for Named {
    fn from(block: &Block) -> Self {
        Self {
            number: block.header.number,
            hash: block.hash,
        }
    }
}

/// Where the chain stands.
#[derive(Serialize, Clone)]
pub(super) struct Heads {
    best: Named,
    finalized: Named,
    /// The best block's time in milliseconds; none at genesis.
    timestamp: Option<u64>,
}

#[rpc(server)]
pub(super) trait Dev {
    /// Seals `n` blocks, one without it, and returns the last. The first takes what waits in the pool.
    #[method(name = "dev_seal", blocking)]
    fn seal(&self, n: Option<u32>) -> RpcResult<Named>;

    /// Gives the next block its time, in milliseconds since 1970.
    #[method(name = "dev_setTime", blocking)]
    fn set_time(&self, ms: u64) -> RpcResult<()>;

    /// Makes the next block later by some milliseconds, and with it all that follow.
    #[method(name = "dev_advance", blocking)]
    fn advance(&self, ms: u64) -> RpcResult<()>;

    /// Where the chain stands.
    #[method(name = "dev_heads")]
    fn heads(&self) -> RpcResult<Heads>;

    /// How many blocks the last final one is behind the best, and whether none becomes final.
    #[method(name = "dev_setFinality", blocking)]
    fn set_finality(&self, lag: Option<u32>, stalled: Option<bool>) -> RpcResult<Heads>;

    /// Stops or resumes sealing by time. `dev_seal` seals all the same.
    #[method(name = "dev_stallHead")]
    fn stall_head(&self, stalled: bool) -> RpcResult<()>;

    /// Gives up the last `depth` blocks, which must not be final, and seals one more than that in their place. With
    /// `keep`, which is the default, the transactions that were in them are in the new ones where they can be.
    #[method(name = "dev_reorg", blocking)]
    fn reorg(&self, depth: u32, keep: Option<bool>) -> RpcResult<Heads>;

    /// Breaks all connections but the one that asks, and refuses new ones for a while. Returns how many it broke.
    #[method(name = "dev_dropConnections", with_extensions)]
    async fn drop_connections(&self, refuse_ms: Option<u64>) -> RpcResult<usize>;

    /// Sets what happens to the calls of a method, `*` for all that other chains have; without a fault nothing does any
    /// longer.
    #[method(name = "dev_setFault")]
    fn set_fault(&self, method: String, fault: Option<Fault>) -> RpcResult<()>;

    /// All methods answer as they should, blocks are sealed by time, connections are accepted.
    #[method(name = "dev_clearFaults")]
    fn clear_faults(&self) -> RpcResult<()>;
}

pub(super) struct Rpc(pub(super) Node);

impl Rpc {
    fn now(&self) -> Heads {
        let best = self.0.head();
        Heads {
            best: Named::from(best.as_ref()),
            finalized: Named::from(self.0.finalised().as_ref()),
            timestamp: best.timestamp,
        }
    }
}

/// Maps an error: a mistake that the caller could have known is the caller's.
fn failed(cause: Error) -> ErrorObjectOwned {
    match cause {
        Error::TooDeep(_) | Error::Past(_) => error::params(cause.to_string()),
        Error::Block(_)
        | Error::Store(_)
        | Error::OtherChain { .. }
        | Error::OtherRuntime { .. }
        | Error::Damaged(_)
        | Error::Unfinal => error::internal(&cause),
    }
}

#[async_trait]
impl DevServer for Rpc {
    fn seal(&self, n: Option<u32>) -> RpcResult<Named> {
        let n = n.unwrap_or(1);
        if n == 0 || n > MOST {
            return Err(error::params(format!(
                "seal between 1 and {MOST} blocks at once, not {n}"
            )));
        }
        Ok(Named::from(self.0.seal_many(n).map_err(failed)?.as_ref()))
    }

    fn set_time(&self, ms: u64) -> RpcResult<()> {
        self.0.set_time(ms).map_err(failed)
    }

    fn advance(&self, ms: u64) -> RpcResult<()> {
        self.0.advance(ms);
        Ok(())
    }

    fn heads(&self) -> RpcResult<Heads> {
        Ok(self.now())
    }

    fn set_finality(&self, lag: Option<u32>, stalled: Option<bool>) -> RpcResult<Heads> {
        self.0.set_finality(lag, stalled).map_err(failed)?;
        Ok(self.now())
    }

    fn stall_head(&self, stalled: bool) -> RpcResult<()> {
        self.0.faults().stall_head(stalled);
        Ok(())
    }

    fn reorg(&self, depth: u32, keep: Option<bool>) -> RpcResult<Heads> {
        if depth == 0 {
            return Err(error::params("give up at least one block"));
        }
        let depth = usize::try_from(depth).unwrap_or(usize::MAX);
        self.0.reorganise(depth, keep.unwrap_or(true)).map_err(failed)?;
        Ok(self.now())
    }

    async fn drop_connections(&self, extensions: &Extensions, refuse_ms: Option<u64>) -> RpcResult<usize> {
        let refuse = refuse_ms.unwrap_or(0);
        if refuse > LONGEST_REFUSAL {
            return Err(error::params(format!(
                "refuse connections for at most {LONGEST_REFUSAL} ms, not {refuse}"
            )));
        }
        let asks = extensions.get::<ConnectionId>();
        let asks = asks.and_then(|id| u32::try_from(id.0).ok());
        Ok(self
            .0
            .faults()
            .drop_connections(asks, Duration::from_millis(refuse)))
    }

    fn set_fault(&self, method: String, fault: Option<Fault>) -> RpcResult<()> {
        self.0.faults().set(method, fault);
        Ok(())
    }

    fn clear_faults(&self) -> RpcResult<()> {
        self.0.faults().clear();
        Ok(())
    }
}
