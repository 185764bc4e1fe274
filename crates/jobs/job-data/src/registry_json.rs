//! Parses the answers of registries: challenges, tokens and manifests. Pure; everything here is untrusted.

use muster_protocol::Digest;
use serde::Deserialize;

/// Upper bound on the layers of an image that are added up.
const MAX_LAYERS: usize = 1_024;
/// Upper bound on the images that an index lists.
const MAX_PLATFORMS: usize = 256;

/// The media types of manifests that are asked for.
pub(crate) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// The login that a registry wants, from its header `WWW-Authenticate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// The user's name and password with each request.
    Basic,
    /// A token of another server.
    Bearer {
        /// The URL of the server that gives tokens.
        realm: String,
        /// The name of the registry there; empty if it has none.
        service: String,
    },
}

/// A manifest: of one image, or an index of images by platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RegistryManifest {
    Image(ImageManifest),
    /// The digests of the images for this machine's platform.
    Index(Vec<Digest>),
    /// Something else that a registry keeps, for example a chart or a signature.
    NoImage,
}

/// The manifest of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageManifest {
    /// The digest of its configuration, which is the image's id.
    pub(crate) config: Digest,
    /// The digest of the largest layer; `None` for an image without layers.
    pub(crate) largest: Option<Digest>,
    /// The bytes of the configuration and all layers, as they are transferred.
    pub(crate) bytes: u64,
    /// Whether a layer is compressed by zstd, which not every engine reads.
    pub(crate) zstd: bool,
}

#[derive(Deserialize)]
struct Document {
    manifests: Option<Vec<Listed>>,
    config: Option<Blob>,
    layers: Option<Vec<Blob>>,
}

#[derive(Deserialize)]
struct Listed {
    digest: Digest,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

#[derive(Deserialize)]
struct Blob {
    #[serde(default, rename = "mediaType")]
    media_type: String,
    digest: Digest,
    size: u64,
}

/// The media types of an image's configuration that engines take: those of schema 2 and OCI, and what old registries
/// wrote.
const IMAGE_CONFIGS: [&str; 6] = [
    "",
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
    "application/octet-stream",
    "application/json",
    "text/html",
];

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

/// The architecture of this machine by the name that registries use.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

impl Challenge {
    /// Reads one value of the header; `None` for a scheme that is neither Basic nor Bearer, and for a Bearer without a
    /// realm.
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let (scheme, parameters) = value.trim().split_once(' ').unwrap_or((value.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let realm = parameter(parameters, "realm").filter(|realm| !realm.is_empty())?;
        let service = parameter(parameters, "service").unwrap_or_default();
        Some(Self::Bearer {
            realm: realm.to_owned(),
            service: service.to_owned(),
        })
    }
}

/// The value of `name="value"` in a comma-separated list. Quoted values may hold commas.
fn parameter<'a>(list: &'a str, wanted: &str) -> Option<&'a str> {
    let mut rest = list;
    loop {
        let (name, after) = rest.split_once('=')?;
        let name = name.trim_matches([' ', ',']);
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = next;
    }
}

impl RegistryManifest {
    /// Reads a manifest of schema 2 or OCI; `None` for anything else.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let document: Document = serde_json::from_slice(bytes).ok()?;
        if let Some(listed) = document.manifests {
            if listed.len() > MAX_PLATFORMS {
                return None;
            }
            let fits = |listed: &Listed| match &listed.platform {
                Some(platform) => platform.os == "linux" && platform.architecture == architecture(),
                None => true,
            };
            let digests = listed.into_iter().filter(fits).map(|listed| listed.digest);
            return Some(Self::Index(digests.collect()));
        }
        let (config, layers) = (document.config?, document.layers?);
        if layers.len() > MAX_LAYERS {
            return None;
        }
        if !IMAGE_CONFIGS.contains(&config.media_type.as_str()) {
            return Some(Self::NoImage);
        }
        let bytes = layers
            .iter()
            .fold(config.size, |sum, layer| sum.saturating_add(layer.size));
        let largest = layers
            .iter()
            .max_by_key(|layer| layer.size)
            .map(|layer| layer.digest);
        Some(Self::Image(ImageManifest {
            config: config.digest,
            largest,
            bytes,
            zstd: layers.iter().any(|layer| layer.media_type.ends_with("+zstd")),
        }))
    }
}

