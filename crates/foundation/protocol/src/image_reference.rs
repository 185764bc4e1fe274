//! Parses the name of an image as a user writes it: an id, or a repository in a registry with a tag or a digest.

use std::fmt;
use std::str::FromStr;

use crate::{Digest, ImageId};

/// The registry of names without one, which is Docker's default.
const DEFAULT_REGISTRY: &str = "docker.io";

/// A text that is not the name of an image: the user's mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the name of an image; write registry/repository:tag, registry/repository@sha256:… or an image id sha256:…"
)]
pub struct ReferenceError(String);

/// A parsed image name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ImageName {
    /// The digest of the image's config. Such an image must be present: it cannot be pulled.
    Id(ImageId),
    /// A repository in a registry, with a tag or digest.
    Registry(ImageReference),
}

/// A repository in a registry, with a tag or digest. Its text form is the one of the engine's API.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageReference {
    /// Host of the registry, with its port if it has one; `docker.io` if the user wrote none.
    pub registry: String,
    /// Path in the registry, for example `library/alpine`.
    pub repository: String,
    /// Tag or digest in the repository.
    pub pin: Pin,
}

/// Selects one image of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pin {
    /// The image that a tag points to now.
    Tag(String),
    /// The image whose manifest has this digest.
    Digest(Digest),
}

// === impl ImageName ===

impl FromStr for ImageName {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        match text.parse() {
            Ok(id) => Ok(Self::Id(id)),
            Err(_) => text.parse().map(Self::Registry),
        }
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Registry(reference) => reference.fmt(f),
        }
    }
}

// === impl ImageReference ===

impl ImageReference {
    /// Registry and repository without tag or digest; the engine lists digests under it.
    pub fn repository_name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// The same repository with another tag or digest.
    pub fn with_pin(&self, pin: Pin) -> Self {
        Self { pin, ..self.clone() }
    }
}

impl FromStr for ImageReference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let refused = || ReferenceError(text.chars().take(200).collect());
        if text.len() > 512 {
            return Err(refused());
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest.parse().map_err(|_| refused())?)),
            None => (text, None),
        };
        let (registry, path) = match name.split_once('/') {
            Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path),
            Some(_) | None => (DEFAULT_REGISTRY, name),
        };
        let (repository, tag) = match path.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (path, None),
        };
        let fine = is_host(registry) && repository.split('/').all(is_component) && tag.is_none_or(is_tag);
        if !fine {
            return Err(refused());
        }
        let registry = match registry {
            "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY,
            other => other,
        };
        let repository = if registry == DEFAULT_REGISTRY && !repository.contains('/') {
            format!("library/{repository}")
        } else {
            repository.to_owned()
        };
        // The bound holds for the name as it is written again, with the default folder.
        if repository.len() > 255 {
            return Err(refused());
        }
        // If both are present the digest decides, as in every other client.
        let pin = digest.map_or_else(|| Pin::Tag(tag.unwrap_or("latest").to_owned()), Pin::Digest);
        Ok(Self {
            registry: registry.to_owned(),
            repository,
            pin,
        })
    }
}

impl fmt::Display for Pin {
    /// As the distribution protocol writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => f.write_str(tag),
            Self::Digest(digest) => digest.fmt(f),
        }
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pin {
            Pin::Tag(tag) => write!(f, "{}/{}:{tag}", self.registry, self.repository),
            Pin::Digest(digest) => write!(f, "{}/{}@{digest}", self.registry, self.repository),
        }
    }
}

fn is_host(text: &str) -> bool {
    let (host, port) = text.split_once(':').unwrap_or((text, "443"));
    let ordinary = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    port.parse::<u16>().is_ok()
        && host.len() <= 253
        && host
            .split('.')
            .all(|label| !label.is_empty() && label.bytes().all(ordinary))
}

/// Whether a text is lower-case letters and digits in groups, between which there is a dot, one or two underscores, or
/// hyphens: the grammar of the distribution protocol.
fn is_component(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator = |gap: &str| matches!(gap, "." | "_" | "__") || gap.bytes().all(|byte| byte == b'-');
    text.starts_with(is_inner) && text.ends_with(is_inner) && text.split(is_inner).all(is_separator)
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&text.len())
        && text.bytes().all(|byte| word(byte) || b".-".contains(&byte))
        && text.bytes().next().is_some_and(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_at_the_bound_is_written_as_a_name_within_it() {
        let longest = "a".repeat(255 - "library/".len());
        let name: ImageReference = longest.parse().unwrap();
        assert_eq!(name.to_string().parse().as_ref(), Ok(&name));
        assert!(format!("{longest}a").parse::<ImageReference>().is_err());
    }

    #[test]
    fn names_are_completed_as_every_client_completes_them() {
        let digest = Digest::of(b"manifest");
        let pinned = format!("host:5000/a/b:1@{digest}");
        for (text, whole) in [
            ("alpine", "docker.io/library/alpine:latest".to_owned()),
            ("a/b:1", "docker.io/a/b:1".to_owned()),
            (
                "index.docker.io/alpine",
                "docker.io/library/alpine:latest".to_owned(),
            ),
            ("ghcr.io/a/b", "ghcr.io/a/b:latest".to_owned()),
            ("localhost/b", "localhost/b:latest".to_owned()),
            ("a__b/c---d/e.f", "docker.io/a__b/c---d/e.f:latest".to_owned()),
            ("127.0.0.1:5000/x_y-z:V.1", "127.0.0.1:5000/x_y-z:V.1".to_owned()),
            (&pinned, format!("host:5000/a/b@{digest}")),
        ] {
            let name: ImageName = text.parse().unwrap();
            assert_eq!(name.to_string(), whole, "{text}");
            assert_eq!(whole.parse::<ImageName>().unwrap(), name, "{text}");
        }
        let id = ImageId(digest);
        assert_eq!(id.to_string().parse::<ImageName>().unwrap(), ImageName::Id(id));
    }

    #[test]
    fn text_that_is_no_image_name_is_refused() {
        let (long, tag) = ("a".repeat(513), format!("a:{}", "t".repeat(129)));
        for bad in [
            "",
            "A",
            "a b",
            "a?x=1",
            "../b",
            "a/../b",
            "a//b",
            "/a",
            "a/",
            "a%2e",
            "ä",
            "a\n",
            ":1",
            "a:",
            "a:-1",
            "a@sha256:00",
            "a@md5:00",
            "host:99999/a",
            "-/a:5:6",
            "H3/Upper",
            "a..b",
            "a._b",
            "a___b",
            "a/-b",
            "a b:1",
            "a:1:2",
            "a@b",
            "https://ghcr.io/a/b:1",
            "docker pull alpine",
            ".x.io/a",
            "http://x/a",
            &long,
            &tag,
        ] {
            assert!(bad.parse::<ImageName>().is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_name_that_reads_back_or_is_refused(text in "[a-zA-Z0-9:/@._?%-]{0,80}|.{0,40}") {
            if let Ok(name) = text.parse::<ImageName>() {
                let whole = name.to_string();
                proptest::prop_assert!(whole.len() <= 512 && !whole.contains(".."), "{}", whole);
                proptest::prop_assert_eq!(whole.parse::<ImageName>().unwrap(), name);
            }
        }
    }
}
