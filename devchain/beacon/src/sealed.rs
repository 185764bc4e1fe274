//! Payloads sealed until a round, in the framing of the public chain:
//!
//! `u (96) ‖ 32 as u64 ‖ v (32) ‖ 32 as u64 ‖ w (32) ‖ length ‖ body ‖ length ‖ name of the cipher`, where the body is
//! `length ‖ ciphertext ‖ length ‖ nonce`, and lengths are little-endian u64.
//!
//! The key of the cipher is encrypted to the round's identity by Boneh and Franklin's scheme (FullIdent): `u = r·P`, `v
//! = σ ⊕ H₂(e(Q, K)ʳ)`, `w = key ⊕ H₄(σ)`, `r = H₃(σ, key)`, every hash being SHA-256. The round's signature opens it,
//! because `e(signature, u) = e(Q, K)ʳ`.
//!
//! Everything comes from strangers. Every length is checked against what is there before anything is made of it.

use crate::pulse::{self, compressed, pairing_hash};
use aes_gcm::aead::Aead;
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use ark_bls12_381::{Fr, G2Affine, G2Projective};
use ark_ec::{CurveGroup, PrimeGroup};
use ark_ff::PrimeField;
use ark_serialize::CanonicalDeserialize;
use sp_io::hashing::sha2_256;

/// The only cipher there is.
const CIPHER: &[u8] = b"AES_GCM_";
/// A hash in the header.
const HASH: usize = 32;
/// A nonce of AES-GCM.
const NONCE: usize = 12;

/// Why a payload could not be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Closed {
    /// The bytes are not in the chain's framing.
    #[error("the sealed payload is not in the chain's framing; its sender must seal it again")]
    Framing,
    /// The signature is none.
    #[error("the beacon's signature is not a point of its group; the beacon is at fault")]
    Signature,
    /// It was sealed to another round or another beacon, or damaged.
    #[error(
        "the payload does not open with this round's signature; its sender must seal it to this beacon and round"
    )]
    Key,
}

/// Opens a sealed payload with the signature of its round.
///
/// # Errors
/// When the bytes are damaged, or sealed to something else.
pub fn open(sealed: &[u8], signature: &[u8]) -> Result<Vec<u8>, Closed> {
    let frame = Frame::read(sealed).ok_or(Closed::Framing)?;
    let signature = pulse::read_signature(signature).ok_or(Closed::Signature)?;
    let sigma = xor(&frame.v, &pairing_hash(signature, frame.u));
    let key = xor(&frame.w, &sha2_256(&sigma));
    if (G2Projective::generator() * exponent(&sigma, &key)).into_affine() != frame.u {
        return Err(Closed::Key);
    }
    let cipher = Aes256Gcm::new(&key.into());
    let nonce = Nonce::from(frame.nonce);
    cipher.decrypt(&nonce, frame.ciphertext).map_err(|_| Closed::Key)
}

/// The randomness of a sealing. A party that knows it can open the ciphertext.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entropy {
    /// The key of the cipher.
    pub key: [u8; HASH],
    /// The value σ of the scheme.
    pub sigma: [u8; HASH],
    /// The cipher's nonce.
    pub nonce: [u8; NONCE],
}

/// Seals a payload to a round of the beacon with this public key. `None` where the key is none.
#[must_use]
pub fn seal(public_key: &[u8], round: u64, payload: &[u8], entropy: &Entropy) -> Option<Vec<u8>> {
    let public_key = pulse::read_public_key(public_key)?;
    let Entropy { key, sigma, nonce } = entropy;
    let r = exponent(sigma, key);
    let u = (G2Projective::generator() * r).into_affine();
    let v = xor(
        sigma,
        &pairing_hash(pulse::identity(round)?, (public_key * r).into_affine()),
    );
    let w = xor(key, &sha2_256(sigma));
    let ciphertext = Aes256Gcm::new(&(*key).into())
        .encrypt(&Nonce::from(*nonce), payload)
        .ok()?;
    let body = [framed(&ciphertext), framed(nonce)].concat();
    let parts = [&v[..], &w, &body, CIPHER].map(framed);
    Some([compressed(&u, pulse::PUBLIC_KEY), parts.concat()].concat())
}

fn exponent(sigma: &[u8; HASH], key: &[u8; HASH]) -> Fr {
    Fr::from_be_bytes_mod_order(&sha2_256(&[*sigma, *key].concat()))
}

