//! TLS: its cryptography provider, and connections between parties that know each other's certificates.
//!
//! No authority signs our certificates: each side makes its own, and the other side knows its SHA-256 fingerprint. A
//! certificate is therefore compared, never chained, and its names and dates mean nothing. TLS checks in every
//! handshake that the other side has the private key.

use std::sync::Arc;

use muster_protocol::Digest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error as TlsError,
    ServerConfig, SignatureScheme, version,
};

/// Makes ring the process's TLS provider. Idempotent; every binary calls it first, every test that speaks TLS too.
///
/// With two providers linked together rustls panics when it has to choose one, so the choice is made here.
pub fn install_provider() {
    // An error means that one is installed already, by an earlier call.
    let _ = ring::default_provider().install_default();
}

/// A certificate and its private key.
#[derive(Debug)]
pub struct TlsIdentity {
    /// The certificate, which the other side sees.
    pub certificate: CertificateDer<'static>,
    /// The private key, which never leaves this process.
    pub key: PrivateKeyDer<'static>,
}

impl TlsIdentity {
    /// The fingerprint by which the other side knows the certificate.
    pub fn fingerprint(&self) -> Digest {
        fingerprint(&self.certificate)
    }
}

/// SHA-256 of a certificate in DER.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> Digest {
    Digest::of(certificate)
}

/// A server that shows `identity` and accepts any client certificate whose key the client has. The caller then decides
/// whether it knows the certificate. A client without one fails in the handshake. TLS 1.3 only.
///
/// # Errors
/// A key that does not belong to the certificate.
pub fn server(identity: &TlsIdentity) -> Result<ServerConfig, TlsError> {
    serving(identity, None)
}

/// A server that shows `identity` and accepts only the client with exactly this certificate. It offers the protocols
/// `alpn`, best first. TLS 1.3 only.
///
/// # Errors
/// A key that does not belong to the certificate.
pub fn server_for(identity: &TlsIdentity, client: Digest, alpn: &[&[u8]]) -> Result<ServerConfig, TlsError> {
    let mut config = serving(identity, Some(client))?;
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

fn serving(identity: &TlsIdentity, only: Option<Digest>) -> Result<ServerConfig, TlsError> {
    ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(PeerVerifier::new(only))
        .with_single_cert(vec![identity.certificate.clone()], identity.key.clone_key())
}

/// A client that shows `identity` and accepts only the server with exactly this certificate. TLS 1.3 only.
///
/// # Errors
/// A key that does not belong to the certificate.
pub fn client(identity: &TlsIdentity, server: Digest) -> Result<ClientConfig, TlsError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(PeerVerifier::new(Some(server)))
        .with_client_auth_cert(vec![identity.certificate.clone()], identity.key.clone_key())?;
    // The certificate is compared, so its names do not matter.
    config.enable_sni = false;
    Ok(config)
}

/// A server that shows one of `identities` to everybody, without asking for a certificate. A client that names the
/// certificate that it knows, as [`client_without_certificate`] does, gets that one if it is here; others get the
/// first. So a new certificate is served beside the one before it. TLS 1.3 only.
///
/// # Errors
/// A key that does not belong to its certificate, or no identity at all.
pub fn public_server(identities: &[TlsIdentity]) -> Result<ServerConfig, TlsError> {
    let provider = provider();
    let mut known = Vec::new();
    for identity in identities {
        let chain = vec![identity.certificate.clone()];
        let key = CertifiedKey::from_der(chain, identity.key.clone_key(), &provider)?;
        known.push((certificate_name(identity.fingerprint()), Arc::new(key)));
    }
    if known.is_empty() {
        return Err(TlsError::General("there is no certificate to serve".to_owned()));
    }
    Ok(ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(NamedCertificates(known))))
}

/// A server with a certificate chain and a key from PEM, such as an authority has signed them. It offers the protocols
/// `alpn`, best first. TLS 1.2 and 1.3.
///
/// # Errors
/// The text has no certificate or no key, or they do not belong together.
pub fn server_from_pem(certificates: &[u8], key: &[u8], alpn: &[&[u8]]) -> Result<ServerConfig, TlsError> {
    let unreadable = |what: &str| TlsError::General(format!("{what} is not in PEM form"));
    let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates)
        .collect::<Result<_, _>>()
        .map_err(|_| unreadable("the certificate"))?;
    if chain.is_empty() {
        return Err(unreadable("the certificate"));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| unreadable("the private key"))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// A client without a certificate of its own that accepts only the server with exactly this one. TLS 1.3 only. It dials
/// with the name of [`known_server_name`].
///
/// # Errors
/// None in practice: the provider knows TLS 1.3.
pub fn client_without_certificate(server: Digest) -> Result<ClientConfig, TlsError> {
    Ok(ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(PeerVerifier::new(Some(server)))
        .with_no_client_auth())
}

/// The server name by which a client names the certificate that it knows; it is no host's name.
///
/// # Errors
/// None in practice: the name has letters, digits and dots.
pub fn known_server_name(certificate: Digest) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(certificate_name(certificate))
        .map_err(|_| TlsError::General("a fingerprint makes no server name".to_owned()))
}

/// A fingerprint as two labels of a name: one label has 63 characters at most.
fn certificate_name(certificate: Digest) -> String {
    let hex = certificate.hex();
    let (first, second) = hex.split_at(hex.len() / 2);
    format!("{first}.{second}")
}

/// Certificates by the names of their fingerprints.
#[derive(Debug)]
struct NamedCertificates(Vec<(String, Arc<CertifiedKey>)>);

impl ResolvesServerCert for NamedCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let wanted = hello.server_name();
        let named = self.0.iter().find(|(name, _)| Some(name.as_str()) == wanted);
        named.or_else(|| self.0.first()).map(|(_, key)| Arc::clone(key))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Accepts the certificates whose key the other side proves to have: a single one, or every one.
#[derive(Debug)]
struct PeerVerifier {
    only: Option<Digest>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PeerVerifier {
    fn new(only: Option<Digest>) -> Arc<Self> {
        let algorithms = ring::default_provider().signature_verification_algorithms;
        Arc::new(Self { only, algorithms })
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), TlsError> {
        if self.only.is_none_or(|only| fingerprint(certificate) == only) {
            Ok(())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }
}

/// The part that rustls asks of the verifiers of both sides: the other side signs with the key of its certificate.
macro_rules! verify_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, TlsError> {
            rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, TlsError> {
            rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    verify_signatures!();
}

impl ClientCertVerifier for PeerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    verify_signatures!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_certificate_or_every_one_is_accepted() {
        let certificate = |byte| CertificateDer::from(vec![byte; 3]);
        let only = PeerVerifier::new(Some(fingerprint(&certificate(1))));
        assert_eq!(only.check(&certificate(1)), Ok(()));
        assert!(only.check(&certificate(2)).is_err());
        assert_eq!(PeerVerifier::new(None).check(&certificate(2)), Ok(()));
    }

    #[test]
    fn twice_is_as_good_as_once() {
        install_provider();
        install_provider();
        assert!(rustls::crypto::CryptoProvider::get_default().is_some());
    }
}
