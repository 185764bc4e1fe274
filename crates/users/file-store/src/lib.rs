//! Files of users: inputs and outputs of jobs, so that nobody needs a cloud account to run one.
//!
//! A file's bytes lie as segments in an object store (a folder or a bucket), its metadata in the facilitator's database.
//! Whoever holds a signed URL may read or write one file until the URL's time is over; no other credential is asked for,
//! since it is executors that fetch inputs and upload outputs.
//!
//! Reading order: [`grant`] (what a URL permits), [`range`] (what requests ask for) and [`upload`] (what becomes of a
//! request to write) are pure; [`shelf`] keeps bytes, [`store`] metadata; [`service`] joins them; [`http`] is what a
//! holder of a URL talks to.

mod bucket;
pub mod error;
pub mod grant;
pub mod http;
pub mod range;
pub mod service;
pub mod settings;
pub mod shelf;
pub mod store;
pub mod upload;

pub use error::FileError;
pub use grant::{Deed, FileId, Grant, UrlKey};
pub use service::{Allowance, FileService, NewFile};
pub use settings::Settings;
pub use shelf::Shelf;
pub use store::{Catalogue, StoredFile};
