//! The operator's lists about images: registries beyond the public Internet, repositories whose images jobs get with
//! the operator's logins, and images of the engine that jobs may run although no job fetched them. Pure.

use std::sync::Arc;

use muster_http::addresses::{AddressRules, RuleError};
use muster_process::config::Problem;
use muster_protocol::ImageId;

use crate::image_settings::ImageSettings;
use muster_protocol::image_reference::{ImageName, ImageReference};

/// The entry of a list that stands for everything.
const ALL: &str = "*";

impl ImageSettings {
    /// The settings for the operator's own requests: every registry, every login, every image of the engine.
    pub(crate) fn for_operator(&self) -> Self {
        Self {
            allow: ["0.0.0.0/0", "::/0"].map(str::to_owned).to_vec(),
            local: vec![ALL.to_owned()],
            login_repositories: vec![ALL.to_owned()],
            ..self.clone()
        }
    }

    /// The addresses at which registries may be.
    ///
    /// # Errors
    /// An entry of `allow` that has none of its forms.
    pub(crate) fn address_rules(&self) -> Result<Arc<AddressRules>, RuleError> {
        AddressRules::parse(&self.allow).map(Arc::new)
    }

    /// Whether jobs may run this image of the engine under this name although no executor fetched it.
    pub(crate) fn lists_local(&self, wanted: &ImageName, id: ImageId) -> bool {
        self.local.iter().any(|entry| {
            entry == ALL
                || match entry.parse::<ImageName>() {
                    Ok(ImageName::Id(listed)) => listed == id,
                    Ok(listed @ ImageName::Registry(_)) => listed == *wanted,
                    Err(_) => false,
                }
        })
    }

    /// Whether jobs get images of this repository with the operator's login.
    pub(crate) fn lists_login(&self, reference: &ImageReference) -> bool {
        let repository = reference.repository_name();
        self.login_repositories
            .iter()
            .any(|entry| is_of(entry, &repository))
    }

    /// All mistakes in these lists. `table` is the name of the table in the configuration.
    pub(crate) fn access_problems(&self, table: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut report = |key: &str, reason: String| {
            problems.push(Problem::at(format!("{table}.{key}"), reason));
        };
        if let Err(error) = self.address_rules() {
            report("allow", error.to_string());
        }
        for entry in self.local.iter().filter(|entry| *entry != ALL) {
            if let Err(error) = entry.parse::<ImageName>() {
                report("local", error.to_string());
            }
        }
        for entry in self.login_repositories.iter().filter(|entry| !is_pattern(entry)) {
            let reason = format!("{entry:?} is neither host/repository, nor host/folder/*, nor \"*\"");
            report("login_repositories", reason);
        }
        let logins = !self.registries.is_empty() || !self.docker_config.as_os_str().is_empty();
        if logins && self.login_repositories.is_empty() && self.prefetch.is_empty() {
            let reason = "is empty, so nobody uses the logins of this executor; list the repositories whose images \
                every user may have with them, for example \"ghcr.io/us/public-models/*\"";
            report("login_repositories", reason.to_owned());
        }
        problems
    }
}

/// Whether a repository, as the engine writes it, is the one of an entry or lies in its folder.
fn is_of(entry: &str, repository: &str) -> bool {
    match entry.strip_suffix('*') {
        Some(folder) => repository.starts_with(folder),
        None => entry == repository,
    }
}

/// Whether an entry has one of the forms `*`, `host/folder/*` and `host/repository`.
fn is_pattern(entry: &str) -> bool {
    let named = match entry.strip_suffix('*') {
        Some("") => return true,
        Some(folder) => format!("{folder}x"),
        None => entry.to_owned(),
    };
    // A name with a tag, or without its host, would match nothing.
    named
        .parse::<ImageReference>()
        .is_ok_and(|reference| reference.repository_name() == named)
}

#[cfg(test)]
mod tests {
    use muster_protocol::Digest;

    use super::*;
    use crate::credentials::RegistryLogin;

    fn list(entries: &[&str]) -> Vec<String> {
        entries.iter().map(|&entry| entry.to_owned()).collect()
    }

    #[test]
    fn local_images_are_listed_by_id_or_by_name_and_no_other_is() {
        let id = ImageId(Digest::of(b"ours"));
        let other = ImageId(Digest::of(b"theirs"));
        let settings = ImageSettings {
            local: list(&["alpine:3", &id.to_string()]),
            ..ImageSettings::default()
        };
        let lists = |name: &str, id| settings.lists_local(&name.parse().unwrap(), id);
        assert!(lists("docker.io/library/alpine:3", other) && lists("x/y", id) && lists(&id.to_string(), id));
        assert!(!lists("alpine:4", other) && !lists(&other.to_string(), other));
        let name = "postgres".parse().unwrap();
        assert!(!ImageSettings::default().lists_local(&name, id));
        assert!(settings.for_operator().lists_local(&name, other));
    }

    #[test]
    fn logins_are_for_listed_repositories_only() {
        let settings = ImageSettings {
            login_repositories: list(&["ghcr.io/us/one", "docker.io/us/*"]),
            ..ImageSettings::default()
        };
        let lists = |name: &str| settings.lists_login(&name.parse().unwrap());
        assert!(lists("ghcr.io/us/one:1") && lists("us/any") && lists("us/any/deeper:2"));
        for other in [
            "ghcr.io/us/one-more",
            "ghcr.io/us/secret",
            "usurper/x",
            "ghcr.io/docker.io/us/x",
        ] {
            assert!(!lists(other), "{other}");
        }
        assert!(!ImageSettings::default().lists_login(&"us/any".parse().unwrap()));
    }

    #[test]
    fn faults_in_the_image_lists_are_named() {
        let at = |settings: ImageSettings| {
            let problems = settings.access_problems("images");
            problems.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(at(ImageSettings::default()).is_empty());
        let wrong = at(ImageSettings {
            allow: list(&["10.0.0.0/99"]),
            local: list(&["A B"]),
            login_repositories: list(&["us/x", "ghcr.io/us/x:1", "ghcr.io/*/x"]),
            ..ImageSettings::default()
        });
        assert_eq!(wrong.len(), 5, "{wrong:?}");
        let login = RegistryLogin::default();
        let unused = ImageSettings {
            registries: [("ghcr.io".to_owned(), login)].into_iter().collect(),
            ..ImageSettings::default()
        };
        assert!(at(unused.clone())[0].contains("login_repositories"));
        let used = ImageSettings {
            login_repositories: list(&["ghcr.io/us/*"]),
            ..unused
        };
        assert!(at(used).is_empty());
    }
}
