//! The operator's settings of images: where they come from, how large they may be, and how long they stay.

use std::path::PathBuf;
use std::time::Duration;

use bollard::auth::DockerCredentials;
use indexmap::IndexMap;
use muster_process::config::Problem;
use muster_process::private_folder;
use serde::Deserialize;

use crate::credentials::{self, CredentialsError, RegistryLogin};
use muster_protocol::image_reference::{ImageName, ImageReference};

/// Sources of images and how long images are kept; set by the operator.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImageSettings {
    /// Paths of archives to load from if an image is missing.
    pub preload: Vec<PathBuf>,
    /// Names of images that a persistent executor fetches before any job asks, and keeps.
    pub prefetch: Vec<String>,
    /// Whether missing images may be pulled from registries.
    pub pull: bool,
    /// Seconds without progress after which a pull ends, at least 1.
    pub stall_s: u64,
    /// The most MiB, compressed, that an image may have to be pulled.
    pub max_mib: u64,
    /// The most MiB, unpacked, that an image may have.
    pub max_unpacked_mib: u64,
    /// MiB that stay free on the engine's disk: with less, no image is pulled.
    pub reserve_mib: u64,
    /// The most MiB, unpacked, of the images that are fetched early for one validator.
    pub listed_mib: u64,
    /// Hosts, addresses and networks of registries that jobs may name although they are not on the public Internet.
    pub allow: Vec<String>,
    /// Names and ids of the engine's images that jobs may run although no executor fetched them; `*` for all.
    pub local: Vec<String>,
    /// Repositories whose images jobs get with the executor's logins, each as `host/repository` or `host/folder/*`.
    pub login_repositories: Vec<String>,
    /// The executor's logins, by the registry's host.
    pub registries: IndexMap<String, RegistryLogin>,
    /// Path of a file written by `docker login`, for all other registries; empty for none.
    pub docker_config: PathBuf,
    /// Folder in which the executors of this machine record the images that they use.
    pub cache_dir: PathBuf,
    /// Images unused for longer than this many days are removed.
    pub keep_days: u64,
    /// Upper bound on the total size of used images, in MiB.
    pub keep_mib: u64,
}

/// The bounds of one pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullBounds {
    /// Time without progress after which the pull ends.
    pub stall: Duration,
    /// The most bytes, compressed, that all layers may have together.
    pub max_bytes: u64,
    /// The most bytes that all layers may have unpacked.
    pub max_unpacked: u64,
    /// The bytes that stay free on the engine's disk.
    pub reserve: u64,
}

// === impl ImageSettings ===

impl Default for ImageSettings {
    fn default() -> Self {
        Self {
            preload: Vec::new(),
            prefetch: Vec::new(),
            pull: true,
            stall_s: 120,
            max_mib: 51_200,
            max_unpacked_mib: 102_400,
            reserve_mib: 2_048,
            listed_mib: 102_400,
            allow: Vec::new(),
            local: Vec::new(),
            login_repositories: Vec::new(),
            registries: IndexMap::new(),
            docker_config: PathBuf::new(),
            cache_dir: private_folder::usual_place("executor-images"),
            keep_days: 30,
            keep_mib: 204_800,
        }
    }
}

impl ImageSettings {
    /// The defaults with their comments, for the table `[images]` of an operator's configuration file.
    pub const COMMENTED: &'static str = r#"# Archives (as `docker save` writes them) to load where a job's image is missing. Their tags are not taken over.
preload = []
# Names of images that a persistent executor pulls before any job asks for them, and keeps.
prefetch = []
# Whether missing images are pulled from the registry that their name leads to.
pull = true
# Seconds without progress after which a pull ends, and the most MiB (compressed) of an image that is pulled.
stall_s = 120
max_mib = 51200
# The most MiB of an image once it is unpacked, and the MiB that stay free on the engine's disk: a pull ends before.
max_unpacked_mib = 102400
reserve_mib = 2048
# The most MiB, unpacked, of the images that a persistent executor fetches early because one validator lists them.
listed_mib = 102400
# Hosts, addresses (127.0.0.1:5000 for one port only) and networks (CIDR) of registries that jobs may name although they
# are not on the public Internet. A host in this list is not resolved and may speak plain HTTP.
allow = []
# Images of the engine that jobs may run although no executor fetched them: names, ids (sha256:...), or "*" for all. An
# image that executors fetched, or that came from an archive, needs no entry.
local = []
# The repositories whose images every user may have with the logins of this executor: "ghcr.io/us/model" or
# "ghcr.io/us/*". All other images are pulled without a login. The names in `prefetch` need no entry.
login_repositories = []
# A file that `docker login` has written, for registries not named below. Its credential helpers are not started.
docker_config = ""
# Where all executors of this machine record which images they use. Absolute; by default /var/lib/muster/executor-images
# for root and /var/tmp/muster-executor-images for another user.
# cache_dir = "/var/lib/muster/executor-images"
# The days without use after which an image is removed,
keep_days = 30
# and the MiB of all used images beyond which the longest unused go.
keep_mib = 204800

# The credentials of this executor at a registry.
# [images.registries."ghcr.io"]
# username = "somebody"
# password = "a token that may read packages"
"#;

