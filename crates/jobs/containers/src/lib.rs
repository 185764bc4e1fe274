//! Containers on a Docker engine: images by content, the sandbox, and what is left behind.
//!
//! Reading order: [`engine`] (the API, each call naming what it did), [`archive`] and [`images`] (what a job runs),
//! [`sandbox`] (what it may do, pure), [`home`] and [`disk`] (what it may write), [`folder`] and [`reap`](mod@reap) (whose
//! it is, and what goes when nobody's).

pub mod archive;
pub mod cache;
pub mod credentials;
pub mod disk;
pub mod engine;
pub mod folder;
pub mod gpu;
pub mod home;
pub mod images;
pub mod lease;
mod passing;
pub mod pull;
pub mod reap;
pub mod reference;
pub mod sandbox;

pub use archive::{ArchiveError, ImageArchive, ImageContent, ImageFile};
pub use engine::{Engine, EngineError, LocalImage};
pub use reap::reap;
