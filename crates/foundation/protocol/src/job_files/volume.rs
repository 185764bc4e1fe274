//! Sources of a job's inputs (field `volume_type`).

use serde::{Deserialize, Serialize};

/// One input or several. Paths are relative to `/volume` in the job's container; the executor checks them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "volume_type", rename_all = "snake_case")]
pub enum Volume {
    /// A zip archive inside the message itself.
    Inline(InlineVolume),
    /// A zip archive to fetch and unpack.
    ZipUrl(ZipUrlVolume),
    /// One file to fetch.
    SingleFile(SingleFileVolume),
    /// `huggingface_volume`: a snapshot of a Hugging Face repository.
    HuggingfaceVolume(HuggingfaceVolume),
    /// `multi_volume`: several inputs.
    MultiVolume(MultiVolume),
}

/// `inline`: a zip archive inside the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InlineVolume {
    /// The zip archive, base64.
    pub contents: String,
    /// The folder under `/volume` to unpack into; `/volume` itself if absent.
    #[serde(default)]
    pub relative_path: Option<String>,
}

/// `zip_url`: a zip archive to fetch and unpack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ZipUrlVolume {
    /// The URL of the zip archive (the wire's name for it is `contents`).
    pub contents: String,
    /// The folder under `/volume` to unpack into; `/volume` itself if absent.
    #[serde(default)]
    pub relative_path: Option<String>,
}

/// `single_file`: one file to fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SingleFileVolume {
    /// The URL to fetch the file from.
    pub url: String,
    /// The path of the file under `/volume`.
    pub relative_path: String,
}

/// `huggingface_volume`: a snapshot of a Hugging Face repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HuggingfaceVolume {
    /// The repository, as `owner/name`.
    pub repo_id: String,
    /// `model`, `dataset` or `space`; the hub's default if absent.
    #[serde(default)]
    pub repo_type: Option<String>,
    /// Branch, tag or commit; the hub's default if absent.
    #[serde(default)]
    pub revision: Option<String>,
    /// The folder under `/volume` to put the files into; `/volume` itself if absent.
    #[serde(default)]
    pub relative_path: Option<String>,
    /// Globs of the files to take; all files if absent.
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

/// `multi_volume`: several inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MultiVolume {
    /// The inputs; none of them is a multi-volume itself.
    pub volumes: Vec<VolumePart>,
}

/// An input that may be part of a [`MultiVolume`].
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
    /// `huggingface_volume`: a snapshot of a Hugging Face repository.
    HuggingfaceVolume(HuggingfaceVolume),
}

impl Volume {
    /// The simple volumes that it contains.
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
