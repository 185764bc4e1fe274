//! The draw of jobs: by the validator's verifiable function of a block that did not exist when the job ended, as
//! answers are drawn for audits. Pure.

use muster_audit::{BucketDraw, DrawBlock};
use muster_identity::{Keypair, ProvenOutput};
use muster_protocol::{Digest, ReceiptPayload};

/// Blocks between the block in which a job's finished receipt was written and the block whose hash draws.
pub const DRAW_AFTER: u64 = 12;

/// The block whose hash draws a job whose finished receipt was written at `block`.
pub const fn draw_block(block: u64) -> u64 {
    block.saturating_add(DRAW_AFTER)
}

/// The digest by which a job is drawn: that of the signed bytes of its finished receipt, which the miner has, too.
pub fn drawn_digest(finished: &ReceiptPayload) -> Digest {
    Digest::of(&finished.signed_bytes())
}

/// Draws one job; returns whether it is run again, and the proof that anyone with the receipt checks.
pub fn draw_job(
    validator: &Keypair,
    block: &DrawBlock,
    receipt: &Digest,
    share_ppm: u32,
) -> (bool, ProvenOutput) {
    let (draw, proof) = BucketDraw::prove_block(validator, block);
    (draw.draws(receipt, share_ppm), proof)
}

#[cfg(test)]
mod tests {
    use muster_protocol::ValidatorKey;
    use proptest::prelude::*;

    use super::*;

    fn block(number: u64) -> DrawBlock {
        DrawBlock {
            genesis: Digest::of(b"genesis"),
            netuid: 1,
            number,
            hash: Digest::of(&number.to_be_bytes()),
        }
    }

    #[test]
    fn a_share_of_the_jobs_is_drawn_and_anyone_checks_it() {
        let pair = Keypair::from_seed([1; 32]);
        let validator = ValidatorKey(pair.hotkey());
        let (draw, proof) = BucketDraw::prove_block(&pair, &block(7));
        assert_eq!(BucketDraw::check_block(&validator, &block(7), &proof), Some(draw));
        assert_eq!(BucketDraw::check_block(&validator, &block(8), &proof), None);
        let drawn = (0_u32..2_000)
            .filter(|number| draw.draws(&Digest::of(&number.to_be_bytes()), 100_000))
            .count();
        assert!((140..=260).contains(&drawn), "{drawn} of 2,000 at a tenth");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_larger_share_draws_every_job_that_a_smaller_one_does(
            bytes in any::<[u8; 8]>(), number in 0_u64..9, small in 0_u32..=1_000_000, large in 0_u32..=1_000_000,
        ) {
            let (small, large) = (small.min(large), small.max(large));
            let (pair, receipt) = (Keypair::from_seed([2; 32]), Digest::of(&bytes));
            let drawn = |ppm| draw_job(&pair, &block(number), &receipt, ppm).0;
            prop_assert!(!drawn(small) || drawn(large));
            prop_assert!(!drawn(0) && drawn(1_000_000));
        }
    }
}
