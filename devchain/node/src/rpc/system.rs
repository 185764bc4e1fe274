//! `system_*`: what the node is, and nonces.

use super::error;
use crate::node::Node;
use jsonrpsee::core::RpcResult;
use jsonrpsee::proc_macros::rpc;
use muster_devchain_runtime::{AccountId, Nonce, SS58_PREFIX};
use serde_json::{Value, json};
use sp_core::crypto::Ss58Codec;

#[rpc(server)]
pub(super) trait System {
    #[method(name = "system_name")]
    fn name(&self) -> RpcResult<&'static str>;

    #[method(name = "system_version")]
    fn version(&self) -> RpcResult<&'static str>;

    #[method(name = "system_chain")]
    fn chain(&self) -> RpcResult<&'static str>;

    #[method(name = "system_chainType")]
    fn chain_type(&self) -> RpcResult<&'static str>;

    #[method(name = "system_properties")]
    fn properties(&self) -> RpcResult<Value>;

    #[method(name = "system_health")]
    fn health(&self) -> RpcResult<Value>;

    #[method(name = "system_peers")]
    fn peers(&self) -> RpcResult<Vec<Value>>;

    #[method(name = "system_nodeRoles")]
    fn node_roles(&self) -> RpcResult<[&'static str; 1]>;

    #[method(name = "system_syncState")]
    fn sync_state(&self) -> RpcResult<Value>;

    #[method(name = "system_accountNextIndex", aliases = ["account_nextIndex"])]
    fn account_next_index(&self, account: String) -> RpcResult<Nonce>;
}

pub(super) struct Rpc(pub(super) Node);

impl SystemServer for Rpc {
    fn name(&self) -> RpcResult<&'static str> {
        Ok("Muster devchain")
    }

    fn version(&self) -> RpcResult<&'static str> {
        Ok(env!("CARGO_PKG_VERSION"))
    }

    fn chain(&self) -> RpcResult<&'static str> {
        Ok("Muster devchain")
    }

    fn chain_type(&self) -> RpcResult<&'static str> {
        Ok("Development")
    }

    fn properties(&self) -> RpcResult<Value> {
        Ok(json!({ "ss58Format": SS58_PREFIX, "tokenDecimals": 9, "tokenSymbol": "TAO" }))
    }

    fn health(&self) -> RpcResult<Value> {
        Ok(json!({ "peers": 0, "isSyncing": false, "shouldHavePeers": false }))
    }

    fn peers(&self) -> RpcResult<Vec<Value>> {
        Ok(Vec::new())
    }

    fn node_roles(&self) -> RpcResult<[&'static str; 1]> {
        Ok(["Authority"])
    }

    fn sync_state(&self) -> RpcResult<Value> {
        let head = self.0.head().header.number;
        Ok(json!({ "startingBlock": 0, "currentBlock": head, "highestBlock": head }))
    }

    fn account_next_index(&self, account: String) -> RpcResult<Nonce> {
        let account = AccountId::from_ss58check(&account)
            .map_err(|cause| error::params(format!("reading account {account:?} failed: {cause}")))?;
        Ok(self.0.next_nonce(&account)?)
    }
}
