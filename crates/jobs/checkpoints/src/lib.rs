//! Decisions about a job's checkpoints, without IO.
//!
//! A checkpoint is a direct child of the job's checkpoint folder: a file, or a folder with everything in it. Reading
//! order: [`file_tree`] (what a child looks like at one moment), [`candidates`] (when a child is whole), [`manifest`]
//! (the bytes that name a whole checkpoint), [`retention`] (which ones are kept), [`resume`] (what follows the end of
//! an attempt, and where the next one begins), [`attempt_url`](mod@attempt_url) (where one attempt reads and writes blocks).

pub mod attempt_url;
pub mod candidates;
pub mod file_tree;
pub mod manifest;
pub mod plain_path;
pub mod resume;
pub mod retention;

pub use attempt_url::{attempt_url, is_attempt_signature};
pub use candidates::{CandidateWatch, ObservedChild};
pub use file_tree::{FileTree, TreeEntry, TreeFlaw, TreeLimits};
pub use manifest::{BLOCK_BYTES, CheckpointManifest, ManifestEntry, ManifestError};
pub use plain_path::{PathFlaw, PlainPath};
pub use resume::{AttemptFacts, AttemptFate, ResumeDecision, StopReason, decide_resume};
pub use retention::{CheckpointFacts, find_superfluous};
