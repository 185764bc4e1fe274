//! Containers on a Docker engine: images by content, the sandbox, and the removal of abandoned containers.
//!
//! Reading order: [`engine`] (the API), [`archive`] and [`images`] (the programs of jobs), [`sandbox`] (a job's
//! permissions, a pure function), [`home`] and [`disk`] (the places a job may write to), [`folder`] and
//! [`reap`](mod@reap) (the owners of folders, and the removal of folders whose owner is dead).

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
pub mod pull;
pub mod reap;
pub mod reference;
mod retryable;
pub mod sandbox;

pub use archive::{ArchiveError, ImageArchive, ImageContent, ImageFile};
pub use engine::{ContainerEngine, EngineError, LocalImage};
pub use reap::reap;
