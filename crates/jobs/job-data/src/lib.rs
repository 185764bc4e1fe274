//! Transfers a job's inputs and outputs: volumes, uploads, and the addresses they may reach.
//!
//! Reading order: [`job_url`] (permitted URLs, pure), [`pinned_request`] (one request to a pinned address), `download`
//! (with its retries), [`unpack`] (safe archives), [`volumes`] (inputs), [`input_cache`] (cached inputs),
//! [`known_file`] (one file with a known digest), `huggingface` (snapshots of repositories), [`manifest_request`] (an
//! image's manifest), [`uploads`] (outputs, whole folders of them by `tar_output`), [`artifacts`] (small files inside a
//! result), [`output_listing`] (digests of outputs), [`notification`] (a message about a job's end). The permitted
//! addresses are [`muster_http::addresses`].

pub mod artifacts;
mod download;
mod download_file;
pub mod error;
mod found_outputs;
mod glob;
mod huggingface;
mod huggingface_json;
pub mod input_cache;
pub mod job_url;
pub mod known_file;
mod linked_path;
pub mod manifest_request;
mod multipart_form;
#[cfg(test)]
mod mutation;
pub mod notification;
mod output_folder;
pub mod output_listing;
mod output_pattern;
pub mod pinned_request;
mod registry_json;
mod response_headers;
mod retry;
mod safe_names;
pub mod settings;
mod tar_output;
pub mod unpack;
mod upload_one;
mod upload_record;
pub mod upload_reports;
pub mod uploads;
pub mod volumes;
mod zip_directory;
mod zip_output;

pub use download::TransferProgress;
pub use error::{HttpError, UploadError, VolumeError};
pub use found_outputs::FoundOutputs;
pub use notification::{NotificationError, Notifications};
pub use output_pattern::{has_match, matches_path};
pub use retry::Pace;
pub use settings::Settings;
pub use uploads::{Uploaded, Uploader};
pub use volumes::Fetcher;
