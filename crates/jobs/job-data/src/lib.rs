//! Transfers a job's inputs and outputs: volumes, uploads, and the addresses they may reach.
//!
//! Reading order: [`addresses`] and [`job_url`] (permitted addresses and URLs, pure), [`checked_request`] (one request
//! to a pinned address), `fetch` (a download with its retries), [`unpack`] (safe archives), [`volumes`] (inputs),
//! [`input_cache`] (cached inputs), [`known_file`] (one file with a known digest), `huggingface` (snapshots of
//! repositories), [`uploads`] (outputs).

pub mod addresses;
pub mod checked_request;
mod download;
mod download_file;
pub mod error;
mod glob;
mod huggingface;
mod huggingface_json;
pub mod input_cache;
pub mod job_url;
pub mod known_file;
mod multipart_form;
#[cfg(test)]
mod mutation;
mod output_folder;
mod response_headers;
mod retry;
mod safe_names;
pub mod settings;
pub mod unpack;
mod upload_one;
pub mod upload_results;
pub mod uploads;
pub mod volumes;
mod zip_output;

pub use download::TransferProgress;
pub use error::{HttpError, UploadError, VolumeError};
pub use retry::Pace;
pub use settings::Settings;
pub use uploads::{Uploaded, Uploader};
pub use volumes::Fetcher;
