//! The draw as everybody checks it.

use muster_audit::{BucketDraw, check_nonce_key, nonce_key};
use muster_identity::Keypair;
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::{BucketHeader, BucketNumber, MAX_SHARE_PPM, root_of};
use proptest::prelude::*;

fn header(bucket: u64, validator: &Keypair) -> BucketHeader {
    BucketHeader {
        genesis: Digest::of(b"genesis"),
        netuid: 12,
        validator: ValidatorKey(validator.hotkey()),
        bucket: BucketNumber(bucket),
        answers: 0,
        root: root_of([]),
        previous: Digest::of(b""),
        shares: 0,
        share_root: root_of([]),
        canaries: root_of([]),
    }
}

fn proof(number: u32) -> Digest {
    Digest::of(&number.to_be_bytes())
}

#[test]
fn a_draw_is_the_same_for_everybody_and_no_other_key_bucket_or_block_has_it() {
    let (ours, other) = (Keypair::from_seed([1; 32]), Keypair::from_seed([2; 32]));
    let (header_7, block) = (header(7, &ours), Digest::of(b"block"));
    let (draw, shown) = BucketDraw::prove(&ours, &header_7, &block);
    let key = ValidatorKey(ours.hotkey());
    assert_eq!(BucketDraw::check(&key, &header_7, &block, &shown), Some(draw));
    let other_key = ValidatorKey(other.hotkey());
    assert_eq!(BucketDraw::check(&other_key, &header_7, &block, &shown), None);
    let later = Digest::of(b"another block");
    assert_eq!(BucketDraw::check(&key, &header_7, &later, &shown), None);
    assert_eq!(BucketDraw::check(&key, &header(8, &ours), &block, &shown), None);
    // The root is no input: leaves that are added change nothing.
    let fuller = BucketHeader {
        answers: 1,
        root: root_of([proof(1)]),
        ..header_7
    };
    assert_eq!(BucketDraw::check(&key, &fuller, &block, &shown), Some(draw));
}

#[test]
fn the_drawn_answers_are_those_of_hashlib() {
    // hashlib.sha256(b"muster/draw/1" + bytes([5]) * 32 + sha256(n as four bytes)), first eight bytes little-endian,
    // times 10⁶ below 70,000·2⁶⁴, for n from 0 to 199.
    let draw = BucketDraw::from_bytes([5; 32]);
    let drawn: Vec<u32> = (0..200).filter(|n| draw.draws(&proof(*n), 70_000)).collect();
    assert_eq!(drawn, [6, 61, 62, 155, 165, 170, 175, 198]);
}

#[test]
fn a_miner_that_knows_everything_but_the_block_foresees_nothing() {
    let ours = Keypair::from_seed([1; 32]);
    let header = header(7, &ours);
    let drawn_by = |block: &[u8]| -> Vec<bool> {
        let (draw, _) = BucketDraw::prove(&ours, &header, &Digest::of(block));
        (0..4_000).map(|n| draw.draws(&proof(n), 100_000)).collect()
    };
    let (first, second) = (drawn_by(b"one block"), drawn_by(b"another block"));
    let count = |drawn: &[bool]| drawn.iter().filter(|drawn| **drawn).count();
    // 400 are expected, with a deviation of 19.
    assert!((310..490).contains(&count(&first)) && (310..490).contains(&count(&second)));
    let both = first.iter().zip(&second).filter(|(a, b)| **a && **b).count();
    // Of those that the first block draws, the second draws a tenth again, as of all others: 40, with a deviation of 6.
    assert!((10..72).contains(&both), "{both}");
}

#[test]
fn a_key_of_nonces_is_revealed_and_checked() {
    let ours = Keypair::from_seed([1; 32]);
    let (genesis, first) = (Digest::of(b"genesis"), Digest::of(b"the epoch's first block"));
    let (key, shown) = nonce_key(&ours, &genesis, 12, &first);
    let validator = ValidatorKey(ours.hotkey());
    assert_eq!(
        check_nonce_key(&validator, &genesis, 12, &first, &shown),
        Some(key)
    );
    assert_eq!(check_nonce_key(&validator, &genesis, 13, &first, &shown), None);
    assert_eq!(check_nonce_key(&validator, &genesis, 12, &genesis, &shown), None);
}

proptest! {
    #[test]
    fn a_larger_share_draws_all_that_a_smaller_one_draws(
        seed in any::<[u8; 32]>(), answer in any::<u32>(), small in 0_u32..=MAX_SHARE_PPM, large in 0_u32..=MAX_SHARE_PPM,
    ) {
        let draw = BucketDraw::from_bytes(seed);
        let (small, large) = (small.min(large), small.max(large));
        prop_assert!(!draw.draws(&proof(answer), small) || draw.draws(&proof(answer), large));
        prop_assert!(!draw.draws(&proof(answer), 0));
        prop_assert!(draw.draws(&proof(answer), MAX_SHARE_PPM));
    }
}