    /// All mistakes in the settings. `table` is the name of the table in the configuration.
    pub fn problems(&self, table: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !self.cache_dir.is_absolute() {
            problems.push(Problem::at(
                format!("{table}.cache_dir"),
                "must be an absolute path, the same for all executors of this machine",
            ));
        }
        for (key, value) in [
            ("stall_s", self.stall_s),
            ("max_mib", self.max_mib),
            ("max_unpacked_mib", self.max_unpacked_mib),
        ] {
            if value == 0 {
                problems.push(Problem::at(format!("{table}.{key}"), "must be at least 1"));
            }
        }
        for name in &self.prefetch {
            if let Err(error) = name.parse::<ImageName>() {
                problems.push(Problem::at(format!("{table}.prefetch"), error.to_string()));
            }
        }
        problems.extend(self.access_problems(table));
        problems
    }

    pub(crate) const fn max_age(&self) -> Duration {
        Duration::from_secs(self.keep_days.saturating_mul(86_400))
    }

    pub(crate) const fn max_bytes(&self) -> u64 {
        self.keep_mib.saturating_mul(1 << 20)
    }

    pub(crate) const fn pull_bounds(&self) -> PullBounds {
        PullBounds {
            stall: Duration::from_secs(self.stall_s),
            max_bytes: self.max_mib.saturating_mul(1 << 20),
            max_unpacked: self.max_unpacked_mib.saturating_mul(1 << 20),
            reserve: self.reserve_mib.saturating_mul(1 << 20),
        }
    }

    /// These settings for an image of at most `bytes`, unpacked.
    #[must_use]
    pub fn within(&self, bytes: u64) -> Self {
        Self {
            max_mib: self.max_mib.min(bytes >> 20),
            max_unpacked_mib: self.max_unpacked_mib.min(bytes >> 20),
            ..self.clone()
        }
    }

    /// The login with which jobs get an image; `None` for anonymous access.
    pub(crate) fn credentials(
        &self,
        reference: &ImageReference,
    ) -> Result<Option<DockerCredentials>, CredentialsError> {
        if !self.lists_login(reference) {
            return Ok(None);
        }
        let registry = reference.registry.as_str();
        match self.registries.get(registry) {
            Some(login) => Ok(Some(login.to_docker(registry))),
            None if self.docker_config.as_os_str().is_empty() => Ok(None),
            None => credentials::find_in_file(&self.docker_config, registry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commented_settings_are_the_defaults() {
        let read: ImageSettings = toml::from_str(ImageSettings::COMMENTED).unwrap();
        assert_eq!(read, ImageSettings::default());
        let with = "login_repositories = [\"ghcr.io/us/*\", \"docker.io/us/x\"]\n\
            [registries.\"ghcr.io\"]\nusername = \"u\"\npassword = \"p\"\n";
        let settings: ImageSettings = toml::from_str(with).unwrap();
        let login = |name: &str| settings.credentials(&name.parse().unwrap()).unwrap();
        assert_eq!(login("ghcr.io/us/x").unwrap().password.as_deref(), Some("p"));
        assert_eq!(login("us/x"), None);
        assert_eq!(login("ghcr.io/them/x"), None, "a user's own name gets no login");
    }
}
