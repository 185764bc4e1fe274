//! A client of the facilitator's REST API, for programs of one's own and for the `muster` binary: jobs submitted and
//! followed, files uploaded and fetched, keys made and revoked.
//!
//! ```no_run
//! # async fn example(clock: muster_process::SharedClock) -> Result<(), muster_client::ClientError> {
//! use muster_client::{Client, Credential};
//!
//! let credential = Credential::key("msk_…");
//! let client = Client::connect("https://facilitator.example.org", credential, clock).await?;
//! for job in client.jobs(1, 10).await?.results {
//!     println!("{} {}", job.uuid, job.status);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Reading order: [`client`] (requests and identity), [`find_job`] (the job that a person means),
//! [`follow_job`] (a job until it ends) over the response's events,
//! [`files`] (uploads that continue after a break, downloads that are checked), [`output_tree`] (a delivered folder of
//! a job laid out), and beside them what a job printed.

pub mod client;
pub mod error;
mod event_source;
pub mod facilitator_url;
pub mod files;
pub mod find_job;
pub mod follow_job;
mod login;
pub mod output_tree;
mod part_file;
mod printed_output;

pub use client::{Client, Credential};
pub use error::ClientError;
pub use facilitator_url::FacilitatorUrl;
pub use files::{Fetched, Sent, TransferProgress};
pub use follow_job::News;
pub use reqwest::Client as HttpClient;
