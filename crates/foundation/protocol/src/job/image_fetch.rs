//! The reasons for which a job's image does not come, as the parties name them in a failure's context.

use serde::Deserialize as _;
use serde_json::Value;

use crate::job::Fault;
use crate::receipt::Receipt;

/// The key in a failure's `context` that holds an [`ImageFetchFailure`].
pub const IMAGE_FETCH_KEY: &str = "image_fetch";

/// The key beside [`ImageFetchFailure::NoSlot`] that holds the receipts of the leases in the miner's slots, as a
/// refusal holds those of work under way.
pub const SLOT_LEASES_KEY: &str = "slot_leases";

/// Leases of which a miner shows the receipts, at most; each has two.
pub const MAX_SLOT_LEASES: usize = 16;

/// Takes the receipts of the leases in a miner's slots out of a failure's context: they are for the validator and not
/// for the user. Values that are no receipts are left out, and so are those beyond [`MAX_SLOT_LEASES`].
pub fn take_slot_leases(context: &mut Option<Value>) -> Vec<Receipt> {
    let taken = context
        .as_mut()
        .and_then(Value::as_object_mut)
        .and_then(|context| context.remove(SLOT_LEASES_KEY));
    let Some(Value::Array(shown)) = taken else {
        return Vec::new();
    };
    let shown = shown.into_iter().take(MAX_SLOT_LEASES.saturating_mul(2));
    shown
        .filter_map(|receipt| Receipt::deserialize(receipt).ok())
        .collect()
}

crate::macros::open_enum!(
    /// The reason for which a job's image did not come.
    ImageFetchFailure {
        /// The registry has no image of that name.
        NoSuchImage = "no_such_image",
        /// The registry does not give the image to those who show the job's credentials, or none.
        NoRight = "no_right",
        /// The image is larger than an executor takes.
        TooLarge = "too_large",
        /// The image is for another kind of processor or operating system.
        WrongPlatform = "wrong_platform",
        /// The bytes stopped coming.
        Stalled = "stalled",
        /// The time limit of the image is over.
        TimedOut = "timed_out",
        /// The registry does not answer, or answers with failures of its own.
        Unreachable = "unreachable",
        /// The image came, and no executor of the miner became free within the time limit of the image.
        NoExecutor = "no_executor",
        /// The miner had no slot for the fetch within the time limit of the image: other fetches held them.
        NoSlot = "no_slot",
        /// The image came to none of two miners of different owners. Only the validator finds that, about a job.
        CameToNobody = "came_to_nobody",
    }
);

impl ImageFetchFailure {
    /// The party at fault. Nobody is at fault for a slow registry, because neither side can show who slows it down. If
    /// two owners find the image slow, it is the user's registry.
    pub fn fault(self) -> Fault {
        match self {
            Self::NoSuchImage | Self::NoRight | Self::TooLarge | Self::WrongPlatform | Self::CameToNobody => {
                Fault::User
            }
            Self::Stalled
            | Self::TimedOut
            | Self::Unreachable
            | Self::NoExecutor
            | Self::NoSlot
            | Self::Unknown => Fault::Nobody,
        }
    }

    /// Whether the failure shows nothing about the image: it came all the same, or nobody asked for it. Neither its
    /// registry nor the line to it is slow by such a failure.
    pub fn is_about_the_miner(self) -> bool {
        match self {
            Self::NoExecutor | Self::NoSlot => true,
            Self::NoSuchImage
            | Self::NoRight
            | Self::TooLarge
            | Self::WrongPlatform
            | Self::Stalled
            | Self::TimedOut
            | Self::Unreachable
            | Self::CameToNobody
            | Self::Unknown => false,
        }
    }
}
