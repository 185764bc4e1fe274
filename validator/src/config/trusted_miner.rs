//! The trusted miner: the validator's operator runs it outside the subnet, with `registered = false`.

use std::net::SocketAddr;

use muster_chain::Metagraph;
use muster_process::config::Problem;
use muster_protocol::{Digest, Hotkey, MinerKey};
use serde::Deserialize;

/// The section `[trusted_miner]`: hotkey and address, or neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrustedMinerConfig {
    /// The miner's hotkey; absent, there is none.
    pub hotkey: Option<MinerKey>,
    /// The address at which it listens.
    pub address: Option<SocketAddr>,
    /// The SHA-256 of its port's certificate, as its log shows it. Absent, the one on the chain counts, if there
    /// is one.
    pub certificate: Option<Digest>,
}

/// The trusted miner of a validator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustedMiner {
    /// The hotkey under which it is greeted.
    pub miner: MinerKey,
    /// The address to dial.
    pub address: SocketAddr,
}

impl TrustedMinerConfig {
    /// The miner, if the section names one.
    pub fn miner(&self) -> Option<TrustedMiner> {
        let (miner, address) = self.hotkey.zip(self.address)?;
        Some(TrustedMiner { miner, address })
    }

    /// Whether this is the hotkey of the trusted miner.
    pub fn is(&self, hotkey: Hotkey) -> bool {
        self.hotkey.is_some_and(|miner| miner.0 == hotkey)
    }

    /// The certificate by which this validator knows a miner's port; `None` if it is dialled without TLS. The chain
    /// has it, but for a trusted miner that this section pins.
    pub fn certificate_of(&self, miner: MinerKey, chain: Option<&Metagraph>) -> Option<Digest> {
        let pinned = self.certificate.filter(|_| self.is(miner.0));
        pinned.or_else(|| chain?.certificate_of(&miner.0))
    }

    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let missing = match (self.hotkey, self.address) {
            (Some(_), None) => Some(("trusted_miner.address", "the hotkey")),
            (None, Some(_)) => Some(("trusted_miner.hotkey", "the address")),
            (Some(_), Some(_)) | (None, None) => None,
        };
        if let Some((path, other)) = missing {
            problems.push(Problem::at(path, format!("must be set too, since {other} is")));
        }
        if self
            .address
            .is_some_and(|address| address.port() == 0 || address.ip().is_unspecified())
        {
            let text = "must be an address and a port that can be dialled";
            problems.push(Problem::at("trusted_miner.address", text));
        }
        problems
    }
}
