//! The key of a client, by which each of its requests has a pseudonym of its own, and the part of a leaf that stands
//! for the client.
//!
//! A miner that could recognise a client would answer its first request honestly and cheat from the second one on,
//! since the validator's own prompts come from clients that ask once. So nothing that a miner sees of two requests is
//! the same because their client is.

use std::fmt;

use hmac::{Hmac, Mac as _};
use muster_protocol::{Digest, ValidatorKey};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::codec::Writer;
use crate::nonce::RequestNonce;

/// 32 secret bytes of one client at one validator. Its facilitator and the validator's gateway know them; miners do
/// not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClientKey([u8; 32]);

// === impl ClientKey ===

impl ClientKey {
    /// Takes bytes that the caller drew or derived.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key of a facilitator's account at one validator: HMAC-SHA256 under the facilitator's secret. A validator
    /// that reveals its clients' keys reveals nothing about their requests to others.
    pub fn of_account(secret: &[u8], validator: &ValidatorKey, account: &str) -> Self {
        let facts = Writer::new("muster/client-key/1")
            .raw(validator.0.as_bytes())
            .raw(account.as_bytes())
            .done();
        Self(hmac(secret, &facts))
    }

    /// The key of a client whose facilitator gives none, or of a validator's own API key. `secret` is what only the
    /// client and the gateway know of it.
    pub fn of_secret(issuer: &[u8], secret: &[u8]) -> Self {
        let facts = Writer::new("muster/client-secret/1")
            .digest(&Digest::of(issuer))
            .raw(secret)
            .done();
        Self(*Digest::of(&facts).as_bytes())
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

    /// The pseudonym under which a session sees a request: HMAC-SHA256 over the tagged digest of the request, by the
    /// session's scheme, and the client's nonce. Of a client that names no nonce, the gateway draws one, which the
    /// session does not see.
    pub fn pseudonym(&self, request: &Digest, nonce: &RequestNonce) -> Digest {
        let facts = Writer::new("muster/request-client/1")
            .digest(request)
            .raw(nonce.as_bytes())
            .done();
        Digest::from_bytes(hmac(&self.0, &facts))
    }

    /// The content of the commitment in a leaf, of an answer whose proof has this digest and that stands in a bucket of
    /// this day, counted as by [`BucketNumber::day`](crate::BucketNumber::day).
    pub fn opening(&self, proof: &Digest, day: u64) -> ClientOpening {
        let label = Writer::new("muster/client-day/1").u64(day).done();
        let salt = Writer::new("muster/leaf-salt/1").digest(proof).done();
        ClientOpening {
            label: Digest::from_bytes(hmac(&self.0, &label)),
            salt: Digest::from_bytes(hmac(&self.0, &salt)),
        }
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientKey(secret)")
    }
}

/// The opened client of an answer, of which the leaf's commitment is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientOpening {
    /// The same for all answers to a client in the buckets of one day, and another one on the next day.
    pub label: Digest,
    /// 32 bytes that no other answer has.
    pub salt: Digest,
}

impl ClientOpening {
    /// The commitment in the answer's leaf. Without the salt it reveals nothing about the label.
    pub fn commitment(&self) -> Digest {
        let facts = Writer::new("muster/leaf-client/1")
            .digest(&self.salt)
            .digest(&self.label)
            .done();
        Digest::of(&facts)
    }
}

fn hmac(key: &[u8], facts: &[u8]) -> [u8; 32] {
    // A key of any length is one.
    let mac = Hmac::<Sha256>::new_from_slice(key).map(|mac| mac.chain_update(facts).finalize());
    mac.map_or([0; 32], |mac| mac.into_bytes().into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use muster_protocol::Hotkey;

    use super::*;

    const KEY: ClientKey = ClientKey::from_bytes([7; 32]);

    fn validator(byte: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([byte; 32]))
    }

    /// Reports of answers and the openings of logged answers need these bytes for as long as the answers count.
    #[test]
    fn keys_pseudonyms_and_commitments_are_these_bytes() {
        let key = ClientKey::of_account(b"secret", &validator(2), "alice");
        let opening = KEY.opening(&Digest::of(b"proof"), 13);
        let found = [
            key.hex(),
            ClientKey::of_secret(b"issuer", b"secret").hex(),
            KEY.pseudonym(&Digest::of(b"request"), &RequestNonce::from_bytes([9; 32]))
                .hex(),
            opening.label.hex(),
            opening.salt.hex(),
            opening.commitment().hex(),
        ];
        assert_eq!(
            found,
            [
                "ff4763b679e773c95cc2910400fa2a7dd8b0719c418e668fcde15cbdc86f4447",
                "87bb0e758aa31f5301aa0abfbf89c1d7cc11aaa29023b0d2158e72462ecb7383",
                "faba12089a6a82d11a15fa9575677ba41eab40aeafb39c5afe7c2a80f5caead5",
                "7719ff82aa7179449446b6e0d74b67283bb81d5443037075b6b1263332fd29e0",
                "564c0130f2dd5803c757cdb7b76b1ecd083112e3354ef67ec3d7c5bf7d8735f2",
                "b5196c8595ee4769b5a6bca770c9e0e34ccd8d4e12b788399fde431d3fba5a71",
            ]
        );
        assert_eq!(ClientKey::from_hex(&key.hex()), Some(key));
        assert_eq!(ClientKey::from_hex(&key.hex()[1..]), None);
        assert_eq!(format!("{key:?}"), "ClientKey(secret)");
    }

    #[test]
    fn accounts_validators_requests_and_nonces_each_change_what_a_miner_sees() {
        let of = |secret: &[u8], at, account: &str| ClientKey::of_account(secret, &validator(at), account);
        let keys = [
            of(b"a", 1, "x"),
            of(b"b", 1, "x"),
            of(b"a", 2, "x"),
            of(b"a", 1, "y"),
        ];
        let seen = |key: &ClientKey, request: &[u8], nonce| {
            key.pseudonym(&Digest::of(request), &RequestNonce::from_bytes([nonce; 32]))
        };
        let mut all: BTreeSet<[u8; 32]> = keys.iter().map(|key| *seen(key, b"q", 1).as_bytes()).collect();
        all.insert(*seen(&keys[0], b"q", 2).as_bytes());
        all.insert(*seen(&keys[0], b"r", 1).as_bytes());
        assert_eq!(all.len(), keys.len() + 2);
    }

    #[test]
    fn answers_of_a_day_have_one_label_and_no_two_have_a_commitment_in_common() {
        let (first, second) = (
            KEY.opening(&Digest::of(b"1"), 3),
            KEY.opening(&Digest::of(b"2"), 3),
        );
        assert_eq!(first.label, second.label);
        assert_ne!(first.commitment(), second.commitment());
        assert_ne!(KEY.opening(&Digest::of(b"1"), 4).label, first.label);
        assert_ne!(
            ClientKey::from_bytes([8; 32]).opening(&Digest::of(b"1"), 3).label,
            first.label
        );
    }
}
