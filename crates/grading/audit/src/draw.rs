//! The draw: which answers of a bucket are audited, by a number that nobody knew when they were given.

use muster_identity::{Keypair, ProvenOutput, VrfInput};
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::{BucketHeader, MAX_SHARE_PPM};
use sha2::{Digest as _, Sha256};

use crate::seeded_numbers::first_number;

const DRAW_DOMAIN: &str = "muster/audit-draw/1";
const DRAWN_TAG: &str = "muster/draw/1";

/// The draw from one bucket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BucketDraw([u8; 32]);

impl std::fmt::Debug for BucketDraw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BucketDraw({})", self.hex())
    }
}

impl BucketDraw {
    /// The validator's draw from its bucket, and the proof that it reveals with the verdict. `block_hash` is of
    /// the bucket's draw block, which did not exist when the answers were given.
    pub fn prove(validator: &Keypair, header: &BucketHeader, block_hash: &Digest) -> (Self, ProvenOutput) {
        let message = header.draw_message(block_hash);
        let (output, proof) = validator.prove_output(&VrfInput {
            domain: DRAW_DOMAIN,
            message: &message,
        });
        (Self(output), proof)
    }

    /// Checks a revealed draw; `None` if it is another validator's, or from another bucket or block.
    pub fn check(
        validator: &ValidatorKey,
        header: &BucketHeader,
        block_hash: &Digest,
        proof: &ProvenOutput,
    ) -> Option<Self> {
        let message = header.draw_message(block_hash);
        let input = VrfInput {
            domain: DRAW_DOMAIN,
            message: &message,
        };
        proof.check(&validator.0, &input).map(Self)
    }

    /// Takes a draw that was checked elsewhere.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Whether the answer of this proof is audited if its miner's share is `ppm` millionths.
    pub fn draws(&self, proof: &Digest, ppm: u32) -> bool {
        let digest = Sha256::new()
            .chain_update(DRAWN_TAG)
            .chain_update(self.0)
            .chain_update(proof.as_bytes())
            .finalize();
        let scaled = u128::from(first_number(&digest)) * u128::from(MAX_SHARE_PPM);
        scaled < u128::from(ppm) << 64
    }

    /// The 64 hex digits of the draw.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}
