//! The operator's settings for the data of jobs, as they stand in a configuration file.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use muster_http::addresses::AddressRules;
use muster_process::config::Problem;
use muster_process::private_folder;
use muster_protocol::Timestamp;
use serde::Deserialize;

use crate::huggingface_json::is_repo;
use crate::input_cache::{Cache, CacheLimits, InputCollectionCounts};
use crate::job_url::Target;

/// The table `[transfer]` of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Hosts, addresses, addresses with a port, and networks that jobs may reach although they are not public.
    pub allow: Vec<String>,
    /// Absolute path of the cached inputs; shared by all executors of this machine.
    pub cache_dir: PathBuf,
    /// Upper bound on the cached inputs, in MiB; 0 disables the cache.
    pub cache_mib: u64,
    /// Longest time that an unused input is cached, in hours.
    pub cache_hours: u64,
    /// Base URL of the hub of `huggingface_volume`.
    pub hub: String,
    /// The hub's token for volumes that bring none; empty for none.
    pub hub_token: String,
    /// Repositories that volumes without a token may read with it, each as `owner/name` or `owner/*`.
    pub hub_repositories: Vec<String>,
    /// Upper bound on all outputs of a job together, in MiB.
    pub max_upload_mib: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            cache_dir: private_folder::usual_place("inputs"),
            cache_mib: 20_480,
            cache_hours: 336,
            hub: "https://huggingface.co".to_owned(),
            hub_token: String::new(),
            hub_repositories: Vec::new(),
            max_upload_mib: 2_048,
        }
    }
}

impl Settings {
    /// The bounds of the cached inputs.
    pub(crate) const fn cache_limits(&self) -> CacheLimits {
        CacheLimits {
            bytes: self.cache_mib.saturating_mul(1 << 20),
            age: Duration::from_secs(self.cache_hours.saturating_mul(3_600)),
        }
    }

    /// The operator's token for a repository of the hub; empty for none.
    pub(crate) fn hub_token_for(&self, repo: &str) -> &str {
        let lists = |entry: &String| match entry.strip_suffix('*') {
            Some(owner) => repo.starts_with(owner),
            None => entry == repo,
        };
        if self.hub_repositories.iter().any(lists) {
            &self.hub_token
        } else {
            ""
        }
    }

    /// Removes cached inputs that are beyond their age or size. A cache that no job has used yet is left alone. Blocks.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn collect_inputs(&self, now: Timestamp) -> io::Result<InputCollectionCounts> {
        if !self.cache_dir.exists() {
            return Ok(InputCollectionCounts::default());
        }
        Cache::open(&self.cache_dir, self.cache_limits())?.collect(now)
    }

    /// All mistakes in the settings. `table` is the name of the table in the configuration.
    pub fn problems(&self, table: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut check = |wrong: Option<String>, key: &str| {
            if let Some(reason) = wrong {
                problems.push(Problem::at(format!("{table}.{key}"), &reason));
            }
        };
        let rules = AddressRules::parse(&self.allow);
        check(rules.as_ref().err().map(ToString::to_string), "allow");
        let hub = rules
            .ok()
            .and_then(|rules| Target::parse(&self.hub, &rules).err());
        check(hub.map(|error| error.to_string()), "hub");
        let relative = !self.cache_dir.is_absolute();
        check(
            relative.then(|| "must be an absolute path".to_owned()),
            "cache_dir",
        );
        let token = self.hub_token.bytes().all(|c| c.is_ascii_graphic());
        check(
            (!token).then(|| "holds a space or a control character".to_owned()),
            "hub_token",
        );
        let unused = !self.hub_token.is_empty() && self.hub_repositories.is_empty();
        let reason =
            "is empty, so nobody uses hub_token; list the repositories that every user may read with it";
        check(unused.then(|| reason.to_owned()), "hub_repositories");
        let named = |entry: &String| {
            let owner_and_name = entry.strip_suffix('*').map(|owner| format!("{owner}x"));
            is_repo(owner_and_name.as_ref().unwrap_or(entry))
        };
        let strange = self.hub_repositories.iter().find(|entry| !named(entry));
        let reason = strange.map(|entry| format!("{entry:?} is neither owner/name nor owner/*"));
        check(reason, "hub_repositories");
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hubs_token_is_for_listed_repositories_only() {
        let settings = Settings {
            hub_token: "t".to_owned(),
            hub_repositories: ["us/one", "them/*"].map(str::to_owned).to_vec(),
            ..Settings::default()
        };
        assert!(settings.problems("transfer").is_empty());
        for ours in ["us/one", "them/any"] {
            assert_eq!(settings.hub_token_for(ours), "t", "{ours}");
        }
        for other in ["us/one-more", "us/two", "thembs/x", "one"] {
            assert_eq!(settings.hub_token_for(other), "", "{other}");
        }
    }

    #[test]
    fn everything_wrong_is_said() {
        assert!(Settings::default().problems("transfer").is_empty());
        let wrong = Settings {
            cache_dir: "relative".into(),
            hub: "ftp://x".into(),
            hub_token: "a b".into(),
            ..Settings::default()
        };
        assert_eq!(wrong.problems("transfer").len(), 4);
        let wrong = Settings {
            hub_repositories: vec!["us/a/b".to_owned()],
            ..Settings::default()
        };
        assert_eq!(wrong.problems("transfer").len(), 1);
        let wrong = Settings {
            allow: vec!["10.0.0.0/99".into()],
            ..Settings::default()
        };
        assert_eq!(wrong.problems("transfer").len(), 1);
        let private = Settings {
            allow: vec!["127.0.0.1".into()],
            hub: "http://127.0.0.1:8080".into(),
            ..Settings::default()
        };
        assert!(private.problems("transfer").is_empty());
    }
}
