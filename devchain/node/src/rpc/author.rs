//! `author_*`: submitting transactions and watching what becomes of them.

use super::follow;
use crate::node::Node;
use jsonrpsee::PendingSubscriptionSink;
use jsonrpsee::core::{RpcResult, SubscriptionResult, async_trait};
use jsonrpsee::proc_macros::rpc;
use sp_core::{Bytes, H256};
use tokio::sync::broadcast::error::RecvError;

#[rpc(server)]
pub(super) trait Author {
    #[method(name = "author_submitExtrinsic")]
    fn submit_extrinsic(&self, extrinsic: Bytes) -> RpcResult<H256>;

    #[method(name = "author_pendingExtrinsics")]
    fn pending_extrinsics(&self) -> RpcResult<Vec<Bytes>>;

    #[subscription(
        name = "author_submitAndWatchExtrinsic" => "author_extrinsicUpdate",
        unsubscribe = "author_unwatchExtrinsic",
        item = crate::pool::Status
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
        let mut statuses = match self.0.submit_and_watch(bytes.0) {
            Ok(statuses) => statuses,
            Err(rejection) => {
                pending.reject(rejection).await;
                return Ok(());
            }
        };
        let sink = pending.accept().await?;
        loop {
            let status = tokio::select! {
                status = statuses.recv() => status,
                () = sink.closed() => return Ok(()),
            };
            match status {
                Ok(status) => {
                    if follow::send(&sink, &status).await.is_break() {
                        return Ok(());
                    }
                }
                Err(RecvError::Lagged(_)) => {}
                // Nothing more happens to it.
                Err(RecvError::Closed) => return Ok(()),
            }
        }
    }
}
