//! Following the chain, block by block, whatever happens to the connection.

use std::sync::Arc;

use subxt::config::SubstrateConfig;
use subxt::error::BackendError;

use crate::client::ChainClient;
use crate::endpoint::Failure;
use crate::error::ChainError;
use crate::types::BlockNumber;

const DOING: &str = "follow the chain";

/// Finalised blocks as they come.
#[derive(Debug)]
pub struct Blocks {
    blocks: subxt::client::Blocks<SubstrateConfig>,
    client: Arc<ChainClient>,
    height: Height,
}

impl ChainClient {
    /// The numbers of finalised blocks from now on, none left out, also not while the endpoint was gone.
    ///
    /// # Errors
    /// The endpoint does not answer.
    pub async fn blocks(self: &Arc<Self>) -> Result<Blocks, ChainError> {
        let blocks = self.endpoint.read(DOING, self.endpoint.api.stream_blocks());
        Ok(Blocks {
            blocks: blocks.await?,
            client: Arc::clone(self),
            height: Height::default(),
        })
    }
}

impl Blocks {
    /// The next finalised block; waits for ever if none comes. Cancel-safe.
    ///
    /// # Errors
    /// The endpoint's answer cannot be read, or it ended the subscription: call [`ChainClient::blocks`] again.
    pub async fn next(&mut self) -> Result<BlockNumber, ChainError> {
        loop {
            if let Some(number) = self.height.next() {
                return Ok(BlockNumber(number));
            }
            match self.blocks.next().await {
                Some(Ok(block)) => self.height.seen(block.number()),
                Some(Err(error))
                    if error
                        .backend()
                        .is_some_and(BackendError::is_disconnected_will_reconnect) =>
                {
                    tracing::warn!("lost the chain endpoint, connecting again");
                }
                Some(Err(error)) => return Err(self.client.endpoint.failed(DOING, error)),
                None => {
                    return Err(ChainError::Answer {
                        doing: DOING,
                        what: "the subscription ended".to_owned(),
                    });
                }
            }
        }
    }
}

/// Which numbers were told, and which are to be told still.
#[derive(Debug, Default)]
struct Height {
    told: Option<u64>,
    seen: Option<u64>,
}

impl Height {
    fn seen(&mut self, number: u64) {
        // Only a dev chain that began anew goes back; what it had told is void.
        if self.told.is_some_and(|told| number < told) {
            self.told = None;
        }
        self.seen = Some(number);
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

    fn told(height: &mut Height, number: u64) -> Vec<u64> {
        height.seen(number);
        std::iter::from_fn(|| height.next()).collect()
    }

    #[test]
    fn gaps_are_filled_and_repetitions_dropped() {
        let mut height = Height::default();
        assert_eq!(height.next(), None);
        assert_eq!(told(&mut height, 7), [7]);
        assert_eq!(told(&mut height, 7), [0_u64; 0]);
        assert_eq!(told(&mut height, 8), [8]);
        assert_eq!(told(&mut height, 11), [9, 10, 11]);
        // A chain that began anew.
        assert_eq!(told(&mut height, 1), [1]);
        assert_eq!(told(&mut height, 2), [2]);
    }
}
