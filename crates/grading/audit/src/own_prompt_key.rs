//! The key of the own prompts that one bucket's header commits to: it gives each of them one nonce, and one seed where
//! the request names the seed.
//!
//! The key is a VRF of the validator's key over the bucket's draw block. So it does not exist when the header is
//! signed, there is no other one, and nobody but the validator knows it before a bundle shows it. The draw of the same
//! block is shown earlier, so its domain is another one: a miner would recognise own prompts by it.

use std::collections::BTreeSet;

use hmac::{Hmac, Mac as _};
use muster_identity::{Keypair, ProvenOutput, VrfInput};
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::{BucketHeader, RequestNonce};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sha2::Sha256;

const KEY_DOMAIN: &str = "muster/audit-own-prompts/1";
const NONCE_TAG: &[u8] = b"muster/own-gateway-nonce/1";
const SEED_TAG: &[u8] = b"muster/own-seed/1";
/// The forms of the blank that the seed takes the place of.
const BLANKS: [&[u8]; 2] = [br#""seed":null"#, br#""seed": null"#];
const NULL: usize = b"null".len();

/// The key of the own prompts of one bucket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OwnPromptKey([u8; 32]);

impl std::fmt::Debug for OwnPromptKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnPromptKey")
    }
}

impl OwnPromptKey {
    /// The validator's key for the lists of this header, and the proof that a bundle shows. `block_hash` is of the
    /// bucket's draw block.
    pub fn prove(validator: &Keypair, header: &BucketHeader, block_hash: &Digest) -> (Self, ProvenOutput) {
        let message = header.draw_message(block_hash);
        let (output, proof) = validator.prove_output(&VrfInput {
            domain: KEY_DOMAIN,
            message: &message,
        });
        (Self(output), proof)
    }

    /// Checks a shown key; `None` if it is another validator's, or of another bucket or block.
    pub fn check(
        validator: &ValidatorKey,
        header: &BucketHeader,
        block_hash: &Digest,
        proof: &ProvenOutput,
    ) -> Option<Self> {
        let message = header.draw_message(block_hash);
        let input = VrfInput {
            domain: KEY_DOMAIN,
            message: &message,
        };
        proof.check(&validator.0, &input).map(Self)
    }

    /// The gateway's nonce of the prompt at this position of a list, which its digest names.
    pub fn nonce(&self, list: &Digest, position: u64) -> RequestNonce {
        RequestNonce::from_bytes(self.mac(NONCE_TAG, list, position))
    }

    /// The seed of the prompt at this position, where the request names the seed: 31 bits, which every engine takes.
    pub(crate) fn seed(&self, list: &Digest, position: u64) -> u32 {
        let [a, b, c, d, ..] = self.mac(SEED_TAG, list, position);
        u32::from_be_bytes([a, b, c, d]) >> 1
    }

    /// The body that is asked: the request of the list, with the seed of its position in the place of a blank. `None`
    /// if the request has no blank.
    pub fn fill_seed(&self, request: &[u8], list: &Digest, position: u64) -> Option<Vec<u8>> {
        let seed = self.seed(list, position).to_string();
        let end = BLANKS.iter().find_map(|blank| {
            let start = request.windows(blank.len()).position(|window| window == *blank)?;
            Some(start + blank.len())
        })?;
        let (before, after) = (request.get(..end - NULL)?, request.get(end..)?);
        Some([before, seed.as_bytes(), after].concat())
    }

    /// Whether a request, as JSON, names the seed of this position and no other one.
    pub(crate) fn is_seeded(&self, request: &[u8], list: &Digest, position: u64) -> bool {
        let seed = Value::from(self.seed(list, position));
        let read: Option<NamedSeed> = serde_json::from_slice(request).ok();
        read.is_some_and(|read| read.0 == Some(seed))
    }

    /// The 64 hex digits of the key.
    pub(crate) fn hex(&self) -> String {
        hex::encode(self.0)
    }

    /// HMAC-SHA256 under the key over tag ‖ digest of the list ‖ position (8).
    fn mac(&self, tag: &[u8], list: &Digest, position: u64) -> [u8; 32] {
        let facts = [tag, list.as_bytes().as_slice(), &position.to_be_bytes()].concat();
        // A key of any length is one.
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).map(|mac| mac.chain_update(&facts).finalize());
        mac.map_or([0; 32], |mac| mac.into_bytes().into())
    }
}

