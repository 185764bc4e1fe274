//! Where a job's inputs come from (field `volume_type`).

use serde::{Deserialize, Serialize};

/// One input or several. Paths are relative to `/volume` in the job's container; checking them is the executor's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "volume_type", rename_all = "snake_case")]
pub enum Volume {
    /// A zip archive inside the message itself.
    Inline(InlineVolume),
    /// A zip archive to fetch and unpack.
    ZipUrl(ZipUrlVolume),
    /// One file to fetch.
    SingleFile(SingleFileVolume),
    /// A snapshot of a Hugging Face repository.
    HuggingfaceVolume(HuggingfaceVolume),
    /// Several of the others; never nested in itself.
    MultiVolume(MultiVolume),
}

/// `inline`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InlineVolume {
    /// Base64 of a zip archive.
    pub contents: String,
    /// Folder under `/volume`; the volume's root if absent.
    #[serde(default)]
    pub relative_path: Option<String>,
}

/// `zip_url`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ZipUrlVolume {
    /// The URL of a zip archive (the wire's name for it is `contents`).
    pub contents: String,
    /// Folder under `/volume`; the volume's root if absent.
    #[serde(default)]
    pub relative_path: Option<String>,
}

/// `single_file`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SingleFileVolume {
    /// Where to fetch it.
    pub url: String,
    /// File under `/volume`.
    pub relative_path: String,
}

/// `huggingface_volume`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HuggingfaceVolume {
    /// `owner/name`.
    pub repo_id: String,
    /// `model`, `dataset` or `space`; the hub's default if absent.
    #[serde(default)]
    pub repo_type: Option<String>,
    /// Branch, tag or commit; the hub's default if absent.
    #[serde(default)]
    pub revision: Option<String>,
    /// Folder under `/volume`; the volume's root if absent.
    #[serde(default)]
    pub relative_path: Option<String>,
    /// Which files to take; all if absent.
    #[serde(default)]
    pub allow_patterns: Option<Patterns>,
    /// The hub's access token.
    #[serde(default)]
    pub token: Option<String>,
}

/// One glob or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum Patterns {
    /// A single glob.
    One(String),
    /// Any of these globs.
    Many(Vec<String>),
}

/// `multi_volume`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MultiVolume {
    /// Its parts.
    pub volumes: Vec<VolumePart>,
}

/// A volume that may stand inside a [`MultiVolume`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "volume_type", rename_all = "snake_case")]
pub enum VolumePart {
    /// See [`Volume::Inline`].
    Inline(InlineVolume),
    /// See [`Volume::ZipUrl`].
    ZipUrl(ZipUrlVolume),
    /// See [`Volume::SingleFile`].
    SingleFile(SingleFileVolume),
    /// See [`Volume::HuggingfaceVolume`].
    HuggingfaceVolume(HuggingfaceVolume),
}

impl Volume {
    /// The simple volumes it consists of.
    pub fn into_parts(self) -> Vec<VolumePart> {
        match self {
            Self::Inline(v) => vec![VolumePart::Inline(v)],
            Self::ZipUrl(v) => vec![VolumePart::ZipUrl(v)],
            Self::SingleFile(v) => vec![VolumePart::SingleFile(v)],
            Self::HuggingfaceVolume(v) => vec![VolumePart::HuggingfaceVolume(v)],
            Self::MultiVolume(v) => v.volumes,
        }
    }
}
