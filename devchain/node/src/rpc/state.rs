//! `state_*`: storage and runtime APIs at any block, metadata, and what changes.

use super::blocks::find;
use super::{error, follow};
use crate::chain::{Block, consult};
use crate::node::Node;
use jsonrpsee::PendingSubscriptionSink;
use jsonrpsee::core::{RpcResult, SubscriptionResult, async_trait};
use jsonrpsee::proc_macros::rpc;
use muster_devchain_runtime::{Runtime, VERSION, api};
use serde::Serialize;
use sp_core::{Bytes, H256};
use sp_runtime::traits::{BlakeTwo256, Hash};
use sp_version::RuntimeVersion;
use std::ops::ControlFlow;

/// The most keys that one page holds.
const PAGE: u32 = 1000;

/// Values of keys at one block.
#[derive(Serialize, Clone)]
pub(super) struct ChangeSet {
    block: H256,
    changes: Vec<(Bytes, Option<Bytes>)>,
}

#[rpc(server)]
pub(super) trait State {
    #[method(name = "state_call", aliases = ["state_callAt"])]
    fn call(&self, name: String, bytes: Bytes, hash: Option<H256>) -> RpcResult<Bytes>;

    #[method(name = "state_getMetadata")]
    fn metadata(&self, hash: Option<H256>) -> RpcResult<Bytes>;

    #[method(name = "state_getRuntimeVersion", aliases = ["chain_getRuntimeVersion"])]
    fn runtime_version(&self, hash: Option<H256>) -> RpcResult<RuntimeVersion>;

    #[method(name = "state_getStorage", aliases = ["state_getStorageAt"])]
    fn storage(&self, key: Bytes, hash: Option<H256>) -> RpcResult<Option<Bytes>>;

    #[method(name = "state_getStorageHash", aliases = ["state_getStorageHashAt"])]
    fn storage_hash(&self, key: Bytes, hash: Option<H256>) -> RpcResult<Option<H256>>;

    #[method(name = "state_getStorageSize", aliases = ["state_getStorageSizeAt"])]
    fn storage_size(&self, key: Bytes, hash: Option<H256>) -> RpcResult<Option<u64>>;

    #[method(name = "state_queryStorageAt")]
    fn query_storage_at(&self, keys: Vec<Bytes>, at: Option<H256>) -> RpcResult<Vec<ChangeSet>>;

    #[method(name = "state_getKeys")]
    fn keys(&self, prefix: Bytes, hash: Option<H256>) -> RpcResult<Vec<Bytes>>;

    #[method(name = "state_getKeysPaged", aliases = ["state_getKeysPagedAt"])]
    fn keys_paged(
        &self,
        prefix: Option<Bytes>,
        count: u32,
        start_key: Option<Bytes>,
        hash: Option<H256>,
    ) -> RpcResult<Vec<Bytes>>;

    #[subscription(
        name = "state_subscribeStorage" => "state_storage",
        unsubscribe = "state_unsubscribeStorage",
        item = ChangeSet
    )]
    async fn subscribe_storage(&self, keys: Option<Vec<Bytes>>) -> SubscriptionResult;

    #[subscription(
        name = "state_subscribeRuntimeVersion" => "state_runtimeVersion",
        unsubscribe = "state_unsubscribeRuntimeVersion",
        aliases = ["chain_subscribeRuntimeVersion"],
        unsubscribe_aliases = ["chain_unsubscribeRuntimeVersion"],
        item = RuntimeVersion
    )]
    async fn subscribe_runtime_version(&self) -> SubscriptionResult;
}

pub(super) struct Rpc(pub(super) Node);

fn value(block: &Block, key: &Bytes) -> Option<Bytes> {
    block.state.get(key).map(|value| Bytes(value.to_vec()))
}

fn values(block: &Block, keys: &[Bytes]) -> ChangeSet {
    ChangeSet {
        block: block.hash,
        changes: keys.iter().map(|key| (key.clone(), value(block, key))).collect(),
    }
}

