//! Timelocked weights: encrypted so that they cannot be copied, and opened by a beacon's round. Pure: the caller
//! supplies the randomness.
//!
//! A beacon publishes, at a fixed pace, a signature of each round's number. Weights are encrypted to the identity
//! `sha256(round as big-endian u64)` under the beacon's public key, and that round's signature is the key that opens
//! them. The chain opens them by itself. The crate `timelock` supplies the cryptography; the chain writes the lengths
//! of two fields that the crate leaves out:
//!
//! ```text
//! u (96) ‖ 32 as u64LE ‖ v (32) ‖ 32 as u64LE ‖ w (32) ‖ length ‖ body ‖ 8 as u64LE ‖ "AES_GCM_"
//! ```
//!
//! The frame and the payload were compared with the official library in both directions: `tests/vectors/timelock.json`.

use ark_serialize::{CanonicalDeserialize, CanonicalSerialize};
use muster_protocol::{Hotkey, Uid};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use sha2::{Digest, Sha256};
use subxt::ext::codec::{Compact, Decode, Encode};
use timelock::block_ciphers::AESGCMBlockCipherProvider;
use timelock::engines::EngineBLS;
use timelock::engines::drand::TinyBLS381;
use timelock::ibe::fullident::Identity;
use timelock::tlock::{TLECiphertext, tld, tle};

/// The most bytes of a ciphertext that the chain accepts.
pub const MAX_COMMIT: usize = 5000;
/// The fewest bytes of a ciphertext: every field of the frame with an empty body.
const MIN_COMMIT: usize = U + 2 * (LENGTH + HASH) + 2 * LENGTH;
/// The most neurons whose weights are read from a payload.
const MAX_WEIGHTS: usize = 65_536;
/// Bytes of a compressed point of the key's group.
const U: usize = 96;
const HASH: usize = 32;
const LENGTH: usize = 8;

/// Quicknet's public key, as drand publishes it with its chain's hash `52db9ba7…84e971`.
const QUICKNET_KEY: &str = "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d10645\
                            10d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a";

/// A source of rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beacon {
    /// The beacon's public key: a compressed point, 96 bytes.
    pub public_key: Vec<u8>,
    /// The time at which round 1 is published, in seconds since 1970, UTC.
    pub genesis: u64,
    /// Seconds between two rounds.
    pub period: u64,
}

impl Beacon {
    /// The beacon of the public network: drand's quicknet.
    pub fn quicknet() -> Self {
        Self {
            public_key: hex::decode(QUICKNET_KEY).unwrap_or_default(),
            genesis: 1_692_803_367,
            period: 3,
        }
    }

    /// The round that the chain's official clients name for a time: whole periods since the genesis. Never 0.
    ///
    /// Round `r` is published at `genesis + (r - 1) * period`, so this round is out by then, for at most one period.
    pub fn round_at(&self, at_ms: u64) -> u64 {
        let elapsed = at_ms.saturating_sub(self.genesis.saturating_mul(1000));
        elapsed
            .checked_div(self.period.saturating_mul(1000))
            .unwrap_or(0)
            .max(1)
    }
}

/// The reason why a ciphertext was not made or not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimelockError {
    /// The beacon's key is not a point of its curve.
    #[error("the beacon's public key is not a key: check which beacon this chain uses")]
    Key,
    /// The operating system supplies no randomness.
    #[error("this machine supplies no randomness, so nothing can be kept secret: check its random devices")]
    Randomness,
    /// The library failed to encrypt.
    #[error("the weights could not be encrypted, which is a defect of this program")]
    Encrypt,
    /// The ciphertext is longer than the chain accepts; holds its length in bytes.
    #[error("a ciphertext of {0} bytes does not fit: the chain takes {MAX_COMMIT}")]
    TooLong(usize),
    /// The frame of the ciphertext is not the chain's.
    #[error("the ciphertext is not framed as the chain frames it: its maker used another format")]
    Frame,
    /// The signature is not a point of its curve.
    #[error("the round's signature is not a signature")]
    Signature,
    /// The signature is of another round than the ciphertext, or the bytes were changed.
    #[error("the ciphertext does not open: it was made for another round or another beacon, or was changed")]
    Closed,
    /// The decrypted bytes are not a payload of weights.
    #[error("the sealed bytes are not weights: their maker used another format")]
    Payload,
}

