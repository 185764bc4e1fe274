//! Watches a subnet: compares it at every finalised block with the snapshot before.

use std::collections::VecDeque;
use std::sync::Arc;

use muster_protocol::{Netuid, Rao};

use crate::blocks::Blocks;
use crate::chain_reader::ChainClient;
use crate::error::ChainError;
use crate::subnet_changes::{MetagraphEvent, SubnetSnapshot, diff};

/// Changes as they come. It keeps one snapshot and the changes of one comparison, however seldom it is asked.
#[derive(Debug)]
pub struct MetagraphWatch {
    client: Arc<ChainClient>,
    netuid: Netuid,
    threshold: Rao,
    blocks: Blocks,
    last: SubnetSnapshot,
    waiting: VecDeque<MetagraphEvent>,
}

impl ChainClient {
    /// Reads the subnet now and reports every change from then on.
    ///
    /// # Errors
    /// As for [`Self::metagraph`].
    pub async fn watch(
        self: &Arc<Self>,
        netuid: Netuid,
        threshold: Rao,
    ) -> Result<MetagraphWatch, ChainError> {
        let blocks = self.blocks().await?;
        Ok(MetagraphWatch {
            client: Arc::clone(self),
            netuid,
            threshold,
            blocks,
            last: self.snapshot(netuid).await?,
            waiting: VecDeque::new(),
        })
    }

    async fn snapshot(&self, netuid: Netuid) -> Result<SubnetSnapshot, ChainError> {
        Ok(SubnetSnapshot {
            graph: self.metagraph_shared(netuid).await?,
            rules: Some(self.hyperparameters(netuid).await?),
        })
    }
}

impl MetagraphWatch {
    /// The next change; waits for ever if none comes. Cancel-safe.
    ///
    /// # Errors
    /// No endpoint answers. A later call compares with the same snapshot.
    pub async fn next(&mut self) -> Result<MetagraphEvent, ChainError> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(event);
            }
            let block = self.blocks.next().await?;
            if block <= self.last.graph.block {
                continue;
            }
            let new = self.client.snapshot(self.netuid).await?;
            self.waiting = diff(&self.last, &new, self.threshold).into();
            self.last = new;
        }
    }

    /// The snapshot of the last read.
    pub fn last(&self) -> &SubnetSnapshot {
        &self.last
    }
}
