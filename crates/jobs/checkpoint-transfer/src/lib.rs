//! Takes whole checkpoints out of a running job's folder, sends their blocks to a file store, and lays them out again.
//!
//! The folder belongs to a program that nobody trusts, and it changes while it is read. Every look goes through open
//! folders and follows no link; everything read is bounded; nothing in the folder is ever written, locked or removed. A
//! checkpoint that cannot be taken is skipped with a reason, and the job goes on.
//!
//! Reading order: [`folder_scan`] (one look at the folder), [`source`] (its files, held open or copied by [`clone`]),
//! [`blocks`] (their digests, and their way into the file store), [`block_client`] (the file store), [`keeper`] (the
//! loop over them), [`mod@restore`] (the way back).

pub mod block_client;
pub mod blocks;
pub mod clone;
pub mod folder_scan;
pub mod keeper;
pub mod open_files;
pub mod restore;
pub mod source;

pub use block_client::{BlockClient, BlockError, ClientMaker};
pub use keeper::{
    CheckpointKeeper, FollowedPlace, KeeperHandle, KeeperSetup, LastLook, PendingKeeper, ReportedPlace,
};
pub use restore::{RestoreError, RestoreReader, RestoredCheckpoint, restore};