/// The token in the answer of a realm.
pub(crate) fn token(bytes: &[u8]) -> Option<String> {
    let answer: TokenAnswer = serde_json::from_slice(bytes).ok()?;
    let token = answer.token.or(answer.access_token)?;
    let fine = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    fine.then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::Mutator;

    const HUB: &str = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#;

    #[test]
    fn challenges_of_known_registries_are_read() {
        let bearer = |realm: &str, service: &str| {
            Some(Challenge::Bearer {
                realm: realm.to_owned(),
                service: service.to_owned(),
            })
        };
        assert_eq!(
            Challenge::parse(HUB),
            bearer("https://auth.docker.io/token", "registry.docker.io")
        );
        assert_eq!(
            Challenge::parse("bearer scope=\"a,b\", realm=http://10.0.0.1/t"),
            bearer("http://10.0.0.1/t", "")
        );
        assert_eq!(Challenge::parse("Basic realm=\"x\""), Some(Challenge::Basic));
        for none in [
            "",
            "Bearer",
            "Bearer realm=\"\"",
            "Bearer service=\"x\"",
            "Digest realm=\"x\"",
        ] {
            assert_eq!(Challenge::parse(none), None, "{none}");
        }
    }

    #[test]
    fn a_chart_is_no_image_and_zstd_layers_are_seen() {
        let digest = Digest::of(b"a");
        let manifest = |config: &str, layer: &str| {
            let text = format!(
                r#"{{"config":{{"mediaType":"{config}","digest":"{digest}","size":1}},
                "layers":[{{"mediaType":"{layer}","digest":"{digest}","size":1}}]}}"#
            );
            RegistryManifest::parse(text.as_bytes())
        };
        let oci = "application/vnd.oci.image.config.v1+json";
        let chart = "application/vnd.cncf.helm.config.v1+json";
        assert_eq!(manifest(chart, "x"), Some(RegistryManifest::NoImage));
        for (layer, zstd) in [
            ("application/vnd.oci.image.layer.v1.tar+zstd", true),
            ("application/vnd.oci.image.layer.v1.tar+gzip", false),
        ] {
            let Some(RegistryManifest::Image(image)) = manifest(oci, layer) else {
                panic!("{layer}");
            };
            assert_eq!(image.zstd, zstd);
        }
    }

    #[test]
    fn sizes_are_added_and_platforms_are_chosen() {
        let [a, b, c] = ["a", "b", "c"].map(|text| Digest::of(text.as_bytes()));
        let image = format!(
            r#"{{"schemaVersion":2,"config":{{"digest":"{a}","size":10}},
            "layers":[{{"digest":"{b}","size":5}},{{"digest":"{c}","size":18446744073709551615}}]}}"#
        );
        let expected = ImageManifest {
            config: a,
            largest: Some(c),
            bytes: u64::MAX,
            zstd: false,
        };
        assert_eq!(
            RegistryManifest::parse(image.as_bytes()),
            Some(RegistryManifest::Image(expected))
        );
        let ours = architecture();
        let index = format!(
            r#"{{"manifests":[
            {{"digest":"{a}","size":1,"platform":{{"os":"linux","architecture":"{ours}"}}}},
            {{"digest":"{b}","size":1,"platform":{{"os":"windows","architecture":"{ours}"}}}},
            {{"digest":"{c}","size":1,"platform":{{"os":"linux","architecture":"pdp11"}}}}]}}"#
        );
        assert_eq!(
            RegistryManifest::parse(index.as_bytes()),
            Some(RegistryManifest::Index(vec![a]))
        );
        for none in [
            "",
            "{}",
            r#"{"layers":[]}"#,
            r#"{"config":{"digest":"x","size":1},"layers":[]}"#,
        ] {
            assert_eq!(RegistryManifest::parse(none.as_bytes()), None, "{none}");
        }
    }

    #[test]
    fn a_token_is_one_word() {
        assert_eq!(token(br#"{"token":"t"}"#).as_deref(), Some("t"));
        assert_eq!(
            token(br#"{"access_token":"u","expires_in":3}"#).as_deref(),
            Some("u")
        );
        for none in [&b"{}"[..], br#"{"token":""}"#, br#"{"token":"a\nb"}"#, b"7"] {
            assert_eq!(token(none), None);
        }
    }

    #[test]
    fn damaged_answers_are_read_or_refused() {
        let digest = Digest::of(b"x");
        let image = format!(r#"{{"config":{{"digest":"{digest}","size":10}},"layers":[]}}"#);
        let samples = [HUB.as_bytes().to_vec(), image.into_bytes()];
        let mut mutator = Mutator::seeded(17);
        for _ in 0..20_000 {
            let bytes = mutator.next_from(&samples);
            let _ = (RegistryManifest::parse(&bytes), token(&bytes));
            let challenge = Challenge::parse(&String::from_utf8_lossy(&bytes));
            assert!(!matches!(challenge, Some(Challenge::Bearer { realm, .. }) if realm.is_empty()));
        }
    }
}
