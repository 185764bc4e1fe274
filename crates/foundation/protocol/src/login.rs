//! The texts of a login: the one form that a nonce may have, the name of a facilitator, and what a user signs of both.

use std::fmt;
use std::str::FromStr;

/// The domain of a login that is bound to one facilitator. No other signed text begins with it.
pub const BOUND_LOGIN_DOMAIN: &str = "muster/login/1";

/// Hex digits of the random part of a nonce.
const RANDOM: usize = 32;
/// The most base-62 digits of the time of a nonce.
const MAX_TIME: usize = 16;
/// Characters of a nonce's signature: base64url of an HMAC of 32 to 64 bytes.
const SIGNATURE: std::ops::RangeInclusive<usize> = 43..=86;
/// The longest name of a facilitator, in bytes: a DNS name, a colon and a port.
const MAX_HOST: usize = 259;

/// The nonce of a login: 32 lower-case hex digits, `:`, 1 to 16 base-62 digits, `:`, and 43 to 86 characters of
/// base64url.
///
/// The form is ComputeHorde's. A user's key signs a nonce without knowing the party that drew it, so nothing else that
/// a key signs may have this form: it has no byte outside `0-9 A-Z a-z _ - :`, at least 78 bytes, and no beginning that
/// a receipt, a greeting, a job or a domain of ours has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NonceText(String);

/// The text is no nonce of a login. It is not quoted: it may be anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the nonce of a login: a nonce is 32 lower-case hex digits, a colon, 1 to 16 letters and digits, a colon, and \
     43 to 86 characters of base64url"
)]
pub struct NonceTextError;

/// The host of a facilitator as users dial it, with its port where that is not the scheme's own. A login that is bound
/// to it is of no use at another facilitator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LoginHost(String);

// === impl NonceText ===

impl NonceText {
    /// The text of the nonce.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text that a user signs for the facilitator at `host` alone: the domain, the host and the nonce, a line each.
    pub fn bound_to(&self, host: &LoginHost) -> String {
        format!("{BOUND_LOGIN_DOMAIN}\n{host}\n{self}")
    }
}

impl fmt::Display for NonceText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NonceText {
    type Err = NonceTextError;

    fn from_str(text: &str) -> Result<Self, NonceTextError> {
        let mut parts = text.split(':');
        let (Some(random), Some(time), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(NonceTextError);
        };
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let fits = random.len() == RANDOM
            && random.bytes().all(is_hex)
            && (1..=MAX_TIME).contains(&time.len())
            && time.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && SIGNATURE.contains(&signature.len())
            && signature.bytes().all(is_base64url);
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(NonceTextError)
        }
    }
}

// === impl LoginHost ===

impl LoginHost {
    /// The host of a URL, and its port unless that is the default of the URL's scheme. `None` if the host has
    /// characters that no host of a parsed URL has, or is too long.
    pub fn new(host: &str, port: Option<u16>) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte);
        let mut name = host.to_ascii_lowercase();
        if let Some(port) = port {
            name.push_str(&format!(":{port}"));
        }
        let fits = !host.is_empty() && name.len() <= MAX_HOST && name.bytes().all(plain);
        fits.then_some(Self(name))
    }

    /// The host's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LoginHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: &str = "0123456789abcdef0123456789abcdef:1vC5kq:abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNO-_";

    #[test]
    fn only_the_form_of_a_nonce_is_one() {
        let nonce: NonceText = NONCE.parse().unwrap();
        assert_eq!((nonce.as_str(), nonce.to_string().as_str()), (NONCE, NONCE));
        let (random, rest) = NONCE.split_once(':').unwrap();
        let (time, signature) = rest.split_once(':').unwrap();
        for good in [
            format!("{random}:0:{}", "a".repeat(86)),
            format!("{random}:{}:{signature}", "9".repeat(16)),
        ] {
            assert!(good.parse::<NonceText>().is_ok(), "{good}");
        }
        for bad in [
            String::new(),
            "::".to_owned(),
            format!("{}:{time}:{signature}", random.to_uppercase()),
            format!("{}:{time}:{signature}", &random[1..]),
            format!("{random}0:{time}:{signature}"),
            format!("{random}::{signature}"),
            format!("{random}:{}:{signature}", "9".repeat(17)),
            format!("{random}:1-:{signature}"),
            format!("{random}:{time}:{}", &signature[1..]),
            format!("{random}:{time}:{}", "a".repeat(87)),
            format!("{random}:{time}:{signature}="),
            format!("{random}:{time}:{signature}:"),
            format!("{random}:{time}"),
            format!("{NONCE}\n"),
            format!(" {NONCE}"),
            format!("<Bytes>{NONCE}</Bytes>"),
            NONCE.replace('a', "а"),
        ] {
            assert_eq!(bad.parse::<NonceText>(), Err(NonceTextError), "{bad:?}");
        }
    }

    #[test]
    fn a_bound_login_names_the_facilitator_it_is_for() {
        let host = LoginHost::new("Facilitator.Example", Some(8443)).unwrap();
        let nonce: NonceText = NONCE.parse().unwrap();
        assert_eq!(
            nonce.bound_to(&host),
            format!("muster/login/1\nfacilitator.example:8443\n{NONCE}")
        );
        assert_eq!(LoginHost::new("[::1]", None).unwrap().as_str(), "[::1]");
        for bad in ["", "a b", "a\nb", "a/b", "é", &"a".repeat(260)] {
            assert_eq!(LoginHost::new(bad, None), None, "{bad:?}");
        }
    }
}
