//! Containers on a Docker engine: images by content, the sandbox, and the removal of abandoned containers.
//!
//! Reading order: [`docker_engine`] (the API), [`image_archive`] and [`images`] (the programs of jobs), [`sandbox`] (a
//! job's permissions, a pure function), [`engine_answer`] (whose fault it is that no container started),
//! [`image_folders`], [`laid_files`] and [`disk`] (the places a job may write to), [`owned_folders`] and [`leftovers`]
//! (the owners of folders, and the removal of folders whose owner is dead).

pub mod archive_forms;
pub mod credentials;
pub mod disk;
pub mod docker_engine;
pub mod engine_answer;
mod engine_disk;
mod engine_error;
mod folder_removal;
pub mod gpu;
pub mod host_files;
mod image_access;
pub mod image_archive;
pub mod image_cache;
pub mod image_error;
pub mod image_flaw;
pub mod image_folders;
pub mod image_leases;
pub mod image_pull;
pub mod image_settings;
mod image_user;
pub mod images;
pub mod laid_files;
pub mod leftovers;
pub mod owned_folders;
mod podman_body;
pub mod private_pull;
pub mod pull_error;
mod registry_check;
mod retryable_errors;
pub mod sandbox;
pub mod sized_disk;
pub mod user_archive;

pub use docker_engine::{ContainerEngine, EngineError, LocalImage};
pub use image_archive::{ArchiveError, ImageArchive, ImageContent, ImageFile};
pub use image_user::OwnerIds;
pub use leftovers::reap;
