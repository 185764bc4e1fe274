//! The section `[gateway]` of a validator's configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use muster_http::addresses::AddressRules;
use muster_http::{Origin, OriginError};
use muster_process::config::Problem;
use muster_process::error::Causes;
use muster_protocol::{Digest, Hotkey};
use muster_session_pool::{Limits, Service, Whitelist};
use serde::Deserialize;

use crate::answer_text_keys::MAX_SEALED;
use crate::miner_sessions::SessionTimes;
use crate::token_count::{ModelTokenizer, TokenizerError};

/// Starts of sessions of one model that fail in a row before waiting requests are refused; also the sessions that one
/// request is given to.
const MAX_TRIES: u32 = 3;
/// How long a session rests after a request failed on it. Its end, if it is dying, is known by then.
const REST: Duration = Duration::from_millis(200);
/// Health checks that a session may fail one after another.
const MAX_MISSES: u32 = 2;
/// The pause after a failed start.
const BACKOFF: Duration = Duration::from_secs(2);

/// The configuration of a gateway. `[gateway]` in the validator's commented default explains every key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Address at which clients and facilitators connect; without one there is no gateway.
    pub bind: Option<SocketAddr>,
    /// URL of the gateway for facilitators, without a path; by default the bound address.
    pub announce: Option<String>,
    /// Facilitators whose tokens are accepted.
    pub facilitators: BTreeSet<Hotkey>,
    /// The validator's own clients: a name for each, and SHA-256 of its API key.
    pub keys: BTreeMap<String, Digest>,
    /// The whitelisted services, one for each model.
    pub services: Vec<Service>,
    /// Sessions of each model that are kept even if there are no requests.
    pub min_sessions: usize,
    /// The maximum number of sessions of each model.
    pub max_sessions: usize,
    /// Requests that one session serves at a time.
    pub per_session: usize,
    /// Requests for one model that may wait.
    pub queue: usize,
    /// Requests of one client for one model that may wait.
    pub queue_of_one: usize,
    /// Seconds that a request for a stream waits for a session before it is refused.
    pub patience_s: u64,
    /// Seconds that a request for a document waits, at most `patience_s`: its client learns nothing meanwhile.
    pub wait_s: u64,
    /// Seconds that a session may be unused before it is closed.
    pub idle_s: u64,
    /// The same while jobs wait for executors of the session's class.
    pub yield_s: u64,
    /// Seconds that a session lives.
    pub session_s: u64,
    /// Seconds before a session's end at which its replacement is started.
    pub replace_s: u64,
    /// Seconds before a session's end from which it gets no more requests.
    pub drain_s: u64,
    /// Limit in seconds for image and engine to come up.
    pub start_s: u64,
    /// Seconds that an engine may send nothing, before its answer or within it.
    pub silence_s: u64,
    /// Seconds between two comments to a client that waits.
    pub heartbeat_s: u64,
    /// Seconds between two checks of a session's health.
    pub health_s: u64,
    /// Milliseconds by which the clocks of executors and facilitators may differ.
    pub skew_ms: u64,
    /// The largest body of a request, in KiB.
    pub max_body_kib: usize,
    /// Requests of all clients that are served or wait at a time; also the number of connections.
    pub requests: usize,
    /// Bytes of users' texts that a bucket keeps until its draw. No operator sets it: tests fill a small bucket.
    #[serde(skip)]
    pub kept_text_bytes: u64,
    /// Wrong API keys and tokens a minute of one address, or of one IPv6 network of 64 bits; 0 for no limit.
    pub failures_per_minute: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bind: None,
            announce: None,
            facilitators: BTreeSet::new(),
            keys: BTreeMap::new(),
            services: Vec::new(),
            min_sessions: 0,
            max_sessions: 4,
            per_session: 8,
            queue: 1_000,
            queue_of_one: 50,
            patience_s: 300,
            wait_s: 120,
            idle_s: 300,
            yield_s: 30,
            session_s: 3_000,
            replace_s: 300,
            drain_s: 60,
            start_s: 240,
            silence_s: 600,
            heartbeat_s: 10,
            health_s: 15,
            skew_ms: 5_000,
            max_body_kib: 4_096,
            requests: 4_096,
            kept_text_bytes: MAX_SEALED,
            failures_per_minute: 60,
        }
    }
}

impl Settings {
    /// The bounds of each model's pool.
    pub fn limits(&self) -> Limits {
        Limits {
            min: self.min_sessions.min(self.max_sessions),
            max: self.max_sessions,
            per_session: self.per_session,
            queue: self.queue,
            queue_of_one: self.queue_of_one,
            max_wait: Duration::from_secs(self.patience_s),
            idle: Duration::from_secs(self.idle_s),
            idle_beside_jobs: Duration::from_secs(self.yield_s),
            replace: Duration::from_secs(self.replace_s),
            drain: Duration::from_secs(self.drain_s),
            max_misses: MAX_MISSES,
            max_tries: MAX_TRIES,
            rest: REST,
            backoff: BACKOFF,
        }
    }

    /// How long a request waits for a session before it is refused.
    pub(crate) fn patience(&self, streams: bool) -> Duration {
        let longest = Duration::from_secs(self.patience_s);
        match streams {
            true => longest,
            false => longest.min(Duration::from_secs(self.wait_s)),
        }
    }

    /// The time of a session that is this much shorter than `lifetime`; `None` if it would be too short to be worth its
    /// start: it is replaced before its end, and serves for as long before that.
    pub(crate) fn shorten(&self, lifetime: Duration, by: Duration) -> Option<Duration> {
        let least = Duration::from_secs(self.replace_s.saturating_mul(2).max(1));
        let shorter = lifetime.saturating_sub(by);
        (!by.is_zero() && shorter >= least).then_some(shorter)
    }

