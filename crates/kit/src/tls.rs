//! The one place that chooses who does the cryptography of TLS.

/// Makes ring the process's TLS provider. Idempotent; every binary calls it first, every test that speaks TLS too.
///
/// Two providers linked together make rustls panic when it has to guess, so nobody may let it guess.
pub fn install_provider() {
    // An error means that one is installed already, by an earlier call.
    let _ = rustls::crypto::ring::default_provider().install_default();
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
