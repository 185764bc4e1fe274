//! Pulses: a BLS signature per round, in drand's scheme `bls-unchained-g1-rfc9380`. The message is the SHA-256 hash of
//! the round as a big-endian integer, signatures are points of G1, the public key is one of G2.

use ark_bls12_381::{Bls12_381, Fr, G1Affine, G1Projective, G2Affine, G2Projective, g1};
use ark_ec::hashing::HashToCurve;
use ark_ec::hashing::curve_maps::wb::WBMap;
use ark_ec::hashing::map_to_curve_hasher::MapToCurveBasedHasher;
use ark_ec::pairing::Pairing;
use ark_ec::{CurveGroup, PrimeGroup};
use ark_ff::PrimeField;
use ark_ff::field_hashers::DefaultFieldHasher;
use ark_serialize::{CanonicalDeserialize, CanonicalSerialize};
use sp_io::hashing::sha2_256;

/// Separates these signatures from those of other schemes, as drand's quicknet does.
const DOMAIN: &[u8] = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_";

/// A public key, compressed.
pub const PUBLIC_KEY: usize = 96;
/// A signature, compressed.
pub const SIGNATURE: usize = 48;

type Hasher = MapToCurveBasedHasher<G1Projective, DefaultFieldHasher<sha2::Sha256, 128>, WBMap<g1::Config>>;

/// The point that a round signs and to which texts are encrypted. It is never `None`: the domain is a constant that
/// fits.
pub(crate) fn identity(round: u64) -> Option<G1Affine> {
    Hasher::new(DOMAIN)
        .ok()?
        .hash(&sha2_256(&round.to_be_bytes()))
        .ok()
}

/// The hash of a pairing.
pub(crate) fn pairing_hash(signature: G1Affine, key: G2Affine) -> [u8; 32] {
    sha2_256(&compressed(&Bls12_381::pairing(signature, key).0, 576))
}

fn scalar(secret: &[u8; 32]) -> Fr {
    Fr::from_le_bytes_mod_order(secret)
}

pub(crate) fn compressed(point: &impl CanonicalSerialize, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    // Writing to a vector does not fail.
    point
        .serialize_compressed(&mut bytes)
        .map(|()| bytes)
        .unwrap_or_default()
}

/// The public key of a secret, compressed: 96 bytes.
#[must_use]
pub fn public_key(secret: &[u8; 32]) -> Vec<u8> {
    compressed(&(G2Projective::generator() * scalar(secret)), PUBLIC_KEY)
}

/// A round's signature, compressed: 48 bytes.
#[must_use]
pub fn sign(secret: &[u8; 32], round: u64) -> Vec<u8> {
    let signature = identity(round).map(|identity| (identity * scalar(secret)).into_affine());
    signature
        .map(|signature| compressed(&signature, SIGNATURE))
        .unwrap_or_default()
}

/// Reads a compressed public key.
pub(crate) fn read_public_key(bytes: &[u8]) -> Option<G2Affine> {
    (bytes.len() == PUBLIC_KEY)
        .then(|| G2Affine::deserialize_compressed(bytes).ok())
        .flatten()
}

/// Reads a compressed signature.
pub(crate) fn read_signature(bytes: &[u8]) -> Option<G1Affine> {
    (bytes.len() == SIGNATURE)
        .then(|| G1Affine::deserialize_compressed(bytes).ok())
        .flatten()
}

/// The round at a time, both in seconds; 0 before the first.
#[must_use]
pub fn round_at(now: u64, genesis: u64, period: u64) -> u64 {
    let age = now.checked_sub(genesis).and_then(|age| age.checked_div(period));
    age.map_or(0, |rounds| rounds.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_begin_with_one() {
        assert_eq!(round_at(99, 100, 3), 0);
        assert_eq!(round_at(100, 100, 3), 1);
        assert_eq!(round_at(102, 100, 3), 1);
        assert_eq!(round_at(103, 100, 3), 2);
        assert_eq!(round_at(103, 100, 0), 0);
    }

    #[test]
    fn a_signature_belongs_to_its_round_and_key() {
        let secret = [7; 32];
        let pairs = |round: u64, signature: &[u8]| {
            let signature = read_signature(signature).unwrap();
            let key = read_public_key(&public_key(&secret)).unwrap();
            let generator = G2Projective::generator().into_affine();
            pairing_hash(signature, generator) == pairing_hash(identity(round).unwrap(), key)
        };
        let signature = sign(&secret, 5);
        assert!(pairs(5, &signature));
        assert!(!pairs(6, &signature));
        assert!(!pairs(5, &sign(&[8; 32], 5)));
        assert_eq!(
            (public_key(&secret).len(), signature.len()),
            (PUBLIC_KEY, SIGNATURE)
        );
    }

    /// A pulse of drand's quicknet, as its relays hand it out.
    #[test]
    fn the_public_beacons_pulse_pairs_with_its_key() {
        let key = read_public_key(&crate::testing::quicknet_key()).unwrap();
        let signature = read_signature(&crate::testing::quicknet_round_1000()).unwrap();
        let generator = G2Projective::generator().into_affine();
        assert_eq!(
            pairing_hash(signature, generator),
            pairing_hash(identity(1000).unwrap(), key)
        );
    }

    #[test]
    fn bytes_that_are_no_points_are_refused() {
        for bytes in [vec![], vec![0; 48], vec![255; 48], vec![0; 47], vec![0; 49]] {
            assert!(read_signature(&bytes).is_none());
        }
        for bytes in [vec![], vec![0; 96], vec![255; 96], vec![0; 95]] {
            assert!(read_public_key(&bytes).is_none());
        }
    }
}
