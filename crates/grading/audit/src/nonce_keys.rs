//! The keys of the gateway's nonces: one for each period of 300 blocks, revealed once the period after it has ended.
//!
//! A seed follows from a nonce, so a validator that drew nonces freely could look for seeds on which honest rounding
//! shows. With the revealed key everybody computes each nonce again.

use muster_identity::{Keypair, ProvenOutput, VrfInput};
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::{BUCKET_BLOCKS, BucketNumber, NonceInput, RequestNonce, ResponseProof};
use serde::{Deserialize, Serialize};

const NONCE_DOMAIN: &str = "muster/audit-nonce/1";
/// Buckets of one period: an hour of blocks of twelve seconds.
const PERIOD_BUCKETS: u64 = 12;
/// The most ordinals that are tried for one request: equal requests to a session beyond them are not tested.
pub const MAX_ORDINALS: u64 = 64;

/// The number of a period of nonces: period p has the blocks 300p to 300p + 299.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NoncePeriod(pub u64);

impl NoncePeriod {
    /// The period of a block.
    pub const fn of_block(block: u64) -> Self {
        Self::of_bucket(BucketNumber::of_block(block))
    }

    /// The period of a bucket's blocks.
    pub const fn of_bucket(bucket: BucketNumber) -> Self {
        Self(bucket.0 / PERIOD_BUCKETS)
    }

    /// The block whose hash gives the key.
    pub const fn first_block(self) -> u64 {
        self.0
            .saturating_mul(PERIOD_BUCKETS)
            .saturating_mul(BUCKET_BLOCKS)
    }

    /// The block from which on the key is public: no nonce is made by it any more.
    pub const fn reveal_block(self) -> u64 {
        Self(self.0.saturating_add(2)).first_block()
    }

    /// The period before this one; `None` for the first.
    pub const fn previous(self) -> Option<Self> {
        match self.0.checked_sub(1) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }
}

/// The key of a period's nonces as the validator reveals it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevealedNonceKey {
    /// The number of the period.
    pub period: u64,
    /// The hash of the period's first block.
    pub block_hash: Digest,
    /// The key's point and the proof that it is the validator's for this block.
    pub proof: ProvenOutput,
}

impl RevealedNonceKey {
    /// The key of a period, whose first block has this hash, and the proof with which the validator reveals it.
    pub fn prove(
        validator: &Keypair,
        genesis: &Digest,
        netuid: u16,
        period: NoncePeriod,
        block_hash: Digest,
    ) -> ([u8; 32], Self) {
        let (key, proof) = nonce_key(validator, genesis, netuid, &block_hash);
        let revealed = Self {
            period: period.0,
            block_hash,
            proof,
        };
        (key, revealed)
    }

    /// The key; `None` if it is not the validator's for this block of this subnet.
    pub fn check(&self, validator: &ValidatorKey, genesis: &Digest, netuid: u16) -> Option<[u8; 32]> {
        check_nonce_key(validator, genesis, netuid, &self.block_hash, &self.proof)
    }
}

/// The key of a period's nonces, and the proof with which the validator reveals it later. `first_hash` is the hash of
/// the period's first block.
pub fn nonce_key(
    validator: &Keypair,
    genesis: &Digest,
    netuid: u16,
    first_hash: &Digest,
) -> ([u8; 32], ProvenOutput) {
    let message = nonce_message(genesis, netuid, first_hash);
    validator.prove_output(&VrfInput {
        domain: NONCE_DOMAIN,
        message: &message,
    })
}

/// Checks a revealed key of nonces; `None` if it is not the validator's for this period.
pub fn check_nonce_key(
    validator: &ValidatorKey,
    genesis: &Digest,
    netuid: u16,
    first_hash: &Digest,
    proof: &ProvenOutput,
) -> Option<[u8; 32]> {
    let message = nonce_message(genesis, netuid, first_hash);
    let input = VrfInput {
        domain: NONCE_DOMAIN,
        message: &message,
    };
    proof.check(&validator.0, &input)
}

fn nonce_message(genesis: &Digest, netuid: u16, first_hash: &Digest) -> Vec<u8> {
    [
        genesis.as_bytes().as_slice(),
        &netuid.to_be_bytes(),
        first_hash.as_bytes(),
    ]
    .concat()
}

/// Whether this key gives the proof's nonce for an ordinal below `equal_requests`, the number of the session's proofs
/// of the same client, client's nonce and request.
pub fn is_derived_nonce(proof: &ResponseProof, key: &[u8; 32], equal_requests: u64) -> bool {
    let (Some(nonce), Some(client)) = (proof.gateway_nonce, proof.client) else {
        return false;
    };
    (0..equal_requests.min(MAX_ORDINALS)).any(|ordinal| {
        let input = NonceInput {
            attestation: &proof.attestation,
            client: &client,
            client_nonce: proof.client_nonce.as_ref(),
            request: &proof.input,
            ordinal,
        };
        RequestNonce::derive(key, &input) == nonce
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_revealed_once_the_next_period_has_ended() {
        assert_eq!(NoncePeriod::of_block(299), NoncePeriod(0));
        assert_eq!(NoncePeriod::of_block(300), NoncePeriod(1));
        assert_eq!(NoncePeriod::of_bucket(BucketNumber(11)), NoncePeriod(0));
        assert_eq!(NoncePeriod::of_bucket(BucketNumber(12)), NoncePeriod(1));
        assert_eq!(
            (NoncePeriod(3).first_block(), NoncePeriod(3).reveal_block()),
            (900, 1_500)
        );
        assert_eq!(NoncePeriod(0).previous(), None);
        assert_eq!(NoncePeriod(u64::MAX).reveal_block(), u64::MAX);
    }

    #[test]
    fn a_revealed_key_is_the_validators_for_its_block_alone() {
        let validator = Keypair::from_seed([1; 32]);
        let (genesis, hash) = (Digest::of(b"genesis"), Digest::of(b"block 900"));
        let (key, revealed) = RevealedNonceKey::prove(&validator, &genesis, 12, NoncePeriod(3), hash);
        let of = ValidatorKey(validator.hotkey());
        let text = serde_json::to_string(&revealed).unwrap();
        let read: RevealedNonceKey = serde_json::from_str(&text).unwrap();
        assert_eq!(read.check(&of, &genesis, 12), Some(key));
        assert_eq!(revealed.check(&of, &genesis, 13), None);
        assert_eq!(revealed.check(&of, &Digest::of(b"another chain"), 12), None);
        let other = RevealedNonceKey {
            block_hash: Digest::of(b"a luckier block"),
            ..revealed
        };
        assert_eq!(other.check(&of, &genesis, 12), None);
        let impostor = ValidatorKey(Keypair::from_seed([2; 32]).hotkey());
        assert_eq!(revealed.check(&impostor, &genesis, 12), None);
        // The key of this seed and block must never change: nonces of earlier releases are computed again.
        let golden = "735910a56b70d38e3cc55ad15531f397b0c5a83b80fdd4fec8c0e159d61a385a";
        assert_eq!(hex::encode(key), golden);
    }
}
