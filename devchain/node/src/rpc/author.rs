//! `author_*`: submitting transactions and watching what becomes of them.

use super::follow;
use crate::chain::Block;
use crate::node::Node;
use jsonrpsee::PendingSubscriptionSink;
use jsonrpsee::core::{RpcResult, SubscriptionResult, async_trait};
use jsonrpsee::proc_macros::rpc;
use serde::Serialize;
use sp_core::{Bytes, H256};
use sp_runtime::traits::{BlakeTwo256, Hash};
use std::ops::ControlFlow;

/// What became of a transaction.
#[derive(Serialize, Clone, Copy)]
#[serde(rename_all = "camelCase")]
pub(super) enum Status {
    /// It waits for a block.
    Ready,
    /// It is in this block.
    InBlock(H256),
    /// This block is final.
    Finalized(H256),
    /// It can never be in a block.
    Invalid,
}

#[rpc(server)]
pub(super) trait Author {
    #[method(name = "author_submitExtrinsic")]
    fn submit_extrinsic(&self, extrinsic: Bytes) -> RpcResult<H256>;

    #[method(name = "author_pendingExtrinsics")]
    fn pending_extrinsics(&self) -> RpcResult<Vec<Bytes>>;

    #[subscription(
        name = "author_submitAndWatchExtrinsic" => "author_extrinsicUpdate",
        unsubscribe = "author_unwatchExtrinsic",
        item = Status
    )]
    async fn watch_extrinsic(&self, bytes: Bytes) -> SubscriptionResult;
}

pub(super) struct Rpc(pub(super) Node);

#[async_trait]
impl AuthorServer for Rpc {
    fn submit_extrinsic(&self, extrinsic: Bytes) -> RpcResult<H256> {
        Ok(self.0.submit(extrinsic.0)?)
    }

    fn pending_extrinsics(&self) -> RpcResult<Vec<Bytes>> {
        Ok(self.0.pending().into_iter().map(Bytes).collect())
    }

    async fn watch_extrinsic(&self, pending: PendingSubscriptionSink, bytes: Bytes) -> SubscriptionResult {
        // Taken before the transaction is: the block that holds it cannot be earlier.
        let next = self.0.head().header.number.saturating_add(1);
        let hash = match self.0.submit(bytes.0) {
            Ok(hash) => hash,
            Err(rejection) => {
                pending.reject(rejection).await;
                return Ok(());
            }
        };
        let sink = pending.accept().await?;
        if follow::send(&sink, &Status::Ready).await.is_continue() {
            follow::blocks(&self.0, &sink, next, |block| fate(block, hash)).await;
        }
        Ok(())
    }
}

/// What a block means for a transaction.
fn fate(block: &Block, hash: H256) -> ControlFlow<Vec<Status>, Vec<Status>> {
    if block.body.iter().any(|raw| BlakeTwo256::hash(raw) == hash) {
        ControlFlow::Break(vec![Status::InBlock(block.hash), Status::Finalized(block.hash)])
    } else if block.dropped.contains(&hash) {
        ControlFlow::Break(vec![Status::Invalid])
    } else {
        ControlFlow::Continue(vec![])
    }
}
