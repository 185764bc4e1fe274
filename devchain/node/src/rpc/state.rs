//! `state_*`: storage and runtime APIs at any block, metadata, and what changes.

use super::blocks::find;
use super::error;
use super::follow::{self, Which};
use crate::block::consult;
use crate::node::Node;
use crate::state::State as Storage;
use jsonrpsee::PendingSubscriptionSink;
use jsonrpsee::core::{RpcResult, SubscriptionResult, async_trait};
use jsonrpsee::proc_macros::rpc;
use muster_devchain_runtime::{Runtime, VERSION, api};
use serde::Serialize;
use sp_core::{Bytes, H256};
use sp_runtime::traits::{BlakeTwo256, Hash};
use sp_version::RuntimeVersion;
use std::sync::Arc;
use tokio::sync::Semaphore;

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
    async fn call(&self, name: String, bytes: Bytes, hash: Option<H256>) -> RpcResult<Bytes>;

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

pub(super) struct Rpc {
    node: Node,
    /// One runtime per processor at work for callers: more would only take memory from one another.
    calls: Arc<Semaphore>,
}

impl Rpc {
    pub(super) fn new(node: Node) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            node,
            calls: Arc::new(Semaphore::new(processors)),
        }
    }
}

fn value(state: &Storage, key: &Bytes) -> Option<Bytes> {
    state.get(key).map(|value| Bytes(value.to_vec()))
}

fn values(state: &Storage, keys: &[Bytes]) -> Vec<(Bytes, Option<Bytes>)> {
    keys.iter().map(|key| (key.clone(), value(state, key))).collect()
}

#[async_trait]
impl StateServer for Rpc {
    async fn call(&self, name: String, bytes: Bytes, hash: Option<H256>) -> RpcResult<Bytes> {
        let (_, state) = find(&self.node, hash)?;
        let turn = Arc::clone(&self.calls).acquire_owned().await;
        let answer = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            // A malformed argument makes the runtime panic, here as on the public chain.
            let answer = consult(&state, || api::dispatch(&name, &bytes))?;
            answer.map(Bytes).ok_or_else(|| error::no_such_export(&name))
        });
        answer.await.map_err(|cause| error::internal(&cause))?
    }

    fn metadata(&self, hash: Option<H256>) -> RpcResult<Bytes> {
        find(&self.node, hash)?;
        Ok(Bytes(Runtime::metadata().into()))
    }

    fn runtime_version(&self, hash: Option<H256>) -> RpcResult<RuntimeVersion> {
        find(&self.node, hash)?;
        Ok(VERSION)
    }

    fn storage(&self, key: Bytes, hash: Option<H256>) -> RpcResult<Option<Bytes>> {
        Ok(value(&find(&self.node, hash)?.1, &key))
    }

    fn storage_hash(&self, key: Bytes, hash: Option<H256>) -> RpcResult<Option<H256>> {
        Ok(find(&self.node, hash)?.1.get(&key).map(BlakeTwo256::hash))
    }

    fn storage_size(&self, key: Bytes, hash: Option<H256>) -> RpcResult<Option<u64>> {
        let (_, state) = find(&self.node, hash)?;
        Ok(state.get(&key).and_then(|value| u64::try_from(value.len()).ok()))
    }

    fn query_storage_at(&self, keys: Vec<Bytes>, at: Option<H256>) -> RpcResult<Vec<ChangeSet>> {
        let (block, state) = find(&self.node, at)?;
        Ok(vec![ChangeSet {
            block: block.hash,
            changes: values(&state, &keys),
        }])
    }

    fn keys(&self, prefix: Bytes, hash: Option<H256>) -> RpcResult<Vec<Bytes>> {
        let (_, state) = find(&self.node, hash)?;
        Ok(state.keys(&prefix, None).map(|key| Bytes(key.to_vec())).collect())
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
        let (_, state) = find(&self.node, hash)?;
        let prefix = prefix.unwrap_or_else(|| Bytes(Vec::new()));
        let keys = state.keys(&prefix, start_key.as_deref());
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
        let mut known: Option<Vec<(Bytes, Option<Bytes>)>> = None;
        follow::blocks(&self.node, &sink, Which::Best, |block| {
            // A subscriber that is so far behind is sent what changed when it has caught up.
            let (_, state) = self.node.state(Some(block.hash)).ok()?;
            let now = values(&state, &keys);
            let before = known.replace(now.clone());
            let differs = |entry: &(usize, &(Bytes, Option<Bytes>))| {
                before
                    .as_ref()
                    .is_none_or(|before| before.get(entry.0) != Some(entry.1))
            };
            let changed = now.iter().enumerate().filter(differs);
            let changes: Vec<_> = changed.map(|(_, entry)| entry.clone()).collect();
            let block = block.hash;
            (!changes.is_empty()).then_some(ChangeSet { block, changes })
        })
        .await;
        Ok(())
    }

    async fn subscribe_runtime_version(&self, pending: PendingSubscriptionSink) -> SubscriptionResult {
        let sink = pending.accept().await?;
        if follow::send(&sink, &VERSION).await.is_continue() {
            // A native runtime never changes: nothing more to send.
            sink.closed().await;
        }
        Ok(())
    }
}