/// The encrypted content: a validator's weights with its hotkey, so that no other validator can submit a copy as its
/// own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsPayload {
    /// The validator's hotkey.
    pub hotkey: Hotkey,
    /// The weights by uid.
    pub weights: Vec<(Uid, u16)>,
    /// The version key of the weights.
    pub version_key: u64,
}

impl WeightsPayload {
    /// The SCALE form: `{hotkey: Vec<u8>, uids: Vec<u16>, values: Vec<u16>, version_key: u64}`.
    pub fn encode(&self) -> Vec<u8> {
        let uids: Vec<u16> = self.weights.iter().map(|(uid, _)| uid.0).collect();
        let values: Vec<u16> = self.weights.iter().map(|(_, value)| *value).collect();
        (self.hotkey.as_bytes().to_vec(), uids, values, self.version_key).encode()
    }

    /// Reads the form of [`Self::encode`], which must end with its last byte.
    ///
    /// # Errors
    /// [`TimelockError::Payload`] if the bytes are anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, TimelockError> {
        let mut input = bytes;
        let read = <(Vec<u8>, Vec<u16>, Vec<u16>, u64)>::decode(&mut input);
        let (hotkey, uids, values, version_key) = read.map_err(|_| TimelockError::Payload)?;
        if !input.is_empty() || uids.len() != values.len() || uids.len() > MAX_WEIGHTS {
            return Err(TimelockError::Payload);
        }
        let hotkey: [u8; 32] = hotkey.try_into().map_err(|_| TimelockError::Payload)?;
        Ok(Self {
            hotkey: Hotkey::from_bytes(hotkey),
            weights: uids.into_iter().map(Uid).zip(values).collect(),
            version_key,
        })
    }
}

/// Encrypts `message` so that `beacon`'s signature of `round` opens it, in the chain's frame.
///
/// `seed` must be random, secret and used once: the message's key is drawn from it.
///
/// # Errors
/// [`TimelockError::Key`], [`TimelockError::TooLong`].
pub fn seal(beacon: &Beacon, round: u64, message: &[u8], seed: [u8; 32]) -> Result<Vec<u8>, TimelockError> {
    use rand_chacha::rand_core::RngCore as _;
    type Key = <TinyBLS381 as EngineBLS>::PublicKeyGroup;
    let key = Key::deserialize_compressed(&*beacon.public_key).map_err(|_| TimelockError::Key)?;
    let mut rng = ChaCha20Rng::from_seed(seed);
    let mut secret = [0; 32];
    rng.fill_bytes(&mut secret);
    let sealed = tle::<TinyBLS381, AESGCMBlockCipherProvider, _>(key, secret, message, identity(round), rng)
        .map_err(|_| TimelockError::Encrypt)?;
    let mut plain = Vec::new();
    sealed
        .serialize_compressed(&mut plain)
        .map_err(|_| TimelockError::Encrypt)?;
    let framed = insert_lengths(&plain).ok_or(TimelockError::Encrypt)?;
    if framed.len() > MAX_COMMIT {
        return Err(TimelockError::TooLong(framed.len()));
    }
    Ok(framed)
}

