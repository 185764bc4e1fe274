//! The gate decides who may look: a browser that has shown the operator's token, or a program that shows it.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use muster_http::rate_limit::RateLimiter;
use muster_process::SharedClock;
use muster_process::operator_token::OperatorToken;
use muster_protocol::{Digest, Timestamp};
use parking_lot::Mutex;

/// The name of the cookie.
const COOKIE: &str = "muster_operator";
/// The time from a sign-in to the end of its session.
const LIFETIME: Duration = Duration::from_secs(8 * 3_600);
/// Sessions at one time; one more ends the oldest.
const MAX_SESSIONS: usize = 64;
/// Wrong tokens a minute, of all visitors together. A token has 256 bits: this only keeps the log short.
const WRONG_PER_MINUTE: u32 = 30;

/// Why a sign-in is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignInRefusal {
    /// It is not the operator's token.
    Wrong,
    /// Too many wrong tokens were shown.
    TooMany,
    /// The operating system gives no randomness for a session.
    NoRandomness,
}

/// The gate before an operator's pages. Sessions live as long as the process.
#[derive(Debug)]
pub struct OperatorGate {
    token: OperatorToken,
    clock: SharedClock,
    state: Mutex<GateState>,
}

#[derive(Debug)]
struct GateState {
    /// The digests of the sessions' secrets, with the ends of the sessions.
    sessions: BTreeMap<Digest, Timestamp>,
    wrong: RateLimiter<()>,
}

// === impl OperatorGate ===

impl OperatorGate {
    /// A gate that this token opens.
    pub fn new(token: OperatorToken, clock: SharedClock) -> Self {
        Self {
            token,
            clock,
            state: Mutex::new(GateState {
                sessions: BTreeMap::new(),
                wrong: RateLimiter::new(WRONG_PER_MINUTE),
            }),
        }
    }

    /// Whether a request comes from the operator: by its cookie or by the token itself.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        if shown.is_some() {
            return self.token.admits(shown);
        }
        let now = self.clock.now();
        let state = self.state.lock();
        session_of(headers).is_some_and(|session| state.sessions.get(&session).is_some_and(|end| now < *end))
    }

    /// Starts a session for a visitor who shows the token; returns the header that sets its cookie.
    pub(crate) fn sign_in(&self, token: &str) -> Result<HeaderValue, SignInRefusal> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let shown = format!("Bearer {token}");
        if !self.token.admits(Some(shown.as_bytes())) {
            return Err(match state.wrong.take((), now) {
                Ok(()) => SignInRefusal::Wrong,
                Err(_) => SignInRefusal::TooMany,
            });
        }
        let mut drawn = [0; 32];
        getrandom::fill(&mut drawn).map_err(|_| SignInRefusal::NoRandomness)?;
        let secret = hex::encode(drawn);
        state.sessions.retain(|_, end| now < *end);
        while state.sessions.len() >= MAX_SESSIONS {
            let oldest = state
                .sessions
                .iter()
                .min_by_key(|(_, end)| **end)
                .map(|(session, _)| *session);
            let Some(oldest) = oldest else { break };
            state.sessions.remove(&oldest);
        }
        state
            .sessions
            .insert(Digest::of(secret.as_bytes()), now.plus(LIFETIME));
        set_cookie(&secret, LIFETIME).ok_or(SignInRefusal::NoRandomness)
    }

    /// Ends the visitor's session; returns the header that removes its cookie.
    pub(crate) fn sign_out(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if let Some(session) = session_of(headers) {
            self.state.lock().sessions.remove(&session);
        }
        set_cookie("", Duration::ZERO)
    }
}

/// The digest of the session's secret in the cookies of a request.
fn session_of(headers: &HeaderMap) -> Option<Digest> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let mut pairs = cookies
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    let (_, secret) = pairs.find(|(name, _)| *name == COOKIE)?;
    Some(Digest::of(secret.as_bytes()))
}

fn set_cookie(secret: &str, lifetime: Duration) -> Option<HeaderValue> {
    let seconds = lifetime.as_secs();
    let text = format!("{COOKIE}={secret}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict");
    // The text consists of visible ASCII characters, so this does not fail.
    HeaderValue::try_from(text).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_process::clock::TestClock;

    use super::*;

    fn gate() -> (OperatorGate, OperatorToken, Arc<TestClock>) {
        let folder = tempfile::tempdir().unwrap();
        let token = OperatorToken::open(&folder.path().join("token")).unwrap();
        let clock = Arc::new(TestClock::default());
        (
            OperatorGate::new(token.clone(), Arc::clone(&clock) as SharedClock),
            token,
            clock,
        )
    }

    fn secret_of(token: &OperatorToken) -> String {
        token.authorization().replace("Bearer ", "")
    }

    fn with_cookie(set: &HeaderValue) -> HeaderMap {
        let pair = set.to_str().unwrap().split(';').next().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, format!("other=1; {pair}").parse().unwrap());
        headers
    }

    #[test]
    fn the_token_opens_a_session_that_ends() {
        let (gate, token, clock) = gate();
        assert!(!gate.admits(&HeaderMap::new()));
        let set = gate.sign_in(&secret_of(&token)).unwrap();
        let text = set.to_str().unwrap();
        assert!(
            text.contains("HttpOnly") && text.contains("SameSite=Strict"),
            "{text}"
        );
        assert!(!text.contains(&secret_of(&token)), "the cookie is not the token");
        let headers = with_cookie(&set);
        assert!(gate.admits(&headers));
        clock.advance(LIFETIME);
        assert!(!gate.admits(&headers), "after its time");
    }

    #[test]
    fn a_session_ends_with_the_sign_out_and_the_oldest_make_room() {
        let (gate, token, clock) = gate();
        let first = with_cookie(&gate.sign_in(&secret_of(&token)).unwrap());
        let second = with_cookie(&gate.sign_in(&secret_of(&token)).unwrap());
        gate.sign_out(&first);
        assert!(!gate.admits(&first) && gate.admits(&second));
        for _ in 0..MAX_SESSIONS {
            clock.advance(Duration::from_secs(1));
            gate.sign_in(&secret_of(&token)).unwrap();
        }
        assert!(!gate.admits(&second));
        assert_eq!(gate.state.lock().sessions.len(), MAX_SESSIONS);
    }

    #[test]
    fn a_wrong_token_opens_nothing_and_is_slowed_down() {
        let (gate, token, _) = gate();
        let mut other = secret_of(&token);
        other.replace_range(0..1, if other.starts_with('0') { "1" } else { "0" });
        for _ in 0..WRONG_PER_MINUTE {
            assert_eq!(gate.sign_in(&other), Err(SignInRefusal::Wrong));
        }
        assert_eq!(gate.sign_in(&other), Err(SignInRefusal::TooMany));
        assert!(
            gate.sign_in(&secret_of(&token)).is_ok(),
            "strangers do not lock the operator out"
        );
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {other}").parse().unwrap());
        assert!(!gate.admits(&headers));
        headers.insert(header::AUTHORIZATION, token.authorization().parse().unwrap());
        assert!(gate.admits(&headers));
    }
}
