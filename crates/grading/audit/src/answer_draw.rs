//! The draw: which answers of a bucket are audited, by a number that nobody knew when they were given.

use muster_identity::{Keypair, ProvenOutput, VrfInput};
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::{BucketHeader, MAX_SHARE_PPM};
use sha2::{Digest as _, Sha256};

use crate::seeded_numbers::first_number;

const DRAW_DOMAIN: &str = "muster/audit-draw/1";
const DRAWN_TAG: &str = "muster/draw/1";

const CHECK_DOMAIN: &str = "muster/cross-check-draw/1";

/// The draw from one bucket of answers, or from the jobs that ended before one block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BucketDraw([u8; 32]);

/// The block by whose hash jobs are drawn. It did not exist when they ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawBlock {
    /// The hash of the chain's first block.
    pub genesis: Digest,
    /// The number of the subnet.
    pub netuid: u16,
    /// The number of the block.
    pub number: u64,
    /// The hash of the block.
    pub hash: Digest,
}

impl DrawBlock {
    /// genesis ‖ subnet (2) ‖ number (8) ‖ hash, integers big-endian.
    pub fn message(&self) -> Vec<u8> {
        [
            self.genesis.as_bytes().as_slice(),
            &self.netuid.to_be_bytes(),
            &self.number.to_be_bytes(),
            self.hash.as_bytes(),
        ]
        .concat()
    }
}

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

    /// The validator's draw from the jobs that are drawn by a block, and its proof.
    pub fn prove_block(validator: &Keypair, block: &DrawBlock) -> (Self, ProvenOutput) {
        let message = block.message();
        let (output, proof) = validator.prove_output(&VrfInput {
            domain: CHECK_DOMAIN,
            message: &message,
        });
        (Self(output), proof)
    }

    /// Checks a revealed draw from jobs; `None` if it is another validator's, or of another block.
    pub fn check_block(validator: &ValidatorKey, block: &DrawBlock, proof: &ProvenOutput) -> Option<Self> {
        let message = block.message();
        let input = VrfInput {
            domain: CHECK_DOMAIN,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miner_that_knows_the_draw_by_its_nonces_gains_nothing() {
        const SHARE: u32 = 50_000;
        // The draw before this one: by a hash of the nonce that a request carries, so the miner computes it, too.
        let by_nonce = |nonce: &Digest| {
            let scaled = u128::from(first_number(Digest::of(nonce.as_bytes()).as_bytes()));
            scaled * u128::from(MAX_SHARE_PPM) < u128::from(SHARE) << 64
        };
        let draw = BucketDraw::from_bytes([7; 32]);
        let (mut drawn, mut cheated) = (0_u32, 0_u32);
        for answer in 0..20_000_u32 {
            let nonce = Digest::of(&answer.to_be_bytes());
            // The miner answers honestly only where it expects an audit. The proof of the answer binds the nonce.
            let is_cheat = !by_nonce(&nonce);
            let proof = Digest::of(&[nonce.as_bytes().as_slice(), b"proof"].concat());
            if draw.draws(&proof, SHARE) {
                drawn += 1;
                cheated += u32::from(is_cheat);
            }
        }
        assert!((900..1_100).contains(&drawn), "a twentieth: {drawn}");
        let honest = drawn - cheated;
        assert!(
            (20..90).contains(&honest),
            "honest answers are drawn as often as any others: {honest} of {drawn}"
        );
    }

    #[test]
    fn the_message_of_a_block_is_these_bytes() {
        let block = DrawBlock {
            genesis: Digest::of(b"genesis"),
            netuid: 1,
            number: 7,
            hash: Digest::of(b"hash"),
        };
        let expected = concat!(
            "aeebad4a796fcc2e15dc4c6061b45ed9b373f26adfc798ca7d2d8cc58182718e",
            "0001",
            "0000000000000007",
            "d04b98f48e8f8bcc15c6ae5ac050801cd6dcfd428fb5f9e65c4e16e7807340fa"
        );
        assert_eq!(hex::encode(block.message()), expected);
    }
}
