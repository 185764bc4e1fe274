//! The steps of an attempt, one a file. Each step ends soon after it is called off.

mod checkpoint_blocks;
mod collect_outputs;
mod failures;
mod fetch_image;
mod job;
mod keep_checkpoints;
mod place_inputs;
mod prepare_image;
mod restore_checkpoint;
mod send_output;
mod upload_outputs;

pub(crate) use self::collect_outputs::{CollectedOutputs, collect_outputs, read_specs};
pub(crate) use self::failures::reserve_lacking;
pub(crate) use self::fetch_image::fetch_image;
pub(crate) use self::job::{PlacedJob, PreparedImage, RequestedJob};
pub(crate) use self::keep_checkpoints::keep_checkpoints;
pub(crate) use self::place_inputs::place_inputs;
pub(crate) use self::prepare_image::{SoughtImage, prepare_image};
pub(crate) use self::send_output::{OutputHandle, send_output};
pub(crate) use self::upload_outputs::{find_left_outputs, upload_all, upload_outputs};
