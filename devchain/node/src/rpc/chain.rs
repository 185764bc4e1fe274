//! `chain_*`: blocks and their headers.

use super::blocks::{Number, OneOrMany, SignedBlock};
use super::error;
use super::follow::{self, Which};
use crate::node::Node;
use jsonrpsee::PendingSubscriptionSink;
use jsonrpsee::core::{RpcResult, SubscriptionResult, async_trait};
use jsonrpsee::proc_macros::rpc;
use muster_devchain_runtime::Header;
use sp_core::H256;

#[rpc(server)]
pub(super) trait Chain {
    #[method(name = "chain_getBlockHash", aliases = ["chain_getHead"])]
    fn block_hash(&self, hash: Option<OneOrMany<Number>>) -> RpcResult<OneOrMany<Option<H256>>>;

    #[method(name = "chain_getFinalizedHead", aliases = ["chain_getFinalisedHead"])]
    fn finalized_head(&self) -> RpcResult<H256>;

    #[method(name = "chain_getHeader")]
    fn header(&self, hash: Option<H256>) -> RpcResult<Option<Header>>;

    #[method(name = "chain_getBlock")]
    fn block(&self, hash: Option<H256>) -> RpcResult<Option<SignedBlock>>;

    #[subscription(
        name = "chain_subscribeNewHeads" => "chain_newHead",
        unsubscribe = "chain_unsubscribeNewHeads",
        aliases = ["chain_subscribeNewHead", "subscribe_newHead"],
        unsubscribe_aliases = ["chain_unsubscribeNewHead", "unsubscribe_newHead"],
        item = Header
    )]
    async fn subscribe_new_heads(&self) -> SubscriptionResult;

    #[subscription(
        name = "chain_subscribeFinalizedHeads" => "chain_finalizedHead",
        unsubscribe = "chain_unsubscribeFinalizedHeads",
        aliases = ["chain_subscribeFinalisedHeads"],
        unsubscribe_aliases = ["chain_unsubscribeFinalisedHeads"],
        item = Header
    )]
    async fn subscribe_finalized_heads(&self) -> SubscriptionResult;

    #[subscription(
        name = "chain_subscribeAllHeads" => "chain_allHead",
        unsubscribe = "chain_unsubscribeAllHeads",
        item = Header
    )]
    async fn subscribe_all_heads(&self) -> SubscriptionResult;
}

pub(super) struct Rpc(pub(super) Node);

impl Rpc {
    /// The last header now, then every new one.
    async fn follow_heads(&self, pending: PendingSubscriptionSink, which: Which) -> SubscriptionResult {
        let sink = pending.accept().await?;
        follow::blocks(&self.0, &sink, which, |block| Some(block.header.clone())).await;
        Ok(())
    }
}

#[async_trait]
impl ChainServer for Rpc {
    fn block_hash(&self, hash: Option<OneOrMany<Number>>) -> RpcResult<OneOrMany<Option<H256>>> {
        let by_number = |number: Number| -> RpcResult<Option<H256>> {
            let Some(number) = number.value()? else {
                return Ok(None);
            };
            let block = self.0.block_at(number).map_err(|cause| error::internal(&cause))?;
            Ok(block.map(|block| block.hash))
        };
        Ok(match hash {
            None => OneOrMany::One(Some(self.0.head().hash)),
            Some(OneOrMany::One(number)) => OneOrMany::One(by_number(number)?),
            Some(OneOrMany::Many(numbers)) => {
                OneOrMany::Many(numbers.into_iter().map(by_number).collect::<RpcResult<_>>()?)
            }
        })
    }

    fn finalized_head(&self) -> RpcResult<H256> {
        Ok(self.0.finalised().hash)
    }

    fn header(&self, hash: Option<H256>) -> RpcResult<Option<Header>> {
        let block = self.0.block(hash).map_err(|cause| error::internal(&cause))?;
        Ok(block.map(|block| block.header.clone()))
    }

    fn block(&self, hash: Option<H256>) -> RpcResult<Option<SignedBlock>> {
        let block = self.0.block(hash).map_err(|cause| error::internal(&cause))?;
        Ok(block.map(|block| SignedBlock::from(block.as_ref())))
    }

    async fn subscribe_new_heads(&self, pending: PendingSubscriptionSink) -> SubscriptionResult {
        self.follow_heads(pending, Which::Best).await
    }

    async fn subscribe_finalized_heads(&self, pending: PendingSubscriptionSink) -> SubscriptionResult {
        self.follow_heads(pending, Which::Final).await
    }

    async fn subscribe_all_heads(&self, pending: PendingSubscriptionSink) -> SubscriptionResult {
        self.follow_heads(pending, Which::All).await
    }
}
