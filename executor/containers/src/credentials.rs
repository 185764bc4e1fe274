//! The credentials of an executor at registries: the operator's own table first, then a file written by `docker
//! login`.
//!
//! The helper programs that such a file names (`credHelpers`, `credsStore`) are not started: an executor runs next to
//! untrusted code, and its operator alone chooses the programs that it runs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard::auth::DockerCredentials;
use serde::Deserialize;

/// Upper bound on the size of a credentials file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// A username and password at a registry, set by the operator.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegistryLogin {
    /// The name of the account at the registry.
    pub username: String,
    /// The password, or a token in its place.
    pub password: String,
}

/// A file of credentials that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file cannot be read.
    #[error("the registry credentials in {path} cannot be read; check docker_config")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file is not in the format of `docker login`.
    #[error("the registry credentials in {0} are not what `docker login` writes; check docker_config")]
    Malformed(PathBuf),
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    identitytoken: String,
}

impl fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryLogin")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

impl RegistryLogin {
    /// The login in the form of the engine's API.
    pub(crate) fn to_docker(&self, registry: &str) -> DockerCredentials {
        DockerCredentials {
            username: Some(self.username.clone()),
            password: Some(self.password.clone()),
            serveraddress: Some(registry.to_owned()),
            ..DockerCredentials::default()
        }
    }
}

/// The credentials that a file written by `docker login` holds for `registry`; `None` if it holds none, or if there is
/// no such file.
///
/// # Errors
/// The file exists but cannot be used.
pub fn find_in_file(path: &Path, registry: &str) -> Result<Option<DockerCredentials>, CredentialsError> {
    let unreadable = |source| CredentialsError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let bytes = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Ok(metadata) if metadata.len() > MAX_FILE => {
            return Err(CredentialsError::Malformed(path.to_owned()));
        }
        Ok(_) => std::fs::read(path).map_err(unreadable)?,
        Err(error) => return Err(unreadable(error)),
    };
    find_in_document(&bytes, registry).ok_or_else(|| CredentialsError::Malformed(path.to_owned()))
}

/// The outer `None` means that the document cannot be read.
fn find_in_document(bytes: &[u8], registry: &str) -> Option<Option<DockerCredentials>> {
    let file: File = serde_json::from_slice(bytes).ok()?;
    let Some(entry) = file
        .auths
        .into_iter()
        .find_map(|(key, entry)| (host_of(&key) == registry).then_some(entry))
    else {
        return Some(None);
    };
    let given = DockerCredentials {
        serveraddress: Some(registry.to_owned()),
        ..DockerCredentials::default()
    };
    if !entry.identitytoken.is_empty() {
        return Some(Some(DockerCredentials {
            identitytoken: Some(entry.identitytoken),
            ..given
        }));
    }
    if entry.auth.is_empty() {
        // A helper program holds the password.
        return Some(None);
    }
    let pair = String::from_utf8(STANDARD.decode(entry.auth).ok()?).ok()?;
    let (username, password) = pair.split_once(':')?;
    Some(Some(DockerCredentials {
        username: Some(username.to_owned()),
        password: Some(password.to_owned()),
        ..given
    }))
}

/// The host of a key, which is a host or an address such as `https://index.docker.io/v1/`.
fn host_of(key: &str) -> &str {
    let key = key
        .strip_prefix("https://")
        .or_else(|| key.strip_prefix("http://"))
        .unwrap_or(key);
    match key.split('/').next().unwrap_or_default() {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        host => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_found_under_every_key_that_docker_writes() {
        let document = br#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "YTpiOmM="},
            "ghcr.io": {"auth": "", "identitytoken": "t"},
            "127.0.0.1:5000": {}}, "credsStore": "desktop"}"#;
        let hub = find_in_document(document, "docker.io").unwrap().unwrap();
        assert_eq!(
            (hub.username.as_deref(), hub.password.as_deref()),
            (Some("a"), Some("b:c"))
        );
        let ghcr = find_in_document(document, "ghcr.io").unwrap().unwrap();
        assert_eq!((ghcr.identitytoken.as_deref(), ghcr.password), (Some("t"), None));
        assert_eq!(find_in_document(document, "127.0.0.1:5000"), Some(None));
        assert_eq!(find_in_document(document, "elsewhere"), Some(None));
    }

    #[test]
    fn damaged_files_are_named_and_missing_ones_hold_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        assert_eq!(find_in_file(&path, "x").unwrap(), None);
        for bad in [
            &b""[..],
            b"7",
            br#"{"auths": []}"#,
            br#"{"auths": {"x": {"auth": "%"}}}"#,
            br#"{"auths": {"x": {"auth": "bm9jb2xvbg=="}}, "more": 1}"#,
        ] {
            std::fs::write(&path, bad).unwrap();
            let error = find_in_file(&path, "x").unwrap_err().to_string();
            assert!(
                error.contains("config.json") && error.contains("docker_config"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_password_is_not_printed() {
        let login = RegistryLogin {
            username: "u".into(),
            password: "secret".into(),
        };
        assert!(!format!("{login:?}").contains("secret"));
    }
}
