//! Writing the chain: announcing an axon, setting weights, committing a manifest, registering.

use std::net::SocketAddr;

use muster_identity::Keypair;
use muster_protocol::{Hotkey, Manifest};
use subxt::dynamic::Value;

use crate::client::ChainClient;
use crate::commitment;
use crate::error::ChainError;
use crate::metagraph::{address, encode_ip};
use crate::submit::Call;
use crate::types::{Netuid, Uid};

const SUBTENSOR: &str = "SubtensorModule";
/// The mechanism that every subnet has.
const MECHANISM: u128 = 0;
/// What the official clients state as the protocol of an axon.
const AXON_PROTOCOL: u128 = 4;
/// The version of the served software; nobody decides anything by it.
const AXON_VERSION: u128 = 1;

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
        let known = self.storage("read an axon", SUBTENSOR, "Axons", keys).await?;
        if known.as_ref().and_then(address) == Some(at) {
            return Ok(Announced::Before);
        }
        let (ip, ip_type) = encode_ip(at.ip());
        let call = Call {
            pallet: SUBTENSOR,
            name: "serve_axon",
            arguments: [
                ("netuid", Value::u128(netuid.0.into())),
                ("version", Value::u128(AXON_VERSION)),
                ("ip", Value::u128(ip)),
                ("port", Value::u128(at.port().into())),
                ("ip_type", Value::u128(ip_type.into())),
                ("protocol", Value::u128(AXON_PROTOCOL)),
                ("placeholder1", Value::u128(0)),
                ("placeholder2", Value::u128(0)),
            ],
        };
        self.submit(key, call).await?;
        Ok(Announced::Now)
    }

    /// Sets a validator's weights, replacing those before. Returns once they are final.
    ///
    /// # Errors
    /// A refusal with its name (no permit, too fast, version key, …), the endpoint, or [`ChainError::Unconfirmed`], upon
    /// which [`Self::weights_of`] tells.
    pub async fn set_weights(
        &self,
        key: &Keypair,
        netuid: Netuid,
        weights: &[(Uid, u16)],
        version_key: u64,
    ) -> Result<(), ChainError> {
        let uids = weights.iter().map(|(uid, _)| Value::u128(uid.0.into()));
        let values = weights.iter().map(|(_, weight)| Value::u128((*weight).into()));
        let call = Call {
            pallet: SUBTENSOR,
            name: "set_mechanism_weights",
            arguments: [
                ("netuid", Value::u128(netuid.0.into())),
                ("mecid", Value::u128(MECHANISM)),
                ("dests", Value::unnamed_composite(uids)),
                ("weights", Value::unnamed_composite(values)),
                ("version_key", Value::u128(version_key.into())),
            ],
        };
        self.submit(key, call).await
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
        let call = Call {
            pallet: "Commitments",
            name: "set_commitment",
            arguments: [
                ("netuid", Value::u128(netuid.0.into())),
                ("info", commitment::encode(&manifest.to_commitment())?),
            ],
        };
        self.submit(key, call).await
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
        let call = Call {
            pallet: SUBTENSOR,
            name: "burned_register",
            arguments: [
                ("netuid", Value::u128(netuid.0.into())),
                ("hotkey", Value::from_bytes(hotkey.as_bytes())),
            ],
        };
        self.submit(coldkey, call).await
    }

    async fn submit<const N: usize>(&self, key: &Keypair, call: Call<N>) -> Result<(), ChainError> {
        let _turn = self.submitting.lock().await;
        self.endpoint.submit(key, call).await
    }
}
