//! The bytes that a key of ours may sign, as a type: a peer's text is none of them.

use std::fmt;

use muster_protocol::canonical;
use muster_protocol::login::{BOUND_LOGIN_DOMAIN, LoginHost, NonceText};
use serde_json::Value;

/// The beginning of every domain.
const PREFIX: &[u8] = b"muster/";
/// The field of a canonical document that holds its domain.
const FORMAT: &str = "format";
/// The bytes that browser wallets put around a signed text, so that no page can make them sign a transaction.
pub(crate) const WRAP: (&[u8], &[u8]) = (b"<Bytes>", b"</Bytes>");
/// The domain of a login that is bound to one facilitator.
const BOUND_LOGIN: Domain = Domain::new(BOUND_LOGIN_DOMAIN);

/// The kind and version of what is signed, such as `muster/response-proof/1`. It keeps the signatures of one kind from
/// serving as those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain(&'static str);

/// Bytes that a key of ours may sign ([`crate::Keypair::sign`]).
///
/// They begin with a domain of ours, or are a canonical document that names one, or this crate has built them from
/// typed values in a form of ComputeHorde's, or they are the nonce of a login, or the payload of an extrinsic. There is
/// no way from bytes as a peer sent them to this type:
///
/// ```compile_fail
/// let sent_by_a_peer: Vec<u8> = vec![1, 2, 3];
/// muster_identity::Keypair::generate().sign(&sent_by_a_peer);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct SigningMessage(Vec<u8>);

// === impl Domain ===

impl Domain {
    /// A domain, which must begin with `muster/`. Call it for a constant: a wrong tag then does not compile.
    ///
    /// ```compile_fail
    /// const WRONG: muster_identity::Domain = muster_identity::Domain::new("other/kind/1");
    /// println!("{WRONG:?}");
    /// ```
    pub const fn new(tag: &'static str) -> Self {
        assert!(
            begins_with(tag.as_bytes(), PREFIX),
            "a domain begins with muster/"
        );
        Self(tag)
    }

    /// The domain's text.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// `slice::starts_with` as a constant function.
const fn begins_with(mut text: &[u8], mut beginning: &[u8]) -> bool {
    while let [first, rest @ ..] = beginning {
        match text {
            [same, after @ ..] if *same == *first => text = after,
            _ => return false,
        }
        beginning = rest;
    }
    true
}

// === impl SigningMessage ===

impl SigningMessage {
    /// The domain followed by `body`.
    pub fn tagged(domain: Domain, body: &[u8]) -> Self {
        Self([domain.0.as_bytes(), body].concat())
    }

    /// The bytes of a statement whose layout begins with its domain. If they began otherwise, the domain would come
    /// before them, so that the signature fits no other statement.
    pub fn statement(domain: Domain, bytes: &[u8]) -> Self {
        let body = bytes.strip_prefix(domain.0.as_bytes()).unwrap_or(bytes);
        Self::tagged(domain, body)
    }

    /// The canonical text (sorted, without blanks) of the object of these fields and of `format`, which is the domain.
    pub fn document<const N: usize>(domain: Domain, fields: [(&str, Value); N]) -> Self {
        let mut document = canonical::object(fields);
        if let Value::Object(all) = &mut document {
            all.insert(FORMAT.to_owned(), domain.0.into());
        }
        Self(canonical::sorted_compact(&document).into_bytes())
    }

    /// The login with a nonce, in the form that a browser's wallet signs. It may be any party's nonce: a login that is
    /// sent on to another facilitator succeeds there.
    pub fn login(nonce: &NonceText) -> Self {
        Self([WRAP.0, nonce.as_str().as_bytes(), WRAP.1].concat())
    }

    /// The login with a nonce at the facilitator at `host` alone.
    pub fn bound_login(host: &LoginHost, nonce: &NonceText) -> Self {
        Self::statement(BOUND_LOGIN, nonce.bound_to(host).as_bytes())
    }

    /// The payload of an extrinsic, or its hash, as the chain's library encodes it. Only the chain's client may call
    /// this: nothing else has bytes of this kind, and their form cannot be checked here.
    pub fn extrinsic(payload: &[u8]) -> Self {
        Self(payload.to_vec())
    }

    /// Bytes in a form of ComputeHorde's or of an earlier message of ours. This crate has built them from typed values.
    pub(crate) fn built(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes, for the check of a signature.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SigningMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningMessage({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: Domain = Domain::new("muster/test/1");

    #[test]
    fn messages_have_the_bytes_of_their_forms() {
        assert_eq!(SigningMessage::tagged(TEST, b"ab").as_bytes(), b"muster/test/1ab");
        for bytes in [&b"muster/test/1ab"[..], b"ab"] {
            let message = SigningMessage::statement(TEST, bytes);
            assert_eq!(message.as_bytes(), b"muster/test/1ab");
        }
        let document = SigningMessage::document(TEST, [("b", 1.into()), ("format", 2.into())]);
        assert_eq!(document.as_bytes(), br#"{"b":1,"format":"muster/test/1"}"#);
        let nonce = format!("{}:1:{}", "a".repeat(32), "b".repeat(43));
        let parsed = nonce.parse().unwrap();
        assert_eq!(
            SigningMessage::login(&parsed).as_bytes(),
            format!("<Bytes>{nonce}</Bytes>").as_bytes()
        );
        let host = LoginHost::new("a.example", None).unwrap();
        assert_eq!(
            SigningMessage::bound_login(&host, &parsed).as_bytes(),
            format!("muster/login/1\na.example\n{nonce}").as_bytes()
        );
    }

    #[test]
    fn a_domain_begins_with_the_prefix_of_all_domains() {
        assert!(begins_with(b"muster/x", PREFIX) && begins_with(b"muster/", PREFIX));
        assert!(!begins_with(b"muster", PREFIX) && !begins_with(b"Muster/x", PREFIX));
    }
}
