//! The operator's settings for the data of jobs, as they stand in a configuration file.

use std::path::PathBuf;

use muster_process::config::Problem;
use serde::Deserialize;

use crate::addresses::AddressRules;
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
    /// Upper bound on all outputs of a job together, in MiB.
    pub max_upload_mib: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            cache_dir: PathBuf::from("/var/tmp/muster-inputs"),
            cache_mib: 20_480,
            cache_hours: 336,
            hub: "https://huggingface.co".to_owned(),
            hub_token: String::new(),
            max_upload_mib: 2_048,
        }
    }
}

impl Settings {
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
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_wrong_is_said() {
        assert!(Settings::default().problems("transfer").is_empty());
        let wrong = Settings {
            cache_dir: "relative".into(),
            hub: "ftp://x".into(),
            hub_token: "a b".into(),
            ..Settings::default()
        };
        assert_eq!(wrong.problems("transfer").len(), 3);
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