/// Opens a ciphertext with its round's signature: a compressed point, 48 bytes.
///
/// # Errors
/// The frame or the signature is malformed, or the two do not belong together.
pub fn open(ciphertext: &[u8], signature: &[u8]) -> Result<Vec<u8>, TimelockError> {
    type Point = <TinyBLS381 as EngineBLS>::SignatureGroup;
    let point = Point::deserialize_compressed(signature).map_err(|_| TimelockError::Signature)?;
    let plain = remove_lengths(ciphertext).ok_or(TimelockError::Frame)?;
    let sealed =
        TLECiphertext::<TinyBLS381>::deserialize_compressed(&*plain).map_err(|_| TimelockError::Frame)?;
    tld::<TinyBLS381, AESGCMBlockCipherProvider>(sealed, point).map_err(|_| TimelockError::Closed)
}

/// The official library's envelope around a ciphertext, which also states the round: SCALE of `(bytes, u64)`.
pub fn envelope(ciphertext: &[u8], round: u64) -> Vec<u8> {
    let length = u32::try_from(ciphertext.len()).unwrap_or(u32::MAX);
    [Compact(length).encode(), ciphertext.to_vec(), round.encode()].concat()
}

fn identity(round: u64) -> Identity {
    Identity::new(b"", &Sha256::digest(round.to_be_bytes()))
}

/// Inserts the two lengths.
fn insert_lengths(plain: &[u8]) -> Option<Vec<u8>> {
    let (u, rest) = plain.split_at_checked(U)?;
    let (v, rest) = rest.split_at_checked(HASH)?;
    let (w, rest) = rest.split_at_checked(HASH)?;
    Some([u, &hash_length(), v, &hash_length(), w, rest].concat())
}

/// Removes the two lengths, and checks every other length, because the decoder that follows allocates as stated.
fn remove_lengths(framed: &[u8]) -> Option<Vec<u8>> {
    if !(MIN_COMMIT..=MAX_COMMIT).contains(&framed.len()) {
        return None;
    }
    let (u, rest) = framed.split_at_checked(U)?;
    let (v, rest) = take_sized(rest, HASH)?;
    let (w, rest) = take_sized(rest, HASH)?;
    let (body, suite) = take_measured(rest)?;
    let (_, end) = take_measured(suite)?;
    let (_ciphertext, nonce) = take_measured(body)?;
    let (_, inner_end) = take_measured(nonce)?;
    (end.is_empty() && inner_end.is_empty()).then(|| [u, v, w, rest].concat())
}

fn hash_length() -> [u8; LENGTH] {
    32_u64.to_le_bytes()
}

/// A field that states its length, which must be this one.
fn take_sized(bytes: &[u8], length: usize) -> Option<(&[u8], &[u8])> {
    take_measured(bytes).filter(|(field, _)| field.len() == length)
}

