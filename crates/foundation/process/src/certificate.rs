//! Self-signed certificates for one session. The other side knows such a certificate by its SHA-256 digest.

use muster_protocol::Digest;
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::tls::{TlsIdentity, fingerprint};

/// The longest certificate that is read, in bytes of PEM.
const MAX_PEM: usize = 64 * 1024;

/// Why a certificate cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The system has no randomness, or a name is not allowed in a certificate.
    #[error("a certificate cannot be made")]
    Make(#[from] rcgen::Error),
    /// The text holds no certificate in PEM.
    #[error("not a certificate in PEM")]
    Read,
}

/// A self-signed certificate, its private key and its text form.
#[derive(Debug)]
pub struct SelfSigned {
    /// Certificate and key, as TLS uses them.
    pub identity: TlsIdentity,
    /// The certificate in PEM, as messages carry it.
    pub pem: String,
}

/// Draws a new key and signs a certificate for these names and addresses with it. The first name is the subject; the
/// certificate holds all of them for clients that check names.
///
/// # Errors
/// See [`CertificateError::Make`].
pub fn make_self_signed(names: &[String]) -> Result<SelfSigned, CertificateError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(names.to_vec())?;
    let subject = names.first().map_or("muster", String::as_str);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    let certificate = params.self_signed(&key)?;
    let pem = certificate.pem();
    Ok(SelfSigned {
        identity: TlsIdentity {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        },
        pem,
    })
}

/// A private key as PEM.
///
/// # Errors
/// The key is not one that [`make_self_signed`] draws.
pub fn key_pem(key: &PrivateKeyDer<'_>) -> Result<String, CertificateError> {
    Ok(KeyPair::try_from(key.secret_der())?.serialize_pem())
}

/// The SHA-256 digest of a certificate in PEM; of the first certificate if the text holds more.
///
/// # Errors
/// The text holds no certificate in PEM.
pub fn digest_of_pem(pem: &str) -> Result<Digest, CertificateError> {
    if pem.len() > MAX_PEM {
        return Err(CertificateError::Read);
    }
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| CertificateError::Read)?;
    Ok(fingerprint(&certificate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_known_by_one_digest_in_both_forms() {
        let names = ["localhost".to_owned(), "192.0.2.1".to_owned()];
        let made = make_self_signed(&names).unwrap();
        assert_eq!(digest_of_pem(&made.pem).unwrap(), made.identity.fingerprint());
        assert_ne!(
            make_self_signed(&names).unwrap().identity.fingerprint(),
            made.identity.fingerprint()
        );
        crate::tls::server_for(&made.identity, Digest::of(b"x"), &[b"h2"]).unwrap();
        for bad in ["", "-----BEGIN CERTIFICATE-----\nAA\n", &"x".repeat(MAX_PEM + 1)] {
            assert!(digest_of_pem(bad).is_err());
        }
    }
}