fn xor(a: &[u8; HASH], b: &[u8; HASH]) -> [u8; HASH] {
    let mut result = *a;
    for (byte, other) in result.iter_mut().zip(b) {
        *byte ^= other;
    }
    result
}

/// A part and its length before it.
fn framed(part: &[u8]) -> Vec<u8> {
    let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
    [&length.to_le_bytes()[..], part].concat()
}

/// A sealed payload, taken apart.
struct Frame<'a> {
    u: G2Affine,
    v: [u8; HASH],
    w: [u8; HASH],
    ciphertext: &'a [u8],
    nonce: [u8; NONCE],
}

impl<'a> Frame<'a> {
    /// `None` where the bytes are no frame; what follows its end is ignored, as the public chain ignores it.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (point, mut rest) = bytes.split_at_checked(pulse::PUBLIC_KEY)?;
        let v = part(&mut rest)?.try_into().ok()?;
        let w = part(&mut rest)?.try_into().ok()?;
        let mut body = part(&mut rest)?;
        let cipher = part(&mut rest)?;
        let ciphertext = part(&mut body)?;
        let nonce = part(&mut body)?.try_into().ok()?;
        let u = G2Affine::deserialize_compressed(point).ok()?;
        (cipher == CIPHER).then_some(Self {
            u,
            v,
            w,
            ciphertext,
            nonce,
        })
    }
}

/// The next part: a length and as many bytes.
fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (part, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pulse::{public_key, sign};

    const SECRET: [u8; 32] = [3; 32];
    const ENTROPY: Entropy = Entropy {
        key: [1; 32],
        sigma: [2; 32],
        nonce: [3; 12],
    };

    fn sealed(round: u64, payload: &[u8]) -> Vec<u8> {
        seal(&public_key(&SECRET), round, payload, &ENTROPY).unwrap()
    }

    #[test]
    fn a_payload_opens_with_its_round_only() {
        let bytes = sealed(9, b"weights");
        assert_eq!(open(&bytes, &sign(&SECRET, 9)), Ok(b"weights".to_vec()));
        assert_eq!(open(&bytes, &sign(&SECRET, 10)), Err(Closed::Key));
        assert_eq!(open(&bytes, &sign(&[4; 32], 9)), Err(Closed::Key));
        assert_eq!(open(&bytes, &[0; 48]), Err(Closed::Signature));
        assert_eq!(open(&bytes, &[]), Err(Closed::Signature));
    }

    #[test]
    fn the_framing_is_the_public_chains() {
        let bytes = sealed(9, b"weights");
        let length = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!((length(96), length(136)), (32, 32));
        // The payload, AES-GCM's tag, the nonce and two lengths.
        assert_eq!(length(176), 7 + 16 + 12 + 16);
        assert!(bytes.ends_with(CIPHER));
    }

    /// Sealed by bittensor-drand's `encrypt_at_round(b"weights of a validator", 1000)`, to the public beacon; without
    /// the length before and the round behind it, which that function adds.
    #[test]
    fn a_payload_sealed_by_the_official_library_is_opened() {
        let sealed = crate::testing::bytes(include_str!("../tests/official.hex"));
        let signature = crate::testing::quicknet_round_1000();
        assert_eq!(open(&sealed, &signature), Ok(b"weights of a validator".to_vec()));
    }

    #[test]
    fn truncated_and_damaged_payloads_stay_closed() {
        let bytes = sealed(9, b"w");
        let signature = sign(&SECRET, 9);
        for length in 0..bytes.len() {
            assert!(open(&bytes[..length], &signature).is_err(), "{length}");
        }
        for at in (0..bytes.len()).step_by(3) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(open(&damaged, &signature).is_err(), "{at}");
        }
    }

    #[test]
    fn lengths_that_lie_are_refused_without_being_believed() {
        let bytes = sealed(9, b"w");
        let signature = sign(&SECRET, 9);
        for at in [96, 136, 176, 184] {
            for lie in [u64::MAX, u64::MAX / 2, 1 << 40, 0, 31, 33] {
                let mut damaged = bytes.clone();
                damaged[at..at + 8].copy_from_slice(&lie.to_le_bytes());
                assert!(open(&damaged, &signature).is_err(), "{lie} at {at}");
            }
        }
    }

    #[test]
    fn an_empty_and_a_large_payload_fit() {
        for payload in [vec![], vec![5; 4_000]] {
            assert_eq!(open(&sealed(1, &payload), &sign(&SECRET, 1)), Ok(payload));
        }
    }
}
