//! The chain as a validator uses it: the [`Chain`] trait, and its one real implementation [`Subnet`].
//!
//! The trait exists for tests of failures that an honest chain does not show on demand.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt};
use muster_chain::weights_commit::{CommitPosition, OnChainWeights};
use muster_chain::{
    AccountTransfer, BlockNumber, ChainClient, ChainError, ChainTimeouts, Metagraph, Netuid, TimedSubnet,
    WeightRules, WeightsCall,
};
use muster_identity::Keypair;
use muster_process::clock::SystemClock;
use muster_protocol::{Hotkey, Manifest, Timestamp};
use tokio::sync::OnceCell;

/// Finalised blocks as they come. After an error the stream is useless: drop it and call [`Chain::blocks`] again.
pub type Blocks = BoxStream<'static, Result<BlockNumber, ChainError>>;

/// A block's number and its hash.
pub type BlockWithHash = (BlockNumber, [u8; 32]);

/// One subnet, read and written with one validator's key.
pub trait Chain: fmt::Debug + Send + Sync + 'static {
    /// The chain's genesis hash, which distinguishes its blocks from another chain's.
    fn genesis(&self) -> BoxFuture<'_, Result<String, ChainError>>;

    /// The subnet at the last finalised block.
    fn metagraph(&self) -> BoxFuture<'_, Result<Metagraph, ChainError>>;

    /// The subnet as it was at an earlier block. `None` if the chain does not return it, as for its first block: then
    /// no stake of that block is known.
    fn subnet_at(&self, _block: BlockNumber) -> BoxFuture<'_, Result<Option<TimedSubnet>, ChainError>> {
        async { Ok(None) }.boxed()
    }

    /// The last finalised block and its hash. `None` if the chain gives no hashes: then no grading batch is drawn from
    /// them.
    fn head_hash(&self) -> BoxFuture<'_, Result<Option<BlockWithHash>, ChainError>> {
        async { Ok(None) }.boxed()
    }

    /// The hash of a finalised block; `None` if the last finalised block comes before it, or if the chain gives no
    /// hashes: then nothing is drawn from them.
    fn block_hash(&self, _block: BlockNumber) -> BoxFuture<'_, Result<Option<[u8; 32]>, ChainError>> {
        async { Ok(None) }.boxed()
    }

    /// The manifests that the subnet's miners have committed. A chain without commitments has none.
    fn manifests(&self) -> BoxFuture<'_, Result<BTreeMap<Hotkey, Manifest>, ChainError>> {
        async { Ok(BTreeMap::new()) }.boxed()
    }

    /// Where a validator serves its pages; `None` if it does not state it.
    fn pages_of<'a>(
        &'a self,
        _validator: &'a Hotkey,
    ) -> BoxFuture<'a, Result<Option<SocketAddr>, ChainError>> {
        async { Ok(None) }.boxed()
    }

    /// States where this validator serves its pages; returns once the chain has it.
    fn commit_pages(&self, _pages: SocketAddr) -> BoxFuture<'_, Result<(), ChainError>> {
        async { Ok(()) }.boxed()
    }

    /// The transfers to or from an account in the finalised blocks after `after` up to and including `through`, each
    /// with its block. A chain that does not return them is an error: no transfers would mean that nothing was paid.
    fn transfers_after<'a>(
        &'a self,
        _after: BlockNumber,
        _through: BlockNumber,
        _account: &'a Hotkey,
    ) -> BoxFuture<'a, Result<Vec<(BlockNumber, AccountTransfer)>, ChainError>> {
        let (doing, what) = ("read transfers", "it tells none".to_owned());
        async { Err(ChainError::Answer { doing, what }) }.boxed()
    }

    /// The subnet's rules for weights.
    fn weight_rules(&self) -> BoxFuture<'_, Result<WeightRules, ChainError>>;

    /// Submits a call about this validator's weights; returns once the call is final. No block after `last` may hold
    /// it.
    fn submit<'a>(
        &'a self,
        call: &'a WeightsCall,
        last: BlockNumber,
    ) -> BoxFuture<'a, Result<CommitPosition, ChainError>>;

    /// The newest block, which may not be final, and its time. `None` if the chain states none: then no clock is
    /// compared with it.
    fn newest_block_time(&self) -> BoxFuture<'_, Result<Option<(BlockNumber, Timestamp)>, ChainError>> {
        async { Ok(None) }.boxed()
    }

    /// This validator's weights and commits as the chain holds them.
    fn read_weights(&self) -> BoxFuture<'_, Result<OnChainWeights, ChainError>>;

    /// Finalised blocks from now on.
    fn blocks(&self) -> BoxFuture<'_, Result<Blocks, ChainError>>;
}

