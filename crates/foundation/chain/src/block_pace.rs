//! The times of blocks, and a subnet as it was at an earlier block.

use muster_protocol::{BlockNumber, Netuid};
use subxt::dynamic::{self, Value};

use crate::chain_reader::ChainClient;
use crate::endpoint_pool::ChainHead;
use crate::error::ChainError;
use crate::metagraph::Metagraph;
use crate::scale_value::number;

/// Blocks over which the pace of a chain is measured. Every node keeps the states of more blocks.
const BACK: u64 = 20;

/// The time of one block, and the pace of the blocks before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPace {
    /// The time of the block, in milliseconds since 1970, UTC.
    pub time_ms: u64,
    /// The duration of a block, in milliseconds.
    pub block_ms: u64,
}

/// A subnet at one block, with the time of that block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedSubnet {
    /// The neurons and the tempo at that block.
    pub metagraph: Metagraph,
    /// The time of that block, and the pace before it.
    pub pace: BlockPace,
}

impl ChainClient {
    /// The subnet as it was at an earlier block; `None` if that block has no time, as the first one of a chain.
    ///
    /// # Errors
    /// As for [`Self::metagraph`]. A node that keeps few states does not know the subnet at an old block: the public
    /// ones keep the last 256.
    pub async fn subnet_at(
        &self,
        netuid: Netuid,
        block: BlockNumber,
    ) -> Result<Option<TimedSubnet>, ChainError> {
        const DOING: &str = "read the subnet at an earlier block";
        self.endpoint
            .ask(DOING, |head| async move {
                let at = head.link.api.at_block(block.0);
                let at = self.endpoint.read(&head, DOING, at).await?;
                let then = ChainHead { at, ..head };
                let Some(pace) = self.read_pace_at(&then).await? else {
                    return Ok(None);
                };
                let metagraph = Metagraph::clone(&*self.metagraph_at(then, netuid).await?);
                Ok(Some(TimedSubnet { metagraph, pace }))
            })
            .await
    }

    /// The time and the pace at a block; `None` for the first block of a chain, which has no time.
    pub(crate) async fn read_pace_at(&self, head: &ChainHead) -> Result<Option<BlockPace>, ChainError> {
        const DOING: &str = "read the time of a block";
        let time = self
            .read_storage_at(head, DOING, "Timestamp", "Now", vec![])
            .await?;
        let slot = head
            .at
            .constants()
            .entry(dynamic::constant::<Value>("Aura", "SlotDuration"));
        let time_ms: Option<u64> = time.as_ref().and_then(number);
        let (Some(time_ms), Some(stated_ms)) = (
            time_ms.filter(|time| *time > 0),
            slot.ok().as_ref().and_then(number),
        ) else {
            return Ok(None);
        };
        let block_ms = self.block_time(head, time_ms, stated_ms).await;
        Ok(Some(BlockPace { time_ms, block_ms }))
    }

    /// The recent duration of a block, in milliseconds: the duration that the chain states, unless its blocks came
    /// faster.
    ///
    /// Development chains seal at another pace than they state. A slower pace is not used: a chain that stood still for
    /// a night continues at its stated pace.
    async fn block_time(&self, head: &ChainHead, time_ms: u64, stated_ms: u64) -> u64 {
        const DOING: &str = "read the pace of blocks";
        let now = head.at.block_number();
        let back = BACK.min(now.saturating_sub(1));
        let Ok(at) = self
            .endpoint
            .read(head, DOING, head.link.api.at_block(now.saturating_sub(back)))
            .await
        else {
            return stated_ms;
        };
        let then = ChainHead { at, ..head.clone() };
        match self
            .read_storage_at(&then, DOING, "Timestamp", "Now", vec![])
            .await
        {
            Ok(then) => {
                let then = then.as_ref().and_then(number).unwrap_or(time_ms);
                let took = time_ms
                    .saturating_sub(then)
                    .checked_div(back)
                    .unwrap_or(stated_ms);
                took.clamp(1, stated_ms.max(1))
            }
            Err(_) => stated_ms,
        }
    }
}
