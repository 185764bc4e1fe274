//! Fetches one file whose content is known beforehand, under the address rules of inputs.

use std::fs::OpenOptions;
use std::path::Path;

use muster_protocol::Digest;
use reqwest::Client;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::download::{ExpectedContent, FetchOutcome, FetchRequest, fetch};
use crate::error::HttpError;
use crate::pinned_request::PinnedClient;
use crate::volumes::Fetcher;

/// A file that a job promises to find at a URL.
#[derive(Clone, Copy, Debug)]
pub struct KnownFile<'a> {
    /// The URL of the file.
    pub url: &'a str,
    /// The SHA-256 of its content.
    pub sha256: Digest,
    /// Its length in bytes.
    pub length: u64,
}

impl Fetcher {
    /// A client that reaches only the permitted addresses of a URL, and the URL as it was read. It follows no redirect.
    ///
    /// # Errors
    /// The address is refused, or its name cannot be resolved.
    pub async fn open_client(&self, url: &str) -> Result<(Client, Url), HttpError> {
        let http = PinnedClient::new(self.rules()).with_pace(self.pace());
        let target = http.target(url)?;
        let client = http.client(&target).await?;
        Ok((client, target.url().clone()))
    }

    /// Fetches a file to `path`, which must not exist yet. Ends soon after it is cancelled.
    ///
    /// # Errors
    /// Any [`HttpError`]: the address is refused, the file is longer than `limit` bytes or is not the promised one, or
    /// the transfer failed. Something may be left at `path`.
    pub async fn fetch_known(
        &self,
        file: KnownFile<'_>,
        path: &Path,
        limit: u64,
        called_off: &CancellationToken,
    ) -> Result<(), HttpError> {
        let http = PinnedClient::new(self.rules()).with_pace(self.pace());
        let want = FetchRequest {
            target: http.target(file.url)?,
            authorization: None,
            limit,
            promise: ExpectedContent {
                len: Some(file.length),
                sha256: Some(file.sha256),
                git: None,
            },
            unless: None,
        };
        if file.length > limit {
            return Err(HttpError::TooLarge {
                shown: want.target.shown(),
                limit,
            });
        }
        let mut new = OpenOptions::new();
        let opened = new.read(true).write(true).create_new(true).open(path);
        let disk = opened.map_err(HttpError::Disk)?;
        match fetch(&http, &want, disk, &self.progress(), called_off).await? {
            FetchOutcome::Content { .. } => Ok(()),
            // No entity tag was sent, so the server cannot answer that the file is unchanged.
            FetchOutcome::Unchanged => Err(HttpError::Disk(std::io::Error::other(
                "the server answered that a file that is not here is unchanged",
            ))),
        }
    }
}