/// A subnet of a real chain.
#[derive(Debug)]
pub struct Subnet {
    urls: Vec<String>,
    /// Set by the first call that reaches an endpoint; from then on the client reconnects by itself.
    client: OnceCell<Arc<ChainClient>>,
    netuid: Netuid,
    keypair: Keypair,
}

impl Subnet {
    /// The subnet `netuid` of the chain at `urls`, the preferred endpoint first, written with `keypair`. Does not
    /// connect yet.
    pub fn new(urls: Vec<String>, netuid: Netuid, keypair: Keypair) -> Self {
        Self {
            urls,
            client: OnceCell::new(),
            netuid,
            keypair,
        }
    }

    async fn client(&self) -> Result<&Arc<ChainClient>, ChainError> {
        self.client
            .get_or_try_init(|| {
                ChainClient::connect_any(&self.urls, ChainTimeouts::default(), Arc::new(SystemClock::new()))
            })
            .await
    }
}

impl Chain for Subnet {
    fn genesis(&self) -> BoxFuture<'_, Result<String, ChainError>> {
        async { Ok(self.client().await?.genesis()) }.boxed()
    }

    fn metagraph(&self) -> BoxFuture<'_, Result<Metagraph, ChainError>> {
        async { self.client().await?.metagraph(self.netuid).await }.boxed()
    }

    fn subnet_at(&self, block: BlockNumber) -> BoxFuture<'_, Result<Option<TimedSubnet>, ChainError>> {
        async move { self.client().await?.subnet_at(self.netuid, block).await }.boxed()
    }

    fn head_hash(&self) -> BoxFuture<'_, Result<Option<BlockWithHash>, ChainError>> {
        async { Ok(Some(self.client().await?.head_hash().await?)) }.boxed()
    }

    fn block_hash(&self, block: BlockNumber) -> BoxFuture<'_, Result<Option<[u8; 32]>, ChainError>> {
        async move { self.client().await?.block_hash(block).await }.boxed()
    }

    fn manifests(&self) -> BoxFuture<'_, Result<BTreeMap<Hotkey, Manifest>, ChainError>> {
        async { self.client().await?.manifests(self.netuid).await }.boxed()
    }

    fn pages_of<'a>(
        &'a self,
        validator: &'a Hotkey,
    ) -> BoxFuture<'a, Result<Option<SocketAddr>, ChainError>> {
        async move { self.client().await?.pages_of(self.netuid, validator).await }.boxed()
    }

    fn commit_pages(&self, pages: SocketAddr) -> BoxFuture<'_, Result<(), ChainError>> {
        async move {
            let client = self.client().await?;
            client
                .commit_pages(&self.keypair, self.netuid, pages)
                .await
                .map(drop)
        }
        .boxed()
    }

    fn transfers_after<'a>(
        &'a self,
        after: BlockNumber,
        through: BlockNumber,
        account: &'a Hotkey,
    ) -> BoxFuture<'a, Result<Vec<(BlockNumber, AccountTransfer)>, ChainError>> {
        async move {
            self.client()
                .await?
                .transfers_after(after, through, account)
                .await
        }
        .boxed()
    }

    fn weight_rules(&self) -> BoxFuture<'_, Result<WeightRules, ChainError>> {
        async { self.client().await?.weight_rules(self.netuid).await }.boxed()
    }

    fn submit<'a>(
        &'a self,
        call: &'a WeightsCall,
        last: BlockNumber,
    ) -> BoxFuture<'a, Result<CommitPosition, ChainError>> {
        async move {
            let client = self.client().await?;
            client
                .submit_weights(&self.keypair, self.netuid, call, Some(last))
                .await
        }
        .boxed()
    }

    fn newest_block_time(&self) -> BoxFuture<'_, Result<Option<(BlockNumber, Timestamp)>, ChainError>> {
        async { self.client().await?.newest_block_time().await }.boxed()
    }

    fn read_weights(&self) -> BoxFuture<'_, Result<OnChainWeights, ChainError>> {
        async {
            let client = self.client().await?;
            client
                .read_onchain_weights(self.netuid, &self.keypair.hotkey())
                .await
        }
        .boxed()
    }

    fn blocks(&self) -> BoxFuture<'_, Result<Blocks, ChainError>> {
        async move {
            let blocks = self.client().await?.blocks().await?;
            let follow = stream::unfold(
                blocks,
                |mut blocks| async move { Some((blocks.next().await, blocks)) },
            );
            Ok(follow.boxed())
        }
        .boxed()
    }
}
