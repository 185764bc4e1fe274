//! Transfers a job's inputs and outputs: volumes, uploads, and the addresses they may reach.
//!
//! Reading order: [`addresses`] and [`target`] (permitted addresses and URLs, pure), [`http`] (one request to a pinned
//! address), `fetch` (a download with its retries), [`unpack`] (safe archives), [`volumes`] (inputs), [`cache`]
//! (cached inputs), `huggingface` (snapshots of repositories), [`uploads`] (outputs).

pub mod addresses;
pub mod cache;
pub mod error;
mod fetch;
mod folder;
mod form;
mod glob;
mod headers;
pub mod http;
mod huggingface;
mod huggingface_json;
#[cfg(test)]
mod mutation;
mod names;
pub mod results;
mod retry;
mod send;
pub mod settings;
mod sink;
pub mod target;
pub mod unpack;
pub mod uploads;
pub mod volumes;
mod zip_output;

pub use error::{HttpError, UploadError, VolumeError};
pub use fetch::TransferProgress;
pub use retry::Pace;
pub use settings::Settings;
pub use uploads::{Uploaded, Uploader};
pub use volumes::Fetcher;
