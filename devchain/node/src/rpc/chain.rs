//! `chain_*`: blocks and their headers. Finality is instant, so the best block is the finalised one.

use super::blocks::{Number, OneOrMany, SignedBlock};
use super::follow;
use crate::node::Node;
use jsonrpsee::PendingSubscriptionSink;
use jsonrpsee::core::{RpcResult, SubscriptionResult, async_trait};
use jsonrpsee::proc_macros::rpc;
use muster_devchain_runtime::Header;
use sp_core::H256;
use std::ops::ControlFlow;

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
    async fn follow_heads(&self, pending: PendingSubscriptionSink) -> SubscriptionResult {
        let sink = pending.accept().await?;
        let head = self.0.head().header.number;
        follow::blocks(&self.0, &sink, head, |block| {
            ControlFlow::Continue(vec![block.header.clone()])
        })
        .await;
        Ok(())
    }
}

#[async_trait]
impl ChainServer for Rpc {
    fn block_hash(&self, hash: Option<OneOrMany<Number>>) -> RpcResult<OneOrMany<Option<H256>>> {
        let by_number = |number: Number| -> RpcResult<Option<H256>> {
            Ok(number
                .value()?
                .and_then(|number| self.0.block_at(number))
                .map(|block| block.hash))
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
        Ok(self.0.head().hash)
    }

    fn header(&self, hash: Option<H256>) -> RpcResult<Option<Header>> {
        Ok(self.0.block(hash).map(|block| block.header.clone()))
    }

    fn block(&self, hash: Option<H256>) -> RpcResult<Option<SignedBlock>> {
        Ok(self.0.block(hash).map(|block| SignedBlock::from(block.as_ref())))
    }

    async fn subscribe_new_heads(&self, pending: PendingSubscriptionSink) -> SubscriptionResult {
        self.follow_heads(pending).await
    }

    async fn subscribe_finalized_heads(&self, pending: PendingSubscriptionSink) -> SubscriptionResult {
        self.follow_heads(pending).await
    }

    async fn subscribe_all_heads(&self, pending: PendingSubscriptionSink) -> SubscriptionResult {
        self.follow_heads(pending).await
    }
}
