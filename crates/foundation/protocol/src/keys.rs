//! Public keys by role, with their ss58 text form.
//!
//! Four types of the same 32 bytes: a validator's key can never be passed where a miner's is meant.
//! The text form is Substrate's ss58 (base58 of prefix, key and the head of a BLAKE2b-512 checksum), generic prefix 42.

use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;

use blake2::{Blake2b512, Digest as _};

use crate::macros::serde_as_text;

/// The generic Substrate network prefix, which Bittensor uses.
const SS58_PREFIX: u8 = 42;
const CHECKSUM_CONTEXT: &[u8] = b"SS58PRE";

/// The reason why a text is not an ss58 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A character outside the base58 alphabet, or a text longer than any address.
    #[error("not an ss58 address: it is not base58")]
    NotBase58,
    /// The text encodes the wrong number of bytes.
    #[error("not an ss58 address of a 32-byte key: it holds {0} bytes, 35 are needed")]
    Length(usize),
    /// The address belongs to another network.
    #[error("an ss58 address of network {0}; Bittensor's addresses have prefix 42 and begin with a 5")]
    Prefix(u8),
    /// At least one character is mistyped.
    #[error("the ss58 address fails its checksum: at least one character is wrong")]
    Checksum,
}

/// The sr25519 public key of any account that takes part in a subnet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hotkey([u8; 32]);

impl Hotkey {
    /// Wraps the raw key. Not every value is a point of the curve; only verification finds out.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The raw key.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Hotkey {
    fn to_ss58(self) -> Box<str> {
        let mut raw = Vec::with_capacity(35);
        raw.push(SS58_PREFIX);
        raw.extend_from_slice(&self.0);
        let checksum = checksum(&raw);
        raw.extend_from_slice(&checksum);
        bs58::encode(raw).into_string().into()
    }
}

/// The keys whose texts a thread remembers. A text takes a microsecond and a half, and a million receipts of one cycle
/// have the keys of one subnet.
const WRITTEN_KEYS: usize = 1_024;

/// A key that was written lately, and its text.
type WrittenKey = Option<(Hotkey, Box<str>)>;

thread_local! {
    /// Each key has one place, by its first bytes. Another key takes the place over.
    static WRITTEN: RefCell<Vec<WrittenKey>> = const { RefCell::new(Vec::new()) };
}

impl fmt::Display for Hotkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second, ..] = self.0;
        let place = usize::from(u16::from_le_bytes([first, second])) % WRITTEN_KEYS;
        WRITTEN.with(|written| {
            // Nobody else writes a key while this one is written, so it is never borrowed twice.
            let Ok(mut written) = written.try_borrow_mut() else {
                return f.write_str(&self.to_ss58());
            };
            if written.is_empty() {
                written.resize(WRITTEN_KEYS, None);
            }
            match written.get_mut(place) {
                Some(Some((key, text))) if key == self => f.write_str(text),
                Some(slot) => {
                    let (_, text) = slot.insert((*self, self.to_ss58()));
                    f.write_str(text)
                }
                None => f.write_str(&self.to_ss58()),
            }
        })
    }
}

impl fmt::Debug for Hotkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Hotkey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        // Decoding base58 takes quadratic time, so a long text is refused first.
        if text.len() > 64 {
            return Err(KeyError::NotBase58);
        }
        let raw = bs58::decode(text).into_vec().map_err(|_| KeyError::NotBase58)?;
        let (body, sum) = raw.split_at_checked(33).ok_or(KeyError::Length(raw.len()))?;
        let (&prefix, key) = body.split_first().ok_or(KeyError::Length(raw.len()))?;
        if sum.len() != 2 {
            return Err(KeyError::Length(raw.len()));
        }
        if prefix != SS58_PREFIX {
            return Err(KeyError::Prefix(prefix));
        }
        if sum != checksum(body) {
            return Err(KeyError::Checksum);
        }
        Ok(Self(key.try_into().map_err(|_| KeyError::Length(raw.len()))?))
    }
}

serde_as_text!(Hotkey);

fn checksum(body: &[u8]) -> [u8; 2] {
    let hash = Blake2b512::new()
        .chain_update(CHECKSUM_CONTEXT)
        .chain_update(body)
        .finalize();
    let [a, b, ..]: [u8; 64] = hash.into();
    [a, b]
}

macro_rules! role_key {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub Hotkey);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, concat!(stringify!($name), "({})"), self.0) }
        }

        impl FromStr for $name {
            type Err = KeyError;

            fn from_str(text: &str) -> Result<Self, KeyError> { text.parse().map(Self) }
        }

        serde_as_text!($name);
    };
}

role_key!(
    /// A hotkey in the role of a validator.
    ValidatorKey
);
role_key!(
    /// A hotkey in the role of a miner.
    MinerKey
);
role_key!(
    /// The key with which an end user signs jobs; it need not be registered anywhere.
    UserKey
);

#[cfg(test)]
mod tests {
    use super::*;

    /// `//Alice`, the address every Substrate tool prints for it.
    const ALICE: &str = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
    const ALICE_HEX: &str = "d43593c715fdd31c61141abd04a99fd6822c8558854ccde39a5684e7a56da27d";

    #[test]
    fn keys_of_one_place_keep_their_own_texts() {
        let with = |first: u8, last: u8| {
            let mut bytes = [last; 32];
            bytes[0] = first;
            bytes[1] = 0;
            Hotkey::from_bytes(bytes)
        };
        let keys = [with(1, 2), with(1, 3), with(1, 2), with(2, 2)];
        for key in keys.iter().chain(&keys) {
            assert_eq!(key.to_string(), *key.to_ss58());
            assert_eq!(key.to_string().parse(), Ok(*key));
        }
    }

    #[test]
    fn alice_is_alice_both_ways() {
        let key: Hotkey = ALICE.parse().unwrap();
        assert_eq!(hex::encode(key.as_bytes()), ALICE_HEX);
        assert_eq!(key.to_string(), ALICE);
    }

    #[test]
    fn each_kind_of_wrong_address_is_named() {
        let polkadot = "15oF4uVJwmo4TdGW7VfQxNLavjCXviqxT9S1MgbjMNHr6Sp5";
        let mistyped = ALICE.replace('w', "x");
        assert_eq!("".parse::<Hotkey>(), Err(KeyError::Length(0)));
        assert_eq!("0OIl".parse::<Hotkey>(), Err(KeyError::NotBase58));
        assert_eq!("5".repeat(65).parse::<Hotkey>(), Err(KeyError::NotBase58));
        assert_eq!(polkadot.parse::<Hotkey>(), Err(KeyError::Prefix(0)));
        assert_eq!(mistyped.parse::<Hotkey>(), Err(KeyError::Checksum));
    }
}
