//! Signatures of other programs, such as ComputeHorde's SDK: they sign whatever bytes they like, and our keys do not.

use sp_core::{Pair as _, sr25519};

/// The sr25519 signature over `message` by the key of a secret URI, such as `//Alice` or `0x` and 64 hex digits of a
/// seed.
///
/// # Panics
/// `secret` is no secret URI.
#[expect(clippy::panic, reason = "helpers of tests fail as tests do")]
pub fn sign_as_other_programs_do(secret: &str, message: &[u8]) -> [u8; 64] {
    match sr25519::Pair::from_string(secret, None) {
        Ok(pair) => pair.sign(message).0,
        Err(error) => panic!("{secret} is no secret: {error:?}"),
    }
}
