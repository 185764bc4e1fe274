//! The blocks of jobs' checkpoints in a facilitator's file store.
//!
//! Each job has blocks of its own, named by their SHA-256. An executor writes and reads them below a signed URL that
//! ends with its attempt of the job; the job's user reads them below another one. The validator reports which
//! checkpoints are kept, and a sweep drops the blocks that none of them names.
//!
//! Reading order: [`block_grant`] (the permission of a URL, pure), [`catalogue`] (the tables), [`service`] (both with
//! the objects), `upload_permits` (how many blocks are received at a time, and how slowly), [`block_routes`]
//! (the requests).

pub mod block_grant;
pub mod block_routes;
pub mod catalogue;
pub mod service;
mod upload_permits;

pub use block_grant::{BlockAccess, BlockGrant, BlockQuery};
pub use service::{BlockStoreError, CheckpointService};
