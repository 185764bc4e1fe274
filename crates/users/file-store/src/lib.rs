//! Files of users: the inputs and outputs of jobs, so that nobody needs a cloud account to run one.
//!
//! A file's bytes lie as segments in an object store (a folder or a bucket); its metadata is in the facilitator's
//! database. A signed URL permits its holder to read or write one file until the URL expires. It needs no other
//! credential, because executors fetch inputs and upload outputs.
//!
//! Reading order: [`grant`] (the permission of a URL), [`muster_http::range`] (the parts that a request names) and
//! [`upload_plan`] (the decision about a request to write) are pure; [`storage`] keeps bytes and [`catalogue`]
//! metadata; [`service`] joins them; [`http`] answers the requests to signed URLs.

mod bucket;
pub mod catalogue;
pub mod error;
pub mod grant;
pub mod http;
pub mod service;
pub mod settings;
pub mod storage;
pub mod upload_plan;
mod upload_segments;

pub use catalogue::{FileCatalogue, StoredFile};
pub use error::FileError;
pub use grant::{FileAccess, FileId, UrlGrant, UrlKey};
pub use service::{FileService, NewFile};
pub use settings::Settings;
pub use storage::{ObjectStorage, StorageError};