/// Whether a request, as JSON, leaves the seed to the engine: an author that wrote one into its list could have looked
/// for it.
pub(crate) fn names_no_seed(request: &[u8]) -> bool {
    let read: Option<NamedSeed> = serde_json::from_slice(request).ok();
    read.is_some_and(|read| read.0.is_none_or(|seed| seed.is_null()))
}

/// The seed that a request names; `None` if it names none. Engines may read the first or the last of two equal fields,
/// so a request with such fields cannot be read.
struct NamedSeed(Option<Value>);

impl<'de> Deserialize<'de> for NamedSeed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = NamedSeed;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a request whose fields have different names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<NamedSeed, A::Error> {
                let (mut names, mut seed) = (BTreeSet::new(), None);
                while let Some(name) = fields.next_key::<String>()? {
                    let value: Value = fields.next_value()?;
                    if name == "seed" {
                        seed = Some(value);
                    }
                    if !names.insert(name) {
                        return Err(serde::de::Error::custom("two fields have one name"));
                    }
                }
                Ok(NamedSeed(seed))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: OwnPromptKey = OwnPromptKey([7; 32]);

    #[test]
    fn a_position_has_one_nonce_and_it_is_these_bytes() {
        let list = Digest::of(b"list");
        assert_eq!(
            KEY.nonce(&list, 3).hex(),
            "5a492e176266b10f12752060a26afb1066469bc1bb0abacb90003ecf5d97ea94"
        );
        assert_ne!(KEY.nonce(&list, 3), KEY.nonce(&list, 4));
        assert_ne!(KEY.nonce(&list, 3), KEY.nonce(&Digest::of(b"other"), 3));
        assert_ne!(KEY.nonce(&list, 3), OwnPromptKey([8; 32]).nonce(&list, 3));
    }

    #[test]
    fn a_blank_takes_the_seed_of_its_position_and_nothing_else_changes() {
        let list = Digest::of(b"list");
        let fill = |request: &str| {
            let filled = KEY.fill_seed(request.as_bytes(), &list, 3)?;
            Some(String::from_utf8(filled).unwrap())
        };
        assert_eq!(
            fill(r#"{"prompt":"a","seed":null,"n":null}"#).unwrap(),
            r#"{"prompt":"a","seed":1904674730,"n":null}"#
        );
        assert_eq!(
            fill(r#"{"seed": null, "prompt": "\"seed\":null"}"#).unwrap(),
            r#"{"seed": 1904674730, "prompt": "\"seed\":null"}"#
        );
        let is_seeded = |request: &str| KEY.is_seeded(request.as_bytes(), &list, 3);
        assert!(is_seeded(r#"{"prompt":"a","seed":1904674730}"#));
        for chosen in [
            r#"{"seed":1904674730,"prompt":"a","seed":1234}"#,
            r#"{"seed":1234,"prompt":"a","seed":1904674730}"#,
            r#"{"seed":1904674730,"prompt":"a","\u0073eed":1234}"#,
            r#"{"more":{"seed":1904674730},"seed":1234}"#,
            r#"{"more":{"seed":1904674730}}"#,
            r#"{"x\"seed":1904674730,"seed":1234}"#,
            r#"{"seed":1904674730.0}"#,
            r#"{"seed":"1904674730"}"#,
            "[1904674730]",
        ] {
            assert!(!is_seeded(chosen), "{chosen}");
        }
        for free in [r#"{"prompt":"a"}"#, r#"{"seed":null}"#, r#"{"more":{"seed":7}}"#] {
            assert!(names_no_seed(free.as_bytes()), "{free}");
        }
        for chosen in [
            r#"{"seed":7}"#,
            r#"{"seed":"7"}"#,
            r#"{"seed":7,"seed":null}"#,
            r#"{"seed":null,"seed":null}"#,
            "[]",
            "",
        ] {
            assert!(!names_no_seed(chosen.as_bytes()), "{chosen}");
        }
        for without in [r#"{"prompt":"\"seed\":null"}"#, r#"{"seed":7}"#, ""] {
            assert_eq!(fill(without), None, "{without}");
        }
    }
}
