//! Which signatures log a user in here. Pure.

use muster_identity::{LoginForm, verify_login};
use muster_protocol::login::{LoginHost, NonceText};
use muster_protocol::{Signature, UserKey};
use url::Url;

/// The facilitator's own host, and whether a login must name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginRules {
    host: Option<LoginHost>,
    require_bound: bool,
}

/// The reason why a signature does not log its user in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginRejection {
    /// The user did not sign this nonce.
    #[error("Invalid signature")]
    Signature,
    /// The user signed the nonce alone, which another party may have sent on.
    #[error(
        "This facilitator takes logins only that are bound to its host {host}: sign `muster/login/1`, the host and the \
         nonce, a line each, or log in with a `muster` that does, at {host}."
    )]
    Unbound {
        /// The facilitator's host; empty where the configuration names none.
        host: String,
    },
}

/// The host of a facilitator's configured address. `None` if the text is no URL with a host.
pub fn host_of(public_url: &str) -> Option<LoginHost> {
    let url = Url::parse(public_url).ok()?;
    LoginHost::new(url.host_str()?, url.port())
}

// === impl LoginRules ===

impl LoginRules {
    /// The rules of a facilitator that users reach at `public_url`.
    pub fn new(public_url: Option<&str>, require_bound: bool) -> Self {
        Self {
            host: public_url.and_then(host_of),
            require_bound,
        }
    }

    /// The host that the answer with a nonce names.
    pub fn host(&self) -> Option<&LoginHost> {
        self.host.as_ref()
    }

    /// Checks a user's signature for a nonce, which the caller has issued and nobody has used.
    ///
    /// # Errors
    /// See [`LoginRejection`].
    pub fn check(
        &self,
        user: UserKey,
        nonce: &NonceText,
        signature: &Signature,
    ) -> Result<(), LoginRejection> {
        let form = verify_login(user, nonce, self.host(), signature);
        match form.map(|form| *form) {
            Err(_) => Err(LoginRejection::Signature),
            Ok(LoginForm::Bound) => Ok(()),
            Ok(LoginForm::Nonce) if !self.require_bound => Ok(()),
            Ok(LoginForm::Nonce) => Err(LoginRejection::Unbound {
                host: self.host().map(ToString::to_string).unwrap_or_default(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_identity::{Keypair, sign_login};

    use super::*;

    #[test]
    fn an_unbound_login_is_refused_where_the_operator_requires_a_bound_one() {
        let pair = Keypair::from_seed([1; 32]);
        let (user, stranger) = (
            UserKey(pair.hotkey()),
            UserKey(Keypair::from_seed([2; 32]).hotkey()),
        );
        let nonce: NonceText = format!("{}:1:{}", "a".repeat(32), "b".repeat(43))
            .parse()
            .unwrap();
        let own = host_of("https://F.example/").unwrap();
        let other = host_of("https://phisher.example").unwrap();
        let plain = sign_login(&pair, &nonce, None);
        let bound = sign_login(&pair, &nonce, Some(&own));
        let foreign = sign_login(&pair, &nonce, Some(&other));
        let open = LoginRules::new(Some("https://f.example"), false);
        let strict = LoginRules::new(Some("https://f.example:443"), true);
        let nameless = LoginRules::new(None, false);
        for (rules, signature, expected) in [
            (&open, plain, Ok(())),
            (&open, bound, Ok(())),
            (&strict, bound, Ok(())),
            (&nameless, plain, Ok(())),
            (&nameless, bound, Err(LoginRejection::Signature)),
            (&open, foreign, Err(LoginRejection::Signature)),
            (&strict, foreign, Err(LoginRejection::Signature)),
            (
                &strict,
                plain,
                Err(LoginRejection::Unbound {
                    host: "f.example".to_owned(),
                }),
            ),
        ] {
            assert_eq!(rules.check(user, &nonce, &signature), expected);
            let refused = rules.check(stranger, &nonce, &signature);
            assert_eq!(refused, Err(LoginRejection::Signature));
        }
    }

    #[test]
    fn the_host_is_that_of_the_configured_address() {
        for (url, host) in [
            ("https://F.Example:443/x", Some("f.example")),
            ("http://f.example:443", Some("f.example:443")),
            ("http://127.0.0.1:8090/", Some("127.0.0.1:8090")),
            ("http://[::1]", Some("[::1]")),
            ("https://", None),
            ("f.example", None),
        ] {
            assert_eq!(
                host_of(url).map(|host| host.to_string()).as_deref(),
                host,
                "{url}"
            );
        }
    }
}
