//! Registry credentials sealed for one hotkey: whoever stands or stores between sender and reader sees no secret.
//!
//! A sealed text is an ephemeral public key (32 bytes) and the ciphertext of ChaCha20-Poly1305 under a key that
//! schnorrkel derives from the exchange with the reader's hotkey, in a context of its own. The name of the image is
//! authenticated, so the text is of no use in a job with another image.

use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Nonce};
use muster_protocol::Hotkey;
use muster_protocol::job::{RegistryCredentials, SealedCredentials};
use schnorrkel::PublicKey;

use crate::key::Keypair;

/// Keeps the derived keys apart from those of every other use of a hotkey.
const CONTEXT: &[u8] = b"muster/registry-credentials/1";

/// Credentials that cannot be sealed or opened. The error quotes nothing of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsSealError {
    /// The bytes of the hotkey are no point of the curve, so nobody could open what is sealed for it.
    #[error("credentials cannot be sealed: the reader's hotkey is not a key")]
    Reader,
    /// A text is empty or too long.
    #[error("a registry's user name has 1 to 256 bytes and its password 1 to 16384")]
    Length,
    /// They were sealed for another hotkey or another image, or were changed.
    #[error("the sealed credentials cannot be opened; they were sealed for another key or another image")]
    Unreadable,
}

/// Seals credentials for the holder of `reader`, for use with `image` (the reference in the job) only.
///
/// # Errors
/// The hotkey is not a key, or a text is empty or too long.
pub fn seal_credentials(
    reader: Hotkey,
    image: &str,
    credentials: &RegistryCredentials,
) -> Result<SealedCredentials, CredentialsSealError> {
    if !credentials.is_usable() {
        return Err(CredentialsSealError::Length);
    }
    let reader = PublicKey::from_bytes(reader.as_bytes()).map_err(|_| CredentialsSealError::Reader)?;
    let (ephemeral, cipher) = reader.init_aead_unauthenticated::<ChaCha20Poly1305>(CONTEXT);
    let text = serde_json::to_vec(credentials).map_err(|_| CredentialsSealError::Length)?;
    let payload = Payload {
        msg: &text,
        aad: image.as_bytes(),
    };
    // Each key encrypts one text, so the nonce may be the same for all.
    let hidden = cipher.encrypt(&Nonce::default(), payload);
    let hidden = hidden.map_err(|_| CredentialsSealError::Length)?;
    Ok(SealedCredentials::from_bytes(
        [ephemeral.as_bytes().as_slice(), &hidden].concat(),
    ))
}

/// Opens credentials that were sealed for this key and this image.
///
/// # Errors
/// They were sealed for another key or another image, or were changed.
pub fn open_credentials(
    reader: &Keypair,
    image: &str,
    sealed: &SealedCredentials,
) -> Result<RegistryCredentials, CredentialsSealError> {
    let unreadable = CredentialsSealError::Unreadable;
    let (ephemeral, hidden) = sealed.as_bytes().split_at_checked(32).ok_or(unreadable)?;
    let ephemeral = PublicKey::from_bytes(ephemeral).map_err(|_| unreadable)?;
    let pair: &schnorrkel::Keypair = reader.pair().as_ref();
    let cipher: ChaCha20Poly1305 = pair.aead_unauthenticated(CONTEXT, &ephemeral);
    let payload = Payload {
        msg: hidden,
        aad: image.as_bytes(),
    };
    let text = cipher
        .decrypt(&Nonce::default(), payload)
        .map_err(|_| unreadable)?;
    serde_json::from_slice::<RegistryCredentials>(&text)
        .ok()
        .filter(RegistryCredentials::is_usable)
        .ok_or(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: &str = "registry.example/a:1";

    fn login() -> RegistryCredentials {
        RegistryCredentials {
            username: "somebody".to_owned(),
            password: "a \"secret\"".to_owned(),
        }
    }

    #[test]
    fn the_reader_opens_them_for_the_same_image_only() {
        let (reader, other) = (Keypair::from_seed([1; 32]), Keypair::from_seed([2; 32]));
        let sealed = seal_credentials(reader.hotkey(), IMAGE, &login()).unwrap();
        assert_eq!(open_credentials(&reader, IMAGE, &sealed), Ok(login()));
        let refused = Err(CredentialsSealError::Unreadable);
        assert_eq!(open_credentials(&other, IMAGE, &sealed), refused);
        assert_eq!(
            open_credentials(&reader, "registry.example/b:1", &sealed),
            refused
        );
        for at in 0..sealed.as_bytes().len() {
            let mut bytes = sealed.as_bytes().to_vec();
            bytes[at] ^= 1;
            let changed = SealedCredentials::from_bytes(bytes);
            assert_eq!(open_credentials(&reader, IMAGE, &changed), refused, "byte {at}");
        }
        for short in [0, 31, 32, 47] {
            let cut = SealedCredentials::from_bytes(sealed.as_bytes()[..short].to_vec());
            assert_eq!(open_credentials(&reader, IMAGE, &cut), refused);
        }
    }

    #[test]
    fn a_sealed_text_was_readable_before_and_stays_so() {
        let reader = Keypair::from_seed([1; 32]);
        let golden = SealedCredentials::from_bytes(hex::decode(GOLDEN).unwrap());
        assert_eq!(open_credentials(&reader, IMAGE, &golden), Ok(login()));
    }

    const GOLDEN: &str = concat!(
        "3ea16c2855c95c9a907b283e2b2c931f95598aca7ffbc4e2ec7aa09be1194575fca2cd7460527cd6a79db80c0bc95f0be4a5",
        "24a7e0a5176031c2a69aa0dd843fd951ef25c78d44a3b9da4e8c1813ef54a709c2d3e2e98812af3380df1334ae1a1d"
    );

    #[test]
    fn two_seals_of_one_login_differ_and_show_nothing_of_it() {
        let reader = Keypair::from_seed([1; 32]).hotkey();
        let seal = || seal_credentials(reader, IMAGE, &login()).unwrap();
        let (one, other) = (seal(), seal());
        assert_ne!(one, other);
        let text = String::from_utf8_lossy(one.as_bytes()).into_owned();
        assert!(!text.contains("secret") && !text.contains("somebody"));
    }

    #[test]
    fn unusable_credentials_are_not_sealed() {
        let empty = RegistryCredentials {
            password: String::new(),
            ..login()
        };
        let reader = Keypair::from_seed([1; 32]).hotkey();
        assert_eq!(
            seal_credentials(reader, IMAGE, &empty),
            Err(CredentialsSealError::Length)
        );
        let nobody = Hotkey::from_bytes([0xff; 32]);
        assert_eq!(
            seal_credentials(nobody, IMAGE, &login()),
            Err(CredentialsSealError::Reader)
        );
    }
}
