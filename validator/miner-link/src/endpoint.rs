//! A miner's port as a validator dials it.

use std::net::SocketAddr;

use muster_identity::Keypair;
use muster_protocol::{Digest, MinerKey};
use muster_websocket::pinned;

/// A miner and the address where it is dialled. A miner that moves to another address, or rotates its certificate, gets
/// a new session; attempts on the one before it go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MinerEndpoint {
    /// The miner that is greeted there.
    pub miner: MinerKey,
    /// The address of its port.
    pub address: SocketAddr,
    /// The certificate that the miner announces; `None` if it speaks no TLS.
    pub certificate: Option<Digest>,
}

impl MinerEndpoint {
    /// A miner's port at an address, with the certificate that the miner announces.
    pub const fn new(miner: MinerKey, address: SocketAddr, certificate: Option<Digest>) -> Self {
        Self {
            miner,
            address,
            certificate,
        }
    }

    /// The address at which the validator `keypair` dials the port: over TLS with the certificate that the miner
    /// announces, and without TLS only if it announces none.
    pub(crate) fn url(&self, keypair: &Keypair) -> String {
        let path = format!("/v0.1/validator_interface/{}", keypair.hotkey());
        match self.certificate {
            Some(certificate) => pinned(&format!("wss://{}{path}", self.address), certificate),
            None => format!("ws://{}{path}", self.address),
        }
    }
}