#[async_trait]
impl StateServer for Rpc {
    fn call(&self, name: String, bytes: Bytes, hash: Option<H256>) -> RpcResult<Bytes> {
        let block = find(&self.0, hash)?;
        // A malformed argument makes the runtime panic, here as on the public chain.
        let answer = consult(&block.state, || api::dispatch(&name, &bytes))?;
        answer.map(Bytes).ok_or_else(|| error::no_such_export(&name))
    }

    fn metadata(&self, hash: Option<H256>) -> RpcResult<Bytes> {
        find(&self.0, hash)?;
        Ok(Bytes(Runtime::metadata().into()))
    }

    fn runtime_version(&self, hash: Option<H256>) -> RpcResult<RuntimeVersion> {
        find(&self.0, hash)?;
        Ok(VERSION)
    }

    fn storage(&self, key: Bytes, hash: Option<H256>) -> RpcResult<Option<Bytes>> {
        Ok(value(find(&self.0, hash)?.as_ref(), &key))
    }

    fn storage_hash(&self, key: Bytes, hash: Option<H256>) -> RpcResult<Option<H256>> {
        Ok(find(&self.0, hash)?.state.get(&key).map(BlakeTwo256::hash))
    }

    fn storage_size(&self, key: Bytes, hash: Option<H256>) -> RpcResult<Option<u64>> {
        let block = find(&self.0, hash)?;
        Ok(block
            .state
            .get(&key)
            .and_then(|value| u64::try_from(value.len()).ok()))
    }

    fn query_storage_at(&self, keys: Vec<Bytes>, at: Option<H256>) -> RpcResult<Vec<ChangeSet>> {
        Ok(vec![values(find(&self.0, at)?.as_ref(), &keys)])
    }

    fn keys(&self, prefix: Bytes, hash: Option<H256>) -> RpcResult<Vec<Bytes>> {
        let block = find(&self.0, hash)?;
        Ok(block
            .state
            .keys(&prefix, None)
            .map(|key| Bytes(key.to_vec()))
            .collect())
    }

    fn keys_paged(
        &self,
        prefix: Option<Bytes>,
        count: u32,
        start_key: Option<Bytes>,
        hash: Option<H256>,
    ) -> RpcResult<Vec<Bytes>> {
        if count > PAGE {
            return Err(error::params(format!(
                "a page holds at most {PAGE} keys, not {count}"
            )));
        }
        let block = find(&self.0, hash)?;
        let prefix = prefix.unwrap_or_else(|| Bytes(Vec::new()));
        let keys = block.state.keys(&prefix, start_key.as_deref());
        Ok(keys
            .take(usize::try_from(count).unwrap_or(usize::MAX))
            .map(|key| Bytes(key.to_vec()))
            .collect())
    }

    async fn subscribe_storage(
        &self,
        pending: PendingSubscriptionSink,
        keys: Option<Vec<Bytes>>,
    ) -> SubscriptionResult {
        let Some(keys) = keys.filter(|keys| !keys.is_empty()) else {
            pending
                .reject(error::params(
                    "name the keys to follow: following all storage is not offered",
                ))
                .await;
            return Ok(());
        };
        let sink = pending.accept().await?;
        let mut known = values(&self.0.head(), &keys);
        if follow::send(&sink, &known).await.is_break() {
            return Ok(());
        }
        let next = self
            .0
            .block(Some(known.block))
            .map_or(0, |block| block.header.number.saturating_add(1));
        follow::blocks(&self.0, &sink, next, |block| {
            let now = values(block, &keys);
            let changes: Vec<_> = now
                .changes
                .iter()
                .zip(&known.changes)
                .filter(|(now, old)| now != old)
                .map(|(now, _)| now.clone())
                .collect();
            let told = if changes.is_empty() {
                vec![]
            } else {
                vec![ChangeSet {
                    block: now.block,
                    changes,
                }]
            };
            known = now;
            ControlFlow::Continue(told)
        })
        .await;
        Ok(())
    }

    async fn subscribe_runtime_version(&self, pending: PendingSubscriptionSink) -> SubscriptionResult {
        let sink = pending.accept().await?;
        if follow::send(&sink, &VERSION).await.is_continue() {
            // A native runtime never changes: nothing more to tell.
            sink.closed().await;
        }
        Ok(())
    }
}