    /// The times of each session.
    pub(crate) const fn session_times(&self) -> SessionTimes {
        SessionTimes {
            start: Duration::from_secs(self.start_s),
            lifetime: Duration::from_secs(self.session_s),
        }
    }

    /// By how much clocks may differ.
    pub const fn skew(&self) -> Duration {
        Duration::from_millis(self.skew_ms)
    }

    /// The largest body of a request, in bytes.
    pub const fn max_body(&self) -> usize {
        self.max_body_kib.saturating_mul(1024)
    }

    /// All problems of these settings. `path` is the name of the section.
    pub fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let at = |key: &str| format!("{path}.{key}");
        for (key, number) in [
            ("max_sessions", self.max_sessions),
            ("per_session", self.per_session),
            ("queue", self.queue),
            ("queue_of_one", self.queue_of_one),
            ("max_body_kib", self.max_body_kib),
            ("requests", self.requests),
        ] {
            if number == 0 {
                problems.push(Problem::at(at(key), "must be at least 1"));
            }
        }
        for (key, seconds) in [
            ("patience_s", self.patience_s),
            ("wait_s", self.wait_s),
            ("session_s", self.session_s),
            ("start_s", self.start_s),
            ("silence_s", self.silence_s),
            ("heartbeat_s", self.heartbeat_s),
            ("health_s", self.health_s),
        ] {
            if seconds == 0 {
                problems.push(Problem::at(at(key), "must be at least 1 second"));
            }
        }
        if self.min_sessions > self.max_sessions {
            problems.push(Problem::at(at("min_sessions"), "must be at most max_sessions"));
        }
        if self.replace_s >= self.session_s || self.drain_s >= self.replace_s {
            problems.push(Problem::at(
                at("replace_s"),
                "must be less than session_s, and drain_s less than it",
            ));
        }
        if let Some(url) = &self.announce {
            match Origin::parse(url, &AddressRules::default()) {
                // A facilitator may permit the address.
                Ok(_) | Err(OriginError::NotPublic) => {}
                Err(error) => problems.push(Problem::at(at("announce"), error.to_string())),
            }
        }
        if let Err(defects) = Whitelist::new(self.services.clone()) {
            let found = defects
                .into_iter()
                .map(|(index, defect)| Problem::at(format!("{path}.services[{index}]"), defect.to_string()));
            problems.extend(found);
        }
        for (index, service) in self.services.iter().enumerate() {
            if let Some(file) = &service.tokenizer
                && let Err(error) = ModelTokenizer::open(&file.path, &file.sha256)
            {
                let key = format!("{path}.services[{index}].tokenizer");
                problems.push(Problem::at(key, explain(&error)));
            }
        }
        problems
    }
}

/// The defect of a tokenizer's file, and what to do about it.
fn explain(error: &TokenizerError) -> String {
    let advice = match error {
        TokenizerError::Read(..) => "name the model's tokenizer.json on this machine",
        TokenizerError::OtherFile { .. } => "if it is the model's tokenizer.json, name this digest",
        TokenizerError::TooLarge(_) | TokenizerError::Format { .. } => {
            "name the model's tokenizer.json, or leave the key out: then the engine's report is bounded by bytes"
        }
    };
    format!("{}; {advice}", Causes(error))
}

#[cfg(test)]
mod tests {
    use muster_session_pool::TokenizerFile;

    use super::*;

    #[test]
    fn a_tokenizer_that_cannot_be_used_is_a_problem_of_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let problems = |contents: Option<&str>, sha256: &[u8]| {
            let path = folder.path().join("tokenizer.json");
            match contents {
                Some(contents) => std::fs::write(&path, contents).unwrap(),
                None => drop(std::fs::remove_file(&path)),
            }
            let entry = serde_json::json!({
                "model": "tiny", "image": Digest::of(b"image"), "class": "always_on.test", "output_price": 7,
                "input_tokens_per_s": 1_000, "output_tokens_per_s": 1, "listen": {"port": 8000},
            });
            let mut service: Service = serde_json::from_value(entry).unwrap();
            service.tokenizer = Some(TokenizerFile {
                path,
                sha256: Digest::of(sha256),
            });
            let settings = Settings {
                services: vec![service],
                ..Settings::default()
            };
            let problems = settings.problems("gateway");
            problems.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let [absent] = problems(None, b"").try_into().unwrap();
        assert!(absent.contains("gateway.services[0].tokenizer"), "{absent}");
        assert!(
            absent.contains("cannot be read") && absent.contains("No such file"),
            "{absent}"
        );
        let [other] = problems(Some("{}"), b"another").try_into().unwrap();
        let digest = Digest::of(b"{}").to_string();
        assert!(
            other.contains(&digest) && other.contains("name this digest"),
            "{other}"
        );
        let [none] = problems(Some("{}"), b"{}").try_into().unwrap();
        assert!(none.contains("is no tokenizer"), "{none}");
        let model = r#"{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}"#;
        assert_eq!(problems(Some(model), model.as_bytes()), [] as [String; 0]);
    }

    #[test]
    fn the_announced_url_is_a_server_and_nothing_behind_it() {
        let problems = |url: &str| {
            let settings = Settings {
                announce: Some(url.to_owned()),
                ..Settings::default()
            };
            settings.problems("gateway")
        };
        for url in ["https://gateway.example.org", "http://10.0.0.7:8092"] {
            assert_eq!(problems(url), [], "{url}");
        }
        for url in [
            "gateway.example.org",
            "https://gateway.example.org/v1",
            "http://h/x#",
        ] {
            assert_eq!(problems(url).len(), 1, "{url}");
        }
    }
}
