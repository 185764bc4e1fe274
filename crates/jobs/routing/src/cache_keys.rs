//! Keys of images and inputs that a miner may have at hand from an earlier job. Two jobs with the same key need the
//! same thing.

use std::collections::BTreeSet;

use muster_protocol::Digest;
use muster_protocol::volume::{Volume, VolumePart};
use serde::{Deserialize, Serialize};

/// Inputs of one job that are considered: a job of a thousand files would otherwise fill the ledger.
const MAX_INPUTS: usize = 16;

/// The key of an image or an input: the digest of its name, not of its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CacheKey(Digest);

impl CacheKey {
    /// The key of the image with this name.
    pub fn image(name: &str) -> Self {
        Self::of("image", &[name])
    }

    /// The keys of the inputs that are fetched from elsewhere. Inputs inside the job's message have no key.
    pub fn inputs(volume: Option<&Volume>) -> BTreeSet<Self> {
        let of_hub = |repo: &str, kind: Option<&str>, revision: Option<&str>| {
            Self::of(
                "hub",
                &[repo, kind.unwrap_or_default(), revision.unwrap_or_default()],
            )
        };
        match volume {
            None | Some(Volume::Inline(_)) => BTreeSet::new(),
            Some(Volume::ZipUrl(zip)) => [Self::of("url", &[&zip.contents])].into(),
            Some(Volume::SingleFile(file)) => [Self::of("url", &[&file.url])].into(),
            Some(Volume::HuggingfaceVolume(hub)) => [of_hub(
                &hub.repo_id,
                hub.repo_type.as_deref(),
                hub.revision.as_deref(),
            )]
            .into(),
            Some(Volume::MultiVolume(many)) => {
                let part = |part: &VolumePart| match part {
                    VolumePart::Inline(_) => None,
                    VolumePart::ZipUrl(zip) => Some(Self::of("url", &[&zip.contents])),
                    VolumePart::SingleFile(file) => Some(Self::of("url", &[&file.url])),
                    VolumePart::HuggingfaceVolume(hub) => Some(of_hub(
                        &hub.repo_id,
                        hub.repo_type.as_deref(),
                        hub.revision.as_deref(),
                    )),
                };
                many.volumes.iter().filter_map(part).take(MAX_INPUTS).collect()
            }
        }
    }

    /// Each part follows its length, so that two different lists of parts never give the same bytes.
    fn of(kind: &str, parts: &[&str]) -> Self {
        let mut bytes = Vec::new();
        for part in std::iter::once(&kind).chain(parts) {
            bytes.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        Self(Digest::of(&bytes))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn inputs(value: serde_json::Value) -> BTreeSet<CacheKey> {
        CacheKey::inputs(Some(&serde_json::from_value(value).unwrap()))
    }

    #[test]
    fn the_same_source_is_the_same_thing_wherever_it_is_put() {
        let one = inputs(json!({"volume_type": "single_file", "url": "http://a/b", "relative_path": "x"}));
        let two = inputs(json!({"volume_type": "multi_volume", "volumes": [
            {"volume_type": "single_file", "url": "http://a/b", "relative_path": "y"},
            {"volume_type": "inline", "contents": "", "relative_path": null},
        ]}));
        assert_eq!(one, two);
        assert_eq!(one.len(), 1);
        let hub = |revision: &str| {
            inputs(json!({"volume_type": "huggingface_volume", "repo_id": "a/b", "revision": revision}))
        };
        assert_ne!(hub("1"), hub("2"));
        assert_eq!(
            inputs(json!({"volume_type": "inline", "contents": "UEs="})),
            BTreeSet::new()
        );
        assert_ne!(CacheKey::image("a"), CacheKey::of("url", &["a"]));
        assert_ne!(CacheKey::of("hub", &["ab", ""]), CacheKey::of("hub", &["a", "b"]));
    }

    #[test]
    fn a_job_of_a_thousand_inputs_is_remembered_by_a_few() {
        let volumes: Vec<_> = (0..1_000)
            .map(|n| json!({"volume_type": "single_file", "url": format!("http://a/{n}"), "relative_path": "x"}))
            .collect();
        assert_eq!(
            inputs(json!({"volume_type": "multi_volume", "volumes": volumes})).len(),
            MAX_INPUTS
        );
    }
}
