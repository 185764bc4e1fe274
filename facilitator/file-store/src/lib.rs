//! Files of users: the inputs and outputs of jobs, so that nobody needs a cloud account to run one.
//!
//! A file's bytes lie as segments in an object store (a folder or a bucket); its metadata is in the facilitator's
//! database. A signed URL permits its holder to read or write one file until the URL expires. It needs no other
//! credential, because executors fetch inputs and upload outputs.
//!
//! Reading order: [`signed_urls`] (the permission of a URL), [`muster_http::range`] (the parts that a request names)
//! and [`upload_plan`] (the decision about a request to write) are pure; [`object_storage`] keeps bytes and
//! [`catalogue`] metadata; [`file_service`] joins them; [`file_routes`] answers the requests to signed URLs.
//! [`checkpoint_blocks`] keeps the blocks of jobs' checkpoints beside them, behind URLs that end with their jobs.

mod bucket_client;
pub mod catalogue;
pub mod checkpoint_blocks;
pub mod error;
pub mod file_routes;
pub mod file_service;
pub mod object_storage;
pub mod settings;
pub mod signed_urls;
pub mod upload_plan;
mod upload_segments;

pub use catalogue::{FileCatalogue, StoredFile};
pub use error::FileError;
pub use file_service::{FileService, NewFile};
pub use object_storage::{ObjectStorage, StorageError};
pub use settings::Settings;
pub use signed_urls::{FileAccess, FileId, UrlGrant, UrlKey};