/// A field that states its length, and the bytes after it.
fn take_measured(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Quicknet's signature of round 1000, which anyone can fetch from drand.
    const ROUND_1000: &str =
        "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39";

    fn signature() -> Vec<u8> {
        hex::decode(ROUND_1000).unwrap()
    }

    fn payload() -> WeightsPayload {
        WeightsPayload {
            hotkey: Hotkey::from_bytes([7; 32]),
            weights: vec![(Uid(1), 65535), (Uid(300), 9)],
            version_key: 5,
        }
    }

    #[test]
    fn a_payload_is_read_back_and_its_bytes_are_scale() {
        let bytes = payload().encode();
        let expected = [
            &[128][..],
            &[7; 32],
            &[8, 1, 0, 44, 1],
            &[8, 255, 255, 9, 0],
            &[5, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(WeightsPayload::decode(&bytes), Ok(payload()));
        assert_eq!(
            WeightsPayload::decode(&[bytes, vec![0]].concat()),
            Err(TimelockError::Payload)
        );
    }

    #[test]
    fn the_rounds_signature_opens_it_and_nothing_else_does() {
        let message = payload().encode();
        let sealed = seal(&Beacon::quicknet(), 1000, &message, [3; 32]).unwrap();
        assert_eq!(open(&sealed, &signature()), Ok(message.clone()));
        assert_eq!(
            seal(&Beacon::quicknet(), 1000, &message, [3; 32]),
            Ok(sealed.clone())
        );
        assert_ne!(
            seal(&Beacon::quicknet(), 1000, &message, [4; 32]),
            Ok(sealed.clone())
        );

        let other = seal(&Beacon::quicknet(), 1001, &message, [3; 32]).unwrap();
        assert_eq!(open(&other, &signature()), Err(TimelockError::Closed));
        assert_eq!(open(&sealed, &[1; 48]), Err(TimelockError::Signature));
        let mut changed = sealed.clone();
        changed[U + LENGTH] ^= 1;
        assert_eq!(open(&changed, &signature()), Err(TimelockError::Closed));
        assert_eq!(
            open(&sealed[..sealed.len() - 1], &signature()),
            Err(TimelockError::Frame)
        );
    }

    #[test]
    fn a_key_that_is_none_and_weights_that_do_not_fit_are_named() {
        let beacon = Beacon {
            public_key: vec![1; 96],
            ..Beacon::quicknet()
        };
        assert_eq!(seal(&beacon, 1, b"x", [1; 32]), Err(TimelockError::Key));
        let long = seal(&Beacon::quicknet(), 1, &[0; MAX_COMMIT], [1; 32]);
        assert!(matches!(long, Err(TimelockError::TooLong(_))));
    }

    #[test]
    fn rounds_are_whole_periods() {
        let beacon = Beacon::quicknet();
        let at = |seconds: u64| beacon.round_at((beacon.genesis + seconds) * 1000);
        assert_eq!(
            [at(0), at(2), at(3), at(5), at(6), at(3000)],
            [1, 1, 1, 1, 2, 1000]
        );
        assert_eq!(beacon.round_at(0), 1);
        let stopped = Beacon { period: 0, ..beacon };
        assert_eq!(stopped.round_at(u64::MAX), 1);
    }

    const GOLDEN: &str = include_str!("../../../../tests/vectors/timelock.json");

    #[test]
    fn payloads_sealed_by_the_official_library_are_opened() {
        let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
        let unhex = |value: &serde_json::Value| hex::decode(value.as_str().unwrap()).unwrap();
        let signature = unhex(&golden["signature"]);
        for sealed in golden["sealed"].as_array().unwrap() {
            let opened = open(&unhex(&sealed["ciphertext"]), &signature);
            assert_eq!(opened, Ok(unhex(&sealed["message"])));
        }
        let weights = WeightsPayload::decode(&unhex(&golden["sealed"][0]["message"])).unwrap();
        assert_eq!(weights.hotkey, Hotkey::from_bytes([9; 32]));
        assert_eq!(weights.weights, [(Uid(3), 65535), (Uid(0x0405), 1)]);
        assert_eq!(weights.version_key, 7);
        // A commit of these weights by the library's own function is as long as ours: the payloads are alike.
        let ours = seal(&Beacon::quicknet(), 1000, &weights.encode(), [1; 32]).unwrap();
        assert_eq!(golden["schedules"][0]["bytes"], ours.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        /// Lengths that promise more than there is are refused before anything is allocated for them.
        #[test]
        fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(open(&bytes, &signature()).is_err());
            let _ = WeightsPayload::decode(&bytes);
        }
    }

    #[test]
    fn a_changed_length_is_refused_or_says_the_same() {
        let sealed = seal(&Beacon::quicknet(), 1000, b"weights", [9; 32]).unwrap();
        for (at, length) in (U..sealed.len() - LENGTH)
            .step_by(5)
            .zip([0, 1, 33, 1 << 20, 1 << 40, u64::MAX].iter().cycle())
        {
            let mut changed = sealed.clone();
            changed[at..at + LENGTH].copy_from_slice(&length.to_le_bytes());
            assert!(
                open(&changed, &signature()).map_or(true, |opened| opened == b"weights"),
                "{at}"
            );
        }
    }
}
