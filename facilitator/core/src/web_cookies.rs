//! The two cookies of the web page: one of a session, and one of a visit before the sign-in. Both are secrets of 256
//! bits that no script can read and that no other site's request carries. Pure.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};

use crate::web_session::WebSecret;

/// How long a visit's cookie lasts: a form for the sign-in may stay open for so long.
const VISIT_LIFETIME: Duration = Duration::from_secs(3_600);

/// A cookie by its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieKind {
    /// Identifies the browser's session.
    Session,
    /// Ties the form of the sign-in to the browser that it was made for.
    Visit,
}

/// How cookies are set.
#[derive(Clone, Copy, Debug)]
pub struct CookieRules {
    /// Browsers send them over TLS only.
    pub over_tls: bool,
}

// === impl CookieRules ===

impl CookieRules {
    /// A name that begins with `__Host-` is accepted by browsers only over TLS and for this host alone.
    const fn name(self, kind: CookieKind) -> &'static str {
        match (self.over_tls, kind) {
            (true, CookieKind::Session) => "__Host-muster_session",
            (true, CookieKind::Visit) => "__Host-muster_visit",
            (false, CookieKind::Session) => "muster_session",
            (false, CookieKind::Visit) => "muster_visit",
        }
    }

    /// The secret in the browser's cookie of this kind.
    pub fn read(self, kind: CookieKind, headers: &HeaderMap) -> Option<WebSecret> {
        let name = self.name(kind);
        headers
            .get_all(header::COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .find(|(found, _)| *found == name)
            .and_then(|(_, value)| WebSecret::parse(value))
    }

    /// The header that sets a session's cookie for its whole time.
    pub fn session(self, secret: &WebSecret, lifetime: Duration) -> Option<HeaderValue> {
        self.set(CookieKind::Session, &secret.reveal(), lifetime)
    }

    /// The header that sets a visit's cookie.
    pub fn visit(self, secret: &WebSecret) -> Option<HeaderValue> {
        self.set(CookieKind::Visit, &secret.reveal(), VISIT_LIFETIME)
    }

    /// The header that removes a cookie.
    pub fn remove(self, kind: CookieKind) -> Option<HeaderValue> {
        self.set(kind, "", Duration::ZERO)
    }

    fn set(self, kind: CookieKind, value: &str, lifetime: Duration) -> Option<HeaderValue> {
        let secure = if self.over_tls { "; Secure" } else { "" };
        let (name, seconds) = (self.name(kind), lifetime.as_secs());
        let text = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
        // The text consists of visible ASCII characters, so this does not fail.
        HeaderValue::try_from(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_bound_to_this_host_and_secret_from_scripts() {
        let secret = WebSecret::from_bytes([7; 32]);
        let plain = CookieRules { over_tls: false };
        let set = plain.session(&secret, Duration::from_secs(60)).unwrap();
        let text = set.to_str().unwrap();
        assert_eq!(
            text,
            format!(
                "muster_session={}; Path=/; Max-Age=60; HttpOnly; SameSite=Strict",
                "07".repeat(32)
            )
        );
        let secure = CookieRules { over_tls: true };
        let set = secure.session(&secret, Duration::from_secs(60)).unwrap();
        let text = set.to_str().unwrap();
        assert!(
            text.starts_with("__Host-muster_session=") && text.ends_with("; Secure"),
            "{text}"
        );
    }

    #[test]
    fn the_cookie_of_its_name_is_read() {
        let rules = CookieRules { over_tls: false };
        let read = |text: &'static str| {
            let headers = HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_static(text))]);
            rules.read(CookieKind::Session, &headers)
        };
        let good = "a=b; muster_session=0707070707070707070707070707070707070707070707070707070707070707";
        assert_eq!(read(good), Some(WebSecret::from_bytes([7; 32])));
        for bad in [
            "",
            "muster_session",
            "muster_session=07",
            "muster_visit=07; x",
            ";;==;",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
