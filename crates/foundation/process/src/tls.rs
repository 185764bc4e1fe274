//! TLS: its cryptography provider, and connections between parties that know each other's certificates.
//!
//! No authority signs our certificates: each side makes its own, and the other side knows its SHA-256 fingerprint. A
//! certificate is therefore compared, never chained, and its names and dates mean nothing. TLS checks in every
//! handshake that the other side has the private key.

use std::sync::Arc;

use muster_protocol::Digest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
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
    let algorithms = algorithms();
    ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(Arc::new(Clients { only, algorithms }))
        .with_single_cert(vec![identity.certificate.clone()], identity.key.clone_key())
}

/// A client that shows `identity` and accepts only the server with exactly this certificate. TLS 1.3 only.
///
/// # Errors
/// A key that does not belong to the certificate.
pub fn client(identity: &TlsIdentity, server: Digest) -> Result<ClientConfig, TlsError> {
    let exact = ExactServer {
        fingerprint: server,
        algorithms: algorithms(),
    };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(exact))
        .with_client_auth_cert(vec![identity.certificate.clone()], identity.key.clone_key())?;
    // The certificate is compared, so its names do not matter.
    config.enable_sni = false;
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    ring::default_provider().signature_verification_algorithms
}

/// Accepts one server certificate and no other.
#[derive(Debug)]
struct ExactServer {
    fingerprint: Digest,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ExactServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        if fingerprint(end_entity) == self.fingerprint {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

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
}

/// Accepts client certificates whose key the client proves to have: a single certificate, or every one.
#[derive(Debug)]
struct Clients {
    only: Option<Digest>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        if self.only.is_none_or(|only| fingerprint(end_entity) == only) {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

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
}

#[cfg(test)]
mod tests {
    #[test]
    fn twice_is_as_good_as_once() {
        super::install_provider();
        super::install_provider();
        assert!(rustls::crypto::CryptoProvider::get_default().is_some());
    }
}
