//! The nonces of requests, and the gateway's rule for its own.

use std::fmt;

use hmac::{Hmac, Mac as _};
use muster_protocol::Digest;
use sha2::Sha256;

use crate::codec::Writer;

/// 32 bytes of a request that nobody can foresee, so that the proof of its response cannot be an older one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestNonce([u8; 32]);

impl RequestNonce {
    /// Takes bytes that the caller drew.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes as they are signed.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Reads 64 hex digits, the form of a header's value. `None` for anything else.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// The 64 hex digits of a header's value.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Debug for RequestNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())
    }
}

/// The facts that fix a gateway's nonce. A seed follows from the nonce, so a gateway that could draw freely would look
/// for seeds on which honest rounding shows.
#[derive(Clone, Copy, Debug)]
pub struct NonceInput<'a> {
    /// Digest of the attestation of the session that will answer.
    pub attestation: &'a Digest,
    /// The client's pseudonym.
    pub client: &'a Digest,
    /// The nonce that the client drew, if it drew one.
    pub client_nonce: Option<&'a RequestNonce>,
    /// Digest of the request by the session's scheme.
    pub request: &'a Digest,
    /// The number of such requests before this one: 0 for the first.
    pub ordinal: u64,
}

/// The seed of an answer's sampler, 32 bytes: SHA-256 over the tagged nonces and the request's digest. Nobody knows it
/// before the prompt is fixed, so neither side can search for a seed that it likes.
pub fn answer_seed(client: Option<&RequestNonce>, request: &Digest, gateway: &RequestNonce) -> [u8; 32] {
    let facts = Writer::new("muster/answer-seed/1")
        .maybe(client, |writer, nonce| writer.raw(nonce.as_bytes()))
        .digest(request)
        .raw(gateway.as_bytes())
        .done();
    *Digest::of(&facts).as_bytes()
}

impl RequestNonce {
    /// The nonce that the key of an epoch gives for a request: HMAC-SHA256 over the tagged facts. The gateway reveals
    /// the key an epoch later, and then everybody can compute the nonce again.
    pub fn derive(epoch_key: &[u8; 32], input: &NonceInput<'_>) -> Self {
        let facts = Writer::new("muster/gateway-nonce/1")
            .digest(input.attestation)
            .digest(input.client)
            .maybe(input.client_nonce, |writer, nonce| writer.raw(nonce.as_bytes()))
            .digest(input.request)
            .u64(input.ordinal)
            .done();
        // A key of any length is one.
        let mac = Hmac::<Sha256>::new_from_slice(epoch_key).map(|mac| mac.chain_update(&facts).finalize());
        mac.map_or(Self([0; 32]), |mac| Self(mac.into_bytes().into()))
    }
}
