//! Writing the chain: announcing an axon, setting weights, committing a manifest, registering.

use std::net::SocketAddr;

use muster_identity::Keypair;
use muster_protocol::{Hotkey, Manifest};
use subxt::dynamic::Value;

use crate::calls::{self, Call};
use crate::client::ChainClient;
use crate::commitment;
use crate::error::ChainError;
use crate::metagraph::address;
use crate::types::{Netuid, Uid};

/// Whether announcing an axon took a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// The chain has it since now.
    Now,
    /// The chain had it already.
    Before,
}

impl ChainClient {
    /// Announces where a hotkey listens. Costs nothing if the chain knows already.
    ///
    /// # Errors
    /// [`ChainError::NotRegistered`], an address that nobody can dial, the endpoint, or a refusal such as serving too often.
    pub async fn serve_axon(
        &self,
        key: &Keypair,
        netuid: Netuid,
        at: SocketAddr,
    ) -> Result<Announced, ChainError> {
        if at.ip().is_unspecified() || at.port() == 0 {
            return Err(ChainError::Unroutable(at));
        }
        let hotkey = key.hotkey();
        self.uid_of(netuid, &hotkey).await?;
        let keys = vec![Value::u128(netuid.0.into()), Value::from_bytes(hotkey.as_bytes())];
        let known = self
            .storage("read an axon", "SubtensorModule", "Axons", keys)
            .await?;
        if known.as_ref().and_then(address) == Some(at) {
            return Ok(Announced::Before);
        }
        self.submit(key, calls::serve_axon(netuid, at)).await?;
        Ok(Announced::Now)
    }

    /// Sets a validator's weights, replacing those before. Returns once they are final.
    ///
    /// # Errors
    /// [`ChainError::NotRegistered`], a refusal with its name (no permit, too fast, version key, …), the endpoint, or
    /// [`ChainError::Unconfirmed`], upon which [`Self::weights_of`] tells.
    pub async fn set_weights(
        &self,
        key: &Keypair,
        netuid: Netuid,
        weights: &[(Uid, u16)],
        version_key: u64,
    ) -> Result<(), ChainError> {
        self.uid_of(netuid, &key.hotkey()).await?;
        self.submit(key, calls::set_weights(netuid, weights, version_key))
            .await
    }

    /// States a miner's manifest on the chain.
    ///
    /// # Errors
    /// A manifest of more than 128 bytes, the endpoint, or a refusal.
    pub async fn commit_manifest(
        &self,
        key: &Keypair,
        netuid: Netuid,
        manifest: &Manifest,
    ) -> Result<(), ChainError> {
        let info = commitment::encode(&manifest.to_commitment())?;
        self.submit(key, calls::set_commitment(netuid, info)).await
    }

    /// Registers a hotkey, paid by the coldkey that signs.
    ///
    /// # Errors
    /// The endpoint, or a refusal such as too little balance.
    pub async fn burned_register(
        &self,
        coldkey: &Keypair,
        netuid: Netuid,
        hotkey: &Hotkey,
    ) -> Result<(), ChainError> {
        self.submit(coldkey, calls::burned_register(netuid, hotkey)).await
    }

    async fn submit(&self, key: &Keypair, call: Call) -> Result<(), ChainError> {
        let _turn = self.submitting.lock().await;
        self.endpoint.submit(key, call).await
    }
}
