//! Certificates that nobody vouches for: made for one session, known by their digest.

use muster_process::tls::{TlsIdentity, fingerprint};
use muster_protocol::Digest;
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The longest certificate that is read, PEM.
const MAX_PEM: usize = 64 * 1024;

/// A certificate that cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// No randomness, or a name that no certificate may hold.
    #[error("a certificate cannot be made")]
    Make(#[from] rcgen::Error),
    /// Not a certificate.
    #[error("not a certificate in PEM")]
    Read,
}

/// A key of one's own and its certificate.
#[derive(Debug)]
pub struct Made {
    /// For TLS.
    pub identity: TlsIdentity,
    /// The certificate as it travels, PEM.
    pub pem: String,
}

/// Draws a key and certifies it with itself for these names and addresses, of which the first is the subject. Clients that
/// check names find theirs.
///
/// # Errors
/// See [`CertificateError::Make`].
pub fn make(names: &[String]) -> Result<Made, CertificateError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(names.to_vec())?;
    let subject = names.first().map_or("muster", String::as_str);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    let certificate = params.self_signed(&key)?;
    let pem = certificate.pem();
    Ok(Made {
        identity: TlsIdentity {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        },
        pem,
    })
}

/// The digest by which a certificate in PEM is known; of the first one if there are more.
///
/// # Errors
/// [`CertificateError::Read`].
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
        let made = make(&names).unwrap();
        assert_eq!(digest_of_pem(&made.pem).unwrap(), made.identity.fingerprint());
        assert_ne!(
            make(&names).unwrap().identity.fingerprint(),
            made.identity.fingerprint()
        );
        muster_process::tls::server_for(&made.identity, Digest::of(b"x"), &[b"h2"]).unwrap();
        for bad in ["", "-----BEGIN CERTIFICATE-----\nAA\n", &"x".repeat(MAX_PEM + 1)] {
            assert!(digest_of_pem(bad).is_err());
        }
    }
}
