//! Writes to the chain that cost no money: announcing an axon, setting weights, committing a manifest. Calls that cost
//! money are in [`crate::money`].

use std::net::SocketAddr;

use muster_identity::Keypair;
use muster_protocol::{Digest, Hotkey, Manifest, Netuid, Uid};
use subxt::dynamic::Value;

use crate::call_encoding;
use crate::certificates;
use crate::chain_reader::ChainClient;
use crate::commitment_text;
use crate::error::ChainError;
use crate::metagraph::axon_address;
use crate::pages_commitment;
use crate::scale_value::{bytes, field, number};
use crate::weights::WeightsCall;

/// Whether an announcement needed a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxonAnnouncement {
    /// The call was made: the chain has the announcement since now.
    Now,
    /// The chain had the announcement already.
    Before,
}

impl ChainClient {
    /// Announces a hotkey's address. Costs nothing if the chain has it already.
    ///
    /// # Errors
    /// [`ChainError::NotRegistered`]; the address cannot be dialled; the endpoint fails; or a rejection such as
    /// announcing too often.
    pub async fn serve_axon(
        &self,
        key: &Keypair,
        netuid: Netuid,
        at: SocketAddr,
    ) -> Result<AxonAnnouncement, ChainError> {
        self.check_serving(key, netuid, at).await?;
        if self.axon_of(netuid, &key.hotkey()).await? == Some(at) {
            return Ok(AxonAnnouncement::Before);
        }
        self.submit(key, call_encoding::serve_axon(netuid, at)).await?;
        Ok(AxonAnnouncement::Now)
    }

    /// Announces a hotkey's address and the certificate that it shows there; without one, that it speaks no TLS. Costs
    /// nothing if the chain has both already.
    ///
    /// # Errors
    /// As for [`Self::serve_axon`].
    pub async fn serve_axon_tls(
        &self,
        key: &Keypair,
        netuid: Netuid,
        at: SocketAddr,
        certificate: Option<Digest>,
    ) -> Result<AxonAnnouncement, ChainError> {
        let known = self.certificate_of(netuid, &key.hotkey()).await?;
        let known = known.as_deref().and_then(certificates::certificate_in);
        if known == certificate {
            return self.serve_axon(key, netuid, at).await;
        }
        self.check_serving(key, netuid, at).await?;
        let announced = certificates::announced(certificate);
        self.submit(key, call_encoding::serve_axon_tls(netuid, at, &announced))
            .await?;
        Ok(AxonAnnouncement::Now)
    }

    /// The address that a hotkey has announced; `None` without one that can be dialled.
    ///
    /// # Errors
    /// No endpoint answers, or an answer is not understood.
    pub async fn axon_of(&self, netuid: Netuid, hotkey: &Hotkey) -> Result<Option<SocketAddr>, ChainError> {
        let axon = self
            .read_of_hotkey("read an axon", "Axons", netuid, hotkey)
            .await?;
        Ok(axon.as_ref().and_then(axon_address))
    }

    /// The TLS key that a hotkey has announced: its algorithm's number, then its bytes.
    ///
    /// # Errors
    /// As for [`Self::axon_of`].
    pub async fn certificate_of(
        &self,
        netuid: Netuid,
        hotkey: &Hotkey,
    ) -> Result<Option<Vec<u8>>, ChainError> {
        let stored = self
            .read_of_hotkey("read a certificate", "NeuronCertificates", netuid, hotkey)
            .await?;
        Ok(stored.as_ref().and_then(|stored| {
            let algorithm: u8 = field(stored, "algorithm").and_then(number)?;
            let mut certificate = vec![algorithm];
            certificate.extend(field(stored, "public_key").and_then(bytes)?);
            Some(certificate)
        }))
    }

    async fn read_of_hotkey(
        &self,
        doing: &'static str,
        entry: &'static str,
        netuid: Netuid,
        hotkey: &Hotkey,
    ) -> Result<Option<Value>, ChainError> {
        let keys = vec![Value::u128(netuid.0.into()), Value::from_bytes(hotkey.as_bytes())];
        self.read_storage(doing, "SubtensorModule", entry, keys).await
    }

    async fn check_serving(&self, key: &Keypair, netuid: Netuid, at: SocketAddr) -> Result<(), ChainError> {
        if at.ip().is_unspecified() || at.port() == 0 {
            return Err(ChainError::Unroutable(at));
        }
        self.uid_of(netuid, &key.hotkey()).await.map(|_| ())
    }

    /// Sets a validator's weights, replacing those before. Returns once they are final.
    ///
    /// # Errors
    /// As for [`Self::submit_weights`].
    pub async fn set_weights(
        &self,
        key: &Keypair,
        netuid: Netuid,
        weights: &[(Uid, u16)],
        version_key: u64,
    ) -> Result<(), ChainError> {
        let call = WeightsCall::Set {
            weights: weights.to_vec(),
            version_key,
        };
        self.submit_weights(key, netuid, &call, None).await.map(|_| ())
    }

    /// States a miner's manifest on the chain. Costs nothing if the chain has it already.
    ///
    /// # Errors
    /// The manifest has more than 128 bytes, the endpoint fails, or a rejection, which also comes if manifests are
    /// stated too often.
    pub async fn commit_manifest(
        &self,
        key: &Keypair,
        netuid: Netuid,
        manifest: &Manifest,
    ) -> Result<AxonAnnouncement, ChainError> {
        self.commit_text(key, netuid, &manifest.to_commitment()).await
    }

    /// States where a validator serves its pages, beside what else its commitment says. Costs nothing if the chain has
    /// it already.
    ///
    /// # Errors
    /// As for [`Self::commit_manifest`].
    pub async fn commit_pages(
        &self,
        key: &Keypair,
        netuid: Netuid,
        pages: SocketAddr,
    ) -> Result<AxonAnnouncement, ChainError> {
        let before = self.commitment_of(netuid, &key.hotkey()).await?;
        let text = pages_commitment::with_pages(before.as_deref(), pages);
        self.commit_text(key, netuid, &text).await
    }

    /// Where a validator serves its pages; `None` if it has not stated it.
    ///
    /// # Errors
    /// As for [`Self::weights_of`].
    pub async fn pages_of(&self, netuid: Netuid, hotkey: &Hotkey) -> Result<Option<SocketAddr>, ChainError> {
        let text = self.commitment_of(netuid, hotkey).await?;
        Ok(text.as_deref().and_then(pages_commitment::pages))
    }

    /// Commits a text of a hotkey in the place of its last one. Costs nothing if the chain has it already.
    ///
    /// # Errors
    /// As for [`Self::commit_manifest`].
    pub async fn commit_text(
        &self,
        key: &Keypair,
        netuid: Netuid,
        text: &str,
    ) -> Result<AxonAnnouncement, ChainError> {
        let info = commitment_text::encode(text)?;
        if self.commitment_of(netuid, &key.hotkey()).await?.as_deref() == Some(text) {
            return Ok(AxonAnnouncement::Before);
        }
        self.submit(key, call_encoding::set_commitment(netuid, info))
            .await?;
        Ok(AxonAnnouncement::Now)
    }
}
