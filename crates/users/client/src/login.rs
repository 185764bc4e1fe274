//! The signature of a login. The facilitator may ask for one over anything, a receipt or a greeting for example: only a
//! nonce is signed.

use muster_identity::{Keypair, sign_login};
use muster_protocol::account_api::{LoginNonce, LoginRequest};
use muster_protocol::login::{LoginHost, NonceText};
use url::Url;

use crate::error::ClientError;

/// The login for the answer of the facilitator that was dialled at `base`. If the facilitator names the host that was
/// dialled, the signature is of use at no other.
///
/// # Errors
/// The answer holds no nonce; then nothing is signed.
pub(crate) fn sign_answer(
    pair: &Keypair,
    answer: &LoginNonce,
    base: &str,
) -> Result<LoginRequest, ClientError> {
    let nonce: NonceText = answer.nonce.parse().map_err(|source| ClientError::NoNonce {
        base: base.to_owned(),
        source,
    })?;
    let named = |dialled: &LoginHost| answer.host.as_deref() == Some(dialled.as_str());
    let host = host_of(base).filter(named);
    let signature = sign_login(pair, &nonce, host.as_ref());
    Ok(LoginRequest::new(pair.hotkey(), signature, &nonce))
}

/// The host of a facilitator's URL, as the facilitator's own configuration gives it.
fn host_of(base: &str) -> Option<LoginHost> {
    let url = Url::parse(base).ok()?;
    LoginHost::new(url.host_str()?, url.port())
}

#[cfg(test)]
mod tests {
    use muster_identity::verify;
    use muster_protocol::Signature;

    use super::*;

    const NONCE: &str = "0123456789abcdef0123456789abcdef:1vC5kq:abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNO-_";

    fn answer(nonce: &str, host: Option<&str>) -> LoginNonce {
        LoginNonce {
            nonce: nonce.to_owned(),
            host: host.map(str::to_owned),
        }
    }

    /// Whether a login at `base` signs these bytes.
    fn signs(base: &str, host: Option<&str>, bytes: &str) -> bool {
        let pair = Keypair::from_seed([1; 32]);
        let login = sign_answer(&pair, &answer(NONCE, host), base).unwrap();
        assert_eq!(login.nonce.as_deref(), Some(NONCE));
        let signature = Signature::from_hex(&login.signature.unwrap()).unwrap();
        verify(&pair.hotkey(), bytes.as_bytes(), &signature)
    }

    #[test]
    fn the_signature_is_bound_to_the_host_that_was_dialled_and_to_no_other() {
        let bound = |host: &str| format!("muster/login/1\n{host}\n{NONCE}");
        for (base, host) in [
            ("https://F.example", "f.example"),
            ("https://f.example:443", "f.example"),
            ("http://127.0.0.1:8090", "127.0.0.1:8090"),
            ("https://[::1]:1/x", "[::1]:1"),
        ] {
            assert!(signs(base, Some(host), &bound(host)), "{base}");
            assert!(!signs(base, Some(host), NONCE), "{base}");
        }
        for host in [None, Some("other.example"), Some("f.example:1"), Some("")] {
            assert!(signs("https://f.example", host, NONCE), "{host:?}");
            assert!(!signs("https://f.example", host, &bound("f.example")), "{host:?}");
            assert!(
                !signs("https://f.example", host, &bound("other.example")),
                "{host:?}"
            );
        }
    }

    #[test]
    fn nothing_but_a_nonce_is_signed() {
        let receipt = r#"{"executor_class": "always_on.test", "receipt_type": "JobStartedReceipt"}"#;
        let greeting = "5CzRdZLnRxWkyWoGZZbfvSCY4mbw1cmsow5q8cgZyGg1aiDq:5CA3onFpA75kRSgNkF6twsDeumSA5NhLhxQWSdraSEL8vScn:1769000000";
        let capacity = r#"{"cycle":361,"format":"muster/capacity/1"}"#;
        let frame = r#"{"docker_image":"alpine","message_type":"V0JobRequest"}"#;
        let bound = format!("muster/login/1\nother.example\n{NONCE}");
        for asked in [
            receipt,
            greeting,
            capacity,
            frame,
            &bound,
            "",
            &NONCE.to_uppercase(),
        ] {
            let refused = sign_answer(
                &Keypair::from_seed([1; 32]),
                &answer(asked, Some("f.example")),
                "https://f.example",
            );
            let error = refused.unwrap_err();
            assert!(matches!(error, ClientError::NoNonce { .. }), "{asked}");
            assert!(error.to_string().contains("https://f.example"), "{error}");
            assert!(!error.is_passing());
        }
    }
}
