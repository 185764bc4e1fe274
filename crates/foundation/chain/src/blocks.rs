//! Follows the chain block by block, across lost connections and changes of endpoint.

use std::sync::Arc;

use muster_protocol::BlockNumber;
use subxt::config::SubstrateConfig;
use tokio::time::timeout;

use crate::chain_reader::ChainClient;
use crate::error::ChainError;

const DOING: &str = "follow the chain";

/// The finalised blocks as they come.
#[derive(Debug)]
pub struct Blocks {
    client: Arc<ChainClient>,
    stream: Option<BlockSubscription>,
    /// The endpoint that was followed last.
    index: Option<usize>,
    height: BlockCounter,
}

/// A subscription at one endpoint.
#[derive(Debug)]
struct BlockSubscription {
    index: usize,
    blocks: subxt::client::Blocks<SubstrateConfig>,
}

impl ChainClient {
    /// The numbers of finalised blocks from now on, without gaps, also while an endpoint is lost or changed.
    ///
    /// # Errors
    /// No endpoint answers.
    pub async fn blocks(self: &Arc<Self>) -> Result<Blocks, ChainError> {
        let mut blocks = Blocks {
            client: Arc::clone(self),
            stream: None,
            index: None,
            height: BlockCounter::default(),
        };
        blocks.stream = Some(follow(self).await?);
        Ok(blocks)
    }
}

impl Blocks {
    /// The next finalised block; waits for ever if none comes. Cancel-safe.
    ///
    /// # Errors
    /// No endpoint answers. A later call continues at the same place.
    pub async fn next(&mut self) -> Result<BlockNumber, ChainError> {
        loop {
            if let Some(number) = self.height.next() {
                return Ok(BlockNumber(number));
            }
            if self.stream.is_none() {
                self.stream = Some(follow(&self.client).await?);
            }
            let Some(followed) = &mut self.stream else {
                continue;
            };
            let index = followed.index;
            match timeout(self.client.endpoint.timeouts.stall, followed.blocks.next()).await {
                Ok(Some(Ok(block))) => {
                    let elsewhere = self.index.is_some_and(|last| last != index);
                    self.height.seen(block.number(), elsewhere);
                    if !elsewhere || self.height.told == Some(block.number()) || self.height.pending() {
                        self.index = Some(index);
                    }
                }
                Ok(Some(Err(error))) => {
                    tracing::warn!(%error, "lost the chain endpoint, connecting again");
                    self.stream = None;
                    self.client.endpoint.report_lost(index).await;
                }
                Ok(None) => {
                    tracing::warn!("the chain endpoint ended the subscription, connecting again");
                    self.stream = None;
                    self.client.endpoint.report_lost(index).await;
                }
                Err(_) => self.check_subscription(index).await?,
            }
        }
    }

    /// No block came for a long time: checks whether the subscription is dead, or another endpoint knows a newer block.
    async fn check_subscription(&mut self, index: usize) -> Result<(), ChainError> {
        let head = self.client.endpoint.head(DOING).await?;
        let seen = self.height.seen.unwrap_or(0);
        if head.index != index || head.at.block_number() > seen {
            self.stream = None;
        }
        Ok(())
    }
}

/// Subscribes at the endpoint that is to be asked.
async fn follow(client: &ChainClient) -> Result<BlockSubscription, ChainError> {
    let endpoint = &client.endpoint;
    let subscribe = async |head: crate::endpoint_pool::ChainHead| {
        let blocks = endpoint.read(&head, DOING, head.link.api.stream_blocks()).await?;
        let index = head.index;
        Ok(BlockSubscription { index, blocks })
    };
    match subscribe(endpoint.head(DOING).await?).await {
        // The connection was lost meanwhile, so one more endpoint is tried.
        Err(ChainError::Unreachable { .. }) => subscribe(endpoint.head(DOING).await?).await,
        done => done,
    }
}

/// The last block that was returned, and the newest that was seen.
#[derive(Debug, Default)]
struct BlockCounter {
    told: Option<u64>,
    seen: Option<u64>,
}

impl BlockCounter {
    /// Notes a block. `elsewhere` is set if another endpoint than the last one reports it.
    fn seen(&mut self, number: u64, elsewhere: bool) {
        if self.told.is_some_and(|told| number < told) {
            if elsewhere {
                // The other endpoint is behind and repeats blocks that were returned already.
                return;
            }
            // Only a restarted development chain goes back; its old blocks are void.
            self.told = None;
        }
        self.seen = Some(number);
    }

    /// Whether a block waits to be returned.
    fn pending(&self) -> bool {
        self.seen
            .is_some_and(|seen| self.told.is_none_or(|told| told < seen))
    }

    fn next(&mut self) -> Option<u64> {
        let seen = self.seen?;
        let next = self.told.map_or(seen, |told| told.saturating_add(1));
        if next > seen {
            return None;
        }
        self.told = Some(next);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(height: &mut BlockCounter, number: u64) -> Vec<u64> {
        height.seen(number, false);
        std::iter::from_fn(|| height.next()).collect()
    }

    #[test]
    fn gaps_are_filled_and_repetitions_dropped() {
        let mut height = BlockCounter::default();
        assert_eq!(height.next(), None);
        assert_eq!(told(&mut height, 7), [7]);
        assert_eq!(told(&mut height, 7), [0_u64; 0]);
        assert_eq!(told(&mut height, 8), [8]);
        assert_eq!(told(&mut height, 11), [9, 10, 11]);
        // A restarted chain.
        assert_eq!(told(&mut height, 1), [1]);
        assert_eq!(told(&mut height, 2), [2]);
        // Another endpoint is behind and catches up.
        height.seen(1, true);
        assert_eq!(height.next(), None);
        height.seen(4, true);
        assert_eq!(
            [height.next(), height.next(), height.next()],
            [Some(3), Some(4), None]
        );
    }
}
